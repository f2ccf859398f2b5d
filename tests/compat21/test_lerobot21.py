"""The real LeRobot 0.3.3 reads what penstock writes as v2.1: rows, frames, tasks and statistics."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import CODEBASE_VERSION, LeRobotDataset
from lerobot.datasets.video_utils import get_video_info

import penstock
from tests.conversion import bags, datasets, version21
from tests.conversion.cameras.test_depth import KEY as DEPTH
from tests.conversion.cameras.test_depth import RAW, raw_mm, tape_of
from tests.media import depths
from tests.stores import hdf5_files

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("default"),  # LeRobot and what it imports warn about themselves
]

SHARED = Path(__file__).resolve().parents[3] / "shared/data/lerobot/g1_v21"


def read(root: Path, **options: Any) -> LeRobotDataset:
    return LeRobotDataset("penstock/test", root=root, **options)


def shown(root: Path, key: str) -> list[np.ndarray]:
    """Every frame of a camera, as torchcodec decodes the files one after the other."""
    from torchcodec.decoders import VideoDecoder

    frames = []
    for path in sorted(root.glob(f"videos/chunk-*/{key}/episode_*.mp4")):
        frames += [frame.permute(1, 2, 0).numpy() for frame in VideoDecoder(str(path))]
    return frames


def pixels(item: dict[str, Any], key: str) -> np.ndarray:
    return np.rint(item[key].permute(1, 2, 0).numpy() * 255).astype(np.uint8)


def check_statistics(data: LeRobotDataset, key: str, values: np.ndarray) -> None:
    values = values.astype(np.float64)
    for name, expected in (
        ("min", values.min(axis=0)),
        ("max", values.max(axis=0)),
        ("mean", values.mean(axis=0)),
        ("std", values.std(axis=0)),
    ):
        np.testing.assert_allclose(data.meta.stats[key][name], expected, rtol=1e-6, atol=1e-9)
    assert data.meta.stats[key]["count"].tolist() == [len(values)]


def check_frames(data: LeRobotDataset, root: Path) -> None:
    """Every item shows the frame of its row, for every camera."""
    for key in data.meta.video_keys:
        frames = shown(root, key)
        assert len(frames) == len(data)
        for row in range(len(data)):
            assert np.array_equal(pixels(data[row], key), frames[row]), (key, row)
        assert data.meta.stats[key]["mean"].shape == (3, 1, 1) and 0 < data.meta.stats[key]["mean"].max() <= 1


@pytest.mark.parametrize("video", [None, "copy"])
def test_recordings_are_read(tmp_path: Path, video: str | None, caplog: pytest.LogCaptureFixture) -> None:
    sources = [bags.write(tmp_path / f"run_{n}.bag", bags.robot(0.4 + n / 10, seed=n)) for n in range(2)]
    more = {} if video is None else {"video": video}
    report = penstock.convert(sources, tmp_path / "v21", output="v2.1", task="打开抽屉", **more)
    penstock.convert(sources, tmp_path / "v30", task="打开抽屉")
    with caplog.at_level(logging.WARNING):
        data = read(tmp_path / "v21")
    assert CODEBASE_VERSION == "v2.1" and not caplog.records
    assert (len(data), data.num_episodes, data.fps) == (report.frames, 2, 30)
    numbers = {key: datasets.values(tmp_path / "v30", key) for key in ("observation.state", "action")}
    for row in range(len(data)):
        item = data[row]
        assert item["task"] == "打开抽屉" and item["index"].item() == row
        for key, expected in numbers.items():
            assert np.array_equal(item[key].numpy(), expected[row].astype(np.float32))
    for key, expected in numbers.items():
        check_statistics(data, key, expected)
    assert len(data.meta.video_keys) == 2
    for key in data.meta.video_keys:
        assert data.meta.features[key]["info"]["video.codec"] == ("mjpeg" if video == "copy" else "h264")
    check_frames(data, tmp_path / "v21")


@pytest.mark.parametrize("raw", [False, True])
def test_hdf5_files_are_read(tmp_path: Path, raw: bool) -> None:
    made = [hdf5_files.aloha(tmp_path / f"episode_{i}.hdf5", rows=6 + i, seed=i, raw=raw) for i in range(3)]
    penstock.convert(tmp_path, tmp_path / "out", output="v2.1", fps=50, task="pour")
    data = read(tmp_path / "out")
    assert (len(data), data.num_episodes, data.fps) == (21, 3, 50)
    for key, name in (("observation.state", "qpos"), ("observation.velocity", "qvel"), ("action", "action")):
        expected = np.concatenate([episode[name] for episode in made]).astype(np.float32)
        assert np.array_equal(np.stack([data[row][key].numpy() for row in range(21)]), expected)
        check_statistics(data, key, expected)
    check_frames(data, tmp_path / "out")


@pytest.mark.parametrize("through", ["v2.1", "v3.0"])
def test_data_sets_are_read_with_columns_of_every_kind(tmp_path: Path, through: str) -> None:
    lengths = (12, 9, 11)
    source = version21.make(tmp_path / "source", lengths)
    if through == "v3.0":
        penstock.convert(source, tmp_path / "v30")
    out = tmp_path / "out"
    penstock.convert(source if through == "v2.1" else tmp_path / "v30", out, output="v2.1")
    data = read(out)
    assert len(data) == sum(lengths) and data.meta.robot_type == "testbot"
    row = 0
    for episode, rows in enumerate(lengths):
        values, tasks = version21.numbers(episode, rows), version21.tasks_of(episode, rows)
        for frame in range(rows):
            item = data[row]
            for key in ("observation.state", "action", "observation.pose", "next.done", "counter"):
                found = item[key].numpy()  # lerobot 0.3 makes float32 of all floats
                assert np.array_equal(found, np.asarray(values[key][frame]).astype(found.dtype)), (key, row)
            assert item["remark"] == values["remark"][frame] and item["task"] == version21.TASKS[tasks[frame]]
            row += 1
    check_frames(data, out)
    moved = [version21.video_path(root, 1).stat().st_size for root in (source, out)]
    assert moved[0] / 2 < moved[1] <= moved[0], "the packets are moved, not encoded anew"


def test_windows_and_chosen_episodes_are_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(version21.make(tmp_path / "source", (12, 9, 11)), out, output="v2.1")
    steps = [-1 / 30, 0.0, 1 / 30]
    data = read(out, delta_timestamps={version21.CAMERA: steps, "action": steps})
    action = np.concatenate([version21.numbers(episode, rows)["action"] for episode, rows in enumerate((12, 9, 11))])
    action = action.astype(np.float32)  # as lerobot 0.3 makes of all floats
    item = data[12]  # the first row of the second episode
    assert np.array_equal(item["action"].numpy(), action[[12, 12, 13]]) and item["action_is_pad"].tolist() == [1, 0, 0]
    frames = shown(out, version21.CAMERA)
    for number, row in enumerate((12, 12, 13)):
        assert np.array_equal(pixels({"x": item[version21.CAMERA][number]}, "x"), frames[row])
    some = read(out, episodes=[1, 2])
    assert [some[row]["index"].item() for row in range(20)] == list(range(12, 32))


def test_info_says_of_the_videos_what_lerobot_finds_in_them(tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(bags.write(tmp_path / "run.bag", bags.robot(0.4)), out, output="v2.1")
    for key, feature in datasets.info(out)["features"].items():
        for path in out.glob(f"videos/chunk-*/{key}/*.mp4"):
            found = get_video_info(path)
            found.pop("video.is_depth_map")  # which v3.0 and penstock call is_depth_map
            assert {name: feature["info"][name] for name in found} == found


def test_images_in_the_table_are_read(tmp_path: Path) -> None:
    out = tmp_path / "out"
    penstock.convert(bags.write(tmp_path / "run.bag", bags.robot(0.4)), out, output="v2.1", video="images")
    data = read(out)
    assert data.meta.image_keys and not data.meta.video_keys and datasets.info(out)["video_path"] is None
    for key in data.meta.image_keys:
        assert data[3][key].shape == (3, bags.HEIGHT, bags.WIDTH)
        assert data.meta.stats[key]["mean"].shape == (3, 1, 1)


def test_a_data_set_with_depth_and_subtasks_is_read(tmp_path: Path) -> None:
    path = bags.write(tmp_path / "run.bag", tape_of(RAW, raw_mm))
    (tmp_path / "tasks.csv").write_text("file,start,end,subtask\nrun.bag,0,,reach\n")
    penstock.convert(path, tmp_path / "out", output="v2.1")
    data = read(tmp_path / "out")
    item = data[4]
    assert item["subtask"] == "reach"
    assert np.array_equal(item[DEPTH].numpy().squeeze().view(np.uint16), depths.millimetres(4))
    check_frames(data, tmp_path / "out")


@pytest.mark.skipif(not SHARED.is_dir(), reason="real data that is not in the repository")
@pytest.mark.parametrize("video", [None, "copy"])
def test_a_real_data_set_of_others_is_read(tmp_path: Path, video: str | None) -> None:
    """Unitree G1, AV1; of its hundred episodes four have files."""
    more = {} if video is None else {"video": video}
    report = penstock.convert(SHARED, tmp_path / "out", output="v2.1", bad_episodes="drop", **more)
    assert report.episodes == 4 and report.exit_code == 3
    data = read(tmp_path / "out")
    source = read(SHARED, episodes=[1, 2, 4, 5])
    assert len(data) == len(source) == report.frames
    key = "observation.images.cam_high"
    for row in (0, 100, len(data) - 1):
        new, old = data[row], source[row]
        assert new["task"] == old["task"]
        assert np.array_equal(new["observation.state"].numpy(), old["observation.state"].numpy())
        difference = np.abs(pixels(new, key).astype(int) - pixels(old, key)).mean()
        assert difference == 0 if video == "copy" else difference < 6
    for name in ("min", "max", "mean", "std", "count"):
        np.testing.assert_allclose(data.meta.stats["action"][name], source.stats["action"][name], rtol=1e-4, atol=1e-6)
