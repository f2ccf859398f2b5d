"""The chunks of one HDF5 data set: where each lies, listed once, and their rows, read and unpacked beside the library.

HDF5 walks all chunks to find one; asking for each of n costs n². One walk fills a table of 8 bytes per chunk.
"""

from __future__ import annotations

import itertools
import math
import zlib
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StoreCorrupt, StoreError
from penstock.stores.hdf5.file import Filter, library_errors
from penstock.stores.hdf5.read import read_exactly

if TYPE_CHECKING:
    import h5py

DEFLATE, SHUFFLE = 1, 2

_NOWHERE = (1 << 64) - 1
_SIZE_BITS = 24  # a chunk below 16 MiB in a file below 1 TiB: offset and size share 64 bits
_OFFSET_BITS = 64 - _SIZE_BITS


class Place(NamedTuple):
    """Where a chunk lies, and which filters were left out for it."""

    offset: int
    size: int
    mask: int


class ChunkTable:
    """Places by number of the chunk; 8 bytes each, 16 where files or chunks are very large."""

    def __init__(self, offsets: NDArray[np.uint64], sizes: NDArray[np.uint32] | None, masks: dict[int, int]) -> None:
        self._masks = masks
        self._sizes = sizes
        self._offsets = offsets
        self._packed = False
        known = offsets[offsets != _NOWHERE]
        if sizes is not None and len(known) and known.max() < 1 << _OFFSET_BITS and sizes.max() < 1 << _SIZE_BITS:
            packed = offsets | (sizes.astype(np.uint64) << np.uint64(_OFFSET_BITS))
            packed[offsets == _NOWHERE] = _NOWHERE
            self._offsets, self._sizes, self._packed = packed, None, True

    @property
    def n_bytes(self) -> int:
        return self._offsets.nbytes + (0 if self._sizes is None else self._sizes.nbytes)

    def place(self, number: int, chunk_bytes: int) -> Place | None:
        """Of one chunk; None where it was never written."""
        value = int(self._offsets[number])
        if value == _NOWHERE:
            return None
        mask = self._masks.get(number, 0)
        if self._packed:
            return Place(value & ((1 << _OFFSET_BITS) - 1), value >> _OFFSET_BITS, mask)
        return Place(value, chunk_bytes if self._sizes is None else int(self._sizes[number]), mask)

    def offsets(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of chunks without filters; -1 where one was never written."""
        return self._offsets[numbers].astype(np.int64)


class Held:
    """The chunk that was unpacked last, for the rows that follow; each reader has its own."""

    def __init__(self) -> None:
        # Of which data set, its number there, and its values; replaced as one, never changed.
        self.chunk: tuple[Chunks, int, NDArray[Any]] | None = None


class Chunks:
    """All chunks of a data set, and what they are packed with. It holds no handle: any thread may read."""

    def __init__(
        self, path: Path, name: str, shape: Sequence[int], chunks: Sequence[int], dtype: np.dtype[Any],
        filters: tuple[Filter, ...], fill: Any, ask: Callable[[tuple[int, ...]], Place | None] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.name = path, name
        self.shape, self.chunks, self.dtype = tuple(shape), tuple(chunks), dtype
        self.filters, self.fill = filters, fill
        self.row_bytes = math.prod(self.shape[1:]) * dtype.itemsize
        self.chunk_bytes = math.prod(self.chunks) * dtype.itemsize
        self.grid = tuple(-(-size // step) for size, step in zip(self.shape, self.chunks, strict=True))
        self.by_band = math.prod(self.grid[1:])  # chunks that hold parts of the same rows
        self.count = math.prod(self.grid)
        self.table: ChunkTable | None = None
        self._ask = ask

    @property
    def is_direct(self) -> bool:
        """Rows lie in one piece and as they are."""
        return not self.filters and self.chunks[1:] == self.shape[1:]

    @property
    def is_whole_rows(self) -> bool:
        return self.by_band == 1 and self.chunks[1:] == self.shape[1:]

    def list_all(self, data: h5py.Dataset) -> None:
        """Fill the table, by one walk over all chunks."""
        count = self.count
        offsets = array("Q", _NOWHERE.to_bytes(8, "little")) * count
        sizes = array("I", bytes(4)) * (count if self.filters else 0)
        masks: dict[int, int] = {}
        chunk_bytes, plain = self.chunk_bytes, not self.filters
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
                raise StoreCorrupt(f"{self.path}: {self.name}: {text}")
            if number >= count:
                return  # left behind by a data set that shrank
            offsets[number] = offset
            if not plain:
                sizes[number] = size
                if mask:
                    masks[number] = mask

        with library_errors(self.path, f"{self.name}: its chunks cannot be listed"):
            data.id.chunk_iter(note)
        found = np.frombuffer(offsets, np.uint64)
        self.table = ChunkTable(found, None if plain else np.frombuffer(sizes, np.uint32), masks)
        self._ask = None  # it leads to the library

    def row_offsets(self, rows: Any) -> NDArray[np.int64]:
        """The bytes where rows lie (`is_direct`), -1 where nobody wrote them."""
        if self.table is None:
            raise StoreError(f"{self.path}: {self.name}: its chunks are not listed")
        numbers, inside = np.divmod(np.asarray(rows, np.int64), self.chunks[0])
        offsets = self.table.offsets(numbers)
        return np.where(offsets < 0, offsets, offsets + inside * self.row_bytes)

    def row_offset(self, row: int) -> int:
        """As `row_offsets`, for one row."""
        number, inside = divmod(row, self.chunks[0])
        place = self.place(number)
        return -1 if place is None else place.offset + inside * self.row_bytes

    def read(self, descriptor: int, start: int, stop: int, out: NDArray[Any], held: Held) -> None:
        """The rows [start, stop) as they are stored."""
        step = self.chunks[0]
        inner = self._inner()
        for band in range(start // step, -(-stop // step)):
            low, high = max(band * step, start), min((band + 1) * step, stop)
            target = out[low - start : high - start]
            for number, rest in enumerate(itertools.product(*inner), band * self.by_band):
                self._from_chunk(descriptor, number, rest, low - band * step, target, held)

    def pick(self, descriptor: int, band: int, inside: Any, out: NDArray[Any]) -> None:
        """Some rows of the chunks that begin at row `band * chunks[0]`, by their numbers within."""
        for number, rest in enumerate(itertools.product(*self._inner()), band * self.by_band):
            target, width = self._cut(rest)
            unpacked = self.unpacked(descriptor, number)
            source = (inside, *width)
            out[target] = self.fill if unpacked is None else unpacked[source]

    def _inner(self) -> list[range]:
        """Where chunks begin within a row, by dimension."""
        return [range(0, size, part) for size, part in zip(self.shape[1:], self.chunks[1:], strict=True)]

    def _cut(self, rest: tuple[int, ...]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """The part of rows that a chunk covers, and the part of the chunk that does not stick out of them."""
        sizes = zip(rest, self.chunks[1:], self.shape[1:], strict=True)
        parts = [slice(at, min(at + step, size)) for at, step, size in sizes]
        return (slice(None), *parts), tuple(slice(0, part.stop - part.start) for part in parts)

    def _from_chunk(
        self, descriptor: int, number: int, rest: tuple[int, ...], low: int, out: NDArray[Any], held: Held
    ) -> None:
        """Rows from `low` on (counted within the chunk) into `out`, which is these rows at full width."""
        target, width = self._cut(rest)
        chunk = held.chunk
        if chunk is None or chunk[0] is not self or chunk[1] != number:
            found = self.place(number)
            if found is None:
                out[target] = self.fill
                return
            if self.is_direct:
                bytes_out = out.reshape(-1).view(np.uint8).data
                read_exactly(descriptor, bytes_out, found.offset + low * self.row_bytes, self.path)
                return
            chunk = (self, number, self._unpack(descriptor, number, found))
            # A chunk with more rows than were asked for is wanted again at once, unless others come in between.
            wanted_again = self.by_band == 1 and low + len(out) < self.chunks[0]
            held.chunk = chunk if wanted_again else None
        source = (slice(low, low + len(out)), *width)
        out[target] = chunk[2][source]

    def place(self, number: int) -> Place | None:
        """Where a chunk lies; None where it was never written."""
        if self.table is not None:
            return self.table.place(number, self.chunk_bytes)
        found = self._ask(self._corner(number)) if self._ask is not None else None
        if found is not None and not self.filters and found.size != self.chunk_bytes:
            raise StoreCorrupt(f"{self._where(number)} has {found.size:,} of {self.chunk_bytes:,} bytes")
        return found

    def unpacked(self, descriptor: int, number: int) -> NDArray[Any] | None:
        """A whole chunk as it was before its filters; None where it was never written."""
        found = self.place(number)
        return None if found is None else self._unpack(descriptor, number, found)

    def _unpack(self, descriptor: int, number: int, place: Place) -> NDArray[Any]:
        if place.size > self.chunk_bytes + self.chunk_bytes // 8 + 1024:
            raise StoreCorrupt(f"{self._where(number)} claims {place.size:,} bytes for {self.chunk_bytes:,}")
        packed = bytearray(place.size)
        read_exactly(descriptor, memoryview(packed), place.offset, self.path)
        data: bytes | bytearray | NDArray[np.uint8] = packed
        for position in reversed(range(len(self.filters))):
            if place.mask & (1 << position):
                continue  # this chunk was stored without it
            if self.filters[position].code == DEFLATE:
                data = self._inflate(data, number)
            elif len(data) == self.chunk_bytes:
                data = _unshuffled(data, self.dtype.itemsize)
        if len(data) != self.chunk_bytes:
            raise StoreCorrupt(f"{self._where(number)} unpacks to {len(data):,} of {self.chunk_bytes:,} bytes")
        return np.frombuffer(data, self.dtype).reshape(self.chunks)

    def _inflate(self, data: Any, number: int) -> bytes:
        unpacker = zlib.decompressobj()
        try:
            found = unpacker.decompress(data, self.chunk_bytes)
            more = b"" if unpacker.eof else unpacker.decompress(unpacker.unconsumed_tail, 1)
        except zlib.error as error:
            raise StoreCorrupt(
                f"{self._where(number)} is damaged: {error}", hint="the file was changed after it was written"
            ) from error
        if more or not unpacker.eof:
            raise StoreCorrupt(f"{self._where(number)} is not {self.chunk_bytes:,} bytes when unpacked")
        return found

    def _corner(self, number: int) -> tuple[int, ...]:
        corner: list[int] = []
        for cells, step in zip(reversed(self.grid), reversed(self.chunks), strict=True):
            corner.insert(0, number % cells * step)
            number //= cells
        return tuple(corner)

    def _where(self, number: int) -> str:
        return f"{self.path}: {self.name}: the chunk at {self._corner(number)}"


def _unshuffled(data: Any, itemsize: int) -> NDArray[np.uint8]:
    """Undo HDF5's shuffle: first all first bytes, then all second bytes, …"""
    planes = np.frombuffer(data, np.uint8).reshape(itemsize, -1)
    return np.ascontiguousarray(planes.T).reshape(-1)
