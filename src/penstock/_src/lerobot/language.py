"""LeRobot's language columns: what was said to or by the robot, with the whole episode's subtasks in every row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._src.lerobot import columns
from penstock._src.lerobot.features import LANGUAGE_KEYS
from penstock.errors import DataSetError

if TYPE_CHECKING:
    import pyarrow as pa

PERSISTENT, EVENTS = LANGUAGE_KEYS  # what holds from a moment on, until another of its style; what happens in its row

_FIELDS = {
    PERSISTENT: ("role", "content", "style", "timestamp", "camera", "tool_calls"),
    EVENTS: ("role", "content", "style", "camera", "tool_calls"),
}


def subtask(text: str | None, timestamp_s: float) -> dict[str, Any]:
    """An entry that says which subtask (None: none) holds from a time of the episode on, as LeRobot annotates it."""
    return {
        "role": "assistant",
        "content": text,
        "style": "subtask",
        "timestamp": timestamp_s,
        "camera": None,
        "tool_calls": None,
    }


def arrow_type(key: str) -> pa.DataType:
    """The type of a language column: any number of entries in a row."""
    import pyarrow as pa

    kinds = {"timestamp": pa.float32(), "tool_calls": pa.list_(pa.string())}
    return pa.list_(pa.struct([(name, kinds.get(name, pa.string())) for name in _FIELDS[key]]))


def hugging_face_type(key: str) -> dict[str, Any]:
    """The same in the words of Hugging Face `datasets`."""
    text = {"dtype": "string", "_type": "Value"}
    kinds: dict[str, Any] = {"timestamp": {"dtype": "float32", "_type": "Value"}}
    kinds["tool_calls"] = {"feature": text, "_type": "List"}
    return {"feature": {name: kinds.get(name, text) for name in _FIELDS[key]}, "_type": "List"}


def leaves(key: str) -> list[str]:
    """The paths of its values inside parquet's schema."""
    within = f"{key}.list.element"
    return [f"{within}.{name}.list.element" if name == "tool_calls" else f"{within}.{name}" for name in _FIELDS[key]]


def column(key: str, rows: Sequence[Sequence[Mapping[str, Any]] | None]) -> pa.Array:
    """The Arrow column of a language feature; a row that is None has no entries."""
    import pyarrow as pa

    kind = arrow_type(key)
    entries = [entry for row in rows for entry in row or ()]
    for entry in entries:
        if unknown := set(entry) - set(_FIELDS[key]):
            raise DataSetError(f"{key!r}: an entry has {sorted(unknown)}; {', '.join(_FIELDS[key])} are known")
    parts = [_part(name, entries, kind.value_type.field(name).type) for name in _FIELDS[key]]
    struct = pa.StructArray.from_arrays(parts, fields=list(kind.value_type))
    return columns.lists(kind, [len(row or ()) for row in rows], struct)


def _part(name: str, entries: Sequence[Mapping[str, Any]], kind: pa.DataType) -> pa.Array:
    values = [entry.get(name) for entry in entries]
    if name == "timestamp":
        return columns.numbers(np.array([0.0 if value is None else value for value in values], np.float32))
    if name == "tool_calls":
        flat = [str(call) for value in values for call in value or ()]
        return columns.lists(kind, [None if value is None else len(value) for value in values], columns.texts(flat))
    return columns.texts(values)
