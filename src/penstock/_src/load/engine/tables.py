"""Numbers for random access: small columns in memory, large ones by row from the store or from a file laid out anew."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.shared_array import SharedPlace
from penstock._src.load.views.cache import lies_in_memory
from penstock._src.load.views.view_file import write_all
from penstock._src.stores.scattered import gather_bytes
from penstock._src.stores.store import Column, Store
from penstock._src.system.cache_directory import cache_directory
from penstock._src.system.files import LocalSource, ReadErrors
from penstock.errors import OutputFailed, StoreCorrupt

BLOCK_BYTES = 4 << 20
_UNNAMED = Path("the temporary file of numbers")
_ROWS_AT_ONCE = 3  # a store holds rows as they are stored, in this machine's numbers, and in the order asked for


def table_bytes(columns: Iterable[Column], rows: int) -> int:
    """What tables of these columns take."""
    return sum(column.row_bytes for column in columns) * rows


class TableInFile(SharedPlace):
    """A table in a file without a name, read and written by the system: mapped, its pages would be memory of this
    process."""

    def __init__(self, directory: Path, shape: tuple[int, ...], dtype: str) -> None:
        self.shape, self.dtype = shape, dtype
        self._directory = directory
        with tempfile.TemporaryFile(dir=directory, prefix="numbers-") as file:
            # A full disk is reported now, not while filling.
            os.posix_fallocate(file.fileno(), 0, max(math.prod(shape) * np.dtype(dtype).itemsize, 1))
            self._open(os.dup(file.fileno()))

    def _open(self, fd: int) -> None:
        super()._open(fd)
        self._source = LocalSource(_UNNAMED, os.dup(fd), ReadErrors(StoreCorrupt))

    def close(self) -> None:
        super().close()
        self._source.close()

    def write(self, first: int, values: NDArray[Any]) -> None:
        """Rows from `first` on."""
        block = np.ascontiguousarray(values, self.dtype)
        try:
            write_all(self._fd, block.reshape(-1).view(np.uint8).data, first * self._row_bytes)
        except OSError as error:
            raise OutputFailed(self._directory, "a temporary file of numbers cannot be written", error) from error

    def rows(self, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows in any order and with repeats, (n, *shape)."""
        flat = rows.reshape(-1)
        keys, places = flat, None
        if (flat[1:] <= flat[:-1]).any():
            keys, places = np.unique(flat, return_inverse=True)
        values = np.empty((len(keys), *self.shape[1:]), self.dtype)
        gather_bytes(self._source, keys * self._row_bytes, self._row_bytes, values)
        return values if places is None else values[places.reshape(-1)]

    @property
    def _row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize


class Numbers:
    """The numbers columns of one store, gathered by row.

    Up to `limit_bytes` they lie in memory. Beyond that, columns whose rows lie at known places are read from there;
    those in parquet or packed chunks are laid out once in a file without a name.
    """

    def __init__(self, store: Store, names: Sequence[str], limit_bytes: int) -> None:
        self._store = store
        self._names = tuple(names)
        self._tables: dict[str, NDArray[Any]] = {}
        self.laid_out: dict[str, TableInFile] = {}
        """Tables in files, by column; `fill` makes them."""
        self.in_memory_bytes = 0
        columns = [store.column(name) for name in names]
        self._row_bytes = {column.name: column.row_bytes for column in columns}
        in_memory: list[str] = []
        for column in sorted(columns, key=lambda column: column.row_bytes):
            size = column.row_bytes * store.rows
            if not column.is_parsed and self.in_memory_bytes + size <= limit_bytes:
                self.in_memory_bytes += size
                in_memory.append(column.name)
        self._in_memory = in_memory
        self._in_file = [
            column.name
            for column in columns
            if not (column.name in in_memory or column.is_read_directly or column.is_parsed)
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
        files = {name: self._file(name) for name in self._in_file if name not in self.laid_out}
        if (tables or files) and self._store.rows:
            self._copy(tables, files)
        self.adopt(tables)
        self.adopt_files(files)
        self._filled = True

    def in_memory(self) -> dict[str, NDArray[Any]]:
        """The tables that lie in memory; `fill` first."""
        return {name: self._tables[name] for name in self._in_memory}

    def adopt(self, tables: Mapping[str, NDArray[Any]]) -> None:
        """Use these tables, which another process filled, in place of own ones."""
        self._tables = {**self._tables, **tables}

    def adopt_files(self, files: Mapping[str, TableInFile]) -> None:
        """The same for tables in files."""
        self.laid_out = {**self.laid_out, **files}

    def close(self) -> None:
        """Give back what lies in memory and in files."""
        self._tables, files, self.laid_out = {}, self.laid_out, {}
        self._filled = False
        for file in files.values():
            file.close()

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
        file = self.laid_out.get(name)
        values = self._store.numbers(name, rows.reshape(-1)) if file is None else file.rows(rows)
        return values.reshape(*rows.shape, *values.shape[1:])

    def describe(self) -> list[str]:
        """For people: what was laid out how."""
        lines = []
        if self._in_file:
            place = _place()
            names, where = ", ".join(self._in_file), f"a temporary file in {place}"
            where += " (memory beyond the budget: PENSTOCK_CACHE may name a disk)" if lies_in_memory(place) else ""
            lines.append(f"numbers: {names} are written to {where}, because they do not fit in memory")
        there = [name for name in self._names if not self._store.column(name).is_parsed]
        in_place = [name for name in there if name not in self._in_memory and name not in self._in_file]
        if in_place:
            lines.append(f"numbers: {', '.join(in_place)} are read in place, because they do not fit in memory")
        return lines

    def _copy(self, tables: Mapping[str, NDArray[Any]], files: Mapping[str, TableInFile]) -> None:
        filled = 0
        for first, block in self._store.number_blocks([*tables, *files], BLOCK_BYTES):
            for name, values in block.items():
                if name in tables:
                    tables[name][first : first + len(values)] = values
                else:
                    files[name].write(first, values)
                filled = max(filled, first + len(values))
        if filled != self._store.rows:
            raise StoreCorrupt(f"{self._store.path}: {filled:,} of {self._store.rows:,} rows of numbers were found")

    def _empty(self, name: str) -> NDArray[Any]:
        column = self._store.column(name)
        return np.empty((self._store.rows, *column.shape), column.dtype)

    def _file(self, name: str) -> TableInFile:
        column = self._store.column(name)
        directory = _place()
        try:
            directory.mkdir(parents=True, exist_ok=True)
            return TableInFile(directory, (self._store.rows, *column.shape), column.dtype)
        except OSError as error:
            n_bytes = column.row_bytes * self._store.rows
            raise OutputFailed(directory, f"laying out {name} ({n_bytes:,} bytes)", error) from error


def _place() -> Path:
    """Where tables are laid out: the cache directory, or where that is memory, a disk for what is temporary."""
    own = cache_directory()
    others = (Path(tempfile.gettempdir()), Path("/var/tmp"))
    if not lies_in_memory(own):
        return own
    return next((each for each in others if os.access(each, os.W_OK) and not lies_in_memory(each)), own)
