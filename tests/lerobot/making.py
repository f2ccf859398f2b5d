"""Small data sets for the tests."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.read.frames import FrameFinder
from penstock._src.lerobot.read.reader import open_data_set
from penstock._src.media.image.codec import encode_jpeg

HEIGHT, WIDTH = 32, 48
FPS = 30
CAMERA = "observation.images.cam"
IMAGE = "observation.images.still"
NAMES = ("height", "width", "channels")
FEATURES = (
    Feature(CAMERA, "video", (HEIGHT, WIDTH, 3), NAMES),
    Feature("observation.state", "float32", (4,), ("a", "b", "c", "d")),
    Feature("action", "float32", (2,), ("x", "y")),
)
IMAGE_FEATURES = (Feature(IMAGE, "image", (HEIGHT, WIDTH, 3), NAMES), *FEATURES[1:])


def rgb(seed: int) -> NDArray[np.uint8]:
    coarse = np.random.default_rng(seed).integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3), dtype=np.uint8)
    return np.ascontiguousarray(np.kron(coarse, np.ones((8, 8, 1), dtype=np.uint8)))


def jpegs(count: int, seed: int = 0) -> list[bytes]:
    return [encode_jpeg(rgb(seed * 1000 + number)) for number in range(count)]


def numbers(count: int, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    return {
        "observation.state": random.normal(size=(count, 4)).astype(np.float32),
        "action": random.uniform(-1, 1, size=(count, 2)).astype(np.float32),
    }


def write_episode(writer: DataSetWriter, count: int, seed: int, task: str = "lift the cup", flush: int = 5) -> None:
    with writer.episode(rows=count, task=task) as episode:
        images = jpegs(count, seed)
        values: dict[str, Any] = dict(numbers(count, seed))
        if any(feature.dtype == "image" for feature in writer.features):
            values[IMAGE] = images
            episode.add_image_sample(IMAGE, rgb(seed * 1000))
        else:
            episode.video(CAMERA).append(images)
            episode.add_image_sample(CAMERA, rgb(seed * 1000))
        for start in range(0, count, flush):
            episode.write_rows({key: rows[start : start + flush] for key, rows in values.items()})
        episode.commit()


def make(
    root: Path,
    lengths: tuple[int, ...] = (12, 7, 9),
    features: tuple[Feature, ...] = FEATURES,
    first_seed: int = 0,
    tasks: tuple[str, ...] = ("lift the cup",),
    **limits: int,
) -> None:
    with DataSetWriter(root, fps=FPS, features=features, robot_type="test", fsync=False, **limits) as writer:
        for number, length in enumerate(lengths):
            write_episode(writer, length, first_seed + number, tasks[number % len(tasks)])


def digests(root: Path) -> dict[str, str]:
    """Every file of the data set below `root` with the hash of its bytes; not what penstock keeps beside it."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.parent.name != "penstock"
    }


def tree(root: Path) -> set[str]:
    """Every name below `root`, directories too."""
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def frame(root: Path, row: int) -> bytes:
    """The bytes of the frame that belongs to a row."""
    data = open_data_set(root)
    episode = int(np.searchsorted(data.episodes.end_row, row, side="right"))
    found = FrameFinder(data).find(episode, CAMERA)
    sample = found.samples[row - int(data.episodes.first_row[episode])]
    with found.path.open("rb") as stream:
        stream.seek(int(found.index.offsets[sample]))
        return stream.read(int(found.index.sizes[sample]))
