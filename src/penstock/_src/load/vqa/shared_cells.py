"""A few whole numbers that the workers of a DataLoader and their parent share, and change one at a time."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.shared_array import SharedPlace
from penstock._src.system.files import memory_file


class SharedCells(SharedPlace):
    """Numbers in memory without a name. A fork shares them, and so does a pickle while their maker lives."""

    dtype = "int64"
    _flags = os.O_RDWR

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        fd = memory_file("penstock-cells")
        os.ftruncate(fd, 8 * int(np.prod(shape)))
        self._open(fd)

    def _open(self, fd: int) -> None:
        super()._open(fd)
        values: NDArray[np.int64] = np.frombuffer(mmap.mmap(fd, 0), np.int64)
        self._values = values.reshape(self.shape)

    @contextmanager
    def locked(self) -> Iterator[NDArray[np.int64]]:
        """The numbers, for one process at a time; the kernel unlocks for one that is killed."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield self._values
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)
