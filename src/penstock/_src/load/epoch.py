"""Batches in order: a feeder plans them into free slots, threads fill them, the user takes them.

Epochs follow one another without a gap: while the last batch of one is used, the first of the next are made.
"""

from __future__ import annotations

import gc
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.batch_tasks import begin_job
from penstock._src.load.engine.job import BatchJob, BatchPart, EpochRecords, OneShotEvent
from penstock._src.load.engine.slots import Ring, SlotProbe
from penstock._src.load.engine.source import SOURCE, ImageColumn, SampleSource
from penstock._src.load.engine.stages import PLAN, SLOT, now_ns
from penstock._src.load.engine.thread_pool import FORGOTTEN_S, ThreadPool, start_thread
from penstock._src.load.sampling.shard import Batches
from penstock._src.profile.record.spans import record_calls, show, span
from penstock.errors import BudgetExceeded, PenstockError

_T = TypeVar("_T")
_POLL_S = 0.05  # how often a wait without news asks whether anything can still come
_HELD_POLL_S = 0.002  # how often a feeder that is held back looks whether it still is
_PROBE_POLL_S = 0.002  # how often it looks for the answer


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

    @property
    def positions(self) -> NDArray[np.int64]:
        return np.arange(self.first, self.stop, dtype=np.int64)


def plan_from(epoch: int, first: Batches, whole: Batches) -> Iterator[PlannedBatch | None]:
    """All batches from a place in an epoch on; None where an epoch ends, and the next one follows."""
    batches = first
    while True:
        for number in range(len(batches)):
            is_last = number == len(batches) - 1
            yield PlannedBatch(epoch, batches.span(number)[1], *batches.own_span(number), is_last)
        yield None
        epoch, batches = epoch + 1, whole


@dataclass(frozen=True)
class BatchRecipe:
    """What a batch is made of: an order, the sources of its samples, and which image columns stay encoded."""

    order: Any
    sources: Sequence[SampleSource]
    encoded: Callable[[ImageColumn], bool]


class BatchFeed:
    """What the feeder thread needs, and nothing that knows the loader: a forgotten loader can end."""

    def __init__(
        self,
        plan: Iterator[PlannedBatch | None],
        parts: Callable[[int, NDArray[np.int64]], Sequence[BatchPart]],
        ring: Ring,
        pool: ThreadPool,
        encoded: Callable[[ImageColumn], bool],
    ) -> None:
        self.plan, self.parts, self.ring, self.pool, self.encoded = plan, parts, ring, pool, encoded
        self.jobs: queue.SimpleQueue[BatchJob | BaseException | None] = queue.SimpleQueue()
        self.epoch_records = EpochRecords()
        self.last_taken: queue.SimpleQueue[None] = queue.SimpleQueue()  # batches that are the last of an epoch
        self.stop = OneShotEvent()
        self.n_queued = 0  # jobs that were put into the queue
        self.ahead: deque[BatchJob] = deque()  # those of them that were not taken yet
        self.is_held = False  # while True and batches are ready, no further one is started
        self.waits_for_slot = False

    def run(self) -> None:
        """The thread: one batch after the other, epoch after epoch, as far as there are slots, until it is stopped."""
        try:
            for planned in self.plan:
                if planned is None:
                    self.jobs.put(None)
                elif not self._wait_while_held() or not self._begin(planned):
                    return
                elif planned.is_last:
                    # Not before this epoch is complete does another begin: all that it puts into a view is found
                    # there. The step that uses its last batch is time enough.
                    self.last_taken.get()
        except BaseException as error:
            self.jobs.put(error)

    def _wait_while_held(self) -> bool:
        """Whether to go on: False after a stop."""
        while self.is_held and self.ahead and not self.stop.is_set():
            time.sleep(_HELD_POLL_S)
        return not self.stop.is_set()

    def stop_waiting(self) -> None:
        """Let the thread end, whatever it waits for."""
        self.stop.set()
        self.ring.wake(self.stop)
        self.last_taken.put(None)

    def _begin(self, planned: PlannedBatch) -> bool:
        """Whether a batch was started: False after a stop."""
        is_used = self.epoch_records.has_begun(
            planned.epoch
        )  # else it is made ahead, and waits as long as the user likes
        self.waits_for_slot = True
        with span(SLOT) if is_used else nullcontext():
            lease = self.ring.take(self.stop)
        self.waits_for_slot = False
        if lease is None or self.stop.is_set():
            return False
        size = planned.stop - planned.first
        job = BatchJob(size, {name: array[:size] for name, array in lease.arrays.items()}, {})
        job.lease, job.epoch_records = lease.slot, self.epoch_records
        job.epoch, job.after, job.is_last = planned.epoch, planned.after, planned.is_last
        lease.drop()
        began_ns = now_ns()
        parts = self.parts(planned.epoch, planned.positions)
        for part in parts:
            if part.source.number is not None:
                job.arrays[SOURCE][part.places] = part.source.number
        begin_job(job, parts, self.pool, self.encoded)
        took_ns = now_ns() - began_ns
        show(PLAN, began_ns, took_ns)
        self.epoch_records.add(planned.epoch, partial(record_calls, PLAN, took_ns, 1))
        self.n_queued += 1
        self.ahead.append(job)
        self.jobs.put(job)
        return True


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


class Pass:
    """Jobs in order, epoch after epoch; `close` ends it at once, and waits for what is under way."""

    def __init__(self, feed: BatchFeed, grow: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._feed = feed
        self._grow = grow
        self._n_taken = 0
        self._pid = os.getpid()
        self._thread = threading.Thread(target=feed.run, name="penstock-feed", daemon=True)
        # Before the start: Ctrl-C may come while the thread starts, and nothing else would end it.
        self._finalizer = weakref.finalize(self, _end, feed, self._thread, self._pid, weakref.ref(self))
        start_thread(self._thread)

    def next(self) -> BatchJob | None:
        """The next batch, complete; None at the end of an epoch, and where all has ended."""
        if self._pid != os.getpid():
            raise PenstockError("a pass of a loader cannot be used in a forked child", hint="call iter(loader) there")
        job = self._get()
        if isinstance(job, BaseException):
            self.close()
            raise job
        if job is None:
            return None
        self._n_taken += 1
        self._feed.ahead.popleft()
        job.wait()
        if job.is_last:
            self._feed.last_taken.put(None)
        return job

    def begin_epoch(self, epoch: int) -> None:
        """The user begins it: what was made for it ahead counts from now on."""
        self._feed.epoch_records.begin(epoch)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._feed.stop.is_set()

    @property
    def depth(self) -> int:
        """Batches that are complete or under way."""
        return self._feed.n_queued - self._n_taken

    def _get(self) -> BatchJob | BaseException | None:
        feed = self._feed
        refused: BudgetExceeded | None = None
        probe: SlotProbe | None = None
        while True:
            try:
                return feed.jobs.get(timeout=_POLL_S if probe is None else _PROBE_POLL_S)
            except queue.Empty:
                if feed.stop.is_set():
                    return None
                if not feed.waits_for_slot or feed.n_queued != self._n_taken:
                    probe = None
                    continue  # a batch is under way
                if not feed.ring.is_empty:
                    continue
                if probe is None:  # on a busy machine, the feeder may have the last slot, and not be further yet
                    probe = feed.ring.ask()
                    continue
                if not probe.is_answered:
                    continue
                probe = None
                if refused is not None:
                    raise refused from None
                # Every slot is held by arrays that the user's code still has, or by an uncollected cycle.
                grow = self._grow()
                if grow is None:
                    return None  # the loader is gone
                try:
                    grow()
                except BudgetExceeded as error:
                    refused = error
                    gc.collect()

    @property
    def n_complete(self) -> int:
        """Batches that lie ready."""
        return sum(job.is_ready for job in tuple(self._feed.ahead))

    @property
    def is_resting(self) -> bool:
        """Whether it is held back, and nothing is under way."""
        return self._feed.is_held and all(job.is_ready for job in tuple(self._feed.ahead))

    def hold(self, is_held: bool) -> None:
        """Begin no further batch as long as some are ready, or go on."""
        self._feed.is_held = is_held

    def cancel(self) -> None:
        """Let a thread that waits in `next` go: nothing more will come."""
        self._feed.stop_waiting()

    def runs_in(self, thread: threading.Thread) -> bool:
        """Whether it is one of the threads that make the batches: they must not wait for one another."""
        return thread is self._thread or self._feed.pool.has(thread)

    def close(self) -> None:
        """More than once is fine: where Ctrl-C came into the first time, the second one ends it."""
        if not self._finalizer.alive:
            return  # ended already, or the interpreter is ending
        _end(self._feed, self._thread, self._pid, weakref.ref(self))
        self._finalizer.detach()


def _end(feed: BatchFeed, thread: threading.Thread, pid: int, whole: weakref.ref[Pass]) -> None:
    if os.getpid() != pid:
        return  # the threads are the parent's
    feed.stop_waiting()
    is_forgotten = whole() is None
    # Garbage is collected by any thread: one of the pool would wait for what only it can do.
    is_inside = feed.pool.has(threading.current_thread())
    polls = 0
    while thread.is_alive() and not is_inside and not (is_forgotten and polls * _POLL_S >= FORGOTTEN_S):
        if thread is threading.current_thread():
            break
        thread.join(_POLL_S)
        polls += 1
        feed.stop_waiting()  # again: a feeder of another pass may have taken the sign for an old one
    while True:
        try:
            job = feed.jobs.get_nowait()
        except queue.Empty:
            return
        if not isinstance(job, BatchJob):
            continue
        if is_inside or is_forgotten:
            job.cancel()
        else:
            job.cancel_and_wait()
