"""Pictures of an HDF5 store, row by row: by offset, out of chunks, out of the heap, or through the library.

The bytes of a row go into the scratch of the thread that reads, by one `preadv` outside any lock; pixels are a view.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from penstock.stores.hdf5.array import Hdf5Array
from penstock.stores.hdf5.chunks import Chunks
from penstock.stores.hdf5.pool import Handle
from penstock.stores.hdf5.read import picture_bytes, read_exactly
from penstock.stores.hdf5.rows import ColumnRows, RowMap, checked_rows
from penstock.stores.store import ImageSource, Picture, Scratch

HELD_BYTES = 16 << 20
"""Rows of one chunk that are unpacked together, at most (but always one)."""

_FEW_ROWS = 8  # found one by one faster than by numpy
_SMALLEST_LIMIT_BYTES = 1 << 20


class Hdf5Pictures(ImageSource):
    """The pictures of one column."""

    def __init__(self, column: ColumnRows, row_map: RowMap, where: str) -> None:
        self._column, self._map, self._where = column, row_map, where
        facts = column.facts
        self._is_encoded = facts.encoding != "raw"
        self._is_depth = facts.kind == "depth"
        raw_bytes = int(np.prod(facts.shape)) * np.dtype(facts.dtype).itemsize
        # A PNG of noise takes a little more than its pixels.
        self._longest_bytes = max(raw_bytes + raw_bytes // 64 + facts.shape[0], _SMALLEST_LIMIT_BYTES)
        self._packs = bool((column.chunk_rows > 1).any())
        self.scratch_bytes = self._needs()

    def _needs(self) -> int:
        column = self._column
        row_bytes = int(column.row_bytes.max(initial=0))
        if column.facts.ragged:
            return self._longest_bytes
        if not self._packs and not (column.chunk_bytes > 0).any():
            return row_bytes
        # Packed bytes, unpacked ones, and those in their order again; then the rows that are picked.
        chunk_bytes = int(column.chunk_bytes.max(initial=0))
        held = max(row_bytes, min(HELD_BYTES, row_bytes * int(column.chunk_rows.max(initial=1))))
        return 3 * chunk_bytes + held

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

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[Picture]:
        if len(rows) and (min(rows) < 0 or max(rows) >= self._map.rows):
            checked_rows(rows, self._map.rows, self._where)
        column = self._column
        for part, local in self._map.by_part(rows):
            handle = column.handle(part)
            offset, row_bytes = int(column.offsets[part]), int(column.row_bytes[part])
            if column.facts.ragged:
                for row in column.ragged(part, local, self._longest_bytes, self._where):
                    yield row[: picture_bytes(row.data)]
            elif offset >= 0:
                yield from self._direct(handle, [offset + row * row_bytes for row in local], row_bytes, scratch)
            else:
                chunks = column.chunks(part, handle)
                if chunks is None:
                    yield from self._by_library(column.array(part, handle), local, scratch)
                elif chunks.is_direct:
                    few = len(local) <= _FEW_ROWS
                    offsets = [chunks.row_offset(row) for row in local] if few else chunks.row_offsets(local).tolist()
                    yield from self._direct(handle, offsets, row_bytes, scratch, chunks)
                else:
                    yield from self._unpacked(handle, chunks, local, scratch)

    def _direct(
        self, handle: Handle, offsets: list[int], row_bytes: int, scratch: Scratch, chunks: Chunks | None = None
    ) -> Iterator[Picture]:
        """Rows that lie as they are: one read for each, into the same memory; -1 is a row that nobody wrote."""
        memory = scratch.take(row_bytes)
        target = memory.data
        views = [target]
        descriptor, preadv, is_encoded = handle.descriptor, os.preadv, self._is_encoded
        picture: Picture | None = None if is_encoded or self._is_depth else self._picture(memory)
        for offset in offsets:
            if offset < 0 and chunks is not None:
                memory.view(chunks.dtype)[:] = chunks.fill
            else:
                try:
                    got = preadv(descriptor, views, offset)
                except OSError:
                    got = -1  # asked again below, where it becomes an error in words
                if got != row_bytes:
                    read_exactly(descriptor, target, offset, handle.path)
            yield picture if picture is not None else self._picture(memory)

    def _picture(self, memory: NDArray[np.uint8]) -> Picture:
        """The bytes of a row as what they show."""
        if self._is_encoded:
            return memory[: picture_bytes(memory.data)]
        facts = self._column.facts
        stored = memory.view(self._column.dtype).reshape(facts.stored_shape)
        if self._is_depth:
            depth = stored.reshape(facts.shape[:2])
            return depth if depth.dtype.isnative else depth.astype(facts.dtype)
        return stored.transpose(1, 2, 0) if facts.turned else stored.reshape(facts.shape)

    def _unpacked(self, handle: Handle, chunks: Chunks, local: list[int], scratch: Scratch) -> Iterator[Picture]:
        """Rows of packed chunks: those that follow one another in one are unpacked once."""
        step = chunks.chunks[0]
        most = max(1, HELD_BYTES // max(chunks.row_bytes, 1))
        for band, some in _bands(local, step, most if not chunks.is_whole_rows else len(local)):
            inside = [row - band * step for row in some]
            if chunks.is_whole_rows:
                unpacked = chunks.unpacked(handle.descriptor, band)
                if unpacked is None:
                    unpacked = np.full(chunks.chunks, chunks.fill, chunks.dtype)
                for row in inside:
                    yield self._picture(unpacked[row : row + 1].reshape(-1).view(np.uint8))
                continue
            memory = scratch.take(len(inside) * chunks.row_bytes)
            out = memory.view(chunks.dtype).reshape(len(inside), *chunks.shape[1:])
            chunks.pick(handle.descriptor, band, inside, out)
            for one in memory.reshape(len(inside), -1):
                yield self._picture(one)

    def _by_library(self, array: Hdf5Array, local: list[int], scratch: Scratch) -> Iterator[Picture]:
        """Rows that only the library can read; those of one chunk in one call."""
        row_bytes = array.row_bytes
        most = max(1, HELD_BYTES // max(row_bytes, 1))
        for _, some in _bands(local, max(array.chunk_rows, 1), most):
            low, high = min(some), max(some) + 1
            reads = [([row], row, row + 1) for row in some] if high - low > most else [(some, low, high)]
            for rows, start, stop in reads:
                memory = scratch.take((stop - start) * row_bytes)
                array.rows(start, stop, memory.view(array.dtype).reshape(stop - start, *array.row_shape))
                for row in rows:
                    yield self._picture(memory[(row - start) * row_bytes : (row - start + 1) * row_bytes])


def _bands(local: list[int], step: int, most: int) -> Iterator[tuple[int, list[int]]]:
    """Rows in their order, cut where another chunk begins and after `most` of them."""
    begin = 0
    for end in range(1, len(local) + 1):
        if end == len(local) or end - begin >= most or local[end] // step != local[begin] // step:
            yield local[begin] // step, local[begin:end]
            begin = end
