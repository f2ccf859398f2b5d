"""Which engine makes the batches of a loader, threads of this process or a process of its own; the thread engine."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from penstock._src.load.device.target import Target
from penstock._src.load.engine.job import BatchJob, EpochRecords
from penstock._src.load.engine.slots import SlotLayout, Slots
from penstock._src.load.engine.source import SampleSource
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.epoch import BatchRecipe, BatchRequest, Pass, PlannedBatch, job_in, start_job
from penstock._src.load.memory_split import MemorySplit
from penstock._src.load.process.engine import EngineFailed
from penstock._src.load.process.packing import CannotPack
from penstock._src.load.process.spec import ViewCounts
from penstock._src.load.sampling.position_map import PositionMap
from penstock.errors import PenstockError

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

    def __init__(self, sources: Sequence[SampleSource], layout: SlotLayout, split: MemorySplit, target: Target) -> None:
        for source in sources:
            source.numbers.fill()
        self.slots = Slots(layout, split.slots, target.register)
        self.pool = ThreadPool(split.threads)
        self.numbers = itertools.count()
        self._given_up: list[BatchJob] = []  # of passes that have ended; tasks may still write to their slots

    def begin(
        self,
        plan: Iterator[PlannedBatch],
        epoch: int,
        recipe: BatchRecipe,
        grow: weakref.WeakMethod[Callable[[], None]],
    ) -> ThreadPass:
        """A pass over the batches of a plan."""
        self._reclaim()
        return ThreadPass(self, plan, epoch, recipe, grow)

    def give_up(self, jobs: Sequence[BatchJob]) -> None:
        """Let nothing more be done for batches, and wait for what is under way."""
        for job in jobs:
            job.cancel()
        self._given_up += jobs
        # Garbage is collected by any thread: one of the pool would wait for what only it can do.
        if not self.pool.has(threading.current_thread()):
            self._reclaim()

    def _reclaim(self) -> None:
        while self._given_up:
            job = self._given_up.pop()  # first: a signal handler may close the loader while this waits
            try:
                job.cancel_and_wait()
            except BaseException:
                self._given_up.append(job)
                raise
            self.slots.give_back(job.slot)

    def add_slot(self) -> None:
        """One slot more, for batches that the user's code keeps."""
        self.slots.add()

    def device_images(self, slot: int, size: int) -> dict[str, Any]:
        """None: JPEGs of a batch are decoded by the thread that asks for it."""
        return {}

    def take_notes(self) -> list[str]:
        """Nothing happens to threads that a user should know."""
        return []

    def describe(self) -> dict[str, Any]:
        return {"kind": "thread"}

    def close(self) -> None:
        """End the threads."""
        self.pool.close()


class ThreadPass(Pass):
    """Batches that the threads of this process plan and fill."""

    def __init__(
        self,
        engine: ThreadEngine,
        plan: Iterator[PlannedBatch],
        epoch: int,
        recipe: BatchRecipe,
        grow: weakref.WeakMethod[Callable[[], None]],
    ) -> None:
        super().__init__(engine, plan, recipe.sources, grow)
        self._threads = engine
        self._jobs: dict[int, BatchJob] = {}
        self._epoch_records = EpochRecords()
        self._parts, self._encoded = PositionMap(recipe.order, list(recipe.sources)), recipe.encoded
        self.begin_epoch(epoch)  # before the first request: nothing of this epoch is made ahead
        self._request()

    def begin_epoch(self, epoch: int) -> None:
        self._epoch_records.begin(epoch)

    def _send(self, request: BatchRequest) -> None:
        planned, pool = request.planned, self._threads.pool
        positions = range(planned.first, planned.stop)
        job = job_in(self._slots[request.slot], self._slots.layout, len(positions), planned.epoch, self._epoch_records)
        self._jobs[request.number] = job
        parts, encoded = self._parts, self._encoded
        job.plan_in(pool, lambda _: start_job(job, parts, positions, pool, encoded))

    def _await(self, request: BatchRequest, wait: bool) -> BatchJob | None:
        job = self._jobs[request.number]
        if not wait and not job.is_ready:
            return None
        try:
            job.wait()
        except PenstockError:
            if self._over:
                return None  # by another thread
            raise
        del self._jobs[request.number]
        return job

    @property
    def n_complete(self) -> int:
        return sum(job.is_ready for job in tuple(self._jobs.values()))

    def close(self) -> None:
        self._over = True
        if self._pid != os.getpid():
            return  # the threads are the parent's
        for job in list(self._jobs.values()):
            job.cancel()  # a thread that waits for one goes on
        with self._take_lock:
            for request in self._requests:
                if request.number not in self._jobs:  # Ctrl-C came before it was sent
                    self._threads.slots.give_back(request.slot)
            self._requests.clear()
            jobs, self._jobs = self._jobs, {}
            self._threads.give_up(list(jobs.values()))
