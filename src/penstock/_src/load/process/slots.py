"""Slots that two processes map: the engine builds batches in them, the training process hands out arrays over them."""

from __future__ import annotations

import functools
import mmap
import os
import queue
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.slots import Lease, Slot, SlotLayout
from penstock._src.system.files import memory_file


class SharedSlots:
    """The slots of a loader, as the training process has them. A slot is free once the last array over it is gone."""

    def __init__(self, layout: SlotLayout, count: int, register: Callable[[mmap.mmap], None] | None = None) -> None:
        """`register` is called once with the memory of every slot: a GPU copies from it by itself then."""
        self.layout = layout
        self.fds: list[int] = []
        self._register = register
        self._slots: list[Slot] = []
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._watches: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._closed = False
        for _ in range(count):
            self.add()

    def __len__(self) -> int:
        return len(self._slots)

    def add(self) -> int:
        """One slot more; its number."""
        number, n_bytes = len(self._slots), self.layout.n_bytes
        fd = memory_file("penstock-slot")
        try:
            os.ftruncate(fd, n_bytes)
            memory = mmap.mmap(fd, n_bytes)
            if self._register is not None:
                self._register(memory)
        except BaseException:
            os.close(fd)
            raise
        self.fds.append(fd)
        self._slots.append(Slot(number, memory, n_bytes))
        self._free.put(number)
        return number

    @property
    def is_empty(self) -> bool:
        """Whether no slot is free."""
        return self._free.empty()

    def take_free(self) -> int | None:
        """The number of a free slot; None where there is none now."""
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return None

    def give_back(self, number: int) -> None:
        """A slot that was taken and never handed out."""
        self._free.put(number)

    def lease(self, number: int) -> Lease:
        """The arrays of a slot that holds a batch now; it is free again when the last of them is gone."""
        lease = Lease(self._slots[number], self.layout)
        assert lease.root is not None
        # Called from destructors, in any thread, and none of it is Python: no Ctrl-C can come in between.
        self._watches[number] = weakref.ref(lease.root, functools.partial(self._free.put, number))
        return lease

    def memories(self) -> list[Any]:
        """The memory of every slot."""
        return [slot.memory for slot in self._slots]

    def close(self) -> None:
        """Close the descriptors; the memory goes with the last array over it."""
        fds, self.fds = self.fds, []
        for fd in fds:
            os.close(fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        for fd in getattr(self, "fds", []):
            close(fd)
