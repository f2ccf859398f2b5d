"""Batch slots: memory that batches are built in, used again when the last array of a batch is gone.

A batch is made of numpy arrays over one slot. They all keep one root array alive; when the user's code has dropped
every one of them, the slot is free again. So a batch that is kept is never overwritten, and one that is dropped costs
no new memory: fresh arrays would cost a page fault for every 4 KiB.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import queue
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_ALIGN = 256
_HUGE_BYTES = 16 << 20

Register = Callable[[NDArray[np.uint8]], None]  # prepares the memory of a slot


@dataclass(frozen=True)
class OutputPlace:
    """Where one output lies in a slot."""

    offset: int
    shape: tuple[int, ...]
    dtype: str
    n_bytes: int


@dataclass(frozen=True)
class SlotLayout:
    """The places of all outputs of a batch."""

    places: Mapping[str, OutputPlace]
    n_bytes: int


def lay_out(outputs: Mapping[str, tuple[tuple[int, ...], str]]) -> SlotLayout:
    """One place after the other, each aligned: name → (shape of the whole batch, dtype)."""
    places: dict[str, OutputPlace] = {}
    offset = 0
    for name, (shape, dtype) in outputs.items():
        n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        places[name] = OutputPlace(offset, shape, dtype, n_bytes)
        offset += -(-n_bytes // _ALIGN) * _ALIGN
    return SlotLayout(places, max(offset, _ALIGN))


class Slot:
    """Memory for one batch."""

    def __init__(self, number: int, memory: NDArray[np.uint8], n_bytes: int) -> None:
        self.number = number
        self.n_bytes = n_bytes
        self.memory = memory
        self._whole: dict[str, NDArray[Any]] = {}

    def arrays(self, layout: SlotLayout, size: int) -> dict[str, NDArray[Any]]:
        """The arrays of a batch of `size` samples that is built in it."""
        self._whole = self._whole or Lease(self, layout).arrays
        return {name: array[:size] for name, array in self._whole.items()}


class Lease:
    """A slot while a batch is built in it; afterwards the batch's arrays hold it."""

    def __init__(self, slot: Slot, layout: SlotLayout, give_back: Callable[[Slot], None] | None = None) -> None:
        self.slot, self.layout = slot, layout
        # Not an array over an array: numpy would let the batch's arrays refer to the innermost owner, and nobody could
        # tell when they are gone.
        root = np.frombuffer(slot.memory.data, np.uint8, count=slot.n_bytes)
        if give_back is not None:
            weakref.finalize(root, give_back, slot).atexit = False
        self.root: NDArray[np.uint8] | None = root
        self.arrays: dict[str, NDArray[Any]] = {
            name: root[place.offset : place.offset + place.n_bytes].view(place.dtype).reshape(place.shape)
            for name, place in layout.places.items()
        }


class Slots:
    """The slots of a loader. One is free again once the last array over the batch in it is gone."""

    def __init__(self, layout: SlotLayout, count: int, register: Register | None = None) -> None:
        """`register` is called once with the memory of every slot: a GPU copies from it by itself then."""
        self.layout = layout
        self._register = register
        self._slots: list[Slot] = []
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._watches: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        for _ in range(count):
            self.add()

    def __len__(self) -> int:
        return len(self._slots)

    def __getitem__(self, number: int) -> Slot:
        return self._slots[number]

    def add(self) -> int:
        """One slot more; its number."""
        number, memory = len(self._slots), self._memory(self.layout.n_bytes)
        if self._register is not None:
            self._register(memory)
        self._slots.append(Slot(number, memory, self.layout.n_bytes))
        self._free.put(number)
        return number

    def _memory(self, n_bytes: int) -> NDArray[np.uint8]:
        return anonymous_memory(n_bytes)

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

    def arrays(self, number: int, size: int) -> dict[str, NDArray[Any]]:
        """The arrays of a batch of `size` samples to hand out; the slot is free when the last of them is gone."""
        lease = Lease(self._slots[number], self.layout)
        assert lease.root is not None
        # Called from destructors, in any thread, and none of it is Python: no Ctrl-C can come in between.
        self._watches[number] = weakref.ref(lease.root, functools.partial(self._free.put, number))
        return {name: array[:size] for name, array in lease.arrays.items()}

    def close(self) -> None:
        """The memory goes with the last array over it."""


def anonymous_memory(n_bytes: int) -> NDArray[np.uint8]:
    """Zeroed pages from the system, given back to it as a whole; never from the heap, where they would fragment."""
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if n_bytes >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: the first pass over a slot is slower
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)
