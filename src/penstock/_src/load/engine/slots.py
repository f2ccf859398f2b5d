"""Batch slots: a ring of memory that batches are built in, given back when the last array of a batch is gone.

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

    def __init__(self, number: int, memory: Any, n_bytes: int) -> None:
        self.number = number
        self.n_bytes = n_bytes
        self.memory = memory


class Lease:
    """A slot while a batch is built in it; afterwards the batch's arrays hold it."""

    def __init__(self, slot: Slot, layout: SlotLayout, give_back: Callable[[Slot], None] | None = None) -> None:
        self.slot, self.layout = slot, layout
        # Not an array over an array: numpy would let the batch's arrays refer to the innermost owner, and nobody could
        # tell when they are gone.
        root = np.frombuffer(memoryview(slot.memory), np.uint8, count=slot.n_bytes)
        if give_back is not None:
            weakref.finalize(root, give_back, slot).atexit = False
        self.root: NDArray[np.uint8] | None = root
        self.arrays: dict[str, NDArray[Any]] = {
            name: root[place.offset : place.offset + place.n_bytes].view(place.dtype).reshape(place.shape)
            for name, place in layout.places.items()
        }

    def drop(self) -> None:
        """Drop the arrays; the slot is free once no other reference exists."""
        self.arrays = {}
        self.root = None


class SlotProbe:
    """Whether a thread waits for a slot: it gets the probe after all slots that were free before."""

    is_answered = False


class Ring:
    """The slots of a loader. `take` waits until one is free."""

    def __init__(self, layout: SlotLayout, count: int, make: Callable[[int], Any] | None = None) -> None:
        self.layout = layout
        self.count = count
        self._make = make or _anonymous
        self._free: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._watches: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self.slots = [Slot(number, self._make(layout.n_bytes), layout.n_bytes) for number in range(count)]
        for slot in self.slots:
            self._free.put(slot)

    def take(self, stop: object) -> Lease | None:
        """The next free slot; None once `wake(stop)` was called."""
        while True:
            slot = self._free.get()
            if isinstance(slot, Slot):
                lease = Lease(slot, self.layout)
                assert lease.root is not None
                # Called from destructors, in any thread, and none of it is Python: SimpleQueue may be entered again
                # from there, and no Ctrl-C can come in between and be lost together with the slot.
                self._watches[slot.number] = weakref.ref(lease.root, functools.partial(self._free.put, slot))
                return lease
            if isinstance(slot, SlotProbe):
                slot.is_answered = True
            if slot is stop:
                return None  # another object is the stop of an earlier run

    @property
    def is_empty(self) -> bool:
        """Whether no slot is free."""
        return self._free.empty()

    def ask(self) -> SlotProbe:
        """Whether a thread waits in `take`: answered at once if so. Until then, the ring is not empty."""
        question = SlotProbe()
        self._free.put(question)
        return question

    def add(self) -> None:
        """One slot more."""
        slot = Slot(len(self.slots), self._make(self.layout.n_bytes), self.layout.n_bytes)
        self.slots.append(slot)
        self._free.put(slot)

    def wake(self, stop: object) -> None:
        """Wake the thread that takes with this object."""
        self._free.put(stop)


def _anonymous(n_bytes: int) -> mmap.mmap:
    """Zeroed pages from the system, given back to it as a whole; never from the heap, where they would fragment."""
    memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if n_bytes >= _HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without huge pages: the first pass over a slot is slower
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
