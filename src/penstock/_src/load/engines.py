"""Which engine makes the batches of a loader, threads of this process or a process of its own; the thread engine."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from penstock._src.load.device.target import Target
from penstock._src.load.engine.slots import Ring, SlotLayout
from penstock._src.load.engine.source import SampleSource
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.epoch import BatchFeed, BatchRecipe, Pass, PlannedBatch
from penstock._src.load.process.engine import EngineFailed
from penstock._src.load.process.packing import CannotPack
from penstock._src.load.process.spec import ViewCounts
from penstock._src.load.sampling.position_map import PositionMap
from penstock._src.load.shares import Shares

ENGINES = ("auto", "thread", "process")
CANNOT_TRAVEL = (CannotPack, AttributeError, TypeError, ImportError, EngineFailed)
"""What an engine process raises where the store or the window is of a class that it cannot import."""


def engine_for(engine: str, target: Target) -> tuple[str, str]:
    """("thread" or "process", why)."""
    if engine != "auto":
        return engine, "as asked"
    if target.is_device:
        return "process", "so that the loader does not slow down the step on the GPU"
    if target.is_torch:
        return "process", "so that no thread of the loader takes the GIL from torch"
    return "thread", "for numpy batches"


class ThreadEngine:
    """Threads of this process that build batches in slots of this process."""

    unread_notes: ClassVar[tuple[str, ...]] = ()
    view_counts: ClassVar[ViewCounts] = {}

    def __init__(self, sources: Sequence[SampleSource], layout: SlotLayout, shares: Shares, target: Target) -> None:
        for source in sources:
            source.numbers.fill()
        self.ring = Ring(layout, shares.slots, target.slot_memory)
        self._pool = ThreadPool(shares.threads)

    def begin(
        self,
        plan: Iterator[PlannedBatch | None],
        epoch: int,
        recipe: BatchRecipe,
        grow: weakref.WeakMethod[Callable[[], None]],
    ) -> Pass:
        """A pass over the batches of a plan."""
        feed = BatchFeed(plan, PositionMap(recipe.order, list(recipe.sources)), self.ring, self._pool, recipe.encoded)
        feed.epoch_records.begin(epoch)  # before its thread starts: nothing of this epoch is made ahead
        return Pass(feed, grow)

    @property
    def n_slots(self) -> int:
        return len(self.ring.slots)

    def add_slot(self) -> None:
        """One slot more, for batches that the user's code keeps."""
        self.ring.add()

    @property
    def is_full(self) -> bool:
        """Whether every slot holds a batch, complete or under way."""
        return self.ring.is_empty

    def take_notes(self) -> list[str]:
        """Nothing happens to threads that a user should know."""
        return []

    def describe(self) -> dict[str, Any]:
        return {"kind": "thread"}

    def close(self) -> None:
        """End the threads."""
        self._pool.close()
