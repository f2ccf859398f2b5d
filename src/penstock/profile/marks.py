"""Steps and epochs as marks, and the data wait of the training loop, kept by the process that trains.

    for batch in loader:        # the loader's wait, or `with data_wait():` around next(...)
        ...
        mark_step()             # at the end of the step
    mark_epoch()

A step reaches from the mark before it to its own. The first one, and the first after an epoch, begins with the last
data wait before its mark: what lies between (validation, checkpoints) belongs to no step. Where nothing tells a wait,
the first after an epoch begins with the mark of that epoch.
"""

from __future__ import annotations

import threading
from collections import deque
from time import perf_counter_ns
from types import TracebackType
from typing import NamedTuple

from penstock.profile import spans
from penstock.profile.board import after_fork
from penstock.profile.histogram import Histogram
from penstock.profile.memory_series import look_at_memory
from penstock.profile.snapshot import EpochStats, StepPoint, StepStats

MAX_POINTS = 4096
MAX_EPOCHS = 4096
MAX_TRACKS = 32
WAIT = "data_wait"


class Loop(NamedTuple):
    """A place in the user's code that asks a loader for batches, with or without gradients."""

    file: str
    line: int
    is_training: bool


class Series:
    """Step points in constant memory: when full, neighbours are merged and every point stands for twice as many."""

    def __init__(self) -> None:
        self.steps_per_point = 1
        self._points: list[StepPoint] = []
        self._pending: list[StepPoint] = []

    def add(self, point: StepPoint) -> None:
        """Append one step."""
        self._pending.append(point)
        if len(self._pending) < self.steps_per_point:
            return
        self._points.append(_mean(self._pending))
        self._pending.clear()
        if len(self._points) >= MAX_POINTS:
            self._points = [_mean(self._points[i : i + 2]) for i in range(0, len(self._points), 2)]
            self.steps_per_point *= 2

    @property
    def points(self) -> tuple[StepPoint, ...]:
        """All points, with what is not a whole point yet as the last."""
        return (*self._points, *([_mean(self._pending)] if self._pending else []))[-MAX_POINTS:]


def _mean(points: list[StepPoint]) -> StepPoint:
    n = len(points)
    first = points[0]
    return StepPoint(
        first.step,
        first.start_ns,
        round(sum(each.duration_ns for each in points) / n),
        round(sum(each.wait_ns for each in points) / n),
    )


class Track:
    """The steps of one loop."""

    def __init__(self) -> None:
        self.start_ns: int | None = None
        self.is_training = True
        self._follows_mark = False
        self._wait_ns = 0
        self.clear()

    def clear(self) -> None:
        """Forget the steps; one that is under way goes on."""
        self._steps = Histogram()
        self._series = Series()
        self._wait_total_ns = self._cpu_total_ns = self._next_step = self._batches = 0
        self._epoch_steps = self._epoch_steps_ns = self._epoch_wait_ns = 0

    @property
    def total_ns(self) -> int:
        """What its steps took together."""
        return self._steps.total_ns

    def add_wait(self, start_ns: int, duration_ns: int) -> None:
        """The loop waited for data: a part of its step, or the beginning of the next one."""
        if self._follows_mark:
            self._wait_ns += duration_ns
        else:
            self.start_ns, self._wait_ns = start_ns, duration_ns

    def add_batch(self, cpu_ns: int) -> None:
        """A batch was used: so long has the thread of the loop worked since it got it."""
        self._batches += 1
        self._cpu_total_ns += cpu_ns

    def end_step(self, number: int | None, now_ns: int) -> None:
        """A step ends, if one began; the next begins."""
        start_ns = self.start_ns
        if start_ns is not None:
            step = self._next_step if number is None else number
            duration_ns, wait_ns = now_ns - start_ns, min(self._wait_ns, now_ns - start_ns)
            self._steps.add(duration_ns)
            self._series.add(StepPoint(step, start_ns, duration_ns, wait_ns))
            self._wait_total_ns += wait_ns
            self._epoch_steps += 1
            self._epoch_steps_ns += duration_ns
            self._epoch_wait_ns += wait_ns
            self._next_step = step + 1
        elif number is not None:
            self._next_step = number + 1
        self.begin(now_ns)

    def begin(self, now_ns: int) -> None:
        """The next step begins here."""
        self.start_ns, self._wait_ns, self._follows_mark = now_ns, 0, True

    def leave(self) -> None:
        """What follows belongs to no step, until the next wait."""
        self.start_ns, self._wait_ns, self._follows_mark = None, 0, False

    def end_epoch(self) -> tuple[int, int, int]:
        """(steps, their time, their waits) since the epoch before."""
        found = self._epoch_steps, self._epoch_steps_ns, self._epoch_wait_ns
        self._epoch_steps = self._epoch_steps_ns = self._epoch_wait_ns = 0
        return found

    def stats(self) -> StepStats:
        """All steps so far."""
        told = self._steps
        return StepStats(
            count=told.count,
            total_ns=told.total_ns,
            wait_total_ns=self._wait_total_ns,
            mean_ns=told.total_ns / told.count if told.count else 0.0,
            min_ns=told.min_ns,
            max_ns=told.max_ns,
            p50_ns=told.percentile_ns(0.50),
            p95_ns=told.percentile_ns(0.95),
            p99_ns=told.percentile_ns(0.99),
            series=self._series.points,
            steps_per_point=self._series.steps_per_point,
            batches=self._batches,
            cpu_total_ns=self._cpu_total_ns,
        )


class Marks:
    """What the marks of this process add up to.

    Where the user's code marks steps, those are the steps. Else each loop over a loader has a track of its own, and the
    training is the one that took longest, among those that compute gradients where there are any: batches of a
    validation are no steps.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Begin anew; what is under way is forgotten."""
        self._is_user_marking = self._has_waits = False
        self._marked = Track()
        self._tracks: dict[Loop, Track] = {}
        self._epochs: deque[EpochStats] = deque(maxlen=MAX_EPOCHS)
        self._next_epoch = 0
        self._epoch_start_ns: int | None = None

    def add_wait(self, start_ns: int, duration_ns: int, loop: Loop | None = None) -> None:
        """The training loop waited for data; `loop`: which one, where a loader tells."""
        with self.lock:
            self._has_waits = True
            self._marked.add_wait(start_ns, duration_ns)
            if loop is not None:
                self._track(loop).add_wait(start_ns, duration_ns)
            if self._epoch_start_ns is None:
                self._epoch_start_ns = start_ns

    def feed_step(self, now_ns: int, cpu_ns: int, loop: Loop) -> None:
        """A loop asks its loader for the next batch: its step ends, unless the user's code marks steps itself."""
        with self.lock:
            if loop.is_training:
                self._marked.add_batch(cpu_ns)
            if self._is_user_marking:
                return
            track = self._track(loop)
            track.add_batch(cpu_ns)
            track.end_step(None, now_ns)
        look_at_memory()

    def end_feed(self, loop: Loop) -> None:
        """A loop is over: what follows belongs to no step."""
        with self.lock:
            if not self._is_user_marking:
                self._marked.leave()
                self._track(loop).leave()

    def mark_step(self, number: int | None, now_ns: int) -> None:
        """A step ends, as the user's code says."""
        with self.lock:
            if not self._is_user_marking:
                self._is_user_marking = True
                self._marked.clear()
                self._tracks.clear()  # their steps were taken for steps because a loader was asked
            if self._epoch_start_ns is None:
                self._epoch_start_ns = now_ns if self._marked.start_ns is None else self._marked.start_ns
            self._marked.end_step(number, now_ns)

    def mark_epoch(self, number: int | None, now_ns: int) -> int:
        """An epoch ends; returns its number."""
        with self.lock:
            epoch = self._next_epoch if number is None else number
            start_ns = now_ns if self._epoch_start_ns is None else self._epoch_start_ns
            main = self._main()
            self._epochs.append(EpochStats(epoch, start_ns, now_ns - start_ns, *main.end_epoch()))
            self._next_epoch = epoch + 1
            self._epoch_start_ns = now_ns
            for track in (self._marked, *self._tracks.values()):
                track.end_epoch()
                track.leave()
            if self._is_user_marking and not self._has_waits:
                self._marked.begin(now_ns)  # no wait will tell where the next step begins
            return epoch

    def steps(self) -> StepStats:
        """All steps so far."""
        with self.lock:
            return self._main().stats()

    def epochs(self) -> tuple[EpochStats, ...]:
        """The epochs that have ended."""
        with self.lock:
            return tuple(self._epochs)

    def _track(self, loop: Loop) -> Track:
        found = self._tracks.get(loop)
        if found is None:
            if len(self._tracks) >= MAX_TRACKS:  # code that is made anew for every pass
                del self._tracks[min(self._tracks, key=lambda each: self._tracks[each].total_ns)]
            found = self._tracks[loop] = Track()
            found.is_training = loop.is_training
        return found

    def _main(self) -> Track:
        if self._is_user_marking:
            return self._marked
        return max(self._tracks.values(), key=lambda each: (each.is_training, each.total_ns), default=self._marked)


_marks = Marks()


def marks() -> Marks:
    """The marks of this process."""
    return _marks


def mark_step(number: int | None = None) -> None:
    """A training step ends here (numbered on from 0 unless told)."""
    if spans._is_enabled:
        _marks.mark_step(number, perf_counter_ns())
        look_at_memory()


def mark_epoch(number: int | None = None) -> None:
    """An epoch ends here (numbered on from 0 unless told)."""
    if spans._is_enabled:
        from penstock.profile.epochs import remember

        remember(_marks.mark_epoch(number, perf_counter_ns()))


def add_wait(start_ns: int, duration_ns: int, loop: Loop | None = None) -> None:
    """The training loop waited for data: for those that measure it themselves; also a call of the span `data_wait`."""
    if spans._is_enabled:
        spans.record(WAIT, duration_ns, start_ns)
        _marks.add_wait(start_ns, duration_ns, loop)


class _Wait:
    """The body waits for data."""

    __slots__ = ("_start_ns",)

    def __enter__(self) -> None:
        self._start_ns = perf_counter_ns()
        spans.span(WAIT).__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        spans.span(WAIT).__exit__(kind, error, trace)
        if spans._is_enabled and kind is None:
            _marks.add_wait(self._start_ns, perf_counter_ns() - self._start_ns)


def data_wait() -> _Wait:
    """`with data_wait(): batch = next(batches)`: what the training loop waits for data; part of the step."""
    return _Wait()


def _begin_anew() -> None:
    # A worker has no steps of its own, and another thread may have held the lock at the fork.
    global _marks
    _marks = Marks()


after_fork(_begin_anew)
