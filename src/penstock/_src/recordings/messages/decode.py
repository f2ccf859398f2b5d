"""Messages to values: ROS 1 serialisation and ROS 2 CDR, by interpretation of the definition inside the recording.

No code is generated. A decoder turns the definition into steps once; a reader then makes one walk per message, moves
over what was not requested and stops after the last requested field.

    decoder = RosDecoder(definitions, "sensor_msgs/msg/JointState", "cdr")
    read = decoder.reader(["header.stamp", "position"])
    stamp_ns, position = read(payload)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from struct import error as StructError
from typing import Any

from penstock._src.recordings.messages import steps as s
from penstock._src.recordings.messages.decoder import MessageDecoder, Payload, Reader
from penstock._src.recordings.messages.definitions import (
    DURATION_TYPE,
    HEADER_TYPE,
    SEQUENCE,
    TIME_TYPE,
    FieldType,
    MessageDef,
    check_definitions,
    definition_of,
    normalise_type,
)
from penstock._src.recordings.messages.paths import ArraySlice, FieldPath, PathPart, follow, parse_path, select
from penstock.errors import MessageError, SchemaError

_CDR_HEADER_BYTES = 4
_BARE_STAMP = "timestamp"  # what foxglove's messages begin with instead of a header
_TIMES = {"time": "time", TIME_TYPE: "time", "duration": "duration", DURATION_TYPE: "duration"}
_MAX_LEAST_BYTES = 1 << 30

Tree = dict[str, "Tree | None"]
"""The fields that are wanted of a message, by name; None: all of it."""


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
        self.message = definition_of(self.type_name, definitions)
        dialects = (s.ROS1,) if encoding == "ros1" else (s.CDR_LITTLE, s.CDR_BIG)
        self._walks = {dialect.order: _Walks(definitions, dialect) for dialect in dialects}
        self._walks["<"].steps(self.type_name, {}, self.type_name)  # what cannot be walked is a SchemaError now
        self.stamp_offset = self._find_stamp()
        self.has_header = self.stamp_offset is not None
        self._stamps = {dialect.order: dialect.time_struct("time").unpack_from for dialect in dialects}
        self._whole: Reader | None = None

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
        return int(seconds) * s.NS_PER_S + int(nanoseconds)

    def reader(self, paths: Sequence[str | FieldPath]) -> Reader:
        parsed = [parse_path(path) if isinstance(path, str) else path for path in paths]
        for path in parsed:
            self.field_at(path)
        tree = _tree([path.parts for path in parsed])
        walks: dict[str, tuple[s.Step, ...]] = {}
        getters = [_getter(tree, path.parts, self.type_name) for path in parsed]
        type_name, is_cdr = self.type_name, self.encoding == "cdr"

        def read(payload: Payload) -> tuple[Any, ...]:
            order, body = "<", memoryview(payload)
            if is_cdr:
                order, body = _byte_order(payload, type_name), body[_CDR_HEADER_BYTES:]
            steps = walks.get(order)
            if steps is None:
                steps = walks[order] = self._walks[order].steps(type_name, tree, type_name, stop_early=True)
            out: dict[str, Any] = {}
            position = 0
            for step in steps:
                position = step(body, position, out)
            return tuple([get(out) for get in getters])

        walks["<"] = self._walks["<"].steps(type_name, tree, type_name, stop_early=True)
        return read

    def decode(self, payload: Payload) -> dict[str, Any]:
        if self._whole is None:
            self._whole = self.reader(["."])
        message: dict[str, Any] = self._whole(payload)[0]
        return message

    def is_time(self, kind: FieldType) -> bool:
        return kind.name in _TIMES

    def _find_stamp(self) -> int | None:
        """Where the stamp lies in the payload: behind a header's seq in ROS 1, else at its beginning."""
        fields = self.message.fields[:1]
        offset = _CDR_HEADER_BYTES if self.encoding == "cdr" else 0
        if fields and fields[0].type.name == HEADER_TYPE and fields[0].type.array is None:
            fields = self.definition(HEADER_TYPE).fields[:2]
            if fields and fields[0].type == FieldType("primitive", "uint32"):
                fields, offset = fields[1:], offset + 4
        if not fields or fields[0].name not in ("stamp", _BARE_STAMP):
            return None
        kind = fields[0].type
        return offset if kind.array is None and self.is_time(kind) else None


def _byte_order(payload: Payload, type_name: str) -> str:
    """What the four bytes before a CDR body say of its byte order."""
    if len(payload) < _CDR_HEADER_BYTES:
        raise MessageError(f"{type_name}: a CDR message has a header of 4 bytes, this one has {len(payload)} in all")
    if payload[0] == 0 and payload[1] <= 1:
        return "<" if payload[1] else ">"
    raise MessageError(
        f"{type_name}: the CDR header {bytes(payload[:4]).hex(' ')} names an encoding that is not plain CDR",
        hint="plain CDR begins with 00 00 or 00 01; parameter lists and XCDR2 are not read",
    )


def _tree(paths: Sequence[Sequence[PathPart]]) -> Tree | None:
    if not all(paths):
        return None
    groups: dict[str, list[Sequence[PathPart]]] = {}
    for parts in paths:
        groups.setdefault(parts[0].name, []).append(parts[1:])
    return {name: _tree(rest) for name, rest in groups.items()}


def _getter(tree: Tree | None, parts: Sequence[PathPart], where: str) -> Callable[[Any], Any]:
    """How to find what lies at a path in what was read; of messages that are wanted in parts, the fields lie side by
    side by their dotted names."""
    if tree is None:
        return lambda value: follow(value, parts, where)
    number, inner = 0, tree[parts[0].name]
    while inner is not None and parts[number].selector is None:
        number += 1
        inner = inner[parts[number].name]
    key = ".".join(part.name for part in parts[: number + 1])
    where, selector, rest = f"{where}.{key}", parts[number].selector, parts[number + 1 :]
    if selector is None and not rest:
        return itemgetter(key)
    get = _getter(inner, rest, where)
    if selector is None:
        return lambda out: get(out[key])

    def selected(out: Any) -> Any:
        value = select(out[key], selector, where)
        return [get(item) for item in value] if isinstance(selector, ArraySlice) and rest else get(value)

    return selected


class _FixedSizeRun:
    """Neighbouring fields of fixed size, in which only the first must be aligned when a message is read."""

    def __init__(self) -> None:
        self.align, self.n_bytes = 1, 0
        self.codes: list[str] = []
        self.names: list[str] = []
        self.label = ""


class _Walks:
    """Makes the steps over the types of one topic in one dialect."""

    def __init__(self, definitions: Mapping[str, MessageDef], dialect: s.Dialect) -> None:
        self._definitions = definitions
        self._dialect = dialect
        self._least: dict[str, int] = {}
        self._known: dict[tuple[str, bool], tuple[s.Step, ...]] = {}

    def steps(self, name: str, tree: Tree | None, label: str, *, stop_early: bool = False) -> tuple[s.Step, ...]:
        """The steps over a message; `stop_early`: what lies behind the last wanted field is left alone."""
        key = (name, tree is None)
        is_shared = not tree and not stop_early  # all of a type, or nothing: the same wherever it lies
        if is_shared and key in self._known:
            return self._known[key]
        self.least_message_bytes(name)
        made = _StepBuilder(self, self._dialect)
        made.add_message(name, tree, name if is_shared else label)
        made.flush()
        steps = tuple(made.steps[: made.n_needed] if stop_early else made.steps)
        if is_shared:
            self._known[key] = steps
        return steps

    def definition(self, name: str) -> MessageDef:
        return definition_of(name, self._definitions)

    def least_message_bytes(self, name: str) -> int:
        """The fewest bytes a message can take."""
        if name not in self._least:
            fields = self.definition(name).fields
            least = sum(self._least_bytes(field.type) for field in fields)
            if least > _MAX_LEAST_BYTES:
                raise SchemaError(f"a message of type {name} would take at least {least:,} bytes")
            self._least[name] = least if fields or not self._dialect.aligned else 1
        return self._least[name]

    def _least_bytes(self, kind: FieldType) -> int:
        if kind.array == SEQUENCE:
            return 4
        count = 1 if kind.array is None else kind.array
        if kind.name in _TIMES:
            return 8 * count
        if kind.kind == "message":
            return count * self.least_message_bytes(kind.name)
        return count * (self._dialect.dtype(kind.name).itemsize if kind.kind == "primitive" else 4)


class _StepBuilder:
    """Collects the steps of one walk."""

    def __init__(self, walks: _Walks, dialect: s.Dialect) -> None:
        self.steps: list[s.Step] = []
        self.n_needed = 0  # steps up to the last one that gives a value
        self._walks = walks
        self._dialect = dialect
        self._run = _FixedSizeRun()

    def add_message(self, name: str, tree: Tree | None, label: str, prefix: str = "") -> None:
        fields = self._walks.definition(name).fields
        if not fields and self._dialect.aligned:
            self._add_fixed("x", 1, 1, s.StepField(None, label, self._dialect))
        for field in fields:
            keep = tree is None or field.name in tree
            inner = None if tree is None else tree.get(field.name, {})
            key, field_label = f"{prefix}{field.name}", f"{label}.{field.name}"
            if (
                field.type.kind == "message"
                and field.type.array is None
                and field.type.name not in _TIMES
                and inner is not None
            ):
                self.add_message(field.type.name, inner, field_label, f"{key}.")
            else:
                self._add_field(field.type, inner, s.StepField(key if keep else None, field_label, self._dialect))

    def _add_field(self, kind: FieldType, tree: Tree | None, field: s.StepField) -> None:
        if kind.kind == "wstring":
            raise SchemaError(f"{field.label} is a wide string, which is not read")
        if kind.array is not None:
            self._add_array(kind, tree, field)
        elif kind.name in _TIMES:
            if field.name is None:
                self._add_fixed("8x", 8, 4, field)
            else:
                self._add(s.time(field, _TIMES[kind.name]), field)
        elif kind.kind == "string":
            self._add(s.text(field), field)
        elif kind.kind == "primitive":
            size = self._dialect.dtype(kind.name).itemsize
            self._add_fixed(f"{size}x" if field.name is None else self._dialect.code(kind.name), size, size, field)
        else:
            self._add(s.message(field, self._walks.steps(kind.name, None, field.label)), field)

    def _add_array(self, kind: FieldType, tree: Tree | None, field: s.StepField) -> None:
        fixed = None if kind.array == SEQUENCE else kind.array
        if kind.kind == "string":
            self._add(s.texts(field, fixed), field)
        elif kind.name in _TIMES:
            self._add(s.times(field, _TIMES[kind.name], fixed), field)
        elif kind.kind == "message":
            least = self._walks.least_message_bytes(kind.name)
            if field.name is not None and not least:
                raise SchemaError(f"{field.label}: an array of empty messages holds no values")
            steps = self._walks.steps(kind.name, tree, field.label)
            self._add(s.messages(field, fixed, least, steps), field)
        elif fixed is not None and field.name is None:
            size = self._dialect.dtype(kind.name).itemsize
            self._add_fixed(f"{fixed * size}x", fixed * size, size, field)
        else:
            self._add(s.numbers(field, kind.name, fixed), field)

    def _add(self, step: s.Step, field: s.StepField) -> None:
        self.flush()
        self.steps.append(step)
        if field.name is not None:
            self.n_needed = len(self.steps)

    def _add_fixed(self, code: str, size: int, align: int, field: s.StepField) -> None:
        """A part of fixed size joins the present run, unless its place in it depends on where the run lies."""
        align = align if self._dialect.aligned else 1
        if align > self._run.align:
            self.flush()
            self._run.align = align
        run = self._run
        if padding := -run.n_bytes % align:
            run.codes.append(f"{padding}x")
        run.codes.append(code)
        run.n_bytes += padding + size
        if field.name is not None:
            run.label = run.label or field.label
            run.names.append(field.name)

    def flush(self) -> None:
        """End the present run."""
        run, self._run = self._run, _FixedSizeRun()
        if run.n_bytes:
            field = s.StepField(None, run.label, self._dialect)
            self.steps.append(s.run(field, run.align, "".join(run.codes), run.names))
            if run.names:
                self.n_needed = len(self.steps)
