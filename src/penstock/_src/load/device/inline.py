"""Batches on a GPU: copied by the thread that asks for them, each while the step before it runs.

One copy per batch is started, which the GPU does by itself. What happens in Python here is time that the step does not
have, so everything that can be is prepared once.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from penstock._src.load.device.work import DeviceWork
from penstock._src.load.engine.job import BatchJob, ReadyBatch
from penstock._src.load.engine.slots import SlotLayout
from penstock._src.load.engine.source import SampleSource
from penstock._src.load.engine.stages import DEVICE
from penstock._src.load.epoch import Pass
from penstock._src.profile.record.spans import count, gauge, span

if TYPE_CHECKING:
    from penstock._src.load.device.cuda import CudaTarget

_MOST_COPIES = 2  # under way at a time: of three slots, one is left to build the next batch in


class _Ready(NamedTuple):
    """A batch on the device, its memory there, and the event after which it is complete."""

    job: BatchJob
    batch: dict[str, Any]
    held: list[Any]
    done: Any


class _Output(NamedTuple):
    """An output of a batch as a part of its memory: dtype, shape of one sample, strides, offset in numbers."""

    name: str
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


class InlineCudaBatches:
    """Hands out batches that lie on the device; the copy of the next one starts as soon as it is complete."""

    def __init__(self, own: Pass, target: CudaTarget) -> None:
        import torch

        self._own, self._engine = own, own.engine
        self._device = target.device
        self._work = DeviceWork(target)
        self._stream = self._work.stream
        self._ready: deque[_Ready] = deque()
        self._under_way: deque[tuple[Any, BatchJob]] = deque()  # copies and what they read from
        self._host: dict[int, Any] = {}
        self._events: dict[int, Any] = {}
        source, layout = own.sources[0], self._engine.slots.layout
        self._outputs = _outputs(layout, torch)
        self._order = tuple(name for output in source.bound.outputs for name in (output.name, output.mask) if name)
        self._as_floats = {} if target.user_shaping.dtype == "uint8" else _colour_images(source)

    def next(self) -> ReadyBatch | None:
        """The next batch; its copy may still be under way, which the current stream waits for."""
        import torch

        gauge("queue_depth", self._own.n_complete + len(self._ready))
        if not self._ready:
            self._copy_next(wait=True)
        if not self._ready:
            return None  # all has ended
        ready = self._ready.popleft()
        stream = torch.cuda.current_stream(self._device)
        stream.wait_event(ready.done)
        for held in ready.held:
            held.record_stream(stream)  # its memory is not given away while this stream may still read it
        if ready.job.decoded_there:
            count("images_decoded", ready.job.decoded_there)
        if not self._ready:
            self._copy_next(wait=False)
        return ready.job, ready.batch

    def _copy_next(self, wait: bool) -> None:
        """Begin the copy of the next batch; without `wait`, where it is complete."""
        self._release_copied()
        job = self._own.take(wait)
        if job is not None:
            self._start_copy(job)

    def _start_copy(self, job: BatchJob) -> None:
        """Begin the copy of a batch."""
        import torch

        slot = job.slot
        with span(DEVICE):
            current = torch.cuda.current_stream(self._device)
            torch.cuda.set_stream(self._stream)  # not torch.cuda.stream(…), which asks for streams four times
            try:
                host = self._slot(slot)
                there = torch.empty(len(host), dtype=torch.uint8, device=self._device)
                there.copy_(host, non_blocking=True)
                batch, held = self._views(there, job.size), [there]
                images = self._engine.device_images(slot, job.size)
                if job.encoded:  # by threads of this process
                    images = self._work.decoded(job)
                batch.update(images)
                held += images.values()
                for name, column in self._as_floats.items():
                    batch[name] = self._work.shaped(column, batch[name])
                    held.append(batch[name])
                done = self._events[slot]
                done.record(self._stream)
            finally:
                torch.cuda.set_stream(current)
        self._under_way.append((done, job))
        ordered = {name: batch[name] for name in self._order if name in batch}
        self._ready.append(_Ready(job, {**ordered, **batch, **job.texts}, held, done))

    def _release_copied(self) -> None:
        """Give back the slots that the device has read; a device that lags behind is waited for."""
        while self._under_way and (len(self._under_way) >= _MOST_COPIES or self._under_way[0][0].query()):
            done, job = self._under_way.popleft()
            done.synchronize()
            self._release(job)

    def _release(self, job: BatchJob) -> None:
        job.arrays, job.encoded = {}, []
        self._engine.slots.give_back(job.slot)

    def _slot(self, number: int) -> Any:
        """The memory of a slot, as torch sees it."""
        import torch

        host = self._host.get(number)
        if host is None:
            host = self._host[number] = torch.from_numpy(self._engine.slots[number].memory)
            self._events[number] = torch.cuda.Event()  # type: ignore[no-untyped-call,unused-ignore]
        return host

    def _views(self, memory: Any, size: int) -> dict[str, Any]:
        """All outputs of a batch, over its memory."""
        typed: dict[Any, Any] = {}
        views = {}
        for name, dtype, shape, strides, offset in self._outputs:
            whole = typed.get(dtype)
            if whole is None:
                whole = typed[dtype] = memory.view(dtype)
            views[name] = whole.as_strided((size, *shape), strides, offset)
        return views

    def close(self) -> None:
        """End the pass; copies that are under way are waited for, since their slots are used again."""
        try:
            self._work.wait()
        finally:
            with contextlib.suppress(IndexError):  # another thread may be closing it, too
                while True:
                    self._release(self._under_way.popleft()[1])
            self._ready.clear()
            self._own.close()


def _outputs(layout: SlotLayout, torch: Any) -> list[_Output]:
    outputs = []
    for name, place in layout.places.items():
        dtype = torch.from_numpy(np.empty(0, place.dtype)).dtype
        shape = place.shape[1:]
        strides = tuple(math.prod(place.shape[axis + 1 :]) for axis in range(len(place.shape)))
        outputs.append(_Output(name, dtype, shape, strides, place.offset // np.dtype(place.dtype).itemsize))
    return outputs


def _colour_images(source: SampleSource) -> dict[str, str]:
    """Output → column, of images that the device makes floats of."""
    return {
        output.name: column.name for column in source.images if not column.fit.is_depth for output in column.outputs
    }
