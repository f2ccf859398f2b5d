"""torch's side of clips: a DataLoader that counts what the training loop has taken, and batches on a device."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from penstock._src.load.clips.crop import turned
from penstock._src.load.clips.dataset import SpikeClips, collate_clips
from penstock._src.load.clips.passes import ClipPasses
from penstock._src.media.spike.voxel import packed_to_voxel
from penstock.errors import MissingExtra

_IMAGES = ("blur", "sharp")
_PACKED = ("spike_packed", "bit_offset", "spike_frames", "spike_width", "symmetry")  # "spike_vox" comes in their place


def require_torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("torch", "torch", "penstock.clip_loaders") from None
    return torch


def data_loader(
    clips: SpikeClips,
    passes: ClipPasses,
    *,
    workers: int,
    prefetch: int,
    is_pinned: bool,
    is_persistent: bool,
    seed: int,
) -> Any:
    """A torch DataLoader over clips. It draws no number from torch's own generator."""
    torch = require_torch()
    words: dict[str, Any] = {}
    if workers:
        words.update(prefetch_factor=prefetch, persistent_workers=is_persistent)
    generator = torch.Generator().manual_seed(seed % (1 << 63))
    return _loader_class()(
        clips, batch_sampler=passes, collate_fn=collate_clips, num_workers=workers, pin_memory=is_pinned,
        generator=generator, **words,
    )  # fmt: skip


@functools.cache
def _loader_class() -> Any:
    from torch.utils.data import DataLoader

    class ClipDataLoader(DataLoader):  # type: ignore[misc]
        """Counts batches as they are taken: workers run ahead, and a state must not."""

        def __init__(self, *words: Any, **options: Any) -> None:
            super().__init__(*words, **options)
            self.taken: int | None = None
            """Batches of the pass that is under way; None where none is."""
            self.skipped: list[str] = []
            """What workers could not read, and why."""

        def __iter__(self) -> Iterator[Any]:
            batches = super().__iter__()
            self.taken = 0
            for batch in batches:
                self.taken += 1
                self.skipped += batch.pop("skipped", ())
                yield batch
            self.taken = None

    return ClipDataLoader


def prepare(batch: Mapping[str, Any], device: Any, num_bins: int) -> dict[str, Any]:
    """A batch on a device: "blur", "sharp" and "spike_vox" as float32, everything else as it is."""
    import torch

    options = {
        name: values.to(device, non_blocking=True)
        for name, values in batch.items()
        if torch.is_tensor(values) and name not in _PACKED
    }
    for name in _IMAGES:
        if name in options and options[name].dtype == torch.uint8:
            options[name] = options[name].to(torch.float32).div_(255)
    if "spike_packed" in batch:
        options["spike_vox"] = _voxels(batch, device, num_bins)
    options["spike_vox"] = options["spike_vox"].to(torch.float32)
    return options


def _voxels(batch: Mapping[str, Any], device: Any, num_bins: int) -> Any:
    """Packed spikes as voxels, made on the device: all clips at once where they have equally many frames."""
    import torch

    packed, bit_offset = (batch[name].to(device, non_blocking=True) for name in _PACKED[:2])
    # What a clip is, is read on the host: asking the device would wait for it.
    frames, widths, symmetries = (batch[name].tolist() for name in _PACKED[2:])
    if len(set(frames)) == 1:
        voxels = packed_to_voxel(packed[:, :, : frames[0]], bit_offset, widths[0], num_bins)
    else:
        voxels = [
            packed_to_voxel(packed[clip, :, :count], bit_offset[clip], widths[clip], num_bins)
            for clip, count in enumerate(frames)
        ]
    return torch.stack([turned(clip, symmetry) for clip, symmetry in zip(voxels, symmetries, strict=True)])
