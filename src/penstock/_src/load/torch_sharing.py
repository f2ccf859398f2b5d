"""Batches for torch's DataLoader: made by a worker in shared memory without a name, handed over as they are.

A worker builds its batches in slots (`worker_slots`), which are used again. That needs batches that leave the worker as
`collate` gave them, if changed and added to. A collate_fn that makes another container of them is seen by the first
batch, which is in fresh memory that torch can send by itself; then all are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.slots import Lease, SlotLayout
from penstock._src.load.engine.worker_slots import BatchTicket, SlotPool, receive
from penstock._src.system.files import memory_file

Sample = dict[str, Any]


class FetchedSamples:
    """Samples that were fetched together: one after the other, and `batch`, whose tensors they are views of."""

    def __init__(self, batch: Sample, size: int) -> None:
        self.batch = batch
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Sample:
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return {name: values[index] for name, values in self.batch.items()}


def collate(samples: FetchedSamples | Sequence[Sample]) -> Sample:
    """A batch: as it was fetched where that is so, else by torch's own collate."""
    if isinstance(samples, FetchedSamples):
        return samples.batch
    import torch

    batch: Sample = torch.utils.data.default_collate(samples)
    return batch


class WorkerBatch(dict[str, Any]):
    """A batch in a worker, to be changed like any dict. The training process gets a dict over the same memory."""

    def __init__(self, values: Sample, tensors: Sample, memory: WorkerMemory, lease: Lease | None) -> None:
        """`tensors`: as they lie in the slot of the lease."""
        super().__init__(values)
        self._tensors, self._memory, self._lease = tensors, memory, lease

    def copy(self) -> WorkerBatch:
        return WorkerBatch(self, self._tensors, self._memory, self._lease)

    __copy__ = copy

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a queue between processes asks `_sent`

    def _sent(self) -> tuple[Any, ...]:
        """How it goes to another process: what lies in the slot as its place there, the rest as torch sends it."""
        self._memory.leaves_whole = True
        in_slot = {id(each): name for name, each in self._tensors.items()}
        places = {name: in_slot[id(value)] for name, value in self.items() if id(value) in in_slot}
        ticket = self._memory.slots.hand_over(self._lease) if self._lease is not None and places else None
        if ticket is None:
            return self.__reduce__()
        return _received, (ticket, [(name, places.get(name), None if name in places else self[name]) for name in self])


class WorkerMemory:
    """Where a DataLoader's worker builds its batches."""

    def __init__(self) -> None:
        ForkingPickler.register(WorkerBatch, WorkerBatch._sent)
        self.slots = SlotPool()
        self.leaves_whole = False
        """Whether a batch has left this worker as `collate` gave it."""

    def batch(self, layout: SlotLayout) -> tuple[WorkerBatch, dict[str, NDArray[Any]]]:
        """A batch, and the arrays to fill it by."""
        import torch

        lease = self.slots.lease(layout) if self.leaves_whole and self.slots.is_possible() else None
        if lease is None:
            tensors = _shared_tensors(layout)
        else:
            tensors = {name: torch.from_numpy(each) for name, each in lease.arrays.items()}
        return WorkerBatch(tensors, tensors, self, lease), {name: each.numpy() for name, each in tensors.items()}


def worker_memory() -> WorkerMemory:
    """Of this process, which is a worker of one DataLoader."""
    return _memory_of(os.getpid())


@functools.cache
def _memory_of(pid: int) -> WorkerMemory:
    return WorkerMemory()


def _received(ticket: BatchTicket, items: Sequence[tuple[str, str | None, Any]]) -> Sample:
    import torch

    arrays = receive(ticket).arrays
    return {name: value if place is None else torch.from_numpy(arrays[place]) for name, place, value in items}


def _shared_tensors(layout: SlotLayout) -> dict[str, Any]:
    """Tensors over one piece of shared memory that torch hands to the parent as it is."""
    import torch

    storage = _shared_storage(layout.n_bytes)
    tensors: dict[str, Any] = {}
    for name, place in layout.places.items():
        dtype = getattr(torch, place.dtype)
        offset = place.offset // np.dtype(place.dtype).itemsize
        tensors[name] = torch.empty(0, dtype=dtype).set_(storage, offset, place.shape)
    return tensors


def _shared_storage(n_bytes: int) -> Any:
    import torch

    attach = getattr(torch.UntypedStorage, "_new_shared_fd_cpu", None)
    by_descriptor = torch.multiprocessing.get_sharing_strategy() == "file_descriptor"
    if attach is None or not by_descriptor or not hasattr(os, "memfd_create"):
        return torch.UntypedStorage._new_shared(n_bytes)
    # torch would take it from /dev/shm, which is 64 MB in a container, and a full one kills the worker.
    fd = memory_file("penstock-batch")
    try:
        os.ftruncate(fd, n_bytes)
    except BaseException:
        os.close(fd)
        raise
    return attach(fd, n_bytes)  # the storage closes it
