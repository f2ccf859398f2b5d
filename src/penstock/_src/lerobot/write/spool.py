"""Rows on their way to the data files.

The rows of an episode go to a part of their own, a parquet file that is whole as soon as the episode is committed.
Parts are collected until they fill a data file: a lone or large part is renamed into place, small ones are copied
together, row group by row group. So an aborted episode is one file to delete, and a crash harms no committed one.
A data file is never changed in place: one that must take more rows is copied together with them, and replaced.

An episode never spans two data files: LeRobot's aggregation and partial downloads take from the episodes table only
the file in which an episode starts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from penstock._src.lerobot import layout, tables
from penstock._src.lerobot.features import Description, Feature
from penstock._src.lerobot.layout import FilePosition, UnsyncedNames
from penstock.errors import DataSetCorrupt, DataSetError

if TYPE_CHECKING:
    import pyarrow.parquet as pq


class EpisodePart(NamedTuple):
    """The rows of one episode: a finished parquet file of their own, or some row groups of a data file (`groups`).

    `size_bytes` is the size that the episode's own file has or had; it decides what fits together.
    """

    path: Path
    rows: int
    size_bytes: int
    groups: range | None = None


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
        with tables.write_errors(self.path, "cannot write rows"):
            if self._writer is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = tables.data_writer(self.path, self._schema())
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema()), row_group_size=count)
        self.rows += count

    def finish(self) -> EpisodePart:
        """Write the footer; after this the part is a parquet file."""
        if self._writer is None:
            raise DataSetError(f"{self.path}: an episode without rows", hint="abort the episode instead")
        with tables.write_errors(self.path, "cannot finish the rows"):
            writer, self._writer = self._writer, None
            tables.close_writer(writer)
            return EpisodePart(self.path, self.rows, self.path.stat().st_size)

    def leave(self) -> None:
        """Close the file without caring for its contents; it stays where it is."""
        tables.abandon_writer(self._writer)
        self._writer = None

    def discard(self) -> None:
        self.leave()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.parent.rmdir()


class DataFiles:
    """Collects finished parts into data/chunk-CCC/file-FFF.parquet, in the order of the episodes.

    `place` decides which file an episode goes to; `settle`, called when the episode is committed for good, moves the
    rows of files that are full. So a data file never holds rows of an episode that might be taken back.
    """

    def __init__(
        self, root: Path, description: Description, schema: tables.SchemaMaker, most_parts: int, names: UnsyncedNames
    ) -> None:
        self._root, self._schema, self._most_parts, self._names = root, schema, most_parts, names
        self._limit_bytes, self._chunks_size = description.data_file_bytes, description.chunks_size
        self._position, self._chunks = layout.FIRST_FILE, layout.ALL_CHUNKS
        self._waiting: list[EpisodePart] = []
        self._waiting_bytes = 0
        self._full: list[tuple[FilePosition, list[EpisodePart]]] = []

    def number_from(self, chunks: layout.FileChunks) -> None:
        """Before the first episode: these chunks are ours."""
        self._position, self._chunks = FilePosition(chunks.first, 0), chunks

    def place(self, part: EpisodePart) -> FilePosition:
        """Take over the part of the next episode; returns the number of the file in which it will lie."""
        is_full = self._waiting_bytes + part.size_bytes > self._limit_bytes or len(self._waiting) >= self._most_parts
        if self._waiting and (is_full or self._is_large(part)):
            self._end_file()
        return self._add(part)

    def settle(self) -> None:
        while self._full:
            position, parts = self._full[0]
            self._put(position, parts)
            del self._full[0]

    def finish(self) -> None:
        """Put all files into place, the last one, too."""
        if self._waiting:
            self._end_file()
        self.settle()

    def restore(self, parts: Sequence[tuple[FilePosition, EpisodePart]]) -> None:
        """Go on after episodes that were placed before: those of the last files, with the places they were given."""
        if parts:
            self._position = parts[0][0]
        for position, part in parts:
            if self._waiting and position != self._position:
                self._end_file()
            if position.chunk != self._position.chunk:  # each of those that wrote the data set had its own
                self._position = position
            placed = self._add(part)
            if placed != position:
                raise DataSetCorrupt(
                    f"{part.path}: {part.size_bytes:,} bytes belong into {layout.data_path(self._root, placed)}, but "
                    f"the journal says {layout.data_path(self._root, position)}"
                )
        self.settle()

    def _add(self, part: EpisodePart) -> FilePosition:
        position = self._position
        self._waiting.append(part)
        self._waiting_bytes += part.size_bytes
        if self._is_large(part):
            self._end_file()
        return position

    def _is_large(self, part: EpisodePart) -> bool:
        return 2 * part.size_bytes >= self._limit_bytes

    def _end_file(self) -> None:
        self._full.append((self._position, self._waiting))
        self._waiting, self._waiting_bytes = [], 0
        self._position = self._position.next(self._chunks_size, self._chunks)

    def _put(self, position: FilePosition, parts: Sequence[EpisodePart]) -> None:
        path = layout.data_path(self._root, position)
        if all(part.path == path for part in parts):
            return  # it lies there already, whole
        with tables.write_errors(path, "cannot put the data file into place"):
            path.parent.mkdir(parents=True, exist_ok=True)
            if len(parts) == 1:
                os.replace(parts[0].path, path)
                self._names.add(path)
                return
            merged = self._root / layout.SPOOL_DIR / "merged.parquet"
            self._merge(merged, parts)
            os.replace(merged, path)
            self._names.add(path)
        # The parts may go only when their copy is there for good.
        self._names.sync()
        for part in parts:
            if part.path != path:
                layout.remove(part.path)

    def _merge(self, merged: Path, parts: Sequence[EpisodePart]) -> None:
        import pyarrow.parquet as pq

        with tables.data_file(merged, self._schema()) as target:
            for path, neighbours in itertools.groupby(parts, lambda part: part.path):
                with pq.ParquetFile(str(path)) as source:
                    groups = (part.groups or range(source.num_row_groups) for part in neighbours)
                    for number in itertools.chain.from_iterable(groups):
                        table = tables.read_group(source, number, self._schema())
                        target.write_table(table, row_group_size=table.num_rows)
                        del table  # before the next one is read
        if self._names.fsync:
            layout.fsync_file(merged)
