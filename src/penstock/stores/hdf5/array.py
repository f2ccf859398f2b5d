"""One data set of an HDF5 file by rows, in bounded memory, by the shortest way that its storage allows.

HDF5 takes one lock for every call of every thread. The library is asked where the bytes lie; they are read beside it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LimitExceeded, StoreCorrupt, StoreError
from penstock.stores.hdf5.chunks import DEFLATE, SHUFFLE, Chunks, Held, Place
from penstock.stores.hdf5.file import Filter, Hdf5File, library_errors
from penstock.stores.hdf5.heap import REFERENCE, Heap
from penstock.stores.hdf5.read import read_exactly

if TYPE_CHECKING:
    import h5py

Way = Literal["file", "chunks", "unpacked chunks", "heap", "library"]

LARGEST_IMAGE_BYTES = 64 << 20
"""Encoded: a row of its own length that claims more is damaged."""

_SCANNED_ROWS = 1 << 16
_FEW_CHUNKS = 4096  # listed at once
_MOST_ASKED = 16  # single questions before all chunks are listed
_MOST_ROWS = 1 << 40  # a header that claims more is damaged or hostile


@dataclass(frozen=True)
class PathTaken:
    """How rows are read, and why so."""

    way: Way
    why: str

    def __str__(self) -> str:
        return f"{self.way}: {self.why}"


class Hdf5Array:
    """A data set whose first dimension counts rows; `rows` gives a run of them.

    `texts` takes strings of their own lengths as ragged rows, too.
    """

    def __init__(self, file: Hdf5File, name: str, *, texts: bool = False) -> None:
        self.file, self.name = file, name
        data = file.dataset(name)
        with library_errors(file.path, f"{name} cannot be read"):
            self.shape: tuple[int, ...] = tuple(int(size) for size in data.shape or ())
            self.dtype: np.dtype[Any] = data.dtype
            self.chunks: tuple[int, ...] | None = data.chunks
            self.is_ragged = _is_ragged(data, texts)
            # On disk, a row of its own length is a reference to the heap.
            self._stored: np.dtype[Any] = REFERENCE if self.is_ragged else self.dtype
            filters = file.filters(data)
            self._way, self._offset = self._choose(data, filters)
        self._filters = filters
        self._data: h5py.Dataset = data
        self._owner = os.getpid()
        self._heap = Heap(file)
        self._held = Held()
        self._chunks: Chunks | None = None
        self._asked = 0
        if not self.shape:
            raise StoreError(f"{file.path}: {name} is a single value, it has no rows")
        if self.count > _MOST_ROWS:
            raise LimitExceeded(f"{file.path}: {name} claims {self.count:,} rows", size=self.count, limit=_MOST_ROWS)

    def __repr__(self) -> str:
        return f"Hdf5Array({self.name!r}, {self.dtype} {self.shape}, {self.path_taken.way})"

    @property
    def path_taken(self) -> PathTaken:
        if self.is_ragged and self._way.way != "library":
            return PathTaken("heap", "rows of different lengths: found in the heap, read beside the lock")
        return self._way

    @property
    def count(self) -> int:
        """How many rows there are."""
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def row_bytes(self) -> int:
        """One row in memory; of ragged rows, the reference alone."""
        return math.prod(self.row_shape) * self._stored.itemsize

    @property
    def is_in_chunks(self) -> bool:
        """Whether `chunked` gives rows as they are stored."""
        return self._way.way in ("chunks", "unpacked chunks")

    @property
    def offset(self) -> int:
        """Where the first row lies, when all lie in one piece; else -1."""
        return self._offset if self._way.way == "file" else -1

    @property
    def chunk_rows(self) -> int:
        """Rows that are best read together: 1 where rows lie by themselves."""
        return self.chunks[0] if self.chunks and self._way.way != "chunks" else 1

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self.chunks) * self._stored.itemsize if self.chunks else 0

    @property
    def scratch_bytes(self) -> int:
        """What a read holds besides the rows themselves."""
        copies = {"file": 0, "chunks": 0, "unpacked chunks": 4, "library": 2}[self._way.way]
        return copies * self.chunk_bytes

    def rows(self, start: int, stop: int, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """The rows [start, stop), in `out` where one is given (its shape and dtype are the rows')."""
        if not 0 <= start <= stop <= self.count:
            raise StoreError(f"{self._where}: rows {start:,}…{stop:,} of {self.count:,}")
        if self.is_ragged:
            raise StoreError(f"{self._where}: its rows have different lengths")
        shape = (stop - start, *self.row_shape)
        if out is None:
            out = np.empty(shape, self.dtype)
        elif out.shape != shape or out.dtype != self.dtype or not out.flags.c_contiguous:
            raise StoreError(f"{self._where}: rows of {self.dtype} {shape} do not fit into {out.dtype} {out.shape}")
        self._read(start, stop, out)
        if self.dtype.kind == "b" and self._way.way != "library":
            out[...] = out.view(np.uint8) != 0  # a byte that is neither 0 nor 1 would be no truth value of numpy's
        return out

    def ragged(self, start: int, stop: int, longest_bytes: int) -> Iterator[NDArray[np.uint8]]:
        """Rows of bytes that each have their own length, one after the other."""
        if not self.is_ragged or not 0 <= start <= stop <= self.count:
            raise StoreError(f"{self._where}: rows {start:,}…{stop:,} of {self.count:,} by their own lengths")
        if self._way.way == "library":
            yield from self._ragged_by_library(start, stop, longest_bytes)
            return
        references = np.empty(stop - start, REFERENCE)
        self._read(start, stop, references)
        for row, reference in enumerate(references, start):
            place = int(reference["address"]), int(reference["index"]), int(reference["length"])
            try:
                yield self._heap.read(*place, longest_bytes)
            except LimitExceeded as error:
                raise LimitExceeded(
                    f"{self._where}: row {row:,}: {error.message}", size=error.size, limit=error.limit
                ) from None

    def lengths(self, start: int, stop: int) -> NDArray[np.int64]:
        """How long rows of their own length are, without reading them."""
        if self._way.way == "library":
            return np.array([len(row) for row in self._ragged_by_library(start, stop, self.file.size_bytes)], np.int64)
        references = np.empty(stop - start, REFERENCE)
        self._read(start, stop, references)
        return references["length"].astype(np.int64)

    def longest_bytes(self, most_bytes: int) -> int:
        """The longest row; of rows with their own lengths without those that claim more than `most_bytes`."""
        if not self.is_ragged:
            return self.row_bytes
        longest = 1
        for start in range(0, self.count, _SCANNED_ROWS):
            lengths = self.lengths(start, min(start + _SCANNED_ROWS, self.count))
            longest = max(longest, int(lengths[lengths <= most_bytes].max(initial=0)))
        return longest

    def _ragged_by_library(self, start: int, stop: int, longest_bytes: int) -> Iterator[NDArray[np.uint8]]:
        for row in range(start, stop):
            with library_errors(self.file.path, f"{self.name}: row {row:,} cannot be read"):
                value = self._dataset()[row]
            found = np.frombuffer(value if isinstance(value, bytes) else np.ascontiguousarray(value), np.uint8)
            if found.nbytes > longest_bytes:
                text = f"{self._where}: row {row:,}: {found.nbytes:,} bytes, {longest_bytes:,} were planned for"
                raise LimitExceeded(text, size=found.nbytes, limit=longest_bytes)
            yield found

    def _read(self, start: int, stop: int, out: NDArray[Any]) -> None:
        """The rows as they are stored."""
        if stop == start or not out.size:
            return
        if self._way.way == "file":
            self._pread(out, self._offset + start * self.row_bytes)
        elif self._way.way == "library":
            self._library(start, stop, out)
        else:
            self._chunked(start, stop, out)

    @property
    def _where(self) -> str:
        return f"{self.file.path}: {self.name}"

    def _dataset(self) -> h5py.Dataset:
        if self._owner != os.getpid():  # a child of a fork opens everything for itself
            self._data = self.file.dataset(self.name)
            self._owner = os.getpid()
        return self._data

    def _choose(self, data: h5py.Dataset, filters: tuple[Filter, ...]) -> tuple[PathTaken, int]:
        """The way to the bytes, and the offset of the first where all lie in one piece."""
        reason = self._library_reason(data, filters)
        if reason is not None:
            return PathTaken("library", reason), 0
        if data.chunks is None:
            offset = int(data.id.get_offset())
            needed = math.prod(data.shape) * self._stored.itemsize
            stored = int(data.id.get_storage_size())
            if stored < needed or offset < 0 or offset + needed > self.file.size_bytes:
                raise StoreCorrupt(
                    f"{self._where}: {needed:,} bytes at byte {offset:,} lie beyond the end of the file "
                    f"({self.file.size_bytes:,} bytes)",
                    hint="the file is cut or damaged",
                )
            return PathTaken("file", "contiguous: one run of bytes, read where it lies"), offset
        shape = "×".join(str(size) for size in data.chunks)
        if filters or tuple(data.chunks[1:]) != tuple(data.shape[1:]):
            names = " + ".join(each.name for each in filters) or "unfiltered, but each holds a part of a row"
            return PathTaken("unpacked chunks", f"chunks of {shape}, {names}: read and unpacked beside the lock"), 0
        return PathTaken("chunks", f"chunks of {shape}, unfiltered: rows read where they lie"), 0

    def _library_reason(self, data: h5py.Dataset, filters: tuple[Filter, ...]) -> str | None:
        import h5py

        if self.is_ragged and (len(data.shape) != 1 or not _has_references(data)):
            return "rows of different lengths, in a layout of their own"
        if not self.file.is_local(data) or data.is_virtual:
            return "its bytes lie in another file"
        if self.file.has_user_block:
            return "the file has a user block"
        if not self.is_ragged and (
            not data.shape or data.dtype.kind not in "biufSV" or data.dtype.fields or data.dtype.subdtype
        ):
            return f"elements of {data.dtype}"
        if data.dtype.kind in "biuf" and h5py.h5t.py_create(data.dtype, logical=True) != data.id.get_type():
            return "numbers in a layout of their own"
        codes = [each.code for each in filters]
        if codes not in ([], [DEFLATE], [SHUFFLE], [SHUFFLE, DEFLATE]):
            return f"packed with {' + '.join(each.name for each in filters)}"
        if data.chunks is not None and not hasattr(data.id, "chunk_iter"):
            return "this build of HDF5 cannot list chunks"
        layout = data.id.get_create_plist().get_layout()
        if layout == h5py.h5d.COMPACT:
            return "compact: it lies in the header"
        if layout == h5py.h5d.CONTIGUOUS and data.id.get_offset() is None:
            return "nothing was ever written: all rows are the fill value"
        return None

    def _library(self, start: int, stop: int, out: NDArray[Any]) -> None:
        with library_errors(self.file.path, f"{self.name}: rows {start:,}…{stop - 1:,} cannot be read"):
            self._dataset().read_direct(out, np.s_[start:stop])

    def _pread(self, out: NDArray[Any], offset: int) -> None:
        read_exactly(self.file.descriptor, out.reshape(-1).view(np.uint8).data, offset, self.file.path)

    def _chunked(self, start: int, stop: int, out: NDArray[Any]) -> None:
        if self._chunks is None:
            self._chunks = self._made_chunks()
        chunks = self._chunks
        if chunks.table is None and (chunks.count <= _FEW_CHUNKS or self._asked >= _MOST_ASKED):
            chunks.list_all(self._dataset())
        chunks.read(self.file.descriptor, start, stop, out, self._held)

    def chunked(self) -> Chunks:
        """The chunks of the data set, all places known: to be read without this file's library."""
        found = self._made_chunks()
        found.list_all(self._dataset())
        return found

    def _made_chunks(self) -> Chunks:
        with library_errors(self.file.path, f"{self.name}: its fill value cannot be read"):
            fill = np.zeros((), REFERENCE) if self.is_ragged else self._dataset().fillvalue
        chunks = self.chunks or self.shape
        return Chunks(
            self.file.path, self.name, self.shape, chunks, self._stored, self._filters, fill, ask=self._ask_for_chunk
        )

    def _ask_for_chunk(self, corner: tuple[int, ...]) -> Place | None:
        """Where one chunk lies: the library walks over all that come before it."""
        self._asked += 1
        with library_errors(self.file.path, f"{self.name}: the chunk at {corner} cannot be found"):
            info = self._dataset().id.get_chunk_info_by_coord(corner)
        return None if info.byte_offset is None else Place(int(info.byte_offset), int(info.size), int(info.filter_mask))


def _has_references(data: h5py.Dataset) -> bool:
    """Whether a row is stored as a `REFERENCE`: so it is where addresses have 8 bytes."""
    import h5py

    if h5py.check_string_dtype(data.dtype) is None:
        return bool(data.id.get_type().get_size() == REFERENCE.itemsize)
    return bool(h5py.h5i.get_file_id(data.id).get_create_plist().get_sizes()[0] == 8)  # of a string: of its pointer


def _is_ragged(data: h5py.Dataset, texts: bool) -> bool:
    import h5py

    if texts and (found := h5py.check_string_dtype(data.dtype)) is not None:
        return found.length is None
    base = h5py.check_vlen_dtype(data.dtype)
    return base is not None and base is not str and base is not bytes and np.dtype(base).itemsize == 1
