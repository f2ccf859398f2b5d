"""Small recordings with known content, in every container, and everything that a recording gives back."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock._src.recordings.ros1.writer import BagWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock._src.recordings.recording import Recording

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "recordings"

STRING = "std_msgs/msg/String"
HEADER_TEXT = "time stamp\nstring frame_id\n"
TOPICS = ("/alpha", "/beta", "/gamma")
BASE_NS = 1_700_000_000_000_000_000


@dataclass(frozen=True)
class Message:
    topic: str
    time_ns: int
    text: str


def some_messages(count: int, *, seed: int = 0, longest: int = 300) -> list[Message]:
    """Messages on three topics at rising times, with texts of very different lengths."""
    random = np.random.default_rng(seed)
    topics = random.integers(0, len(TOPICS), count).tolist()
    sizes = random.integers(0, longest, count).tolist()
    return [
        Message(TOPICS[topic], BASE_NS + 1000 * number, f"{number}:" + "x" * size)
        for number, (topic, size) in enumerate(zip(topics, sizes, strict=True))
    ]


def ros1_payload(text: str) -> bytes:
    return struct.pack("<I", len(text)) + text.encode()


def cdr_payload(text: str) -> bytes:
    return b"\0\1\0\0" + struct.pack("<I", len(text) + 1) + text.encode() + b"\0"


def write_bag(path: Path, messages: Sequence[Message], **options: Any) -> Path:
    with BagWriter(path, **options) as bag:
        ids: dict[str, int] = {}
        for message in messages:
            if message.topic not in ids:
                ids[message.topic] = bag.add_topic(message.topic, STRING, "string data\n", "0" * 32)
            bag.write(ids[message.topic], message.time_ns, ros1_payload(message.text))
    return path


def write_mcap(path: Path, messages: Sequence[Message], *, finish: bool = True, **options: Any) -> Path:
    from mcap.writer import Writer

    with path.open("wb") as file:
        writer = Writer(file, **options)
        writer.start(profile="ros2", library="test")
        schema = writer.register_schema(STRING, "ros2msg", b"string data\n")
        ids: dict[str, int] = {}
        for message in messages:
            if message.topic not in ids:
                ids[message.topic] = writer.register_channel(message.topic, "cdr", schema)
            writer.add_message(ids[message.topic], message.time_ns, cdr_payload(message.text), message.time_ns)
        if finish:
            writer.finish()
    return path


def write_rosbag2(path: Path, messages: Sequence[Message], *, storage: str = "SQLITE3", mode: str = "NONE") -> Path:
    from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    writer = Writer(path, version=9, storage_plugin=StoragePlugin[storage])
    if mode != "NONE":
        writer.set_compression(CompressionMode[mode], CompressionFormat.ZSTD)
    with writer:
        connections: dict[str, Any] = {}
        for message in messages:
            if message.topic not in connections:
                connections[message.topic] = writer.add_connection(message.topic, STRING, typestore=store)
            writer.write(connections[message.topic], message.time_ns, cdr_payload(message.text))
    return path


Everything = dict[tuple[str, str], list[tuple[int, "bytes | None"]]]


def all_of(recording: Recording) -> tuple[Any, Any]:
    """A request for every message, topic by topic."""
    ids = [np.full(topic.count, topic.id, np.int32) for topic in recording.topics]
    numbers = [np.arange(topic.count, dtype=np.int64) for topic in recording.topics]
    return np.concatenate([np.empty(0, np.int32), *ids]), np.concatenate([np.empty(0, np.int64), *numbers])


def everything(recording: Recording, *, memory_bytes: int = 1 << 20, shuffle: int | None = None) -> Everything:
    """Times and payloads of all messages, by topic name and type, in file order."""
    ids, numbers = all_of(recording)
    if shuffle is not None:
        order = np.random.default_rng(shuffle).permutation(ids.size)
        ids, numbers = ids[order], numbers[order]
    payloads: dict[tuple[int, int], bytes | None] = {}
    expected_first = 0
    for block in recording.fetch(ids, numbers, memory_bytes=memory_bytes):
        assert block.first == expected_first
        expected_first += len(block)
        for place, payload in enumerate(block.payloads, block.first):
            payloads[int(ids[place]), int(numbers[place])] = None if payload is None else bytes(payload)
        block.release()
    assert expected_first == ids.size
    result: Everything = {}
    for topic in recording.topics:
        times = recording.times_ns(topic).tolist()
        rows = [(time, payloads[topic.id, number]) for number, time in enumerate(times)]
        result.setdefault((topic.shared_name or topic.name, topic.type), []).extend(rows)
    return result


def expected(messages: Sequence[Message], payload: Any) -> Everything:
    result: Everything = {}
    for message in messages:
        result.setdefault((message.topic, STRING), []).append((message.time_ns, payload(message.text)))
    return result


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
