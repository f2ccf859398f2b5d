"""Batches for torch's DataLoader: made by a worker in shared memory without a name, handed over as they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from penstock.load.slots import SlotLayout
from penstock.system.files import memory_file

Sample = dict[str, Any]


class Fetched(Sequence[Sample]):
    """Samples that were fetched together: a sequence of them, and `batch`, whose tensors they are views of."""

    def __init__(self, batch: Sample, size: int) -> None:
        self.batch = batch
        self._size = size

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(self._size))]
        if not -self._size <= index < self._size:
            raise IndexError(index)
        return {name: values[index] for name, values in self.batch.items()}

    def __repr__(self) -> str:
        return f"<{self._size} samples of {', '.join(self.batch)}>"


def collate(samples: Sequence[Sample]) -> Sample:
    """A batch: as it was fetched where that is so, else by torch's own collate."""
    if isinstance(samples, Fetched):
        return samples.batch
    import torch

    batch: Sample = torch.utils.data.default_collate(samples)
    return batch


def shared_tensors(layout: SlotLayout) -> dict[str, Any]:
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
