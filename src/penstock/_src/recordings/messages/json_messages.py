"""JSON messages to values: each is parsed as a whole, and what is wanted of it is checked against its type."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from penstock._src.recordings.messages.decoder import Elements, Payload, Tree, TreeDecoder, time_kind, time_ns
from penstock._src.recordings.messages.definitions import (
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_TEXT_BYTES,
    SEQUENCE,
    FieldDef,
    FieldType,
    MessageDef,
    is_field_name,
    shorten,
)
from penstock.errors import MessageError, SchemaError

# Parsed, a text of small numbers takes some twenty times its bytes.
MAX_JSON_BYTES = 32 << 20

_NUMBERS = frozenset((int, float, type(None)))
_Convert = Callable[[Any], Any]

_MAX_REFERENCES = 16  # one behind the other
_SCALARS = {
    "number": FieldType("primitive", "float64"),
    "integer": FieldType("primitive", "int64"),
    "boolean": FieldType("primitive", "bool"),
    "string": FieldType("string", "string"),
}
_BYTES = FieldType("primitive", "uint8", SEQUENCE)
# Of these types `data` is base64, whether their schema says so or not.
_WITH_BYTES = frozenset(("CompressedImage", "CompressedVideo", "Image", "RawImage"))


class JsonDecoder(TreeDecoder):
    """Reads the messages of one JSON topic."""

    def __repr__(self) -> str:
        return f"JsonDecoder({self.type_name}, {len(self.message.fields)} fields)"

    def _tree_reader(self, tree: Tree | None) -> Callable[[memoryview], dict[str, Any]]:
        type_name = self.type_name
        convert = self._message(type_name, tree, type_name)

        def read(payload: memoryview) -> dict[str, Any]:
            converted: dict[str, Any] = convert(parse(payload, type_name))
            return converted

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
        elif kind.array is not None and kind.kind == "primitive" and not self.is_time(kind):
            return lambda value: _array(value, kind, where)
        elif self.is_time(kind):
            one = partial(_time, where=where)
        else:
            one = _scalar(kind, where)
        if kind.array is None:
            return one

        def convert(value: Any) -> Any:
            _check_list(value, where)
            elements = Elements(len(value), lambda place: one(value[place]))
            return elements if tree is not None and kind.kind == "message" else list(elements)

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
        raise MessageError(f"{where}: not base64: {error}") from None


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


def parse_json_schema(text: str, type_name: str) -> dict[str, MessageDef] | None:
    """The types that a JSON Schema describes; None where it names no fields."""
    if len(text) > MAX_TEXT_BYTES:
        raise SchemaError(
            f"the JSON Schema of {shorten(type_name)} has {len(text):,} characters, the limit is {MAX_TEXT_BYTES:,}"
        )
    if not text.strip():
        return None
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"the JSON Schema of {shorten(type_name)} cannot be read: {error}") from None
    return _JsonSchemaParser(schema, type_name).run()


def types_of_message(message: object, type_name: str) -> dict[str, MessageDef]:
    """The types that one message shows; nothing where it is no object."""
    return _JsonSchemaParser(_described(message, 0), type_name).run() or {type_name: MessageDef(type_name, ())}


def _described(value: object, depth: int) -> dict[str, Any]:
    """A JSON Schema that a value fits."""
    if depth > MAX_DEPTH:
        return {}
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: _described(each, depth + 1) for key, each in value.items()}}
    if isinstance(value, list):
        return {"type": "array", "items": _described(value[0], depth + 1) if value else {"type": "number"}}
    if isinstance(value, str):
        return {"type": "string"}
    return {"type": "boolean" if isinstance(value, bool) else "number"}


class _JsonSchemaParser:
    """Fields of other kinds (arrays of arrays, objects without properties) are left out: no path leads to them."""

    def __init__(self, schema: object, type_name: str) -> None:
        self._schema = schema
        self._root = type_name
        self._definitions: dict[str, MessageDef] = {}
        self._open: list[int] = []  # the objects that are being described: one of them again is a circle
        self._total = 0

    def run(self) -> dict[str, MessageDef] | None:
        root = self._resolved(self._schema)
        if not isinstance(root.get("properties"), dict) or not root["properties"]:
            return None
        self._add(self._root, root)
        return self._definitions

    def _add(self, name: str, schema: dict[str, Any]) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise SchemaError(f"the JSON Schema of {shorten(self._root)} nests more than {MAX_DEPTH} objects deep")
        self._total += len(schema["properties"])
        if self._total > MAX_FIELDS:
            raise SchemaError(f"the JSON Schema of {shorten(self._root)} has more than {MAX_FIELDS:,} fields")
        self._open.append(id(schema))
        named = [(key, each) for key, each in schema["properties"].items() if is_field_name(key)]
        fields = [(key, self._kind(key, each, name)) for key, each in named]
        self._definitions[name] = MessageDef(
            name, tuple(FieldDef(key, kind) for key, kind in fields if kind is not None)
        )
        self._open.pop()

    def _kind(self, key: str, described: object, owner: str) -> FieldType | None:
        schema = self._resolved(described)
        if schema.get("type") != "array":
            return self._one(key, schema, owner)
        item = self._one(key, self._resolved(schema.get("items")), owner)
        return None if item is None or item.array is not None else FieldType(item.kind, item.name, SEQUENCE)

    def _one(self, key: str, schema: dict[str, Any], owner: str) -> FieldType | None:
        kind = schema.get("type")
        if kind == "string":
            last = re.split(r"[./]", owner)[-1]
            is_bytes = schema.get("contentEncoding") == "base64" or (key == "data" and last in _WITH_BYTES)
            return _BYTES if is_bytes else _SCALARS["string"]
        if isinstance(kind, str) and kind in _SCALARS:
            return _SCALARS[kind]
        if not isinstance(schema.get("properties"), dict) or id(schema) in self._open:
            return None
        parts = [(name, _is_number(self._resolved(each))) for name, each in schema["properties"].items()]
        if (time := time_kind(f"{key} {schema.get('title')}", parts)) is not None:
            return FieldType("primitive", time)
        name = f"{owner}.{key}"
        self._add(name, schema)
        return FieldType("message", name)

    def _resolved(self, schema: object) -> dict[str, Any]:
        """The schema that references and choices lead to: of several types the first that is not null."""
        for _ in range(_MAX_REFERENCES):
            if not isinstance(schema, dict):
                return {}
            choices = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if isinstance(schema.get("$ref"), str):
                schema = self._at(schema["$ref"])
            elif isinstance(choices, list):
                schema = next((each for each in choices if each != {"type": "null"}), None)
            elif isinstance(schema.get("type"), list):
                kinds = [kind for kind in schema["type"] if kind != "null"]
                return {**schema, "type": kinds[0] if kinds else None}
            else:
                return schema
        return {}

    def _at(self, reference: str) -> object:
        """What a reference inside of the schema leads to; nothing is fetched from elsewhere."""
        if not reference.startswith("#"):
            return None
        node: object = self._schema
        for part in filter(None, reference[1:].split("/")):
            node = node.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(node, dict) else None
        return node


def _is_number(schema: dict[str, Any]) -> bool:
    return schema.get("type") in ("integer", "number")
