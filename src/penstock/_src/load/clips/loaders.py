"""`clip_loaders`: a YAML becomes torch DataLoaders for training and validation on spike clips.

    loaders = penstock.clip_loaders("deblur.yaml")
    for batch in loaders.train:
        batch = loaders.prepare(batch, "cuda")            # float32 blur, sharp and spike_vox on the device
        …
        state = loaders.state_dict()                      # goes on behind this batch: loaders.load_state_dict(state)

Under `torchrun` every rank calls it alike. Each clip comes once per epoch over all ranks. In the last batch of an epoch
a rank may get a clip with weight 0 and index -1, which keeps ranks in step.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Literal

import numpy as np

from penstock._src.load.clips import torch_loader
from penstock._src.load.clips.config import ClipConfig, clip_config, load_clip_config
from penstock._src.load.clips.dataset import SpikeClips, mixed_error
from penstock._src.load.clips.frames import CHANNELS, image_bytes, shape_bytes
from penstock._src.load.clips.memory import WORKER_BYTES, ClipMemory, LoaderMemory, loader_memory
from penstock._src.load.clips.passes import ClipPasses
from penstock._src.load.clips.ram_cache import RamCache, places_bytes
from penstock._src.load.clips.ranks import Ranks
from penstock._src.load.clips.report import log_lines
from penstock._src.plan.workers import WorkerPlan, split_workers
from penstock._src.system.config import did_you_mean
from penstock._src.system.limits import CpuLimit, MemoryLimit, read_cpu_limit, read_memory_limit
from penstock.errors import ConfigError, StoreError


def clip_loaders(
    config: ClipConfig | Mapping[str, Any] | str | os.PathLike[str],
    *,
    rank: int | None = None,
    world_size: int | None = None,
    gpus: int | None = None,
    log: Callable[[str], object] | None = print,
    cpus: CpuLimit | None = None,
    memory: MemoryLimit | None = None,
) -> ClipLoaders:
    """The loaders of a configuration: a path to YAML, a mapping with its keys, or a `ClipConfig`.

    `rank` and `world_size` are those of `torchrun` unless given; `gpus` is the number of processes on this machine.
    The first rank of a machine logs the configuration and the predicted memory before anything starts, and refuses
    what does not fit. `cpus` and `memory` replace the limits of this machine.
    """
    torch_loader.require_torch()
    if not isinstance(config, ClipConfig):
        config = clip_config(config) if isinstance(config, Mapping) else load_clip_config(os.fspath(config))
    ranks = Ranks.find(rank, world_size, gpus)
    cpus, memory = cpus or read_cpu_limit(), memory or read_memory_limit()
    options = config.dataloader
    plan = split_workers(
        options.total_workers, cpus=cpus.granted, gpus=ranks.gpus, train=options.train_workers, val=options.val_workers
    )
    return ClipLoaders(config, ranks, plan, cpus, memory, log)


class ClipLoaders:
    """`train` and `val` are torch DataLoaders (`val` is None without `DATA.VAL_SPLIT`); a context manager."""

    def __init__(
        self, config: ClipConfig, ranks: Ranks, plan: WorkerPlan, cpus: CpuLimit, limit: MemoryLimit,
        log: Callable[[str], object] | None,
    ) -> None:  # fmt: skip
        self.config, self.ranks, self.plan = config, ranks, plan
        data, train = config.data, config.train
        self.train_clips = open_clips(config, is_training=True)
        self.val_clips = open_clips(config, is_training=False) if data.val_split else None
        self._check_batches()
        self.memory, sizes = self._predict()
        self._lines = tuple(log_lines(config, plan, self.memory, cpus, limit))
        if ranks.local_rank == 0:
            for line in self._lines if log is not None else ():
                log(line)  # type: ignore[misc]
            for warning in plan.warnings:
                warnings.warn(warning, stacklevel=3)
        self.cache: RamCache | None = self._open_cache(sizes)
        try:
            if ranks.local_rank == 0:
                self.memory.check(limit, self.cache.filled_bytes if self.cache is not None else 0)
        except BaseException:
            self.close()
            raise
        self.train = self._loader(self.train_clips, train.batch_size, plan.train, is_training=True)
        self.val = None
        if self.val_clips is not None:
            self.val = self._loader(self.val_clips, train.val_batch_size, plan.val, is_training=False)

    # Making

    def _all_clips(self) -> list[SpikeClips]:
        return [each for each in (self.train_clips, self.val_clips) if each is not None]

    def _check_batches(self) -> None:
        """Clips that cannot stand in one batch are refused before the training starts, not in its third hour."""
        sizes = (self.config.train.batch_size, self.config.train.val_batch_size)
        for clips, size in zip(self._all_clips(), sizes, strict=False):
            (first, shapes), *others = clips.shapes_by_sequence().items()
            for name, theirs in others if size > 1 else ():
                if theirs != shapes:
                    raise mixed_error(first, shapes, name, theirs)

    def _predict(self) -> tuple[ClipMemory, Any]:
        """The memory that loading will take, and the sizes of all images that the cache may keep."""
        sizes = np.concatenate([image_bytes(clips.store) for clips in self._all_clips()])
        limit_bytes = self.config.data.cache_bytes
        cache_bytes = places_bytes(sizes, limit_bytes) if limit_bytes else 0
        loader, train = self.config.dataloader, self.config.train
        parts = [self._loader_memory("train", self.train_clips, train.batch_size, self.plan.train,
                                     loader.train_prefetch_factor)]  # fmt: skip
        if self.val_clips is not None:
            parts.append(self._loader_memory("val", self.val_clips, train.val_batch_size, self.plan.val,
                                             loader.val_prefetch_factor))  # fmt: skip
        return ClipMemory(self.ranks.gpus, parts[0], parts[1] if len(parts) > 1 else None, cache_bytes), sizes

    def _loader_memory(
        self, name: str, clips: SpikeClips, batch_size: int, workers: int, prefetch: int
    ) -> LoaderMemory:
        largest = max(clips.shapes_by_sequence().values(), key=lambda each: sum(shape_bytes(*x) for x in each.values()))
        # An image as stored, decoded, and on its way; a spike file, and what is made of it.
        clip_bytes = max(
            3 * each.image_height * each.image_width * CHANNELS + 2 * each.layout.n_bytes
            for each in clips.store.sequences
        )
        start = torch_loader.require_torch().multiprocessing.get_start_method()
        return loader_memory(name, largest, batch_size=batch_size, workers=workers, prefetch=prefetch,
                             worker_bytes=WORKER_BYTES[start] + clip_bytes, is_pinned=self._is_pinned())  # fmt: skip

    def _is_pinned(self) -> bool:
        """Pinned memory serves copies to a GPU; without one torch would only warn."""
        return self.config.dataloader.pin_memory and bool(torch_loader.require_torch().cuda.is_available())

    def _open_cache(self, sizes: Any) -> RamCache | None:
        limit_bytes = self.config.data.cache_bytes
        if not limit_bytes:
            return None
        stores = [clips.store for clips in self._all_clips()]
        key = " ".join(
            store.fingerprint(name) for store in stores for name in ("blur", "sharp") if name in store.columns
        )
        cache = RamCache.shared(key, sizes, limit_bytes)
        first = 0
        for clips in self._all_clips():
            clips.use_cache(cache, first)
            first += len(image_bytes(clips.store))
        return cache

    def _loader(self, clips: SpikeClips, batch_size: int, workers: int, *, is_training: bool) -> Any:
        import cv2  # noqa: F401 - before workers fork, which then share it

        loader = self.config.dataloader
        passes = ClipPasses(
            len(clips), clips.clip.describe(), batch_size, shuffle=is_training, seed=self.config.seed,
            rank=self.ranks.rank, world=self.ranks.world,
        )  # fmt: skip
        return torch_loader.data_loader(
            clips, passes, workers=workers, is_pinned=self._is_pinned(), is_persistent=loader.persistent_workers,
            prefetch=loader.train_prefetch_factor if is_training else loader.val_prefetch_factor, seed=self.config.seed,
        )  # fmt: skip

    # Asking

    @property
    def predicted_bytes(self) -> int:
        """The memory that loading will take on this machine, all ranks together."""
        return self.memory.n_bytes

    def log_lines(self) -> tuple[str, ...]:
        """The data loading configuration, line by line."""
        return self._lines

    @property
    def skipped(self) -> list[str]:
        """Clips that could not be read with `DATA.ON_ERROR: skip`, and why."""
        return [text for loader in (self.train, self.val) if loader is not None for text in loader.skipped]

    def prepare(self, batch: Mapping[str, Any], device: Any) -> dict[str, Any]:
        """The batch on a device: "blur" and "sharp" from 0 to 1 and "spike_vox" as float32, "index", "weight".

        Copies do not block where memory is pinned. Bytes become floats and packed spikes voxels on the device.
        """
        return torch_loader.prepare(batch, device, self.config.data.num_voxel_bins)

    # Going on

    def set_epoch(self, epoch: int) -> None:
        """Begin the next pass of `train` at the beginning of this epoch."""
        self.train.batch_sampler.set_epoch(epoch)
        self.train.taken = None

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where `train` stands, JSON-safe and the same on all ranks: behind the last batch that the loop took, or
        behind `taken` batches of this pass."""
        state: dict[str, Any] = self.train.batch_sampler.state_dict(self.train.taken if taken is None else taken)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind the batch where `state` was taken; ranks, workers and batch size may be others."""
        self.train.batch_sampler.load_state_dict(state)
        self.train.taken = None

    def close(self) -> None:
        """End workers, release the cache and close the stores; more than once is fine."""
        self.train = self.val = None
        if self.cache is not None:
            self.cache.close()
        for clips in self._all_clips():
            clips.close()

    def __enter__(self) -> ClipLoaders:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        val = f", {len(self.val_clips):,} for validation" if self.val_clips is not None else ""
        return f"<ClipLoaders: {len(self.train_clips):,} clips{val}, rank {self.ranks.rank} of {self.ranks.world}>"


def open_clips(config: ClipConfig, *, is_training: bool, output: Literal["numpy", "torch"] = "torch") -> SpikeClips:
    """The clips that a configuration trains on, or validates on: whole images, not turned."""
    data = config.data
    split = data.train_split if is_training else data.val_split
    if not data.root.is_dir():
        raise ConfigError(
            f"DATA.ROOT: {data.root} is not a directory",
            hint="`penstock prepare gopro-spike --use_symlinks` makes one, `penstock demo spike` a small one to try",
        )
    try:
        return SpikeClips(
            data.root,
            data.clip_len,
            data.crop_size if is_training else None,
            augment=data.augment if is_training else False,
            seed=config.seed,
            voxels=data.voxels,
            dtype=data.dtype,
            on_error=data.on_error,
            output=output,
            **data.store_options(split),
        )
    except StoreError as error:
        key = "TRAIN_SPLIT" if is_training else "VAL_SPLIT"
        near = did_you_mean(split or "", [each.name for each in data.root.iterdir() if each.is_dir()])
        advice = near.removeprefix("; ") if near and not (data.root / (split or "")).is_dir() else error.hint
        raise ConfigError(f"DATA.{key}: {split}: {error.message}", hint=advice) from error
