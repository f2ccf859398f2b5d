"""Messages to values: ROS 1 serialisation and ROS 2 CDR, by interpretation of the definition inside the recording.

No code is generated. A Decoder turns the definition into steps once; a reader then makes one walk per message,
skips what was not requested and stops after the last requested field.

    decoder = Decoder(definitions, "sensor_msgs/msg/JointState", "cdr")
    read = decoder.reader(["header.stamp", "position"])
    stamp_ns, position = read(payload)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any

from penstock._src.recordings.messages.decoder import MessageDecoder, Payload, Reader
from penstock._src.recordings.messages.definitions import (
    HEADER_TYPE,
    FieldType,
    MessageDef,
    check_definitions,
    normalise_type,
)
from penstock._src.recordings.messages.paths import FieldPath, PathPart, follow, parse_path
from penstock._src.recordings.messages.steps import CDR_BIG, CDR_LITTLE, NS_PER_S, ROS1, Step
from penstock._src.recordings.messages.walk import FieldSelection, MessageWalk, TypeTable
from penstock.errors import MessageError, SchemaError

_CDR_HEADER_BYTES = 4
_BARE_STAMP = "timestamp"  # what foxglove's messages begin with instead of a header


class RosDecoder(MessageDecoder):
    """Reads the messages of one ROS type in one encoding."""

    stamp_is_first = True

    def __init__(self, definitions: Mapping[str, MessageDef], type_name: str, encoding: str) -> None:
        if encoding not in ("ros1", "cdr"):
            raise SchemaError(f"messages in the encoding {encoding!r} cannot be decoded; known are 'ros1' and 'cdr'")
        self.type_name = normalise_type(type_name)
        self.encoding = encoding
        self.definitions = definitions
        check_definitions(definitions, self.type_name)
        dialects = (ROS1,) if encoding == "ros1" else (CDR_LITTLE, CDR_BIG)
        self._types = {dialect.order: TypeTable(definitions, dialect) for dialect in dialects}
        self.message = self._types["<"].message(self.type_name)
        self._types["<"].least_message_bytes(self.type_name)
        self.stamp_offset = self._find_stamp()
        # It begins with a std_msgs/Header, or with a time called `timestamp` as foxglove's do.
        self.has_header = self.stamp_offset is not None
        self._stamps = {
            order: Struct(order + (ROS1 if encoding == "ros1" else CDR_LITTLE).time_codes).unpack_from
            for order in self._types
        }
        self._whole: Reader | None = None

    def __repr__(self) -> str:
        return f"Decoder({self.type_name}, {self.encoding}, {len(self.message.fields)} fields)"

    def header_stamp_ns(self, payload: Payload) -> int:
        """The time in the message's header; only the payload's first bytes are touched."""
        if self.stamp_offset is None:
            raise SchemaError(
                f"{self.type_name} does not begin with a std_msgs/Header and so has no header time",
                hint="use the receive times of this topic (time: log)",
            )
        order = "<" if self.encoding == "ros1" else _byte_order(payload, self.type_name)
        try:
            seconds, nanoseconds = self._stamps[order](payload, self.stamp_offset)
        except StructError:
            raise MessageError(
                f"{self.type_name}.header.stamp: needs 8 bytes at byte {self.stamp_offset} of the message, "
                f"{max(0, len(payload) - self.stamp_offset)} are left"
            ) from None
        return int(seconds) * NS_PER_S + int(nanoseconds)

    def reader(self, paths: Sequence[str | FieldPath]) -> Reader:
        """A function from a payload to the values at the paths, in their order; '.' is the whole message.

        Arrays of numbers are views into the payload: copy what must outlive it.
        """
        parsed = [parse_path(path) if isinstance(path, str) else path for path in paths]
        for path in parsed:
            self.field_at(path)
        # Big-endian messages are rare: their plan is made when the first one comes.
        plans = {"<": _plan(self._types["<"], self.type_name, parsed)}
        type_name, types_by_order = self.type_name, self._types

        def read_ros1(payload: Payload) -> tuple[Any, ...]:
            body = payload if type(payload) is memoryview else memoryview(payload)
            values: list[Any] = []
            position = 0
            for step in steps:
                position = step(body, position, values)
            return tuple(values) if arrange is None else arrange(values)

        def read_cdr(payload: Payload) -> tuple[Any, ...]:
            order = _byte_order(payload, type_name)
            if order not in plans:
                plans[order] = _plan(types_by_order[order], type_name, parsed)
            cdr_steps, cdr_arrange = plans[order]
            body = memoryview(payload)[_CDR_HEADER_BYTES:]
            values: list[Any] = []
            position = 0
            for step in cdr_steps:
                position = step(body, position, values)
            return tuple(values) if cdr_arrange is None else cdr_arrange(values)

        steps, arrange = plans["<"]
        return read_ros1 if self.encoding == "ros1" else read_cdr

    def decode(self, payload: Payload) -> dict[str, Any]:
        """The whole message as a dict."""
        if self._whole is None:
            self._whole = self.reader(["."])
        message: dict[str, Any] = self._whole(payload)[0]
        return message

    def is_time(self, kind: FieldType) -> bool:
        return self._types["<"].time_codes(kind) is not None

    def _find_stamp(self) -> int | None:
        """Where the stamp lies in the payload: behind a header's seq in ROS 1, else at its beginning."""
        first = self.message.fields[0].type if self.message.fields else None
        types = self._types["<"]
        offset = _CDR_HEADER_BYTES if self.encoding == "cdr" else 0
        if first is None or first.array is not None:
            return None
        if self.message.fields[0].name == _BARE_STAMP and types.time_codes(first):
            return offset
        if first.name != HEADER_TYPE:
            return None
        for field in types.message(HEADER_TYPE).fields:
            if field.name == "stamp":
                return offset if field.type.array is None and types.time_codes(field.type) else None
            if field.type.name not in ("uint32", "int32") or field.type.array is not None:
                return None
            offset += 4
        return None


def _byte_order(payload: Payload, type_name: str) -> str:
    """What the four bytes before a CDR body say of its byte order."""
    if len(payload) >= _CDR_HEADER_BYTES and payload[0] == 0:
        kind = payload[1]
        if kind == 1:
            return "<"
        if kind == 0:
            return ">"
    elif len(payload) < _CDR_HEADER_BYTES:
        raise MessageError(f"{type_name}: a CDR message has a header of 4 bytes, this one has {len(payload)} in all")
    raise MessageError(
        f"{type_name}: the CDR header {bytes(payload[:4]).hex(' ')} names an encoding that is not plain CDR",
        hint="plain CDR begins with 00 00 or 00 01; parameter lists and XCDR2 are not read",
    )


Arrange = Callable[[list[Any]], tuple[Any, ...]]
_Request = tuple[tuple[PathPart, ...], int]


def _plan(types: TypeTable, type_name: str, paths: Sequence[FieldPath]) -> tuple[tuple[Step, ...], Arrange | None]:
    """The steps of one walk, and how to put the values that come out into the order asked for (None: as they are)."""
    sources: list[tuple[FieldSelection, tuple[PathPart, ...], str] | None] = [None] * len(paths)
    root = _fields_to_capture(
        types, type_name, [(path.parts, number) for number, path in enumerate(paths)], sources, type_name
    )
    types.expanded = 0
    walk = MessageWalk(types)
    if paths:
        walk.add_message(type_name, root, type_name)
        if root.whole:
            walk.captured.append(root)
    steps = walk.finish(stop_after_last_value=True)
    places = {id(want): place for place, want in enumerate(walk.captured)}
    picks = [(places[id(want)], (rest, want, where)) for want, rest, where in filter(None, sources)]
    if [place for place, _ in picks] == list(range(len(places))) and not any(how[0] for _, how in picks):
        return steps, None

    def answer(value: Any, rest: tuple[PathPart, ...], want: FieldSelection, where: str) -> Any:
        if not rest:
            return value
        return follow(value if want is root else {rest[0].name: value}, rest, where)

    def arrange(values: list[Any]) -> tuple[Any, ...]:
        return tuple(answer(values[place], *how) for place, how in picks)

    return steps, arrange


def _fields_to_capture(
    types: TypeTable,
    type_name: str,
    requests: Sequence[_Request],
    sources: list[tuple[FieldSelection, tuple[PathPart, ...], str] | None],
    label: str,
) -> FieldSelection:
    """What to capture of a message so that every request can be answered; `sources` gets where each answer lies."""
    want = FieldSelection(whole=any(not parts for parts, _ in requests))
    groups: dict[str, list[_Request]] = {}
    for parts, number in requests:
        if want.whole:
            sources[number] = (want, parts, label)
        else:
            groups.setdefault(parts[0].name, []).append((parts, number))
    message = types.message(type_name)
    for name, group in groups.items():
        field = message.field(name)
        assert field is not None
        here = f"{label}.{name}"
        selectors = {parts[0].selector for parts, _ in group}
        index = next(iter(selectors))
        deeper = all(len(parts) > 1 for parts, _ in group)
        inner = [(parts[1:], number) for parts, number in group]
        if deeper and field.type.array is None:
            want.fields[name] = _fields_to_capture(types, field.type.name, inner, sources, here)
        elif deeper and len(selectors) == 1 and isinstance(index, int):
            child = _fields_to_capture(types, field.type.name, inner, sources, f"{here}[{index}]")
            want.fields[name] = FieldSelection(False, child.fields, index)
        else:
            want.fields[name] = child = FieldSelection(whole=True)
            for parts, number in group:
                plain = len(parts) == 1 and parts[0].selector is None
                sources[number] = (child, () if plain else parts, label)
    return want
