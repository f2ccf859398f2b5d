"""Rows of a store are the items of the real LeRobotDataset 0.6.1: pixels, numbers, tasks; whole and some episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

from penstock._src.media.image import codec
from penstock._src.stores.lerobot.store import LeRobotStore
from penstock._src.stores.store import Scratch
from tests.compat.test_lerobot_dataset import decoded, lerobot_made, read
from tests.lerobot.making import CAMERA, make
from tests.media import depths

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("default")]

DEPTH = "observation.images.depth"


def check_rows(store: LeRobotStore, data: LeRobotDataset) -> None:
    """Every item of LeRobot's against the row of the same number."""
    assert store.rows == len(data) and store.fps == data.fps
    source = store.images(CAMERA)
    names = [name for name, column in store.columns.items() if column.kind == "numbers"]
    rows = np.arange(store.rows)
    numbers = {name: store.numbers(name, rows) for name in names}
    tasks = store.texts("task", rows)
    assert {"timestamp", "index", "episode_index", "observation.state"} <= set(names)
    for row, image in zip(rows.tolist(), source.read(rows, Scratch()), strict=True):
        item = data[row]
        for name in names:
            theirs = item[name].numpy()
            assert theirs.shape == numbers[name][row].shape and np.array_equal(theirs, numbers[name][row]), (row, name)
        assert item["task"] == tasks[row]
        shown = item[CAMERA].permute(1, 2, 0).numpy()
        ours = image if image.ndim == 3 else decoded_as_ffmpeg(image.tobytes())
        scaled = ours.astype(np.float32) / np.float32(255) if shown.dtype == np.float32 else ours
        assert np.array_equal(shown, scaled), row


def decoded_as_ffmpeg(data: bytes) -> np.ndarray:
    """JPEG by the decoder that LeRobot uses: others blow up the colours of neighbouring pixels in another way."""
    return codec.decode(data) if data[:4] == b"\x89PNG" else decoded(data)


@pytest.mark.parametrize("episodes", [None, [1, 2]])
def test_jpeg_packets_are_the_frames_that_lerobot_shows(tmp_path: Path, episodes: list[int] | None) -> None:
    root = tmp_path / "set"
    make(root, tasks=("lift the cup", "打开抽屉"))
    store = LeRobotStore(root, episodes=episodes)
    check_rows(store, read(root, episodes=episodes, return_uint8=True, video_backend="pyav"))


@pytest.mark.parametrize("episodes", [None, [1]])
@pytest.mark.parametrize("use_videos", [True, False], ids=["av1", "images"])
def test_what_lerobot_wrote_is_read_alike(tmp_path: Path, use_videos: bool, episodes: list[int] | None) -> None:
    lerobot_made(tmp_path / "set", use_videos)
    store = LeRobotStore(tmp_path / "set", episodes=episodes)
    column = store.columns[CAMERA]
    assert column.encoding == ("av1" if use_videos else "png")
    options: dict[str, Any] = {"video_backend": "pyav"} if use_videos else {}
    check_rows(store, read(tmp_path / "set", episodes=episodes, **options))


def test_torchcodec_shows_the_same_frames(tmp_path: Path) -> None:
    lerobot_made(tmp_path / "set", True)
    store = LeRobotStore(tmp_path / "set")
    data = read(tmp_path / "set", video_backend="torchcodec", return_uint8=True)
    rows = list(range(store.rows))
    for row, image in zip(rows, store.images(CAMERA).read(rows, Scratch()), strict=True):
        shown = data[row][CAMERA].permute(1, 2, 0).numpy().astype(np.int16)
        assert np.abs(shown - image).max() <= 2, row  # another FFmpeg, another conversion to RGB


@pytest.mark.parametrize("use_videos", [True, False], ids=["video", "images"])
def test_depth_is_what_lerobot_shows_in_millimetres(tmp_path: Path, use_videos: bool) -> None:
    feature = {"shape": (48, 64, 1), "names": ["height", "width", "channels"], "info": {"is_depth_map": True}}
    features = {
        DEPTH: {"dtype": "video" if use_videos else "image", **feature},
        "observation.state": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]},
    }
    made = LeRobotDataset.create("p/theirs", 10, features, root=tmp_path / "set", use_videos=use_videos)
    for row in range(8):
        state = np.array([row, 1], np.float32)
        made.add_frame({DEPTH: depths.millimetres(row)[..., np.newaxis], "observation.state": state, "task": "look"})
    made.save_episode()
    made.finalize()
    data = LeRobotDataset("p/theirs", root=tmp_path / "set", depth_output_unit="mm")
    store = LeRobotStore(tmp_path / "set")
    column = store.columns[DEPTH]
    assert (column.kind, column.dtype, column.shape) == ("depth", "uint16", (48, 64, 1))
    for row, image in zip(range(8), store.images(DEPTH).read(range(8), Scratch()), strict=True):
        shown = data[row][DEPTH][0].numpy()
        if not use_videos:
            assert np.array_equal(image, depths.millimetres(row))
        assert np.abs(shown - image.astype(np.float32)).max() <= (1 if use_videos else 0)  # exp() of two libraries
