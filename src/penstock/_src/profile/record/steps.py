"""Steps, epochs and data waits of the process that trains.

Where the code calls `mark_step()`, the marks are the steps. Otherwise a step reaches from one batch to the next of a
loader, and the training is the loader whose steps took longest in all, of those with gradients enabled if there are
any; loaders of one data set are one, with gradients and without apart. What lies between two passes belongs to no step,
nor does a step in which a pass over another loader (a validation) ends.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns

from penstock._src.profile.record import spans
from penstock._src.profile.record.buffer import SpanNode
from penstock._src.profile.record.histogram import Histogram, Series
from penstock._src.profile.record.machine import MemorySeries
from penstock._src.profile.record.spans import count, whole_number
from penstock._src.profile.stats import EpochStats, StepPoint, StepStats

WAIT = "data_wait"
STEP_ALONE, STEP_BESIDE = "step_alone_ms", "step_with_loader_ms"
"""What a step takes while its loader rests, and while it works: gauges of a loader."""
MAX_POINTS, MAX_EPOCHS, MAX_LOOPS = 4096, 4096, 32


def _mean(points: Sequence[StepPoint]) -> StepPoint:
    duration_ns = round(sum(each.duration_ns for each in points) / len(points))
    wait_ns = round(sum(each.wait_ns for each in points) / len(points))
    return StepPoint(points[0].step, points[0].start_ns, duration_ns, wait_ns)


class LoopSteps:
    """The steps of one loop, or those between marks."""

    def __init__(self) -> None:
        self._durations, self._series = Histogram(), Series(MAX_POINTS, _mean)
        self._wait_total_ns = self._cpu_total_ns = self._next_step = 0
        self._epoch_from = (0, 0, 0)
        self.batches: Counter[int] = Counter()
        """That were used, by loader."""
        self.thread = 0
        self.begin(None)

    @property
    def total_ns(self) -> int:
        """What its steps took together."""
        return self._durations.total_ns

    def begin(self, now_ns: int | None) -> None:
        """The next step begins here; None: with the next wait."""
        self.start_ns, self._wait_ns, self.has_waited = now_ns, 0, False

    def add_wait(self, start_ns: int, duration_ns: int) -> None:
        """The loop waited for data: a part of its step, or its beginning."""
        if self.start_ns is None:
            self.start_ns = start_ns
        self._wait_ns += duration_ns
        self.has_waited = True

    def add_batch(self, loader: int, cpu_ns: int) -> None:
        """A batch was used: so long has the thread of the loop worked since it got it."""
        self.batches[loader] += 1
        self._cpu_total_ns += cpu_ns

    def end_step(self, number: int | None, now_ns: int) -> None:
        """A step ends, if one began; the next begins."""
        step = self._next_step if number is None else number
        if self.start_ns is not None:
            duration_ns = now_ns - self.start_ns
            wait_ns = min(self._wait_ns, duration_ns)
            self._durations.add(duration_ns)
            self._series.add(StepPoint(step, self.start_ns, duration_ns, wait_ns))
            self._wait_total_ns += wait_ns
        if self.start_ns is not None or number is not None:
            self._next_step = step + 1
        self.begin(now_ns)

    def shift(self, spent_ns: int) -> None:
        """So much time was spent just now on what belongs to no step."""
        if self.start_ns is not None:
            self.start_ns += spent_ns

    def end_epoch(self) -> tuple[int, int, int]:
        """(steps, their time, their waits) since the epoch before; what follows belongs to no step."""
        before, now = self._epoch_from, (self._durations.count, self.total_ns, self._wait_total_ns)
        self._epoch_from = now
        self.begin(None)
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]

    def stats(self) -> StepStats:
        return StepStats(
            **vars(self._durations.durations()),
            wait_total_ns=self._wait_total_ns,
            series=self._series.points,
            steps_per_point=self._series.per_point,
            batches=self.batches.total(),
            cpu_total_ns=self._cpu_total_ns,
        )


class Steps:
    """What marks, waits and passes of this process add up to, and its memory at their ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.memory = MemorySeries()
        self._is_marking = self._has_waits = False
        self._marked = LoopSteps()
        self._loops: dict[tuple[int, bool], LoopSteps] = {}
        self._epochs: deque[EpochStats] = deque(maxlen=MAX_EPOCHS)
        self._next_epoch = 0
        self._epoch_start_ns: int | None = None

    # Passes over loaders

    def _loop(self, each: LoaderPass) -> LoopSteps:
        loop = self._loops.get(each.key)
        if loop is None:
            if len(self._loops) >= MAX_LOOPS:  # data that is made anew for every pass
                del self._loops[min(self._loops, key=self._rank)]
            loop = self._loops[each.key] = LoopSteps()
        return loop

    def begin_pass(self, each: LoaderPass) -> None:
        """A pass begins; one before it over the same data may have been left in its midst."""
        with self._lock:
            self._loop(each).begin(None)

    def add_pass_wait(self, each: LoaderPass, start_ns: int, wait_ns: int) -> None:
        """The loop of a pass waited for a batch."""
        with self._lock:
            loop = self._loop(each)
            loop.thread = threading.get_ident()
            loop.add_wait(start_ns, wait_ns)
        self.add_wait(start_ns, wait_ns)

    def use_batch(self, each: LoaderPass, now_ns: int, cpu_ns: int) -> None:
        """The loop of a pass asks for the next batch: its step ends."""
        with self._lock:
            loop = self._loop(each)
            loop.add_batch(each.loader, cpu_ns)
            loop.end_step(None, now_ns)
            if self._marked.thread == threading.get_ident() and each.has_gradients:
                self._marked.add_batch(each.loader, cpu_ns)
        self.memory.look()

    def end_pass(self, each: LoaderPass) -> None:
        """A pass is over, and with it the steps of this thread that are under way; of marked ones only such as have no
        batch yet, or in which there was a validation."""
        with self._lock:
            thread = threading.get_ident()
            for loop in self._loops.values():
                if loop.thread == thread:
                    loop.begin(None)
            if self._marked.thread == thread and not (each.has_gradients and self._marked.has_waited):
                self._marked.begin(None)

    # Marks

    def add_wait(self, start_ns: int, duration_ns: int) -> None:
        """The training loop waited for data; where steps are marked, only in the thread that marks them."""
        with self._lock:
            self._has_waits = True
            if self._epoch_start_ns is None:
                self._epoch_start_ns = start_ns
            if not self._is_marking and self._marked.thread != threading.get_ident():
                self._marked.thread = threading.get_ident()
                self._marked.begin(None)
            if self._marked.thread == threading.get_ident():
                self._marked.add_wait(start_ns, duration_ns)

    def mark_step(self, number: int | None, now_ns: int) -> None:
        """A step ends, as the user's code says."""
        with self._lock:
            if self._marked.thread != threading.get_ident():
                self._marked.thread = threading.get_ident()
                self._marked.begin(None)
            self._is_marking = True
            if self._epoch_start_ns is None:
                self._epoch_start_ns = now_ns
            self._marked.end_step(number, now_ns)
        self.memory.look()

    def mark_epoch(self, number: int | None, now_ns: int) -> int:
        """An epoch ends; returns its number."""
        with self._lock:
            epoch = self._next_epoch if number is None else number
            start_ns = now_ns if self._epoch_start_ns is None else self._epoch_start_ns
            training = self._training()
            self._epochs.append(EpochStats(epoch, start_ns, now_ns - start_ns, *training.end_epoch()))
            self._next_epoch, self._epoch_start_ns = epoch + 1, now_ns
            for loop in (self._marked, *self._loops.values()):
                loop.end_epoch()
            if not self._has_waits:
                self._marked.begin(now_ns)  # no wait will tell where the next step begins
            return epoch

    def shift(self, spent_ns: int) -> None:
        """So much time was spent just now on what belongs to no step."""
        with self._lock:
            for loop in (self._marked, *self._loops.values()):
                loop.shift(spent_ns)
            if self._epoch_start_ns is not None:
                self._epoch_start_ns += spent_ns

    # What is known

    def stats(self) -> StepStats:
        with self._lock:
            return self._training().stats()

    def epochs(self) -> tuple[EpochStats, ...]:
        with self._lock:
            return tuple(self._epochs)

    def batches_of(self, loader: int) -> int:
        """That training steps took of a loader, by its `id`."""
        with self._lock:
            return self._training().batches[loader]

    def _training(self) -> LoopSteps:
        if self._is_marking:
            return self._marked
        return self._loops[max(self._loops, key=self._rank)] if self._loops else self._marked

    def _rank(self, key: tuple[int, bool]) -> tuple[bool, int]:
        """How much a loop looks like the training: a validation without gradients may take longer."""
        total_ns = self._loops[key].total_ns
        return key[1] and total_ns > 0, total_ns


_steps = Steps()


def steps() -> Steps:
    """The steps of this process."""
    return _steps


def mark_step(number: int | None = None) -> None:
    """A training step ends here (numbered on from 0 unless `number` says otherwise)."""
    if spans.is_enabled():
        now_ns = perf_counter_ns()
        _steps.mark_step(None if number is None else whole_number(number, "mark_step(number)"), now_ns)


def leave_out(spent_ns: int) -> None:
    """So much time was spent just now on what belongs to no step: a checkpoint, a plot."""
    if spans.is_enabled():
        _steps.shift(spent_ns)


@contextmanager
def data_wait() -> Iterator[None]:
    """`with data_wait(): batch = next(batches)`: what the training loop waits for data; part of the step."""
    start_ns = perf_counter_ns()
    with spans.span(WAIT):
        yield
    if spans.is_enabled():
        _steps.add_wait(start_ns, perf_counter_ns() - start_ns)


def begin_anew() -> None:
    """The record was reset: what is under way is forgotten, too."""
    global _steps
    _steps = Steps()


os.register_at_fork(after_in_child=begin_anew)  # a worker has no steps of its own


# A loop over a loader


class _ThisThread(threading.local):
    """What the calling thread is doing."""

    is_ahead = False
    """It prepares batches for the loop: what it waits for is no data wait."""
    samples = 0
    """That are counted and that it is inside of: what it asks for is a part of them."""


this_thread = _ThisThread()


@contextmanager
def counted_sample() -> Iterator[None]:
    """What the calling thread does inside is a sample that is counted."""
    this_thread.samples += 1
    try:
        yield
    finally:
        this_thread.samples -= 1


class LoaderPass:
    """One loop over a loader."""

    def __init__(self, loader: object) -> None:
        self.loader = id(loader)
        self._data = id(getattr(loader, "dataset", loader))
        self.has_gradients = True
        self._is_under_way = False
        self._cpu_from_ns = 0
        self._around: SpanNode | None = None
        self._known_ns = 0

    @property
    def key(self) -> tuple[int, bool]:
        """What tells its loop from others."""
        return self._data, self.has_gradients

    def ask(self) -> int:
        """The loop asks for a batch: the step before it is over."""
        start_ns = perf_counter_ns()
        if not spans.is_enabled():
            return start_ns
        if self._is_under_way:
            count("batches_used")
            # The CPU time is what the step keeps from the loader; several threads may share the iterator.
            steps().use_batch(self, start_ns, max(0, thread_time_ns() - self._cpu_from_ns))
        else:
            is_grad = getattr(sys.modules.get("torch"), "is_grad_enabled", None)  # it may be just being imported
            self.has_gradients = is_grad is None or bool(is_grad())
            steps().begin_pass(self)
        self._around = spans.own_buffer().node
        self._known_ns = self._around.child_ns
        return start_ns

    def take(self, start_ns: int, is_batch: bool) -> None:
        """The loop gets it, or learns that there is none."""
        if not spans.is_enabled():
            return
        if is_batch:
            self._is_under_way = True
            wait_ns = perf_counter_ns() - start_ns
            spans.record_inside(WAIT, start_ns, wait_ns, self._around, self._known_ns)
            steps().add_pass_wait(self, start_ns, wait_ns)
            self._cpu_from_ns = thread_time_ns()
        elif self._is_under_way:
            self._is_under_way = False
            steps().end_pass(self)
