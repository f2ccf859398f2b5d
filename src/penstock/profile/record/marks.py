"""Steps and epochs as marks, and the data wait of the training loop, kept by the process that trains.

    for batch in loader:        # the loader's wait, or `with data_wait():` around next(...)
        ...
        mark_step()             # at the end of the step
    mark_epoch()

A step reaches from the mark before it to its own. The first one, and the first after an epoch or the end of a pass,
begins with the first wait of the pass that trains (with the last `data_wait()` before its mark): what lies between,
validation and checkpoints, belongs to no step. Where nothing tells a wait, the first after an epoch begins with the
mark of that epoch.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from penstock.profile.record import spans
from penstock.profile.record.board import after_fork
from penstock.profile.record.machine import look_at_memory
from penstock.profile.record.numbers import whole
from penstock.profile.record.track import Loop, Loops, Passed, Track
from penstock.profile.snapshot import EpochStats, StepStats

MAX_EPOCHS = 4096
WAIT = "data_wait"


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
        self._is_user_marking = self._has_waits = self._has_training = False
        self._marking_thread = 0
        self._waiting_threads: set[int] = set()
        self._marked = Track()
        self._loops = Loops()
        self._epochs: deque[EpochStats] = deque(maxlen=MAX_EPOCHS)
        self._next_epoch = 0
        self._epoch_start_ns: int | None = None

    def add_wait(self, start_ns: int, duration_ns: int, loop: Loop | None = None, by: Any = None) -> None:
        """The training loop waited for data; `loop` and `by`: which one and in which pass, where a loader tells."""
        with self.lock:
            self._has_waits = True
            is_of_marked = self._is_of_marked(loop)
            if is_of_marked:
                self._waiting_threads.add(threading.get_ident())
                self._marked.add_wait(start_ns, duration_ns, anew=loop is None)
            if loop is not None:
                track, is_companion = self._loops.find(loop, by)
                track.add_wait(start_ns, duration_ns)
                for each in (track, self._marked) if is_of_marked else (track,):
                    each.note_wait(loop.loader, duration_ns, is_companion)
                if not is_companion and by is not None:
                    track.holder = weakref.ref(by)
            if self._epoch_start_ns is None:
                self._epoch_start_ns = start_ns

    def _is_of_marked(self, loop: Loop | None) -> bool:
        """Whether steps that are marked by hand wait there: not for a validation, nor in a thread that works ahead."""
        if self._is_user_marking and threading.get_ident() != self._marking_thread:
            return False
        if loop is None:
            return True
        if loop.is_training and not self._has_training:
            self._has_training = True
            self._marked.leave()  # what was waited for without gradients was something else
        return loop.is_training or not self._has_training

    def feed_step(self, now_ns: int, cpu_ns: int, loop: Loop, by: Any = None) -> None:
        """A loop asks its loader for the next batch: its step ends, unless the user's code marks steps itself."""
        with self.lock:
            if self._is_of_marked(loop):
                self._marked.add_batch(cpu_ns, loop.loader)
            if self._is_user_marking:
                return
            track, is_companion = self._loops.find(loop, by)
            if not is_companion:
                track.add_batch(cpu_ns, loop.loader)
                track.end_step(None, now_ns)
        look_at_memory()

    def end_feed(self, loop: Loop, by: Any = None) -> None:
        """A pass is over, or another begins where one was given up: what lies between belongs to no step."""
        with self.lock:
            if not self._is_user_marking or (loop.is_training and not self._marked.has_waited):
                self._marked.leave()  # but not a step that goes on over the end of a pass
            track, is_companion = self._loops.find(loop, by)
            if not is_companion:
                track.leave()
                track.holder = None

    def take_out(self, passed: Passed, spent: Sequence[tuple[Any, int]], is_freed: bool = False) -> None:
        """A pass began and ended inside steps of others, and is no part of them; `spent`: of each so much was it."""
        # Python frees things wherever it likes, also in the midst of what this lock guards.
        if not self.lock.acquire(blocking=not is_freed):
            return
        try:
            self._loops.take_out(passed, spent)
            if not self._is_user_marking or threading.get_ident() == self._marking_thread:
                longest_ns = max(spent_ns for _, spent_ns in spent)
                self._marked.take_out(passed, longest_ns, self._is_of_marked(passed.loop))
        finally:
            self.lock.release()

    def shift(self, spent_ns: int) -> None:
        """So much time was spent just now on what belongs to no step."""
        with self.lock:
            for track in (self._marked, *self._loops.tracks):
                track.shift(spent_ns)
            if self._epoch_start_ns is not None:
                self._epoch_start_ns += spent_ns

    def fed_by(self, loader: int) -> int:
        """How many batches of a loader went into training steps."""
        with self.lock:
            return self._main().fed.get(loader, 0)

    def waited_for(self, loader: int) -> tuple[int, bool]:
        """How many nanoseconds training steps waited for a loader, and whether it only accompanies another there."""
        with self.lock:
            main = self._main()
            return max(main.waited_ns.get(loader), 0), main.beside_ns.get(loader) > 0

    def mark_step(self, number: int | None, now_ns: int) -> None:
        """A step ends, as the user's code says."""
        with self.lock:
            self._marking_thread = threading.get_ident()
            if not self._is_user_marking:
                self._is_user_marking = True
                self._marked.clear()
                self._loops = Loops()  # their steps were taken for steps because a loader was asked
                if self._marking_thread not in self._waiting_threads:
                    self._marked.leave()
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
            for track in (self._marked, *self._loops.tracks):
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

    def _main(self) -> Track:
        if self._is_user_marking:
            return self._marked
        return max(self._loops.tracks, key=lambda each: (each.is_training, each.total_ns), default=self._marked)


_marks = Marks()


def marks() -> Marks:
    """The marks of this process."""
    return _marks


def mark_step(number: int | None = None) -> None:
    """A training step ends here (numbered on from 0 unless told)."""
    if spans._is_enabled:
        now_ns = perf_counter_ns()
        _marks.mark_step(None if number is None else whole(number, "mark_step(number)"), now_ns)
        look_at_memory()


def add_wait(start_ns: int, duration_ns: int, loop: Loop | None = None, by: Any = None) -> None:
    """The training loop waited for data: for those that measure it themselves; also a call of the span `data_wait`."""
    if spans._is_enabled:
        spans.record(WAIT, duration_ns, start_ns)
        _marks.add_wait(start_ns, duration_ns, loop, by)


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
