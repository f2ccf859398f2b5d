"""Every public recording of ../shared/data: inspected, and converted or refused with a reason, as this table says."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from penstock import recordings
from penstock._src.cli import main
from tests.conversion import datasets

ROOT = Path(__file__).resolve().parents[3] / "shared" / "data" / "recordings"

pytestmark = pytest.mark.skipif(not ROOT.is_dir(), reason="the shared recordings are not here")

NOTHING = "has nothing that becomes a feature"
NO_CAMERA = "no feature is a camera"
ONE_IMAGE = "its rate is unknown"
CUT = "has no usable image"


@dataclass(frozen=True)
class Outcome:
    """Messages in the recording; why it is not converted as it is; the words that do convert it, and what they give."""

    messages: int
    refused: str
    words: tuple[str, ...] = ()
    rows: int = 0
    features: tuple[str, ...] = ()
    exit_code: int = 0


TURTLE = ("timeline=/turtle1/pose", "features={action: /turtle1/cmd_vel, pose: {topic: /turtle1/pose, field: x}}")
IMAGE = "observation.images."
SCANNED = ("observation.state", "observation.base_scan")

OUTCOMES = {
    "ros1/embag/array_test.bag": Outcome(20, NOTHING),
    "ros1/embag/test_2.bag": Outcome(2, NOTHING),
    "ros1/embag/test_v1.bag": Outcome(3454, NO_CAMERA, ("timeline=fixed", "fps=10"), 1727, SCANNED),
    "ros1/fiducials/aruco_images.bag": Outcome(16, ONE_IMAGE, ("fps=30",), 1, (IMAGE + "raspicam_node",)),
    "ros1/pydtk/can.bag": Outcome(1121, NOTHING),
    "ros1/pydtk/records.bag": Outcome(
        91,
        NO_CAMERA,
        ("timeline=fixed", "fps=10"),
        10,
        (
            "observation.vehicle_acceleration",
            *(f"observation.vehicle_analog_{n}" for n in ("back_signal", "brake_signal", "speed_pulse", "turn_signal")),
        ),
    ),
    "ros1/rosbag.js/example-bz2.bag": Outcome(8647, NO_CAMERA, TURTLE, 734, ("action", "pose"), 3),
    "ros1/rosbag.js/example-lz4.bag": Outcome(8647, NO_CAMERA, TURTLE, 734, ("action", "pose"), 3),
    "ros1/rosbag.js/example-unsorted-chunks.bag": Outcome(3, NOTHING),
    "ros1/rosbag.js/example.bag": Outcome(8647, NO_CAMERA, TURTLE, 734, ("action", "pose"), 3),
    "ros1/rosbag.js/no-messages.bag": Outcome(0, NOTHING),
    "ros1/webviz/bag-with-empty-message-definition.bag": Outcome(14, NOTHING),
    "ros2/rerun/all_sensors.mcap": Outcome(
        194,
        NO_CAMERA,
        ("timeline=/joint_state", "missing=hold"),
        15,
        (IMAGE + "compressed_image", IMAGE + "image", "observation.state"),
    ),
    "ros2/rosbag2.js/sample.db3": Outcome(5, ONE_IMAGE, ("fps=30",), 1, (IMAGE + "image",)),
    "ros2/rosbag2/mcap/no_metadata/multiple_files_0.mcap": Outcome(3177, NOTHING),
    "ros2/rosbag2/mcap/service_events": Outcome(10, NOTHING),
    "ros2/rosbag2/mcap/talker": Outcome(20, NOTHING),
    "ros2/rosbag2/mcap/wbag": Outcome(6074, NOTHING),
    "ros2/rosbag2/sqlite3/no_metadata/multiple_files_0.db3": Outcome(3177, NOTHING),
    "ros2/rosbag2/sqlite3/service_events": Outcome(10, NOTHING),
    "ros2/rosbag2/sqlite3/talker": Outcome(20, NOTHING),
    "ros2/rosbag2/sqlite3/wbag": Outcome(6074, NOTHING),
    "ros2/rosbags-rs/test_bag_mcap": Outcome(188, CUT),
    "ros2/rosbags-rs/test_bag_sqlite3": Outcome(188, CUT),
}


def test_the_table_names_every_recording() -> None:
    assert [str(path.relative_to(ROOT)) for path in recordings.find([ROOT])] == sorted(OUTCOMES)


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_recording_is_inspected(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(ROOT / name), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(topic["messages"] for topic in found["topics"]) == OUTCOMES[name].messages
    assert not found["conversion"]["possible"] and OUTCOMES[name].refused in found["conversion"]["reason"]
    assert main(["inspect", str(ROOT / name)]) == 0
    printed = capsys.readouterr().out
    assert all(topic["name"] in printed for topic in found["topics"])


@pytest.mark.parametrize("name", [name for name, outcome in OUTCOMES.items() if outcome.refused == NO_CAMERA])
def test_the_command_that_is_proposed_without_a_camera_converts_all_of_the_recording(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(ROOT / name), str(tmp_path / "out")]) == 1
    hint = capsys.readouterr().err
    words = shlex.split(hint[hint.index("penstock convert ") :])
    assert main(["convert", str(ROOT / name), str(tmp_path / "out"), *words[4:], "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    with recordings.open(ROOT / name) as recording:
        times_ns = recording.times_ns(recording.topic(words[4].removeprefix("timeline=")))
    lasts_s = (int(times_ns.max()) - int(times_ns.min())) / 1e9
    assert report["lost"] == {} and report["frames"] / report["fps"] == pytest.approx(lasts_s, rel=0.1)


@pytest.mark.parametrize("name", OUTCOMES)
def test_every_recording_is_converted_or_refused_with_a_reason(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = OUTCOMES[name]
    assert main(["convert", str(ROOT / name), str(tmp_path / "out")]) == 1
    assert expected.refused in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    if not expected.words:
        return
    assert main(["convert", str(ROOT / name), str(tmp_path / "out"), "--json", *expected.words]) == expected.exit_code
    report = json.loads(capsys.readouterr().out)
    assert report["frames"] == expected.rows and tuple(report["features"]) == expected.features
    assert bool(report["lost"]) == (expected.exit_code == 3)
    assert main(["doctor", "--full", str(tmp_path / "out")]) == 0
    assert datasets.table(tmp_path / "out").num_rows == expected.rows
