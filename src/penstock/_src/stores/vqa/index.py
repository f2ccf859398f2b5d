"""The index of a file: one flat array of whole numbers, kept in the cache directory as long as the file stays the same.

An index file is a header of 4 KiB (JSON) and the numbers behind it, which are mapped, not read: every process that
opens the data set shares them. It has its name only when it is whole. A file that cannot be kept is held in memory.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.cache_directory import cache_directory
from penstock._src.system.files import open_source, replacing
from penstock._src.system.files.locations import RemotePath
from penstock.errors import UsageError

_VERSION = 1
_HEADER_BYTES = 4096
_SUFFIX = ".index"


@dataclass(frozen=True)
class Index:
    """Rows of `width` numbers, and what else was found with them."""

    values: NDArray[np.int64]
    facts: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None
    """Where it is kept; None: in memory."""

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        kept = "in memory" if self.path is None else f"mapped from {self.path}"
        return f"Index({self.values.shape[0]:,} × {self.values.shape[1]}, {kept})"


Build = Callable[[dict[str, Any]], Iterable[NDArray[np.int64]]]
"""Gives the rows block by block, and may note facts in the mapping (JSON, some hundred bytes)."""


def identity(path: Path) -> list[Any]:
    """What shows that a file is still the same: size, time of change, and a few KiB of it."""
    with open_source(path) as source:
        identity = source.identity()
        return [identity.size_bytes, identity.mtime_ns, hashlib.sha256(source.sample()).hexdigest()]


def kept_index(name: str, paths: Sequence[Path], width: int, build: Build) -> Index:
    """The index called `name` of some files: as it was kept, or built, and kept for the next time."""
    made_of = hashlib.sha256(json.dumps([identity(path) for path in paths]).encode()).hexdigest()
    place = _place(name, paths) if paths else None
    if place is not None and (index := _read(place, made_of, width)) is not None:
        return index
    facts: dict[str, Any] = {}
    if place is not None:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            with replacing(place) as fresh:
                _write(fresh, made_of, width, build(facts), facts)
            if (index := _read(place, made_of, width)) is not None:
                return index
        except OSError:
            facts = {}  # no room or no right to write there: it is held in memory
    blocks = list(build(facts))
    values = np.concatenate(blocks) if blocks else np.empty((0, width), np.int64)
    return Index(values.reshape(-1, width), facts)


def _place(name: str, paths: Sequence[Path]) -> Path | None:
    places = [str(path) if isinstance(path, RemotePath) else os.path.abspath(path) for path in paths]
    key = hashlib.sha256(json.dumps([_VERSION, name, places]).encode()).hexdigest()
    try:
        return cache_directory() / "indexes" / f"{key[:40]}{_SUFFIX}"
    except UsageError:  # a user without a home directory
        return None


def _write(path: Path, made_of: str, width: int, blocks: Iterable[NDArray[np.int64]], facts: Mapping[str, Any]) -> None:
    rows = 0
    with path.open("wb") as file:
        file.write(bytes(_HEADER_BYTES))
        for block in blocks:
            values = np.ascontiguousarray(block, np.int64).reshape(-1, width)
            file.write(values.data)
            rows += len(values)
        header = {"version": _VERSION, "made_of": made_of, "width": width, "rows": rows, "facts": dict(facts)}
        text = json.dumps(header, ensure_ascii=False).encode("utf-8", "surrogatepass")
        if len(text) > _HEADER_BYTES:
            raise OSError(f"a header of {len(text):,} bytes")  # long facts: the index stays in memory
        file.seek(0)
        file.write(text.ljust(_HEADER_BYTES))


def _read(path: Path, made_of: str, width: int) -> Index | None:
    """What is kept, where it is whole and of the same files."""
    try:
        with path.open("rb") as file:
            header = json.loads(file.read(_HEADER_BYTES))
            size = os.fstat(file.fileno()).st_size
        if not isinstance(header, dict) or (header["made_of"], header["width"]) != (made_of, width):
            return None
        rows = header["rows"]
        if size != _HEADER_BYTES + rows * width * 8:
            return None
        values = np.empty((0, width), np.int64)
        if rows:
            values = np.memmap(path, np.int64, "r", _HEADER_BYTES, (rows, width)).view(np.ndarray)
        return Index(values, header["facts"], path)
    except (OSError, ValueError, KeyError):
        return None  # absent, or no index any more: it is made anew
