"""The images and spikes of one clip: from the cache or decoded, cropped, turned, and written into their places."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.clips.crop import FLIP_HEIGHT, FLIP_WIDTH, TRANSPOSE, Crop, Planes, turned
from penstock._src.load.clips.ram_cache import RamCache
from penstock._src.media.image import codec
from penstock._src.media.spike.frames import count_dtype
from penstock._src.media.spike.layout import SpikeLayout
from penstock._src.stores.spike.sequence import SpikeSequence
from penstock._src.stores.spike.store import SpikeStore
from penstock._src.stores.store import Scratch
from penstock.errors import ImageError

Shapes = dict[str, tuple[tuple[int, ...], str]]

COLUMNS = ("blur", "sharp")
CHANNELS = 3


class ClipFrames:
    """Reads clips of a store; keeps the small arrays in between. One thread at a time; pickled without them."""

    def __init__(self, store: SpikeStore, columns: Sequence[str], voxels: str, dtype: str) -> None:
        self._store, self._columns, self._voxels, self._dtype = store, columns, voxels, dtype
        # Clips of 56 and of 88 frames stand in one batch: as many as any sequence has.
        self._most_frames = max(each.layout.frames for each in store.sequences)
        self.cache: RamCache | None = None
        self.cache_first = 0
        self._scratch: dict[tuple[int, ...], NDArray[np.uint8]] = {}
        self._stored = Scratch()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_scratch": {}, "_stored": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _stored=Scratch())

    def shapes(self, clip_len: int, planes: Planes, layout: SpikeLayout) -> Shapes:
        """Of one clip: name → (shape, dtype)."""
        image = (clip_len, CHANNELS, *planes.image_crop), self._dtype
        shapes: Shapes = dict.fromkeys(self._columns, image)
        height, width = planes.plane_crop
        if self._voxels == "device":
            row_bytes = -(-(width + 7) // 8)  # wherever in its first byte the crop begins
            shapes["spike_packed"] = (clip_len, self._most_frames, height, row_bytes), "uint8"
            shapes["bit_offset"] = (clip_len,), "int64"
            shapes["spike_frames"] = shapes["spike_width"] = shapes["symmetry"] = (), "int64"
        else:
            num_bins = self._store.num_bins
            dtype = self._dtype if self._dtype == "float32" else count_dtype(layout, num_bins).name
            shapes["spike_vox"] = (clip_len, num_bins, height, width), dtype
        shapes["index"], shapes["weight"] = ((), "int64"), ((), "float32")
        return shapes

    def read(self, rows: NDArray[np.int64], sequence: SpikeSequence, crop: Crop, out: dict[str, NDArray[Any]]) -> None:
        """Images and spikes of these rows into `out`."""
        for name in self._columns:
            self._images(name, rows, sequence, crop, out[name])
        if self._voxels == "device":
            self._packed(rows, crop, out)
            return
        for step, row in enumerate(rows.tolist()):
            counts = self._store.voxel(row, crop.plane)
            np.copyto(out["spike_vox"][step], turned(counts, crop.symmetry), casting="unsafe")

    def _packed(self, rows: NDArray[np.int64], crop: Crop, out: dict[str, NDArray[Any]]) -> None:
        out["spike_packed"][...] = 0
        for step, row in enumerate(rows.tolist()):
            packed, out["bit_offset"][step] = self._store.packed(row, crop.plane)
            frames, _, row_bytes = packed.shape
            out["spike_packed"][step, :frames, :, :row_bytes] = packed
        out["spike_frames"][...] = frames
        out["spike_width"][...], out["symmetry"][...] = crop.plane.width, crop.symmetry

    # Images

    def _images(
        self, name: str, rows: NDArray[np.int64], sequence: SpikeSequence, crop: Crop, out: NDArray[Any]
    ) -> None:
        shape = (sequence.image_height, sequence.image_width, CHANNELS)
        first = self.cache_first + COLUMNS.index(name) * self._store.rows
        missing = []
        for step, row in enumerate(rows.tolist()):
            kept = self.cache.get(first + row) if self.cache is not None else None
            if kept is None:
                missing.append((step, row))
            else:
                self._place(kept.reshape(shape), crop, out[step])
        source = self._store.images(name)
        encoded = source.read([row for _, row in missing], self._stored)
        for (step, row), data in zip(missing, encoded, strict=True):
            pixels = self._decoded(name, row, data, shape)
            if self.cache is not None:
                self.cache.put(first + row, pixels)
            self._place(pixels, crop, out[step])

    def _decoded(self, name: str, row: int, data: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
        try:
            pixels = codec.decode(data.data)
        except ImageError as error:
            raise ImageError(f"{self._store.image_path(name, row)}: {error.message}", hint=error.hint) from error
        if pixels.shape != shape:
            raise ImageError(
                f"{self._store.image_path(name, row)}: {pixels.shape[0]}×{pixels.shape[1]} pixels, the images of its "
                f"sequence have {shape[0]}×{shape[1]}"
            )
        return pixels

    def _place(self, pixels: NDArray[np.uint8], crop: Crop, out: NDArray[Any]) -> None:
        """RGB (height, width, 3) → crop → symmetry → channels first → bytes or floats from 0 to 1."""
        import cv2

        box = crop.image
        part: Any = pixels[box.top : box.top + box.height, box.left : box.left + box.width]
        if crop.symmetry & TRANSPOSE:
            part = cv2.transpose(part)
        flips = crop.symmetry & (FLIP_HEIGHT | FLIP_WIDTH)
        if flips:
            part = cv2.flip(part, {FLIP_HEIGHT: 0, FLIP_WIDTH: 1, FLIP_HEIGHT | FLIP_WIDTH: -1}[flips])
        if self._dtype == "uint8":
            cv2.split(part, list(out))
            return
        planes = self._bytes_like(out)
        cv2.split(part, list(planes))
        np.divide(planes, np.float32(255), out=out)

    def _bytes_like(self, out: NDArray[Any]) -> NDArray[np.uint8]:
        held = self._scratch.get(out.shape)
        if held is None:
            held = self._scratch[out.shape] = np.empty(out.shape, np.uint8)
        return held


def image_bytes(store: SpikeStore) -> NDArray[np.int64]:
    """What every image of a store takes in the cache: all of "blur", then all of "sharp" where there are such."""
    sizes = [each.image_height * each.image_width * CHANNELS for each in store.sequences]
    counts = np.diff(store.episode_starts)
    return np.tile(np.repeat(np.array(sizes, np.int64), counts), sum(name in store.columns for name in COLUMNS))


def shape_bytes(shape: tuple[int, ...], dtype: str) -> int:
    """What an array of this shape and type takes."""
    return math.prod(shape) * np.dtype(dtype).itemsize
