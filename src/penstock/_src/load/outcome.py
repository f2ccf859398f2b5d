"""What a loader that obeys a plan delivered, against what the plan predicted: one line at its end, kept in the history.

The loader's memory lies between what it counts itself (slots, views, numbers) and what the process grew by, which holds
the training, too. Samples/s are compared where the training waited for batches: else they are those of the training.
"""

from __future__ import annotations

import os
import sys
import weakref
from time import perf_counter
from typing import TYPE_CHECKING

from penstock._src.plan.history import RunOutcome, record
from penstock._src.plan.load_plan import LoadPlan
from penstock._src.system.cache_directory import cache_directory, has_directory
from penstock._src.system.memory import anonymous_bytes

if TYPE_CHECKING:
    from penstock._src.load.loader import Loader

_ROUNDS = 2  # of batches in every slot: before, threads and decoders are being made
_LEAST_BATCHES = 3  # that are timed
_BOUND = 0.1  # of the time: with a smaller wait the loader does not limit the training


class PlannedRun:
    """Counts while batches are handed out; `end` is called once, at the end of the loader or of the process."""

    def __init__(self, plan: LoadPlan, loader: Loader) -> None:
        self._plan, self._warm = plan, _ROUNDS * loader.memory_split.slots
        self._pid, self._start_bytes = os.getpid(), anonymous_bytes()
        self._batches = self._timed = self._samples = 0
        self._began_s = self._last_s = self._waited_s = 0.0
        self._counted_bytes = self._grown_bytes = 0
        self.end = weakref.finalize(loader, self._finish)

    def take(self, samples: int, asked_s: float, epoch: int, loader: Loader) -> None:
        """A batch was handed out; the first epoch fills a view, which a plan's samples/s leave out."""
        now = perf_counter()
        self._batches += 1
        if self._batches & (self._batches - 1) == 0 or self._batches == self._warm:  # rarely: it reads /proc
            self._measure(loader)
        if self._batches <= self._warm or (epoch == 0 and self._plan.chosen.view != "off"):
            self._began_s = now
            return
        self._timed += 1
        self._samples += samples
        self._waited_s += now - asked_s
        self._last_s = now

    def _measure(self, loader: Loader) -> None:
        split = loader.memory_split
        slots = split.slots * split.slot_bytes
        own = [view for view in loader._views if view.path is None and not view.is_shared]
        views = sum(view.n_filled * view.spec.row_bytes for view in own)
        engine = loader.stats()["engine"].get("private_bytes")  # of a process of its own; its slots are shared memory
        elsewhere = views if engine is None else views + slots + engine
        self._counted_bytes = max(self._counted_bytes, slots + split.table_bytes + views)
        grown_bytes = anonymous_bytes() - self._start_bytes + elsewhere
        self._grown_bytes = max(self._grown_bytes, grown_bytes, self._counted_bytes)

    @property
    def outcome(self) -> RunOutcome | None:
        """None where there were too few batches."""
        if self._batches <= self._warm:
            return None
        plan, rate, waited = self._plan, 0.0, None
        if self._timed >= _LEAST_BATCHES and self._last_s > self._began_s:
            rate = self._samples / (self._last_s - self._began_s)
            waited = self._waited_s / (self._last_s - self._began_s)
        return RunOutcome(
            kind="load",
            what=f"{plan.kind}, {plan.chosen.name}",
            predicted_peak_bytes=plan.peak_bytes,
            peak_bytes=self._grown_bytes,
            counted_bytes=self._counted_bytes,
            predicted_rate=plan.samples_per_s if rate else 0.0,
            rate=rate,
            waited=waited,
            is_bound=waited is None or waited >= _BOUND,
        )

    def _finish(self) -> None:
        """Print one line and keep it. Never an error: a training has ended."""
        if os.getpid() != self._pid:
            return
        try:
            outcome = self.outcome
            if outcome is not None:
                print(f"penstock: loading: {outcome.line}", file=sys.stderr, flush=True)
                if has_directory():
                    record(outcome, cache_directory())
        except Exception:
            return


def follow(loader: Loader, plan: LoadPlan | None, world: int) -> PlannedRun | None:
    """Compare the loader with its plan from now on. A plan is of one process: of several, each gets a part of the CPUs,
    and nothing is compared."""
    return PlannedRun(plan, loader) if plan is not None and world == 1 else None
