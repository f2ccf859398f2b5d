"""Small LeRobot v2.1 data sets for tests, laid out by hand and encoded by FFmpeg: no code of penstock's writers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

HEIGHT, WIDTH, FPS = 48, 64, 30
CAMERA = "observation.images.top"
STILL = "observation.images.still"
TASKS = ("lift the cup", "打开抽屉")
ENCODERS = {
    "h264": "libx264", "hevc": "libx265", "av1": "libsvtav1", "mjpeg": "mjpeg", "vp9": "libvpx-vp9", "mpeg4": "mpeg4",
}  # fmt: skip


@dataclass(frozen=True)
class Video:
    """How the videos of a data set are encoded."""

    codec: str = "h264"
    gop: int = 2
    b_frames: int = 0
    header_fps: int = FPS
    options: dict[str, str] = field(default_factory=dict)
    container: dict[str, str] = field(default_factory=dict)


H264 = Video()
REORDERED = {
    "h264": Video("h264", gop=12, b_frames=2),
    "h264 pyramid": Video("h264", gop=30, b_frames=3, options={"x264-params": "b-pyramid=normal:b-adapt=0"}),
    "h264 open GOP": Video("h264", gop=6, b_frames=3, options={"x264-params": "open-gop=1:b-adapt=0:scenecut=0"}),
    "hevc": Video("hevc", gop=12, b_frames=3, options={"x265-params": "open-gop=0"}),
    "hevc open GOP": Video("hevc", gop=5, b_frames=3, options={"x265-params": "open-gop=1:scenecut=0"}),
}
"""Videos whose frames are stored in another order than they are shown."""


def image(episode: int, row: int) -> np.ndarray:
    """A gradient with a square that moves: easy to encode, and no two alike."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    rgb = np.stack([x * 3 + episode * 20, y * 4, x + y + row * 3], axis=2).astype(np.uint8)
    left = (row * 3 + episode * 7) % (WIDTH - 12)
    rgb[10:22, left : left + 12] = (250, 40, 20 + (row * 11) % 200)
    return rgb


def encode(path: Path, images: list[np.ndarray], video: Video) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"g": str(video.gop), "bf": str(video.b_frames), **video.options}
    if video.codec == "hevc":
        more = options.pop("x265-params", "")
        options["x265-params"] = f"log-level=error:bframes={video.b_frames}{':' if more else ''}{more}"
    if video.codec == "av1":
        options |= {"preset": "12", "svtav1-params": "lp=1"}
        options.pop("bf")
    with av.open(str(path), "w", format="mp4", options=video.container) as container:
        stream: Any = container.add_stream(ENCODERS[video.codec], rate=video.header_fps, options=options)
        stream.width, stream.height = images[0].shape[1], images[0].shape[0]
        stream.pix_fmt = "yuvj420p" if video.codec == "mjpeg" else "yuv420p"
        stream.codec_context.time_base = Fraction(1, video.header_fps)
        for number, rgb in enumerate(images):
            frame = av.VideoFrame.from_ndarray(rgb, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, video.header_fps)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def decoded(path: Path) -> list[np.ndarray]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def numbers(episode: int, rows: int) -> dict[str, Any]:
    """The columns of an episode, one of every kind."""
    random = np.random.default_rng(episode + 100)
    return {
        "observation.state": random.normal(size=(rows, 5)).astype(np.float32),
        "action": random.normal(size=(rows, 3)).astype(np.float64),
        "observation.pose": random.normal(size=(rows, 2, 3)).astype(np.float32),
        "next.done": np.arange(rows) == rows - 1,
        "counter": np.arange(rows, dtype=np.int64) * 3 + 2**40,
        "remark": [f"row {row} of {episode}" for row in range(rows)],
    }


FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": [5], "names": {"motors": ["a", "b", "c", "d", "e"]}},
    "action": {"dtype": "float64", "shape": [3], "names": [["x", "y", "z"]]},
    "observation.pose": {"dtype": "float32", "shape": [2, 3], "names": None},
    "next.done": {"dtype": "bool", "shape": [1], "names": None},
    "counter": {"dtype": "int64", "shape": [1], "names": None},
    "remark": {"dtype": "string", "shape": [1], "names": None},
}
PLACE: dict[str, dict[str, Any]] = {
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    **{
        name: {"dtype": "int64", "shape": [1], "names": None}
        for name in ("frame_index", "episode_index", "index", "task_index")
    },
}


def tasks_of(episode: int, rows: int) -> np.ndarray:
    """The last episode changes its task midway."""
    return np.array([0 if episode != 2 or row < rows // 2 else 1 for row in range(rows)], dtype=np.int64)


def table(episode: int, rows: int, first_row: int, stills: bool) -> pa.Table:
    columns: dict[str, pa.Array] = {}
    for key, values in numbers(episode, rows).items():
        if isinstance(values, np.ndarray) and values.ndim == 2:
            flat = pa.array(values.reshape(-1))
            columns[key] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        else:
            columns[key] = pa.array(values.tolist() if isinstance(values, np.ndarray) else values)
    columns["observation.pose"] = columns["observation.pose"].cast(pa.list_(pa.list_(pa.float32())))
    if stills:
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        columns[STILL] = pa.array([{"bytes": still(episode, row), "path": f"{row}.png"} for row in range(rows)], kind)
    frames = np.arange(rows)
    columns["timestamp"] = pa.array((frames / FPS).astype(np.float32))
    columns["frame_index"] = pa.array(frames)
    columns["episode_index"] = pa.array(np.full(rows, episode))
    columns["index"] = pa.array(frames + first_row)
    columns["task_index"] = pa.array(tasks_of(episode, rows))
    return pa.table(columns)


def still(episode: int, row: int) -> bytes:
    import cv2

    written, data = cv2.imencode(".png", image(episode, row)[:, :, ::-1])
    assert written
    return bytes(data)


def make(
    root: Path,
    lengths: tuple[int, ...] = (12, 9, 11),
    video: Video | None = H264,
    *,
    stills: bool = False,
    **info: Any,
) -> Path:
    """Write a data set; `info` replaces entries of info.json."""
    first_row = 0
    features = dict(FEATURES)
    shape = {"shape": [HEIGHT, WIDTH, 3], "names": ["height", "width", "channel"]}
    if video is not None:
        described = {"video.codec": video.codec, "video.fps": video.header_fps, "video.is_depth_map": False, "lens": 35}
        features[CAMERA] = {"dtype": "video", **shape, "info": described}
    if stills:
        features[STILL] = {"dtype": "image", **shape}
    lines = []
    for episode, rows in enumerate(lengths):
        path = root / f"data/chunk-000/episode_{episode:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(episode, rows, first_row, stills), path, row_group_size=5)
        if video is not None:
            encode(video_path(root, episode), [image(episode, row) for row in range(rows)], video)
        used = [TASKS[number] for number in np.unique(tasks_of(episode, rows))]
        lines.append({"episode_index": episode, "tasks": used, "length": rows})
        first_row += rows
    (root / "meta").mkdir()
    write_lines(root / "meta/episodes.jsonl", lines)
    write_lines(root / "meta/tasks.jsonl", [{"task_index": n, "task": task} for n, task in enumerate(TASKS)])
    tree = {
        "codebase_version": "v2.1",
        "robot_type": "testbot",
        "total_episodes": len(lengths),
        "total_frames": first_row,
        "total_tasks": len(TASKS),
        "total_videos": len(lengths) if video else 0,
        "total_chunks": 1,
        "chunks_size": 1000,
        "fps": FPS,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {**features, **PLACE},
        **info,
    }
    (root / "meta/info.json").write_text(json.dumps(tree, ensure_ascii=False))
    return root


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def video_path(root: Path, episode: int) -> Path:
    return root / f"videos/chunk-000/{CAMERA}/episode_{episode:06d}.mp4"


def data_path(root: Path, episode: int) -> Path:
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def edit_info(root: Path, **changes: Any) -> None:
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    error = float(np.mean((one.astype(np.float64) - other.astype(np.float64)) ** 2))
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


ANNOTATION = "annotation.human.action.task_description"


def set_tasks(root: Path, texts: list[str], task: list[list[int]], annotation: list[list[int]] | None = None) -> Path:
    """Give a data set another task table, with numbers of tasks by episode and row; and a column as GR00T has it."""
    for episode, numbers_of_rows in enumerate(task):
        path = data_path(root, episode)
        rows = pq.ParquetFile(path).read()
        rows = rows.set_column(rows.column_names.index("task_index"), "task_index", pa.array(numbers_of_rows))
        if annotation is not None:
            rows = rows.append_column(ANNOTATION, pa.array(annotation[episode]))
        pq.write_table(rows, path)
    write_lines(root / "meta/tasks.jsonl", [{"task_index": n, "task": text} for n, text in enumerate(texts)])
    info = json.loads((root / "meta/info.json").read_text())
    info["total_tasks"] = len(texts)
    if annotation is not None:
        info["features"][ANNOTATION] = {"dtype": "int64", "shape": [1], "names": None}
    (root / "meta/info.json").write_text(json.dumps(info, ensure_ascii=False))
    return root
