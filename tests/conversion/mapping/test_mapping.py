"""Topics that nobody named: which become features, under which names, and what is said of the rest."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock import recordings
from penstock._src.cli import main
from penstock._src.conversion.mapping.topics import MappedTopics, map_topics
from penstock._src.conversion.settings import read_settings
from penstock.errors import AlignError, ConfigError, PenstockError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, COMMAND, STATE


def mapped(path: Path, tape: list[bags.Message]) -> MappedTopics:
    with recordings.open(bags.write(path / "run.bag", tape)) as recording:
        return map_topics(recording, read_settings())


def topics_of(found: MappedTopics) -> dict[str, list[str]]:
    return {key: [source.topic for source in each.sources] for key, each in found.settings.features.items()}


def test_cameras_states_and_commands_get_the_names_that_policies_expect(tmp_path: Path) -> None:
    found = mapped(tmp_path, bags.robot())
    assert topics_of(found) == {
        "observation.images.cam_h": [CAM_H],
        "observation.images.cam_l": [bags.CAM_L],
        "observation.state": [STATE],
        "action": [COMMAND],
    }
    assert found.settings.timeline == CAM_H


def test_a_goal_that_was_sent_once_is_no_action(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1.0)) + bags.joints(STATE, bags.times(60, 1.0))
    found = mapped(tmp_path, tape + bags.joints("/arm/goal", bags.times(1, 1.0)))
    assert "action" not in found.settings.features
    assert any("/arm/goal left out: only 1 message" in note for note in found.notes)


def test_a_steady_command_is_taken_where_a_sparse_one_lies_beside_it(tmp_path: Path) -> None:
    found = mapped(tmp_path, bags.robot() + bags.joints("/arm/goal", bags.times(2, 1.0)))
    assert topics_of(found)["action"] == [COMMAND]
    assert any("/arm/goal left out: too sparse for a row each: 2 messages, and " in note for note in found.notes)


def test_arms_with_topics_of_their_own_share_one_state(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1.0))
    for side in ("left", "right"):
        tape += bags.joints(f"/{side}/joint_states", bags.times(60, 1.0))
    assert topics_of(mapped(tmp_path, tape))["observation.state"] == ["/left/joint_states", "/right/joint_states"]


def test_cameras_whose_short_names_clash_keep_their_whole_topic(tmp_path: Path) -> None:
    tape = bags.joints(STATE, bags.times(60, 1.0))
    for topic in ("/cam/color/image_raw/compressed", "/cam/rgb/compressed"):
        tape += bags.camera(topic, bags.times(30, 1.0))
    keys = [key for key in mapped(tmp_path, tape).settings.features if "images" in key]
    assert keys == ["observation.images.cam_color_image_raw_compressed", "observation.images.cam_rgb_compressed"]


def test_without_a_camera_the_error_says_how_to_go_on(tmp_path: Path) -> None:
    with pytest.raises(AlignError, match="no feature is a camera") as caught:
        mapped(tmp_path, bags.joints(STATE, bags.times(60, 1.0)))
    assert "timeline=fixed fps=60" in (caught.value.hint or "")


def test_without_a_camera_the_steadiest_topic_is_proposed_as_a_command_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tape = bags.joints("/shaky", bags.times(60, 4.0, jitter_s=0.006)) + bags.joints("/even", bags.times(50, 4.0))
    tape += bags.joints("/late", bags.times(50, 2.5, offset_s=1.5)) + bags.joints("/once", bags.times(1, 1.0))
    path = bags.write(tmp_path / "a run.bag", tape)
    assert main(["convert", str(path), str(tmp_path / "out")]) == 1
    hint = capsys.readouterr().err.strip().splitlines()[-1]
    command = shlex.split(hint[hint.index("penstock convert ") :])
    assert command == ["penstock", "convert", str(path), "OUT", "timeline=/even"]
    command[3] = str(tmp_path / "out")
    assert main([*command[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fps"] == 50


def test_a_topic_slower_than_any_fps_is_not_proposed(tmp_path: Path) -> None:
    path = bags.write(tmp_path / "run.bag", bags.joints(STATE, bags.times(0.2, 60.0)))
    with pytest.raises(AlignError) as caught, recordings.open(path) as recording:
        map_topics(recording, read_settings())
    hint = caught.value.hint or ""
    assert hint == f"1 row per second: penstock convert {shlex.quote(str(path))} OUT timeline=fixed fps=1"


def test_what_is_proposed_keeps_the_configuration_of_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = bags.write(tmp_path / "run.bag", bags.joints(STATE, bags.times(50, 1.0)))
    own = f"features[observation.arm]={STATE}"
    assert main(["convert", str(path), str(tmp_path / "out"), own]) == 1
    hint = capsys.readouterr().err.strip().splitlines()[-1]
    assert hint.endswith(f"add timeline={STATE}") and "penstock convert" not in hint


def test_a_camera_of_one_image_beside_joints_is_left_out(tmp_path: Path) -> None:
    """It made a data set of one row, or trimmed all rows but one."""
    tape = bags.joints(STATE, bags.times(50, 2.0)) + bags.camera(CAM_H, [bags.START_NS + bags.SECOND // 10])
    with pytest.raises(AlignError, match="no feature is a camera") as caught:
        mapped(tmp_path, tape)
    assert f"timeline={STATE}" in (caught.value.hint or "")
    report = penstock.convert(tmp_path / "run.bag", tmp_path / "out", timeline=STATE)
    assert report.frames == 100
    assert any(f"{CAM_H} left out: 1 image, while another topic has 100 messages" in note for note in report.notes)
    report = penstock.convert(tmp_path / "run.bag", tmp_path / "held", timeline=STATE, missing="hold")
    assert report.frames >= 95 and "observation.images.cam_h" in datasets.info(tmp_path / "held")["features"]


def test_a_camera_without_a_usable_image_is_left_out_with_the_word_of_the_hint(tmp_path: Path) -> None:
    tape = [replace(message, content=bags.Jpeg(b"\xff\xd8\xff")) for message in bags.camera(CAM_H, bags.times(30, 1.0))]
    path = bags.write(tmp_path / "run.bag", bags.camera(bags.CAM_L, bags.times(30, 1.0)) + tape)
    with pytest.raises(PenstockError, match="no usable image") as caught:
        penstock.convert(path, tmp_path / "out")
    word = (caught.value.hint or "").split()[-1]
    assert word == "leave_out=observation.images.cam_h"
    assert penstock.convert(path, tmp_path / "out", overrides=[word]).frames == 30


def test_a_feature_to_leave_out_that_a_configuration_does_not_have_is_refused(tmp_path: Path) -> None:
    path = bags.write(tmp_path / "run.bag", bags.robot(0.5))
    features = {"observation.images.cam": CAM_H, "observation.state": STATE}
    with pytest.raises(ConfigError, match=r"has no feature 'observation.stat'; did you mean"):
        penstock.convert(path, tmp_path / "out", features=features, leave_out=["observation.stat"])
