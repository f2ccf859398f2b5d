"""`RamCache`: decoded images in memory, one cache for all workers and ranks of the machine, which never evicts.

    with RamCache.shared("train", sizes_bytes, parse_bytes("4GB")) as cache:
        pixels = cache.get(number)             # None: decode it, and
        cache.put(number, pixels)              # keep it

Which images have a place is decided when the cache is made, by their sizes and the limit. Epochs that take every image
equally often gain nothing from evicting, and fixed places need no lock: bytes are written first, then a mark of one
byte. A process that is killed on the way leaves no mark, and the next one writes the same bytes again.

The memory is a file without a name, which other processes find by `system/shared_memory.py`. It goes with the last.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
import struct
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.sampling.permutation import key_of, permute
from penstock._src.load.views.view_file import write_all as write_at
from penstock._src.system.files import memory_file, write_all
from penstock._src.system.shared_memory import Holder, holders_of, leave
from penstock._src.system.units import format_bytes
from penstock.errors import OutputFailed, StoreError, UsageError

_HEADER = struct.Struct("<8s32sqqq")  # magic, token, images, bytes of the file, bytes of images
_HEADER_BYTES = 4096
_MAGIC = b"PENRAM01"
_ALIGN = 64
_FILLED = b"\x01"


class RamCache:
    """Images by number, each in a place of its own or in none; a context manager. Pickled as a place, not as data."""

    def __init__(self, sizes_bytes: NDArray[np.int64], limit_bytes: int) -> None:
        """A new cache for images of these sizes that takes at most `limit_bytes`; `shared` finds one that is there."""
        self._leave: weakref.finalize[..., RamCache] | None = None
        offsets, n_bytes = _places(np.asarray(sizes_bytes, np.int64), limit_bytes)
        token = secrets.token_hex(16)
        kept_bytes = int(sizes_bytes[offsets >= 0].sum())
        fd = -1
        try:
            fd = memory_file("penstock-cache")
            os.ftruncate(fd, n_bytes)
            write_all(fd, _HEADER.pack(_MAGIC, token.encode(), len(offsets), n_bytes, kept_bytes))
            os.lseek(fd, _table_at(len(offsets)), os.SEEK_SET)
            write_all(fd, np.stack([offsets, sizes_bytes], axis=1).tobytes())
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise OutputFailed("memory", f"a cache of {format_bytes(n_bytes)} cannot be made", error) from error
        self._attach(fd)

    @classmethod
    def shared(
        cls, key: str, sizes_bytes: NDArray[np.int64], limit_bytes: int, directory: Path | None = None
    ) -> RamCache:
        """The cache of this key, sizes and limit that some process of this user holds, or a new one.

        `key` says what the images are, for example by the fingerprints of their stores.
        """
        sizes = np.ascontiguousarray(sizes_bytes, np.int64)
        name = hashlib.sha256(f"{key}|{limit_bytes}|".encode() + sizes.tobytes()).hexdigest()
        with holders_of(f"cache-{name[:40]}", directory) as held:
            cache = next((cls._of(fd) for fd, holder in held.opened() if _is_cache(fd, holder.token)), None)
            if cache is None:
                cache = cls(sizes, limit_bytes)
            own = held.add(cache._fd, cache._token)
        cache._leave = weakref.finalize(cache, leave, held.path, own)
        return cache

    @classmethod
    def _of(cls, fd: int) -> RamCache:
        cache = cls.__new__(cls)
        cache._leave = None
        cache._attach(fd)
        return cache

    def _attach(self, fd: int) -> None:
        _, token, count, n_bytes, self.limit_bytes = _HEADER.unpack(os.pread(fd, _HEADER.size, 0))
        self._fd, self._token = fd, token.decode()
        # Mapped for reading only: no stray write of one process reaches the images of all.
        self._map: mmap.mmap | None = mmap.mmap(fd, n_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        everything = np.frombuffer(self._map, np.uint8)
        self._marks = everything[_HEADER_BYTES : _HEADER_BYTES + count]
        table_at = _table_at(count)
        self._table = everything[table_at : table_at + 16 * count].view(np.int64).reshape(count, 2)
        self._bytes = everything

    # Asking

    limit_bytes: int
    """What the images take when all that have a place are there."""

    def __len__(self) -> int:
        """How many images have a number; those with a place are `n_places`."""
        return len(self._marks)

    @property
    def n_places(self) -> int:
        return int(np.count_nonzero(self._table[:, 0] >= 0))

    @property
    def n_filled(self) -> int:
        return int(np.count_nonzero(self._marks))

    @property
    def filled_bytes(self) -> int:
        return int(self._table[self._marks == 1, 1].sum())

    def get(self, number: int) -> NDArray[np.uint8] | None:
        """The bytes of an image, read-only and without a copy; None where it is not there."""
        if not self._marks[number]:
            return None
        offset, size = self._table[number].tolist()
        return self._bytes[offset : offset + size]

    def put(self, number: int, pixels: NDArray[np.uint8]) -> bool:
        """Keep an image, from any thread or process; whether it is there now."""
        offset, size = self._table[number].tolist()
        if offset < 0 or self._marks[number]:
            return bool(offset >= 0)
        if pixels.nbytes != size:
            raise UsageError(f"image {number} has {pixels.nbytes:,} bytes, its place {size:,}")
        try:
            write_at(self._fd, np.ascontiguousarray(pixels).reshape(-1).data, offset)
            write_at(self._fd, memoryview(_FILLED), _HEADER_BYTES + number)
        except OSError:  # no memory for it: images are decoded again, nothing is wrong
            return False
        return True

    # Travelling and ending

    def __getstate__(self) -> dict[str, Any]:
        return {"holder": Holder.of(self._fd, self._token)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._leave, self._fd = None, -1
        holder: Holder = state["holder"]
        fd = holder.open()
        if fd is None or not _is_cache(fd, holder.token):
            raise StoreError(
                f"the RAM cache of process {holder.pid} cannot be opened",
                hint="it lives as long as the process that made it: keep it running while workers start",
            )
        self._attach(fd)

    def close(self) -> None:
        """Let go; images that were taken stay valid, and keep the memory until they go."""
        if self._fd < 0:
            return
        if self._leave is not None:
            self._leave()
        os.close(self._fd)
        self._fd, self._map = -1, None
        self._marks = self._bytes = np.zeros(0, np.uint8)
        self._table = np.zeros((0, 2), np.int64)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)  # as an argument: when the interpreter ends, the module's names are gone before this

    def __enter__(self) -> RamCache:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def places_bytes(sizes_bytes: NDArray[np.int64], limit_bytes: int) -> int:
    """The memory that a cache of these images and this limit comes to take."""
    return _places(np.asarray(sizes_bytes, np.int64), limit_bytes)[1]


def _places(sizes_bytes: NDArray[np.int64], limit_bytes: int) -> tuple[NDArray[np.int64], int]:
    """(offset of every image, -1 for none; bytes of the file). Images are chosen evenly: every clip gains alike."""
    count = len(sizes_bytes)
    data_at = -(-(_table_at(count) + 16 * count) // _HEADER_BYTES) * _HEADER_BYTES
    order = permute(np.arange(count), count, key_of(count)) if count else np.zeros(0, np.int64)
    ends = data_at + np.cumsum(-(-sizes_bytes[order] // _ALIGN) * _ALIGN)
    n_places = int(np.searchsorted(ends, limit_bytes, side="right"))
    offsets = np.full(count, -1, np.int64)
    offsets[order[:n_places]] = np.concatenate([[data_at], ends])[:n_places]
    return offsets, int(ends[n_places - 1]) if n_places else data_at


def _table_at(count: int) -> int:
    return -(-(_HEADER_BYTES + count) // _ALIGN) * _ALIGN


def _is_cache(fd: int, token: str) -> bool:
    """Whether the memory is that cache; what it is not is closed."""
    head = os.pread(fd, _HEADER.size, 0)
    if len(head) == _HEADER.size and _HEADER.unpack(head)[:2] == (_MAGIC, token.encode()):
        return True
    os.close(fd)
    return False
