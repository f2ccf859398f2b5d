"""One column of an HDF5 store over all its files: runs of rows, any rows in any order, images.

A bounded number of files is open at a time, for any thread and across forks. Bytes are read by position. The library
opens a file only to list chunks, or for columns that it alone can read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.profile.record.spans import span
from penstock._src.stores.caches import FILE_CACHE, Lru
from penstock._src.stores.hdf5.array import Hdf5Array
from penstock._src.stores.hdf5.file import Hdf5File, library_lock
from penstock._src.stores.hdf5.layout import join
from penstock._src.stores.hdf5.rows import (
    HELD_BYTES,
    REFERENCE,
    ContiguousRows,
    HeapRows,
    LastChunk,
    RowReader,
    image_bytes,
)
from penstock._src.stores.hdf5.survey import Hdf5Survey
from penstock._src.stores.scattered import runs_between
from penstock._src.stores.store import ImageArray, ImageSource, Scratch, row_numbers
from penstock.errors import ImageError, LimitExceeded, StoreCorrupt, StoreError

_MOST_OPEN = 128
_LOCAL_BITS = 40  # rows of one part
_LOCAL_MASK = (1 << _LOCAL_BITS) - 1
_SMALLEST_LIMIT_BYTES = 1 << 20


class OpenFiles:
    """The files of a store by number."""

    def __init__(self, paths: Sequence[Path], stamps: Any, allow_external: bool) -> None:
        self.paths, self.stamps = tuple(paths), stamps
        self._allow_external = allow_external
        self._closed = False
        self._open: Lru[Hdf5File] = Lru(most_open())

    @property
    def n_open(self) -> int:
        return len(self._open)

    def handle(self, number: int) -> Hdf5File:
        """The file, open and unchanged. Who holds the handle may read from its source."""
        if self._closed:
            raise StoreError(f"{self.paths[number]}: the store is closed already")
        file = self._open.get(number, lambda: self._opened(number))
        file.check()
        return file

    def _opened(self, number: int) -> Hdf5File:
        size, time_ns = (int(value) for value in self.stamps[number])
        with span(FILE_CACHE):
            return Hdf5File(self.paths[number], allow_external=self._allow_external, stamp=(size, time_ns))

    def close(self) -> None:
        self._closed = True
        self._open.clear()


def most_open() -> int:
    """Files that may be open at a time: a share of what this process may open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4, min(_MOST_OPEN, soft // 8)) if soft != resource.RLIM_INFINITY else _MOST_OPEN


class RowMap:
    """Row numbers of the store → (part, row of the part). One run for what lies in one piece: 24 bytes each."""

    def __init__(self, parts: NDArray[np.int32], firsts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        joined = np.ones(len(parts), np.bool_)
        joined[1:] = (parts[1:] != parts[:-1]) | (firsts[1:] != firsts[:-1] + lengths[:-1])
        begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        self.rows = int(begins[-1])
        self.starts: NDArray[np.int64] = np.ascontiguousarray(begins[:-1][joined])
        self.parts: NDArray[np.int32] = parts[joined]
        self.shifts: NDArray[np.int64] = firsts[joined] - self.starts

    def pieces(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """The rows [start, stop) as (part, first row, last row + 1) of parts."""
        run = bisect_right(self.starts, start) - 1
        while start < stop:
            end = int(self.starts[run + 1]) if run + 1 < len(self.starts) else self.rows
            end = min(end, stop)
            shift = int(self.shifts[run])
            yield int(self.parts[run]), start + shift, end + shift
            start, run = end, run + 1

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """The part of each row, and its number there."""
        runs = np.searchsorted(self.starts, rows, side="right") - 1
        return self.parts[runs], rows + self.shifts[runs]

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers that rise with part, then row of the part."""
        parts, local = self.locate(rows)
        return np.asarray((parts.astype(np.int64) << _LOCAL_BITS) | local, np.int64)

    def by_part(self, rows: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        """Rows in their order, those that follow one another in one part together."""
        if not len(rows):
            return
        part_numbers, numbers = self.locate(np.asarray(rows, np.int64))
        parts, local = part_numbers.tolist(), numbers.tolist()
        begin = 0
        for end in range(1, len(parts) + 1):
            if end == len(parts) or parts[end] != parts[begin]:
                yield parts[begin], local[begin:end]
                begin = end

    def by_place(self, rows: NDArray[np.int64]) -> tuple[list[tuple[int, NDArray[np.int64]]], NDArray[np.int64]]:
        """Each row once, as (part, rows of the part) that rise; and for each of `rows` its place among them."""
        keys, places = np.unique(self.keys(rows), return_inverse=True)
        parts, local = keys >> _LOCAL_BITS, keys & _LOCAL_MASK
        runs = runs_between(parts[1:] != parts[:-1]) if len(keys) else ()
        return [(int(parts[begin]), local[begin:end]) for begin, end in runs], places.reshape(-1)


class ColumnRows:
    """One column over all parts of a store, as its rows are stored; any thread may read."""

    def __init__(self, survey: Hdf5Survey, files: OpenFiles, number: int) -> None:
        self.facts = survey.columns[number]
        self.dtype: np.dtype[Any] = np.dtype(self.facts.stored_dtype) if not self.facts.ragged else np.dtype("u1")
        self._files, self._part_file, self._groups = files, survey.part_file, survey.part_group
        places = survey.placements[:, number]
        self._offsets, self.row_bytes = places[:, 0].copy(), places[:, 1].copy()
        self.chunk_rows, self.chunk_bytes = places[:, 2].copy(), places[:, 3].copy()
        self._readers: dict[int, RowReader | HeapRows] = {}  # of parts that do not lie in one piece
        self._last: tuple[int, RowReader | HeapRows | None] = (-1, None)  # replaced as one, never changed
        self._last_chunk = LastChunk()

    def file(self, part: int) -> Hdf5File:
        return self._files.handle(int(self._part_file[part]))

    def _reader(self, part: int, file: Hdf5File) -> RowReader | HeapRows:
        """What reads the rows of a part: known from the survey where they lie in one piece, else asked for once."""
        held, reader = self._last
        if held == part and reader is not None:
            return reader
        offset = int(self._offsets[part])
        if offset >= 0:
            row_reader = ContiguousRows(offset, REFERENCE.itemsize if self.facts.ragged else int(self.row_bytes[part]))
            reader = HeapRows(row_reader) if self.facts.ragged else row_reader
        else:
            reader = self._readers.get(part)
            if reader is None:
                with library_lock():
                    reader = self._readers.get(part) or self._opened_reader(part, file)
        self._last = (part, reader)
        return reader

    def _opened_reader(self, part: int, file: Hdf5File) -> RowReader | HeapRows:
        reader = Hdf5Array(file, join(self._groups[part], self.facts.name)).reader
        self._readers[part] = reader
        return reader

    def _fixed(self, part: int, file: Hdf5File) -> RowReader:
        reader = self._reader(part, file)
        if isinstance(reader, HeapRows):
            raise StoreCorrupt(f"{file.path}: {self.facts.name} was changed: its rows have different lengths now")
        return reader

    @property
    def index_bytes(self) -> int:
        """What is remembered of places, by now."""
        tables = [each.index_bytes for each in list(self._readers.values())]
        return sum(tables) + 4 * int(self._offsets.nbytes)

    @property
    def scratch_bytes(self) -> int:
        """A chunk where rows are unpacked together."""
        return int(self.chunk_bytes.max(initial=0))

    def read(self, part: int, start: int, stop: int, out: NDArray[Any]) -> None:
        """The rows [start, stop) of a part."""
        file = self.file(part)
        self._fixed(part, file).read(file, start, stop, out, self._last_chunk)

    def gather(self, row_map: RowMap, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Rows of the store in any order and with repeats, in the byte order of this machine."""
        pieces, places = row_map.by_place(rows)
        values = np.empty((sum(len(local) for _, local in pieces), *self.facts.stored_shape), self.dtype)
        done = 0
        for part, local in pieces:
            file = self.file(part)
            self._fixed(part, file).gather(file, local, values[done : done + len(local)], self._last_chunk)
            done += len(local)
        return as_native(values, self.facts.dtype)[places]

    def ragged(self, part: int, local: Sequence[int], longest_bytes: int, where: str) -> Iterator[NDArray[np.uint8]]:
        """Images of a part that have their own lengths; one that cannot be used is lost alone."""
        file = self.file(part)
        reader = self._reader(part, file)
        if isinstance(reader, RowReader):
            raise StoreCorrupt(f"{file.path}: {self.facts.name} was changed: its rows have one length now")
        done = 0
        try:
            for value in reader.rows(file, local, longest_bytes):
                yield value
                done += 1
        except LimitExceeded as error:
            text = f"{where}: row {local[done]:,} claims {error.size:,} bytes, at most {longest_bytes:,} are possible"
            raise ImageError(text, hint="the file is damaged") from None
        except StoreCorrupt as error:
            raise ImageError(error.message, hint=error.hint) from error

    def iter_rows(self, part: int, local: Sequence[int], scratch: Scratch) -> Iterator[NDArray[np.uint8]]:
        """The bytes of rows of a part, each valid until the next."""
        file = self.file(part)
        return self._fixed(part, file).iter_rows(file, local, scratch)


class Hdf5Images(ImageSource):
    """The images of one column: a row goes into the scratch of the thread that reads; pixels are a view of it."""

    def __init__(self, column: ColumnRows, row_map: RowMap, where: str, pixel_order: str) -> None:
        self.pixel_order = pixel_order
        self._column, self._map, self._where = column, row_map, where
        facts = column.facts
        self._is_encoded = facts.encoding != "raw"
        raw_bytes = int(np.prod(facts.shape)) * np.dtype(facts.dtype).itemsize
        self._longest_bytes = int(column.row_bytes.max(initial=0))
        if facts.ragged:  # a PNG of noise takes a little more than its pixels
            most_bytes = max(raw_bytes + raw_bytes // 64 + facts.shape[0], _SMALLEST_LIMIT_BYTES)
            self._longest_bytes = min(self._longest_bytes, most_bytes)
        self._packs = bool((column.chunk_rows > 1).any())
        self.scratch_bytes = self._needs()

    def _needs(self) -> int:
        column, row_bytes = self._column, self._longest_bytes
        if column.facts.ragged or (not self._packs and not column.scratch_bytes):
            return row_bytes
        # Packed bytes, unpacked ones, and those in their order again; then the rows that are picked.
        held = max(row_bytes, min(HELD_BYTES, row_bytes * int(column.chunk_rows.max(initial=1))))
        return 3 * column.scratch_bytes + held

    @property
    def largest_bytes(self) -> int:
        return self._longest_bytes

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._map.keys(np.asarray(rows, np.int64))

    def runs(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if not self._packs or len(rows) < 2:
            return np.arange(len(rows), dtype=np.int64)
        parts, local = self._map.locate(np.asarray(rows, np.int64))
        steps = np.maximum(self._column.chunk_rows[parts], 1)
        bands = local // steps
        alone = (steps == 1)[1:]
        changed = (parts[1:] != parts[:-1]) | (bands[1:] != bands[:-1]) | alone
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(changed, dtype=np.int64)])

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        if len(rows) and (min(rows) < 0 or max(rows) >= self._map.rows):
            row_numbers(rows, self._where, self._map.rows)
        column = self._column
        for part, local in self._map.by_part(rows):
            if column.facts.ragged:
                stored = column.ragged(part, local, self._longest_bytes, self._where)
            else:
                stored = column.iter_rows(part, local, scratch)
            memory = None
            for row in stored:
                if self._is_encoded:
                    yield row[: image_bytes(row.data)]
                    continue
                if row is not memory or column.facts.kind == "depth":  # most readers give the same memory again
                    memory, image = row, self._pixels(row)
                yield image

    def _pixels(self, row: NDArray[np.uint8]) -> ImageArray:
        """The bytes of a row as what they show."""
        facts = self._column.facts
        stored = row.view(self._column.dtype).reshape(facts.stored_shape)
        if facts.kind == "depth":
            depth = stored.reshape(facts.shape[:2])
            return depth.astype(facts.dtype, copy=False)
        return stored.transpose(1, 2, 0) if facts.turned else stored.reshape(facts.shape)


def as_native(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Stored values as numpy's own; a byte that is neither 0 nor 1 would be no truth value of numpy's."""
    if dtype == "bool":
        return np.asarray(values.view(np.uint8) != 0)
    return values if values.dtype.isnative else values.astype(dtype)
