"""Numbers for random access: small columns in memory, large ones by row from the store or from a file laid out anew."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import OutputFailed, StoreCorrupt
from penstock.load.cache import cache_directory
from penstock.stores.store import Column, Store

DIRECT_WAYS = ("file", "chunks")  # a row is one read at a known place: random access needs no table
BLOCK_BYTES = 4 << 20


def table_bytes(columns: Iterable[Column], rows: int) -> int:
    """What tables of these columns take."""
    return sum(column.row_bytes for column in columns) * rows


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
        self.in_memory_bytes = 0
        columns = [store.column(name) for name in names]
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

    def fill(self) -> None:
        """Read what becomes a table: one pass over the numbers, in order."""
        if self._filled:
            return
        tables = {name: self._empty(name) for name in self._in_memory if name not in self._tables}
        tables |= {name: self._mapped(name) for name in self._in_file if name not in self._tables}
        if tables and self._store.rows:
            self._copy(tables)
        self._tables = {**self._tables, **tables}
        self._filled = True

    def in_memory(self) -> dict[str, NDArray[Any]]:
        """The tables that lie in memory; `fill` first."""
        return {name: self._tables[name] for name in self._in_memory}

    def adopt(self, tables: Mapping[str, NDArray[Any]]) -> None:
        """Use these tables, which another process filled, in place of own ones."""
        self._tables = {**self._tables, **tables}

    def gather(self, name: str, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Rows in any order into `out`, (n, *shape)."""
        table = self._tables.get(name)
        if table is None:
            out[...] = self._store.numbers(name, rows)
        else:
            np.take(table, rows, axis=0, out=out, mode="clip")  # rows are in range; other modes copy once more

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

    def _mapped(self, name: str) -> NDArray[Any]:
        column = self._store.column(name)
        shape = (self._store.rows, *column.shape)
        n_bytes = max(column.row_bytes * self._store.rows, 1)
        directory = cache_directory()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory, prefix="numbers-") as file:
                os.posix_fallocate(file.fileno(), 0, n_bytes)  # a full disk is told now, not by a signal later
                return np.memmap(file, column.dtype, "r+", shape=shape)
        except OSError as error:
            raise OutputFailed(directory, f"laying out {name} ({n_bytes:,} bytes)", error) from error
