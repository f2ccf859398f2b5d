"""An array in memory without a name that other processes can open: written once, then read by all; no copy for each."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.files import memory_file
from penstock.errors import StoreError


class SharedPlace:
    """An array in a file without a name, which travels by pickle as a place, not as data."""

    shape: tuple[int, ...]
    dtype: str
    _fd: int
    _flags = os.O_RDONLY

    def _open(self, fd: int) -> None:
        self._fd = fd

    def __getstate__(self) -> dict[str, Any]:
        stat = os.fstat(self._fd)
        return {
            "shape": self.shape, "dtype": self.dtype, "pid": os.getpid(), "fd": self._fd, "inode": stat.st_ino,
            "size": stat.st_size,
        }  # fmt: skip

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.shape, self.dtype, self._fd = state["shape"], state["dtype"], -1
        fd = -1
        try:
            fd = os.open(f"/proc/{state['pid']}/fd/{state['fd']}", self._flags | os.O_CLOEXEC)
            stat = os.fstat(fd)
            if (stat.st_ino, stat.st_size) != (state["inode"], state["size"]):
                raise FileNotFoundError("it was given back")
            self._open(fd)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
            raise StoreError(
                f"what process {state['pid']} has in memory cannot be opened: {error}",
                hint="it lives as long as the process that made it: keep it running while others start",
            ) from error

    def close(self) -> None:
        """Let go; the memory goes with the last array over it."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)  # as an argument: when the interpreter ends, the module's names are gone before this


class SharedArray(SharedPlace):
    """A copy of an array in shared memory; read-only once made."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.shape, self.dtype = values.shape, values.dtype.str
        fd = memory_file("penstock-numbers")
        try:
            os.ftruncate(fd, max(values.nbytes, 1))
            with mmap.mmap(fd, max(values.nbytes, 1)) as memory:
                target = np.frombuffer(memory, values.dtype, values.size).reshape(values.shape)
                target[...] = values
                del target
            self._open(fd)
        except BaseException:
            os.close(fd)
            raise

    def _open(self, fd: int) -> None:
        # Shared memory without the right to write: a mistake of one process cannot change the numbers of another.
        memory = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        count = int(np.prod(self.shape, dtype=np.int64))
        self.values: NDArray[Any] = np.frombuffer(memory, self.dtype, count).reshape(self.shape)
        self._fd = fd
