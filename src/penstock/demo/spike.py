"""Spike clips with known motion: sharp images, blurred ones as their mean over the exposure, simulated spike streams.

    write_spike_set(Path("spikes"), SpikeScript())    # {train,test}/SEQ/{blur,sharp,spike}, motion.csv, config.yaml

Textures and objects move on smooth paths. A blurred image is the mean of all views during its exposure, the sharp one
is the view at its middle. The spike camera sees the same views at half the size: every pixel adds up brightness, and
fires and keeps the rest when the sum reaches 1. Streams are packed, and upside down as in the public set.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.demo.spike_scene import MovingScene
from penstock.errors import OutputExists, UsageError
from penstock.system.limits import read_cpu_limit

FRAMES_PER_VIEW = 8
"""Spike frames per view of the public set: a sequence `…_07_…` has 7 × 8 frames for one blurred image."""

GAIN = 0.8
"""The brightness that white adds in one frame: four spikes in five frames."""

CONFIG_NAME = "config.yaml"
_VIEWS = (7, 11)  # of the sequences, in turn, as their names say
_MOST = 100_000
_LONGEST_CROP_PX = 256
_CROP_STEP_PX = 16


@dataclass(frozen=True)
class SpikeScript:
    """How many sequences of how many images; how large; how many pixels things move during one exposure."""

    train: int = 8
    test: int = 2
    images: int = 12
    height: int = 192
    width: int = 256
    travel_px: float = 12.0
    seed: int = 0

    def check(self) -> None:
        """Refuse what makes no data."""
        for name, value, least, most in (
            ("train", self.train, 1, _MOST), ("test", self.test, 1, _MOST), ("images", self.images, 1, _MOST),
            ("height", self.height, 32, 4096), ("width", self.width, 32, 4096), ("travel", self.travel_px, 0, 200),
            ("seed", self.seed, 0, 2**32 - 1),
        ):  # fmt: skip
            if not least <= value <= most:
                raise UsageError(f"{name} {value:,} is outside {least:,}…{most:,}")
        if self.height % 2 or self.width % 16:
            raise UsageError(
                f"{self.height}×{self.width}: the spike plane has half the size, and its rows are whole bytes",
                hint="a height that 2 divides and a width that 16 divides, e.g. 192x256",
            )

    @property
    def plane(self) -> tuple[int, int]:
        """(height, width) of the spike plane."""
        return self.height // 2, self.width // 2


def sequence_name(number: int) -> str:
    """Of the sequence with this number: the middle says how many views a blurred image is the mean of."""
    return f"DEMO{number:04d}_{views_of(number):02d}_00"


def views_of(number: int) -> int:
    """How many views of eight spike frames each a blurred image of that sequence has."""
    return _VIEWS[number % len(_VIEWS)]


def write_spike_set(out: Path, script: SpikeScript) -> int:
    """Write the set and its configuration; returns how many bytes."""
    script.check()
    for path in (out / "train", out / "test", out / CONFIG_NAME):
        if path.exists():
            raise OutputExists(f"{path} exists: it is left alone", hint="choose another --out, or remove it yourself")
    numbers = range(script.train + script.test)
    with ThreadPoolExecutor(min(read_cpu_limit().count, len(numbers))) as pool:
        sizes = pool.map(lambda number: _write_sequence(out, script, number), numbers)
        n_bytes = sum(sizes)
    text = config_text(out, script).encode()
    (out / CONFIG_NAME).write_bytes(text)
    return n_bytes + len(text)


def config_text(out: Path, script: SpikeScript) -> str:
    """The YAML with which the set is trained on."""
    crop = min(script.height, script.width, _LONGEST_CROP_PX) * 2 // 3 // _CROP_STEP_PX * _CROP_STEP_PX
    return f"""\
# Made by `penstock demo spike`. Try it: penstock check {out / CONFIG_NAME}
SEED: 123

DATA:
  ROOT: {out.absolute()}
  TRAIN_SPLIT: train
  VAL_SPLIT: test
  CROP_SIZE: {max(crop, _CROP_STEP_PX)}
  CLIP_LEN: {min(5, script.images)}
  K: 32
  USE_PRECOMPUTED_VOXELS: false    # true after: penstock prepare voxels {out / CONFIG_NAME}
  NUM_VOXEL_BINS: 5
  SPIKE_DIR: spike
  USE_RAM_CACHE: true
  CACHE_SIZE_GB: 0.25

DATALOADER:
  TOTAL_WORKERS: "auto"
  TRAIN_PREFETCH_FACTOR: 4
  VAL_PREFETCH_FACTOR: 2
  PIN_MEMORY: true
  PERSISTENT_WORKERS: true

TRAIN:
  EPOCHS: 40
  BATCH_SIZE: 2
  VAL_BATCH_SIZE: 1
  GRADIENT_ACCUMULATION_STEPS: 1
  MAX_GRAD_NORM: 1.0
  OPTIM:
    LR: 0.002
"""


def _write_sequence(out: Path, script: SpikeScript, number: int) -> int:
    import cv2

    split = "train" if number < script.train else "test"
    folder = out / split / sequence_name(number)
    for part in ("blur", "sharp", "spike"):
        (folder / part).mkdir(parents=True)
    n_bytes = 0
    camera = SpikeCamera(script.plane, np.random.default_rng([script.seed, number, 1]))
    scene = MovingScene(script.height, script.width, script.travel_px, np.random.default_rng([script.seed, number]))
    for image, (blur, sharp, spikes) in enumerate(_exposures(scene, camera, script.images, views_of(number))):
        for part, pixels in (("blur", blur), ("sharp", sharp)):
            path = folder / part / f"{image:06d}.png"
            _, encoded = cv2.imencode(".png", pixels)
            n_bytes += path.write_bytes(encoded.tobytes())
        n_bytes += (folder / "spike" / f"{image:06d}.dat").write_bytes(spikes.tobytes())
    with open(folder / "motion.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "frame", *scene.columns])
        writer.writerows(_motion_rows(scene, script.images, views_of(number)))
        n_bytes += file.tell()
    return n_bytes


def _exposures(
    scene: MovingScene, camera: SpikeCamera, images: int, views: int
) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]]:
    """(blurred, sharp, packed spikes) of each image; the camera goes on from one to the next."""
    import cv2

    frames = views * FRAMES_PER_VIEW
    for image in range(images):
        total = np.zeros((scene.height, scene.width, 3), np.float32)
        packed = np.empty((frames, camera.frame_bytes), np.uint8)
        sharp = None
        for frame in range(frames):
            view = scene.view(image + frame / frames)
            cv2.accumulate(view, total)
            packed[frame] = camera.take(view)
            if frame == frames // 2:
                sharp = view
        assert sharp is not None
        yield np.round(total / frames).astype(np.uint8), sharp, packed


def _motion_rows(scene: MovingScene, images: int, views: int) -> Iterator[list[str]]:
    frames = views * FRAMES_PER_VIEW
    for image in range(images):
        for frame in range(frames):
            yield [str(image), str(frame), *(f"{value:.3f}" for value in scene.positions_px(image + frame / frames))]


class SpikeCamera:
    """An integrate-and-fire sensor: what a pixel has added up since it fired goes on into the next frame."""

    def __init__(self, plane: tuple[int, int], rng: np.random.Generator) -> None:
        self.height, self.width = plane
        self._sum = rng.random(plane, np.float32)  # pixels do not fire all at once

    @property
    def frame_bytes(self) -> int:
        """Of one packed frame."""
        return self.height * self.width // 8

    def take(self, view: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """One frame of spikes for a BGR view, packed, the lowest row first."""
        import cv2

        gray = cv2.cvtColor(view, cv2.COLOR_BGR2GRAY)
        seen = cv2.resize(gray, (self.width, self.height), interpolation=cv2.INTER_AREA)
        self._sum += seen * np.float32(GAIN / 255)
        fired = self._sum >= 1
        self._sum -= fired
        return np.packbits(fired[::-1], bitorder="little")
