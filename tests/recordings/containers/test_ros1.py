"""ROS 1 bags: what a topic is, bad definitions, odd times, odd layouts."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from penstock import recordings
from penstock._src.recordings.ros1.writer import BagWriter
from penstock.errors import NotARecording, RecordingError, SchemaError, UsageError
from tests.recordings.containers.makers import everything, ros1_payload, some_messages, write_bag

HEADER = "=" * 80 + "\nMSG: std_msgs/Header\nuint32 seq\ntime stamp\nstring frame_id\n"
STAMPED = "Header header\nstring data\n" + HEADER


def _stamped(seconds: int, nanoseconds: int, text: str) -> bytes:
    return struct.pack("<III", 7, seconds, nanoseconds) + ros1_payload("frame") + ros1_payload(text)


def test_one_topic_with_two_types_is_two_topics_and_the_larger_is_meant_by_name(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "a.bag") as bag:
        text = bag.add_topic("/x", "std_msgs/String", "string data\n", "1" * 32)
        number = bag.add_topic("/x", "std_msgs/Int32", "int32 data\n", "2" * 32)
        bag.write(text, 1, ros1_payload("a"))
        for time_ns in (2, 3):
            bag.write(number, time_ns, struct.pack("<i", time_ns))
    with recordings.open(tmp_path / "a.bag") as recording:
        assert [(topic.type, topic.count) for topic in recording.topics] == [
            ("std_msgs/msg/Int32", 2),
            ("std_msgs/msg/String", 1),
        ]
        assert recording.topic("/x").type == "std_msgs/msg/Int32"
        assert everything(recording)["/x", "std_msgs/msg/String"] == [(1, ros1_payload("a"))]


def test_one_type_with_two_definitions_is_two_topics(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "a.bag") as bag:
        for text in ("string data\n", "string other\n"):
            bag.write(bag.add_topic("/x", "my/Text", text, "1" * 32), 1, ros1_payload("a"))
    with recordings.open(tmp_path / "a.bag") as recording:
        values = [recording.decoder(topic).decode(ros1_payload("a")) for topic in recording.topics]
        assert values == [{"data": "a"}, {"other": "a"}]


def test_broken_definition_hurts_its_own_topic_only(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "a.bag") as bag:
        for name, text in (("/good", "string data\n"), ("/empty", ""), ("/broken", "strung data ]\n")):
            bag.write(bag.add_topic(name, f"my/{name[1:].title()}", text, "1" * 32), 1, ros1_payload("a"))
    with recordings.open(tmp_path / "a.bag") as recording:
        assert [topic.name for topic in recording.topics if topic.problem is None] == ["/good"]
        assert recording.decoder(recording.topic("/good")).decode(ros1_payload("a")) == {"data": "a"}
        for name in ("/empty", "/broken"):
            with pytest.raises(SchemaError, match=f"topic {name}"):
                recording.decoder(recording.topic(name))
        assert all(rows == [(1, ros1_payload("a"))] for rows in everything(recording).values())


def test_definition_with_bytes_that_are_no_utf8_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.bag"
    with BagWriter(path) as bag:
        bag.write(bag.add_topic("/x", "my/Text", "# 90@ turn\nstring data\n", "1" * 32), 1, ros1_payload("a"))
    path.write_bytes(path.read_bytes().replace(b"90@", b"90\xb0"))
    with recordings.open(path) as recording:
        assert recording.topic("/x").problem is None


def test_messages_out_of_time_order_keep_file_order(tmp_path: Path) -> None:
    times = [5, 3, 9, 0, 3, 1 << 31]
    with BagWriter(tmp_path / "a.bag", chunk_bytes=120) as bag:
        topic = bag.add_topic("/x", "std_msgs/String", "string data\n", "1" * 32)
        for number, time_ns in enumerate(times):
            bag.write(topic, time_ns, ros1_payload(str(number)))
    with recordings.open(tmp_path / "a.bag") as recording:
        assert recording.times_ns(recording.topics[0]).tolist() == times
        assert (recording.start_ns, recording.end_ns) == (0, 1 << 31)
        rows = everything(recording)["/x", "std_msgs/msg/String"]
        assert [payload for _, payload in rows] == [ros1_payload(str(number)) for number in range(len(times))]


def test_index_entries_sorted_by_time_still_number_messages_in_file_order(tmp_path: Path) -> None:
    path = tmp_path / "a.bag"
    with BagWriter(path) as bag:
        topic = bag.add_topic("/x", "std_msgs/String", "string data\n", "1" * 32)
        for time_ns in (3_000_000_000, 1_000_000_000, 2_000_000_000):
            bag.write(topic, time_ns, ros1_payload(str(time_ns)))
    data = path.read_bytes()
    with recordings.open(path) as recording:
        offsets = recording._index[0].offset.tolist()  # type: ignore[attr-defined]
    entries = [struct.pack("<III", second, 0, offset) for second, offset in zip((3, 1, 2), offsets, strict=True)]
    assert b"".join(entries) in data
    path.write_bytes(data.replace(b"".join(entries), entries[1] + entries[2] + entries[0]))
    with recordings.open(path) as recording:
        assert recording.times_ns(recording.topics[0]).tolist() == [3_000_000_000, 1_000_000_000, 2_000_000_000]
        rows = everything(recording)["/x", "std_msgs/msg/String"]
        assert all(payload == ros1_payload(str(time_ns)) for time_ns, payload in rows)


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_header_times_come_from_inside_the_messages(tmp_path: Path, compression: str) -> None:
    with BagWriter(tmp_path / "a.bag", compression=compression, chunk_bytes=3000) as bag:  # type: ignore[arg-type]
        topic = bag.add_topic("/x", "my/Stamped", STAMPED, "1" * 32)
        plain = bag.add_topic("/plain", "std_msgs/String", "string data\n", "1" * 32)
        for number in range(30):
            bag.write(topic, number, _stamped(100 - number, number, "y" * 2000))
        bag.write(plain, 5, ros1_payload("a"))
    with recordings.open(tmp_path / "a.bag") as recording:
        found = recording.header_times_ns(recording.topic("/x"))
        assert found.tolist() == [(100 - number) * 10**9 + number for number in range(30)]
        with pytest.raises(SchemaError, match="does not begin with a std_msgs/Header"):
            recording.header_times_ns(recording.topic("/plain"))


def test_absent_topic_names_close_ones(tmp_path: Path) -> None:
    with (
        recordings.open(write_bag(tmp_path / "a.bag", some_messages(20))) as recording,
        pytest.raises(RecordingError, match="did you mean '/alpha"),
    ):
        recording.topic("/alhpa")


def test_times_cannot_be_written_through(tmp_path: Path) -> None:
    with recordings.open(write_bag(tmp_path / "a.bag", some_messages(20))) as recording:
        assert recording.times_ns(recording.topics[0]).dtype == np.int64
        with pytest.raises(ValueError, match="read-only"):
            recording.times_ns(recording.topics[0])[0] = 1


def test_bag_without_messages_opens(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "a.bag") as bag:
        bag.add_topic("/x", "std_msgs/String", "string data\n", "1" * 32)
    with recordings.open(tmp_path / "a.bag") as recording:
        assert [(topic.name, topic.count) for topic in recording.topics] == [("/x", 0)]
        assert everything(recording) == {("/x", "std_msgs/msg/String"): []}


def test_writer_refuses_what_a_bag_cannot_hold(tmp_path: Path) -> None:
    write_bag(tmp_path / "there.bag", some_messages(3))
    with pytest.raises(RecordingError, match="cannot be written"):
        BagWriter(tmp_path / "there.bag")
    with pytest.raises(UsageError, match="zstd"):
        BagWriter(tmp_path / "a.bag", compression="zstd")  # type: ignore[arg-type]
    with BagWriter(tmp_path / "b.bag") as bag:
        with pytest.raises(UsageError, match="no topic 0"):
            bag.write(0, 0, b"")
        topic = bag.add_topic("/x", "std_msgs/Empty", "", "1" * 32)
        with pytest.raises(UsageError, match="does not fit"):
            bag.write(topic, -1, b"")
        bag.write(topic, 0, b"")
    with recordings.open(tmp_path / "b.bag") as recording:
        assert everything(recording) == {("/x", "std_msgs/msg/Empty"): [(0, b"")]}
        assert recording.topics[0].problem is None


def test_interrupted_writer_leaves_a_bag_that_says_it_has_no_index(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), BagWriter(tmp_path / "a.bag") as bag:
        bag.write(bag.add_topic("/x", "std_msgs/Empty", "", "1" * 32), 0, b"")
        raise KeyboardInterrupt
    with pytest.raises(RecordingError, match="no index"):
        recordings.open(tmp_path / "a.bag")


def test_fetch_from_a_closed_recording_says_so(tmp_path: Path) -> None:
    recording = recordings.open(write_bag(tmp_path / "a.bag", some_messages(20)))
    blocks = recording.fetch(np.zeros(1, np.int32), np.zeros(1, np.int64))
    recording.close()
    recording.close()
    with pytest.raises(RecordingError, match="was closed"):
        next(blocks)


def test_not_a_bag_at_all(tmp_path: Path) -> None:
    from penstock._src.recordings.metadata import Metadata
    from penstock._src.recordings.ros1.reader import Ros1Recording
    from penstock._src.recordings.split import SplitFiles

    bag = tmp_path / "a.bag"
    bag.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(NotARecording):
        Ros1Recording(SplitFiles(bag, "ros1", (bag,), Metadata()))
