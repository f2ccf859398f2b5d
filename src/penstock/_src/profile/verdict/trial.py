"""Trying a change for a short window: a variant of the loader against a replayed step, or the user's own."""

from __future__ import annotations

import hashlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from penstock._src.profile.loader_info import LoaderInfo
from penstock._src.profile.record.registry import loader_info_of, unregister
from penstock._src.profile.verdict.case import BatchCost, Fix, rounds_of
from penstock.errors import UsageError

Step = Callable[[Any], Any]
_WINDOWS = 3
_LEAST_STEPS = 6  # of a window
_UNSTEADY = 2  # first steps of a pass: its queue is empty
_FILL_S = 20.0  # a view that is tried is filled for a part of the data if all of it takes longer
_REPEATS = 7
_FEW_ROUNDS = 8  # of all workers' queues in a pass: with fewer, most of its waiting is for the first batches
_LONG_PASS_S = 20.0  # nobody waits for several of these


@dataclass(frozen=True)
class FixTrial:
    """A change as it was predicted, and as it was."""

    fix: Fix
    predicted_ms: float
    measured_ms: float
    windows_ms: tuple[float, ...]
    batches: int
    """Different ones that were gone through."""
    control_ms: float | None = None
    """The step without the change, measured just before and just after: a machine is not the same all day."""
    whole_passes: bool = False
    """Whether the beginnings of passes are in these numbers."""

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
        if self.cpu_ms:
            work = time.thread_time() + self.cpu_ms / 1e3
            while time.thread_time() < work:
                hashlib.sha256(self._block).digest()
        left = end - time.perf_counter()
        if left > 0:
            time.sleep(left)


def try_fix(
    loader: Any, fix: Fix, step: Step, *, seconds: float = 1.5, batch_ms: float = 0.0, control: bool = False,
    whole_passes: bool = False,
) -> FixTrial:  # fmt: skip
    """Run the loader with the change for three windows, with `control` one without it before and one after.

    `batch_ms` is what a batch takes now, to bound the filling of a view. With `whole_passes` the beginnings of passes
    belong to what is measured, as they always do where workers have passes too short for a steady state; else only
    that does.
    """
    if fix.predicted_step_ms is None:
        raise UsageError(f"{fix.name}: there is no prediction that could be checked")
    whole_passes = whole_passes or _needs_passes(loader, fix, max(batch_ms, fix.predicted_step_ms))
    most = max(4 * _LEAST_STEPS, int(_FILL_S * 1e3 / max(batch_ms, 1e-3))) if fix.needs_filling else None

    def without_it() -> list[float]:
        return _measured(loader, {}, step, seconds, 1, None, whole_passes)[0] if control else []

    before = without_it()
    measured, batches = _measured(loader, fix.change, step, seconds, _WINDOWS, most, whole_passes)
    controls = before + without_it()
    beside = statistics.fmean(controls) if controls else None
    found = statistics.median(measured), tuple(measured), batches, beside, whole_passes
    return FixTrial(fix, fix.predicted_step_ms, *found)


def _needs_passes(loader: Any, fix: Fix, step_ms: float) -> bool:
    """Whether the passes of a DataLoader are so short that its workers hardly get beyond their first batches."""
    info = loader_info_of(loader) if hasattr(loader, "describe") else LoaderInfo()
    workers = int(fix.change.get("num_workers", info.workers) or 0)
    if rounds_of(info, workers) >= _FEW_ROUNDS:
        return False
    if (seconds := (info.batches or 0) * step_ms / 1e3) > _LONG_PASS_S:
        raise UsageError(f"what it changes shows only over whole epochs, and one takes {seconds:.0f} s")
    return True


def _measured(
    loader: Any, change: Mapping[str, Any], step: Step, seconds: float, windows: int, most: int | None, whole: bool
) -> tuple[list[float], int]:
    with _variant(loader, change) as changed:
        if whole:
            return _passes(changed, step, seconds, windows)
        if most is not None:
            for _ in _pass(changed, most):  # fills the view
                continue
        return _windows(changed, step, seconds, windows, most)


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


def _windows(loader: Any, step: Step, seconds: float, windows: int, most: int | None) -> tuple[list[float], int]:
    found: list[float] = []
    times: list[float] = []
    widest = 0
    began = time.perf_counter()
    while len(found) < windows:
        before = time.perf_counter()
        number = 0
        for batch in _pass(loader, most):
            step(batch)
            _settle()
            del batch
            after = time.perf_counter()
            if number >= _UNSTEADY:
                times.append(after - before)
            before = after
            number += 1
            widest = max(widest, number)
            if len(times) >= _LEAST_STEPS and after - began >= seconds:
                found.append(statistics.fmean(times) * 1e3)
                times, began = [], after
                if len(found) == windows:
                    break
        if number <= _UNSTEADY and len(found) < windows:
            raise UsageError(
                f"an epoch has only {number} batches: too few to see a steady state", hint="a smaller batch_size"
            )
    return found, widest


def _passes(loader: Any, step: Step, seconds: float, windows: int) -> tuple[list[float], int]:
    """As `_windows`, of whole passes with their beginnings; the first, which starts everything, does not count."""
    widest = _through(loader, step)[1]
    found: list[float] = []
    while len(found) < windows:
        spent_s, steps = 0.0, 0
        while not steps or spent_s < seconds:
            took_s, count = _through(loader, step)
            if not count:
                raise UsageError("an epoch has no batches: there is nothing to measure")
            spent_s, steps = spent_s + took_s, steps + count
        found.append(spent_s / steps * 1e3)
    return found, widest


def _through(loader: Any, step: Step) -> tuple[float, int]:
    """One pass: (seconds from asking for its first batch to the end of its last step, steps)."""
    batches = iter(loader)
    began = ended = time.perf_counter()
    count = 0
    for batch in batches:
        step(batch)
        _settle()
        del batch
        ended = time.perf_counter()
        count += 1
    return ended - began, count


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
    low = _replayed_ms(loader, {"batch_size": half * processes}, step) if half else None
    high = None if low is None else _replayed_ms(loader, {}, step)
    if low is None or high is None:
        return None
    per_sample = (high - low) / (size - half)
    return BatchCost(high - per_sample * size, per_sample, (half, size))


def _replayed_ms(loader: Any, change: Mapping[str, Any], step: Step) -> float | None:
    """The shortest of some steps with one batch: what disturbs makes them longer, never shorter."""
    with ExitStack() as stack:
        try:
            changed = stack.enter_context(_variant(loader, change))
        except UsageError:  # a loader whose batches have no size
            return None
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
