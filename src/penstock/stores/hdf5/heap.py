"""Rows of different lengths: found in the global heap of an HDF5 file, and read beside the library.

HDF5 2.0 never comes back from a heap with a run of zeros in it, as a crash of the machine leaves them; this does.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LimitExceeded, StoreCorrupt
from penstock.stores.hdf5.read import OpenFile, read_exactly

if TYPE_CHECKING:
    from penstock.stores.held import Lru

REFERENCE = np.dtype([("length", "<u4"), ("address", "<u8"), ("index", "<u4")])
"""What is stored for a row of its own length, in files with 8-byte offsets (all that h5py makes)."""

_COLLECTION = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")
_MOST_OBJECTS = 1 << 16  # an index has 16 bits
_WINDOW_BYTES = 4096  # read at a time where objects are listed: texts are short, and there are many


class Heap:
    """The objects of a file's global heap, by address and index; remembers where those of one collection lie.

    `kept` remembers those of many, 16 bytes an object: for short ones, of which a collection holds thousands.
    """

    def __init__(self, file: OpenFile, kept: Lru[NDArray[np.int64]] | None = None) -> None:
        self._file, self._kept = file, kept
        self._known: tuple[int, dict[int, tuple[int, int]]] = (-1, {})

    def read(self, address: int, index: int, length: int, longest_bytes: int) -> NDArray[np.uint8]:
        """The first `length` bytes of an object; no more than `longest_bytes` are ever asked for."""
        if length > longest_bytes:
            raise LimitExceeded(
                f"{length:,} bytes, {longest_bytes:,} were planned for", size=length, limit=longest_bytes
            )
        if not length:
            return np.empty(0, np.uint8)
        place = self._place(address, index)
        if place is None or place[1] < length:
            held = "is not there" if place is None else f"has {place[1]:,} bytes"
            raise StoreCorrupt(
                f"{self._file.path}: byte {address:,}: object {index} of the heap {held}, {length:,} are wanted"
            )
        out = np.empty(length, np.uint8)
        read_exactly(self._file.descriptor, out.data, place[0], self._file.path)
        return out

    def _place(self, address: int, index: int) -> tuple[int, int] | None:
        if self._kept is not None:
            places = self._kept.get((str(self._file.path), address), lambda: _table(self._list(address)))
            offset, length = places[index].tolist() if index < len(places) else (0, 0)
            return (offset, length) if offset else None
        known_address, objects = self._known
        if known_address != address:
            objects = self._list(address)
            self._known = (address, objects)
        return objects.get(index)

    def _list(self, address: int) -> dict[int, tuple[int, int]]:
        """Where the objects of one collection lie: offset and size by index."""
        signature, version, size = _COLLECTION.unpack(self._bytes(address, _COLLECTION.size))
        end = address + size
        if signature != b"GCOL" or version != 1 or end > self._file.size_bytes:
            raise StoreCorrupt(
                f"{self._file.path}: byte {address:,}: there is no heap of {size:,} bytes", hint="the file is damaged"
            )
        objects: dict[int, tuple[int, int]] = {}
        window, begin = b"", 0
        position = address + _COLLECTION.size
        while position + _OBJECT.size <= end and len(objects) < _MOST_OBJECTS:
            if position + _OBJECT.size > begin + len(window):
                window, begin = self._bytes(position, min(_WINDOW_BYTES, end - position)), position
            index, _, _, length = _OBJECT.unpack_from(window, position - begin)
            if index == 0:
                break  # what is left is free
            position += _OBJECT.size
            if position + length > end:
                raise StoreCorrupt(f"{self._file.path}: byte {position:,}: an object of the heap leads out of it")
            objects[index] = (position, length)
            position += -(-length // 8) * 8
        return objects

    def _bytes(self, offset: int, count: int) -> bytes:
        held = bytearray(count)
        read_exactly(self._file.descriptor, memoryview(held), offset, self._file.path)
        return bytes(held)


def _table(objects: dict[int, tuple[int, int]]) -> NDArray[np.int64]:
    """Offset and size by index; 0 where there is none."""
    found = np.zeros((max(objects, default=0) + 1, 2), np.int64)
    for index, place in objects.items():
        found[index] = place
    return found
