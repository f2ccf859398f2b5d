"""Where batches go: numpy arrays, torch tensors over the same memory, or a device."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Protocol

from penstock.errors import MissingExtra, UsageError
from penstock.load.epoch import Pass
from penstock.load.job import Handed, Handing
from penstock.load.settings import OUTPUTS, one_of
from penstock.load.source import PictureColumn, Shaping
from penstock.load.stages import HAND_OUT, now_ns
from penstock.profile.record.counters import gauge
from penstock.profile.record.loader_pass import LoaderPass
from penstock.profile.record.spans import record_calls


class Target(Protocol):
    """What becomes of a job once its pictures are in their places."""

    shaping: Shaping
    """How the threads make pictures; a device may finish the rest."""
    notes: tuple[str, ...]
    slot_memory: Callable[[int], Any] | None
    """Makes the memory of a slot; None: plain memory."""

    def keeps_encoded(self, column: PictureColumn) -> bool:
        """Whether the device decodes this column."""

    def slot_bytes(self, n_bytes: int) -> int:
        """What a slot of this size really takes."""

    def begin(self, own: Pass) -> Handing:
        """Hand out the jobs of a pass."""

    def close(self) -> None:
        """Give back what all passes shared."""


def target_for(device: Any, output: str, gpu_decode: bool | str, shaping: Shaping) -> Target:
    """By the words of a loader: `device` None or "cpu" gives arrays or tensors in memory."""
    one_of("output", output, OUTPUTS)
    if gpu_decode not in (True, False, "auto"):
        raise UsageError(f"gpu_decode={gpu_decode!r}", hint='True, False or "auto"')
    if device is not None and str(device).partition(":")[0] != "cpu":
        from penstock.load.device import CudaTarget

        return CudaTarget(device, gpu_decode, shaping)
    as_torch = output == "torch" or (output == "auto" and ("torch" in sys.modules or device is not None))
    made = HostTarget(shaping, as_torch)
    if gpu_decode is True:
        made.notes = ('JPEGs are decoded on the CPU: gpu_decode needs device="cuda"',)
    return made


class Running:
    """A pass that goes on from epoch to epoch, and the batches that it hands out."""

    def __init__(self, own: Pass, target: Target) -> None:
        self._own = own
        self._handing = target.begin(own)
        self._pid = os.getpid()
        self._rests_at: int | None = None
        self._end_is_due = self._skips_end = False

    def begin(self, epoch: int, loader: object) -> Waited:
        """The user comes to an epoch."""
        self._skips_end = self._rests_at is not None and self._end_is_due
        self._rests_at = None
        self._own.begin_epoch(epoch)
        return Waited(self, loader)

    def next(self) -> Handed | None:
        """The next batch; None at the end of the epoch, and where all has ended."""
        self._rests_at = None
        found = self._handing.next()
        if found is None and self._skips_end and not self._own.is_over:
            found = self._handing.next()
        self._skips_end = False
        return found

    def rest(self, epoch: int, *, end_is_due: bool) -> None:
        """The user has all batches of an epoch: those of this one, the next, are made.

        `end_is_due`: nobody has asked yet whether it had more.
        """
        self._rests_at, self._end_is_due = epoch, end_is_due

    @property
    def is_at_rest(self) -> bool:
        """Whether the user has all batches of one epoch, and none of the next."""
        return self._rests_at is not None

    def rests_at(self, epoch: int, position: int) -> bool:
        """Whether the user finds it there."""
        is_there = not position and self._rests_at == epoch
        return is_there and not self._own.is_over and self._pid == os.getpid()

    def close(self) -> None:
        """End it; more than once is fine."""
        try:
            self._handing.close()
        finally:
            self._own.close()


class Waited:
    """The batches of one epoch, and how long the user's thread waits for each."""

    def __init__(self, running: Running, loader: object) -> None:
        self._running = running
        self._feeding = LoaderPass(loader)

    def next(self) -> Handed | None:
        start_ns = self._feeding.ask()
        found = self._running.next()
        self._feeding.take(start_ns, found is not None)
        return found


class HostTarget:
    """Batches in memory; tensors are zero-copy views of the slot."""

    notes: tuple[str, ...] = ()
    slot_memory: Callable[[int], Any] | None = None

    def __init__(self, shaping: Shaping, as_torch: bool) -> None:
        self.shaping = shaping
        self._from_numpy: Callable[[Any], Any] | None = None
        if as_torch:
            try:
                import torch
            except ImportError:
                raise MissingExtra("torch", "torch", 'output="torch"') from None
            self._from_numpy = torch.from_numpy

    def keeps_encoded(self, column: PictureColumn) -> bool:
        return False

    def slot_bytes(self, n_bytes: int) -> int:
        return n_bytes

    def begin(self, own: Pass) -> Handing:
        return _HostHanding(own, self._from_numpy)

    def close(self) -> None:
        """Nothing is held."""


class _HostHanding:
    def __init__(self, own: Pass, convert: Callable[[Any], Any] | None) -> None:
        self._own, self._convert = own, convert

    def next(self) -> Handed | None:
        gauge("queue_depth", self._own.depth)
        job = self._own.next()
        if job is None:
            return None
        began_ns = now_ns()
        arrays, job.arrays = job.arrays, {}
        convert = self._convert
        batch: dict[str, Any] = arrays if convert is None else {name: convert(each) for name, each in arrays.items()}
        record_calls(HAND_OUT, now_ns() - began_ns, job.size)
        return job, {**batch, **job.texts}

    def close(self) -> None:
        self._own.close()
