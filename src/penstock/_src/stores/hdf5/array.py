"""One data set of an HDF5 file by rows: which reader gives them is chosen here, once, by how they are stored."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.hdf5.chunks import DEFLATE, SHUFFLE, PackedChunkRows, PlainChunkRows
from penstock._src.stores.hdf5.file import Hdf5File, filter_name, library_errors
from penstock._src.stores.hdf5.rows import (
    REFERENCE,
    ContiguousRows,
    HeapRows,
    LastChunk,
    LibraryRows,
    RowReader,
)
from penstock.errors import LimitExceeded, StoreCorrupt, StoreError

if TYPE_CHECKING:
    import h5py

Way = Literal["file", "chunks", "unpacked chunks", "heap", "library"]

LARGEST_IMAGE_BYTES = 64 << 20
"""Encoded: a row of its own length that claims more is damaged."""

_HEAP = "rows of different lengths: found in the heap, read beside the lock"
_SCANNED_ROWS = 1 << 16
_MOST_ROWS = 1 << 40  # a header that claims more is damaged or hostile


class Hdf5Array:
    """A data set whose first dimension counts rows."""

    def __init__(self, file: Hdf5File, name: str) -> None:
        self.file, self.name = file, name
        data = file.opened(name)
        with library_errors(file.path, f"{name} cannot be read"):
            self.shape: tuple[int, ...] = tuple(int(size) for size in data.shape or ())
            self.dtype: np.dtype[Any] = data.dtype
            self.chunks: tuple[int, ...] | None = data.chunks
            self.is_ragged = _is_ragged(data)
            # On disk, a row of its own length is a reference to the heap.
            self._stored: np.dtype[Any] = REFERENCE if self.is_ragged else self.dtype
            self.offset = -1
            """Where the first row lies, when all lie in one piece."""
            self.stored_bytes = 0
            """On disk; of ragged rows, the references alone."""
            self.reader, self.way, self.why = self._choose(data)
        if not self.shape:
            raise StoreError(f"{file.path}: {name} is a single value, it has no rows")
        if self.count > _MOST_ROWS:
            raise LimitExceeded(f"{file.path}: {name} claims {self.count:,} rows", size=self.count, limit=_MOST_ROWS)

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

    def rows(self, start: int, stop: int) -> NDArray[Any]:
        """The rows [start, stop), which have one length."""
        out = np.empty((stop - start, *self.row_shape), self.dtype)
        if isinstance(self.reader, RowReader) and out.size:
            self.reader.read(self.file, start, stop, out, LastChunk())
        return out

    def encoded(self, start: int, stop: int, longest_bytes: int) -> Iterator[bytes]:
        """The rows [start, stop) as bytes, whether they have lengths of their own or not."""
        if isinstance(self.reader, HeapRows):
            for row in self.reader.rows(self.file, range(start, stop), longest_bytes):
                yield row.tobytes()
        else:
            for number in range(start, stop):
                yield self.rows(number, number + 1).tobytes()

    def lengths(self) -> tuple[int, int]:
        """Of rows with lengths of their own: the longest and all together, without those that no image has."""
        longest, total = 1, 0
        if isinstance(self.reader, HeapRows):
            for start in range(0, self.count, _SCANNED_ROWS):
                lengths = self.reader.lengths(self.file, start, min(start + _SCANNED_ROWS, self.count))
                lengths = lengths[lengths <= LARGEST_IMAGE_BYTES]
                longest, total = max(longest, int(lengths.max(initial=0))), total + int(lengths.sum())
        return longest, total

    @property
    def _where(self) -> str:
        return f"{self.file.path}: {self.name}"

    @property
    def is_readable(self) -> bool:
        """The library's own way is for rows of one length."""
        return not self.is_ragged or self.way != "library"

    def _choose(self, data: h5py.Dataset) -> tuple[RowReader | HeapRows, Way, str]:
        """The reader of the rows, and why it is this one."""
        filters = self.file.filters(data) if self.chunks is not None else ()
        plain_bytes = math.prod(self.shape) * self._stored.itemsize
        self.stored_bytes = int(data.id.get_storage_size()) if filters else plain_bytes
        reason = self._library_reason(data, filters)
        if reason is not None:
            return LibraryRows(self.name, self._stored, self.shape, self.chunks), "library", reason
        if self.chunks is not None:
            rows_reader, way, why = self._in_chunks(self.chunks, filters)
        else:
            rows_reader, way, why = self._contiguous(data), "file", "contiguous: one run of bytes, read where it lies"
        return (HeapRows(rows_reader), "heap", _HEAP) if self.is_ragged else (rows_reader, way, why)

    def _in_chunks(self, chunks: tuple[int, ...], filters: tuple[int, ...]) -> tuple[RowReader, Way, str]:
        text = f"chunks of {'×'.join(str(size) for size in chunks)}"
        if not filters and chunks[1:] == self.row_shape:
            rows = PlainChunkRows(self.name, self.shape, chunks, self._stored)
            return rows, "chunks", f"{text}, unfiltered: rows read where they lie"
        names = " + ".join(map(filter_name, filters)) or "unfiltered, but each holds a part of a row"
        packed = PackedChunkRows(self.name, self.shape, chunks, self._stored, filters)
        return packed, "unpacked chunks", f"{text}, {names}: read and unpacked beside the lock"

    def _contiguous(self, data: h5py.Dataset) -> ContiguousRows:
        offset, stored = int(data.id.get_offset()), int(data.id.get_storage_size())
        needed = math.prod(self.shape) * self._stored.itemsize
        if stored < needed or offset < 0 or offset + needed > self.file.size_bytes:
            raise StoreCorrupt(
                f"{self._where}: {needed:,} bytes at byte {offset:,} lie beyond the end of the file "
                f"({self.file.size_bytes:,} bytes)",
                hint="the file is cut or damaged",
            )
        self.offset = offset
        return ContiguousRows(offset, self.row_bytes)

    def _library_reason(self, data: h5py.Dataset, filters: tuple[int, ...]) -> str | None:
        """Why the library alone can read the rows; None where it need not."""
        import h5py

        if self.is_ragged and (len(self.shape) != 1 or not _has_references(data)):
            return "in a layout of their own"
        if not self.file.is_local(data):
            return "its bytes lie in another file"
        if self.file.has_user_block:
            return "the file has a user block"
        dtype = self.dtype
        if not self.is_ragged and (not self.shape or dtype.kind not in "biufSV" or dtype.fields or dtype.subdtype):
            return f"elements of {dtype}"
        if dtype.kind in "biuf" and h5py.h5t.py_create(dtype, logical=True) != data.id.get_type():
            return "numbers in a layout of their own"
        if filters not in ((), (DEFLATE,), (SHUFFLE,), (SHUFFLE, DEFLATE)):
            return f"packed with {' + '.join(map(filter_name, filters))}"
        if self.chunks is not None:
            return None if hasattr(data.id, "chunk_iter") else "this build of HDF5 cannot list chunks"
        if data.id.get_create_plist().get_layout() == h5py.h5d.COMPACT:
            return "compact: it lies in the header"
        if data.id.get_offset() is None:
            return "nothing was ever written: all rows are the fill value"
        return None


def _has_references(data: h5py.Dataset) -> bool:
    """Whether a row is stored as a `REFERENCE`: so it is where addresses have 8 bytes."""
    import h5py

    if h5py.check_string_dtype(data.dtype) is None:
        return bool(data.id.get_type().get_size() == REFERENCE.itemsize)
    return bool(h5py.h5i.get_file_id(data.id).get_create_plist().get_sizes()[0] == 8)  # of a string: of its pointer


def _is_ragged(data: h5py.Dataset) -> bool:
    import h5py

    string_type = h5py.check_string_dtype(data.dtype)
    if string_type is not None:
        return string_type.length is None
    base = h5py.check_vlen_dtype(data.dtype)
    return base is not None and np.dtype(base).itemsize == 1
