"""JPEGs decoded on the GPU by the engine process, into memory of the GPU that the training process maps.

The engine has a context of its own on the GPU, so neither nvJPEG nor what prepares its calls takes anything of the
training's thread. Each slot has a place on the GPU beside its memory on the host. The engine waits until its images
are there before it says that a batch is complete, so the training process needs no more than one copy within the GPU.
"""

from __future__ import annotations

from typing import Any

from penstock._src.load.device.cuda import CudaTarget
from penstock._src.load.device.work import DeviceWork
from penstock._src.load.engine.job import BatchJob
from penstock._src.load.engine.slots import SlotLayout
from penstock._src.load.engine.source import DeviceShaping, Shaping
from penstock._src.load.engine.thread_pool import BatchMemory
from penstock._src.load.process.packing import pack, unpack


class DeviceImages:
    """In the engine process: decodes the encoded images of batches into the places of their slots on the GPU."""

    def __init__(self, device: str, shaping: Shaping, layout: SlotLayout, encoded_bytes: int) -> None:
        import torch

        assert isinstance(shaping, DeviceShaping)
        targets = [CudaTarget(device, True, shaping.user_shaping) for _ in range(2)]
        self._device = targets[0].device
        torch.cuda.set_device(self._device)
        self._works = [DeviceWork(target) for target in targets]
        self._layout = layout
        self._encoded_bytes = encoded_bytes
        self._slots: dict[int, Any] = {}
        self._areas: dict[int, BatchMemory] = {}

    def add_slot(self, number: int) -> bytes:
        """Memory for one slot on the GPU; what another process needs to map it."""
        import torch
        from torch.multiprocessing.reductions import reduce_tensor

        with torch.cuda.device(self._device):  # any thread may add a slot
            memory = torch.empty(self._layout.n_bytes, dtype=torch.uint8, device=self._device)
            self._slots[number] = memory
            # nvJPEG is a third quicker with bytes in pinned memory: it need not copy them first.
            pinned = torch.empty(self._encoded_bytes, dtype=torch.uint8, pin_memory=True)
            self._areas[number] = BatchMemory(pinned.numpy())
            torch.cuda.synchronize()
            return pack(reduce_tensor(memory))

    def area(self, number: int) -> BatchMemory:
        """Where the bytes of a batch in this slot are read to."""
        area = self._areas[number]
        area.clear()
        return area

    def begin(self, job: BatchJob, number: int) -> Any:
        """Have the images of a batch decoded; the event after which they are there."""
        import torch

        memory = self._slots[number]
        work = self._works[0]
        self._works.reverse()  # each has buffers of its own: while one decodes, the next batch is prepared
        with torch.cuda.stream(work.stream):
            for name, images in work.decoded(job).items():
                place = self._layout.places[name]
                there = memory[place.offset : place.offset + images.numel()].view(images.shape)
                there.copy_(images)
            done: Any = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call,unused-ignore]
            done.record(work.stream)
        return done


def mapped(payload: bytes) -> Any:
    """In the training process: the memory of a slot on the GPU, as a tensor of bytes."""
    import torch  # noqa: F401  # what was packed is a function of torch's

    rebuild, arguments = unpack(payload)
    return rebuild(*arguments)


def images_of(memory: Any, layout: SlotLayout, size: int) -> dict[str, Any]:
    """In the training process: the images of a batch of `size` samples, copied to memory of this process."""
    images = {}
    for name, place in layout.places.items():
        shape = (size, *place.shape[1:])
        count = size * (place.n_bytes // place.shape[0])
        images[name] = memory[place.offset : place.offset + count].clone().view(shape)
    return images
