"""The types of a protobuf topic, from the FileDescriptorSet that the recording carries.

Read with the protobuf library, an extra; nothing is registered or generated. Types that no field of the topic's type
leads to are not looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from penstock._src.recordings.messages.decoder import time_kind
from penstock._src.recordings.messages.definitions import (
    MAX_DEPTH,
    MAX_FIELDS,
    SEQUENCE,
    FieldDef,
    FieldType,
    MessageDef,
    check_definitions,
    is_field_name,
    shorten,
)
from penstock._src.recordings.messages.protobuf_wire import SCALARS
from penstock.errors import MissingExtra, SchemaError

NO_PROTOBUF = MissingExtra("protobuf", "protobuf", "reading protobuf messages").message
MAX_DESCRIPTOR_BYTES = 4 << 20
MAX_EXPANDED_FIELDS = 20_000
MAX_FIELD_NUMBER = (1 << 29) - 1

# FieldDescriptorProto.Type, from 1 on.
_TYPES = ("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message",
          "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64")  # fmt: skip
_REPEATED = 3
_DTYPE_NAMES = {"<f8": "float64", "<f4": "float32", "<i8": "int64", "<u8": "uint64", "<i4": "int32", "<u4": "uint32",
                "?": "bool"}  # fmt: skip
_INTEGERS = frozenset(_TYPES) - {"double", "float", "bool", "string", "group", "message", "bytes", "enum"}


@dataclass(frozen=True)
class ProtoField:
    """One field: its number on the wire, its kind as .proto files name it, and its value where a message lacks it."""

    number: int
    kind: str  # a name of SCALARS, "string", "bytes" or "message"
    definition: FieldDef
    repeated: bool = False
    default: Any = None
    message: str = ""  # the type of a message, also where it becomes a time

    @property
    def name(self) -> str:
        return self.definition.name


ProtoTypes = dict[str, tuple[ProtoField, ...]]
"""The fields of the message types of a topic, by their full names."""


def parse_descriptors(data: bytes, type_name: str) -> ProtoTypes:
    """Read a FileDescriptorSet; SchemaError where it is broken, lacks a type, or is over the limits."""
    if len(data) > MAX_DESCRIPTOR_BYTES:
        raise SchemaError(
            f"the descriptors of {shorten(type_name)} have {len(data):,} bytes, the limit is {MAX_DESCRIPTOR_BYTES:,}"
        )
    try:
        from google.protobuf import descriptor_pb2, message
    except ImportError:
        raise SchemaError(NO_PROTOBUF) from None
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(data)
    except (message.DecodeError, RecursionError, ValueError) as error:
        raise SchemaError(f"the descriptors of {shorten(type_name)} cannot be read: {error}") from None
    return _DescriptorParser(files, type_name).run()


def definitions_of(types: ProtoTypes) -> dict[str, MessageDef]:
    return {name: MessageDef(name, tuple(each.definition for each in fields)) for name, fields in types.items()}


class _DescriptorParser:
    def __init__(self, files: Any, type_name: str) -> None:
        self._root = type_name
        self._messages: dict[str, Any] = {}
        self._enums: dict[str, Any] = {}
        for file in files.file:
            self._collect(_text(file.package), file.message_type, file.enum_type, 0)
        self._types: ProtoTypes = {}
        self._open: list[str] = []
        self._total = 0

    def run(self) -> ProtoTypes:
        if self._root not in self._messages:
            names = ", ".join(list(self._messages)[:5])
            raise SchemaError(f"its descriptors do not describe {shorten(self._root)}; they have {names or 'nothing'}")
        self._add(self._root)
        check_definitions(definitions_of(self._types), self._root)
        self._check_expanded()
        return self._types

    def _check_expanded(self) -> None:
        """A few types that hold each other many times make a message of any number of fields."""
        expanded: dict[str, int] = {}
        for name, fields in self._types.items():  # what a type is made of comes before it
            inner = [each.message for each in fields if each.definition.type.kind == "message" and not each.repeated]
            expanded[name] = len(fields) + sum(expanded[each] for each in inner)
            if expanded[name] > MAX_EXPANDED_FIELDS:
                raise SchemaError(f"{shorten(name)} expands to more than {MAX_EXPANDED_FIELDS:,} fields")

    def _collect(self, scope: str, messages: Any, enums: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise SchemaError(f"the descriptors of {shorten(self._root)} nest more than {MAX_DEPTH} types deep")
        for each in messages:
            name = _joined(scope, each)
            self._messages.setdefault(name, each)
            self._collect(name, each.nested_type, each.enum_type, depth + 1)
        for each in enums:
            self._enums.setdefault(_joined(scope, each), each)

    def _add(self, name: str) -> None:
        """Describe a type and, before it, those that it is made of."""
        if len(self._open) >= MAX_DEPTH:
            raise SchemaError(f"{shorten(self._root)} nests more than {MAX_DEPTH} messages deep")
        self._open.append(name)
        message = self._messages[name]
        self._total += len(message.field)
        if self._total > MAX_FIELDS:
            raise SchemaError(f"the descriptors of {shorten(self._root)} have more than {MAX_FIELDS:,} fields")
        fields = tuple(self._fields(name, message))
        if len({each.name for each in fields}) != len(fields) or len({each.number for each in fields}) != len(fields):
            raise SchemaError(f"two fields of {shorten(name)} have the same name or number")
        self._types[name] = fields
        self._open.pop()

    def _fields(self, owner: str, message: Any) -> Iterator[ProtoField]:
        for field in message.field:
            field_name = _text(field.name)
            where = f"field {shorten(field_name)} of {shorten(owner)}"
            if not is_field_name(field_name):
                raise SchemaError(f"{where}: that is not the name of a field")
            number = field.type if field.HasField("type") else 0
            if not 1 <= field.number <= MAX_FIELD_NUMBER or not 1 <= number <= len(_TYPES):
                raise SchemaError(f"{where} has number {field.number} and type {number}, which do not exist")
            kind = _TYPES[number - 1]
            repeated = field.label == _REPEATED
            if kind == "group":
                raise SchemaError(f"{where} is a group, which is not read", hint="groups are of proto2, and deprecated")
            if kind == "message":
                name = _full_name(_text(field.type_name), owner, self._messages)
                if name not in self._open:  # what contains itself is read without its inner self
                    yield self._message_field(field.number, field_name, name, repeated)
                continue
            definition = FieldDef(field_name, _field_type(kind, repeated))
            default = None if repeated else self._default(owner, field, kind, where)
            yield ProtoField(field.number, kind, definition, repeated, default)

    def _message_field(self, number: int, field_name: str, name: str, repeated: bool) -> ProtoField:
        if name not in self._types:
            if name in self._messages:
                self._add(name)
            elif name in _TIMES:
                self._types[name] = _TIME_FIELDS
        fields = [(each.name, each.kind in _INTEGERS) for each in self._types.get(name, ())]
        array = SEQUENCE if repeated else None
        time = time_kind(name, fields)
        field_type = FieldType("message", name, array) if time is None else FieldType("primitive", time, array)
        return ProtoField(number, "message", FieldDef(field_name, field_type), repeated, None, name)

    def _default(self, owner: str, field: Any, kind: str, where: str) -> Any:
        """The value of a field that a message lacks, as protobuf defines it."""
        text = _text(field.default_value)
        try:
            if kind == "string":
                return text
            if kind == "bytes":
                from google.protobuf.text_encoding import CUnescape

                return memoryview(CUnescape(text) if text else b"")
            if kind == "bool":
                return text == "true"
            if kind == "enum":
                values = self._enums[_full_name(_text(field.type_name), owner, self._enums)].value
                return next((each.number for each in values if each.name == text), values[0].number if values else 0)
            if kind in ("double", "float"):
                # `optional` says that a message may have no value: then it is no number, and not zero.
                return float(text or ("nan" if field.proto3_optional else 0))
            return int(text or 0)
        except (ValueError, KeyError) as error:
            raise SchemaError(f"{where} has the default {shorten(text)}: {shorten(str(error))}") from None


def _text(value: str | bytes) -> str:
    """The library gives the bytes of a text that is not UTF-8."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _joined(scope: str, described: Any) -> str:
    name = _text(described.name)
    return f"{scope}.{name}" if scope else name


def _field_type(kind: str, repeated: bool) -> FieldType:
    array = SEQUENCE if repeated else None
    if kind == "string":
        return FieldType("string", "string", array)
    if kind == "bytes":  # arrays of arrays have no type of their own: several `bytes` are a list of what is no number
        return FieldType("string", "bytes", array) if repeated else FieldType("primitive", "uint8", SEQUENCE)
    return FieldType("primitive", _DTYPE_NAMES[SCALARS[kind].dtype], array)


def _full_name(name: str, owner: str, known: dict[str, Any]) -> str:
    """The full name of a type: it begins with a dot, or is looked up from its user's scope outwards."""
    if name.startswith("."):
        return name[1:]
    scope = owner
    while scope and f"{scope}.{name}" not in known:
        scope = scope.rpartition(".")[0]
    return f"{scope}.{name}" if scope else name


_TIMES = frozenset(("google.protobuf.Timestamp", "google.protobuf.Duration"))
# Of the times, which writers leave out of the set now and then because every system knows them.
_TIME_FIELDS = (
    ProtoField(1, "int64", FieldDef("seconds", FieldType("primitive", "int64")), default=0),
    ProtoField(2, "int32", FieldDef("nanos", FieldType("primitive", "int32")), default=0),
)
