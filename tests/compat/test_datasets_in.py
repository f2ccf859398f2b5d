"""The real LeRobot 0.6.1 reads data sets that penstock converted from data sets: every frame is the source's frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lerobot.datasets.lerobot_dataset import LeRobotDataset

import penstock
from penstock._src.media.mp4.index import read_index
from tests.conversion import bags, datasets, version21
from tests.conversion.version21 import CAMERA, TASKS, Video

pytestmark = [
    pytest.mark.compat,
    pytest.mark.filterwarnings("default"),  # LeRobot and what it imports warn about themselves
]

LENGTHS = (12, 9, 11)


def read(root: Path, **options: Any) -> LeRobotDataset:
    return LeRobotDataset("penstock/test", root=root, return_uint8=True, **options)


def decoded(path: Path, backend: str) -> list[np.ndarray]:
    """The frames of a video as the reader of the data set decodes them."""
    if backend == "pyav":
        return version21.decoded(path)
    from torchcodec.decoders import VideoDecoder

    return [frame.permute(1, 2, 0).numpy() for frame in VideoDecoder(str(path))]


def pixels(item: dict[str, Any], key: str) -> np.ndarray:
    return item[key].permute(1, 2, 0).numpy()


@pytest.mark.parametrize("backend", ["torchcodec", "pyav"])
@pytest.mark.parametrize("codec", ["h264", "av1", "mjpeg"])
def test_every_frame_and_value_of_a_v21_data_set_is_read_back(tmp_path: Path, codec: str, backend: str) -> None:
    source = version21.make(tmp_path / "old", LENGTHS, Video(codec))
    penstock.convert(source, tmp_path / "new")
    data = read(tmp_path / "new", video_backend=backend)
    assert len(data) == sum(LENGTHS) and data.num_episodes == 3 and data.meta.robot_type == "testbot"
    expected = [rgb for episode in range(3) for rgb in decoded(version21.video_path(source, episode), backend)]
    row = 0
    for episode, rows in enumerate(LENGTHS):
        values = version21.numbers(episode, rows)
        tasks = version21.tasks_of(episode, rows)
        for frame in range(rows):
            item = data[row]
            assert np.array_equal(item["observation.state"].numpy(), values["observation.state"][frame])
            assert np.array_equal(item["observation.pose"].numpy(), values["observation.pose"][frame])
            assert bool(item["next.done"]) == values["next.done"][frame]
            assert item["remark"] == values["remark"][frame] and item["task"] == TASKS[tasks[frame]]
            assert np.array_equal(pixels(item, CAMERA), expected[row]), (episode, frame)
            row += 1


@pytest.mark.parametrize("backend", ["torchcodec", "pyav"])
@pytest.mark.parametrize("kind", version21.REORDERED)
def test_b_frames_are_moved_and_read_at_random_as_the_source_shows_them(
    tmp_path: Path, kind: str, backend: str
) -> None:
    lengths = (12, 9, 31)
    source = version21.make(tmp_path / "old", lengths, version21.REORDERED[kind])
    assert (np.diff(read_index(version21.video_path(source, 2)).pts) < 0).any(), "the source must have B-frames"
    report = penstock.convert(source, tmp_path / "new", video="copy-only")
    assert not any("anew" in note for note in report.notes)
    expected = [rgb for episode in range(3) for rgb in decoded(version21.video_path(source, episode), backend)]
    data = read(tmp_path / "new", video_backend=backend)
    for row in np.random.default_rng(1).permutation(sum(lengths)).tolist():
        assert np.array_equal(pixels(data[row], CAMERA), expected[row]), row


@pytest.mark.parametrize("kind", version21.REORDERED)
def test_b_frames_that_lerobot_put_into_one_file_are_cut_out_again(tmp_path: Path, kind: str) -> None:
    from lerobot.datasets.video_utils import concatenate_video_files

    source = version21.make(tmp_path / "old", LENGTHS, version21.REORDERED[kind])
    penstock.convert(source, tmp_path / "shared")
    (path,) = datasets.video_files(tmp_path / "shared", CAMERA)
    path.unlink()
    concatenate_video_files([version21.video_path(source, episode) for episode in range(3)], path)
    penstock.convert(tmp_path / "shared", tmp_path / "new", video="copy-only")
    assert datasets.samples(tmp_path / "new", CAMERA) == datasets.samples(tmp_path / "shared", CAMERA)
    data = read(tmp_path / "new", video_backend="torchcodec")
    expected = [rgb for episode in range(3) for rgb in decoded(version21.video_path(source, episode), "torchcodec")]
    for row in np.random.default_rng(2).permutation(sum(LENGTHS)).tolist():
        assert np.array_equal(pixels(data[row], CAMERA), expected[row]), row


def test_the_task_of_every_row_is_what_the_sources_say(tmp_path: Path) -> None:
    one, other = ["unused", "pick", "valid", "pick"], ["invalid", "wipe", "pick", "unused"]
    first, second = ([[1, 3, 1]], [[2, 2, 2]]), ([[2, 1]], [[0, 2]])
    version21.set_tasks(version21.make(tmp_path / "a", (3,), None), one, *first)
    version21.set_tasks(version21.make(tmp_path / "b", (2,), None), other, *second)
    penstock.convert([tmp_path / "a", tmp_path / "b"], tmp_path / "new")
    data = read(tmp_path / "new")
    assert [data[row]["task"] for row in range(5)] == ["pick", "pick", "pick", "pick", "wipe"]
    table = data.meta.tasks.index.tolist()
    assert table == ["unused", "pick", "valid", "pick", "invalid", "wipe"]
    annotated = [table[int(data[row][version21.ANNOTATION])] for row in range(5)]
    assert annotated == ["valid", "valid", "valid", "invalid", "pick"]


@pytest.mark.parametrize("codec", ["av1", "h264"])
def test_a_data_set_from_a_bag_is_encoded_later_with_the_same_numbers(tmp_path: Path, codec: str) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.robot(0.6))
    penstock.convert(bag, tmp_path / "now")
    penstock.convert(tmp_path / "now", tmp_path / "tonight", video=codec)
    before, after = read(tmp_path / "now"), read(tmp_path / "tonight")
    assert len(before) == len(after) > 10
    cameras = list(before.meta.video_keys)
    assert cameras and datasets.info(tmp_path / "tonight")["features"][cameras[0]]["info"]["video.codec"] == codec
    for row in range(0, len(before), 3):
        one, other = before[row], after[row]
        for key in ("observation.state", "action", "timestamp", "task_index"):
            assert np.array_equal(one[key].numpy(), other[key].numpy())
        for key in cameras:
            assert version21.psnr(pixels(one, key), pixels(other, key)) > 22


def test_what_lerobot_itself_wrote_is_rewritten_by_moving(tmp_path: Path) -> None:
    features = {
        "observation.state": {"dtype": "float32", "shape": (3,), "names": ["a", "b", "c"]},
        CAMERA: {"dtype": "video", "shape": (64, 96, 3), "names": ["height", "width", "channels"]},
    }
    made = LeRobotDataset.create("penstock/test", 30, features, root=tmp_path / "theirs", robot_type="theirs")
    random = np.random.default_rng(0)
    for episode in range(2):
        for _ in range(6 + episode):
            image = np.kron(random.integers(0, 255, (8, 12, 3), dtype=np.uint8), np.ones((8, 8, 1), np.uint8))
            state = random.normal(size=3).astype(np.float32)
            made.add_frame({"observation.state": state, CAMERA: image, "task": f"task {episode}"})
        made.save_episode()
    made.finalize()
    report = penstock.convert(tmp_path / "theirs", tmp_path / "ours")
    assert report.lost == {} and not any("encoded anew" in note for note in report.notes)
    assert datasets.samples(tmp_path / "theirs", CAMERA) == datasets.samples(tmp_path / "ours", CAMERA)
    before, after = read(tmp_path / "theirs", video_backend="pyav"), read(tmp_path / "ours", video_backend="pyav")
    for row in range(13):
        one, other = before[row], after[row]
        assert one["task"] == other["task"] and np.array_equal(pixels(one, CAMERA), pixels(other, CAMERA))
        assert np.array_equal(one["observation.state"].numpy(), other["observation.state"].numpy())
    assert datasets.problems(tmp_path / "ours", full=True) == []
