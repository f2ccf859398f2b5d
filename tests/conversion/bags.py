"""Small recordings for tests: described once as messages, written as a ROS 1 bag, a db3 or an mcap.

    tape = camera("/cam/image/compressed", fps=30, seconds=1) + joints("/joint_states", hz=100, seconds=1)
    write(tmp_path / "run.bag", tape)

The bytes of the messages come from the `rosbags` library, so nothing here shares code with penstock's decoders.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

START_NS = 1_700_000_000_000_000_000
SECOND = 1_000_000_000
WIDTH, HEIGHT = 64, 48


@dataclass(frozen=True)
class Jpeg:
    """sensor_msgs/CompressedImage; the data may be any image file, or rubbish."""

    data: bytes
    format: str = "jpeg"
    type: str = "sensor_msgs/msg/CompressedImage"


@dataclass(frozen=True)
class Raw:
    """sensor_msgs/Image."""

    pixels: bytes
    height: int
    width: int
    encoding: str
    step: int
    type: str = "sensor_msgs/msg/Image"
    big_endian: bool = False


@dataclass(frozen=True)
class Joints:
    names: tuple[str, ...]
    position: tuple[float, ...]
    velocity: tuple[float, ...] = ()
    type: str = "sensor_msgs/msg/JointState"


@dataclass(frozen=True)
class Array:
    data: tuple[float, ...]
    type: str = "std_msgs/msg/Float64MultiArray"


@dataclass(frozen=True)
class Pose:
    position: tuple[float, float, float]
    orientation: tuple[float, float, float, float]
    type: str = "geometry_msgs/msg/PoseStamped"


@dataclass(frozen=True)
class Text:
    data: str
    type: str = "std_msgs/msg/String"


Content = Jpeg | Raw | Joints | Array | Pose | Text


@dataclass(frozen=True)
class Message:
    """One recorded message; `cut` bytes are missing at its end, as after a crash of the sender."""

    topic: str
    time_ns: int
    content: Content
    stamp_ns: int
    cut: int = 0


Tape = list[Message]


# ── what is recorded ─────────────────────────────────────────────────────────────────────────────────────────────────


def times(hz: float, seconds: float, *, offset_s: float = 0.0, jitter_s: float = 0.0, seed: int = 0) -> list[int]:
    """Receive times of a topic."""
    count = round(seconds * hz)
    rng = np.random.default_rng(seed)
    noise = rng.uniform(-jitter_s, jitter_s, count)
    return [START_NS + round((i / hz + offset_s + noise[i] + jitter_s) * SECOND) for i in range(count)]


def image(number: int, *, width: int = WIDTH, height: int = HEIGHT, seed: int = 0) -> np.ndarray:
    """An RGB image that tells its number: smooth, with a bright stripe that moves."""
    y, x = np.mgrid[0:height, 0:width]
    red = (x * 2 + seed * 40 + number) % 256
    green = (y * 3 + number * 5) % 256
    blue = np.where((x // 4) == (number % max(width // 4, 1)), 250, 20 + number % 64)
    return np.stack((red, green, blue), axis=2).astype(np.uint8)


@functools.cache
def jpeg(number: int, *, width: int = WIDTH, height: int = HEIGHT, seed: int = 0) -> bytes:
    rgb = image(number, width=width, height=height, seed=seed)
    done, data = cv2.imencode(".jpg", rgb[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 90])
    assert done
    return data.tobytes()


@functools.cache
def png(number: int, *, width: int = WIDTH, height: int = HEIGHT, seed: int = 0) -> bytes:
    done, data = cv2.imencode(".png", image(number, width=width, height=height, seed=seed)[..., ::-1])
    assert done
    return data.tobytes()


def raw(rgb: np.ndarray, encoding: str, *, padding: int = 0) -> Raw:
    """The image as sensor_msgs/Image, rows padded as some drivers do."""
    if encoding == "mono8":
        plane = cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY)[..., np.newaxis]
    else:
        plane = rgb if encoding == "rgb8" else rgb[..., ::-1]
    height, width, channels = plane.shape
    lines = np.zeros((height, width * channels + padding), np.uint8)
    lines[:, : width * channels] = plane.reshape(height, -1)
    return Raw(lines.tobytes(), height, width, encoding, width * channels + padding)


def messages(topic: str, at_ns: Sequence[int], content: Callable[[int], Content], *, stamp_late_ns: int = 0) -> Tape:
    """A topic: `content(number)` at each time; its header was stamped `stamp_late_ns` before it was received."""
    return [Message(topic, at, content(number), at - stamp_late_ns) for number, at in enumerate(at_ns)]


def camera(
    topic: str, at_ns: Sequence[int], *, seed: int = 0, stamp_late_ns: int = 0, distinct: int = sys.maxsize, **size: int
) -> Tape:
    def content(number: int) -> Jpeg:
        return Jpeg(jpeg(number % distinct, seed=seed, **size))

    return messages(topic, at_ns, content, stamp_late_ns=stamp_late_ns)


def angles(number: int, count: int, seed: int = 0) -> tuple[float, ...]:
    return tuple(float(np.sin(0.05 * number * (1 + 0.1 * k) + k + seed)) for k in range(count))


def joints(
    topic: str, at_ns: Sequence[int], *, count: int = 4, seed: int = 0, stamp_late_ns: int = 0, velocity: bool = False
) -> Tape:
    names = tuple(f"joint_{k}" for k in range(count))

    def content(number: int) -> Joints:
        moving = angles(number, count, seed + 100) if velocity else ()
        return Joints(names, angles(number, count, seed), moving)

    return messages(topic, at_ns, content, stamp_late_ns=stamp_late_ns)


def arrays(topic: str, at_ns: Sequence[int], *, count: int = 6, seed: int = 0) -> Tape:
    return messages(topic, at_ns, lambda n: Array(angles(n, count, seed)))


def poses(topic: str, at_ns: Sequence[int]) -> Tape:
    def content(number: int) -> Pose:
        half = 0.02 * number
        return Pose((0.1 * number, 1.0, -0.1 * number), (0.0, 0.0, float(np.sin(half)), float(np.cos(half))))

    return messages(topic, at_ns, content)


CAM_H, CAM_L = "/cam_h/color/image_raw/compressed", "/cam_l/color/image_raw/compressed"
STATE, COMMAND = "/joint_states", "/joint_cmd"


def robot(seconds: float = 1.0, *, fps: float = 30.0, hz: float = 100.0, seed: int = 0, **size: int) -> Tape:
    """Two cameras, states and commands, each with its own rate, offset and jitter.

    Of images: width, height, and how many are `distinct`.
    """
    return [
        *camera(CAM_H, times(fps, seconds, jitter_s=0.002, seed=seed), seed=seed, **size),
        *camera(CAM_L, times(fps, seconds, offset_s=0.004, jitter_s=0.002, seed=seed + 1), seed=seed + 1, **size),
        *joints(STATE, times(hz, seconds, jitter_s=0.001, seed=seed + 2), seed=seed),
        *joints(COMMAND, times(hz, seconds, offset_s=0.002, jitter_s=0.001, seed=seed + 3), seed=seed + 7),
    ]


def of(tape: Iterable[Message], topic: str) -> Tape:
    """The messages of a topic as the file numbers them: in the order in which they are written."""
    return [message for message in in_file_order(tape) if message.topic == topic]


def in_file_order(tape: Iterable[Message]) -> Tape:
    return sorted(tape, key=lambda message: message.time_ns)


def change(tape: Iterable[Message], topic: str, number: int, how: Callable[[Message], Message]) -> Tape:
    """The tape with one message changed."""
    ordered = in_file_order(tape)
    place = [i for i, message in enumerate(ordered) if message.topic == topic][number]
    ordered[place] = how(ordered[place])
    return ordered


def with_content(content: Content) -> Callable[[Message], Message]:
    return lambda message: replace(message, content=content)


def cut_by(count: int) -> Callable[[Message], Message]:
    return lambda message: replace(message, cut=count)


# ── how it is written ────────────────────────────────────────────────────────────────────────────────────────────────


@functools.cache
def _store(ros_version: int) -> Any:
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS1_NOETIC if ros_version == 1 else Stores.ROS2_HUMBLE)


def payload(message: Message, ros_version: int) -> bytes:
    """The message as ROS 1 or ROS 2 (CDR) sends it."""
    store = _store(ros_version)
    built = _build(message, store, ros_version)
    serialize = store.serialize_ros1 if ros_version == 1 else store.serialize_cdr
    data = bytes(serialize(built, message.content.type))
    return data[: len(data) - message.cut] if message.cut else data


def _build(message: Message, store: Any, ros_version: int) -> Any:
    content, types = message.content, store.types
    stamp = types["builtin_interfaces/msg/Time"](*divmod(message.stamp_ns, SECOND))
    sequence = (0,) if ros_version == 1 else ()
    header = types["std_msgs/msg/Header"](*sequence, stamp, "frame")
    make = types[content.type]
    if isinstance(content, Jpeg):
        return make(header, content.format, np.frombuffer(content.data, np.uint8))
    if isinstance(content, Raw):
        pixels = np.frombuffer(content.pixels, np.uint8)
        return make(header, content.height, content.width, content.encoding, content.big_endian, content.step, pixels)
    if isinstance(content, Joints):
        position, velocity = np.array(content.position), np.array(content.velocity, np.float64)
        return make(header, list(content.names), position, velocity, np.zeros(0))
    if isinstance(content, Array):
        return make(types["std_msgs/msg/MultiArrayLayout"]([], 0), np.array(content.data))
    if isinstance(content, Pose):
        point = types["geometry_msgs/msg/Point"](*content.position)
        turned = types["geometry_msgs/msg/Quaternion"](*content.orientation)
        return make(header, types["geometry_msgs/msg/Pose"](point, turned))
    return make(content.data)


def write(path: Path, tape: Iterable[Message], *, compression: str = "none", chunk_bytes: int = 64 * 1024) -> Path:
    """Write a tape; the name says as what: run.bag, or a directory run.db3dir or run.mcapdir of ROS 2."""
    ordered = in_file_order(tape)
    topics = list(dict.fromkeys((message.topic, message.content.type) for message in ordered))
    if path.suffix == ".bag":
        _write_ros1(path, ordered, topics, compression, chunk_bytes)
    else:
        _write_ros2(path, ordered, topics)
    return path


def _write_ros1(path: Path, ordered: Tape, topics: list[tuple[str, str]], compression: str, chunk_bytes: int) -> None:
    from penstock._src.recordings.ros1.writer import BagWriter

    with BagWriter(path, compression=compression, chunk_bytes=chunk_bytes) as bag:
        ids = {}
        for name, kind in topics:
            text, md5 = _store(1).generate_msgdef(kind, ros_version=1)
            ids[name] = bag.add_topic(name, kind, text, md5)
        for message in ordered:
            bag.write(ids[message.topic], message.time_ns, payload(message, 1))


def _write_ros2(path: Path, ordered: Tape, topics: list[tuple[str, str]]) -> None:
    from rosbags.rosbag2 import StoragePlugin, Writer

    plugin = StoragePlugin.MCAP if path.suffix == ".mcapdir" else StoragePlugin.SQLITE3
    with Writer(path, version=9, storage_plugin=plugin) as bag:
        connections = {name: bag.add_connection(name, kind, typestore=_store(2)) for name, kind in topics}
        for message in ordered:
            bag.write(connections[message.topic], message.time_ns, payload(message, 2))
