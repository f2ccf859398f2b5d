"""What a loader tells of the training loop: each `next` is a data wait, and from one to the following is a step.

    feeding = Feeding(loader)
    start_ns = feeding.ask()
    batch = ...
    feeding.take(start_ns, batch is not None)

Code that calls `mark_step()` says itself what a step is; then the loader tells the wait alone. Else the place in the
code that asks tells loops apart, so that the batches of a validation are no training steps.
"""

from __future__ import annotations

import sys
import threading
from time import perf_counter_ns, thread_time_ns

from penstock.profile import spans
from penstock.profile.counters import count
from penstock.profile.marks import add_wait, marks
from penstock.profile.track import Loop


class _Local(threading.local):
    """What the calling thread is doing."""

    is_ahead = False
    samples = 0


_local = _Local()
_NOT_THE_LOOP = ("penstock.", "torch.utils.data")


def work_ahead() -> None:
    """The calling thread prepares batches for the loop: what it waits for is no data wait."""
    _local.is_ahead = True


def is_ahead() -> bool:
    """Whether the calling thread prepares batches for the loop."""
    return _local.is_ahead


def begin_sample() -> None:
    """What the calling thread does now is a sample that is counted."""
    _local.samples += 1


def end_sample() -> None:
    """The sample is complete."""
    _local.samples -= 1


def is_in_sample() -> bool:
    """Whether the calling thread is inside a sample that is counted: what it asks for is a part of that one."""
    return _local.samples > 0


def _asking(loader: int) -> Loop:
    """The loop that asks: the innermost code that is neither penstock's nor torch's loader, and whether gradients are
    computed there."""
    frame = sys._getframe(2)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(_NOT_THE_LOOP):
        frame = frame.f_back
    is_grad = getattr(sys.modules.get("torch"), "is_grad_enabled", None)  # a thread may be importing it just now
    code, is_training = frame.f_code, is_grad is None or bool(is_grad())
    return Loop(code.co_filename, frame.f_lineno, is_training, code.co_firstlineno, loader)


class Feeding:
    """A loop over a loader, pass by pass."""

    __slots__ = ("__weakref__", "_cpu_ns", "_has_given", "_loop", "follows", "loader")

    def __init__(self, loader: object = None) -> None:
        self.loader = 0 if loader is None else id(loader)
        self.follows = False
        """Whether a pass over another loader, under way in the same loop, tells the steps."""
        self._has_given = False
        self._cpu_ns = 0
        self._loop = Loop("", 0, True)

    def ask(self) -> int:
        """The loop asks for a batch: the step before it is over."""
        start_ns = perf_counter_ns()
        if spans.is_enabled():
            if self._has_given:
                count("batches_used")
                # The CPU time is what the step keeps from the loader; several threads may share the iterator.
                marks().feed_step(start_ns, max(0, thread_time_ns() - self._cpu_ns), self._loop, self)
            self._loop = _asking(self.loader)
            if not self._has_given:
                marks().end_feed(self._loop, self)  # of a pass before, which may have been left in its midst
        return start_ns

    def take(self, start_ns: int, is_batch: bool) -> None:
        """The loop gets it, or learns that there is none."""
        if not spans.is_enabled():
            return
        if is_batch:
            self._has_given = True
            self._cpu_ns = thread_time_ns()
            add_wait(start_ns, perf_counter_ns() - start_ns, self._loop, self)
        elif self._has_given:
            self._has_given = False
            marks().end_feed(self._loop, self)
            self.follows = False
