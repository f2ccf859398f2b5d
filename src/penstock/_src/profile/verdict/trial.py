"""Trying a change for a short window: a variant of the loader against a replayed step, or the user's own."""

from __future__ import annotations

import hashlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from penstock._src.profile.record.registry import unregister
from penstock._src.profile.verdict.model import BatchCost, Fix
from penstock.errors import UsageError

Step = Callable[[Any], Any]
_WINDOWS = 3
_LEAST_STEPS = 6  # of a window
_UNSTEADY = 2  # first steps of all: the queue is empty
_FILL_S = 20.0  # a view that is tried is filled for a part of the data if all of it takes longer
_REPEATS = 7


@dataclass(frozen=True)
class FixTrial:
    """A change as it was predicted, and as it was."""

    fix: Fix
    predicted_ms: float
    measured_ms: float
    windows_ms: tuple[float, ...]
    control_ms: float | None = None
    """The step without the change, measured just before and just after: a machine is not the same all day."""

    @property
    def error(self) -> float:
        """Of the prediction, as a part of what was measured; below 0: predicted too short."""
        return self.predicted_ms / self.measured_ms - 1

    @property
    def is_gain(self) -> bool:
        """Whether the step, for as many samples as now, got shorter; without a control nobody knows that it did not."""
        return self.control_ms is None or self.measured_ms / self.fix.batch_factor < self.control_ms


class Replay:
    """A step of known length: so much work on a CPU (without Python's lock, as a library's), then sleep."""

    def __init__(self, ms: float, cpu_ms: float = 0.0) -> None:
        self.ms, self.cpu_ms = ms, min(cpu_ms, ms)
        self._block = bytes(1 << 16)

    def __call__(self, batch: Any) -> None:
        end = time.perf_counter() + self.ms / 1e3
        work = time.thread_time() + self.cpu_ms / 1e3
        while self.cpu_ms and time.thread_time() < work:
            hashlib.sha256(self._block).digest()
        if (left := end - time.perf_counter()) > 0:
            time.sleep(left)


def try_fix(
    loader: Any, fix: Fix, step: Step, *, seconds: float = 1.5, batch_ms: float = 0.0, control: bool = False,
    whole_passes: bool = False,
) -> FixTrial:  # fmt: skip
    """Run the loader with the change for three windows, with `control` one without it before and one after.

    `batch_ms` is what a batch takes now, to bound the filling of a view. With `whole_passes` a window ends with a pass,
    so that the beginnings of passes are in it as often as in the training.
    """
    if fix.predicted_step_ms is None:
        raise UsageError(f"{fix.name}: there is no prediction that could be checked")
    most = max(4 * _LEAST_STEPS, int(_FILL_S * 1e3 / max(batch_ms, 1e-3))) if fix.needs_filling else None

    def measured(change: Mapping[str, Any], windows: int, most: int | None) -> list[float]:
        with _variant(loader, change) as changed:
            if most is not None:
                for _ in _pass(changed, most):  # fills the view
                    continue
            return _windows(changed, step, seconds, windows, most, whole_passes)

    controls = measured({}, 1, None) if control else []
    found = measured(fix.change, _WINDOWS, most)
    controls += measured({}, 1, None) if control else []
    beside = statistics.fmean(controls) if controls else None
    return FixTrial(fix, fix.predicted_step_ms, statistics.median(found), tuple(found), beside)


def _variant(loader: Any, change: Mapping[str, Any]) -> closing[Any]:
    made = loader.variant(**change)
    unregister(made, forget=True)  # only tried: snapshots speak of what is trained with
    return closing(made)


def _pass(loader: Any, most: int | None) -> Iterator[Any]:
    """The batches of an epoch; where only `most` are wanted, always the same ones."""
    if most is not None and hasattr(loader, "set_epoch"):
        loader.set_epoch(0)
    return itertools.islice(loader, most)


def _windows(loader: Any, step: Step, seconds: float, windows: int, most: int | None, whole: bool) -> list[float]:
    """The mean step of each window in ms."""
    found: list[float] = []
    times: list[float] = []
    for more in _step_times(loader, step, most, whole):
        times += more
        if len(times) >= (1 if whole else _LEAST_STEPS) and sum(times) >= seconds:
            found.append(statistics.fmean(times) * 1e3)
            times = []
        if len(found) == windows:
            break
    return found


def _step_times(loader: Any, step: Step, most: int | None, whole: bool) -> Iterator[list[float]]:
    """What steps take, one by one or by `whole` passes, pass after pass; the first steps of a pass do not count, nor,
    of whole passes, the first, which starts everything."""
    before = time.perf_counter()
    for round_number in itertools.count():
        number, times = 0, []
        for number, batch in enumerate(_pass(loader, most), 1):
            step(batch)
            _settle()
            del batch
            took, before = time.perf_counter() - before, time.perf_counter()
            if whole:
                times.append(took)
            elif number > _UNSTEADY:
                yield [took]
        if not number or (number <= _UNSTEADY and not whole):
            raise UsageError(
                f"an epoch has only {number} batches: too few to see a steady state", hint="a smaller batch_size"
            )
        if whole and round_number:
            yield times


def _settle() -> None:
    """What a step only began on a GPU is its own time, too."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def batch_cost(loader: Any, step: Step, size: int, processes: int = 1) -> BatchCost | None:
    """What the user's step takes for a batch of this process and for half of one, replayed without the loader at work.

    None where the loader has no such batches. What the step raises is the user's to see.
    """
    half = size // 2
    try:
        low = _replayed_ms(loader, {"batch_size": half * processes}, step) if half else None
        high = _replayed_ms(loader, {}, step)
    except UsageError:  # a loader whose batches have no size
        low = high = None
    if low is None or high is None:
        return None
    per_sample = (high - low) / (size - half)
    return BatchCost(high - per_sample * size, per_sample, (half, size))


def _replayed_ms(loader: Any, change: Mapping[str, Any], step: Step) -> float | None:
    """The shortest of some steps with one batch: what disturbs makes them longer, never shorter."""
    with _variant(loader, change) as changed:
        batch = next(iter(_pass(changed, 1)), None)
        if batch is None:
            return None
        times = []
        for _ in range(_REPEATS + 1):
            began = time.perf_counter()
            step(batch)
            _settle()
            times.append(time.perf_counter() - began)
    return min(times[1:]) * 1e3  # the first warms up


@contextmanager
def preserved_rng_state() -> Iterator[None]:
    """Afterwards the generators that everybody shares (Python's, numpy's, torch's) stand where they stood: a trial
    must not change what is trained."""
    import numpy as np

    torch: Any = sys.modules.get("torch")
    with ExitStack() as restoring:
        restoring.callback(random.setstate, random.getstate())
        restoring.callback(np.random.set_state, np.random.get_state())
        if hasattr(torch, "get_rng_state"):  # it may be just being imported
            restoring.callback(torch.set_rng_state, torch.get_rng_state())
            if torch.cuda.is_initialized():
                restoring.callback(torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all())
        yield
