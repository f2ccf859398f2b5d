"""Recordings at the edge: no camera, no numbers, no messages, one frame; and what is mapped when nobody says how."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock.errors import AlignError, ConfigError, PenstockError, RecordingError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, STATE, Jpeg

H = "observation.images.cam_h"


def test_a_recording_of_cameras_alone_is_converted(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 0.5))
    for chunk_size in (0, 4):
        out = tmp_path / str(chunk_size)
        bag = bags.write(tmp_path / f"{chunk_size}.bag", tape)
        report = penstock.convert(bag, out, rosbag={"chunk_size": chunk_size})
        assert report.frames == 15 and list(report.features) == [H]
        assert datasets.samples(out, H) == [m.content.data for m in tape]
        assert datasets.table(out).column("frame_index").to_pylist() == list(range(15))
        assert datasets.problems(out, full=True) == []


def test_images_in_tables_need_no_numbers_either(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 0.5))
    penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", video="images", rosbag={"chunk_size": 4})
    stored = [entry["bytes"] for entry in datasets.table(tmp_path / "out").column(H).to_pylist()]
    assert stored == [m.content.data for m in tape]


def test_without_a_camera_the_error_says_what_to_set(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.joints(STATE, bags.times(50, 1)))
    with pytest.raises(AlignError, match="no feature is a camera") as caught:
        penstock.convert(bag, tmp_path / "out")
    assert "timeline" in str(caught.value) and "run.bag" in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked", [{"timeline": STATE}, {"timeline": "fixed", "fps": 25}])
def test_without_a_camera_a_timeline_suffices(asked: dict[str, object], tmp_path: Path) -> None:
    tape = bags.joints(STATE, bags.times(50, 1))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", **asked)
    assert report.frames == (50 if asked["timeline"] == STATE else 25)
    assert not (tmp_path / "out/videos").exists()
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_a_timeline_that_is_no_feature_gives_the_rows(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 1)) + bags.joints(STATE, bags.times(50, 1))
    tape += bags.messages("/tick", bags.times(10, 1), lambda n: bags.Text(str(n)))
    features = {H: CAM_H, "observation.state": STATE}
    report = penstock.convert(
        bags.write(tmp_path / "run.bag", tape), tmp_path / "out", timeline="/tick", features=features
    )
    assert report.fps == 10 and report.frames == 10
    assert datasets.samples(tmp_path / "out", H) == [m.content.data for m in bags.of(tape, CAM_H)[::3]]


def test_a_recording_without_messages_is_refused_clearly(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", [])
    with pytest.raises(PenstockError, match=r"run\.bag"):
        penstock.convert(bag, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_topic_without_messages_is_refused_by_name_when_asked_for(tmp_path: Path) -> None:
    from penstock._src.recordings.ros1.writer import BagWriter

    with BagWriter(tmp_path / "run.bag") as bag:
        text, md5 = bags._store(1).generate_msgdef("sensor_msgs/msg/JointState", ros_version=1)
        bag.add_topic(STATE, "sensor_msgs/JointState", text, md5)
        text, md5 = bags._store(1).generate_msgdef("sensor_msgs/msg/CompressedImage", ros_version=1)
        camera = bag.add_topic(CAM_H, "sensor_msgs/CompressedImage", text, md5)
        for message in bags.camera(CAM_H, bags.times(30, 0.5)):
            bag.write(camera, message.time_ns, bags.payload(message, 1))
    report = penstock.convert(tmp_path / "run.bag", tmp_path / "out")
    assert list(report.features) == [H]
    with pytest.raises(RecordingError, match=f"{STATE} has no messages"):
        penstock.convert(tmp_path / "run.bag", tmp_path / "out2", features={H: CAM_H, "observation.state": STATE})


def test_one_frame_needs_a_rate_and_is_converted_with_one(tmp_path: Path) -> None:
    at = bags.times(30, 0.1)
    tape = bags.camera(CAM_H, at[:1]) + bags.joints(STATE, at)
    bag = bags.write(tmp_path / "run.bag", tape)
    with pytest.raises(PenstockError, match=r"rate|fps"):
        penstock.convert(bag, tmp_path / "out")
    report = penstock.convert(bag, tmp_path / "out", fps=30)
    assert report.frames == 1
    assert datasets.samples(tmp_path / "out", H) == [bags.jpeg(0)]
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_streams_that_do_not_overlap_are_refused_with_their_ranges(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 0.5)) + bags.joints(STATE, bags.times(50, 0.5, offset_s=5))
    with pytest.raises(AlignError, match=r"observation\.state 5\.000"):
        penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")


def test_header_time_of_a_topic_without_a_header_is_refused_by_name(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 0.5)) + bags.arrays("/array", bags.times(50, 0.5))
    bag = bags.write(tmp_path / "run.bag", tape)
    with pytest.raises(RecordingError, match="/array"):
        penstock.convert(bag, tmp_path / "out", time="header")
    features = {H: CAM_H, "observation.state": {"topic": "/array", "time": "log"}}
    assert penstock.convert(bag, tmp_path / "out", time="header", features=features).frames == 15


# ── mapping without a configuration ──────────────────────────────────────────────────────────────────────────────────


def test_topics_are_mapped_by_type_and_name(tmp_path: Path) -> None:
    tape = [
        *bags.robot(1),
        *bags.camera("/cam_h/depth/image_raw/compressedDepth", bags.times(30, 1)),
        *bags.messages("/cam_h/color/image_raw", bags.times(30, 1), lambda n: bags.raw(bags.image(n), "rgb8")),
        *bags.arrays("/gripper/state", bags.times(50, 1), count=1),
        *bags.poses("/tool", bags.times(40, 1)),
        *bags.messages("/chatter", bags.times(5, 1), lambda n: bags.Text("hello")),
        *bags.arrays("/rare", bags.times(2, 1)),
    ]
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    topics = {key: feature["topics"] for key, feature in report.features.items()}
    assert topics == {
        "observation.images.cam_h": [CAM_H],
        "observation.images.cam_l": [bags.CAM_L],
        "observation.state": [STATE],
        "action": [bags.COMMAND],
        "observation.gripper_state": ["/gripper/state"],
        "observation.tool": ["/tool"],
    }
    notes = "\n".join(report.notes)
    assert "compressedDepth" in notes and "/chatter" in notes and "/rare left out" in notes
    assert "raw twins" in notes and "/cam_h/color/image_raw" in notes
    assert report.features["observation.state"]["names"] == [f"joint_{k}" for k in range(4)]


def test_cameras_that_would_share_a_name_keep_their_topics(tmp_path: Path) -> None:
    tape = bags.camera("/front/image_raw/compressed", bags.times(30, 0.5))
    tape += bags.camera("/front/image_rect/compressed", bags.times(30, 0.5))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert sorted(report.features) == [
        "observation.images.front_image_raw_compressed",
        "observation.images.front_image_rect_compressed",
    ]


@pytest.mark.parametrize("topic", ["/../../etc/passwd/image", "/a<script>/image", "/кам/image", "/" + "x" * 300])
def test_odd_topic_names_become_safe_file_names(topic: str, tmp_path: Path) -> None:
    tape = bags.camera(topic, bags.times(30, 0.5))
    penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run.bag"]
    (videos,) = (tmp_path / "out/videos").iterdir()
    assert videos.name.isascii() and len(videos.name) < 110 and "<" not in videos.name and ".." not in videos.name
    assert datasets.problems(tmp_path / "out", full=True) == []


@pytest.mark.parametrize("key", ["../../escape", "a/b", "", "timestamp", "x" * 400])
def test_a_feature_key_that_cannot_be_a_file_name_is_refused(key: str, tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.camera(CAM_H, bags.times(30, 0.3)))
    with pytest.raises(PenstockError):
        penstock.convert(bag, tmp_path / "out", features={key: CAM_H})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.bag"]


@pytest.mark.parametrize(
    ("feature", "words"),
    [
        ({"topic": "/joint_state"}, ["/joint_states"]),
        ({"topic": STATE, "field": "positon"}, ["positon"]),
        ({"topic": STATE, "names": ["joint_0", "elbow"]}, ["elbow"]),
        ({"topic": STATE, "scale": [1, 2]}, ["scale", "4", "2"]),
        ({"topic": "/chatter"}, ["/chatter"]),
        ({"topic": STATE, "polcy": "hold"}, ["polcy", "policy"]),
        ({"topic": STATE, "policy": "cubic"}, ["cubic", "linear"]),
        ({"topic": STATE, "policy": "slerp", "field": "position[0:3]"}, ["slerp"]),
        ([{"topic": CAM_H}, {"topic": STATE}], ["camera", "one topic"]),
    ],
)
def test_a_wrong_feature_says_what_is_wrong(feature: object, words: list[str], tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 0.3)) + bags.joints(STATE, bags.times(50, 0.3))
    tape += bags.messages("/chatter", bags.times(5, 0.3), lambda n: bags.Text("hello"))
    bag = bags.write(tmp_path / "run.bag", tape)
    with pytest.raises(PenstockError) as caught:
        penstock.convert(bag, tmp_path / "out", features={H: CAM_H, "observation.state": feature})
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_fixed_timeline_needs_a_rate(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.robot(0.3))
    with pytest.raises(ConfigError, match="rate"):
        penstock.convert(bag, tmp_path / "out", timeline="fixed")


def test_a_rate_above_the_cameras_points_to_the_fixed_timeline(tmp_path: Path) -> None:
    bag = bags.write(tmp_path / "run.bag", bags.robot(0.5))
    with pytest.raises(AlignError, match="fixed"):
        penstock.convert(bag, tmp_path / "out", fps=60)


def test_doubles_stay_doubles_when_asked(tmp_path: Path) -> None:
    tape = bags.camera(CAM_H, bags.times(30, 0.3)) + bags.joints(STATE, bags.times(30, 0.3))
    features = {H: CAM_H, "observation.state": {"topic": STATE, "dtype": "float64"}}
    penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", features=features)
    found = datasets.values(tmp_path / "out", "observation.state")
    assert np.array_equal(found, [m.content.position for m in bags.of(tape, STATE)])


def test_a_message_of_several_megabytes_is_moved_whole(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    big = rng.integers(0, 256, (1200, 1600, 3)).astype(np.uint8)
    import cv2

    data = cv2.imencode(".jpg", big, [cv2.IMWRITE_JPEG_QUALITY, 98])[1].tobytes()
    assert len(data) > 2_500_000
    tape = bags.messages(CAM_H, bags.times(30, 0.1), lambda n: Jpeg(data))
    penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert datasets.samples(tmp_path / "out", H) == [data] * 3
