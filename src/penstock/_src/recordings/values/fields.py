"""The fields of a message: every path that a configuration may name, with its type, its shape and the value found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock._src.recordings.messages.decoder import MessageDecoder, Payload
from penstock._src.recordings.messages.paths import FieldPath, PathPart

_VALUES_SHOWN = 4
_CHARACTERS_SHOWN = 40
_MOST_FIELDS = 2000


@dataclass(frozen=True)
class MessageField:
    """One path of a message; `shape` is empty for a single value."""

    path: str
    type: str
    shape: tuple[int, ...]
    value: str


def list_fields(decoder: MessageDecoder, payload: Payload) -> list[MessageField]:
    """All fields of one message, in declared order; of an array of messages, those of its first item."""
    definitions: list[MessageField] = []
    for field in _walk(decoder, (), decoder.decode(payload)):
        definitions.append(field)
        if len(definitions) == _MOST_FIELDS:
            break
    return definitions


def _walk(decoder: MessageDecoder, parts: tuple[PathPart, ...], value: Any) -> Iterator[MessageField]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _walk(decoder, (*parts, PathPart(name)), inner)
        return
    path = FieldPath(parts)
    field = decoder.field_at(path)
    kind = "?" if field is None else field.type.name
    if isinstance(value, list) and (not value or isinstance(value[0], dict)) and kind not in ("string", "wstring"):
        yield MessageField(str(path), f"{kind}[]", (len(value),), "")
        if value:
            yield from _walk(decoder, (*parts[:-1], PathPart(parts[-1].name, 0)), value[0])
        return
    shape = () if isinstance(value, (str, bool, int, float, np.generic)) else (len(value),)
    yield MessageField(str(path), kind, shape, _text(value))


def _text(value: Any) -> str:
    """One value, or the first few of an array."""
    if isinstance(value, str):
        text = repr(value)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        text = bytes(value[:_VALUES_SHOWN]).hex(" ") + (" …" if len(value) > _VALUES_SHOWN else "")
    elif isinstance(value, (list, np.ndarray)):
        items = [_text(item) for item in list(value[:_VALUES_SHOWN])]
        text = f"[{', '.join(items)}{', …' if len(value) > _VALUES_SHOWN else ''}]"
    elif isinstance(value, (float, np.floating)):
        text = f"{float(value):.6g}"
    else:
        text = str(value)
    return text if len(text) <= _CHARACTERS_SHOWN else text[: _CHARACTERS_SHOWN - 1] + "…"
