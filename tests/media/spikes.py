"""Spike frames, their bytes and images of the same scene, made by tests."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray


def scene(height: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    """A smooth image of 0 to 1 that is unlike itself upside down."""
    rng = np.random.default_rng(seed)
    coarse = rng.random((6, 6), np.float32)
    made = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.clip(0.6 * made + 0.4 * np.linspace(0, 1, height, dtype=np.float32)[:, None], 0, 1)


def spikes_of(image: NDArray[np.float32], frames: int, seed: int = 1) -> NDArray[np.uint8]:
    """Frames that fire the more often the brighter the scene is."""
    rng = np.random.default_rng(seed)
    return (rng.random((frames, *image.shape), np.float32) < image * 0.5).astype(np.uint8)


def random_spikes(frames: int, height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    return (np.random.default_rng(seed).random((frames, height, width)) < 0.3).astype(np.uint8)


def packed_bytes(spikes: NDArray[np.uint8], flip: bool = False) -> bytes:
    """As a spike camera writes them: bit after bit, the least significant first."""
    return np.packbits(spikes[:, ::-1] if flip else spikes, bitorder="little").tobytes()


def write_png(path: Path, image: NDArray[np.float32], size: tuple[int, int] | None = None) -> Path:
    """An image of 0 to 1 in three equal colours, at (height, width)."""
    made = image if size is None else cv2.resize(image, size[::-1])
    path.write_bytes(cv2.imencode(".png", np.repeat((made * 255).astype(np.uint8)[..., None], 3, 2))[1].tobytes())
    return path
