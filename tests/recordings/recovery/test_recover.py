"""recover: what it keeps, what other readers make of it, and that it touches nothing but its output."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from mcap.reader import make_reader
from mcap.writer import CompressionType, Writer

from penstock import recordings
from penstock._src.recordings.ros1.records import MAGIC
from penstock.errors import NotARecording, OutputExists, RecordingError, UsageError
from tests.recordings.containers.makers import (
    SHARED,
    STRING,
    cdr_payload,
    digest,
    everything,
    ros1_payload,
    write_bag,
    write_mcap,
    write_rosbag2,
)
from tests.recordings.recovery.cases import distinct_messages, read_back, recover, rows_of, tiny_bag, tiny_db3

MESSAGES = distinct_messages(40, 3, 8)


def _by_rosbags(path: Path) -> Counter[tuple[str, int, bytes]]:
    from rosbags.rosbag1 import Reader as Reader1
    from rosbags.rosbag2 import Reader as Reader2

    with Reader2(path) if path.is_dir() else Reader1(path) as reader:
        return Counter((connection.topic, time, bytes(raw)) for connection, time, raw in reader.messages())


def _by_mcap(path: Path) -> Counter[tuple[str, int, bytes]]:
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        return Counter((channel.topic, m.log_time, m.data) for _, channel, m in reader.iter_messages())


# What other readers make of it


@pytest.mark.parametrize("codec", ["none", "lz4", "bz2"])
def test_rosbags_reads_a_recovered_bag(tmp_path: Path, codec: Any) -> None:
    path = write_bag(tmp_path / "a.bag", MESSAGES, chunk_bytes=700, compression=codec)
    _, rows = recover(path.read_bytes()[:-300], path, tmp_path / "new.bag")
    assert rows == rows_of(MESSAGES, ros1_payload) == _by_rosbags(tmp_path / "new.bag")
    with recordings.open(tmp_path / "new.bag") as recording:
        assert recording.compression == codec


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD])
def test_the_mcap_library_reads_a_recovered_mcap(tmp_path: Path, codec: CompressionType) -> None:
    path = write_mcap(tmp_path / "a.mcap", MESSAGES, chunk_size=700, compression=codec)
    _, rows = recover(path.read_bytes()[:-800], path, tmp_path / "new.mcap")
    assert rows == _by_mcap(tmp_path / "new.mcap")
    assert sum(rows.values()) > len(MESSAGES) // 2
    with (tmp_path / "new.mcap").open("rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None and summary.statistics is not None
    assert summary.statistics.message_count == sum(rows.values())
    assert {channel.topic for channel in summary.channels.values()} == {row[0] for row in rows}


@pytest.mark.parametrize("storage", ["SQLITE3", "MCAP"])
@pytest.mark.parametrize("mode", ["NONE", "FILE", "MESSAGE"])
def test_a_bag_directory_becomes_one_that_rosbags_reads(tmp_path: Path, storage: str, mode: str) -> None:
    if storage == "MCAP" and mode == "FILE":
        pytest.skip("rosbags compresses mcap by chunk or message")
    bag = write_rosbag2(tmp_path / "bag", MESSAGES, storage=storage, mode=mode)
    (bag / "metadata.yaml").write_text("torn: [")
    expected = read_back(bag)
    report = recordings.recover(bag, tmp_path / "new")
    assert report.exit_code == 0, report
    assert read_back(tmp_path / "new") == expected
    if mode != "MESSAGE" or storage == "SQLITE3":
        assert _by_rosbags(tmp_path / "new") == expected
    with recordings.open(tmp_path / "new") as recording:
        assert recording.notes == []


def test_a_killed_recorder_leaves_no_metadata_and_recover_writes_it(tmp_path: Path) -> None:
    bag = write_rosbag2(tmp_path / "bag", MESSAGES)
    (bag / "metadata.yaml").unlink()
    report = recordings.recover(bag, tmp_path / "new")
    assert report.messages == len(MESSAGES)
    assert _by_rosbags(tmp_path / "new") == rows_of(MESSAGES, cdr_payload)


def test_definitions_quality_and_hashes_of_a_db3_are_kept(tmp_path: Path) -> None:
    bag = write_rosbag2(tmp_path / "bag", MESSAGES)
    recordings.recover(bag / "bag.db3", tmp_path / "new.db3")

    def tables(path: Path) -> list[Any]:
        with sqlite3.connect(path) as connection:
            found = [
                connection.execute(
                    "SELECT name, type, serialization_format, offered_qos_profiles, "
                    "type_description_hash FROM topics ORDER BY name"
                ).fetchall(),
                connection.execute(
                    "SELECT topic_type, encoding, encoded_message_definition, type_description_hash "
                    "FROM message_definitions"
                ).fetchall(),
            ]
        connection.close()
        return found

    assert tables(bag / "bag.db3") == tables(tmp_path / "new.db3")
    data = (bag / "bag.db3").read_bytes()
    report, _ = recover(data[: len(data) // 4096 * 4096 - 4096] + bytes(4096), tmp_path / "x.db3", tmp_path / "y.db3")
    assert any("page by page" in note for note in report.notes)
    assert tables(bag / "bag.db3") == tables(tmp_path / "y.db3")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
@pytest.mark.parametrize(
    "name", ["ros1/rosbag.js/example-lz4.bag", "ros1/pydtk/can.bag", "ros2/rerun/all_sensors.mcap"]
)
def test_a_real_recording_that_is_whole_comes_back_the_same(tmp_path: Path, name: str) -> None:
    target = tmp_path / f"new{Path(name).suffix}"
    report = recordings.recover(SHARED / name, target)
    assert (report.exit_code, report.damage_count) == (0, 0)
    with recordings.open(SHARED / name) as one, recordings.open(target) as other:
        assert everything(one) == everything(other)
        assert [one.schema(topic) for topic in one.topics] == [other.schema(topic) for topic in other.topics]


# What recorders leave behind


def test_an_open_chunk_of_a_killed_recorder_is_walked_to_the_end(tmp_path: Path) -> None:
    # rosbag writes the sizes of a chunk when it ends; until then they are 0.
    data = tiny_bag(tmp_path / "a.bag", MESSAGES, chunk_bytes=1 << 20)
    at = data.index(b"size=")
    end = data.index(ros1_payload(MESSAGES[-1].text)) + len(ros1_payload(MESSAGES[-1].text))
    opened = bytearray(data[:end])
    opened[at + 5 : at + 13] = bytes(8)
    index_at = data.index(b"index_pos=") + 10
    opened[index_at : index_at + 8] = bytes(8)
    report, rows = recover(bytes(opened[:-5]), tmp_path / "a.bag.active", tmp_path / "new.bag")
    assert rows == rows_of(MESSAGES[:-1], ros1_payload)
    assert report.exit_code == 3


def test_an_open_packed_chunk_of_a_killed_recorder_gives_its_whole_blocks(tmp_path: Path) -> None:
    long = distinct_messages(60, 1000)  # several blocks of 64 KiB
    data = tiny_bag(tmp_path / "a.bag", long, chunk_bytes=1 << 20, compression="lz4")
    at = data.index(b"size=")
    (stored,) = struct.unpack_from("<I", data, at + 9)
    opened = bytearray(data[: at + 13 + stored - 40])
    opened[at + 5 : at + 13] = bytes(8)
    _, rows = recover(bytes(opened), tmp_path / "a.bag.active", tmp_path / "new.bag")
    assert len(long) * 3 // 4 < sum(rows.values()) < len(long)
    assert rows == rows_of(long[: sum(rows.values())], ros1_payload)


def test_connections_that_stand_only_in_the_index_are_found(tmp_path: Path) -> None:
    data = tiny_bag(tmp_path / "a.bag", MESSAGES, chunk_bytes=600)
    at = data.index(b"op=\x07")
    report, rows = recover(data[:at] + b"op=\x77" + data[at + 4 :], tmp_path / "a.bag", tmp_path / "new.bag")
    assert rows == rows_of(MESSAGES, ros1_payload)
    assert report.damage_count == 1 and report.exit_code == 0  # a record was broken, and no message lost


def test_what_lies_in_a_write_ahead_log_is_recovered_and_the_source_not_written(tmp_path: Path) -> None:
    tiny_db3(tmp_path / "a.db3", MESSAGES[:5])
    writer = sqlite3.connect(tmp_path / "a.db3", isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("INSERT INTO messages VALUES (9, 1, 77, ?)", (cdr_payload("late"),))
    place = tmp_path / "copied"
    place.mkdir()
    for suffix in ("", "-wal"):
        (place / f"a.db3{suffix}").write_bytes((tmp_path / f"a.db3{suffix}").read_bytes())
    writer.close()
    before = {file.name: digest(file) for file in place.iterdir()}
    report = recordings.recover(place / "a.db3", tmp_path / "new.db3")
    assert {file.name: digest(file) for file in place.iterdir()} == before
    assert report.messages == 6
    assert ("/alpha", 77, cdr_payload("late")) in read_back(tmp_path / "new.db3")


@pytest.mark.parametrize("kind", ["a.mcap.zstd", "a.db3.zstd"])
def test_a_file_compressed_as_a_whole_and_cut_gives_what_decodes(tmp_path: Path, kind: str) -> None:
    many = distinct_messages(3000, 20)
    plain = tmp_path / kind.removesuffix(".zstd")
    if kind.startswith("a.mcap"):
        write_mcap(plain, many, chunk_size=4000, compression=CompressionType.NONE)
    else:
        tiny_db3(plain, many, page_bytes=4096)
    packed = pa.compress(plain.read_bytes(), codec="zstd", asbytes=True)
    plain.unlink()
    (tmp_path / kind).write_bytes(packed[: len(packed) * 2 // 3])
    with pytest.raises(RecordingError, match="breaks off") as caught:
        recordings.open(tmp_path / kind)
    assert "penstock recover" in str(caught.value)
    report = recordings.recover(tmp_path / kind, tmp_path / plain.name)
    assert report.exit_code == 3
    rows = read_back(tmp_path / plain.name)
    assert rows == rows_of(many[: sum(rows.values())], cdr_payload)
    assert len(many) // 3 < sum(rows.values()) < len(many)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([kind, plain.name])


def _with_extras(path: Path) -> bytes:
    with path.open("wb") as file:
        writer = Writer(file, chunk_size=600, compression=CompressionType.NONE)
        writer.start(profile="ros2", library="test")
        schema = writer.register_schema(STRING, "ros2msg", b"string data\n")
        channel = writer.register_channel("/a", "cdr", schema, {"offered_qos_profiles": "- depth: 5"})
        writer.register_channel("/silent", "json", 0)
        for number in range(30):
            writer.add_message(channel, number, cdr_payload(f"<{number}>"), number + 5, sequence=number)
        writer.add_attachment(1, 2, "notes.txt", "text/plain", b"hello" * 1000)
        writer.add_metadata("robot", {"name": "kuavo"})
        writer.finish()
    return path.read_bytes()


def test_attachments_metadata_sequences_and_publish_times_are_kept(tmp_path: Path) -> None:
    data = _with_extras(tmp_path / "a.mcap")
    report, _ = recover(data[:-100], tmp_path / "a.mcap", tmp_path / "new.mcap")
    assert report.exit_code == 0  # the summary alone was cut
    with (tmp_path / "new.mcap").open("rb") as file:
        reader = make_reader(file, validate_crcs=True)
        found = list(reader.iter_messages())
        assert [(m.sequence, m.log_time, m.publish_time) for _, _, m in found] == [(n, n, n + 5) for n in range(30)]
        assert found[0][1].metadata == {"offered_qos_profiles": "- depth: 5"}
        assert [(a.name, a.media_type, a.data) for a in reader.iter_attachments()] == [
            ("notes.txt", "text/plain", b"hello" * 1000)
        ]
        assert [(m.name, m.metadata) for m in reader.iter_metadata()] == [("robot", {"name": "kuavo"})]
        assert reader.get_header().profile == "ros2"
        summary = reader.get_summary()
    assert summary is not None and {channel.topic for channel in summary.channels.values()} == {"/a", "/silent"}


def test_an_attachment_that_fails_its_checksum_is_a_counted_loss(tmp_path: Path) -> None:
    data = bytearray(_with_extras(tmp_path / "a.mcap"))
    data[data.index(b"hellohello") + 77] ^= 1
    report, rows = recover(bytes(data), tmp_path / "a.mcap", tmp_path / "new.mcap")
    assert sum(rows.values()) == 30
    assert (report.lost_parts, report.lost_messages, report.exit_code) == (1, 0, 3)


# The output


def test_the_source_is_not_touched_and_nothing_but_the_output_is_left(tmp_path: Path) -> None:
    source = write_bag(tmp_path / "a.bag", MESSAGES)
    source.chmod(0o444)
    before = (digest(source), source.stat().st_mtime_ns)
    recordings.recover(source, tmp_path / "new.bag")
    assert (digest(source), source.stat().st_mtime_ns) == before
    assert sorted(os.listdir(tmp_path)) == ["a.bag", "new.bag"]


def test_an_output_that_is_there_is_refused_without_overwrite(tmp_path: Path) -> None:
    source = write_bag(tmp_path / "a.bag", MESSAGES)
    target = tmp_path / "new.bag"
    target.write_bytes(b"mine")
    with pytest.raises(OutputExists, match="--overwrite"):
        recordings.recover(source, target)
    assert target.read_bytes() == b"mine"
    assert recordings.recover(source, target, overwrite=True).messages == len(MESSAGES)
    assert read_back(target) == rows_of(MESSAGES, ros1_payload)


def test_a_file_is_replaced_in_one_step_and_one_that_appears_last_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_bag(tmp_path / "a.bag", MESSAGES)
    target = tmp_path / "new.bag"
    link = os.link

    def too_late(partial: Path, name: Path) -> None:
        target.write_bytes(b"mine")
        link(partial, name)

    with monkeypatch.context() as patched:
        patched.setattr(os, "link", too_late)
        with pytest.raises(OutputExists, match="appeared meanwhile"):
            recordings.recover(source, target)
    assert target.read_bytes() == b"mine"
    monkeypatch.setattr(Path, "rename", None)  # the old one would be away before the new one is there
    recordings.recover(source, target, overwrite=True)
    assert read_back(target) == rows_of(MESSAGES, ros1_payload)
    assert sorted(os.listdir(tmp_path)) == ["a.bag", "new.bag"]


def test_a_directory_that_is_no_bag_is_never_replaced(tmp_path: Path) -> None:
    bag = write_rosbag2(tmp_path / "bag", MESSAGES)
    precious = tmp_path / "home"
    precious.mkdir()
    (precious / "thesis.tex").write_text("x")
    with pytest.raises(OutputExists, match="not replaced"):
        recordings.recover(bag, precious, overwrite=True)
    assert (precious / "thesis.tex").read_text() == "x"
    recordings.recover(bag, tmp_path / "new")
    recordings.recover(bag, tmp_path / "new", overwrite=True)
    assert read_back(tmp_path / "new") == rows_of(MESSAGES, cdr_payload)


@pytest.mark.parametrize("target", ["a.bag", "new.mcap", "new.bag.zstd", "none/new.bag"])
def test_outputs_that_make_no_sense_are_a_wrong_call(tmp_path: Path, target: str) -> None:
    source = write_bag(tmp_path / "a.bag", MESSAGES)
    before = digest(source)
    with pytest.raises(UsageError):
        recordings.recover(source, tmp_path / target, overwrite=True)
    assert digest(source) == before
    assert os.listdir(tmp_path) == ["a.bag"]


def test_what_is_no_recording_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "empty.bag").write_bytes(b"")
    for name in ("a.txt", "empty.bag"):
        with pytest.raises(NotARecording):
            recordings.recover(tmp_path / name, tmp_path / "new.bag")
    with pytest.raises(RecordingError, match="no such file"):
        recordings.recover(tmp_path / "gone.bag", tmp_path / "new.bag")
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "empty.bag"]


def test_the_report_names_byte_ranges_and_counts(tmp_path: Path) -> None:
    data = tiny_bag(tmp_path / "a.bag", MESSAGES, chunk_bytes=600)
    at = data.index(ros1_payload(MESSAGES[4].text)) - 40
    report, _ = recover(data[:at] + bytes(30) + data[at + 30 :], tmp_path / "a.bag", tmp_path / "new.bag")
    assert (report.lost_messages, report.lost_unknown, report.damage_count) == (1, False, 1)
    damage = report.damages[0]
    assert damage.begin <= at and at + 30 <= damage.end
    expected_report = report.to_json()
    assert expected_report["lost_messages"] == 1 and expected_report["damages"][0]["begin"] == damage.begin
    assert expected_report["messages"] == len(MESSAGES) - 1 == sum(expected_report["topics"].values())
    assert data.startswith(MAGIC)
