"""Data for `episodes.py`: recordings of a second, and a data set of very many episodes made of small videos."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from penstock._src.demo.recording import Script, write_recording
from penstock._src.lerobot import layout, tables
from penstock._src.lerobot.features import ROW_FEATURES, Description, Feature
from penstock._src.lerobot.layout import FilePosition, UnsyncedNames
from penstock._src.lerobot.stats import STATISTICS, NumericStats
from penstock._src.lerobot.write.sink import LeRobotSink
from penstock._src.media.image.codec import encode_jpeg
from penstock._src.media.mp4.boxes import mjpeg_stsd
from penstock._src.media.mp4.writer import Mp4Writer

FPS = 30
ROWS = 500
CAMERA = "observation.images.front"
SIDE_PX = 16
_GROUP_EPISODES = 128
_CHUNKS_SIZE = 1000  # files in a directory
_PER_VIDEO = int(layout.LONGEST_SHARED_VIDEO_S * FPS) // ROWS


def make_recordings(directory: Path, count: int) -> list[Path]:
    """Recordings of one second with small images; each has a name and bytes of its own."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"run-{number:06d}.bag" for number in range(count)]
    for number, path in enumerate(paths):
        if not path.exists():
            write_recording(path, Script(seconds=1.0, width=64, height=48, quality=80, seed=number))
    return paths


def make_data_set(root: Path, episodes: int) -> Path:
    """A LeRobot v3.0 data set of `episodes` × 500 rows, one row group per episode, as penstock writes it.

    Its videos are small: every episode shows one image of 16×16 px, and all video files are links to one.
    """
    if (root / layout.INFO_PATH).exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    video = Feature(CAMERA, "video", (SIDE_PX, SIDE_PX, 3), ("height", "width", "channels"), _video_info())
    features = (video, Feature("observation.state", "float32", (4,)), Feature("action", "float32", (4,)))
    per_file = tables.most_row_groups(len(tables.data_features(features)))
    _write_episodes(root, features, episodes, per_file)
    for first in range(0, episodes, per_file):
        _write_rows(root, features, first, min(first + per_file, episodes), _position(first // per_file))
    _write_videos(root, episodes)
    counts = {"total_episodes": episodes, "total_frames": episodes * ROWS, "total_tasks": 1}
    sink = LeRobotSink(root, Description(FPS, features, "made"), UnsyncedNames(root, fsync=False))
    described = sink.info({each.key: each.to_json() for each in (*features, *ROW_FEATURES)}, counts)
    pq.write_table(tables.tasks_table(["move the cup to the shelf"]), root / layout.TASKS_PATH)
    (root / layout.INFO_PATH).write_text(json.dumps(described))
    return root


def _position(number: int) -> FilePosition:
    return FilePosition(number // _CHUNKS_SIZE, number % _CHUNKS_SIZE)


def _video_info() -> dict[str, object]:
    size = {"video.height": SIDE_PX, "video.width": SIDE_PX, "video.fps": FPS}
    return {**size, "video.codec": "mjpeg", "video.pix_fmt": "yuvj420p", "video.channels": 3, "has_audio": False}


def _write_episodes(root: Path, features: tuple[Feature, ...], episodes: int, per_file: int) -> None:
    """The episodes table: as penstock divides it into files and row groups; the statistics are all the same."""
    schema = tables.episodes_schema(features)
    row = _row(features)
    places = {
        "episode_index": np.arange(episodes), "dataset_from_index": np.arange(episodes) * ROWS,
        "dataset_to_index": np.arange(1, episodes + 1) * ROWS,
        "data/chunk_index": np.arange(episodes) // per_file // _CHUNKS_SIZE,
        "data/file_index": np.arange(episodes) // per_file % _CHUNKS_SIZE,
        f"videos/{CAMERA}/chunk_index": np.arange(episodes) // _PER_VIDEO // _CHUNKS_SIZE,
        f"videos/{CAMERA}/file_index": np.arange(episodes) // _PER_VIDEO % _CHUNKS_SIZE,
        f"videos/{CAMERA}/from_timestamp": np.arange(episodes) % _PER_VIDEO * ROWS / FPS,
        f"videos/{CAMERA}/to_timestamp": (np.arange(episodes) % _PER_VIDEO + 1) * ROWS / FPS,
    }  # fmt: skip
    most = _GROUP_EPISODES * tables.most_row_groups(len(schema))
    for number, first in enumerate(range(0, episodes, most)):
        rows = range(first, min(first + most, episodes))
        row["meta/episodes/chunk_index"], row["meta/episodes/file_index"] = divmod(number, _CHUNKS_SIZE)
        columns = [
            pa.array(places[field.name][rows.start : rows.stop], field.type)
            if field.name in places
            else pa.array([row[field.name]], field.type).take(pa.array(np.zeros(len(rows), np.int64)))
            for field in schema
        ]
        chunk, file = divmod(number, _CHUNKS_SIZE)
        path = root / layout.fill_template(layout.EPISODES_PATH, chunk_index=chunk, file_index=file)
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_arrays(columns, schema=schema), path, row_group_size=_GROUP_EPISODES)


def _row(features: tuple[Feature, ...]) -> dict[str, object]:
    """What all episodes have in common; opening does not read statistics."""
    found: dict[str, object] = {"tasks": ["move the cup to the shelf"], "length": ROWS}
    for feature in (*features, *ROW_FEATURES):
        stats: object = None
        if feature.dtype != "video":
            made = NumericStats(feature.shape, feature.dtype)
            made.add(np.zeros((2, *feature.shape)))
            stats = made.to_json()
        for name in STATISTICS:
            found[f"stats/{feature.key}/{name}"] = stats[name] if isinstance(stats, dict) else None
    return found


def _write_rows(root: Path, features: tuple[Feature, ...], first: int, end: int, position: FilePosition) -> None:
    """A row group for each episode."""
    schema, stored, count = tables.data_schema(features), tables.data_features(features), (end - first) * ROWS
    path = layout.data_path(root, position)
    path.parent.mkdir(parents=True, exist_ok=True)
    vectors = np.tile(np.linspace(0, 1, ROWS * 4, dtype=np.float32), end - first).reshape(count, 4)
    frames = np.tile(np.arange(ROWS), end - first)
    rows = {
        "observation.state": vectors, "action": vectors, "task_index": np.zeros(count, np.int64),
        "timestamp": (frames / FPS).astype(np.float32), "frame_index": frames,
        "episode_index": np.repeat(np.arange(first, end), ROWS), "index": np.arange(first * ROWS, end * ROWS),
    }  # fmt: skip
    columns = [tables.column(feature, rows[feature.key]) for feature in stored]
    with tables.data_file(path, schema) as writer:
        writer.write_table(pa.Table.from_arrays(columns, schema=schema), row_group_size=ROWS)


def _write_videos(root: Path, episodes: int) -> None:
    """Whole files are links to one; the last one has the frames that are left."""
    files = -(-episodes // _PER_VIDEO)
    whole: Path | None = None
    for number in range(files):
        held = min(episodes - number * _PER_VIDEO, _PER_VIDEO)
        path = layout.video_path(root, CAMERA, _position(number))
        path.parent.mkdir(parents=True, exist_ok=True)
        if whole is not None and held == _PER_VIDEO:
            os.link(whole, path)
            continue
        image = encode_jpeg(np.full((SIDE_PX, SIDE_PX, 3), 90, np.uint8), 80)
        video = Mp4Writer(path, stsd=mjpeg_stsd(SIDE_PX, SIDE_PX), width=SIDE_PX, height=SIDE_PX, fps=FPS)
        for _ in range(held):
            video.append([image])
            video.repeat(ROWS - 1)
        video.close(False)
        whole = path if held == _PER_VIDEO else whole
