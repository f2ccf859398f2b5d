"""Recordings of video streams for tests: foxglove's CompressedVideo and FFMPEGPacket, in ROS 1 bags and mcap files.

The bytes of the messages come from the `rosbags` library, so nothing here shares code with penstock's decoders.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tests.conversion import bags

FOXGLOVE = "foxglove_msgs/msg/CompressedVideo"
FFMPEG = "ffmpeg_image_transport_msgs/msg/FFMPEGPacket"
TEXTS = {
    FOXGLOVE: "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n",
    FFMPEG: "std_msgs/Header header\nint32 width\nint32 height\nstring encoding\nuint64 pts\nuint8 flags\n"
    "bool is_bigendian\nuint8[] data\n",
}
TEXTS_ROS1 = {FOXGLOVE: TEXTS[FOXGLOVE].replace("builtin_interfaces/Time", "time"), FFMPEG: TEXTS[FFMPEG]}
CAM = "/cam/video"


@dataclass(frozen=True)
class Packet:
    """One message of a stream; `cut` bytes are missing at the end of the message itself."""

    topic: str
    time_ns: int
    data: bytes
    codec: str = "h264"
    type: str = FOXGLOVE
    stamp_ns: int | None = None
    cut: int = 0


def packets(
    data: Sequence[bytes],
    codec: str = "h264",
    *,
    topic: str = CAM,
    type: str = FOXGLOVE,
    fps: float = 30.0,
    jitter_s: float = 0.002,
    stamps_ns: Sequence[int] | None = None,
) -> list[Packet]:
    """A stream as a camera sends it, one message per image."""
    times = bags.times(fps, len(data) / fps, jitter_s=jitter_s)
    stamps: Sequence[int | None] = stamps_ns if stamps_ns is not None else [None] * len(data)
    return [Packet(topic, at, piece, codec, type, stamp) for at, piece, stamp in zip(times, data, stamps, strict=True)]


def without(tape: Sequence[Packet], *numbers: int) -> list[Packet]:
    """The recording after the network lost some messages."""
    return [packet for number, packet in enumerate(tape) if number not in numbers]


def with_data(tape: Sequence[Packet], number: int, data: bytes) -> list[Packet]:
    return [replace(packet, data=data) if k == number else packet for k, packet in enumerate(tape)]


@functools.cache
def _store(ros_version: int) -> Any:
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC if ros_version == 1 else Stores.ROS2_HUMBLE)
    for name, text in TEXTS.items():
        store.register(get_types_from_msg(text, name))
    return store


def payload(packet: Packet, ros_version: int) -> bytes:
    store = _store(ros_version)
    types = store.types
    stamp_ns = packet.time_ns if packet.stamp_ns is None else packet.stamp_ns
    stamp = types["builtin_interfaces/msg/Time"](*divmod(stamp_ns, bags.SECOND))
    data = np.frombuffer(packet.data, np.uint8)
    if packet.type == FOXGLOVE:
        built = types[FOXGLOVE](stamp, "cam", data, packet.codec)
    else:
        header = types["std_msgs/msg/Header"](*((0,) if ros_version == 1 else ()), stamp, "cam")
        built = types[FFMPEG](header, 64, 48, packet.codec, 0, 0, False, data)
    serialize = store.serialize_ros1 if ros_version == 1 else store.serialize_cdr
    whole = bytes(serialize(built, packet.type))
    return whole[: len(whole) - packet.cut] if packet.cut else whole


def write(path: Path, tape: Sequence[Packet], others: bags.Tape | None = None, *, chunk_bytes: int = 64 * 1024) -> Path:
    """A .bag or .mcap with the streams, and whatever else a robot records."""
    entries = [(each.time_ns, each.topic, each.type, each) for each in tape]
    entries += [(each.time_ns, each.topic, each.content.type, each) for each in others or []]
    entries.sort(key=lambda entry: entry[0])
    if path.suffix == ".bag":
        _write_bag(path, entries, chunk_bytes)
    else:
        _write_mcap(path, entries)
    return path


def _bytes_of(message: Any, ros_version: int) -> bytes:
    return payload(message, ros_version) if isinstance(message, Packet) else bags.payload(message, ros_version)


def _write_bag(path: Path, entries: list[Any], chunk_bytes: int) -> None:
    from penstock._src.recordings.ros1.writer import BagWriter

    with BagWriter(path, chunk_bytes=chunk_bytes) as bag:
        ids: dict[str, int] = {}
        for time_ns, topic, kind, message in entries:
            if topic not in ids:
                text = _definition(kind, 1)
                ids[topic] = bag.add_topic(topic, kind, text, "0" * 32)
            bag.write(ids[topic], time_ns, _bytes_of(message, 1))


def _write_mcap(path: Path, entries: list[Any]) -> None:
    from mcap.writer import CompressionType, Writer

    with path.open("wb") as file:
        writer = Writer(file, chunk_size=2048, compression=CompressionType.NONE)
        writer.start(profile="ros2", library="test")
        ids: dict[str, int] = {}
        for time_ns, topic, kind, message in entries:
            if topic not in ids:
                schema = writer.register_schema(kind, "ros2msg", _definition(kind, 2).encode())
                ids[topic] = writer.register_channel(topic, "cdr", schema)
            writer.add_message(ids[topic], time_ns, _bytes_of(message, 2), time_ns)
        writer.finish()


def _definition(kind: str, ros_version: int) -> str:
    text, _ = _store(ros_version).generate_msgdef(kind, ros_version=ros_version)
    return str(text)
