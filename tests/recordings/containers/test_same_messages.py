"""One set of messages, written to every container, comes back the same: by our parsers and by rosbags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mcap.writer import CompressionType, IndexType

from penstock import recordings
from tests.recordings.containers.makers import (
    cdr_payload,
    everything,
    expected,
    ros1_payload,
    some_messages,
    write_bag,
    write_mcap,
    write_rosbag2,
)

MESSAGES = some_messages(200)

MCAP_SHAPES: dict[str, dict[str, Any]] = {
    "zstd": {"chunk_size": 4000},
    "lz4": {"chunk_size": 4000, "compression": CompressionType.LZ4},
    "plain": {"chunk_size": 4000, "compression": CompressionType.NONE},
    "plain-without-crc": {"chunk_size": 4000, "compression": CompressionType.NONE, "enable_crcs": False},
    "unchunked": {"use_chunking": False},
    "no-message-index": {"chunk_size": 4000, "index_types": IndexType.NONE},
    "no-index-plain": {"chunk_size": 4000, "index_types": IndexType.NONE, "compression": CompressionType.NONE},
    "no-statistics": {"chunk_size": 4000, "use_statistics": False},
    "channels-only-in-data": {"chunk_size": 4000, "repeat_channels": False, "repeat_schemas": False},
    "schemas-only-in-data": {"chunk_size": 4000, "repeat_schemas": False},
    "no-summary": {
        "chunk_size": 4000,
        "repeat_channels": False,
        "repeat_schemas": False,
        "use_statistics": False,
        "use_summary_offsets": False,
        "index_types": IndexType.NONE,
    },
    "message-index-but-no-summary": {
        "chunk_size": 4000,
        "repeat_channels": False,
        "repeat_schemas": False,
        "use_statistics": False,
        "use_summary_offsets": False,
        "index_types": IndexType.MESSAGE,
    },
}


@pytest.mark.parametrize("compression", ["none", "lz4", "bz2"])
@pytest.mark.parametrize("chunk_bytes", [1, 5000, 1 << 20])
def test_bag_gives_back_what_was_written(tmp_path: Path, compression: str, chunk_bytes: int) -> None:
    path = write_bag(tmp_path / "a.bag", MESSAGES, compression=compression, chunk_bytes=chunk_bytes)
    with recordings.open(path) as recording:
        assert everything(recording) == expected(MESSAGES, ros1_payload)
        assert recording.compression == compression
        assert (recording.start_ns, recording.end_ns) == (MESSAGES[0].time_ns, MESSAGES[-1].time_ns)
        assert not recording.notes and not recording.losses


@pytest.mark.parametrize("compression", ["none", "lz4", "bz2"])
def test_rosbags_reads_our_bags(tmp_path: Path, compression: str) -> None:
    from rosbags.rosbag1 import Reader

    path = write_bag(tmp_path / "a.bag", MESSAGES, compression=compression, chunk_bytes=3000)
    with Reader(path) as reader:
        found = [(connection.topic, time_ns, data) for connection, time_ns, data in reader.messages()]
    assert found == [(message.topic, message.time_ns, ros1_payload(message.text)) for message in MESSAGES]


@pytest.mark.parametrize("shape", MCAP_SHAPES)
def test_mcap_of_any_shape_gives_back_what_was_written(tmp_path: Path, shape: str) -> None:
    path = write_mcap(tmp_path / "a.mcap", MESSAGES, **MCAP_SHAPES[shape])
    with recordings.open(path) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
        assert all(topic.problem is None for topic in recording.topics)
        assert not recording.losses


@pytest.mark.parametrize(
    ("storage", "mode", "compression"),
    [
        ("SQLITE3", "NONE", "none"),
        ("SQLITE3", "MESSAGE", "zstd"),
        ("SQLITE3", "FILE", "zstd"),
        ("MCAP", "NONE", "none"),
        ("MCAP", "MESSAGE", "zstd"),
        ("MCAP", "FILE", "zstd"),
        ("MCAP", "STORAGE", "zstd"),
    ],
)
def test_rosbag2_directory_gives_back_what_was_written(
    tmp_path: Path, storage: str, mode: str, compression: str
) -> None:
    path = write_rosbag2(tmp_path / "bag", MESSAGES, storage=storage, mode=mode)
    with recordings.open(path) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
        assert recording.compression == compression
        assert not recording.losses and not recording.notes


def test_topics_have_the_same_ids_in_every_container(tmp_path: Path) -> None:
    paths = [
        write_bag(tmp_path / "a.bag", MESSAGES),
        write_mcap(tmp_path / "a.mcap", list(reversed(MESSAGES))),
        write_rosbag2(tmp_path / "a", MESSAGES),
    ]
    found = []
    for path in paths:
        with recordings.open(path) as recording:
            found.append([(topic.id, topic.name, topic.type, topic.count) for topic in recording.topics])
    assert found[0] == found[1] == found[2]
    assert [name for _, name, _, _ in found[0]] == ["/alpha", "/beta", "/gamma"]
