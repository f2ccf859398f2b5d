"""Files of a profile: values made plain for JSON, read back as the types that dataclasses declare, written whole.

Everything that is read goes through `decode`: a value that does not fit its field is refused by its place in the file.
"""

from __future__ import annotations

import functools
import os
import reprlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

from penstock._src.system import files
from penstock.errors import OutputFailed, UsageError

_REAL = (-sys.float_info.max, sys.float_info.max)
_NEEDED = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


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
    if isinstance(value, tuple) and value and hasattr(value[0], "_fields"):
        return [list(each) for each in value]  # rows of numbers, of which there are many
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(each) for each in value]
    if is_dataclass(value) and not isinstance(value, type):
        return value.to_json() if hasattr(value, "to_json") else encode_fields(value)
    try:
        listed = value.tolist()
    except (AttributeError, TypeError, ValueError, RuntimeError):  # no array
        return encode(str(value))
    return encode(listed)


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


def decode(kind: Any, value: Any, place: str) -> Any:
    """A value of a file as its type says; UsageError names its place where it is something else."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if kind in _NEEDED:
        is_right = type(value) is kind or (kind is float and type(value) is int)
        return value if is_right else refuse(value, place, _NEEDED[kind])
    if origin is UnionType:
        return None if value is None else decode(args[0], value, place)
    if origin is tuple:
        return _items(args[0], value, place) if args[-1] is Ellipsis else tuple(_row(len(args), value, place))
    if not isinstance(value, Mapping):
        refuse(value, place, "a table")
    if origin is Mapping:
        return {str(name): decode(args[1], each, f"{place}[{reprlib.repr(name)}]") for name, each in value.items()}
    return kind.from_json(value, place) if hasattr(kind, "from_json") else decode_fields(kind, value, place)


def decode_fields(kind: Any, value: Mapping[str, Any], place: str, **known: Any) -> Any:
    """A dataclass of the fields that a table has; those in `known` are read already."""
    for each, hint in _hints(kind):
        name = each.name
        if name in known:
            continue
        if name in value:
            known[name] = decode(hint, value[name], _inside(place, name))
        elif each.default is MISSING and each.default_factory is MISSING:
            raise UsageError(f"the profile is damaged: {_inside(place, name)} is missing")
    return kind(**known)


def refuse(value: Any, place: str, needed: str) -> NoReturn:
    """Say what is needed at a place of the file."""
    raise UsageError(f"the profile is damaged: {place}: needs {needed}, not {reprlib.repr(value)}")


@functools.cache
def _hints(kind: Any) -> list[tuple[Field[Any], Any]]:
    hints = get_type_hints(kind)
    return [(each, hints[each.name]) for each in fields(kind)]


def _inside(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _items(kind: Any, value: Any, place: str) -> tuple[Any, ...]:
    if type(value) is not list:
        refuse(value, place, "a list")
    if get_origin(kind) is tuple:
        return tuple(map(tuple, decode_rows(len(get_args(kind)), value, place)))
    if hasattr(kind, "_fields"):
        return tuple(kind(*row) for row in decode_rows(len(kind._fields), value, place))
    return tuple(decode(kind, each, f"{place}[{number}]") for number, each in enumerate(value))


def decode_rows(width: int, rows: Any, place: str) -> list[list[int]]:
    """Rows of so many whole numbers."""
    if type(rows) is not list:
        refuse(rows, place, "a list")
    return [_row(width, row, f"{place}[{number}]") for number, row in enumerate(rows)]


def _row(width: int, row: Any, place: str) -> list[int]:
    if type(row) is not list or len(row) != width or set(map(type, row)) != {int}:
        refuse(row, place, f"{width} whole numbers")
    return row
