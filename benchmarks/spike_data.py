"""Spike clips for benchmarks: textures that move on a circle, as blurred and sharp PNG and packed `.dat` files.

A blurred image is the mean of what is seen during the exposure, the sharp one is what is seen at its middle. The spike
plane has half the resolution: every pixel adds up its brightness, and fires when the sum is over a threshold.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

THRESHOLD = 400  # a white pixel (255) fires in two frames of three
_RADIUS_PX = 80  # of the circle
_NOISE = 2  # levels of brightness: makes files of about 1 MB, as those of real 720p images


@dataclass(frozen=True)
class Scene:
    """What is made: sequences of rows, and their sizes. `travel_px`: the way of the texture during one exposure."""

    sequences: int = 2
    rows: int = 12
    height: int = 720
    width: int = 1280
    spike_frames: int = 88
    travel_px: int = 24
    test_sequences: int = 1
    seed: int = 0


def write_scene(root: Path, scene: Scene, threads: int = 2) -> Path:
    """`root/{train,test}/SEQ/{blur,sharp,spike}`."""
    rng = np.random.default_rng(scene.seed)
    jobs = []
    for number in range(scene.sequences + scene.test_sequences):
        split = "train" if number < scene.sequences else "test"
        directory = root / split / f"SEQ{number:03d}_11_00"
        for name in ("blur", "sharp", "spike"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        texture = _texture(rng, scene.height + 2 * _RADIUS_PX, scene.width + 2 * _RADIUS_PX)
        jobs += [(directory, scene, texture, row) for row in range(scene.rows)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda job: _write_row(*job), jobs))
    return root


def _texture(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Structure at every scale, with edges."""
    import cv2

    image = np.zeros((height, width, 3), np.float32)
    for cell_px in (12, 24, 48, 96, 192):
        cells = height // cell_px + 2, width // cell_px + 2
        coarse = (rng.standard_normal((*cells, 1)) + 0.3 * rng.standard_normal((*cells, 3))).astype(np.float32)
        way = cv2.INTER_NEAREST if cell_px > 12 else cv2.INTER_CUBIC
        image += cv2.resize(coarse, (width, height), interpolation=way)
    return np.clip(128 + 36 * cv2.GaussianBlur(image, (5, 5), 1.0), 0, 255).astype(np.uint8)


def _write_row(directory: Path, scene: Scene, texture: NDArray[np.uint8], row: int) -> None:
    import cv2

    rng = np.random.default_rng((scene.seed, row))
    size = scene.height, scene.width
    moments = np.linspace(row - 0.5, row + 0.5, scene.travel_px + 1)
    sums = np.zeros((*size, 3), np.uint16)
    for moment in moments:
        sums += _seen(texture, size, scene, moment, 1)
    images = {"blur": sums // len(moments), "sharp": _seen(texture, size, scene, row, 1)}
    for name, image in images.items():
        noise = rng.integers(0, _NOISE, (*size, 3), dtype=np.uint8)
        pixels = cv2.add(image.astype(np.uint8), noise)
        cv2.imwrite(str(directory / name / f"{row:06d}.png"), pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])
    half = cv2.resize(cv2.cvtColor(texture, cv2.COLOR_BGR2GRAY), None, fx=0.5, fy=0.5)
    spikes = np.concatenate(list(_spikes(rng, half, scene, row)))
    spikes.tofile(directory / "spike" / f"{row:06d}.dat")


def _seen(
    texture: NDArray[np.uint8], size: tuple[int, int], scene: Scene, moment: float, scale: int
) -> NDArray[np.uint8]:
    """The part of the texture that is seen at a moment, in exposures from the first one; `scale` 2: half as large."""
    angle = moment * scene.travel_px / _RADIUS_PX
    top, left = (round(_RADIUS_PX * (1 + way(angle)) / scale) for way in (np.sin, np.cos))
    return texture[top : top + size[0], left : left + size[1]]


def _spikes(
    rng: np.random.Generator, texture: NDArray[np.uint8], scene: Scene, row: int
) -> Iterator[NDArray[np.uint8]]:
    """Packed frames: integrate and fire, each pixel from a random state."""
    size = scene.height // 2, scene.width // 2
    charge = rng.integers(0, THRESHOLD, size, dtype=np.uint16)
    for moment in np.linspace(row - 0.5, row + 0.5, scene.spike_frames):
        charge += _seen(texture, size, scene, moment, 2)
        fires = charge >= THRESHOLD
        charge -= fires * np.uint16(THRESHOLD)
        yield np.packbits(fires.reshape(-1), bitorder="little")
