"""Readers of rows: one class for each way in which HDF5 stores them, chosen once, when a data set is opened.

HDF5 takes one lock for every call of every thread. The library is asked where the bytes lie; they are read beside it.
A reader holds no handle: it is given the file with every call, so that any thread and any child of a fork may read.
"""

from __future__ import annotations

import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image import jpeg
from penstock._src.stores.caches import Lru
from penstock._src.stores.hdf5.file import Hdf5File, library_errors
from penstock._src.stores.scattered import gather_bytes, runs_between
from penstock._src.stores.store import Scratch
from penstock.errors import LimitExceeded, StoreCorrupt

REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])
"""What is stored for a row of its own length, in files with 8-byte offsets (all that h5py makes)."""

HELD_BYTES = 16 << 20
"""Rows that are unpacked together, at most (but always one)."""

_COLLECTION = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")
_MOST_OBJECTS = 1 << 16  # an index has 16 bits
_WINDOW_BYTES = 4096  # read at a time where objects are listed
_COLLECTIONS = 16  # whose objects are known


class LastChunk:
    """The chunk that was unpacked last, for the rows that follow; each who reads has one of his own."""

    def __init__(self) -> None:
        # Of which data set, its number there, and its values; replaced as one, never changed.
        self.held: tuple[RowReader, int, NDArray[Any]] | None = None


class Reader:
    """What is known of every reader."""

    together = 1
    """Rows that are unpacked together."""
    unpacked_bytes = 0
    """What these take; 0 where rows lie by themselves."""

    @property
    def index_bytes(self) -> int:
        """What is remembered of places, by now."""
        return 0


class RowReader(Reader, ABC):
    """Rows of one length, as they are stored."""

    @abstractmethod
    def read(self, file: Hdf5File, start: int, stop: int, out: NDArray[Any], last: LastChunk) -> None:
        """The rows [start, stop)."""

    @abstractmethod
    def gather(self, file: Hdf5File, rows: NDArray[np.int64], out: NDArray[Any], last: LastChunk) -> None:
        """Some rows, each once and rising."""

    @abstractmethod
    def iter_rows(self, file: Hdf5File, rows: Sequence[int], scratch: Scratch) -> Iterator[NDArray[np.uint8]]:
        """The bytes of some rows in any order, each valid until the next one is asked for."""


class BandReader(RowReader):
    """Rows that are had in bands: `together` rows at a time, from which some are picked."""

    def __init__(self, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
        self._dtype, self._row_shape = dtype, tuple(shape[1:])
        self._row_bytes = math.prod(self._row_shape) * dtype.itemsize

    @abstractmethod
    def pick(self, file: Hdf5File, band: int, inside: Any, out: NDArray[Any], last: LastChunk) -> None:
        """Some rows of a band, by their numbers (a slice or an array) within it."""

    def read(self, file: Hdf5File, start: int, stop: int, out: NDArray[Any], last: LastChunk) -> None:
        step = self.together
        for band in range(start // step, -(-stop // step)):
            low, high = max(band * step, start), min((band + 1) * step, stop)
            inside = slice(low - band * step, high - band * step)
            self.pick(file, band, inside, out[low - start : high - start], last)
            if high == (band + 1) * step:
                last.held = None  # what was read to its end is not asked for again

    def gather(self, file: Hdf5File, rows: NDArray[np.int64], out: NDArray[Any], last: LastChunk) -> None:
        bands = rows // self.together
        for begin, end in runs_between(bands[1:] != bands[:-1]):
            band = int(bands[begin])
            self.pick(file, band, rows[begin:end] - band * self.together, out[begin:end], last)

    def iter_rows(self, file: Hdf5File, rows: Sequence[int], scratch: Scratch) -> Iterator[NDArray[np.uint8]]:
        most = max(1, HELD_BYTES // max(self._row_bytes, 1))
        step, last, begin = self.together, LastChunk(), 0
        for end in range(1, len(rows) + 1):
            band = rows[begin] // step
            if end < len(rows) and end - begin < most and rows[end] // step == band:
                continue
            memory = scratch.take((end - begin) * self._row_bytes)
            out = memory.view(self._dtype).reshape(end - begin, *self._row_shape)
            self.pick(file, band, np.asarray(rows[begin:end], np.int64) - band * step, out, last)
            yield from memory.reshape(end - begin, -1)
            begin = end


class ContiguousRows(RowReader):
    """One run of bytes."""

    def __init__(self, offset: int, row_bytes: int) -> None:
        self._offset, self._row_bytes = offset, row_bytes

    def read(self, file: Hdf5File, start: int, stop: int, out: NDArray[Any], last: LastChunk) -> None:
        file.source.read_into(as_bytes(out).data, self._offset + start * self._row_bytes)

    def gather(self, file: Hdf5File, rows: NDArray[np.int64], out: NDArray[Any], last: LastChunk) -> None:
        gather_bytes(file.source, self._offset + rows * self._row_bytes, self._row_bytes, out)

    def iter_rows(self, file: Hdf5File, rows: Sequence[int], scratch: Scratch) -> Iterator[NDArray[np.uint8]]:
        offset, row_bytes = self._offset, self._row_bytes
        return iter_at(file, [offset + row * row_bytes for row in rows], scratch.take(row_bytes))


class LibraryRows(BandReader):
    """What the library alone can read: under its lock, the rows of one chunk in one call."""

    def __init__(self, name: str, dtype: np.dtype[Any], shape: Sequence[int], chunks: Sequence[int] | None) -> None:
        super().__init__(dtype, shape)
        self._name = name
        if chunks is not None:
            self.together, self.unpacked_bytes = chunks[0], math.prod(chunks) * dtype.itemsize

    def read(self, file: Hdf5File, start: int, stop: int, out: NDArray[Any], last: LastChunk) -> None:
        import h5py

        with library_errors(file.path, f"{self._name}: rows {start:,}…{stop - 1:,} cannot be read"):
            node = file.opened(self._name).id
            space = node.get_space()
            space.select_hyperslab((start, *(0 for _ in self._row_shape)), out.shape)
            node.read(h5py.h5s.create_simple(out.shape), space, out)

    def pick(self, file: Hdf5File, band: int, inside: Any, out: NDArray[Any], last: LastChunk) -> None:
        begin, wanted = band * self.together, inside.tolist()
        first, beyond = min(wanted), max(wanted) + 1
        if len(wanted) == 1 or (beyond - first) * self._row_bytes > HELD_BYTES:
            for place, row in enumerate(wanted):
                self.read(file, begin + row, begin + row + 1, out[place : place + 1], last)
            return
        values = np.empty((beyond - first, *self._row_shape), self._dtype)
        self.read(file, begin + first, begin + beyond, values, last)
        out[...] = values[inside - first]


class HeapRows(Reader):
    """Rows of their own lengths: a reference for each, and its bytes in the global heap of the file.

    HDF5 2.0 never comes back from a heap with a run of zeros in it, as a crash of the machine leaves them; this does.
    """

    def __init__(self, references: RowReader) -> None:
        self._references = references
        self._known: Lru[NDArray[np.int64]] = Lru(_COLLECTIONS)
        self.together = references.together

    @property
    def index_bytes(self) -> int:
        return self._references.index_bytes

    def rows(self, file: Hdf5File, rows: Iterable[int], longest_bytes: int) -> Iterator[NDArray[np.uint8]]:
        """Rows in any order; one that is longer than `longest_bytes` raises LimitExceeded."""
        reference, last = np.empty(1, REFERENCE), LastChunk()
        for row in rows:
            self._references.read(file, row, row + 1, reference, last)
            length, address, index = reference[0].item()
            if length > longest_bytes:
                text = f"row {row:,}: {length:,} bytes, {longest_bytes:,} were planned for"
                raise LimitExceeded(text, size=length, limit=longest_bytes)
            yield self._object(file, address, index, length)

    def lengths(self, file: Hdf5File, start: int, stop: int) -> NDArray[np.int64]:
        """How long rows are."""
        references = np.empty(stop - start, REFERENCE)
        if stop > start:
            self._references.read(file, start, stop, references, LastChunk())
        return references["length"].astype(np.int64)

    def _object(self, file: Hdf5File, address: int, index: int, length: int) -> NDArray[np.uint8]:
        """The first `length` bytes of an object of the heap."""
        out = np.empty(length, np.uint8)
        if length:
            offset, size = self._place(file, address, index)
            if size < length:
                held = f"has {size:,} bytes" if offset else "is not there"
                raise StoreCorrupt(
                    f"{file.path}: byte {address:,}: object {index} of the heap {held}, {length:,} are wanted"
                )
            file.source.read_into(out.data, offset)
        return out

    def _place(self, file: Hdf5File, address: int, index: int) -> tuple[int, int]:
        """Offset and size of an object; 0 where there is none."""
        places = self._known.get(address, lambda: _list_objects(file, address))
        offset, size = places[index].tolist() if index < len(places) else (0, 0)
        return offset, size


def as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return values.reshape(-1).view(np.uint8)


def iter_at(
    file: Hdf5File, offsets: Sequence[int], memory: NDArray[np.uint8], fill: NDArray[np.uint8] | None = None
) -> Iterator[NDArray[np.uint8]]:
    """Rows that lie as they are: one read for each, into the same memory; -1 is a row that was never written."""
    target = memory.data
    read_into = file.source.read_into
    # Of a remote file, all of them are asked for at once.
    ahead = file.source.prefetch([(offset, len(target)) for offset in offsets if offset >= 0])
    try:
        for offset in offsets:
            if offset < 0 and fill is not None:
                memory[:] = fill
            else:
                read_into(target, offset)
            yield memory
    finally:
        ahead.close()


def _list_objects(file: Hdf5File, address: int) -> NDArray[np.int64]:
    """Where the objects of one collection of a heap lie: offset and size by index, 0 where there is none."""
    begin = address
    read, unpack_from = file.source.read_exactly, _OBJECT.unpack_from
    window = read(begin, max(_COLLECTION.size, min(_WINDOW_BYTES, file.size_bytes - begin)))
    signature, version, size = _COLLECTION.unpack_from(window)
    end = address + size
    if signature != b"GCOL" or version != 1 or end > file.size_bytes:
        raise StoreCorrupt(
            f"{file.path}: byte {address:,}: there is no heap of {size:,} bytes", hint="the file is damaged"
        )
    objects: dict[int, tuple[int, int]] = {}
    position, beyond = address + _COLLECTION.size, begin + len(window)
    while (start := position + _OBJECT.size) <= end and len(objects) < _MOST_OBJECTS:
        if start > beyond:
            window, begin = read(position, min(_WINDOW_BYTES, end - position)), position
            beyond = begin + len(window)
        index, _, _, length = unpack_from(window, position - begin)
        if index == 0:
            break  # what is left is free
        position = start
        if position + length > end:
            raise StoreCorrupt(f"{file.path}: byte {position:,}: an object of the heap leads out of it")
        objects[index] = (position, length)
        position += -(-length // 8) * 8
    objects_at = np.zeros((max(objects, default=0) + 1, 2), np.int64)
    if objects:
        objects_at[list(objects)] = list(objects.values())
    return objects_at


def image_bytes(row: memoryview) -> int:
    """How many bytes of a padded row are its image; padding other than zeros is found by the JPEG's own markers."""
    end = jpeg.without_padding(row)  # a JPEG ends in ff d9, a PNG in the 82 of its IEND
    if bytes(row[end - 2 : end]) == b"\xff\xd9" or bytes(row[:2]) != b"\xff\xd8":
        return end
    jpeg_end = jpeg.end_of(row[:end])
    return end if jpeg_end is None else jpeg_end
