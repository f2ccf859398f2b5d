"""The steps of one loop (`Track`), and which loop a batch is for (`Loops`): by who asks which loader, and where."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from penstock.profile.record.histogram import Histogram
from penstock.profile.record.loader_ids import loader_ids
from penstock.profile.snapshot import StepPoint, StepStats

MAX_POINTS = 4096
MAX_TRACKS = 32
MAX_LOADERS = 64

Holder = weakref.ref[Any] | None
"""The pass over a loader that is under way."""


class Loop:
    """A place in the user's code that asks a loader for batches, with or without gradients.

    `function` is the line where the function begins that asks, `loader` its number (`loader_ids`; 0: not known).
    """

    __slots__ = ("around", "by_loader", "by_place", "is_training", "line", "loader")

    def __init__(self, file: str, line: int, is_training: bool, function: int = 0, loader: int = 0) -> None:
        self.line, self.is_training, self.loader = line, is_training, loader
        self.around: tuple[Any, ...] = (file, function, is_training)
        self.by_loader: tuple[Any, ...] = ("loader", loader, *self.around)
        self.by_place: tuple[Any, ...] = ("line", line, *self.around)


class Series:
    """Step points in constant memory: when full, neighbours are merged and every point stands for twice as many."""

    def __init__(self) -> None:
        self.steps_per_point = 1
        self._points: list[StepPoint] = []
        self._pending: list[StepPoint] = []

    def add(self, point: StepPoint) -> None:
        """Append one step."""
        if self.steps_per_point == 1:
            self._points.append(point)
            self._merge()
            return
        self._pending.append(point)
        if len(self._pending) < self.steps_per_point:
            return
        self._points.append(_mean(self._pending))
        self._pending.clear()
        self._merge()

    def _merge(self) -> None:
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


class Fed:
    """A sum by loader (batches, nanoseconds), asked for by its number or by the id of one that lives.

    Of very many the least are forgotten: some code makes a new loader for every epoch.
    """

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}

    def add(self, loader: int, more: int = 1) -> None:
        """So many more; below 0: fewer."""
        self._counts[loader] = self._counts.get(loader, 0) + more
        if len(self._counts) > MAX_LOADERS:
            del self._counts[min((each for each in self._counts if each != loader), key=self._counts.__getitem__)]

    def get(self, loader: int, default: int = 0) -> int:
        return self._counts.get(loader_ids.at(loader), default)

    def __len__(self) -> int:
        return len(self._counts)


class Track:
    """The steps of one loop."""

    def __init__(self) -> None:
        self.start_ns: int | None = None
        self.is_training = True
        self.holder: Holder = None
        self._follows_mark = False
        self._wait_ns = self._waits = 0
        self.clear()

    def clear(self) -> None:
        """Forget the steps; one that is under way goes on."""
        self._steps = Histogram()
        self._series = Series()
        self._wait_total_ns = self._cpu_total_ns = self._next_step = self._batches = 0
        self._epoch_steps = self._epoch_steps_ns = self._epoch_wait_ns = 0
        self.fed = Fed()
        self.waited_ns, self.beside_ns = Fed(), Fed()  # by loader: all, and those that only accompany another

    @property
    def has_waited(self) -> bool:
        """Whether the step under way has waited for data."""
        return self._waits > 0

    @property
    def total_ns(self) -> int:
        """What its steps took together."""
        return self._steps.total_ns

    def add_wait(self, start_ns: int, duration_ns: int, *, anew: bool = False) -> None:
        """The loop waited for data: a part of its step, or its beginning. `anew`: what was waited for before the first
        mark was for something else."""
        if self.start_ns is None or (anew and not self._follows_mark):
            self.start_ns, self._wait_ns, self._waits = start_ns, 0, 0
        self._wait_ns += duration_ns
        self._waits += 1

    def note_wait(self, loader: int, duration_ns: int, is_companion: bool) -> None:
        """For which loader it was that the loop waited."""
        self.waited_ns.add(loader, duration_ns)
        if is_companion:
            self.beside_ns.add(loader, duration_ns)

    def add_batch(self, cpu_ns: int, loader: int) -> None:
        """A batch was used: so long has the thread of the loop worked since it got it."""
        self._batches += 1
        self.fed.add(loader)
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
        self.start_ns, self._wait_ns, self._waits, self._follows_mark = now_ns, 0, 0, True

    def leave(self) -> None:
        """What follows belongs to no step, until the next wait."""
        self.start_ns, self._wait_ns, self._waits, self._follows_mark = None, 0, 0, False

    def shift(self, spent_ns: int) -> None:
        """So much time was spent that belongs to no step."""
        if self.start_ns is not None:
            self.start_ns += spent_ns

    def take_back(self, passed: Passed) -> None:
        """What a pass waited was for something else than the step under way."""
        self._waits = max(0, self._waits - passed.waits)
        self._wait_ns = max(0, self._wait_ns - passed.wait_ns)
        self.note_wait(passed.loop.loader, -passed.wait_ns, passed.leader is not None)

    def take_out(self, passed: Passed, spent_ns: int, has_waited: bool) -> None:
        """A pass inside the step under way is no part of it; not if the step began inside the pass.

        `has_waited`: its waits and batches were counted here.
        """
        start_ns = self.start_ns
        if start_ns is None or start_ns > passed.began_ns:
            return
        if has_waited:
            self.take_back(passed)
            self._batches -= passed.batches
            self._cpu_total_ns -= passed.cpu_ns
            self.fed.add(passed.loop.loader, -passed.batches)
        if start_ns == passed.began_ns:
            self.leave()  # its first wait was taken for the beginning of a step
        else:
            self.start_ns = start_ns + spent_ns

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


class Passed(NamedTuple):
    """A pass that is over, and what it told."""

    loop: Loop
    began_ns: int
    leader: Track | None
    """Whose companion it was taken for."""
    waits: int
    wait_ns: int
    batches: int
    cpu_ns: int


class Loops:
    """The tracks of all loops.

    One loader that is asked by one function is one loop, wherever in it; so is a line that asks a loader which is made
    anew for every epoch. A second loader that a function asks while a pass over the first is under way (`zip`) feeds
    the same steps: it is a companion, which ends none of them. One whose pass is over before the first is asked again
    was none (`take_out`).
    """

    def __init__(self) -> None:
        self.tracks: list[Track] = []
        self._known: dict[tuple[Any, ...], Track] = {}
        self._most_known = MAX_LOADERS
        self._around: dict[int, tuple[Any, ...]] = {}

    def find(self, loop: Loop, by: Any = None) -> tuple[Track, bool]:
        """(the track of a loop, whether the pass `by` is a companion there)."""
        leader = None if by is None else by.leader
        if leader is not None and leader in self.tracks:
            return leader, True  # to its end, which may come after that of the first
        found = self._known.get(loop.by_loader) if loop.loader else None
        if found is not None and not self._is_held(found, by):
            return found, False
        leader = next((each for each in self.tracks if self._leads(each, loop, by)), None)
        if leader is not None:
            by.leader = leader
            return leader, True
        found = self._known.get(loop.by_place) or self._new(loop)
        if loop.loader:
            self._known[loop.by_loader] = found
        self._known[loop.by_place] = found
        if len(self._known) > self._most_known:
            self._forget_loaders()
        return found, False

    def take_out(self, passed: Passed, spent: Sequence[tuple[Any, int]]) -> None:
        """A pass began and ended inside steps of others; `spent`: so much of each of those was this pass."""
        for by, spent_ns in spent:
            for track in self.tracks:
                if track.holder is not None and track.holder() is by:
                    track.shift(spent_ns)
                    if track is passed.leader:
                        track.take_back(passed)

    def _forget_loaders(self) -> None:
        """Of loaders that are gone nobody asks again."""
        known = self._known.items()
        self._known = {key: each for key, each in known if key[0] != "loader" or loader_ids.is_living(key[1])}
        self._most_known = max(MAX_LOADERS, 2 * len(self._known))

    def _leads(self, track: Track, loop: Loop, by: Any) -> bool:
        return by is not None and self._around[id(track)] == loop.around and self._is_held(track, by)

    def _is_held(self, track: Track, by: Any) -> bool:
        """Whether another pass is under way there, by a loader that was not just given up in its midst."""
        held = track.holder() if track.holder is not None else None
        return by is not None and held is not None and held is not by and held.loader != by.loader

    def _new(self, loop: Loop) -> Track:
        if len(self.tracks) >= MAX_TRACKS:  # code that is made anew for every pass
            least = min(self.tracks, key=lambda each: each.total_ns)
            self.tracks.remove(least)
            del self._around[id(least)]
            self._known = {key: each for key, each in self._known.items() if each is not least}
        made = Track()
        made.is_training = loop.is_training
        self.tracks.append(made)
        self._around[id(made)] = loop.around
        return made
