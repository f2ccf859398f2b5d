"""Which topics have a value for every row: late ones are trimmed, short ones are fine."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock import recordings
from penstock._src.conversion.mapping.topics import MappedTopics, map_topics
from penstock._src.conversion.settings import read_settings
from tests.conversion import bags, datasets, topics
from tests.conversion.bags import CAM_H, COMMAND, STATE
from tests.conversion.topics import Note, at, notes

POSE = "geometry_msgs/msg/PoseStamped"


def mapped(path: Path, tape: list[bags.Message], *groups: list[Note], words: tuple[str, ...] = ()) -> MappedTopics:
    transforms = {"tf2_msgs/msg/TFMessage": "geometry_msgs/TransformStamped[] transforms"}
    topics.write(path / "run.bag", tape, *groups, custom=transforms)
    with recordings.open(path / "run.bag") as recording:
        return map_topics(recording, read_settings(overrides=words))


def camera(seconds: float, hz: float = 20) -> list[bags.Message]:
    return bags.camera(CAM_H, bags.times(hz, seconds), distinct=4)


def pose(topic: str, times_ns: list[int], x: float = 1.0) -> list[Note]:
    return notes(topic, POSE, times_ns, lambda _: {"pose": {"position": {"x": x, "y": 0.0, "z": 0.0}}})


def varying(topic: str, times_ns: list[int]) -> list[Note]:
    return notes(topic, "std_msgs/msg/Float64", times_ns, lambda n: {"data": float(n)})


# ── next to nothing ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_was_sent_once_or_a_few_times_is_no_column(tmp_path: Path) -> None:
    latched = pose("/calibration", [at(0.0), at(1.0), at(2.0)])
    times = bags.times(20, 3.0)
    info = notes("/cam_h/camera_info", "sensor_msgs/msg/CameraInfo", times, lambda _: {"width": 64, "height": 48})
    tape = camera(3.0) + bags.joints(STATE, bags.times(50, 3.0)) + bags.joints("/home_position", bags.times(1, 1.0))
    found = mapped(tmp_path, tape, latched, info, pose("/camera/extrinsics", [at(0.1)]))
    assert set(found.settings.features) == {"observation.images.cam_h", "observation.state"}
    assert [source.topic for source in found.settings.features["observation.state"].sources] == [STATE]
    assert any("/camera/extrinsics left out: only 1 message" in note for note in found.notes)
    assert any("/calibration left out: too sparse for a row each: 3 messages, and 10" in note for note in found.notes)


def test_a_camera_that_sent_one_image_does_not_make_the_data_set_one_row(tmp_path: Path) -> None:
    tape = camera(3.0) + bags.joints(STATE, bags.times(50, 3.0))
    tape += bags.camera("/map/image/compressed", [at(1.0)])
    found = mapped(tmp_path, tape)
    assert set(found.settings.features) == {"observation.images.cam_h", "observation.state"}
    assert any("/map/image/compressed left out: 1 image, while another topic has 150" in note for note in found.notes)


# ── dense or sparse ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["/arm/command", "/pressure"])
def test_a_topic_that_starts_late_is_taken_and_the_rows_before_it_are_trimmed(tmp_path: Path, name: str) -> None:
    tape = camera(20.0) + bags.joints(STATE, bags.times(50, 20.0))
    found = mapped(tmp_path, tape, varying(name, bags.times(20, 14.5, offset_s=5.5)))
    assert name in {source.topic for each in found.settings.features.values() for source in each.sources}
    report = penstock.convert(tmp_path / "run.bag", tmp_path / "out")
    assert (report.exit_code, dict(report.lost)) == (0, {})
    trimmed = report.alignment[0]["trimmed_head"]
    assert report.frames == 400 - trimmed and 105 <= trimmed <= 110
    assert any("starts 5.4" in note and "rows before it trimmed" in note for note in report.notes)


def test_578_commands_at_20_hz_are_not_sparse(tmp_path: Path) -> None:
    tape = camera(50.0, hz=10) + bags.joints(STATE, bags.times(20, 50.0))
    found = mapped(tmp_path, tape + bags.joints(COMMAND, bags.times(20, 28.9, offset_s=11.0)))
    assert [source.topic for source in found.settings.features["action"].sources] == [COMMAND]
    assert not any("sparse" in note for note in found.notes)


def test_a_short_recording_is_not_sparse(tmp_path: Path) -> None:
    tape = camera(0.3) + bags.joints(STATE, bags.times(20, 0.3)) + bags.joints(COMMAND, bags.times(20, 0.3))
    assert {"observation.state", "action"} <= set(mapped(tmp_path, tape).settings.features)


def test_the_timeline_itself_is_never_sparse(tmp_path: Path) -> None:
    times = [at(n * 0.04 + k * 6e-6) for n in range(50) for k in range(4)]
    tape = camera(2.0) + bags.joints(STATE, bags.times(50, 2.0))
    found = mapped(tmp_path, tape, varying("/status", times), words=("timeline=/status",))
    assert "observation.status" in found.settings.features
    assert not any("/status" in note for note in found.notes)


def test_a_bursty_topic_has_a_value_for_every_row(tmp_path: Path) -> None:
    times = [at(n * 0.25 + k * 1e-3) for n in range(20) for k in range(8)]
    found = mapped(tmp_path, camera(5.0) + bags.joints(STATE, bags.times(50, 5.0)), varying("/pressure", times))
    assert "observation.pressure" in found.settings.features
    report = penstock.convert(tmp_path / "run.bag", tmp_path / "out")
    assert report.exit_code == 0 and datasets.values(tmp_path / "out", "observation.pressure").shape[0] == report.frames


def test_a_topic_that_covers_a_small_part_is_left_out_with_that_reason(tmp_path: Path) -> None:
    tape = camera(20.0) + bags.joints(STATE, bags.times(50, 20.0))
    found = mapped(tmp_path, tape, varying("/pressure", bags.times(20, 3.0, offset_s=5.0)))
    assert "observation.pressure" not in found.settings.features
    assert any("/pressure left out: it would leave only 6" in note and "of 400 rows" in note for note in found.notes)


def test_topics_that_never_meet_do_not_take_all_rows_between_them(tmp_path: Path) -> None:
    tape = camera(20.0) + bags.joints(STATE, bags.times(50, 20.0))
    first, second = varying("/first", bags.times(20, 12.0)), varying("/second", bags.times(20, 11.0, offset_s=9.0))
    found = mapped(tmp_path, tape, first, second)
    assert "observation.first" in found.settings.features and "observation.second" not in found.settings.features


def test_pauses_that_only_one_topic_has_make_it_sparse(tmp_path: Path) -> None:
    tape = camera(20.0) + bags.joints(STATE, bags.times(50, 20.0))
    times = [t for t in bags.times(20, 20.0) if (t - bags.START_NS) // bags.SECOND % 10 < 5]
    found = mapped(tmp_path, tape, varying("/gripper/command", times))
    assert "action" not in found.settings.features
    assert any("/gripper/command left out: too sparse" in note and "rows find none" in note for note in found.notes)
