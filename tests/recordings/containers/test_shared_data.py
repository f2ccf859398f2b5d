"""Recordings that others made: all of them open, and agree with rosbags wherever rosbags can read them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from penstock import recordings
from penstock._src.recordings.messages.schemas import type_name
from tests.recordings.containers.makers import SHARED, Everything, everything

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data are not here")
ALL = recordings.find([SHARED]) if SHARED.is_dir() else []
BAGS = [path for path in ALL if path.suffix == ".bag"]
# What rosbags cannot read, or reads without its messages: nothing to compare with.
UNREADABLE_BY_ROSBAGS = {"service_events", "talker"}

COUNTS = {
    "array_test.bag": 20,
    "test_2.bag": 2,
    "test_v1.bag": 3454,
    "aruco_images.bag": 16,
    "can.bag": 1121,
    "records.bag": 91,
    "example.bag": 8647,
    "example-lz4.bag": 8647,
    "example-bz2.bag": 8647,
    "example-unsorted-chunks.bag": 3,
    "no-messages.bag": 0,
    "bag-with-empty-message-definition.bag": 14,
    "all_sensors.mcap": 194,
    "sample.db3": 5,
    "multiple_files_0.mcap": 3177,
    "multiple_files_0.db3": 3177,
    "service_events": 10,
    "talker": 20,
    "wbag": 6074,
    "test_bag_mcap": 188,
    "test_bag_sqlite3": 188,
}


def _name(path: Path) -> str:
    return "/".join(path.parts[-2:])


def _counted(found: Everything) -> dict[tuple[str, str], Counter[tuple[int, bytes | None]]]:
    return {key: Counter(rows) for key, rows in found.items() if rows}


def test_every_recording_is_found_once() -> None:
    assert Counter(path.name for path in ALL) == Counter(
        [*COUNTS, "service_events", "talker", "wbag"]
    )  # these three exist as mcap and as db3


@pytest.mark.parametrize("path", ALL, ids=_name)
def test_recording_opens_with_the_right_counts_and_gives_all_payloads(path: Path) -> None:
    with recordings.open(path) as recording:
        assert sum(topic.count for topic in recording.topics) == COUNTS[path.name]
        assert not recording.losses
        found = everything(recording)
        tight = 3000 if COUNTS[path.name] < 1000 else 1 << 20
        assert found == everything(recording, memory_bytes=tight, shuffle=1)
        times = [time for rows in found.values() for time, _ in rows]
        assert (recording.start_ns, recording.end_ns) == ((min(times), max(times)) if times else (0, 0))


@pytest.mark.parametrize("path", BAGS, ids=_name)
def test_bag_agrees_with_rosbags(path: Path) -> None:
    from rosbags.rosbag1 import Reader

    theirs: Everything = {}
    with Reader(path) as reader:
        for connection, time_ns, data in reader.messages():
            theirs.setdefault((connection.topic, connection.msgtype), []).append((time_ns, data))
    with recordings.open(path) as recording:
        assert _counted(everything(recording)) == _counted(theirs)


@pytest.mark.parametrize("path", [path for path in ALL if path not in BAGS], ids=_name)
def test_ros2_bag_agrees_with_rosbags(path: Path) -> None:
    from rosbags.rosbag2 import Reader
    from rosbags.rosbag2.errors import ReaderError

    if path.name in UNREADABLE_BY_ROSBAGS or (path.is_file() and path.name.startswith("multiple_files")):
        pytest.skip("rosbags reads it wrongly, or only in parts")
    theirs: Everything = {}
    try:
        with Reader(path) as reader:
            for connection, time_ns, data in reader.messages():
                key = (connection.topic, type_name(connection.msgtype))
                theirs.setdefault(key, []).append((time_ns, bytes(data)))
    except ReaderError as error:
        pytest.skip(f"rosbags: {error}")
    with recordings.open(path) as recording:
        assert _counted(everything(recording)) == _counted(theirs)


@pytest.mark.parametrize("path", [path for path in ALL if path.name in COUNTS and "mcap" in str(path)], ids=_name)
def test_mcap_agrees_with_the_mcap_library(path: Path) -> None:
    from mcap.reader import make_reader

    theirs: Everything = {}
    files = sorted(path.glob("*.mcap")) if path.is_dir() else [path]
    if path.name.startswith("multiple_files"):
        files = sorted(path.parent.glob("multiple_files_*.mcap"))
    for file in files:
        with file.open("rb") as stream:
            for schema, channel, message in make_reader(stream).iter_messages(log_time_order=False):
                assert schema is not None
                rows = theirs.setdefault((channel.topic, schema.name), [])
                rows.append((message.log_time, message.data))
    with recordings.open(path) as recording:
        found = {key: rows for key, rows in everything(recording).items() if rows}
    assert found == theirs


@pytest.mark.parametrize("name", ["talker", "wbag"])
def test_mcap_and_db3_of_one_recording_are_the_same(name: str) -> None:
    both = []
    for storage in ("mcap", "sqlite3"):
        with recordings.open(SHARED / "ros2" / "rosbag2" / storage / name) as recording:
            both.append(everything(recording))
    assert both[0] == both[1]


def test_empty_definition_is_a_problem_of_its_topic_and_messages_stay_readable() -> None:
    path = SHARED / "ros1" / "webviz" / "bag-with-empty-message-definition.bag"
    with recordings.open(path) as recording:
        (topic,) = recording.topics
        assert topic.problem is not None and "empty definition of led_array_msgs/msg/Status" in topic.problem
        assert len(everything(recording)["/led_array_status", "led_array_msgs/msg/Status"]) == 14


def test_two_connections_of_one_topic_are_one_topic() -> None:
    with recordings.open(SHARED / "ros1" / "embag" / "test_2.bag") as recording:
        assert [(topic.name, topic.count) for topic in recording.topics] == [("chatter", 2)]


def test_chunks_out_of_time_order_are_numbered_in_file_order() -> None:
    with recordings.open(SHARED / "ros1" / "rosbag.js" / "example-unsorted-chunks.bag") as recording:
        times = recording.times_ns(recording.topic("foo"))
        assert sorted(times.tolist()) == [1_000_000_000, 2_000_000_000, 3_000_000_000]
        assert not np.all(times[1:] > times[:-1])


def test_talker_gives_all_twenty_messages() -> None:
    for storage in ("mcap", "sqlite3"):
        with recordings.open(SHARED / "ros2" / "rosbag2" / storage / "talker") as recording:
            assert {topic.name: topic.count for topic in recording.topics} == {
                "/parameter_events": 0,
                "/rosout": 10,
                "/topic": 10,
            }


def test_service_events_are_decoded_from_the_text_of_the_service() -> None:
    for storage in ("mcap", "sqlite3"):
        with recordings.open(SHARED / "ros2" / "rosbag2" / storage / "service_events") as recording:
            topic = recording.topic("/test_service1/_service_event")
            assert topic.count == 4 and topic.problem is None
            assert recording.decoder(topic).has_header is False


def test_two_part_type_names_become_three_parts() -> None:
    with recordings.open(SHARED / "ros2" / "rosbag2.js" / "sample.db3") as recording:
        types = {topic.type for topic in recording.topics}
        assert {"sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"} <= types


def test_header_times_are_those_inside_the_messages() -> None:
    path = SHARED / "ros1" / "fiducials" / "aruco_images.bag"
    from rosbags.rosbag1 import Reader
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    with Reader(path) as reader:
        stamps = [
            message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            for connection, _, data in reader.messages()
            if connection.topic == "/raspicam_node/camera_info"
            for message in [store.deserialize_ros1(data, connection.msgtype)]
        ]
    with recordings.open(path) as recording:
        assert recording.header_times_ns(recording.topic("/raspicam_node/camera_info")).tolist() == stamps
