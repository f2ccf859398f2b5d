"""What a step takes while the loader rests, and while it works: measured in the training itself.

Now and then the loader is held back for a few steps whose batches lie ready. Nobody waits for that, and the steps show
what the training takes alone. A loader that is not ahead is never held back.
"""

from __future__ import annotations

import statistics
from collections import deque
from time import perf_counter_ns
from typing import Protocol

from penstock._src.profile.record.spans import gauge, is_enabled
from penstock._src.profile.record.steps import STEP_ALONE, STEP_BESIDE

_EVERY = 50  # batches between two rests
_LEAST_COMPLETE = 2  # batches that lie ready when a rest begins
_KEPT = 101  # durations of each kind, the latest
_LEAST_STEPS = 6  # of a median


class Pausable(Protocol):
    """A pass whose work can be held back."""

    @property
    def n_complete(self) -> int:
        """Batches that lie ready."""

    @property
    def is_resting(self) -> bool:
        """Whether it is held back, and nothing is under way."""

    def hold(self, is_held: bool) -> None:
        """Begin no further batch, or go on."""


class StepProbe:
    """Times the steps of one loop over a loader, and lets the loader rest in some of them."""

    def __init__(self, own: Pausable) -> None:
        self._own = own
        self._batches = 0
        self._took_ns = 0
        self._is_held = self._was_resting = False
        self._without_loader: deque[int] = deque(maxlen=_KEPT)
        self._with_loader: deque[int] = deque(maxlen=_KEPT)

    def before_step(self, now_ns: int) -> None:
        """The loop asks for a batch: the step before it is over."""
        if not self._took_ns:
            return
        if not self._is_held:
            self._with_loader.append(now_ns - self._took_ns)
        elif self._was_resting and self._own.is_resting:
            self._without_loader.append(now_ns - self._took_ns)
        self._took_ns = 0

    def begin_step(self) -> None:
        """The loop has got a batch, and the step begins."""
        if not is_enabled():
            return
        self._batches += 1
        if self._is_held:
            if self._own.n_complete < _LEAST_COMPLETE:
                self.resume()
        elif self._batches % _EVERY == 0 and self._own.n_complete >= _LEAST_COMPLETE:
            self._is_held = True
            self._own.hold(True)
        self._was_resting = self._is_held and self._own.is_resting
        self._took_ns = perf_counter_ns()

    def resume(self) -> None:
        """The loader works again; what is known now is recorded."""
        if not self._is_held:
            return
        self._is_held = False
        self._own.hold(False)
        if min(len(self._without_loader), len(self._with_loader)) >= _LEAST_STEPS:
            gauge(STEP_ALONE, statistics.median(self._without_loader) / 1e6)
            gauge(STEP_BESIDE, statistics.median(self._with_loader) / 1e6)
