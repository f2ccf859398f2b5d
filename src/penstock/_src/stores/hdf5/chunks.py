"""Rows in chunks: where each chunk lies is listed once, then they are read and unpacked beside the library.

HDF5 walks all chunks to find one; asking for each of n costs n². One walk fills a table of 8 bytes per chunk, 12 where
chunks are packed and so have sizes of their own.
"""

from __future__ import annotations

import itertools
import math
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.hdf5.file import Hdf5File, library_errors, library_lock
from penstock._src.stores.hdf5.rows import REFERENCE, BandReader, LastChunk, RowReader, as_bytes, iter_at
from penstock._src.stores.scattered import gather_bytes
from penstock._src.stores.store import Scratch
from penstock.errors import LimitExceeded, StoreCorrupt

DEFLATE, SHUFFLE = 1, 2

_MOST_CHUNKS = 1 << 27  # their table takes a GiB; a header that claims more is damaged or hostile


class ChunkTable:
    """Where each chunk of a data set lies."""

    def __init__(
        self, name: str, shape: Sequence[int], chunks: Sequence[int], dtype: np.dtype[Any], plain: bool
    ) -> None:
        self.name, self.chunks, self._dtype, self._plain = name, tuple(chunks), dtype, plain
        self.chunk_bytes = math.prod(chunks) * dtype.itemsize
        self.grid = tuple(-(-size // step) for size, step in zip(shape, chunks, strict=True))
        self.by_band = math.prod(self.grid[1:])  # chunks that hold parts of the same rows
        self.sizes: NDArray[np.uint32] | None = None
        self.masks: dict[int, int] = {}  # which filters were left out for a chunk
        self.fill: Any = np.zeros((), dtype)
        self._offsets: NDArray[np.int64] | None = None

    @property
    def n_bytes(self) -> int:
        return sum(each.nbytes for each in (self._offsets, self.sizes) if each is not None)

    def offsets(self, file: Hdf5File) -> NDArray[np.int64]:
        """By number of the chunk, -1 where one was never written: listed by one walk when they are asked for first."""
        if self._offsets is None:
            with library_lock():
                if self._offsets is None:
                    self._list(file)
        assert self._offsets is not None
        return self._offsets

    def blank(self, row_bytes: int) -> NDArray[np.uint8]:
        """A row that was never written."""
        return as_bytes(np.full(row_bytes // self._dtype.itemsize, self.fill, self._dtype))

    def _list(self, file: Hdf5File) -> None:
        data = file.opened(self.name)
        if self._dtype != REFERENCE:
            with library_errors(file.path, f"{self.name}: its fill value cannot be read"):
                self.fill = data.fillvalue
        count, plain, chunk_bytes = math.prod(self.grid), self._plain, self.chunk_bytes
        if count > _MOST_CHUNKS:
            raise LimitExceeded(f"{file.path}: {self.name} claims {count:,} chunks", size=count, limit=_MOST_CHUNKS)
        offsets = array("q", b"\xff" * 8) * count
        sizes = array("I", bytes(4)) * (0 if plain else count)
        factors = [math.prod(self.grid[i + 1 :]) for i in range(len(self.grid))]
        steps = list(zip(self.chunks, factors, strict=True))
        first, is_one = self.chunks[0], self.by_band == 1  # the usual case, and there may be millions

        def note(info: Any) -> None:
            corner, mask, offset, size = info
            if is_one:
                number = corner[0] // first
            else:
                number = sum(at // step * factor for at, (step, factor) in zip(corner, steps, strict=True))
            if plain and size != chunk_bytes:
                text = f"the chunk at {corner} has {size:,} of {chunk_bytes:,} bytes"
                raise StoreCorrupt(f"{file.path}: {self.name}: {text}")
            if number >= count:
                return  # left behind by a data set that shrank
            offsets[number] = offset
            if not plain:
                sizes[number] = size
                if mask:
                    self.masks[number] = mask

        with library_errors(file.path, f"{self.name}: its chunks cannot be listed"):
            data.id.chunk_iter(note)
        self.sizes = None if plain else np.frombuffer(sizes, np.uint32)
        self._offsets = np.frombuffer(offsets, np.int64)  # last: who sees it reads without the lock


class PlainChunkRows(RowReader):
    """Chunks of whole rows without filters: rows are read where they lie."""

    def __init__(self, name: str, shape: Sequence[int], chunks: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._table = ChunkTable(name, shape, chunks, dtype, plain=True)
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize

    @property
    def index_bytes(self) -> int:
        return self._table.n_bytes

    def read(self, file: Hdf5File, start: int, stop: int, out: NDArray[Any], last: LastChunk) -> None:
        offsets, step = self._table.offsets(file), self._table.chunks[0]
        for chunk in range(start // step, -(-stop // step)):
            low, high = max(chunk * step, start), min((chunk + 1) * step, stop)
            target = out[low - start : high - start]
            offset = int(offsets[chunk])
            if offset < 0:
                target[...] = self._table.fill
                continue
            offset += (low - chunk * step) * self._row_bytes
            file.source.read_into(as_bytes(target).data, offset)

    def gather(self, file: Hdf5File, rows: NDArray[np.int64], out: NDArray[Any], last: LastChunk) -> None:
        offsets = self._row_offsets(file, rows)
        is_written = offsets >= 0
        if is_written.all():
            gather_bytes(file.source, offsets, self._row_bytes, out)
            return
        written = np.empty((int(np.count_nonzero(is_written)), *out.shape[1:]), out.dtype)
        gather_bytes(file.source, offsets[is_written], self._row_bytes, written)
        out[is_written], out[~is_written] = written, self._table.fill

    def iter_rows(self, file: Hdf5File, rows: Sequence[int], scratch: Scratch) -> Iterator[NDArray[np.uint8]]:
        offsets = self._row_offsets(file, np.asarray(rows, np.int64)).tolist()
        fill = None if min(offsets, default=0) >= 0 else self._table.blank(self._row_bytes)
        return iter_at(file, offsets, scratch.take(self._row_bytes), fill)

    def _row_offsets(self, file: Hdf5File, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The byte offsets of rows, -1 where they were never written."""
        numbers, inside = np.divmod(rows, self._table.chunks[0])
        offsets = self._table.offsets(file)[numbers]
        return np.where(offsets < 0, offsets, offsets + inside * self._row_bytes)


class PackedChunkRows(BandReader):
    """Chunks that are packed with gzip and shuffle, or that hold parts of rows: read and unpacked."""

    def __init__(
        self, name: str, shape: Sequence[int], chunks: Sequence[int], dtype: np.dtype[Any], filters: tuple[int, ...]
    ) -> None:
        super().__init__(dtype, shape)
        self._table = ChunkTable(name, shape, chunks, dtype, plain=not filters)
        self._filters, self.together, self.unpacked_bytes = filters, chunks[0], self._table.chunk_bytes
        self._inner = [range(0, size, part) for size, part in zip(shape[1:], chunks[1:], strict=True)]

    @property
    def index_bytes(self) -> int:
        return self._table.n_bytes

    def iter_rows(self, file: Hdf5File, rows: Sequence[int], scratch: Scratch) -> Iterator[NDArray[np.uint8]]:
        if self._table.chunks[1:] != self._row_shape:
            yield from super().iter_rows(file, rows, scratch)
            return
        held, step = -1, self.together
        for row in rows:  # whole rows: they are given where they were unpacked
            band = row // step
            if band != held:
                held, values = band, self._unpacked(file, band)
                if values is None:
                    values = np.full(self._table.chunks, self._table.fill, self._dtype)
                unpacked = as_bytes(values).reshape(step, -1)
            yield unpacked[row - band * step]

    def pick(self, file: Hdf5File, band: int, inside: Any, out: NDArray[Any], last: LastChunk) -> None:
        for number, rest in enumerate(itertools.product(*self._inner), band * self._table.by_band):
            sizes = zip(rest, self._table.chunks[1:], self._row_shape, strict=True)
            parts = [slice(at, min(at + step, size)) for at, step, size in sizes]
            target, source = (slice(None), *parts), (inside, *(slice(0, part.stop - part.start) for part in parts))
            held = last.held  # another thread may replace it
            if held is not None and held[0] is self and held[1] == number:
                values: NDArray[Any] | None = held[2]
            else:
                last.held = None
                values = self._unpacked(file, number)
                if values is not None and self._table.by_band == 1:  # else others come in between
                    last.held = (self, number, values)
            out[target] = self._table.fill if values is None else values[source]

    def _unpacked(self, file: Hdf5File, number: int) -> NDArray[Any] | None:
        """A whole chunk as it was before its filters; None where it was never written."""
        table = self._table
        offset, chunk_bytes = int(table.offsets(file)[number]), table.chunk_bytes
        if offset < 0:
            return None
        size = chunk_bytes if table.sizes is None else int(table.sizes[number])
        if size > chunk_bytes + chunk_bytes // 8 + 1024:
            raise StoreCorrupt(f"{self._where(file, number)} claims {size:,} bytes for {chunk_bytes:,}")
        packed = bytearray(size)
        file.source.read_into(memoryview(packed), offset)
        data: bytes | bytearray | NDArray[np.uint8] = packed
        for position in reversed(range(len(self._filters))):
            if table.masks.get(number, 0) & (1 << position):
                continue  # this chunk was stored without it
            if self._filters[position] == DEFLATE:
                data = self._inflate(data, file, number)
            elif len(data) == chunk_bytes:
                data = _unshuffled(data, self._dtype.itemsize)
        if len(data) != chunk_bytes:
            raise StoreCorrupt(f"{self._where(file, number)} unpacks to {len(data):,} of {chunk_bytes:,} bytes")
        return np.frombuffer(data, self._dtype).reshape(table.chunks)

    def _inflate(self, data: Any, file: Hdf5File, number: int) -> bytes:
        unpacker, chunk_bytes = zlib.decompressobj(), self._table.chunk_bytes
        try:
            unpacked = unpacker.decompress(data, chunk_bytes)
            more = b"" if unpacker.eof else unpacker.decompress(unpacker.unconsumed_tail, 1)
        except zlib.error as error:
            raise StoreCorrupt(
                f"{self._where(file, number)} is damaged: {error}", hint="the file was changed after it was written"
            ) from error
        if more or not unpacker.eof:
            raise StoreCorrupt(f"{self._where(file, number)} is not {chunk_bytes:,} bytes when unpacked")
        return unpacked

    def _where(self, file: Hdf5File, number: int) -> str:
        at = zip(np.unravel_index(number, self._table.grid), self._table.chunks, strict=True)
        return f"{file.path}: {self._table.name}: the chunk at {tuple(int(cell) * step for cell, step in at)}"


def _unshuffled(data: Any, itemsize: int) -> NDArray[np.uint8]:
    """Undo HDF5's shuffle: first all first bytes, then all second bytes, …"""
    planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1)
