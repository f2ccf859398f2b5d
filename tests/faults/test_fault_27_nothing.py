"""Fault 27: an empty bag, an episode without rows, a single frame: a clear message, and no crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.cli import main
from penstock._src.recordings.ros1.writer import BagWriter
from penstock.errors import AlignError, NotARecording, PenstockError, RecordingError
from tests.conversion import bags, datasets, topics
from tests.conversion.bags import CAM_H, STATE
from tests.conversion.topics import spoken


def empty_bag(path: Path, *, with_topic: bool) -> Path:
    with BagWriter(path) as bag:
        if with_topic:
            text, md5 = bags._store(1).generate_msgdef("sensor_msgs/msg/CompressedImage", ros_version=1)
            bag.add_topic(CAM_H, "sensor_msgs/CompressedImage", text, md5)
    return path


@pytest.mark.parametrize("with_topic", [False, True])
def test_27_a_bag_without_messages_is_refused_in_words(tmp_path: Path, with_topic: bool) -> None:
    path = empty_bag(tmp_path / "run.bag", with_topic=with_topic)
    with pytest.raises(AlignError, match=r"run\.bag has nothing that becomes a feature: it holds no messages"):
        penstock.convert(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(RecordingError, match=r"has no messages|no topic"):
        penstock.convert(path, tmp_path / "out", features={"observation.images.cam_h": CAM_H})


@pytest.mark.parametrize("name", ["run.bag", "run.mcapdir"])
@pytest.mark.parametrize("words", [{}, {"features": {"observation.state": STATE}}])
def test_27_a_recording_cut_before_its_first_message_is_said_to_be_cut(
    tmp_path: Path, name: str, words: dict[str, Any]
) -> None:
    path = bags.write(tmp_path / name, bags.joints(STATE, bags.times(30, 1 / 30)))
    path = next(path.glob("*.mcap")) if path.is_dir() else path
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(PenstockError, match="run") as caught:
        penstock.convert(path, tmp_path / "out", **words)
    assert "it was cut" in caught.value.hint or "its recorder did not finish" in caught.value.hint


@pytest.mark.parametrize("name", ["run.mcapdir", "run.db3dir"])
def test_27_an_empty_recording_of_ros_2_is_refused_in_words(tmp_path: Path, name: str) -> None:
    with pytest.raises(PenstockError, match="run"):
        penstock.convert(bags.write(tmp_path / name, []), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["run.bag", "run.mcap", "run.db3"])
def test_27_a_file_of_no_bytes_is_no_recording(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises((NotARecording, RecordingError), match=name):
        penstock.convert(tmp_path / name, tmp_path / "out")


def test_27_inspect_says_that_there_is_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = empty_bag(tmp_path / "run.bag", with_topic=True)
    assert main(["inspect", str(path)]) == 0
    assert CAM_H in capsys.readouterr().out


def test_27_one_frame_is_one_row(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1 / 30)) + bags.joints(STATE, bags.times(30, 1 / 30))
    path = bags.write(tmp_path / "run.bag", tape)
    report = penstock.convert(path, tmp_path / "out", fps=30)
    assert (report.episodes, report.frames, report.lost) == (1, 1, {})
    assert datasets.samples(tmp_path / "out", "observation.images.cam_h") == [bags.jpeg(0)]
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_27_one_frame_has_no_rate_of_its_own(tmp_path: Path) -> None:
    path = bags.write(tmp_path / "run.bag", bags.camera(CAM_H, bags.times(30, 1 / 30)))
    with pytest.raises(AlignError, match="fps") as caught:
        penstock.convert(path, tmp_path / "out")
    assert "fps" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_27_an_episode_without_rows_is_left_out_and_reported(tmp_path: Path) -> None:
    texts = spoken("/rec", {0.01: "start", 0.02: "stop", 0.5: "start", 0.5001: "stop", 1.0: "start", 9.0: "start"})
    path = topics.write(tmp_path / "run.bag", bags.camera(CAM_H, bags.times(20, 2.0)), texts)
    words = ["episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop"]
    report = penstock.convert(path, tmp_path / "out", overrides=words)
    assert [episode["length"] for episode in datasets.episodes(tmp_path / "out")] == [1, 20]
    assert any("1 episodes have no row and are left out, the first at 0.010 s" in note for note in report.notes)
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_27_nothing_but_episodes_without_rows_is_refused(tmp_path: Path) -> None:
    texts = spoken("/rec", {0.01: "start", 0.02: "stop"})
    path = topics.write(tmp_path / "run.bag", bags.camera(CAM_H, bags.times(20, 1.0)), texts)
    words = ["episodes.topic=/rec", "episodes.start=start", "episodes.stop=stop"]
    with pytest.raises(AlignError, match="no episode has a row: 20 rows, 20 outside"):
        penstock.convert(path, tmp_path / "out", overrides=words)
    assert not (tmp_path / "out").exists()


def test_27_a_recording_that_is_cut_away_is_refused_in_words(tmp_path: Path) -> None:
    path = bags.write(tmp_path / "run.bag", bags.camera(CAM_H, bags.times(20, 1.0)))
    with pytest.raises(PenstockError, match="sample_drop"):
        penstock.convert(path, tmp_path / "out", sample_drop=10)
