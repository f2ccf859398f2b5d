"""Trying a change for a short window: a variant of the loader against a replayed step, or the user's own."""

from __future__ import annotations

import hashlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
    batches: int
    """That were gone through in the windows."""
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

    def to_dict(self) -> dict[str, Any]:
        return {"fix": self.fix.name, "change": dict(self.fix.change), "predicted_ms": round(self.predicted_ms, 3),
                "measured_ms": round(self.measured_ms, 3), "error": round(self.error, 4),
                "windows_ms": [round(each, 3) for each in self.windows_ms], "batches": self.batches,
                "control_ms": None if self.control_ms is None else round(self.control_ms, 3)}  # fmt: skip


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

    def measured(change: Mapping[str, Any], windows: int, most: int | None) -> tuple[list[float], int]:
        with _variant(loader, change) as changed:
            if most is not None:
                for _ in _pass(changed, most):  # fills the view
                    continue
            return _windows(changed, step, seconds, windows, most, whole_passes)

    controls = measured({}, 1, None)[0] if control else []
    found, batches = measured(fix.change, _WINDOWS, most)
    controls += measured({}, 1, None)[0] if control else []
    beside = statistics.fmean(controls) if controls else None
    return FixTrial(fix, fix.predicted_step_ms, statistics.median(found), tuple(found), batches, beside)


@contextmanager
def _variant(loader: Any, change: Mapping[str, Any]) -> Iterator[Any]:
    if not hasattr(loader, "variant"):
        raise UsageError(f"{type(loader).__name__} cannot be varied", hint="it has no variant(**options)")
    made = loader.variant(**change)
    unregister(made, forget=True)  # only tried: snapshots speak of what is trained with
    try:
        yield made
    finally:
        made.close()


def _pass(loader: Any, most: int | None) -> Iterator[Any]:
    """The batches of an epoch; where only `most` are wanted, always the same ones."""
    begin = getattr(loader, "set_epoch", None)
    if most is not None and begin is not None:
        begin(0)
    for number, batch in enumerate(loader):
        yield batch
        if most is not None and number + 1 >= most:
            return


def _windows(
    loader: Any, step: Step, seconds: float, windows: int, most: int | None, whole: bool
) -> tuple[list[float], int]:
    """(mean step of each window in ms, steps of all of them), pass after pass; the very first steps do not count, nor,
    of whole passes, the first, which starts everything."""
    found: list[float] = []
    times: list[float] = []
    total = number = 0
    is_first, before = True, time.perf_counter()
    while len(found) < windows:
        number = 0
        for batch in _pass(loader, most):
            step(batch)
            _settle()
            del batch
            after = time.perf_counter()
            number += 1
            if number > _UNSTEADY or (whole and not is_first):
                times.append(after - before)
            before = after
            if not whole and len(times) >= _LEAST_STEPS and sum(times) >= seconds:
                found.append(statistics.fmean(times) * 1e3)
                total, times = total + len(times), []
                if len(found) == windows:
                    break
        if not number or (number <= _UNSTEADY and not whole):
            raise UsageError(
                f"an epoch has only {number} batches: too few to see a steady state", hint="a smaller batch_size"
            )
        if whole and is_first:
            times = []
        elif whole and sum(times) >= seconds:
            found.append(statistics.fmean(times) * 1e3)
            total, times = total + len(times), []
        is_first = False
    return found, total


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
        return None
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
    numpy = getattr(sys.modules.get("numpy"), "random", None)
    torch: Any = sys.modules.get("torch")
    kept: list[tuple[Callable[[Any], Any], Any]] = [(random.setstate, random.getstate())]
    if numpy is not None:
        kept.append((numpy.set_state, numpy.get_state()))
    if hasattr(torch, "get_rng_state"):  # it may be just being imported
        kept.append((torch.set_rng_state, torch.get_rng_state()))
        if torch.cuda.is_initialized():
            kept.append((torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()))
    try:
        yield
    finally:
        for restore, state in kept:
            restore(state)
