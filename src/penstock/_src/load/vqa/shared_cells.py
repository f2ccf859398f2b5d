"""A few whole numbers that the workers of a DataLoader and their parent share, and change one at a time."""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.system.files import memory_file
from penstock.errors import StoreError


class SharedCells:
    """Numbers in memory without a name. A fork shares them, and so does a pickle while their maker lives."""

    def __init__(self, *shape: int) -> None:
        self._shape = shape
        fd = memory_file("penstock-cells")
        os.ftruncate(fd, 8 * int(np.prod(shape)))
        self._attach(fd)

    def _attach(self, fd: int) -> None:
        self._fd = fd
        values: NDArray[np.int64] = np.frombuffer(mmap.mmap(fd, 0), np.int64)
        self._values = values.reshape(self._shape)

    @contextmanager
    def locked(self) -> Iterator[NDArray[np.int64]]:
        """The numbers, for one process at a time; the kernel unlocks for one that is killed."""
        fcntl.lockf(self._fd, fcntl.LOCK_EX)
        try:
            yield self._values
        finally:
            fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def __getstate__(self) -> dict[str, Any]:
        return {"shape": self._shape, "place": f"/proc/{os.getpid()}/fd/{self._fd}"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shape, self._fd = state["shape"], -1
        try:
            self._attach(os.open(state["place"], os.O_RDWR | os.O_CLOEXEC))
        except (OSError, ValueError) as error:
            raise StoreError(
                f"what the process that made this data set shares cannot be opened: {error}",
                hint="it lives as long as that process: keep it running while workers start",
            ) from error

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "_fd", -1) >= 0:
            close(self._fd)  # as an argument: when the interpreter ends, the module's names are gone before this
