"""Numbers for random access: small columns in memory, large ones by row from the store or from a file laid out anew."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import OutputFailed, StoreCorrupt
from penstock.load.cache import cache_directory
from penstock.load.shared_array import SharedArray
from penstock.stores.store import Column, Store

DIRECT_WAYS = ("file", "chunks")  # a row is one read at a known place: random access needs no table
BLOCK_BYTES = 4 << 20
_ROWS_AT_ONCE = 3  # a store holds rows as they are stored, in this machine's numbers, and in the order asked for


def table_bytes(columns: Iterable[Column], rows: int) -> int:
    """What tables of these columns take."""
    return sum(column.row_bytes for column in columns) * rows


class LaidOut(SharedArray):
    """A table in a file without a name. It travels by pickle as a place: other processes map the same file."""

    def __init__(self, directory: Path, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        with tempfile.TemporaryFile(dir=directory, prefix="numbers-") as file:
            # A full disk is told now, not by a signal later.
            os.posix_fallocate(file.fileno(), 0, max(math.prod(shape) * np.dtype(dtype).itemsize, 1))
            fd = os.dup(file.fileno())
        try:
            self._open(fd)
        except BaseException:
            os.close(fd)
            raise

    def writable(self) -> NDArray[Any]:
        """The same rows, to be filled."""
        return np.frombuffer(mmap.mmap(self._fd, 0), self.dtype, self.values.size).reshape(self.shape)


class Numbers:
    """The numbers columns of one store, gathered by row.

    Up to `limit_bytes` they lie in memory. Beyond that, columns whose rows lie at known places are read from there;
    those in parquet or packed chunks are laid out once in a file without a name, of which the system keeps in memory
    what it likes.
    """

    def __init__(self, store: Store, names: Sequence[str], limit_bytes: int) -> None:
        self._store = store
        self._names = tuple(names)
        self._tables: dict[str, NDArray[Any]] = {}
        self.laid_out: dict[str, LaidOut] = {}
        """Tables in files, by column; `fill` makes them."""
        self.in_memory_bytes = 0
        columns = [store.column(name) for name in names]
        self._row_bytes = {column.name: column.row_bytes for column in columns}
        in_memory: list[str] = []
        for column in sorted(columns, key=lambda column: column.row_bytes):
            size = column.row_bytes * store.rows
            if self.in_memory_bytes + size <= limit_bytes:
                self.in_memory_bytes += size
                in_memory.append(column.name)
        self._in_memory = in_memory
        self._in_file = [
            column.name for column in columns if column.name not in in_memory and column.way not in DIRECT_WAYS
        ]
        self._filled = False

    @property
    def held_bytes(self) -> int:
        """What lies in memory, and what gathering from elsewhere takes where a row is larger than a block; blocks are
        small beside what is allowed for libraries."""
        outside = (size for name, size in self._row_bytes.items() if name not in self._in_memory)
        largest = max(outside, default=0)
        return self.in_memory_bytes + (_ROWS_AT_ONCE * largest if largest > BLOCK_BYTES else 0)

    def fill(self) -> None:
        """Read what becomes a table: one pass over the numbers, in order."""
        if self._filled:
            return
        tables = {name: self._empty(name) for name in self._in_memory if name not in self._tables}
        files = {name: self._file(name) for name in self._in_file if name not in self._tables}
        filling = tables | {name: file.writable() for name, file in files.items()}
        if filling and self._store.rows:
            self._copy(filling)
        self._tables = {**self._tables, **tables}
        self.adopt_files(files)
        self._filled = True

    def in_memory(self) -> dict[str, NDArray[Any]]:
        """The tables that lie in memory; `fill` first."""
        return {name: self._tables[name] for name in self._in_memory}

    def adopt(self, tables: Mapping[str, NDArray[Any]]) -> None:
        """Use these tables, which another process filled, in place of own ones."""
        self._tables = {**self._tables, **tables}

    def adopt_files(self, files: Mapping[str, LaidOut]) -> None:
        """The same for tables in files."""
        self.laid_out = {**self.laid_out, **files}
        self.adopt({name: file.values for name, file in files.items()})

    def gather(
        self, name: str, rows: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64] | None = None
    ) -> None:
        """Rows in any order, (n, …), into `out`, (n, …, *shape); into `out[places]` where places are given."""
        if places is None and name in self._tables:
            np.take(self._tables[name], rows, axis=0, out=out, mode="clip")  # rows are in range; others copy once more
        elif rows.size * self._row_bytes[name] <= BLOCK_BYTES:
            out[... if places is None else places] = self._rows(name, rows)
        else:
            self._gather_in_blocks(name, rows, out, places)

    def _gather_in_blocks(
        self, name: str, rows: NDArray[np.int64], out: NDArray[Any], places: NDArray[np.int64] | None
    ) -> None:
        """Without a second copy of all rows."""
        flat = out.reshape(-1, *out.shape[rows.ndim :])
        everywhere: NDArray[np.int64] = np.arange(len(flat)).reshape(out.shape[: rows.ndim])
        at, rows = (everywhere if places is None else everywhere[places]).reshape(-1), rows.reshape(-1)
        if name not in self._tables:  # rows that several samples need come together, and are read once
            order = np.argsort(rows, kind="stable")
            rows, at = rows[order], at[order]
        step = max(BLOCK_BYTES // self._row_bytes[name], 1)
        for start in range(0, len(rows), step):
            flat[at[start : start + step]] = self._rows(name, rows[start : start + step])

    def _rows(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        table = self._tables.get(name)
        if table is not None:
            return np.take(table, rows, axis=0)
        found = self._store.numbers(name, rows.reshape(-1))
        return found.reshape(*rows.shape, *found.shape[1:])

    def describe(self) -> list[str]:
        """For people: what was laid out how."""
        told = []
        if self._in_file:
            names = ", ".join(self._in_file)
            told.append(f"numbers: {names} are laid out in a temporary file, for they do not fit in memory")
        in_place = [name for name in self._names if name not in self._in_memory and name not in self._in_file]
        if in_place:
            told.append(f"numbers: {', '.join(in_place)} are read where they lie, for they do not fit in memory")
        return told

    def _copy(self, tables: dict[str, NDArray[Any]]) -> None:
        filled = 0
        for first, block in self._store.number_blocks(list(tables), BLOCK_BYTES):
            for name, values in block.items():
                tables[name][first : first + len(values)] = values
                filled = max(filled, first + len(values))
        if filled != self._store.rows:
            raise StoreCorrupt(f"{self._store.path}: {filled:,} of {self._store.rows:,} rows of numbers were found")

    def _empty(self, name: str) -> NDArray[Any]:
        column = self._store.column(name)
        return np.empty((self._store.rows, *column.shape), column.dtype)

    def _file(self, name: str) -> LaidOut:
        column = self._store.column(name)
        directory = cache_directory()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            return LaidOut(directory, (self._store.rows, *column.shape), column.dtype)
        except OSError as error:
            n_bytes = column.row_bytes * self._store.rows
            raise OutputFailed(directory, f"laying out {name} ({n_bytes:,} bytes)", error) from error
