"""Rows on their way to the data files.

The rows of an episode go to a part of their own, a parquet file that is whole as soon as the episode is committed.
Parts are collected until they fill a data file: a lone or large part is renamed into place, small ones are copied
together, row group by row group. So an aborted episode is one file to delete, and a crash harms no committed one.

An episode never spans two data files: LeRobot's aggregation and partial downloads take from the episodes table only
the file in which an episode starts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DataSetError
from penstock.lerobot import columns, layout, tables
from penstock.lerobot.features import Feature
from penstock.lerobot.layout import FilePosition

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq


@dataclass(frozen=True)
class Part:
    """A finished parquet file with the rows of one episode."""

    path: Path
    rows: int
    size_bytes: int


class PartWriter:
    """Writes the rows of one episode, each flush one row group."""

    def __init__(self, path: Path, features: list[Feature], schema: tables.SchemaMaker) -> None:
        self.path = path
        self.rows = 0
        self._features = features
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: Mapping[str, NDArray[Any] | list[Any]]) -> None:
        """Append rows, already checked, as one row group."""
        import pyarrow as pa

        count = tables.rows_of(rows)
        arrays = [tables.column(feature, rows[feature.key]) for feature in self._features]
        with tables.arrow_errors(self.path, "cannot write rows"):
            if self._writer is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = tables.data_writer(self.path, self._schema())
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema()), row_group_size=count)
        self.rows += count

    def finish(self, *, fsync: bool) -> Part:
        """Write the footer; after this the part is a parquet file."""
        if self._writer is None:
            raise DataSetError(f"{self.path}: an episode without rows", hint="abort the episode instead")
        with tables.arrow_errors(self.path, "cannot finish the rows"):
            self._writer.close()
            self._writer = None
            if fsync:
                layout.fsync_file(self.path)
            return Part(self.path, self.rows, self.path.stat().st_size)

    def discard(self) -> None:
        """Leave nothing behind."""
        if self._writer is not None:
            # The footer fails to be written on a full disk; the file is deleted all the same.
            with contextlib.suppress(Exception):
                self._writer.close()
            self._writer = None
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()


def with_task_index(part: Part, schema: pa.Schema, task_index: int, *, fsync: bool) -> Part:
    """The same rows with another task, in a new file of the same name: for a task that is known only at commit."""
    import pyarrow.parquet as pq

    changed = part.path.with_name(part.path.name + ".task")
    place = schema.names.index("task_index")
    with tables.arrow_errors(part.path, "cannot set the task"):
        source = pq.ParquetFile(str(part.path))
        with source, tables.data_writer(changed, schema) as target:
            for number in range(source.num_row_groups):
                table = source.read_row_group(number, use_threads=False).cast(schema)
                values = columns.numbers(np.full(table.num_rows, task_index, dtype=np.int64))
                table = table.set_column(place, schema.field(place), values)
                target.write_table(table, row_group_size=table.num_rows)
        if fsync:
            layout.fsync_file(changed)
        os.replace(changed, part.path)
        return Part(part.path, part.rows, part.path.stat().st_size)


class DataFiles:
    """Collects finished parts into data/chunk-CCC/file-FFF.parquet, in the order of the episodes."""

    def __init__(
        self, root: Path, schema: tables.SchemaMaker, *, limit_bytes: int, chunks_size: int, fsync: bool
    ) -> None:
        self._root = root
        self._schema = schema
        self._limit_bytes = limit_bytes
        self._chunks_size = chunks_size
        self._fsync = fsync
        self._position = layout.FIRST_FILE
        self._waiting: list[Part] = []
        self.size_bytes = 0

    def take(self, part: Part) -> FilePosition:
        """Take over the part of the next episode; returns the number of the file in which it will lie."""
        waiting_bytes = sum(waiting.size_bytes for waiting in self._waiting)
        if self._waiting and waiting_bytes + part.size_bytes > self._limit_bytes:
            self._flush()
        large = 2 * part.size_bytes >= self._limit_bytes
        if large and self._waiting:
            self._flush()
        position = self._position
        self._waiting.append(part)
        if large:
            self._flush()
        return position

    def finish(self) -> None:
        """Put the last file into place."""
        if self._waiting:
            self._flush()

    def _flush(self) -> None:
        relative = layout.fill_template(
            layout.DATA_PATH, chunk_index=self._position.chunk, file_index=self._position.file
        )
        path = self._root / relative
        with tables.arrow_errors(path, "cannot put the data file into place"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if len(self._waiting) == 1:
                os.replace(self._waiting[0].path, path)
            else:
                merged = self._waiting[0].path.with_name("merged.parquet")
                self._merge(merged)
                os.replace(merged, path)
                for part in self._waiting:
                    part.path.unlink()
            self.size_bytes += path.stat().st_size
        self._waiting.clear()
        self._position = self._position.next(self._chunks_size)

    def _merge(self, merged: Path) -> None:
        import pyarrow.parquet as pq

        with tables.data_writer(merged, self._schema()) as target:
            for part in self._waiting:
                with pq.ParquetFile(str(part.path)) as source:
                    for number in range(source.num_row_groups):
                        table = source.read_row_group(number, use_threads=False).cast(self._schema())
                        target.write_table(table, row_group_size=table.num_rows)
        if self._fsync:
            layout.fsync_file(merged)
