"""A toy store: one file with a JSON header, then the columns one after the other; all that a plug-in has to bring.

b"TOYROWS1"  length of the header, 4 bytes  header  column  column  …
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StoreCorrupt
from penstock.formats import Column, Format, ImageArray, ImageSource, Scratch, Store

MAGIC = b"TOYROWS1"
FORMAT = Format(
    "toyrows",
    "toy rows",
    "store",
    open="tests.formats.toy_store:ToyStore",
    suffixes=(".toyrows",),
    magics=(MAGIC,),
)


def write(path: Path, columns: Mapping[str, NDArray[Any]], lengths: Sequence[int], fps: float | None = 10) -> Path:
    """Columns of (rows, …) in episodes of these lengths; uint8 of four dimensions are images."""
    listed = [[name, values.dtype.str, list(values.shape[1:])] for name, values in columns.items()]
    header = json.dumps({"fps": fps, "lengths": list(lengths), "columns": listed}).encode()
    data = b"".join(np.ascontiguousarray(values).tobytes() for values in columns.values())
    path.write_bytes(MAGIC + struct.pack("<I", len(header)) + header + data)
    return path


class ToyStore(Store):
    """Episodes that were chosen, as rows in the order of the episodes."""

    kind = "toy rows"

    def __init__(
        self, path: Path, *, episodes: Sequence[int] | None = None, columns: Sequence[str] | None = None
    ) -> None:
        self.path, self._asked = Path(path), {"episodes": episodes, "columns": columns}
        with self.path.open("rb") as file:
            head = file.read(len(MAGIC) + 4)
            if len(head) != len(MAGIC) + 4:
                raise StoreCorrupt(f"{path}: the header is cut")
            (size,) = struct.unpack_from("<I", head, len(MAGIC))
            header = json.loads(file.read(size))
        self.fps = header["fps"]
        lengths = np.array(header["lengths"], np.int64)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        chosen = np.arange(len(lengths)) if episodes is None else np.asarray(episodes, np.int64)
        self.episode_numbers = None if episodes is None else chosen
        self.episode_starts = np.concatenate([[0], np.cumsum(lengths[chosen])]).astype(np.int64)
        self._stored_rows = np.concatenate([np.arange(starts[each], starts[each + 1]) for each in chosen])
        self._places: dict[str, tuple[int, np.dtype[Any], tuple[int, ...]]] = {}
        at, found = len(head) + size, {}
        for name, dtype, shape in header["columns"]:
            row_bytes = np.dtype(dtype).itemsize * math.prod(shape)
            if columns is None or name in columns:
                self._places[name] = at, np.dtype(dtype), tuple(shape)
                is_image = len(shape) == 3 and dtype == "|u1"
                kind, encoding = ("image", "raw") if is_image else ("numbers", "numbers")
                size = row_bytes * int(starts[-1])
                found[name] = Column(
                    name,
                    kind,
                    tuple(shape),
                    str(np.dtype(dtype)),
                    encoding,
                    "file",
                    "rows lie one after the other",
                    size,
                )
            at += row_bytes * int(starts[-1])
        self.columns = found
        self.roles = {role: role for role in ("state", "action") if role in found}

    def _read(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        at, dtype, shape = self._places[name]
        made = np.empty((len(rows), *shape), dtype)
        row_bytes = dtype.itemsize * math.prod(shape)
        with self.path.open("rb") as file:
            for place, row in enumerate(self._stored_rows[rows].tolist()):
                file.seek(at + row * row_bytes)
                made[place] = np.frombuffer(file.read(row_bytes), dtype).reshape(shape)
        return made

    def images(self, name: str) -> ImageSource:
        return _Images(self, name)

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        return self._read(name, rows)

    def number_blocks(self, names: Sequence[str], block_bytes: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        step = max(1, block_bytes // max(1, sum(self.columns[name].row_bytes for name in names)))
        for first in range(0, self.rows, step):
            rows = np.arange(first, min(first + step, self.rows), dtype=np.int64)
            yield first, {name: self._read(name, rows) for name in names}

    def fingerprint(self, name: str) -> str:
        return hashlib.sha256(f"{name} {self._asked}".encode() + self.path.read_bytes()).hexdigest()

    def close(self) -> None:
        pass  # every read opens the file for itself

    def __reduce__(self) -> tuple[Any, ...]:
        return _open_again, (str(self.path.absolute()), self._asked)

    def reopening(self) -> tuple[Path, dict[str, Any]]:
        return self.path.absolute(), dict(self._asked)


class _Images(ImageSource):
    def __init__(self, store: ToyStore, name: str) -> None:
        self._store, self._name = store, name
        self.scratch_bytes = store.columns[name].row_bytes

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for row in rows:
            yield self._store._read(self._name, np.array([row], np.int64))[0]

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return rows


def _open_again(path: str, words: dict[str, Any]) -> ToyStore:
    return ToyStore(Path(path), **words)
