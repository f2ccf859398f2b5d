"""`SpikeClips`: runs of blurred and sharp images with their spikes, cropped and turned alike, by number.

    clips = penstock.SpikeClips(penstock.open(root, split="train"), clip_len=5, crop_size=256, augment=True)
    clips[0]["blur"].shape, clips[0]["spike_vox"].shape        # (5, 3, 256, 256), (5, 5, 128, 128)

A clip's number carries its epoch: `clips[epoch * len(clips) + clip]`. Crop, flips and rotations follow from seed, epoch
and clip alone, so that any number of workers gives the same tensors.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.clips.crop import Augment, CropSize, Planes, planes_for
from penstock._src.load.clips.frames import COLUMNS, ClipFrames, Shapes
from penstock._src.load.clips.passes import Repeat
from penstock._src.load.clips.ram_cache import RamCache
from penstock._src.load.engine import images
from penstock._src.load.engine.slots import lay_out
from penstock._src.load.sampling.clip import Clip
from penstock._src.load.sampling.permutation import key_of
from penstock._src.load.settings import gives_tensors
from penstock._src.load.torch_sharing import FetchedSamples, Sample, collate, worker_memory
from penstock._src.stores.opening import open_store
from penstock._src.stores.spike.store import SpikeStore
from penstock._src.stores.store import Store
from penstock.errors import ConfigError, PenstockError, StoreError, UsageError

_STAND_INS = 32  # clips that are tried in place of one that cannot be read
_KEYS_OF_AUGMENTATION = 0x5B1CE  # so that the order and the crops of one seed have nothing in common


class SpikeClips:
    """Clips of a spike store, map-style, for torch's DataLoader or by themselves; pickled as words, not as data.

    A sample has "blur" and "sharp" (clip_len, 3, height, width) from 0 to 1, "spike_vox" (clip_len, num_bins, h, w),
    "index" (the clip's number without its epoch) and "weight" (1). With `dtype="uint8"` images are bytes and voxels are
    counts; with `voxels="device"` cropped bytes of the spike files come in place of "spike_vox".
    `on_error="skip"`: the place of a clip that cannot be read is taken by the next one, with index -1 and weight 0.
    """

    def __init__(
        self,
        store: Store | str | os.PathLike[str],
        clip_len: int = 5,
        crop_size: CropSize = None,
        *,
        augment: Augment = False,
        seed: int = 0,
        cache: RamCache | None = None,
        voxels: Literal["host", "device"] = "host",
        dtype: Literal["float32", "uint8"] = "float32",
        on_error: Literal["raise", "skip"] = "raise",
        output: Literal["auto", "numpy", "torch"] = "auto",
        **options: Any,
    ) -> None:
        """`options` are those of `penstock.open`, where `store` is a path: split, num_bins, voxel_dir, layout, …."""
        opened = store if isinstance(store, Store) else open_store(store, **options)
        if not isinstance(opened, SpikeStore):
            raise UsageError(f"{opened.path} is {opened.kind}: no spike data", hint=f"penstock inspect {opened.path}")
        if opened is store and options:
            raise UsageError(f"{', '.join(options)}: options of penstock.open, but the store is open already")
        self.store = opened
        longest = max(opened.sequences, key=lambda each: each.frames)
        if clip_len > longest.frames:
            raise ConfigError(
                f"{opened.path}: no sequence has {clip_len} images, the longest, {longest.name}, has {longest.frames}",
                hint=f"DATA.CLIP_LEN: {longest.frames} or less",
            )
        self.clip = Clip(clip_len, columns=tuple(name for name in COLUMNS if name in opened.columns))
        self.seed, self.augment, self.crop_size, self.on_error = seed, augment, crop_size, on_error
        self._bound = self.clip.bind(opened)
        self._planes = self._plan_crops()
        self._frames = ClipFrames(opened, self.clip.columns or (), voxels, dtype)
        self.use_cache(cache)
        self._output = output
        self.skipped: list[str] = []
        """What could not be read in this process, and why; a DataLoader's workers hand theirs over with the batch."""

    def _plan_crops(self) -> list[Planes]:
        """The crop of every sequence that is long enough for a clip; refused at once where one does not fit."""
        crops = []
        for each in self.store.sequences:
            size = self.crop_size if each.frames >= self.clip.frames else None
            image, plane = (each.image_height, each.image_width), (each.layout.height, each.layout.width)
            crops.append(planes_for(image, plane, size, each.name))
        return crops

    def use_cache(self, cache: RamCache | None, first: int = 0) -> None:
        """Keep decoded images in this cache, under the numbers from `first` on, as `image_bytes` lists them."""
        self._frames.cache, self._frames.cache_first = cache, first

    # Asking

    @property
    def clip_len(self) -> int:
        return self.clip.frames

    def __len__(self) -> int:
        return self._bound.count

    def rows(self, sample: int) -> NDArray[np.int64]:
        """The rows of the store that a clip is made of."""
        rows: NDArray[np.int64] = self._bound.needs([sample % len(self)]).rows["blur"][0]
        return rows

    def where(self, sample: int) -> str:
        """A clip in words: its sequence and its first image."""
        first = int(self.rows(sample)[0])
        return f"{self.store.sequence_of(first)[0].name} from {self.store.image_path('blur', first).name}"

    def shapes(self, sample: int = 0) -> Shapes:
        """What a clip gives: name → (shape, dtype)."""
        episode = self._episode(int(self.rows(sample)[0]))
        return self._frames.shapes(self.clip_len, self._planes[episode], self.store.sequences[episode].layout)

    def shapes_by_sequence(self) -> dict[str, Shapes]:
        """`shapes` of every sequence that has clips."""
        return {
            each.name: self._frames.shapes(self.clip_len, planes, each.layout)
            for each, planes in zip(self.store.sequences, self._planes, strict=True)
            if each.frames >= self.clip_len
        }

    def __iter__(self) -> Iterator[Sample]:
        """The clips of the first epoch: numbers have no end, they go on with the next one."""
        return (self[number] for number in range(len(self)))

    def __getitem__(self, index: int) -> Sample:
        """One clip; tensors where torch is in use, else arrays."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> FetchedClips:
        """These clips, made together in one piece of memory; `collate_clips` takes the batch as it is."""
        numbers = [self._checked(index) for index in indices]
        layout = lay_out(self._batch_shapes(numbers))
        if _in_worker():
            _single_threaded_opencv()
            values: Sample
            values, arrays = worker_memory().batch(layout)
        else:
            arrays = {name: np.empty(place.shape, place.dtype) for name, place in layout.places.items()}
            values = _as_tensors(arrays) if gives_tensors(self._output) else dict(arrays)
        skipped: list[str] = []
        for place, number in enumerate(numbers):
            self._fill(number, {name: each[place, ...] for name, each in arrays.items()}, skipped)
        self.skipped += skipped
        return FetchedClips(values, len(numbers), skipped)

    # Inside

    def _checked(self, index: int) -> int:
        number = index if isinstance(index, Repeat) else operator.index(index)
        if number < -len(self):
            raise IndexError(f"clip {number:,} of {len(self):,}")
        return number + len(self) if number < 0 else number

    def _episode(self, row: int) -> int:
        return int(self.store.episode_of(np.array([row], np.int64))[0])

    def _batch_shapes(self, numbers: Sequence[int]) -> Shapes:
        shapes = [self.shapes(number) for number in numbers]
        for number, each in zip(numbers, shapes, strict=True):
            if each != shapes[0]:
                raise mixed_error(self.where(numbers[0]), shapes[0], self.where(number), each)
        return {name: ((len(numbers), *shape), dtype) for name, (shape, dtype) in shapes[0].items()}

    def _fill(self, number: int, out: dict[str, NDArray[Any]], skipped: list[str]) -> None:
        epoch, sample = divmod(number, len(self))
        stands_in = isinstance(number, Repeat)
        for _ in range(_STAND_INS):
            try:
                self._read(epoch, sample, out)
                break
            except (PenstockError, OSError) as error:
                if self.on_error == "raise":
                    raise
                skipped.append(f"{self.where(sample)}: {getattr(error, 'message', error)}")
                sample, stands_in = self._next_alike(sample), True
        else:
            raise StoreError(
                f"{self.store.path}: {_STAND_INS} clips in a row cannot be read, the last because of {skipped[-1]}",
                hint=f"penstock doctor {self.store.path}",
            )
        out["index"][...] = -1 if stands_in else sample
        out["weight"][...] = 0 if stands_in else 1

    def _next_alike(self, sample: int) -> int:
        """The next clip of the same shapes."""
        shapes = self.shapes(sample)
        for step in range(1, len(self)):
            other = (sample + step) % len(self)
            if self.shapes(other) == shapes:
                return other
        return sample

    def _read(self, epoch: int, sample: int, out: dict[str, NDArray[Any]]) -> None:
        rows = self.rows(sample)
        episode = self._episode(int(rows[0]))
        crop = self._planes[episode].crop(key_of(self.seed, _KEYS_OF_AUGMENTATION, epoch, sample), self.augment)
        self._frames.read(rows, self.store.sequences[episode], crop, out)

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def __repr__(self) -> str:
        crop = "whole images" if self.crop_size is None else f"crop {self.crop_size}"
        return f"<SpikeClips: {len(self):,} clips of {self.clip_len} images, {crop}, of {self.store!r}>"


class FetchedClips(FetchedSamples):
    """Clips that were made together, and what could not be read on the way."""

    def __init__(self, batch: Sample, size: int, skipped: list[str]) -> None:
        super().__init__(batch, size)
        self.skipped = skipped


def collate_clips(samples: FetchedSamples | Sequence[Sample]) -> Sample:
    """A batch as it was made, and under "skipped" what could not be read, where there is such."""
    if not isinstance(samples, FetchedClips):
        return collate(samples)
    if not samples.skipped:
        return samples.batch
    batch = samples.batch.copy()
    batch["skipped"] = samples.skipped
    return batch


def mixed_error(first: str, shapes: Shapes, other: str, others: Shapes) -> ConfigError:
    """Why two clips cannot stand in one batch, and what to do."""
    name = next(name for name in shapes if shapes[name] != others[name])
    return ConfigError(
        f"clips of different geometry cannot stand in one batch: {name} is {shapes[name][0]} in {first} and "
        f"{others[name][0]} in {other}",
        hint="TRAIN.BATCH_SIZE: 1 (VAL_BATCH_SIZE: 1 for validation) takes any geometry, and "
        "TRAIN.GRADIENT_ACCUMULATION_STEPS makes up for it; or train on sequences of one geometry",
    )


@functools.cache
def _single_threaded_opencv() -> None:
    """Once per worker: OpenCV starts no threads of its own, since the workers are the parallel part."""
    images.begin_quiet()


def _in_worker() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and torch.utils.data.get_worker_info() is not None


def _as_tensors(arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    import torch

    return {name: torch.from_numpy(each) for name, each in arrays.items()}
