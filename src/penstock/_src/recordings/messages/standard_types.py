"""The definitions that every ROS system knows, for recordings (old .db3 files) that carry none of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

from penstock._src.recordings.messages.definitions import (
    DURATION_TYPE,
    EMPTY_MEMBER,
    PRIMITIVES,
    SEQUENCE,
    TIME_TYPE,
    FieldDef,
    FieldType,
    MessageDef,
)
from penstock.errors import UsageError

if TYPE_CHECKING:
    from rosbags.interfaces.typing import FieldDesc

Distro = Literal["ros1", "ros2"]


@lru_cache(maxsize=2)
def standard_definitions(distro: Distro) -> Mapping[str, MessageDef]:
    """All standard message types of ROS 1 (Noetic) or ROS 2 (Humble, plus what later releases added).

    >>> [field.name for field in standard_definitions("ros1")["std_msgs/msg/Header"].fields]
    ['seq', 'stamp', 'frame_id']
    """
    from rosbags.typesys import Stores, get_typestore

    if distro == "ros1":
        stores = [Stores.ROS1_NOETIC]
    elif distro == "ros2":
        # The oldest comes last and wins: files without definitions were written before Iron began to store them.
        stores = [Stores.LATEST, Stores.ROS2_HUMBLE]
    else:
        raise UsageError(f"there are no standard types for {distro!r}; known are 'ros1' and 'ros2'")
    definitions: dict[str, MessageDef] = {}
    for store in stores:
        for name, (_, fields) in get_typestore(store).fielddefs.items():
            definitions[name] = message_from_rosbags(name, fields, ros1=distro == "ros1")
    return definitions


def message_from_rosbags(name: str, fields: Iterable[tuple[str, FieldDesc]], *, ros1: bool) -> MessageDef:
    """A message type as the rosbags library describes it, as ours."""
    own = [(field, desc) for field, desc in fields if field != EMPTY_MEMBER]
    return MessageDef(name, tuple(FieldDef(field, from_rosbags(desc, ros1=ros1)) for field, desc in own))


def from_rosbags(desc: FieldDesc, *, ros1: bool) -> FieldType:
    """A field type as the rosbags library describes it, as ours."""
    node: Any = desc
    array: int | None = None
    bound: int | None = None
    if node[0].name in ("ARRAY", "SEQUENCE"):
        array = node[1][1] if node[0].name == "ARRAY" else SEQUENCE
        bound = (node[1][1] or None) if array == SEQUENCE else None
        node = node[1][0]
    if node[0].name == "NAME":
        if ros1 and node[1] in (TIME_TYPE, DURATION_TYPE):
            return FieldType("primitive", "time" if node[1] == TIME_TYPE else "duration", array, bound)
        return FieldType("message", node[1], array, bound)
    name, length = node[1]
    if name in ("string", "wstring"):
        kind: Literal["string", "wstring"] = "string" if name == "string" else "wstring"
        return FieldType(kind, name, array, bound if array is not None else (length or None))
    return FieldType("primitive" if name in PRIMITIVES else "message", name, array, bound)
