"""Protobuf messages to values, by the descriptors inside the recording and the protobuf library, an extra.

The descriptors go into a pool of their own: nothing is registered elsewhere, and no code is generated.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock._src.recordings.messages.decoder import ObjectDecoder, Payload, time_kind, time_ns
from penstock._src.recordings.messages.definitions import (
    MAX_DEPTH,
    SEQUENCE,
    FieldDef,
    FieldType,
    MessageDef,
    check_definitions,
    shorten,
)
from penstock.errors import MessageError, MissingExtra, SchemaError

NO_PROTOBUF = MissingExtra("protobuf", "protobuf", "reading protobuf messages").message
MAX_DESCRIPTOR_BYTES = 4 << 20

# What each FieldDescriptorProto.Type becomes, from 1 on; groups and messages are no primitives.
_PRIMITIVES = ("float64", "float32", "int64", "uint64", "int32", "uint64", "uint32", "bool", "string", "", "",
               "bytes", "uint32", "int32", "int32", "int64", "int32", "int64")  # fmt: skip
_FLOATS, _GROUP, _MESSAGE = (1, 2), 10, 11
_REPEATED = 3


class ProtobufDecoder(ObjectDecoder):
    """Reads the messages of one protobuf type."""

    def __init__(self, descriptors: bytes, type_name: str) -> None:
        self._message_class = _message_class(descriptors, type_name)
        self._optional: set[tuple[str, str]] = set()  # (type, field) of `optional` floats
        definitions: dict[str, MessageDef] = {}
        self._describe(self._message_class.DESCRIPTOR, definitions, ())
        check_definitions(definitions, type_name)
        super().__init__(definitions, type_name)

    def _describe(self, message: Any, definitions: dict[str, MessageDef], outer: tuple[str, ...]) -> None:
        """Define a type and those that it is made of; what contains itself is read without its inner self."""
        if len(outer) >= MAX_DEPTH:
            raise SchemaError(f"{shorten(outer[0])} nests more than {MAX_DEPTH} messages deep")
        open_types = (*outer, message.full_name)
        fields = []
        for field in _proto_of(message).field:
            array = SEQUENCE if field.label == _REPEATED else None
            inner = message.fields_by_name[field.name].message_type
            if field.type == _GROUP:
                raise SchemaError(f"field {field.name} of {shorten(message.full_name)} is a group, which is not read")
            if inner is None:
                kind = _primitive(_PRIMITIVES[field.type - 1], array)
            elif (time := _time_kind(inner)) is not None:
                kind = FieldType("primitive", time, array)
            elif inner.full_name in open_types:
                continue
            else:
                if inner.full_name not in definitions:
                    self._describe(inner, definitions, open_types)
                kind = FieldType("message", inner.full_name, array)
            fields.append(FieldDef(field.name, kind))
            if field.proto3_optional and field.type in _FLOATS:
                self._optional.add((message.full_name, field.name))
        definitions[message.full_name] = MessageDef(message.full_name, tuple(fields))

    def _parse(self, payload: Payload) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return self._message_class.FromString(bytes(payload))
        except DecodeError as error:
            raise MessageError(
                f"{self.type_name}: the message cannot be read: {error}",
                hint="the message is cut, or was written with another definition of its type",
            ) from None

    def _member(self, value: Any, field: FieldDef, where: str) -> Any:
        # `optional` says that a message may have no value: then it is no number, and not zero.
        if (value.DESCRIPTOR.full_name, field.name) in self._optional and not value.HasField(field.name):
            return math.nan
        return getattr(value, field.name)

    def _plain(self, value: Any, kind: FieldType, where: str) -> Any:
        if kind.array is not None and kind.kind == "primitive" and not self.is_time(kind):
            return memoryview(value) if isinstance(value, bytes) else np.array(value[:], kind.name)
        if kind.array is not None:
            one = FieldType(kind.kind, kind.name)
            return [self._plain(each, one, where) for each in value]
        if self.is_time(kind):
            return time_ns({each.name: getattr(value, each.name) for each in value.DESCRIPTOR.fields}, where)
        if kind.kind != "message":
            return memoryview(value) if isinstance(value, bytes) else value
        fields = self.definition(kind.name).fields
        return {each.name: self._plain(self._member(value, each, where), each.type, where) for each in fields}


def _primitive(name: str, array: int | None) -> FieldType:
    if name == "bytes":  # arrays of arrays have no type of their own: several `bytes` are a list of what is no number
        return FieldType("primitive", "uint8", SEQUENCE) if array is None else FieldType("string", "bytes", array)
    return FieldType("string" if name == "string" else "primitive", name, array)


def _time_kind(message: Any) -> str | None:
    integers = [(field.name, _PRIMITIVES[field.type - 1].startswith(("int", "uint"))) for field in message.fields]
    return time_kind(message.full_name, integers)


def _proto_of(message: Any) -> Any:
    from google.protobuf.descriptor_pb2 import DescriptorProto

    described = DescriptorProto()
    message.CopyToProto(described)
    return described


def _message_class(data: bytes, type_name: str) -> Any:
    """The class of a message type; SchemaError where the descriptors are broken or lack it."""
    if len(data) > MAX_DESCRIPTOR_BYTES:
        raise SchemaError(
            f"the descriptors of {shorten(type_name)} have {len(data):,} bytes, the limit is {MAX_DESCRIPTOR_BYTES:,}"
        )
    try:
        from google.protobuf import descriptor_pb2, duration_pb2, message, message_factory, timestamp_pb2
        from google.protobuf.descriptor_pool import DescriptorPool
    except ImportError:
        raise SchemaError(NO_PROTOBUF) from None
    pool = DescriptorPool()
    pending: dict[str, Any] = {}
    # Writers leave out the times now and then, because every system knows them.
    for module in (timestamp_pb2, duration_pb2):
        module.DESCRIPTOR.CopyToProto(pending.setdefault(module.DESCRIPTOR.name, descriptor_pb2.FileDescriptorProto()))

    def add(file: Any) -> None:
        for needed in file.dependency:
            if needed in pending:
                add(pending.pop(needed))
        for described in file.message_type:
            _read_maps_as_arrays(described)
        pool.AddSerializedFile(file.SerializeToString())

    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(data).file:
            pending[file.name] = file
        while pending:
            add(pending.pop(next(iter(pending))))
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(type_name))
    except KeyError:
        raise SchemaError(f"its descriptors do not describe {shorten(type_name)}") from None
    except (message.DecodeError, RecursionError, TypeError, ValueError) as error:
        raise SchemaError(f"the descriptors of {shorten(type_name)} cannot be read: {shorten(str(error))}") from None


def _read_maps_as_arrays(message: Any) -> None:
    """A map is an array of keys and values on the wire, and is read as one, in the order of the message."""
    message.options.ClearField("map_entry")
    for inner in message.nested_type:
        _read_maps_as_arrays(inner)
