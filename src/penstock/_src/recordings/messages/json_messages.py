"""JSON messages to values: each is parsed as a whole, and what is wanted of it is checked against its type.

The first messages of a topic show the types together; a JSON Schema is not read.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable
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
    is_field_name,
)
from penstock.errors import MessageError

# Parsed, a text of small numbers takes some twenty times its bytes.
MAX_JSON_BYTES = 32 << 20

_NUMBERS = frozenset((int, float, type(None)))
# Of these types `data` is base64.
_WITH_BYTES = frozenset(("CompressedImage", "CompressedVideo", "Image", "RawImage"))


class JsonDecoder(ObjectDecoder):
    """Reads the messages of one JSON topic; `first`: its first messages, which show what fields there are."""

    def __init__(self, type_name: str, first: Iterable[Payload] = ()) -> None:
        super().__init__(_types_of_messages(first, type_name), type_name)

    def _parse(self, payload: Payload) -> Any:
        return _parse(payload, self.type_name)

    def _member(self, value: Any, field: FieldDef, where: str) -> Any:
        _check(value, dict, "an object", where.rpartition(".")[0])
        if field.name not in value:
            raise MessageError(f"{where} is missing in this message")
        return value[field.name]

    def _list(self, value: Any, where: str) -> Any:
        return _check(value, list, "an array", where)

    def _plain(self, value: Any, kind: FieldType, where: str) -> Any:
        if kind.name == "uint8":
            return _from_base64(value, where)
        if kind.array is None:
            return self._one(value, kind, where)
        _check(value, list, "an array", where)
        if kind.kind == "primitive" and not self.is_time(kind):
            return _array(value, kind, where)
        return [self._one(each, kind, where) for each in value]

    def _one(self, value: Any, kind: FieldType, where: str) -> Any:
        if self.is_time(kind):
            if not isinstance(value, dict) or not all(type(each) is int for each in value.values()):
                raise _other(where, value, "a time of seconds and nanoseconds")
            return time_ns(value, where)
        if kind.kind == "string":
            return _check(value, str, "a text", where)
        if kind.kind == "primitive":
            return _check(value, bool, "true or false", where) if kind.name == "bool" else _number(value, where)
        _check(value, dict, "an object", where)
        # Read as a whole, a message may lack some of its fields, or have null there.
        fields = [each for each in self.definition(kind.name).fields if each.name in value]
        return {
            each.name: None
            if value[each.name] is None
            else self._plain(value[each.name], each.type, f"{where}.{each.name}")
            for each in fields
        }


def _parse(payload: Payload, type_name: str) -> Any:
    """The value that a payload spells; MessageError where it is no JSON or over the limit."""
    if len(payload) > MAX_JSON_BYTES:
        raise MessageError(f"{type_name}: a JSON message of {len(payload):,} bytes, the limit is {MAX_JSON_BYTES:,}")
    try:
        return json.loads(str(payload, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{type_name}: the message cannot be read as JSON: {error}") from None


def _number(value: Any, where: str) -> Any:
    if type(value) not in _NUMBERS:
        raise _other(where, value, "a number")
    if value is None:  # what JSON writers make of NaN
        return math.nan
    try:
        float(value)
    except OverflowError:
        raise MessageError(f"{where}: the number is too large") from None
    return value


def _array(value: Any, kind: FieldType, where: str) -> Any:
    allowed = {bool} if kind.name == "bool" else _NUMBERS
    strange = set(map(type, value)) - allowed
    if strange:
        raise _other(where, next(each for each in value if type(each) in strange), f"an array of {kind.name}")
    try:
        return np.array(value, kind.name)  # null becomes NaN
    except OverflowError:
        raise MessageError(f"{where}: a number is too large") from None


def _from_base64(value: Any, where: str) -> memoryview:
    try:
        return memoryview(base64.b64decode(_check(value, str, "base64", where), validate=True))
    except ValueError as error:
        raise MessageError(f"{where}: not base64: {error}") from None


def _check(value: Any, kind: type, what: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise _other(where, value, what)
    return value


def _other(where: str, value: Any, expected: str) -> MessageError:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return MessageError(f"{where} is {names.get(type(value), 'a number')} in this message, expected is {expected}")


def _types_of_messages(messages: Iterable[Payload], type_name: str) -> dict[str, MessageDef]:
    """The types that the messages show together: one of them may lack what others have."""
    shown: dict[str, Any] = {}
    for payload in messages:
        try:
            message = _parse(payload, type_name)
        except MessageError:
            continue
        if isinstance(message, dict):
            shown = _merged(shown, message)
    types: dict[str, MessageDef] = {}
    _add_type(shown, type_name, types, 0)
    check_definitions(types, type_name)
    return types


def _merged(one: Any, other: Any, depth: int = 0) -> Any:
    """What two values show together; of two that differ, the first one."""
    if one is None:
        return other
    if depth <= MAX_DEPTH and isinstance(one, dict) and isinstance(other, dict):
        return {**one, **other, **{key: _merged(each, other.get(key), depth + 1) for key, each in one.items()}}
    if depth <= MAX_DEPTH and isinstance(one, list) and isinstance(other, list):
        return [_merged(next(iter(one), None), next(iter(other), None), depth + 1)]  # the first one shows the others
    return one


def _add_type(value: dict[str, Any], name: str, types: dict[str, MessageDef], depth: int) -> MessageDef:
    kinds = [(key, _kind(key, each, name, types, depth)) for key, each in value.items() if is_field_name(key)]
    types[name] = MessageDef(name, tuple(FieldDef(key, kind) for key, kind in kinds if kind is not None))
    return types[name]


def _kind(key: str, value: Any, owner: str, types: dict[str, MessageDef], depth: int) -> FieldType | None:
    """The type of a value; None for arrays of arrays and empty objects, which no path leads to."""
    if isinstance(value, list):
        one = _kind(key, value[0] if value else 0.0, owner, types, depth)
        return None if one is None or one.array is not None else FieldType(one.kind, one.name, SEQUENCE)
    if isinstance(value, str):
        is_bytes = key == "data" and re.split(r"[./]", owner)[-1] in _WITH_BYTES
        return FieldType("primitive", "uint8", SEQUENCE) if is_bytes else FieldType("string", "string")
    if not isinstance(value, dict):
        return FieldType("primitive", "bool" if isinstance(value, bool) else "float64")
    if (time := time_kind(key, [(name, type(each) is int) for name, each in value.items()])) is not None:
        return FieldType("primitive", time)
    name = f"{owner}.{key}"
    if not value or depth >= MAX_DEPTH:
        return None
    _add_type(value, name, types, depth + 1)
    return FieldType("message", name)
