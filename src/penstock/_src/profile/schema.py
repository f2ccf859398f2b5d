"""Files of a profile: values made plain for JSON, read back as the types that dataclasses declare, written whole."""

from __future__ import annotations

import functools
import os
import reprlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from penstock._src.system import files
from penstock.errors import OutputFailed, UsageError

_REAL = (-sys.float_info.max, sys.float_info.max)


# Writing


def encode(value: Any) -> Any:
    """A value that JSON has and a reader can compute with: arrays and tensors become numbers and lists, dataclasses
    tables, a number that is not finite nothing, and whatever else there is a text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        number = int(value) if isinstance(value, int) else float(value)
        return number if _REAL[0] <= number <= _REAL[1] else None
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()  # a path may hold half a letter
    if isinstance(value, Mapping):
        return {encode(str(name)): encode(each) for name, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return value.to_json() if hasattr(value, "to_json") else encode_fields(value)
    listed = getattr(value, "tolist", None)  # an array
    return encode(str(value) if listed is None else listed())


def encode_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by their names."""
    return {each.name: encode(getattr(value, each.name)) for each in fields(value)}


@contextmanager
def replacing(path: str | os.PathLike[str], what: str) -> Iterator[Path]:
    """The file to write to; when the body is over it takes the place of `path` in one go."""
    target = Path(path)
    if not target.name:
        raise UsageError(f"{os.fspath(path)!r} is no name of a file for {what}")
    try:
        with files.replacing(target) as scratch:
            yield scratch
    except OSError as error:
        raise OutputFailed(target, f"{what} cannot be written", error) from error


# Reading


def decode(kind: Any, value: Any) -> Any:
    """A value of a file as its type says; UsageError where it is something else."""
    try:
        return _decoded(kind, value)
    except (TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"the profile is damaged: {error}") from error


def _decoded(kind: Any, value: Any) -> Any:
    origin, args = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if value is None else _decoded(args[0], value)
    if origin is Mapping:
        return {name: _decoded(args[1], each) for name, each in value.items()}
    if hasattr(kind, "__dataclass_fields__"):
        hints = _hints(kind)
        return kind(**{name: _decoded(hints[name], each) for name, each in value.items() if name in hints})
    if origin is tuple or hasattr(kind, "_fields"):
        kinds = args or tuple(_hints(kind).values())
        kinds = kinds[:1] * len(value) if kinds[-1] is Ellipsis else kinds
        row = [_decoded(each, part) for each, part in zip(kinds, value, strict=True)]
        return kind(*row) if hasattr(kind, "_fields") else tuple(row)
    if kind is not Any and not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{kind.__name__} is needed, not {reprlib.repr(value)}")
    return value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
