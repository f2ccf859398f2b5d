"""Slots that two processes map: the engine builds batches in them, the training process hands out arrays over them."""

from __future__ import annotations

import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.slots import Register, SlotLayout, Slots
from penstock._src.system.files import memory_file
from penstock._src.system.mapped_memory import make_present, map_shared


class SharedSlots(Slots):
    """The slots of a loader, as the training process has them; an engine process maps them by their descriptors."""

    def __init__(self, layout: SlotLayout, count: int, register: Register | None = None) -> None:
        self.fds: list[int] = []
        super().__init__(layout, count, register)

    def _memory(self, n_bytes: int) -> NDArray[np.uint8]:
        fd = memory_file("penstock-slot")
        try:
            os.ftruncate(fd, n_bytes)
            memory = slot_memory(fd, n_bytes)
            make_present(memory)
        except BaseException:
            os.close(fd)
            raise
        self.fds.append(fd)
        return memory

    def close(self) -> None:
        """Close the descriptors; the memory goes with the last array over it."""
        fds, self.fds = self.fds, []
        for fd in fds:
            os.close(fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for fd in getattr(self, "fds", []):
            close(fd)


def slot_memory(fd: int, n_bytes: int) -> NDArray[np.uint8]:
    """The memory of a slot in this process: of huge pages, where the process that made it got some."""
    return map_shared(fd, n_bytes)[1]
