"""Voxels of spike frames: counts in uniform bins, or weights that are linear in time. NumPy, or torch on any device."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.spike.layout import bin_starts
from penstock.errors import SpikeError


def is_tensor(values: Any) -> bool:
    """Whether it is one of torch, which is not imported to find out."""
    return type(values).__module__.partition(".")[0] == "torch"


def spike_to_voxel(spike: Any, num_bins: int = 5, *, mode: Literal["count", "bilinear"] = "count") -> Any:
    """Frames (…, frames, height, width) as a voxel grid (…, num_bins, height, width), float32.

    `mode="count"`: bins are uniform, frame f is in bin f * num_bins // frames. 10 frames are 5 bins of 2; 88 frames are
    bins of 18, 18, 17, 18 and 17. `mode="bilinear"`: bins are moments from the first frame to the last, and a spike
    is shared between the two that it lies between. An array gives an array, a tensor a tensor on its device.

    >>> spike_to_voxel(np.ones((10, 396, 640), np.uint8), num_bins=5).shape
    (5, 396, 640)
    """
    if getattr(spike, "ndim", 0) < 3:
        raise SpikeError(f"spikes of shape {np.shape(spike)}: (frames, height, width) is needed")
    starts = bin_starts(spike.shape[-3], num_bins)
    if mode not in ("count", "bilinear"):
        raise SpikeError(f"mode={mode!r} is not a kind of voxel", hint='mode="count" or mode="bilinear"')
    if mode == "bilinear":
        return _weighted(spike, time_weights(spike.shape[-3], num_bins))
    parts = [spike[..., begin:end, :, :] for begin, end in pairwise(starts)]
    if is_tensor(spike):
        import torch

        return torch.stack([part.sum(-3, dtype=torch.float32) for part in parts], -3)
    exact = np.uint32 if spike.dtype.kind in "bu" else np.float32
    made: NDArray[np.float32] = np.stack([part.sum(-3, dtype=exact) for part in parts], -3).astype(np.float32)
    return made


def time_weights(frames: int, num_bins: int) -> NDArray[np.float32]:
    """(num_bins, frames): the share of every frame in every bin, linear in time; each frame's shares are 1 in sum."""
    moments = np.linspace(0, num_bins - 1, frames, dtype=np.float32)
    apart = np.abs(np.arange(num_bins, dtype=np.float32)[:, None] - moments)
    shares: NDArray[np.float32] = np.maximum(1 - apart, 0)
    return shares


def _weighted(spike: Any, weights: NDArray[np.float32]) -> Any:
    """Sums over time with weights; one product of matrices."""
    lead, (frames, height, width) = spike.shape[:-3], spike.shape[-3:]
    if is_tensor(spike):
        import torch

        shares = torch.from_numpy(weights).to(spike.device)
        return (shares @ spike.to(torch.float32).reshape(*lead, frames, -1)).reshape(*lead, -1, height, width)
    flat = np.asarray(spike, np.float32).reshape(*lead, frames, -1)
    return (weights @ flat).reshape(*lead, -1, height, width)


def packed_to_voxel(packed: Any, bit_offset: Any, width: int, num_bins: int = 5) -> Any:
    """Bytes of `crop_packed` on a device as counts: (…, frames, height, bytes) to float32 (…, bins, height, width).

    `bit_offset`: where in the first byte of a row the crop begins, a number or one per sample (…). Equal to
    `voxel_counts` of the same crop.
    """
    import torch

    starts = bin_starts(packed.shape[-3], num_bins)
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    first = torch.as_tensor(bit_offset, device=packed.device)
    columns = first.reshape(*first.shape, 1, 1) + torch.arange(width, device=packed.device)
    bins = []
    for begin, end in pairwise(starts):  # one after the other: unpacked bits take eight times the bytes
        bits = (packed[..., begin:end, :, :, None] >> shifts) & 1
        counts = bits.sum(-4, dtype=torch.int32).flatten(-2)
        bins.append(torch.take_along_dim(counts, columns.expand(*counts.shape[:-1], width), -1))
    return torch.stack(bins, -3).to(torch.float32)
