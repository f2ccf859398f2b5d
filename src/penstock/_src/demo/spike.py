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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.demo import check_ranges
from penstock._src.system.limits import read_cpu_limit
from penstock.errors import OutputExists, UsageError

_OBJECTS = 2
_CELLS_PX = (96, 48, 24)  # of the coarse noise that makes light and shade
_SHAPE_EVERY_PX = 900  # of the area: one drawn shape


@dataclass(frozen=True)
class SinePath:
    """x and y as sines of time; one unit of time is one blurred image."""

    amplitude_px: tuple[float, float]
    cycles: tuple[float, float]  # per image
    phase: tuple[float, float]

    def at(self, time: float) -> tuple[float, float]:
        """(x, y) in pixels around the middle of the path."""
        turns = 2 * np.pi * np.multiply(self.cycles, time) + self.phase
        x, y = np.multiply(self.amplitude_px, np.sin(turns))
        return float(x), float(y)


def random_path(rng: np.random.Generator, reach_px: float, travel_px: float) -> SinePath:
    """Within `reach_px` of its middle, at a mean speed of `travel_px` per image in each direction."""
    amplitude = rng.uniform(0.6, 1.0, 2) * reach_px
    cycles = rng.uniform(0.7, 1.3, 2) * travel_px / (4 * amplitude)  # a sine goes four amplitudes in a cycle
    phase = rng.uniform(0, 2 * np.pi, 2)
    return SinePath(*((float(a), float(b)) for a, b in (amplitude, cycles, phase)))


class MovingScene:
    """Views of a background that moves, and of objects that move in front of it."""

    def __init__(self, height: int, width: int, travel_px: float, rng: np.random.Generator) -> None:
        self.height, self.width = height, width
        self._margin_px = max(min(height, width) // 3, 8)
        margin = 2 * self._margin_px
        self._background = _texture(rng, height + margin, width + margin)
        self._path = random_path(rng, self._margin_px - 2, travel_px)
        self._objects = [_Object(rng, height, width, travel_px) for _ in range(_OBJECTS)]

    @property
    def columns(self) -> list[str]:
        """The names of `positions_px`."""
        names = ["background", *(f"object{number}" for number in range(_OBJECTS))]
        return [f"{name}_{axis}_px" for name in names for axis in "xy"]

    def positions_px(self, time: float) -> list[float]:
        """x and y of the background and of each object in the view: how far each lies from the middle of its path."""
        paths = [self._path, *(each.path for each in self._objects)]
        return [value for path in paths for value in path.at(time)]

    def view(self, time: float) -> NDArray[np.uint8]:
        x, y = self._path.at(time)
        seen = _shifted(self._background, x - self._margin_px, y - self._margin_px, self.height, self.width)
        for each in self._objects:
            each.draw(seen, time)
        return seen


class _Object:
    """A textured disc in front of the background."""

    def __init__(self, rng: np.random.Generator, height: int, width: int, travel_px: float) -> None:
        import cv2

        size = max(min(height, width) // 4, 12)
        self._pixels = _texture(rng, size, size).astype(np.float32)
        self._mask = np.zeros((size, size, 1), np.float32)
        cv2.circle(self._mask, (size // 2, size // 2), size // 2 - 2, (1.0,), -1, cv2.LINE_AA)
        self._place = rng.uniform(0.1, 0.9, 2) * (width - size, height - size)
        self.path = random_path(rng, size, 1.5 * travel_px)

    def draw(self, seen: NDArray[np.uint8], time: float) -> None:
        """Into a view, at the place of that moment."""
        height, width = seen.shape[:2]
        size = len(self._mask)
        x, y = np.add(self._place, self.path.at(time))
        left, top = int(np.floor(x)), int(np.floor(y))
        right, below = min(left + size + 1, width), min(top + size + 1, height)
        first_x, first_y = max(left, 0), max(top, 0)
        if first_x >= right or first_y >= below:
            return
        mask = _shifted(self._mask, x - left, y - top, size + 1, size + 1).reshape(size + 1, size + 1, 1)
        pixels = _shifted(self._pixels, x - left, y - top, size + 1, size + 1)
        part = np.s_[first_y - top : below - top, first_x - left : right - left]
        under = seen[first_y:below, first_x:right]
        under[:] = np.round(under + mask[part] * (pixels[part] - under)).astype(np.uint8)


def _shifted(pixels: NDArray[Any], x: float, y: float, height: int, width: int) -> NDArray[Any]:
    """A view of `height` × `width` on pixels that lie `x` to the right and `y` below its corner."""
    import cv2

    matrix = np.array([[1, 0, x], [0, 1, y]], np.float32)
    shifted: NDArray[Any] = cv2.warpAffine(pixels, matrix, (width, height), flags=cv2.INTER_LINEAR)
    return shifted


def _texture(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Light and shade at several scales, and shapes with sharp edges."""
    import cv2

    shade = np.full((height, width, 3), 110, np.float32)
    for cell in _CELLS_PX:
        cells = (height // cell + 2, width // cell + 2)
        coarse = (rng.normal(0, 22, (*cells, 1)) + rng.normal(0, 7, (*cells, 3))).astype(np.float32)
        shade += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    canvas: NDArray[np.uint8] = np.clip(shade, 5, 250).astype(np.uint8)
    longest = max(min(height, width) // 6, 4)
    for _ in range(height * width // _SHAPE_EVERY_PX):
        colour = np.clip(rng.uniform(20, 235) + rng.normal(0, 25, 3), 5, 250).tolist()
        place = rng.uniform(0, 1, 2) * (width, height)
        ends = (place + rng.uniform(-longest, longest, (3, 2))).astype(np.int32)
        if rng.random() < 0.5:
            cv2.fillConvexPoly(canvas, ends, colour, cv2.LINE_AA)
        else:
            cv2.line(canvas, ends[0].tolist(), ends[1].tolist(), colour, int(rng.integers(1, 4)), cv2.LINE_AA)
    return canvas


FRAMES_PER_VIEW = 8
"""Spike frames per view of the public set: a sequence `…_07_…` has 7 × 8 frames for one blurred image."""

GAIN = 0.8  # the brightness that white adds in one frame: four spikes in five frames

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
        check_ranges(
            train=(self.train, 1, _MOST),
            test=(self.test, 1, _MOST),
            images=(self.images, 1, _MOST),
            height=(self.height, 32, 4096),
            width=(self.width, 32, 4096),
            travel=(self.travel_px, 0, 200),
            seed=(self.seed, 0, 2**32 - 1),
        )
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
