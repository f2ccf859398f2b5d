"""Small spike data sets whose pixels and spikes say where they are, so that any crop can be checked.

Red is the row and green the column of a pixel, blue the number of the image. Of 10 frames in 5 bins, the counts of a
spike pixel are its row in three digits to the base 3, and its column in two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

FRAMES, BINS = 10, 5

EXAMPLE = """
SEED: 123

DATA:
  ROOT: data/processed/gopro_spike_unified
  TRAIN_SPLIT: train
  VAL_SPLIT: test
  CROP_SIZE: 256
  CLIP_LEN: 5
  K: 32

  # 实时Voxel加载
  USE_PRECOMPUTED_VOXELS: false
  NUM_VOXEL_BINS: 5
  SPIKE_DIR: spike

  # RAM缓存
  USE_RAM_CACHE: true
  CACHE_SIZE_GB: 4.0

DATALOADER:
  TOTAL_WORKERS: "auto"          # 🎯 自动优化
  TRAIN_PREFETCH_FACTOR: 4
  VAL_PREFETCH_FACTOR: 2
  PIN_MEMORY: true
  PERSISTENT_WORKERS: true

TRAIN:
  EPOCHS: 40
  BATCH_SIZE: 1
  VAL_BATCH_SIZE: 1
  GRADIENT_ACCUMULATION_STEPS: 6
  MAX_GRAD_NORM: 1.0
  OPTIM:
    LR: 0.0002
"""
"""The documented configuration, as it stands."""


def image_of(size: tuple[int, int], number: int) -> NDArray[np.uint8]:
    """RGB."""
    rows, columns = np.indices(size)
    return np.stack([rows, columns, np.full(size, number)], axis=-1).astype(np.uint8)


def counts_of(plane: tuple[int, int]) -> NDArray[np.uint8]:
    """(5, height, width), each 0, 1 or 2."""
    rows, columns = np.indices(plane)
    digits = [rows % 3, rows // 3 % 3, rows // 9 % 3, columns % 3, columns // 3 % 3]
    return np.stack(digits).astype(np.uint8)


def spikes_of(plane: tuple[int, int]) -> NDArray[np.uint8]:
    """(10, height, width) of 0 and 1: two frames for each bin."""
    counts = counts_of(plane)
    return np.stack([counts[frame // 2] > frame % 2 for frame in range(FRAMES)]).astype(np.uint8)


def make_sequence(
    folder: Path, rows: int, *, image: tuple[int, int] = (48, 64), plane: tuple[int, int] = (24, 32), first: int = 0,
    suffix: str = ".png", frames: int = FRAMES, noise: bool = False,
) -> None:  # fmt: skip
    """Blurred images have the numbers from `first` on, sharp ones 100 more; `noise` gives other spikes."""
    for name in ("blur", "sharp", "spike"):
        (folder / name).mkdir(parents=True)
    spikes = spikes_of(plane)
    if noise:
        spikes = np.random.default_rng(0).random((frames, *plane)) < np.linspace(0, 0.5, plane[0])[:, None]
    packed = np.packbits(spikes, bitorder="little").tobytes()
    for number in range(first, first + rows):
        for name, shift in (("blur", 0), ("sharp", 100)):
            pixels = cv2.cvtColor(image_of(image, number + shift), cv2.COLOR_RGB2BGR)
            assert cv2.imwrite(str(folder / name / f"{number:04}{suffix}"), pixels)
        (folder / "spike" / f"{number:04}.dat").write_bytes(packed)


def make_set(root: Path, train: tuple[int, ...] = (7, 9), val: tuple[int, ...] = (6,), **words: Any) -> Path:
    """`root/{train,test}/seq_N`; numbers of images go on from sequence to sequence."""
    first = 0
    for split, lengths in (("train", train), ("test", val)):
        for position, rows in enumerate(lengths):
            make_sequence(root / split / f"seq_{position}", rows, first=first, **words)
            first += rows
    return root


OPTIONS: dict[str, Any] = {"height": 24, "width": 32, "frames": FRAMES, "layout": "packed", "flip": False}
"""How these spikes are laid out; the words of `penstock.open`."""


def config_tree(root: Path, **sections: dict[str, Any]) -> dict[str, Any]:
    """A configuration of such a set: two clips of three images in a batch, crops of 16 pixels, no workers."""
    data = {"ROOT": str(root), "CROP_SIZE": 16, "CLIP_LEN": 3, "SPIKE_LAYOUT": "packed", "SPIKE_HEIGHT": 24,
            "SPIKE_WIDTH": 32, "SPIKE_FRAMES": FRAMES, "SPIKE_FLIP": False}  # fmt: skip
    return {
        "SEED": 5,
        "DATA": {**data, **sections.get("DATA", {})},
        "DATALOADER": {"TOTAL_WORKERS": 0, **sections.get("DATALOADER", {})},
        "TRAIN": {"BATCH_SIZE": 2, **sections.get("TRAIN", {})},
    }
