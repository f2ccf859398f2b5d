"""Rows of one column of an HDF5 store: runs for passes from end to end, and any rows in any order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StoreCorrupt, StoreError
from penstock.stores.hdf5.array import Hdf5Array
from penstock.stores.hdf5.chunks import Chunks, Held
from penstock.stores.hdf5.heap import REFERENCE, Heap
from penstock.stores.hdf5.layout import join
from penstock.stores.hdf5.pool import Files, Handle, library_lock
from penstock.stores.hdf5.read import read_exactly
from penstock.stores.hdf5.scouts import Survey
from penstock.stores.hdf5.spots import LONGEST_TEXT_BYTES
from penstock.stores.held import Lru
from penstock.stores.scattered import gather_bytes, stretches
from penstock.stores.store import row_numbers

_HEAP_BYTES = 32 << 20  # places of texts of their own lengths: two million
_LOCAL_BITS = 40  # rows of one part
_LOCAL_MASK = (1 << _LOCAL_BITS) - 1
_FEW_ROWS = 12  # found one by one faster than by numpy


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
        if len(self.starts) == 1:
            return np.broadcast_to(self.parts, rows.shape), rows + self.shifts[0]
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
        if len(self.starts) == 1:
            shift = int(self.shifts[0])
            plain = rows.tolist() if isinstance(rows, np.ndarray) else rows
            yield int(self.parts[0]), [row + shift for row in plain]
            return
        if len(rows) <= _FEW_ROWS:
            runs = [bisect_right(self.starts, row) - 1 for row in rows]
            parts = [int(self.parts[run]) for run in runs]
            local = [int(row) + int(self.shifts[run]) for row, run in zip(rows, runs, strict=True)]
        else:
            found, numbers = self.locate(np.asarray(rows, np.int64))
            parts, local = found.tolist(), numbers.tolist()
        begin = 0
        for end in range(1, len(parts) + 1):
            if end == len(parts) or parts[end] != parts[begin]:
                yield parts[begin], local[begin:end]
                begin = end


class ColumnRows:
    """One column over all parts of a store, as its rows are stored; any thread may read."""

    def __init__(self, survey: Survey, files: Files, number: int) -> None:
        self.facts = survey.columns[number]
        self.files = files
        self.dtype: np.dtype[Any] = np.dtype(self.facts.stored_dtype) if not self.facts.ragged else np.dtype("u1")
        self._part_file, self._groups = survey.part_file, survey.part_group
        spots = survey.spots[:, number]
        self.offsets, self.row_bytes = spots[:, 0].copy(), spots[:, 1].copy()
        self.chunk_rows, self.chunk_bytes = spots[:, 2].copy(), spots[:, 3].copy()
        self._chunks: dict[int, Chunks | None] = {}
        self._heaps: Lru[NDArray[np.int64]] = Lru(_HEAP_BYTES, lambda places: places.nbytes)

    def handle(self, part: int) -> Handle:
        return self.files.handle(int(self._part_file[part]))

    def array(self, part: int, handle: Handle) -> Hdf5Array:
        return handle.array(join(self._groups[part], self.facts.name), texts=self.facts.kind == "text")

    def chunks(self, part: int, handle: Handle) -> Chunks | None:
        """The chunks of a part that can be read without the library, listed once; else None."""
        if part in self._chunks:
            return self._chunks[part]
        with library_lock():
            if part not in self._chunks:
                array = self.array(part, handle)
                self._chunks[part] = array.chunked() if array.is_in_chunks else None
        return self._chunks[part]

    @property
    def index_bytes(self) -> int:
        """What is remembered of places, by now."""
        tables = [each.table.n_bytes for each in self._chunks.values() if each is not None and each.table is not None]
        return sum(tables) + 4 * int(self.offsets.nbytes) + self._heaps.total

    def read(self, part: int, start: int, stop: int, out: NDArray[Any], held: Held) -> None:
        """The rows [start, stop) of a part."""
        handle = self.handle(part)
        offset = int(self.offsets[part])
        if offset >= 0:
            target = out.reshape(-1).view(np.uint8).data
            read_exactly(handle.descriptor, target, offset + start * int(self.row_bytes[part]), handle.path)
            return
        chunks = self.chunks(part, handle)
        if chunks is not None:
            chunks.read(handle.descriptor, start, stop, out, held)
        else:
            self.array(part, handle).rows(start, stop, out)

    def gather(self, part: int, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Some rows of a part, each once and rising."""
        handle = self.handle(part)
        offset, row_bytes = int(self.offsets[part]), int(self.row_bytes[part])
        if offset >= 0:
            gather_bytes(handle.descriptor, handle.path, offset + rows * row_bytes, row_bytes, out)
            return
        chunks = self.chunks(part, handle)
        if chunks is not None and chunks.is_direct:
            offsets = chunks.row_offsets(rows)
            if offsets.min() < 0:
                out[offsets < 0] = chunks.fill
                written = np.empty((int(np.count_nonzero(offsets >= 0)), *out.shape[1:]), out.dtype)
                gather_bytes(handle.descriptor, handle.path, offsets[offsets >= 0], row_bytes, written)
                out[offsets >= 0] = written
            else:
                gather_bytes(handle.descriptor, handle.path, offsets, row_bytes, out)
            return
        array = None if chunks is not None else self.array(part, handle)
        step = chunks.chunks[0] if chunks is not None else max(int(self.chunk_rows[part]), 1)
        bands = rows // step
        for begin, end in stretches(bands[1:] != bands[:-1]):
            some, target = rows[begin:end], out[begin:end]
            if chunks is not None:
                chunks.pick(handle.descriptor, int(bands[begin]), some - int(bands[begin]) * step, target)
            elif array is not None:
                target[...] = array.rows(int(some[0]), int(some[-1]) + 1)[some - some[0]]

    def ragged(self, part: int, local: Sequence[int], longest_bytes: int, where: str) -> Iterator[NDArray[np.uint8]]:
        """Rows of their own lengths: a reference each, then the bytes in the heap."""
        handle = self.handle(part)
        offset = int(self.offsets[part])
        chunks = self.chunks(part, handle) if offset < 0 else None
        if chunks is None and offset < 0:
            array = self.array(part, handle)
            for row in local:
                yield next(iter(array.ragged(row, row + 1, longest_bytes)))
            return
        reference = np.empty(1, REFERENCE)
        held, heap = Held(), Heap(handle, self._heaps if self.facts.kind == "text" else None)
        for row in local:
            if chunks is not None:
                chunks.read(handle.descriptor, row, row + 1, reference, held)
            else:
                place = offset + row * REFERENCE.itemsize
                read_exactly(handle.descriptor, reference.view(np.uint8).data, place, handle.path)
            length, address, index = reference[0].item()
            if length > longest_bytes:
                most = "a text may have" if self.facts.kind == "text" else "a picture of this column has"
                unpacked = "" if self.facts.kind == "text" else " when it is not encoded"
                raise StoreCorrupt(
                    f"{where}: row {row:,} claims {length:,} bytes, {most} {longest_bytes:,}{unpacked}",
                    hint="the file is damaged",
                )
            yield heap.read(address, index, length, longest_bytes)

    def texts(self, part: int, rows: NDArray[np.int64], where: str) -> list[str]:
        """Some rows of a part as text, each once and rising."""
        if self.facts.ragged:
            found = [each.tobytes() for each in self.ragged(part, rows.tolist(), LONGEST_TEXT_BYTES, where)]
        else:
            fixed = np.empty(len(rows), f"S{int(self.row_bytes[part])}")  # parts may be of different widths
            self.gather(part, rows, fixed)
            found = fixed.tolist()
        return [each.decode("utf-8", "replace") for each in found]


def gather_rows(column: ColumnRows, row_map: RowMap, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Rows of the store in any order and with repeats, in the byte order of this machine."""
    facts = column.facts
    keys, places = np.unique(row_map.keys(rows), return_inverse=True)
    found = np.empty((len(keys), *facts.stored_shape), column.dtype)
    parts, local = keys >> _LOCAL_BITS, keys & _LOCAL_MASK
    if len(keys):
        for begin, end in stretches(parts[1:] != parts[:-1]):
            column.gather(int(parts[begin]), local[begin:end], found[begin:end])
    return as_native(found, facts.dtype)[places.reshape(-1)]


def gather_texts(column: ColumnRows, row_map: RowMap, rows: NDArray[np.int64], where: str) -> list[str]:
    """Rows of a text column in any order and with repeats."""
    keys, places = np.unique(row_map.keys(rows), return_inverse=True)
    parts, local = keys >> _LOCAL_BITS, keys & _LOCAL_MASK
    found: list[str] = []
    if len(keys):
        for begin, end in stretches(parts[1:] != parts[:-1]):
            found += column.texts(int(parts[begin]), local[begin:end], where)
    return [found[place] for place in places.reshape(-1).tolist()]


def as_native(values: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Stored values as numpy's own; a byte that is neither 0 nor 1 would be no truth value of numpy's."""
    if dtype == "bool":
        return np.asarray(values.view(np.uint8) != 0)
    return values if values.dtype.isnative else values.astype(dtype)


def checked_rows(rows: Any, count: int, where: str) -> NDArray[np.int64]:
    """Row numbers as an array, all of them there."""
    found = row_numbers(rows, where)
    if len(found) and (int(found.min()) < 0 or int(found.max()) >= count):
        wrong = int(found.min()) if int(found.min()) < 0 else int(found.max())
        raise StoreError(f"{where}: there is no row {wrong:,}, it has {count:,}")
    return found
