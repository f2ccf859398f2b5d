"""JSON messages to values: each is parsed as a whole, and what is wanted of it is checked against its type."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from penstock.errors import MessageError
from penstock.recordings.messages.decoder import Elements, Payload, Tree, TreeDecoder, is_time, time_ns
from penstock.recordings.messages.definitions import FieldDef, FieldType

# Parsed, a text of small numbers takes some twenty times its bytes.
MAX_JSON_BYTES = 32 << 20

_NUMBERS = frozenset((int, float, type(None)))
_Convert = Callable[[Any], Any]


class JsonDecoder(TreeDecoder):
    """Reads the messages of one JSON topic."""

    def __repr__(self) -> str:
        return f"JsonDecoder({self.type_name}, {len(self.message.fields)} fields)"

    def _tree_reader(self, tree: Tree | None) -> Callable[[memoryview], dict[str, Any]]:
        type_name = self.type_name
        convert = self._message(type_name, tree, type_name)

        def read(payload: memoryview) -> dict[str, Any]:
            found: dict[str, Any] = convert(parse(payload, type_name))
            return found

        return read

    def _message(self, name: str, tree: Tree | None, where: str) -> _Convert:
        """From a parsed object to the wanted fields; read as a whole, it may lack some of them, or have null there."""
        wanted = [
            (field.name, self._field(field, tree, f"{where}.{field.name}"))
            for field in self.definition(name).fields
            if tree is None or field.name in tree
        ]

        def convert(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise _other(where, value, "an object")
            made: dict[str, Any] = {}
            for key, of_field in wanted:
                if tree is None and value.get(key, 0) is None:
                    made[key] = None
                elif key in value:
                    made[key] = of_field(value[key])
                elif tree is not None:
                    raise MessageError(f"{where}.{key} is missing in this message")
            return made

        return convert

    def _field(self, field: FieldDef, tree: Tree | None, where: str) -> _Convert:
        kind = field.type
        if kind.kind == "message":
            one = self._message(kind.name, None if tree is None else tree[field.name], where)
        elif kind.name == "uint8":
            return lambda value: _from_base64(value, where)
        elif kind.array is not None and kind.kind == "primitive" and not is_time(kind):
            return lambda value: _array(value, kind, where)
        else:
            one = _scalar(kind, where)
        if kind.array is None:
            return one

        def convert(value: Any) -> Any:
            _check_list(value, where)
            found = Elements(len(value), lambda place: one(value[place]))
            return found if tree is not None and kind.kind == "message" else list(found)

        return convert


def parse(payload: Payload, type_name: str) -> Any:
    """The value that a payload spells; MessageError where it is no JSON or over the limit."""
    if len(payload) > MAX_JSON_BYTES:
        raise MessageError(f"{type_name}: a JSON message of {len(payload):,} bytes, the limit is {MAX_JSON_BYTES:,}")
    try:
        return json.loads(str(payload, "utf-8"))
    except (ValueError, RecursionError) as error:
        raise MessageError(f"{type_name}: the message cannot be read as JSON: {error}") from None


def _scalar(kind: FieldType, where: str) -> _Convert:
    if is_time(kind):
        return lambda value: _time(value, where)
    if kind.kind == "string":
        return lambda value: _of_type(value, str, "a text", where)
    if kind.name == "bool":
        return lambda value: _of_type(value, bool, "true or false", where)
    return lambda value: _number(value, kind, where)


def _number(value: Any, kind: FieldType, where: str) -> Any:
    if type(value) not in _NUMBERS:
        raise _other(where, value, "a number")
    if value is None:  # what JSON writers make of NaN
        return math.nan
    if kind.name == "int64" and isinstance(value, float) and not value.is_integer():
        raise MessageError(f"{where} is {value} in this message, expected is an integer")
    try:
        float(value)
    except OverflowError:
        raise MessageError(f"{where}: the number is too large") from None
    return int(value) if kind.name == "int64" else value


def _array(value: Any, kind: FieldType, where: str) -> Any:
    _check_list(value, where)
    allowed = {bool} if kind.name == "bool" else _NUMBERS
    strange = set(map(type, value)) - allowed
    if strange:
        raise _other(where, next(each for each in value if type(each) in strange), f"an array of {kind.name}")
    try:
        # As float64, where null becomes NaN: an integer may be null, too.
        return np.array(value, np.bool_ if kind.name == "bool" else np.float64)
    except OverflowError:
        raise MessageError(f"{where}: a number is too large") from None


def _time(value: Any, where: str) -> int:
    if not isinstance(value, dict) or not all(type(each) is int for each in value.values()):
        raise _other(where, value, "a time of seconds and nanoseconds")
    return time_ns(value, where)


def _from_base64(value: Any, where: str) -> memoryview:
    try:
        return memoryview(base64.b64decode(_of_type(value, str, "base64", where), validate=True))
    except ValueError as error:
        raise MessageError(f"{where}: no base64: {error}") from None


def _of_type(value: Any, kind: type, what: str, where: str) -> Any:
    if not isinstance(value, kind):
        raise _other(where, value, what)
    return value


def _check_list(value: Any, where: str) -> None:
    if not isinstance(value, list):
        raise _other(where, value, "an array")


def _other(where: str, value: Any, expected: str) -> MessageError:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return MessageError(f"{where} is {names.get(type(value), 'a number')} in this message, expected is {expected}")
