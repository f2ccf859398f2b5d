"""Steps, epochs and data waits of the process that trains.

    for batch in loader:        # a loader tells its passes (`LoaderPass`); else `with data_wait():` around next(...)
        ...
        mark_step()             # only where a step is not one batch
    mark_epoch()

Which loop is the training: where the code calls `mark_step()`, the marks are the steps. Otherwise a step reaches from
one batch to the next of the same data set, and the training is the data set whose steps took longest, among those that
are asked for with gradients enabled where there are any. What lies between two passes belongs to no step. A pass that
begins inside a step of another one belongs to that step if it is still under way when the step ends (`zip`); if it is
over by then (a validation), it is no part of the step, and no training while that other loop has steps.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING

from penstock._src.profile.numbers import whole_number
from penstock._src.profile.record import spans
from penstock._src.profile.record.histogram import Histogram
from penstock._src.profile.record.machine import memory_series
from penstock._src.profile.stats import EpochStats, StepPoint, StepStats

if TYPE_CHECKING:
    from penstock._src.profile.record.loader_pass import LoaderPass

WAIT = "data_wait"
STEP_ALONE, STEP_BESIDE = "step_alone_ms", "step_with_loader_ms"
"""What a step takes while its loader rests, and while it works: gauges of a loader."""
MAX_POINTS, MAX_EPOCHS = 4096, 4096
MAX_TRACKS, MAX_LOADERS = 32, 64


class Series:
    """Step points in constant memory: when full, neighbours are merged and every point stands for twice as many."""

    def __init__(self) -> None:
        self.steps_per_point = 1
        self._points: list[StepPoint] = []
        self._pending: list[StepPoint] = []

    def add(self, point: StepPoint) -> None:
        """Append one step."""
        self._pending.append(point)
        if len(self._pending) == self.steps_per_point:
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
    if len(points) == 1:
        return points[0]
    duration_ns = round(sum(each.duration_ns for each in points) / len(points))
    wait_ns = round(sum(each.wait_ns for each in points) / len(points))
    return StepPoint(points[0].step, points[0].start_ns, duration_ns, wait_ns)


class LoaderUse:
    """What the steps of one loop took of a loader."""

    batches = wait_ns = companion_wait_ns = 0


class LoopSteps:
    """The steps of one loop."""

    def __init__(self, is_training: bool = True) -> None:
        self.is_training = is_training
        self.is_inner = False
        """Whether passes of it begin inside steps of another loop."""
        self.start_ns: int | None = None
        self._follows_mark = False
        self._wait_ns = self.waits = 0
        self.clear()

    def clear(self) -> None:
        """Forget the steps; one that is under way goes on."""
        self._steps = Histogram()
        self._series = Series()
        self._wait_total_ns = self._cpu_total_ns = self._next_step = self._batches = 0
        self._epoch_from = (0, 0, 0)
        self.use_by_loader: dict[int, LoaderUse] = {}

    @property
    def total_ns(self) -> int:
        """What its steps took together."""
        return self._steps.total_ns

    def rank(self) -> tuple[bool, bool, bool, int]:
        """The training is the loop that has the highest."""
        return self.is_training, self.total_ns > 0, not self.is_inner, self.total_ns

    def use(self, loader: int) -> LoaderUse:
        """What it took of a loader; of very many, the one that was used least is forgotten."""
        known = self.use_by_loader
        if loader not in known and len(known) >= MAX_LOADERS:
            del known[min(known, key=lambda each: (known[each].batches, known[each].wait_ns))]
        return self.use_by_loader.setdefault(loader, LoaderUse())

    def note_use(self, loader: int, wait_ns: int, *, is_companion: bool) -> None:
        """For which loader it was that the loop waited, and whether that only accompanies another."""
        use = self.use(loader)
        use.wait_ns += wait_ns
        use.companion_wait_ns += wait_ns if is_companion else 0

    def add_wait(self, start_ns: int, duration_ns: int, waits: int = 1, *, restarts: bool = False) -> None:
        """The loop waited for data: a part of its step, or its beginning.

        With `restarts`, a wait before the first mark begins the step anew.
        """
        if self.start_ns is None or (restarts and not self._follows_mark):
            self.start_ns, self._wait_ns, self.waits = start_ns, 0, 0
        self._wait_ns += duration_ns
        self.waits += waits

    def add_batches(self, loader: int, cpu_ns: int, batches: int = 1) -> None:
        """Batches were used: so long has the thread of the loop worked since it got them."""
        self._batches += batches
        self._cpu_total_ns += cpu_ns
        self.use(loader).batches += batches

    def end_step(self, number: int | None, now_ns: int) -> None:
        """A step ends, if one began; the next begins."""
        start_ns = self.start_ns
        if start_ns is not None:
            step = self._next_step if number is None else number
            duration_ns = now_ns - start_ns
            wait_ns = min(self._wait_ns, duration_ns)
            self._steps.add(duration_ns)
            self._series.add(StepPoint(step, start_ns, duration_ns, wait_ns))
            self._wait_total_ns += wait_ns
            self._next_step = step + 1
        elif number is not None:
            self._next_step = number + 1
        self.begin(now_ns)

    def begin(self, now_ns: int | None) -> None:
        """The next step begins here; None: with the next wait."""
        self.start_ns, self._wait_ns, self.waits, self._follows_mark = now_ns, 0, 0, now_ns is not None

    def shift(self, spent_ns: int, since_ns: int | None = None) -> None:
        """So much time since a moment belongs to no step; a step that began later had no part in it."""
        if self.start_ns is not None and (since_ns is None or self.start_ns <= since_ns):
            self.start_ns += spent_ns

    def end_epoch(self) -> tuple[int, int, int]:
        """(steps, their time, their waits) since the epoch before; what follows belongs to no step."""
        before, now = self._epoch_from, (self._steps.count, self._steps.total_ns, self._wait_total_ns)
        self._epoch_from = now
        self.begin(None)
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]

    def stats(self) -> StepStats:
        """All steps so far."""
        return StepStats(
            **vars(self._steps.durations()),
            wait_total_ns=self._wait_total_ns,
            series=self._series.points,
            steps_per_point=self._series.steps_per_point,
            batches=self._batches,
            cpu_total_ns=self._cpu_total_ns,
        )


class Steps:
    """What marks, waits and passes of this process add up to."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Begin anew; what is under way is forgotten."""
        self._is_marking = self._has_waits = self._has_training = False
        self._thread = 0  # the one that marks, or before the first mark the last that waited
        self._marked = LoopSteps()
        self.tracks: dict[tuple[int, bool], LoopSteps] = {}
        self._epochs: deque[EpochStats] = deque(maxlen=MAX_EPOCHS)
        self._next_epoch = 0
        self._epoch_start_ns: int | None = None

    # Passes over loaders

    def begin_pass(self, each: LoaderPass) -> None:
        """A pass begins; one before it over the same data may have been left in its midst."""
        with self.lock:
            if each.outer is not None and each.key == each.outer.key:
                each.leader, each.outer = each.outer, None
            elif each.outer is not None:
                self._track(each).is_inner = True
            else:
                self._leave(each)

    def _track(self, each: LoaderPass) -> LoopSteps:
        key = (each.leader or each).key
        if key not in self.tracks:
            if len(self.tracks) >= MAX_TRACKS:  # data that is made anew for every pass
                del self.tracks[min(self.tracks, key=lambda each: self.tracks[each].total_ns)]
            self.tracks[key] = LoopSteps(is_training=key[1])
        return self.tracks[key]

    def _leave(self, each: LoaderPass) -> None:
        """What follows belongs to no step, but for a marked one that goes on over the end of a pass."""
        self._track(each).begin(None)
        if not self._is_marking or (each.is_training and not self._marked.waits):
            self._marked.begin(None)

    def add_pass_wait(self, each: LoaderPass, start_ns: int, wait_ns: int) -> None:
        """The loop of a pass waited for a batch."""
        with self.lock:
            self._note_wait(start_ns)
            if each.outer is not None:
                each.open_waits += 1
                each.open_wait_ns += wait_ns
            for track in self._tracks_of(each):
                track.add_wait(start_ns, wait_ns)
                track.note_use(each.loader, wait_ns, is_companion=each.leader is not None)

    def use_batch(self, each: LoaderPass, now_ns: int, cpu_ns: int) -> None:
        """The loop of a pass asks for the next batch: its step ends, unless steps are marked."""
        with self.lock:
            for inner in each.inner():  # still under way: they feed the same steps
                if inner.leader is None:
                    self._track(inner).begin(None)
                    inner.leader = each
                    self._count_in(inner)
            if each.outer is not None:
                each.open_batches += 1
                each.open_cpu_ns += cpu_ns
            for track in self._tracks_of(each):
                if track is self._marked:
                    track.add_batches(each.loader, cpu_ns)
                elif each.leader is None:
                    track.add_batches(each.loader, cpu_ns)
                    track.end_step(None, now_ns)
        memory_series().look()

    def end_pass(self, each: LoaderPass, now_ns: int, *, is_freed: bool = False) -> None:
        """A pass is over. `is_freed`: it was left in its midst; one batch of it alone is for the step."""
        # Python frees things wherever it likes, also in the midst of what this lock guards.
        if not self.lock.acquire(blocking=not is_freed):
            return
        try:
            outer = each.outer
            if outer is None:
                if not is_freed and each.leader is None:
                    self._leave(each)
            elif is_freed and each.open_waits == 1:
                each.leader = outer
                self._count_in(each)
            else:
                spent_ns = now_ns - each.began_ns
                self._track(outer).shift(spent_ns)
                outer.cpu_from_ns += thread_time_ns() - each.began_cpu_ns
                if threading.get_ident() == self._thread:
                    self._marked.shift(spent_ns, each.began_ns)
                self._track(each).begin(None)
            each.outer = each.leader = None
        finally:
            self.lock.release()

    def _count_in(self, each: LoaderPass) -> None:
        """A pass that began inside a step belongs to it: what it recorded so far is counted."""
        if each.outer is None:
            return
        each.outer = None
        for track in self._tracks_of(each):
            track.add_wait(each.began_ns, each.open_wait_ns, each.open_waits)
            track.note_use(each.loader, each.open_wait_ns, is_companion=each.leader is not None)
            if track is self._marked:
                track.add_batches(each.loader, each.open_cpu_ns, each.open_batches)

    def _tracks_of(self, each: LoaderPass) -> list[LoopSteps]:
        """Where a pass counts: in the steps of its loop unless steps are marked, and in those that are or may be."""
        own = [] if self._is_marking else [self._track(each)]
        return [*own, self._marked] if each.outer is None and self._is_of_marked(each.is_training) else own

    def _is_of_marked(self, is_training: bool) -> bool:
        """Whether steps that are marked wait there: not for a validation, nor in a thread that works ahead."""
        if threading.get_ident() != self._thread:
            if self._is_marking:
                return False
            self._thread = threading.get_ident()
            self._marked.begin(None)
        if is_training and not self._has_training:
            self._has_training = True
            self._marked.begin(None)  # what was waited for without gradients was something else
        return is_training or not self._has_training

    # Marks

    def _note_wait(self, start_ns: int) -> None:
        self._has_waits = True
        if self._epoch_start_ns is None:
            self._epoch_start_ns = start_ns

    def add_wait(self, start_ns: int, duration_ns: int) -> None:
        """The training loop waited for data, as the user's code says."""
        with self.lock:
            self._note_wait(start_ns)
            if not self._is_marking or threading.get_ident() == self._thread:
                self._thread = threading.get_ident()
                self._marked.add_wait(start_ns, duration_ns, restarts=True)

    def mark_step(self, number: int | None, now_ns: int) -> None:
        """A step ends, as the user's code says."""
        with self.lock:
            for each in passes_under_way():
                self._count_in(each)
            if not self._is_marking:
                self._is_marking = True
                self._marked.clear()
                self.tracks.clear()  # their steps were taken for steps because a loader was asked
                if threading.get_ident() != self._thread:
                    self._marked.begin(None)
            self._thread = threading.get_ident()
            if self._epoch_start_ns is None:
                self._epoch_start_ns = now_ns if self._marked.start_ns is None else self._marked.start_ns
            self._marked.end_step(number, now_ns)

    def mark_epoch(self, number: int | None, now_ns: int) -> int:
        """An epoch ends; returns its number."""
        with self.lock:
            epoch = self._next_epoch if number is None else number
            start_ns = now_ns if self._epoch_start_ns is None else self._epoch_start_ns
            self._epochs.append(EpochStats(epoch, start_ns, now_ns - start_ns, *self._training().end_epoch()))
            self._next_epoch = epoch + 1
            self._epoch_start_ns = now_ns
            for track in (self._marked, *self.tracks.values()):
                track.end_epoch()
            if self._is_marking and not self._has_waits:
                self._marked.begin(now_ns)  # no wait will tell where the next step begins
            return epoch

    def shift(self, spent_ns: int) -> None:
        """So much time was spent just now on what belongs to no step."""
        with self.lock:
            for track in (self._marked, *self.tracks.values()):
                track.shift(spent_ns)
            if self._epoch_start_ns is not None:
                self._epoch_start_ns += spent_ns

    # What is known

    def stats(self) -> StepStats:
        """All steps so far."""
        with self.lock:
            return self._training().stats()

    def epochs(self) -> tuple[EpochStats, ...]:
        """The epochs that have ended."""
        with self.lock:
            return tuple(self._epochs)

    def use_of(self, loader: int) -> LoaderUse:
        """What training steps took of a loader."""
        with self.lock:
            return self._training().use_by_loader.get(loader, LoaderUse())

    def _training(self) -> LoopSteps:
        if self._is_marking:
            return self._marked
        return max(self.tracks.values(), key=LoopSteps.rank, default=self._marked)


class _Local(threading.local):
    """The passes of the calling thread that are not over, the innermost last."""

    def __init__(self) -> None:
        self.passes: list[weakref.ref[LoaderPass]] = []


_local = _Local()
_steps = Steps()


def steps() -> Steps:
    """The steps of this process."""
    return _steps


def passes_under_way(joining: LoaderPass | None = None) -> list[LoaderPass]:
    """The passes of the calling thread that gave a batch and are not over; `joining` is added to them."""
    if joining is None and not _local.passes:
        return []
    refs = [ref() for ref in _local.passes]
    open_passes = [each for each in refs if each is not None and each is not joining and not each.is_over]
    _local.passes = [weakref.ref(each) for each in (open_passes if joining is None else (*open_passes, joining))]
    return [each for each in open_passes if each.is_under_way]


def mark_step(number: int | None = None) -> None:
    """A training step ends here (numbered on from 0 unless `number` says otherwise)."""
    if spans.is_enabled():
        now_ns = perf_counter_ns()
        _steps.mark_step(None if number is None else whole_number(number, "mark_step(number)"), now_ns)
        memory_series().look()


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


def _begin_anew() -> None:
    # A worker has no steps of its own, and another thread may have held the lock at the fork.
    global _local, _steps
    _local, _steps = _Local(), Steps()


os.register_at_fork(after_in_child=_begin_anew)
