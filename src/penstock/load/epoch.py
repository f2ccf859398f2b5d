"""Batches in order: a feeder plans them into free slots, threads fill them, the user takes them.

Epochs follow one another without a gap: while the last batch of one is used, the first of the next are made.
"""

from __future__ import annotations

import gc
import os
import queue
import threading
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import BudgetExceeded, PenstockError
from penstock.load.crew import FORGOTTEN_S, Crew, start_thread
from penstock.load.engine import begin_job
from penstock.load.job import Job, Ledger, Part, Sign
from penstock.load.shard import Batches
from penstock.load.slots import Question, Ring
from penstock.load.source import SOURCE, PictureColumn
from penstock.load.stages import PLAN, SLOT, now_ns
from penstock.profile.record.spans import record_calls, show, span

_T = TypeVar("_T")
_LOOK_S = 0.05  # how often a wait without news asks whether anything can still come
_ANSWER_S = 0.002  # how often it looks for the answer


@dataclass(frozen=True)
class Planned:
    """A batch to be made: its positions in an epoch, and where the order stands behind it."""

    epoch: int
    after: int
    positions: NDArray[np.int64]
    is_last: bool
    """Of its epoch."""


def plan_from(epoch: int, first: Batches, whole: Batches) -> Iterator[Planned | None]:
    """All batches from a place in an epoch on; None where an epoch ends, and the next one follows."""
    batches = first
    while True:
        for number in range(len(batches)):
            is_last = number == len(batches) - 1
            yield Planned(epoch, batches.span(number)[1], batches.positions(number), is_last)
        yield None
        epoch, batches = epoch + 1, whole


class Feed:
    """What the feeder thread needs, and nothing that knows the loader: a forgotten loader can end."""

    def __init__(
        self,
        plan: Iterator[Planned | None],
        parts: Callable[[int, NDArray[np.int64]], Sequence[Part]],
        ring: Ring,
        crew: Crew,
        encoded: Callable[[PictureColumn], bool],
    ) -> None:
        self.plan, self.parts, self.ring, self.crew, self.encoded = plan, parts, ring, crew, encoded
        self.jobs: queue.SimpleQueue[Job | BaseException | None] = queue.SimpleQueue()
        self.ledger = Ledger()
        self.last_taken: queue.SimpleQueue[None] = queue.SimpleQueue()  # batches that are the last of an epoch
        self.stop = Sign()
        self.given = 0  # jobs that were put into the queue
        self.waits_for_slot = False

    def run(self) -> None:
        """The thread: one batch after the other, epoch after epoch, as far as there are slots, until it is stopped."""
        try:
            for planned in self.plan:
                if planned is None:
                    self.jobs.put(None)
                elif not self._begin(planned):
                    return
                elif planned.is_last:
                    # Not before this epoch is complete does another begin: all that it puts into a view is found
                    # there. The step that uses its last batch is time enough.
                    self.last_taken.get()
        except BaseException as error:
            self.jobs.put(error)

    def wake_to_stop(self) -> None:
        """Let the thread end, whatever it waits for."""
        self.stop.set()
        self.ring.wake(self.stop)
        self.last_taken.put(None)

    def _begin(self, planned: Planned) -> bool:
        """Whether a batch was begun: not so where all is stopped."""
        is_used = self.ledger.has_begun(planned.epoch)  # else it is made ahead, and waits as long as the user likes
        self.waits_for_slot = True
        with span(SLOT) if is_used else nullcontext():
            lease = self.ring.take(self.stop)
        self.waits_for_slot = False
        if lease is None or self.stop.is_set():
            return False
        size = len(planned.positions)
        job = Job(size, {name: array[:size] for name, array in lease.arrays.items()}, {})
        job.lease, job.ledger = lease.slot, self.ledger
        job.epoch, job.after, job.is_last = planned.epoch, planned.after, planned.is_last
        lease.drop()
        began_ns = now_ns()
        parts = self.parts(planned.epoch, planned.positions)
        for part in parts:
            if part.source.number is not None:
                job.arrays[SOURCE][part.places] = part.source.number
        begin_job(job, parts, self.crew, self.encoded)
        took_ns = now_ns() - began_ns
        show(PLAN, began_ns, took_ns)
        self.ledger.add(planned.epoch, partial(record_calls, PLAN, took_ns, 1))
        self.given += 1
        self.jobs.put(job)
        return True


class Taking(Iterator[_T]):
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

    def __init__(self, feed: Feed, grow: weakref.WeakMethod[Callable[[], None]]) -> None:
        self._feed = feed
        self._grow = grow
        self._taken = 0
        self._pid = os.getpid()
        self._thread = threading.Thread(target=feed.run, name="penstock-feed", daemon=True)
        # Before the start: Ctrl-C may come while the thread starts, and nobody else would end it.
        self._forgotten = weakref.finalize(self, _end, feed, self._thread, self._pid, weakref.ref(self))
        start_thread(self._thread)

    def next(self) -> Job | None:
        """The next batch, complete; None at the end of an epoch, and where all has ended."""
        if self._pid != os.getpid():
            raise PenstockError("a loader's pass was taken over by a forked child", hint="call iter(loader) there")
        found = self._get()
        if isinstance(found, BaseException):
            self.close()
            raise found
        if found is None:
            return None
        self._taken += 1
        found.wait()
        if found.is_last:
            self._feed.last_taken.put(None)
        return found

    def begin_epoch(self, epoch: int) -> None:
        """The user begins it: what was made for it ahead counts from now on."""
        self._feed.ledger.begin(epoch)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._feed.stop.is_set()

    @property
    def depth(self) -> int:
        """Batches that are complete or under way."""
        return self._feed.given - self._taken

    def _get(self) -> Job | BaseException | None:
        feed = self._feed
        refused: BudgetExceeded | None = None
        question: Question | None = None
        while True:
            try:
                return feed.jobs.get(timeout=_LOOK_S if question is None else _ANSWER_S)
            except queue.Empty:
                if feed.stop.is_set():
                    return None
                if not feed.waits_for_slot or feed.given != self._taken:
                    question = None
                    continue  # a batch is in the making
                if not feed.ring.is_dry:
                    continue
                if question is None:  # on a busy machine, the feeder may have the last slot, and not be further yet
                    question = feed.ring.ask()
                    continue
                if not question.is_answered:
                    continue
                question = None
                if refused is not None:
                    raise refused from None
                # Every slot is held by arrays that the user's code still has, or by a cycle nobody collected yet.
                grow = self._grow()
                if grow is None:
                    return None  # nobody is there any more to take it
                try:
                    grow()
                except BudgetExceeded as error:
                    refused = error
                    gc.collect()

    def give_up(self) -> None:
        """Let a thread that waits in `next` go: nothing more will come."""
        self._feed.wake_to_stop()

    def is_own(self, thread: threading.Thread) -> bool:
        """Whether it is one of the threads that make the batches: they must not wait for one another."""
        return thread is self._thread or self._feed.crew.has(thread)

    def close(self) -> None:
        """More than once is fine: where Ctrl-C came into the first time, the second one ends it."""
        if not self._forgotten.alive:
            return  # ended already, or the interpreter is ending
        _end(self._feed, self._thread, self._pid, weakref.ref(self))
        self._forgotten.detach()


def _end(feed: Feed, thread: threading.Thread, pid: int, whole: weakref.ref[Pass]) -> None:
    if os.getpid() != pid:
        return  # the threads are the parent's
    feed.wake_to_stop()
    is_forgotten = whole() is None
    # Garbage is collected by any thread: one of the crew would wait for what only it can do.
    is_inside = feed.crew.has(threading.current_thread())
    looks = 0
    while thread.is_alive() and not is_inside and not (is_forgotten and looks * _LOOK_S >= FORGOTTEN_S):
        if thread is threading.current_thread():
            break
        thread.join(_LOOK_S)
        looks += 1
        feed.wake_to_stop()  # again: a feeder of another pass may have taken the sign for an old one
    while True:
        try:
            left = feed.jobs.get_nowait()
        except queue.Empty:
            return
        if not isinstance(left, Job):
            continue
        if is_inside or is_forgotten:
            left.give_up()
        else:
            left.settle()
