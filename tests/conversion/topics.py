"""Messages of any type for test recordings: a type, a few field values, zeros elsewhere; written beside a tape.

    write(tmp_path / "run.bag", bags.robot(), spoken("/task", {0.0: "reach", 1.5: "grasp"}))

The bytes come from the `rosbags` library, so nothing here shares code with penstock's decoders.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.conversion import bags

_NUMPY = {"float64": np.float64, "float32": np.float32, "bool": np.bool_, "octet": np.uint8}


@dataclass(frozen=True)
class Note:
    """One message of any type; `cut` bytes are missing at its end."""

    topic: str
    type: str
    time_ns: int
    fields: Mapping[str, Any] = field(default_factory=dict)
    cut: int = 0


def at(seconds: float) -> int:
    """A time of a test recording."""
    return bags.START_NS + round(seconds * bags.SECOND)


def notes(topic: str, type_name: str, at_ns: Sequence[int], fields: Callable[[int], Mapping[str, Any]]) -> list[Note]:
    """A topic: `fields(number)` at each time."""
    return [Note(topic, type_name, time_ns, fields(number)) for number, time_ns in enumerate(at_ns)]


def spoken(topic: str, texts: Mapping[float, Any], type_name: str = "std_msgs/msg/String") -> list[Note]:
    """A topic of std_msgs that says something at some seconds."""
    return [Note(topic, type_name, at(seconds), {"data": text}) for seconds, text in texts.items()]


def write(
    path: Path, tape: Iterable[bags.Message], *more: Iterable[Note], custom: Mapping[str, str] | None = None
) -> Path:
    """A ROS 1 bag of a tape and of further messages; `custom` maps type names to their definitions."""
    from penstock._src.recordings.ros1.writer import BagWriter

    store = _store(tuple(sorted((custom or {}).items())))
    messages: list[tuple[int, str, str, bytes]] = [
        (message.time_ns, message.topic, message.content.type, bags.payload(message, 1)) for message in tape
    ]
    for note in (note for group in more for note in group):
        data = bytes(store.serialize_ros1(make(store, note.type, note.fields), note.type))
        messages.append((note.time_ns, note.topic, note.type, data[: len(data) - note.cut]))
    with BagWriter(path) as bag:
        ids: dict[tuple[str, str], int] = {}
        for time_ns, topic, kind, data in sorted(messages, key=lambda each: each[0]):
            if (topic, kind) not in ids:
                text, md5 = store.generate_msgdef(kind, ros_version=1)
                ids[topic, kind] = bag.add_topic(topic, kind, text, md5)
            bag.write(ids[topic, kind], time_ns, data)
    return path


@functools.cache
def _store(custom: tuple[tuple[str, str], ...]) -> Any:
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    for name, text in custom:
        store.register(get_types_from_msg(text, name))
    return store


def make(store: Any, type_name: str, fields: Mapping[str, Any]) -> Any:
    """A message with the given fields, nested ones as mappings, and zeros for the rest."""
    _, described = store.fielddefs[type_name]
    unknown = set(fields) - {name for name, _ in described}
    assert not unknown, f"{type_name} has no {unknown}"
    return store.types[type_name](**{name: _value(store, kind, fields.get(name)) for name, kind in described})


def _value(store: Any, kind: Any, given: Any) -> Any:
    node, details = kind[0].name, kind[1]
    if node == "NAME":
        return make(store, details, given or {})
    if node == "BASE":
        name = details[0]
        return given if given is not None else "" if name == "string" else False if name == "bool" else 0
    inner, count = details
    if inner[0].name == "NAME" or inner[1][0] == "string":
        return [_value(store, inner, each) for each in (given or [])]
    dtype = _NUMPY.get(inner[1][0], inner[1][0])
    return np.zeros(count if node == "ARRAY" else 0, dtype) if given is None else np.array(given, dtype)
