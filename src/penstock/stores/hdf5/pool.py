"""The files of an HDF5 store, a bounded number of them open at a time, for any thread and across forks.

Bytes are read by descriptor. The library opens a file only to list chunks, or for columns that it alone can read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import StoreCorrupt, StoreError
from penstock.profile.spans import span
from penstock.stores.hdf5.file import Hdf5File, library_lock
from penstock.stores.held import FILE_CACHE, Lru

if TYPE_CHECKING:
    import h5py

_MOST_OPEN = 128


class Handle:
    """One open file; closed when the last one who reads from it lets go."""

    def __init__(self, path: Path, stamp: tuple[int, int], allow_external: bool) -> None:
        self.path = path
        self.size_bytes = stamp[0]
        self.descriptor = -1
        self._stamp = stamp
        self._allow_external = allow_external
        self._library: Hdf5File | None = None
        try:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise StoreError(
                f"{path} cannot be read any more: {error.strerror or error}",
                hint="it was there when the store was opened; open the store again",
            ) from error

    def check(self) -> None:
        """The file is what it was when the store was opened."""
        now = os.fstat(self.descriptor)
        if (now.st_size, now.st_mtime_ns) != self._stamp:
            grown = f": {now.st_size:,} bytes, it had {self._stamp[0]:,}" if now.st_size != self._stamp[0] else ""
            raise StoreCorrupt(
                f"{self.path} was changed since the store was opened{grown}", hint="open the store again"
            )

    def library(self) -> Hdf5File:
        """The file, open for the library; for who holds the lock."""
        if self._library is None:
            self._library = Hdf5File(self.path, allow_external=self._allow_external, probed=True)
        return self._library

    def opened(self, name: str) -> h5py.Dataset:
        """A data set, through the library."""
        with library_lock():
            return self.library().opened(name)

    # What it calls comes as an argument: when the interpreter ends, the module's names are gone before this.
    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.descriptor >= 0:
            close(self.descriptor)
        if self._library is not None:
            self._library.close()


class Files:
    """The files of a store by number."""

    def __init__(self, paths: Sequence[Path], stamps: Any, allow_external: bool) -> None:
        self.paths, self.stamps = tuple(paths), stamps
        self._allow_external = allow_external
        self._closed = False
        self._open: Lru[Handle] = Lru(most_open())

    @property
    def n_open(self) -> int:
        return len(self._open)

    def handle(self, number: int) -> Handle:
        """The file, open and unchanged. Who holds the handle may read from its descriptor."""
        if self._closed:
            raise StoreError(f"{self.paths[number]}: the store is closed already")
        found = self._open.get(number, lambda: self._opened(number))
        found.check()
        return found

    def _opened(self, number: int) -> Handle:
        size, time_ns = (int(value) for value in self.stamps[number])
        with span(FILE_CACHE):
            return Handle(self.paths[number], (size, time_ns), self._allow_external)

    def close(self) -> None:
        self._closed = True
        self._open.clear()


def most_open() -> int:
    """Files that may be open at a time: a share of what this process may open."""
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(4, min(_MOST_OPEN, soft // 8)) if soft != resource.RLIM_INFINITY else _MOST_OPEN
