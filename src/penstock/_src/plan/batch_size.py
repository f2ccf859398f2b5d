"""`find_max_batch_size`: the largest batch that trains, from a few real steps at small ones, without running out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from penstock._src.plan.probe.caching_allocator import Trace
from penstock._src.plan.probe.device_memory import DeviceMemory, is_out_of_memory, memory_of
from penstock._src.plan.probe.fit import (
    MOST_SAMPLES,
    LinearFit,
    ProbeFit,
    ProbePoint,
    climb,
    largest_batch,
    scaled_trace,
)
from penstock._src.plan.probe.host_plan import HostPlan
from penstock._src.plan.probe.training_state import TrainingState, same_random_numbers, to_device
from penstock._src.system.units import format_bytes, parse_bytes
from penstock.errors import LimitExceeded, UsageError

_STEPS = 3  # the optimizer's state appears in the first, the second takes the most, the third shows that it stays so
_BACK_OFF = 0.95
_TRIES = 3


@dataclass(frozen=True)
class BatchSizeReport:
    """The batch size, and what it rests on. `int(report)` is the batch size."""

    batch_size: int
    device: str
    ruled_by: str
    """What keeps the batch from being larger: "GPU 0", "host memory" or "max_batch_size"."""
    limit_bytes: int
    """What this process may hold on the device, before the margin."""
    margin: float
    method: str
    """"replay": the allocations of a step, replayed; "reserved": the line through reserved memory."""
    replay_error: float
    """How far replays of the last two points were from what was measured; infinite where nothing was recorded."""
    predicted_bytes: int
    """The peak of reserved memory at this batch, predicted."""
    allocated: LinearFit
    reserved: LinearFit
    linearity_error: float
    """How far a third point was from the line through two others."""
    points: tuple[ProbePoint, ...]
    confirmed: ProbePoint | None
    """The peak measured at the batch size itself."""
    out_of_memory: int
    """How often the confirmation ran out of memory, and a smaller batch was taken."""
    host_bytes: int
    """Host memory that the batches of a loader take at this size."""
    seconds: float

    def __int__(self) -> int:
        return self.batch_size

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def describe(self) -> str:
        """A few lines for people."""
        if self.confirmed is None:
            confirmed = "not confirmed"
        else:
            error = self.confirmed.reserved_bytes / max(self.predicted_bytes, 1) - 1
            confirmed = f"confirmed: {format_bytes(self.confirmed.reserved_bytes)} measured ({error:+.1%})"
        tried = ", ".join(str(point.batch_size) for point in self.points)
        fit = (
            f"{format_bytes(round(self.reserved.fixed_bytes))} + {format_bytes(round(self.reserved.sample_bytes))} · b"
        )
        return "\n".join(
            [
                f"batch size {self.batch_size:,} on {self.device}, limited by {self.ruled_by}",
                f"  limit      {format_bytes(self.limit_bytes)} less {self.margin:.0%} margin",
                f"  predicted  {format_bytes(self.predicted_bytes)} ({self.method}), {confirmed}",
                f"  reserved   {fit}, {self.linearity_error:.1%} off the line at a third point",
                f"  host       {format_bytes(self.host_bytes)} for the batches of a loader",
                f"  steps      at {tried} samples, {self.seconds:.1f} s",
            ]
        )


def find_max_batch_size(
    model: Any,
    make_batch: Callable[[int], Any],
    optimizer: Any,
    *,
    loss: Callable[[Any, Any], Any] | None = None,
    step: Callable[[Any, Any, Any], Any] | None = None,
    amp: Any = None,
    memory: str | int | None = None,
    margin: float = 0.02,
    start: int = 2,
    max_batch_size: int | None = None,
    multiple_of: int = 1,
    host_memory: str | int | None = None,
    host_batches: int = 5,
    pinned: bool = True,
    confirm: bool = True,
) -> BatchSizeReport:
    """The largest batch with which this model trains on its device, found by a few steps at smaller ones.

    `make_batch(n)` gives a batch of n samples, of any tensors. `loss(model, batch)` gives the loss; by default it is
    what the model returns, or its `loss`. `step(model, batch, optimizer)` replaces the whole step. `amp` is the dtype
    of autocast. `memory` and `host_memory` are limits below those that the machine grants. A loader holds
    `host_batches` batches on the host, each tensor `pinned`, which PyTorch rounds up to a power of two. Model,
    optimizer, gradients and random numbers are afterwards as they were.

    >>> report = find_max_batch_size(model, make_batch, optimizer, amp=torch.bfloat16)    # doctest: +SKIP
    """
    _check(margin, start, max_batch_size, multiple_of, host_batches)
    began = time.perf_counter()
    device = next(model.parameters()).device
    device_memory = memory_of(device)
    steps = _TrainingSteps(model, make_batch, optimizer, step or _Step(loss, amp, device), device)
    with same_random_numbers():
        try:
            host = HostPlan.of_batch(make_batch(start), start, host_memory, margin, host_batches, pinned)
            search = _Search(steps, device_memory, memory, margin, start, max_batch_size or MOST_SAMPLES, host)
            size = search.solve(multiple_of)
            confirmed, failures = search.confirm(size, multiple_of) if confirm else (None, 0)
        finally:
            steps.state.restore()
            device_memory.give_back()
    return search.report(confirmed, failures, size, time.perf_counter() - began)


def _check(margin: float, start: int, most: int | None, multiple_of: int, host_batches: int) -> None:
    if not 0 <= margin < 1:
        raise UsageError(f"margin={margin!r}: a share of the memory, from 0 to below 1")
    for name, value, least in (
        ("start", start, 1),
        ("max_batch_size", start if most is None else most, start),
        ("multiple_of", multiple_of, 1),
        ("host_batches", host_batches, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UsageError(f"{name}={value!r}: a whole number, {least} or more")


class _Step:
    """A usual training step: gradients cleared, loss, backward, optimizer."""

    def __init__(self, loss: Callable[[Any, Any], Any] | None, amp: Any, device: Any) -> None:
        self._loss, self._amp, self._device = loss or _own_loss, amp, device

    def __call__(self, model: Any, batch: Any, optimizer: Any) -> None:
        import torch

        optimizer.zero_grad(set_to_none=True)
        with nullcontext() if self._amp is None else torch.autocast(self._device.type, dtype=self._amp):
            value = self._loss(model, batch)
        value.backward()
        optimizer.step()


def _own_loss(model: Any, batch: Any) -> Any:
    """What the model returns: a scalar, or something with a `loss`; else the mean, which needs as much memory."""
    if isinstance(batch, Mapping):
        output = model(**batch)
    else:
        output = model(*batch) if isinstance(batch, (list, tuple)) else model(batch)
    output = output["loss"] if isinstance(output, Mapping) and "loss" in output else getattr(output, "loss", output)
    if not hasattr(output, "backward"):
        raise UsageError(
            f"the model returns a {type(output).__name__}, not a loss",
            hint="loss=lambda model, batch: …, a scalar tensor",
        )
    return output if output.dim() == 0 else output.float().mean()


class _TrainingSteps:
    """Training steps at any batch size, each probe from the optimizer's first state on."""

    def __init__(self, model: Any, make_batch: Callable[[int], Any], optimizer: Any, step: Any, device: Any) -> None:
        self._model, self._make_batch, self._optimizer = model, make_batch, optimizer
        self._step, self._device = step, device
        self.state = TrainingState(model, optimizer)

    def run(self, batch_size: int) -> None:
        for _ in range(_STEPS):
            self._step(self._model, to_device(self._make_batch(batch_size), self._device), self._optimizer)


class _Search:
    """The points measured, what follows from them, and the confirmation."""

    def __init__(
        self, steps: _TrainingSteps, memory: DeviceMemory, limit: str | int | None, margin: float, start: int,
        most: int, host: HostPlan,
    ) -> None:  # fmt: skip
        self._steps, self._memory, self._margin = steps, memory, margin
        self._start, self._most, self._host = start, most, host
        self._traces: list[Trace | None] = []
        self._given_bytes = None if limit is None else parse_bytes(limit)
        held = memory.held_bytes()
        self._climb: ProbeFit = climb(self._measure, self._limit_bytes(), start, most, held)
        self._limit = self._limit_bytes()  # now that all kernels are loaded
        self._scaled, self._replay_error = scaled_trace(self._traces)

    def _limit_bytes(self) -> int:
        self._steps.state.start_over()
        granted = self._memory.limit_bytes()
        return granted if self._given_bytes is None else min(granted, self._given_bytes)

    def _measure(self, batch_size: int) -> ProbePoint:
        self._steps.state.start_over()
        began = time.perf_counter()
        peak = self._memory.measure(lambda: self._steps.run(batch_size), batch_size)
        self._traces = [*self._traces[-1:], peak.trace]
        return ProbePoint(batch_size, peak.allocated_bytes, peak.reserved_bytes, time.perf_counter() - began)

    @property
    def _usable_bytes(self) -> int:
        return int(self._limit * (1 - self._margin))

    def _device_fits(self, batch_size: int) -> bool:
        if self._scaled is not None:
            return self._scaled.replay(batch_size, self._usable_bytes).fits
        beside = self._host.bytes(batch_size) if self._memory.is_host else 0
        return self._climb.reserved.at(batch_size) + beside <= self._usable_bytes

    def _host_fits(self, batch_size: int) -> bool:
        return self._memory.is_host or self._host.fits(batch_size)

    def solve(self, multiple_of: int) -> int:
        """The largest batch that fits device and host, less the margin."""
        known = self._climb.points[-1].batch_size
        high = min(self._most, max(known, self._climb.allocated.largest(self._usable_bytes)))
        largest = largest_batch(lambda size: self._host_fits(size) and self._device_fits(size), known, high)
        if not largest:
            largest = largest_batch(lambda size: self._host_fits(size) and self._device_fits(size), 1, known)
        if not largest:
            raise self._too_small()
        return largest // multiple_of * multiple_of or largest

    def _too_small(self) -> LimitExceeded:
        needed, limit = self._climb.reserved.at(1), self._usable_bytes
        where = self._memory.name
        if self._device_fits(1):
            needed, limit, where = self._host.bytes(1), self._host.limit_bytes, "the host"
        return LimitExceeded(
            f"not even one sample fits: {format_bytes(needed)} of {format_bytes(limit)} on {where}",
            size=needed,
            limit=limit,
            hint="a smaller model or optimizer, activation checkpointing, or fewer host_batches",
        )

    def confirm(self, size: int, multiple_of: int) -> tuple[ProbePoint, int]:
        """Steps at the batch found. Where they run out of memory after all, a smaller batch is taken, and counted."""
        for failures in range(_TRIES):
            try:
                return self._measure(size), failures
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                smaller = int(size * _BACK_OFF)
                size = max(1, smaller // multiple_of * multiple_of or smaller)
        return self._measure(size), _TRIES

    def report(self, confirmed: ProbePoint | None, failures: int, size: int, seconds: float) -> BatchSizeReport:
        """All that is known."""
        size = size if confirmed is None else confirmed.batch_size
        predicted = self._climb.reserved.at(size)
        if self._scaled is not None:
            predicted = self._scaled.replay(size, self._limit).reserved_bytes
        return BatchSizeReport(
            batch_size=size,
            device=self._memory.name,
            ruled_by=self._ruled_by(size, failures),
            limit_bytes=self._limit,
            margin=self._margin,
            method="reserved" if self._scaled is None else "replay",
            replay_error=self._replay_error,
            predicted_bytes=predicted,
            allocated=self._climb.allocated,
            reserved=self._climb.reserved,
            linearity_error=self._climb.linearity_error,
            points=self._climb.points,
            confirmed=confirmed,
            out_of_memory=failures,
            host_bytes=self._host.bytes(size),
            seconds=seconds,
        )

    def _ruled_by(self, size: int, failures: int) -> str:
        if failures or not self._device_fits(size + 1):
            return self._memory.name
        return "max_batch_size" if size >= self._most else "host memory"
