"""Episodes of all kinds, each a function of its number alone: whoever writes number 5, writes the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.conversion.commit.journal import JOURNAL_PATH, whole_lines
from penstock._src.conversion.commit.writer import DataSetWriter, EpisodeWriter
from penstock._src.lerobot.features import Feature
from tests.lerobot.making import CAMERA, FPS, HEIGHT, IMAGE, NAMES, WIDTH, jpegs, rgb

ENCODED = "observation.images.encoded"
FEATURES = (
    Feature(CAMERA, "video", (HEIGHT, WIDTH, 3), NAMES),
    Feature(ENCODED, "video", (HEIGHT, WIDTH, 3), NAMES),
    Feature(IMAGE, "image", (HEIGHT, WIDTH, 3), NAMES),
    Feature("state", "float32", (3,), ("a", "b", "c")),
    Feature("gripper", "bool", (1,)),
    Feature("remark", "string", (1,)),
)
IDENTITY = {"inputs": ["a.bag", "größe.bag"], "settings": {"fps": FPS}}
LIMITS = {"data_file_bytes": 30_000, "video_file_bytes": 6_000, "chunks_size": 2}

_IMAGES = jpegs(12, seed=5)


def can_resume(root: Path) -> bool:
    """Whether there is a journal to go on from; a process may have been killed before it wrote the first line."""
    path = root / JOURNAL_PATH
    return path.is_file() and next(whole_lines(path), None) is not None


def begin(root: Path, **more: Any) -> DataSetWriter:
    given = {"features": FEATURES, "fsync": False, "identity": IDENTITY, **LIMITS, **more}
    return DataSetWriter(root, fps=FPS, robot_type="test", **given)


def task_of(number: int) -> str | None:
    """The task of an episode; None where its rows name theirs."""
    return None if number % 4 == 3 else f"task {number % 3}"


def fill(episode: EpisodeWriter, number: int, rows: int, features: Sequence[Feature] = FEATURES) -> None:
    """Write the rows and frames of episode `number`, which was begun with its task."""
    keys = {feature.key for feature in features}
    random = np.random.default_rng(number)
    frames = [_IMAGES[(number + row) % len(_IMAGES)] for row in range(rows)]
    if CAMERA in keys:
        shown = max(1, rows - number % 3)
        episode.video(CAMERA).append(frames[:shown])
        episode.video(CAMERA).repeat(rows - shown)
        episode.add_image_sample(CAMERA, rgb(number))
    if ENCODED in keys:
        episode.video(ENCODED).set_codec(_STSD, {"video.codec": "h264", "video.pix_fmt": "yuv420p", "video.crf": 30})
        samples = [random.bytes(50 + 7 * row) for row in range(rows)]
        episode.video(ENCODED).append(samples, [row % 4 == 0 for row in range(rows)])
    if IMAGE in keys:
        episode.add_image_sample(IMAGE, rgb(number + 100))
    columns: dict[str, Any] = {
        "state": random.normal(size=(rows, 3)).astype(np.float32),
        "gripper": random.integers(0, 2, rows).astype(bool),
        "remark": [f"row {row} of {number}" for row in range(rows)],
        IMAGE: frames,
    }
    if number % 3 == 2:
        columns["state"][0, 1] = np.nan
    texts = ["task 0", "task 1"]  # those that episodes name in this order
    numbers = np.array(episode.take_tables({"tasks": texts})["tasks"]) if task_of(number) is None else None
    for start in range(0, rows, 4):
        stop = min(start + 4, rows)
        episode.write_rows(
            {key: values[start:stop] for key, values in columns.items() if key in keys},
            task=None if numbers is None else numbers[(number + np.arange(start, stop)) % 2],
        )


def write(writer: DataSetWriter, number: int, rows: int, *, last: bool = False) -> None:
    with writer.episode(rows=rows, task=task_of(number)) as episode:
        fill(episode, number, rows, writer.features)
        episode.commit(note={"number": number}, last=last)


def write_all(writer: DataSetWriter, lengths: Iterable[int], first: int = 0) -> None:
    for number, rows in enumerate(lengths, first):
        write(writer, number, rows)


def undisturbed(root: Path, lengths: Iterable[int], **more: Any) -> Path:
    with begin(root, **more) as writer:
        write_all(writer, lengths)
    return root


def _box(name: bytes, body: bytes) -> bytes:
    return (8 + len(body)).to_bytes(4, "big") + name + body


_STSD = _box(b"stsd", bytes(8))
