"""Where batches go: numpy arrays, torch tensors over the same memory, or a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Protocol

from penstock._src.load.engine.job import BatchIterator, ReadyBatch
from penstock._src.load.engine.slots import Register
from penstock._src.load.engine.source import ImageColumn, Shaping
from penstock._src.load.engine.stages import HAND_OUT, now_ns
from penstock._src.load.epoch import Pass
from penstock._src.load.settings import OUTPUTS, gives_tensors, one_of
from penstock._src.load.step_probe import StepProbe
from penstock._src.profile.record.spans import gauge, record_calls
from penstock._src.profile.record.steps import LoaderPass
from penstock.errors import MissingExtra, UsageError


class Target(Protocol):
    """What becomes of a job once its images are in their places."""

    shaping: Shaping
    """How the threads make images; a device may finish the rest."""
    notes: tuple[str, ...]
    register: Register | None
    """Prepares the memory of a slot; None: nothing to do."""
    device: Any
    """Where batches lie: "cpu", or torch's device."""
    is_device: bool
    is_torch: bool

    def keeps_encoded(self, column: ImageColumn) -> bool:
        """Whether the device decodes this column."""

    def begin(self, own: Pass) -> BatchIterator:
        """Hand out the jobs of a pass."""

    def close(self) -> None:
        """Give back what all passes shared."""


def target_for(device: Any, output: str, gpu_decode: bool | str, shaping: Shaping) -> Target:
    """By the words of a loader: `device` None or "cpu" gives arrays or tensors in memory."""
    one_of("output", output, OUTPUTS)
    if gpu_decode not in (True, False, "auto"):
        raise UsageError(f"gpu_decode={gpu_decode!r}", hint='True, False or "auto"')
    if device is not None and str(device).partition(":")[0] != "cpu":
        from penstock._src.load.device.cuda import CudaTarget

        return CudaTarget(device, gpu_decode, shaping)
    target = HostTarget(shaping, gives_tensors(output, device))
    if gpu_decode is True:
        target.notes = ('JPEGs are decoded on the CPU: gpu_decode needs device="cuda"',)
    return target


class ContinuousPass:
    """A pass that goes on from epoch to epoch, and the batches that it hands out."""

    def __init__(self, own: Pass, target: Target) -> None:
        self._own = own
        self._iterator = target.begin(own)
        self.probe = StepProbe(own)
        self._pid = os.getpid()
        self._paused_at: int | None = None

    @property
    def n_complete(self) -> int:
        """Batches that lie ready."""
        return self._own.n_complete

    def begin(self, epoch: int, loader: object, is_over: bool) -> EpochBatches:
        """The user comes to an epoch; `is_over`: to its very end."""
        self._paused_at = None
        self._own.begin_epoch(epoch)
        return EpochBatches(self, loader, is_over)

    def next(self) -> ReadyBatch | None:
        """The next batch; None where all has ended."""
        self._paused_at = None
        return self._iterator.next()

    def pause(self, epoch: int) -> None:
        """The user has all batches of an epoch: those of this one, the next, are made."""
        self._paused_at = epoch
        self._own.ask_ahead()

    @property
    def is_paused(self) -> bool:
        """Whether the user has all batches of one epoch, and none of the next."""
        return self._paused_at is not None

    def is_paused_at(self, epoch: int, position: int) -> bool:
        """Whether the user finds it there."""
        is_there = not position and self._paused_at == epoch
        return is_there and not self._own.is_over and self._pid == os.getpid()

    def close(self) -> None:
        """End it; more than once is fine."""
        try:
            self._iterator.close()
        finally:
            self._own.close()


class EpochBatches:
    """The batches of one epoch, and how long the user's thread waits for each."""

    def __init__(self, running: ContinuousPass, loader: object, is_over: bool) -> None:
        self._running, self._is_over = running, is_over
        self._feeding = LoaderPass(loader)

    def next(self) -> ReadyBatch | None:
        """The next one; None behind the last, and where all has ended."""
        start_ns = self._feeding.ask()
        probe = self._running.probe
        probe.before_step(start_ns)
        ready = None if self._is_over else self._running.next()
        self._feeding.take(start_ns, ready is not None)
        self._is_over = ready is None or ready[0].is_last
        if self._is_over:
            probe.resume()  # what follows is no step, or none that a batch of this epoch lies ready for
        else:
            probe.begin_step()
        return ready


class HostTarget:
    """Batches in memory; tensors are zero-copy views of the slot."""

    notes: tuple[str, ...] = ()
    register: Register | None = None
    device: Any = "cpu"
    is_device = False

    def __init__(self, shaping: Shaping, as_torch: bool) -> None:
        self.shaping = shaping
        self.is_torch = as_torch
        self._from_numpy: Callable[[Any], Any] | None = None
        if as_torch:
            try:
                import torch
            except ImportError:
                raise MissingExtra("torch", "torch", 'output="torch"') from None
            self._from_numpy = torch.from_numpy

    def keeps_encoded(self, column: ImageColumn) -> bool:
        return False

    def begin(self, own: Pass) -> BatchIterator:
        return _HostIterator(own, self._from_numpy)

    def close(self) -> None:
        """Nothing is held."""


class _HostIterator:
    def __init__(self, own: Pass, convert: Callable[[Any], Any] | None) -> None:
        self._own, self._convert = own, convert

    def next(self) -> ReadyBatch | None:
        gauge("queue_depth", self._own.n_complete)
        job = self._own.next()
        if job is None:
            return None
        began_ns = now_ns()
        arrays, job.arrays = job.arrays, {}
        convert = self._convert
        batch: dict[str, Any] = arrays if convert is None else {name: convert(each) for name, each in arrays.items()}
        record_calls(HAND_OUT, now_ns() - began_ns, job.size, inside=True)
        return job, {**batch, **job.texts}

    def close(self) -> None:
        self._own.close()
