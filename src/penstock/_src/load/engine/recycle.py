"""Memory for batches that are made when asked for: taken again once the last array of a batch is gone."""

from __future__ import annotations

import gc
import math
import mmap
import queue
import time
from typing import Any

from numpy.typing import NDArray

from penstock._src.load.engine.slots import Lease, Slot, SlotLayout
from penstock._src.system.budget import Budget, Reservation
from penstock._src.system.units import format_bytes
from penstock.errors import BudgetExceeded

_COLLECT_EVERY_S = 1.0


class _BudgetSlot(Slot):
    """A slot and what it holds of the budget."""

    def __init__(self, n_bytes: int, reservation: Reservation) -> None:
        # Never from the heap, where large pieces fragment it.
        super().__init__(0, mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), n_bytes)
        self.reservation = reservation


class Recycler:
    """Arrays of any layout, from memory that was used before where its size fits; all of it charged to a budget.

    Unlike a `Ring` it has no fixed number of slots and never waits: what the budget cannot hold is refused.
    """

    def __init__(self, budget: Budget, most_free: int | None = None) -> None:
        """`most_free` bounds how many unused batches are kept for later; else the budget alone does."""
        self._budget = budget
        self._most_free = most_free
        self._free: queue.SimpleQueue[_BudgetSlot] = queue.SimpleQueue()
        self._closed = False
        self._collected_s = -math.inf

    def arrays(self, layout: SlotLayout) -> dict[str, NDArray[Any]]:
        """One array per place of the layout. Their memory is taken again when all of them are gone."""
        slot = self._is_reused(layout.n_bytes)
        if slot is None:
            slot = self._new(layout.n_bytes)
        return Lease(slot, layout, self._take_back).arrays

    def _is_reused(self, n_bytes: int) -> _BudgetSlot | None:
        while True:
            try:
                slot = self._free.get_nowait()
            except queue.Empty:
                return None
            if slot.n_bytes == n_bytes:
                return slot
            slot.reservation.release()  # of a batch size that is no longer asked for

    def _new(self, n_bytes: int) -> _BudgetSlot:
        try:
            return _BudgetSlot(n_bytes, self._budget.reserve("batches", n_bytes))
        except BudgetExceeded as error:
            self._collect()
            slot = self._is_reused(n_bytes)
            if slot is not None:
                return slot
            raise batches_held(self._budget, n_bytes, error) from error

    def _collect(self) -> None:
        """A batch may be held by an uncollected cycle; collecting takes a while, so not again and again."""
        now_s = time.monotonic()
        if now_s - self._collected_s > _COLLECT_EVERY_S:
            self._collected_s = now_s
            gc.collect()

    def _take_back(self, slot: Slot) -> None:
        """Called from destructors, in any thread."""
        assert isinstance(slot, _BudgetSlot)
        if self._closed or (self._most_free is not None and self._free.qsize() >= self._most_free):
            slot.reservation.release()
        else:
            self._free.put(slot)

    def close(self) -> None:
        """Let go of what is free; the rest follows when its arrays go."""
        self._closed = True
        self._is_reused(-1)


def batches_held(budget: Budget, n_bytes: int, error: BudgetExceeded) -> BudgetExceeded:
    """The error where batches that the user's code keeps leave no memory for another one."""
    held = format_bytes(budget.by_name().get("batches", 0))
    return BudgetExceeded(
        f"a batch takes {format_bytes(n_bytes)}, and batches that your code still holds take {held} of "
        f"{format_bytes(budget.limit_bytes)}; {format_bytes(budget.free_bytes)} are free",
        size=error.size,
        limit=error.limit,
        hint="drop or copy batches that you keep, take a smaller batch_size, or give a larger memory=…",
    )
