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

from penstock.errors import StoreCorrupt
from penstock.stores.hdf5.file import Filter, library_errors, library_lock
from penstock.stores.hdf5.read import OpenFile, read_exactly
from penstock.stores.hdf5.rows import (
    HELD_BYTES,
    REFERENCE,
    LastChunk,
    LibraryRows,
    RowFile,
    RowReader,
    as_bytes,
    bands_of,
    each_at,
)
from penstock.stores.scattered import gather_bytes, stretches
from penstock.stores.store import Scratch

DEFLATE, SHUFFLE = 1, 2

_FEW_CHUNKS = 4096  # listed at once
_MOST_PEEKS = 16  # reads by the library before the chunks of a large data set are listed


class ChunkedRows(RowReader):
    """Chunks without filters, or packed with gzip and shuffle."""

    def __init__(
        self, name: str, shape: Sequence[int], chunks: Sequence[int], dtype: np.dtype[Any], filters: tuple[Filter, ...]
    ) -> None:
        self.name, self._shape, self._chunks = name, tuple(shape), tuple(chunks)
        self._dtype, self._filters = dtype, filters
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._chunk_bytes = math.prod(chunks) * dtype.itemsize
        self._grid = tuple(-(-size // step) for size, step in zip(shape, chunks, strict=True))
        self._by_band = math.prod(self._grid[1:])  # chunks that hold parts of the same rows
        self._inner = [range(0, size, part) for size, part in zip(shape[1:], chunks[1:], strict=True)]
        self._is_whole_rows = self._chunks[1:] == self._shape[1:]
        self.is_direct = self._is_whole_rows and not filters
        """Rows lie in one piece and as they are."""
        if not self.is_direct:
            self.together = chunks[0]
            self.scratch_bytes = 4 * self._chunk_bytes
        self._offsets: NDArray[np.int64] | None = None  # by number of the chunk; -1 where it was never written
        self._sizes: NDArray[np.uint32] | None = None
        self._masks: dict[int, int] = {}  # which filters were left out for a chunk
        self._fill: Any = np.zeros((), dtype)
        self._peeks = 0 if math.prod(self._grid) > _FEW_CHUNKS and dtype != REFERENCE else _MOST_PEEKS

    @property
    def index_bytes(self) -> int:
        return sum(each.nbytes for each in (self._offsets, self._sizes) if each is not None)

    def read(self, file: RowFile, start: int, stop: int, out: NDArray[Any], last: LastChunk) -> None:
        if self._offsets is None and self._peeks < _MOST_PEEKS and stop - start <= self._chunks[0]:
            self._peeks += 1
            LibraryRows(self.name, self._dtype, self._shape, self._chunks).read(file, start, stop, out, last)
            return
        offsets = self.listed(file)
        step = self._chunks[0]
        for band in range(start // step, -(-stop // step)):
            low, high = max(band * step, start), min((band + 1) * step, stop)
            target = out[low - start : high - start]
            if self.is_direct and offsets[band] >= 0:
                offset = int(offsets[band]) + (low - band * step) * self._row_bytes
                read_exactly(file.descriptor, as_bytes(target).data, offset, file.path)
            else:
                self._pick(file, band, slice(low - band * step, high - band * step), target, last)
                if high == (band + 1) * step:
                    last.held = None  # a chunk that was read to its end is not asked for again

    def gather(self, file: RowFile, rows: NDArray[np.int64], out: NDArray[Any]) -> None:
        if not self.is_direct:
            step = self._chunks[0]
            bands = rows // step
            for begin, end in stretches(bands[1:] != bands[:-1]):
                band = int(bands[begin])
                self._pick(file, band, rows[begin:end] - band * step, out[begin:end])
            return
        offsets = self._row_offsets(file, rows)
        is_written = offsets >= 0
        if is_written.all():
            gather_bytes(file.descriptor, file.path, offsets, self._row_bytes, out)
            return
        written = np.empty((int(np.count_nonzero(is_written)), *out.shape[1:]), out.dtype)
        gather_bytes(file.descriptor, file.path, offsets[is_written], self._row_bytes, written)
        out[is_written], out[~is_written] = written, self._fill

    def each(self, file: RowFile, rows: Sequence[int], scratch: Scratch) -> Iterator[NDArray[np.uint8]]:
        if self.is_direct:
            offsets = self._row_offsets(file, np.asarray(rows, np.int64)).tolist()
            fill = None if min(offsets, default=0) >= 0 else as_bytes(np.full(self._shape[1:], self._fill, self._dtype))
            yield from each_at(file, offsets, scratch.take(self._row_bytes), fill)
            return
        step = self._chunks[0]
        most = len(rows) if self._is_whole_rows else max(1, HELD_BYTES // max(self._row_bytes, 1))
        for band, some in bands_of(rows, step, most):
            inside = [row - band * step for row in some]
            if self._is_whole_rows:
                unpacked = self._unpacked(file, band)
                if unpacked is None:
                    unpacked = np.full(self._chunks, self._fill, self._dtype)
                for row in inside:
                    yield as_bytes(unpacked[row : row + 1])
                continue
            memory = scratch.take(len(inside) * self._row_bytes)
            self._pick(file, band, inside, memory.view(self._dtype).reshape(len(inside), *self._shape[1:]))
            yield from memory.reshape(len(inside), -1)

    def listed(self, file: RowFile) -> NDArray[np.int64]:
        """Where every chunk lies, listed by one walk over all of them when that is asked for first."""
        if self._offsets is None:
            with library_lock():
                if self._offsets is None:
                    self._list(file)
        assert self._offsets is not None
        return self._offsets

    def _list(self, file: RowFile) -> None:
        data = file.opened(self.name)
        if self._dtype != REFERENCE:
            with library_errors(file.path, f"{self.name}: its fill value cannot be read"):
                self._fill = data.fillvalue
        count, plain, chunk_bytes = math.prod(self._grid), not self._filters, self._chunk_bytes
        offsets = array("q", b"\xff" * 8) * count
        sizes = array("I", bytes(4)) * (0 if plain else count)
        factors = [math.prod(self._grid[i + 1 :]) for i in range(len(self._grid))]
        steps = list(zip(self._chunks, factors, strict=True))
        first, is_one = self._chunks[0], self._by_band == 1  # the usual case, and there may be millions

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
                    self._masks[number] = mask

        with library_errors(file.path, f"{self.name}: its chunks cannot be listed"):
            data.id.chunk_iter(note)
        self._sizes = None if plain else np.frombuffer(sizes, np.uint32)
        self._offsets = np.frombuffer(offsets, np.int64)  # last: who sees it reads without the lock

    def _row_offsets(self, file: RowFile, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bytes where rows lie (`is_direct`), -1 where nobody wrote them."""
        numbers, inside = np.divmod(rows, self._chunks[0])
        offsets = self.listed(file)[numbers]
        return np.where(offsets < 0, offsets, offsets + inside * self._row_bytes)

    def _pick(self, file: RowFile, band: int, inside: Any, out: NDArray[Any], last: LastChunk | None = None) -> None:
        """Some rows of the chunks that begin at row `band * chunks[0]`, by their numbers within."""
        for number, rest in enumerate(itertools.product(*self._inner), band * self._by_band):
            sizes = zip(rest, self._chunks[1:], self._shape[1:], strict=True)
            parts = [slice(at, min(at + step, size)) for at, step, size in sizes]
            within = tuple(slice(0, part.stop - part.start) for part in parts)  # a chunk may stick out of the rows
            held = None if last is None else last.held
            if held is not None and held[0] is self and held[1] == number:
                values: NDArray[Any] | None = held[2]
            else:
                values = self._unpacked(file, number)
                if last is not None and self._by_band == 1:  # else others come in between
                    last.held = None if values is None else (self, number, values)
            out[(slice(None), *parts)] = self._fill if values is None else values[(inside, *within)]

    def _unpacked(self, file: RowFile, number: int) -> NDArray[Any] | None:
        """A whole chunk as it was before its filters; None where it was never written."""
        offset = int(self.listed(file)[number])
        if offset < 0:
            return None
        size = self._chunk_bytes if self._sizes is None else int(self._sizes[number])
        if size > self._chunk_bytes + self._chunk_bytes // 8 + 1024:
            raise StoreCorrupt(f"{self._where(file, number)} claims {size:,} bytes for {self._chunk_bytes:,}")
        packed = bytearray(size)
        read_exactly(file.descriptor, memoryview(packed), offset, file.path)
        data: bytes | bytearray | NDArray[np.uint8] = packed
        for position in reversed(range(len(self._filters))):
            if self._masks.get(number, 0) & (1 << position):
                continue  # this chunk was stored without it
            if self._filters[position].code == DEFLATE:
                data = self._inflate(data, file, number)
            elif len(data) == self._chunk_bytes:
                data = _unshuffled(data, self._dtype.itemsize)
        if len(data) != self._chunk_bytes:
            raise StoreCorrupt(f"{self._where(file, number)} unpacks to {len(data):,} of {self._chunk_bytes:,} bytes")
        return np.frombuffer(data, self._dtype).reshape(self._chunks)

    def _inflate(self, data: Any, file: OpenFile, number: int) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(data, self._chunk_bytes)
            more = b"" if unpacker.eof else unpacker.decompress(unpacker.unconsumed_tail, 1)
        except zlib.error as error:
            raise StoreCorrupt(
                f"{self._where(file, number)} is damaged: {error}", hint="the file was changed after it was written"
            ) from error
        if more or not unpacker.eof:
            raise StoreCorrupt(f"{self._where(file, number)} is not {self._chunk_bytes:,} bytes when unpacked")
        return found

    def _where(self, file: OpenFile, number: int) -> str:
        corner = [int(at) * step for at, step in zip(np.unravel_index(number, self._grid), self._chunks, strict=True)]
        return f"{file.path}: {self.name}: the chunk at {tuple(corner)}"


def _unshuffled(data: Any, itemsize: int) -> NDArray[np.uint8]:
    """Undo HDF5's shuffle: first all first bytes, then all second bytes, …"""
    planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1)
