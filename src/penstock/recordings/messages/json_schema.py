"""The types of a JSON topic: from the JSON Schema that the recording carries, else from its first message."""

from __future__ import annotations

import json
import re
from typing import Any

from penstock.errors import SchemaError
from penstock.recordings.messages.decoder import time_kind
from penstock.recordings.messages.definitions import (
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
    return _Parser(schema, type_name).run()


def types_of_message(message: object, type_name: str) -> dict[str, MessageDef]:
    """The types that one message shows; nothing where it is no object."""
    return _Parser(_described(message, 0), type_name).run() or {type_name: MessageDef(type_name, ())}


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


class _Parser:
    """Fields of other kinds (arrays of arrays, objects without properties) are left out: no path leads to them."""

    def __init__(self, schema: object, type_name: str) -> None:
        self._schema = schema
        self._root = type_name
        self._found: dict[str, MessageDef] = {}
        self._open: list[int] = []  # the objects that are being described: one of them again is a circle
        self._total = 0

    def run(self) -> dict[str, MessageDef] | None:
        root = self._resolved(self._schema)
        if not isinstance(root.get("properties"), dict) or not root["properties"]:
            return None
        self._add(self._root, root)
        return self._found

    def _add(self, name: str, schema: dict[str, Any]) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise SchemaError(f"the JSON Schema of {shorten(self._root)} nests more than {MAX_DEPTH} objects deep")
        self._total += len(schema["properties"])
        if self._total > MAX_FIELDS:
            raise SchemaError(f"the JSON Schema of {shorten(self._root)} has more than {MAX_FIELDS:,} fields")
        self._open.append(id(schema))
        named = [(key, each) for key, each in schema["properties"].items() if is_field_name(key)]
        fields = [(key, self._kind(key, each, name)) for key, each in named]
        self._found[name] = MessageDef(name, tuple(FieldDef(key, kind) for key, kind in fields if kind is not None))
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
        found: object = self._schema
        for part in filter(None, reference[1:].split("/")):
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found


def _is_number(schema: dict[str, Any]) -> bool:
    return schema.get("type") in ("integer", "number")
