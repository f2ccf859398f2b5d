"""A small but real-looking ROS 1 recording: three JPEG cameras, joint states and commands at other rates."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.demo import kuavo
from penstock._src.demo.scene import Jpegs, joint_angles

CAMERAS = ("cam_h", "cam_l", "cam_r")
CAMERA_TOPIC = "/{}/color/image_raw/compressed"
STATE_TOPIC = "/joint_states"
COMMAND_TOPIC = "/joint_cmd"
JOINTS = 16

COMPRESSED_IMAGE, JOINT_STATE = (
    (name, kuavo.definition(name)) for name in ("sensor_msgs/CompressedImage", "sensor_msgs/JointState")
)
_MD5 = {
    "sensor_msgs/CompressedImage": "8f7a12909da2c9d3332d540a0977563f",
    "sensor_msgs/JointState": "3066dcd76a6cfaef579bd0f34173e9fd",
}


@dataclass(frozen=True)
class Script:
    """What is recorded: lengths, rates and sizes."""

    seconds: float = 10.0
    fps: float = 30.0
    joint_hz: float = 100.0
    width: int = 640
    height: int = 480
    quality: int = 90
    start_s: int = 1_700_000_000
    distinct_images: int | None = None  # images are repeated after so many (for long recordings made quickly)
    compression: Literal["none", "lz4", "bz2"] = "none"
    seed: int = 0


@dataclass(frozen=True)
class DemoMessage:
    """One message to be recorded."""

    time_ns: int
    topic: str
    sequence: int


def write_recording(path: Path, script: Script | None = None) -> int:
    """Write the recording and return its size in bytes."""
    from penstock._src.recordings.ros1.writer import BagWriter

    script = script or Script()
    look = (script.width, script.height, script.fps, script.quality)
    images = {
        CAMERA_TOPIC.format(name): Jpegs(*look, seed, script.distinct_images)
        for seed, name in enumerate(CAMERAS, script.seed * 8)
    }
    with BagWriter(path, compression=script.compression) as bag:
        ids = {}
        for topic in (*images, STATE_TOPIC, COMMAND_TOPIC):
            kind, definition = COMPRESSED_IMAGE if topic in images else JOINT_STATE
            ids[topic] = bag.add_topic(topic, kind, definition, _MD5[kind])
        for event in events(script):
            if event.topic in images:
                payload = image_payload(event.time_ns, event.sequence, images[event.topic].at(event.sequence))
            else:
                late_s = 0.04 if event.topic == STATE_TOPIC else 0.0
                angles = joint_angles(event.time_ns / 1e9 - script.start_s - late_s, JOINTS)
                payload = joint_payload(event.time_ns, event.sequence, angles)
            bag.write(ids[event.topic], event.time_ns, payload)
    return path.stat().st_size


def events(script: Script) -> Iterator[DemoMessage]:
    """All messages in the order of time; every stream has its own rate, offset and jitter."""
    rng = np.random.default_rng(script.seed)
    streams = [(CAMERA_TOPIC.format(name), script.fps, 0.003 * i) for i, name in enumerate(CAMERAS)]
    streams += [(STATE_TOPIC, script.joint_hz, 0.0), (COMMAND_TOPIC, script.joint_hz, 0.002)]
    times, owners, sequence = [], [], []
    for owner, (_, rate, offset_s) in enumerate(streams):
        count = int(script.seconds * rate)
        jitter = rng.uniform(-0.0008, 0.0008, count) if count else np.zeros(0)
        seconds = np.maximum(np.arange(count) / rate + offset_s + jitter, 0)
        times.append(script.start_s * 10**9 + np.round(seconds * 1e9).astype(np.int64))
        owners.append(np.full(count, owner))
        sequence.append(np.arange(count))
    merged, who, number = np.concatenate(times), np.concatenate(owners), np.concatenate(sequence)
    for i in np.lexsort((number, who, merged)).tolist():
        yield DemoMessage(int(merged[i]), streams[int(who[i])][0], int(number[i]))


def image_payload(stamp_ns: int, sequence: int, jpeg: bytes) -> bytes:
    """sensor_msgs/CompressedImage as ROS 1 writes it."""
    return kuavo.header(stamp_ns, sequence) + kuavo.text("jpeg") + struct.pack("<I", len(jpeg)) + jpeg


def joint_payload(stamp_ns: int, sequence: int, angles: NDArray[np.float64]) -> bytes:
    """sensor_msgs/JointState as ROS 1 writes it."""
    return kuavo.header(stamp_ns, sequence) + kuavo.named([f"joint_{i}" for i in range(len(angles))], angles)
