"""mcap: foreign encodings, summaries that lie, recorders that did not finish."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from mcap.writer import CompressionType, Writer

from penstock import recordings
from penstock.errors import RecordingCorrupt
from tests.recordings.containers.makers import cdr_payload, everything, expected, some_messages, write_mcap

MESSAGES = some_messages(60)


def test_foreign_encodings_are_listed_counted_and_fetched_raw(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        proto = writer.register_schema("foxglove.Log", "protobuf", b"\x01\x02")
        ros1 = writer.register_schema("std_msgs/String", "ros1msg", b"string data\n")
        channels = [
            writer.register_channel("/proto", "protobuf", proto),
            writer.register_channel("/cbor", "cbor", 0),
            writer.register_channel("/ros1", "ros1", ros1),
        ]
        for channel in channels:
            writer.add_message(channel, 5, b"\x01\x00\x00\x00a", 5)
        writer.finish()
    with recordings.open(path) as recording:
        by_name = {topic.name: topic for topic in recording.topics}
        assert {name: topic.count for name, topic in by_name.items()} == {"/proto": 1, "/cbor": 1, "/ros1": 1}
        assert "protobuf" in (by_name["/proto"].problem or "")
        assert "cbor" in (by_name["/cbor"].problem or "")
        assert by_name["/ros1"].problem is None and by_name["/ros1"].type == "std_msgs/msg/String"
        assert recording.decoder(by_name["/ros1"]).decode(b"\x01\x00\x00\x00a") == {"data": "a"}
        assert all(rows == [(5, b"\x01\x00\x00\x00a")] for rows in everything(recording).values())


def test_a_message_whose_stamp_cannot_be_read_keeps_its_receive_time(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    stamped = b"\0\1\0\0" + struct.pack("<iI", 3, 7) + struct.pack("<I", 1) + b"\0"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start()
        text = b"builtin_interfaces/Time timestamp\nstring frame_id\n"
        channel = writer.register_channel("/x", "cdr", writer.register_schema("pkg/msg/T", "ros2msg", text))
        for time_ns, payload in enumerate((stamped, b"\x09\x09" + stamped[2:], stamped)):
            writer.add_message(channel, time_ns, payload, time_ns)
        writer.finish()
    with recordings.open(path) as recording:
        for _ in range(2):
            assert recording.header_times_ns(recording.topic("/x")).tolist() == [3_000_000_007, 1, 3_000_000_007]
        assert recording.notes == ["/x: 1 messages have no readable header time: their receive time is taken"]


def test_channels_of_one_topic_and_type_are_one_topic(tmp_path: Path) -> None:
    path = tmp_path / "a.mcap"
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=10)
        writer.start()
        schema = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data\n")
        channels = [writer.register_channel("/x", "cdr", schema, {"offered_qos_profiles": qos}) for qos in ("a", "b")]
        for time_ns in range(6):
            writer.add_message(channels[time_ns % 2], time_ns, cdr_payload(str(time_ns)), time_ns)
        writer.finish()
    with recordings.open(path) as recording:
        assert [(topic.name, topic.count) for topic in recording.topics] == [("/x", 6)]
        assert recording.times_ns(recording.topics[0]).tolist() == list(range(6))


def test_summary_that_claims_other_counts_is_noted_and_the_chunks_believed(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", MESSAGES, chunk_size=1000, enable_crcs=False)
    data = bytearray(path.read_bytes())
    alpha = sum(message.topic == MESSAGES[0].topic for message in MESSAGES)
    at = data.rindex(struct.pack("<HQ", 1, alpha))
    data[at : at + 10] = struct.pack("<HQ", 1, alpha + 7)
    path.write_bytes(data)
    with recordings.open(path) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
        assert any(f"claims {len(MESSAGES) + 7} messages" in note for note in recording.notes)


def test_message_index_that_leaves_messages_out_is_replaced_by_the_chunk(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", MESSAGES, chunk_size=1 << 20)
    data = path.read_bytes()
    at = 8
    while data[at] != 7:
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    # The last entry of the first message index becomes padding behind a shorter list.
    (listed,) = struct.unpack_from("<I", data, at + 11)
    path.write_bytes(data[: at + 11] + struct.pack("<I", listed - 16) + data[at + 15 :])
    with recordings.open(path) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
        assert any(f"list {len(MESSAGES) - 1} messages" in note for note in recording.notes)


def test_summary_with_a_flipped_byte_is_noted_and_done_without(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", MESSAGES, chunk_size=1000)
    data = bytearray(path.read_bytes())
    (summary_at,) = struct.unpack_from("<Q", data, len(data) - 8 - 20)
    data[summary_at + 12] ^= 0xFF
    path.write_bytes(data)
    with recordings.open(path) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
        assert any("summary is broken" in note and "CRC" in note for note in recording.notes)


def test_file_that_ends_between_records_is_read_and_noted(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", MESSAGES, use_chunking=False)
    data = path.read_bytes()
    at, messages = 8, 0
    while messages < 20:
        messages += data[at] == 5
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    path.write_bytes(data[:at])
    with recordings.open(path) as recording:
        assert sum(topic.count for topic in recording.topics) == 20
        assert f"{path}: no footer: its recorder did not finish; it was scanned" in recording.notes


def test_file_cut_inside_a_record_is_an_error_or_a_counted_loss(tmp_path: Path) -> None:
    path = write_mcap(tmp_path / "a.mcap", MESSAGES, use_chunking=False)
    data = path.read_bytes()
    at, messages = 8, 0
    while messages < 20:
        messages += data[at] == 5
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    path.write_bytes(data[: at + 20])
    with pytest.raises(RecordingCorrupt) as caught:
        recordings.open(path)
    assert caught.value.offset == at
    with recordings.open(path, on_corrupt="count") as recording:
        found = everything(recording)
        assert found == expected(MESSAGES[:20], cdr_payload)
        assert sum(loss.count for loss in recording.losses) == 1


def test_mixed_chunks_and_loose_messages_keep_file_order(tmp_path: Path) -> None:
    chunked = write_mcap(tmp_path / "a.mcap", MESSAGES[:30], chunk_size=500, compression=CompressionType.LZ4)
    loose = write_mcap(tmp_path / "b.mcap", MESSAGES[30:], use_chunking=False)

    def records(data: bytes) -> list[tuple[int, bytes]]:
        at, found = 8, []
        while data[at] != 0x0F:
            length = 9 + struct.unpack_from("<Q", data, at + 1)[0]
            found.append((data[at], data[at : at + length]))
            at += length
        return found

    first, second = records(chunked.read_bytes()), records(loose.read_bytes())
    ids = {message.topic: None for message in MESSAGES[:30]}, {message.topic: None for message in MESSAGES[30:]}
    channel = {list(ids[1]).index(topic) + 1: list(ids[0]).index(topic) + 1 for topic in ids[1]}
    moved = []
    for kind, record in second:
        if kind == 5:
            (old,) = struct.unpack_from("<H", record, 9)
            moved.append(record[:9] + struct.pack("<H", channel[old]) + record[11:])
    data_end = struct.pack("<BQI", 0x0F, 4, 0)
    footer = struct.pack("<BQQQI", 2, 20, 0, 0, 0)
    magic = b"\x89MCAP0\r\n"
    path = tmp_path / "mixed.mcap"
    path.write_bytes(magic + b"".join(record for _, record in first) + b"".join(moved) + data_end + footer + magic)
    with recordings.open(path) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
        assert recording.compression == "lz4+none"
