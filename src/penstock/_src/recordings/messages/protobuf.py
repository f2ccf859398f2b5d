"""Protobuf messages to values, by the descriptors inside the recording; only what is wanted is converted."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias, cast

from penstock._src.recordings.messages import protobuf_wire as wire
from penstock._src.recordings.messages.decoder import Elements, Payload, Tree, TreeDecoder, time_ns
from penstock._src.recordings.messages.protobuf_schema import ProtoField, definitions_of, parse_descriptors
from penstock.errors import MessageError

# Where a field lies in a message: begin and end, of a repeated one again and again; and how its value is made of that.
_Spans: TypeAlias = "tuple[int, ...] | array[int]"
_Finish: TypeAlias = "Callable[[memoryview, _Spans], Any]"


class ProtobufDecoder(TreeDecoder):
    """Reads the messages of one protobuf type."""

    def __init__(self, descriptors: bytes, type_name: str) -> None:
        self._types = parse_descriptors(descriptors, type_name)
        self._whole_types: dict[str, _Finish] = {}
        super().__init__(definitions_of(self._types), type_name)
        numbers = {each.name: each.number for each in self._types[type_name]}
        self._stamp_number: int | None = None
        if self._stamp is not None and numbers[self._stamp.parts[0].name] == min(numbers.values()):
            self._stamp_number = min(numbers.values())
        self.stamp_is_first = self._stamp_number is not None  # writers put fields in the order of their numbers

    def __repr__(self) -> str:
        return f"ProtobufDecoder({self.type_name}, {len(self.message.fields)} fields)"

    def stamp_of_start(self, start: Payload) -> int | None:
        body = memoryview(start)
        try:
            first = next(wire.fields(body, 0, len(body), self.type_name), None)
        except MessageError:
            return None  # it goes on behind the first bytes
        if first is None or first[0] != self._stamp_number:
            return None
        return self.header_stamp_ns(body[: first[3]])

    def _tree_reader(self, tree: Tree | None) -> Callable[[memoryview], dict[str, Any]]:
        read = self._message(self.type_name, tree, self.type_name)
        return lambda payload: cast("dict[str, Any]", read(payload, (0, len(payload))))

    def _message(self, name: str, tree: Tree | None, where: str) -> _Finish:
        """Reads the wanted fields of a message as a dict; a message in several pieces is all of them."""
        if tree is None and name in self._whole_types:
            return self._whole_types[name]
        fields = [each for each in self._types[name] if tree is None or each.name in tree]
        where = name if tree is None else where  # read as a whole, a type is the same wherever it lies
        read = _message_reader({each.number: (each, self._field(each, tree, where)) for each in fields}, where)
        if tree is None:
            self._whole_types[name] = read
        return read

    def _field(self, field: ProtoField, tree: Tree | None, owner: str) -> _Finish:
        """How to make the value of a field from where it lies in the message."""
        where = f"{owner}.{field.name}"
        if field.kind == "message":
            is_time = field.definition.type.kind == "primitive"
            one = self._message(field.message, None if tree is None or is_time else tree[field.name], where)
            if is_time:
                one = partial(_time, one, where)
            return partial(_elements, one, lazy=tree is not None and not is_time) if field.repeated else one
        if field.kind in ("string", "bytes"):
            make = _text if field.kind == "string" else _bytes
            return partial(_list, make) if field.repeated else partial(_last, make, field.default)
        scalar = wire.SCALARS[field.kind]
        if field.repeated:
            return partial(_numbers, scalar, where)
        return partial(_last, lambda body, begin, end: wire.number_at(body, begin, end, scalar, where), field.default)


def _message_reader(fields: dict[int, tuple[ProtoField, _Finish]], where: str) -> _Finish:
    keeps_all = {number for number, (field, _) in fields.items() if field.repeated or field.kind == "message"}
    wires = {number: _wires(field) for number, (field, _) in fields.items()}

    def read(body: memoryview, pieces: _Spans) -> dict[str, Any]:
        spans_of: dict[int, _Spans] = {}
        for piece in range(0, len(pieces), 2):
            for number, kind, begin, end in wire.fields(body, pieces[piece], pieces[piece + 1], where):
                if number not in fields:
                    continue
                if kind not in wires[number]:
                    field = fields[number][0]
                    raise MessageError(
                        f"{where}.{field.name}: field {number} has wire type {kind}, which is not a {field.kind}",
                        hint="the message was written with another definition of its type",
                    )
                if number not in spans_of or number not in keeps_all:
                    spans_of[number] = (begin, end)
                    continue
                spans = spans_of[number]
                if isinstance(spans, tuple):  # most fields are there once
                    spans = spans_of[number] = array("q", spans)
                spans.extend((begin, end))
        return {field.name: finish(body, spans_of.get(number, ())) for number, (field, finish) in fields.items()}

    return read


def _wires(field: ProtoField) -> tuple[int, ...]:
    """The wire types that a field may have: arrays of numbers come packed or one by one."""
    if field.kind in ("message", "string", "bytes"):
        return (wire.BYTES,)
    own = wire.SCALARS[field.kind].wire
    return (own, wire.BYTES) if field.repeated else (own,)


def _last(make: Callable[[memoryview, int, int], Any], default: Any, body: memoryview, spans: _Spans) -> Any:
    return make(body, spans[0], spans[1]) if spans else default


def _list(make: Callable[[memoryview, int, int], Any], body: memoryview, spans: _Spans) -> list[Any]:
    return [make(body, spans[place], spans[place + 1]) for place in range(0, len(spans), 2)]


def _text(body: memoryview, begin: int, end: int) -> str:
    return str(body[begin:end], "utf-8", "backslashreplace")


def _bytes(body: memoryview, begin: int, end: int) -> memoryview:
    return body[begin:end]


def _numbers(scalar: wire.Scalar, where: str, body: memoryview, spans: _Spans) -> Any:
    if len(spans) == 2:
        return wire.numbers_of(body[spans[0] : spans[1]], scalar, where)
    packed = bytearray()  # numbers one by one are the same bytes as packed ones
    for place in range(0, len(spans), 2):
        packed += body[spans[place] : spans[place + 1]]
    return wire.numbers_of(memoryview(packed), scalar, where)


def _elements(one: _Finish, body: memoryview, spans: _Spans, *, lazy: bool) -> Any:
    elements = Elements(len(spans) // 2, lambda place: one(body, spans[2 * place : 2 * place + 2]))
    return elements if lazy else list(elements)


def _time(read: _Finish, where: str, body: memoryview, spans: _Spans) -> int:
    return time_ns(read(body, spans), where)
