"""Images from spikes: by how many there are in a window (TFP), and by how far apart two of them are (TFI)."""

from __future__ import annotations

from typing import Any

import numpy as np

from penstock._src.media.spike.voxel import is_tensor
from penstock.errors import SpikeError


def spike_to_tfp(spike: Any, at: int | None = None, window: int | None = 41) -> Any:
    """Texture from playback: spikes per frame in a window around frame `at`, (height, width), float32.

    `at=None` is the frame in the middle, `window=None` all frames. A long window has less noise and more motion blur.
    """
    frames, middle = _frames(spike, at)
    if window is not None and window < 1:
        raise SpikeError(f"window={window}: at least 1 frame")
    length = frames if window is None else min(window, frames)
    first = min(max(middle - length // 2, 0), frames - length)
    part = spike[..., first : first + length, :, :]
    if is_tensor(spike):
        import torch

        return part.sum(-3, dtype=torch.float32) / length
    return part.sum(-3, dtype=np.float32) / np.float32(length)


def spike_to_tfi(spike: Any, at: int | None = None) -> Any:
    """Texture from intervals: 1 / (frames between the last spike up to frame `at` and the next), (height, width).

    Where one of the two is outside the file, the interval ends where the file does. A pixel without a spike is 0.
    """
    frames, middle = _frames(spike, at)
    before, after = spike[..., : middle + 1, :, :], spike[..., middle + 1 :, :, :]
    if is_tensor(spike):
        import torch

        since = _first(before.flip(-3) > 0, middle + 1)
        until = _first(after > 0, frames - middle - 1)
        seen = (before > 0).any(-3) | (after > 0).any(-3)
        return torch.where(seen, 1.0 / (since + until + 1).to(torch.float32), 0.0)
    since = _first(before[..., ::-1, :, :] > 0, middle + 1)
    until = _first(after > 0, frames - middle - 1)
    seen = before.any(-3) | after.any(-3)
    return np.where(seen, np.float32(1) / (since + until + 1).astype(np.float32), np.float32(0))


def _first(fired: Any, frames: int) -> Any:
    """After how many frames each pixel fires first; `frames` where it does not."""
    if frames == 0:
        return (0 if is_tensor(fired) else np.int64(0)) * fired.sum(-3)
    if is_tensor(fired):
        import torch

        index = fired.to(torch.uint8).argmax(-3)
        return torch.where(fired.any(-3), index, frames)
    return np.where(fired.any(-3), fired.argmax(-3), frames)


def _frames(spike: Any, at: int | None) -> tuple[int, int]:
    """How many frames there are, and the one that is asked for."""
    if getattr(spike, "ndim", 0) < 3 or not spike.shape[-3]:
        raise SpikeError(f"spikes of shape {np.shape(spike)}: (frames, height, width) is needed")
    frames = int(spike.shape[-3])
    middle = frames // 2 if at is None else at
    if not 0 <= middle < frames:
        raise SpikeError(f"at={at}: there are frames 0 to {frames - 1}")
    return frames, middle
