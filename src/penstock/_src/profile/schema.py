"""Files of a profile: values made plain for JSON, read back as the types that dataclasses declare, written whole."""

from __future__ import annotations

import functools
import os
import reprlib
import sys
from collections.abc import Iterator, Mapping, Sequence
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
        if type(value) is not list:
            refuse(value, place, "a list")
        kinds = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return tuple(_row(kinds, value, place))
    if hasattr(kind, "_fields"):
        return kind(*_row(_hints(kind), value, place))
    if not isinstance(value, Mapping):
        refuse(value, place, "a table")
    if origin is Mapping:
        return {str(name): decode(args[1], each, f"{place}[{reprlib.repr(name)}]") for name, each in value.items()}
    return decode_fields(kind, value, place)


def decode_fields(kind: Any, value: Any, place: str) -> Any:
    """A dataclass of the fields that a table has."""
    if not isinstance(value, Mapping):
        refuse(value, place, "a table")
    known = {}
    known_fields: Sequence[Field[Any]] = fields(kind)
    for each, hint in zip(known_fields, _hints(kind), strict=True):
        inside = f"{place}.{each.name}" if place else each.name
        if each.name in value:
            known[each.name] = decode(hint, value[each.name], inside)
        elif each.default is MISSING and each.default_factory is MISSING:
            raise UsageError(f"the profile is damaged: {inside} is missing")
    return kind(**known)


def refuse(value: Any, place: str, needed: str) -> NoReturn:
    """Say what is needed at a place of the file."""
    raise UsageError(f"the profile is damaged: {place}: needs {needed}, not {reprlib.repr(value)}")


@functools.cache
def _hints(kind: Any) -> list[Any]:
    """The types of the fields of a dataclass or a NamedTuple, in their order."""
    hints = get_type_hints(kind)
    names = kind._fields if hasattr(kind, "_fields") else [each.name for each in fields(kind)]
    return [hints[name] for name in names]


def _row(kinds: Sequence[Any], value: Any, place: str) -> list[Any]:
    if type(value) is not list or len(value) != len(kinds):
        refuse(value, place, f"a list of {len(kinds)}")
    pairs = enumerate(zip(kinds, value, strict=True))
    return [decode(kind, each, f"{place}[{number}]") for number, (kind, each) in pairs]
