"""Batches in order: each is requested as soon as there is a slot for it, and taken when it is complete.

Epochs follow one another without a gap: while the last batch of one is used, the first of the next are made. Planning,
requests and hand-over happen in the thread that asks for a batch: no thread takes Python's lock from the training.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.batch_tasks import begin_job
from penstock._src.load.engine.job import BatchJob, BatchPart, EpochRecords
from penstock._src.load.engine.slots import Slot, SlotLayout, Slots
from penstock._src.load.engine.source import SOURCE, ImageColumn, SampleSource
from penstock._src.load.engine.stages import PLAN, now_ns
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.sampling.shard import Batches
from penstock._src.profile.record.spans import record_calls, show
from penstock.errors import BudgetExceeded, PenstockError

_T = TypeVar("_T")
_MOST_REQUESTS = 128  # fewer messages than an engine process may leave unread: asking never waits for an answer


@dataclass(frozen=True)
class PlannedBatch:
    """A batch to be made: its positions in an epoch, and where the order stands behind it."""

    epoch: int
    after: int
    first: int
    stop: int
    """One behind the last position of this process's part."""
    is_last: bool
    """Of its epoch."""


def plan_from(epoch: int, first: Batches, whole: Batches) -> Iterator[PlannedBatch]:
    """All batches from a place in an epoch on, epoch after epoch."""
    batches = first
    while True:
        for number in range(len(batches)):
            is_last = number == len(batches) - 1
            yield PlannedBatch(epoch, batches.span(number)[1], *batches.own_span(number), is_last)
        epoch, batches = epoch + 1, whole


@dataclass(frozen=True)
class BatchRecipe:
    """What a batch is made of: an order, the sources of its samples, and which image columns stay encoded."""

    order: Any
    sources: Sequence[SampleSource]
    encoded: Callable[[ImageColumn], bool]


def job_in(slot: Slot, layout: SlotLayout, size: int, epoch: int, records: EpochRecords) -> BatchJob:
    """A batch that is built in a slot."""
    job = BatchJob(size, slot.arrays(layout, size), {})
    job.slot, job.epoch, job.epoch_records = slot.number, epoch, records
    return job


def start_job(
    job: BatchJob,
    parts: Callable[[int, NDArray[np.int64]], Sequence[BatchPart]],
    positions: range,
    pool: ThreadPool,
    encoded: Callable[[ImageColumn], bool],
) -> None:
    """Plan the batch of these positions of its epoch, and let the threads fill it."""
    began_ns = now_ns()
    planned = parts(job.epoch, np.arange(positions.start, positions.stop, dtype=np.int64))
    for part in planned:
        if part.source.number is not None:
            job.arrays[SOURCE][part.places] = part.source.number
    assert job.epoch_records is not None
    begin_job(job, planned, pool, encoded)
    took_ns = now_ns() - began_ns
    show(PLAN, began_ns, took_ns)
    job.epoch_records.add(job.epoch, partial(record_calls, PLAN, took_ns, 1))


class SharedPass(Iterator[_T]):
    """The batches of one pass for any number of threads: each gets the next one, and none comes twice."""

    def __init__(self, batches: Generator[_T, None, None]) -> None:
        self._batches = batches
        self._begin()

    def _begin(self) -> None:
        # Entered again by its own thread (a signal handler), it is an error of Python's and no wait for ever.
        self._one_at_a_time = threading.RLock()
        self._pid = os.getpid()

    def __next__(self) -> _T:
        if self._pid != os.getpid():
            self._begin()  # a thread of the parent may have held the lock at the fork
        with self._one_at_a_time:
            return next(self._batches)

    def close(self) -> None:
        """End the pass; waits for a thread that is just taking a batch."""
        with self._one_at_a_time:
            self._batches.close()


class BatchRequest(NamedTuple):
    """A batch that was asked for, and the slot that it is built in."""

    number: int
    planned: PlannedBatch
    slot: int


class BatchEngine(Protocol):
    """What makes batches, in threads or in a process of its own."""

    @property
    def slots(self) -> Slots:
        """Where batches are built."""

    @property
    def numbers(self) -> Iterator[int]:
        """Of requests: none is used twice."""

    def device_images(self, slot: int, size: int) -> dict[str, Any]:
        """The images of a batch that it has decoded on the device, where it does so, copied there."""


class Pass(ABC):
    """Batches in order, epoch after epoch; `close` ends it at once, and waits for what is under way."""

    def __init__(
        self,
        engine: BatchEngine,
        plan: Iterator[PlannedBatch],
        sources: Sequence[SampleSource],
        grow: weakref.WeakMethod[Callable[[], None]],
    ) -> None:
        """`grow` makes one slot more, or raises BudgetExceeded."""
        self.engine, self.sources = engine, sources
        self._slots, self._plan, self._grow = engine.slots, plan, grow
        self._pid = os.getpid()
        self._planned = next(plan)  # requested as soon as there is a slot for it
        self._requests: deque[BatchRequest] = deque()
        self._waits_for_last = False  # the next epoch begins when the last batch of this one is taken
        self._is_held = self._over = False
        self._take_lock = threading.RLock()  # a signal handler may close the loader while its thread waits in `take`

    @abstractmethod
    def _send(self, request: BatchRequest) -> None:
        """Ask the engine for a batch."""

    @abstractmethod
    def _await(self, request: BatchRequest, wait: bool) -> BatchJob | None:
        """The oldest batch that was asked for; None where it is not complete, and where all has ended."""

    @abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """The user begins it: what was made for it ahead counts from now on."""

    @property
    @abstractmethod
    def n_complete(self) -> int:
        """Batches that lie ready."""

    @abstractmethod
    def close(self) -> None:
        """End it, and wait until nothing is written to its slots; more than once is fine."""

    def next(self) -> BatchJob | None:
        """The next batch, whose arrays hold its slot; None where all has ended."""
        job = self.take(wait=True)
        if job is not None:
            job.arrays = self._slots.arrays(job.slot, job.size)
        return job

    def take(self, wait: bool) -> BatchJob | None:
        """The next batch, complete in its slot, which the caller gives back; None where all has ended, and without
        `wait`, where it is not complete."""
        if self._pid != os.getpid():
            raise PenstockError("a pass of a loader cannot be used in a forked child", hint="call iter(loader) there")
        with self._take_lock:
            if self._over:
                return None
            self._request()
            if not self._requests:
                if not wait:
                    return None
                self._find_slot()
            request = self._requests[0]
            job = self._await(request, wait)
            if job is None or self._over:
                return None
            self._requests.popleft()
            planned = request.planned
            job.slot, job.epoch, job.after, job.is_last = request.slot, planned.epoch, planned.after, planned.is_last
            if planned.is_last:
                self._waits_for_last = False
            self._request()
            return job

    def ask_ahead(self) -> None:
        """Have batches made in slots that are free by now."""
        with self._take_lock:
            self._request()

    def _request(self) -> None:
        """Ask for as many batches as there are free slots."""
        if self._is_held and self._requests:
            return
        while not (self._waits_for_last or self._over) and len(self._requests) < _MOST_REQUESTS:
            slot = self._slots.take_free()
            if slot is None:
                return
            request = BatchRequest(next(self.engine.numbers), self._planned, slot)
            self._requests.append(request)
            # What this epoch puts into a view is there before the next one begins.
            self._waits_for_last = self._planned.is_last
            self._planned = next(self._plan)
            self._send(request)

    def _find_slot(self) -> None:
        """Every slot is held by arrays that the user's code still has, or by an uncollected cycle."""
        grow = self._grow()
        try:
            if grow is not None:
                grow()
            self._request()
        except BudgetExceeded:
            gc.collect()
            self._request()
            if not self._requests:
                raise

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._over

    @property
    def is_resting(self) -> bool:
        """Whether it is held back, and nothing is under way."""
        return self._is_held and self.n_complete == len(self._requests)

    def hold(self, is_held: bool) -> None:
        """Ask for no further batch as long as some are ready, or go on."""
        self._is_held = is_held
