"""A made Kuavo recording: its topics, custom message types and units, for tests, trials and `penstock bench`.

write_kuavo_recording(Path("kuavo.bag"), KuavoScript(seconds=20, end_effector="leju_claw"))
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.demo.scene import Jpegs, joint_angles

CAMERAS = ("cam_h", "cam_l", "cam_r")
BODY_JOINTS = 28  # 12 of the legs, 14 of the arms, 2 of the head
FIRST_ARM_JOINT, LAST_ARM_JOINT = 12, 26
HAND_JOINTS = 6  # of each of the two hands
COMMAND_LEADS_S = 0.04  # the robot follows its commands so much later

EndEffector = Literal["leju_claw", "qiangnao", "rq2f85", "none"]

_RULE = "=" * 80
_TYPES = {
    "std_msgs/Header": "uint32 seq\ntime stamp\nstring frame_id\n",
    "geometry_msgs/Vector3": "float64 x\nfloat64 y\nfloat64 z\n",
    "geometry_msgs/Quaternion": "float64 x\nfloat64 y\nfloat64 z\nfloat64 w\n",
    "geometry_msgs/Twist": "geometry_msgs/Vector3 linear\ngeometry_msgs/Vector3 angular\n",
    "geometry_msgs/TwistStamped": "std_msgs/Header header\ngeometry_msgs/Twist twist\n",
    "sensor_msgs/CompressedImage": "std_msgs/Header header\nstring format\nuint8[] data\n",
    "sensor_msgs/JointState": (
        "std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n"
    ),
    "kuavo_msgs/jointData": "float64[] joint_q\nfloat64[] joint_v\nfloat64[] joint_vd\nfloat64[] joint_current\n",
    "kuavo_msgs/imuData": (
        "geometry_msgs/Vector3 gyro\ngeometry_msgs/Vector3 acc\ngeometry_msgs/Vector3 free_acc\n"
        "geometry_msgs/Quaternion quat\n"
    ),
    "kuavo_msgs/endEffectorData": "string[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n",
    "kuavo_msgs/sensorsData": (
        "std_msgs/Header header\ntime sensor_time\nkuavo_msgs/jointData joint_data\nkuavo_msgs/imuData imu_data\n"
        "kuavo_msgs/endEffectorData end_effector_data\n"
    ),
    "kuavo_msgs/jointCmd": (
        "std_msgs/Header header\nfloat64[] joint_q\nfloat64[] joint_v\nfloat64[] tau\nfloat64[] tau_max\n"
        "float64[] tau_ratio\nfloat64[] joint_kp\nfloat64[] joint_kd\nint32[] control_modes\n"
    ),
    "kuavo_msgs/lejuClawState": (
        "std_msgs/Header header\nint8 kError = -1\nint8 kUnknown = 0\nint8 kMoving = 1\nint8 kReached = 2\n"
        "int8 kGrabbed = 3\nint8[] state\nkuavo_msgs/endEffectorData data\n"
    ),
    "kuavo_msgs/lejuClawCommand": "std_msgs/Header header\nkuavo_msgs/endEffectorData data\n",
    "kuavo_msgs/robotHandPosition": (
        "std_msgs/Header header\nuint8[] left_hand_position\nuint8[] right_hand_position\n"
    ),
}
_INNER_TYPE = re.compile(r"^(\w+/\w+)", re.MULTILINE)


@dataclass(frozen=True)
class KuavoScript:
    """What is recorded: lengths, rates, sizes, and which of its hands the robot wears."""

    seconds: float = 10.0
    fps: float = 30.0
    joint_hz: float = 100.0
    width: int = 640
    height: int = 480
    quality: int = 90
    end_effector: EndEffector = "leju_claw"
    depth: bool = False
    arm_trajectory: bool = True  # else the arms' commands are in /joint_cmd alone
    base_pose: bool = False
    silent: tuple[str, float, float] | None = None  # a topic that says nothing from one second to another
    distinct_images: int | None = None  # images are repeated after so many (for long recordings made quickly)
    start_s: int = 1_700_000_000
    seed: int = 0


Payload = Callable[[float, bytes], bytes]  # seconds from the start and the message's header → the message


@dataclass(frozen=True)
class _Topic:
    name: str
    type: str
    hz: float
    offset_s: float
    payload: Payload


def write_kuavo_recording(path: Path, script: KuavoScript | None = None) -> int:
    """Write the recording and return its size in bytes."""
    from penstock._src.recordings.ros1.writer import BagWriter

    script = script or KuavoScript()
    topics = list(_topics(script))
    rng = np.random.default_rng(script.seed)
    times = [_times_ns(script, topic, rng) for topic in topics]
    owners = np.concatenate([np.full(len(each), i) for i, each in enumerate(times)])
    numbers = np.concatenate([np.arange(len(each)) for each in times])
    merged = np.concatenate(times)
    with BagWriter(path) as bag:
        ids = [bag.add_topic(each.name, each.type, definition(each.type), "*") for each in topics]
        for i in np.lexsort((owners, merged)).tolist():
            owner, time_ns = int(owners[i]), int(merged[i])
            seconds = time_ns / 1e9 - script.start_s
            payload = topics[owner].payload(seconds, header(time_ns, int(numbers[i])))
            bag.write(ids[owner], time_ns, payload)
    return path.stat().st_size


def definition(type_name: str) -> str:
    """The text that a bag carries for a type: its own fields, then those of every type inside it."""
    texts = [type_name]
    for name in texts:
        texts += [inner for inner in dict.fromkeys(_INNER_TYPE.findall(_TYPES[name])) if inner not in texts]
    inner = "".join(f"{_RULE}\nMSG: {name}\n{_TYPES[name]}" for name in texts[1:])
    return _TYPES[type_name] + inner


def _times_ns(script: KuavoScript, topic: _Topic, rng: np.random.Generator) -> NDArray[np.int64]:
    count = int(script.seconds * topic.hz)
    seconds = np.arange(count) / topic.hz + topic.offset_s + rng.uniform(0, 0.0016, count)
    if script.silent is not None and script.silent[0] == topic.name:
        seconds = seconds[(seconds < script.silent[1]) | (seconds >= script.silent[2])]
    return script.start_s * 10**9 + np.round(seconds * 1e9).astype(np.int64)


def _topics(script: KuavoScript) -> Iterator[_Topic]:
    for i, name in enumerate(CAMERAS):
        images = _CameraImages(script, script.seed * 8 + i)
        topic = f"/{name}/color/image_raw/compressed"
        yield _Topic(topic, "sensor_msgs/CompressedImage", script.fps, 0.003 * i, images.colour)
        if script.depth:
            kind = "image_raw" if name == "cam_h" else "image_rect_raw"
            topic = f"/{name}/depth/{kind}/compressedDepth"
            yield _Topic(topic, "sensor_msgs/CompressedImage", script.fps, 0.003 * i + 0.001, images.depth)
    hz = script.joint_hz
    yield _Topic("/sensors_data_raw", "kuavo_msgs/sensorsData", hz, 0.0, _sensors)
    yield _Topic("/joint_cmd", "kuavo_msgs/jointCmd", hz, 0.002, _joint_command)
    if script.arm_trajectory:
        yield _Topic("/kuavo_arm_traj", "sensor_msgs/JointState", hz, 0.004, _arm_trajectory)
    if script.base_pose:
        yield _Topic("/cmd_pose_world_synced", "geometry_msgs/TwistStamped", hz, 0.001, _base_pose)
    if script.end_effector == "leju_claw":
        yield _Topic("/leju_claw_state", "kuavo_msgs/lejuClawState", hz, 0.003, _claw_state)
        yield _Topic("/leju_claw_command", "kuavo_msgs/lejuClawCommand", hz, 0.005, _claw_command)
    elif script.end_effector == "qiangnao":
        yield _Topic("/dexhand/state", "sensor_msgs/JointState", hz, 0.003, _hand_state)
        yield _Topic("/control_robot_hand_position", "kuavo_msgs/robotHandPosition", hz, 0.005, _hand_command)
    elif script.end_effector == "rq2f85":
        yield _Topic("/gripper/state", "sensor_msgs/JointState", hz, 0.003, _gripper_state)
        yield _Topic("/gripper/command", "sensor_msgs/JointState", hz, 0.005, _gripper_command)


# What the robot does


def body_angles(seconds: float) -> NDArray[np.float64]:
    """The commanded angles of all 28 joints, in radians; the measured ones come COMMAND_LEADS_S later."""
    return joint_angles(seconds, BODY_JOINTS)


def closing(seconds: float, fingers: int = 2) -> NDArray[np.float64]:
    """How far each hand, or finger, is closed: 0 to 1."""
    closed: NDArray[np.float64] = 0.5 - 0.5 * np.cos(1.3 * seconds + 0.9 * np.arange(fingers))
    return closed


def _sensors(seconds: float, header: bytes) -> bytes:
    q = body_angles(seconds - COMMAND_LEADS_S)
    zeros = _floats(np.zeros(BODY_JOINTS))
    imu = struct.pack("<13d", 0, 0, 0, 0, 0, 9.81, 0, 0, 0, 0, 0, 0, 1)
    return header + header[4:12] + _floats(q) + zeros * 3 + imu + named((), np.zeros(0))


def _joint_command(seconds: float, header: bytes) -> bytes:
    zeros = _floats(np.zeros(BODY_JOINTS))
    modes = struct.pack("<I", BODY_JOINTS) + struct.pack(f"<{BODY_JOINTS}i", *([2] * BODY_JOINTS))
    return header + _floats(body_angles(seconds)) + zeros * 6 + modes


def _arm_trajectory(seconds: float, header: bytes) -> bytes:
    degrees = np.degrees(body_angles(seconds)[FIRST_ARM_JOINT:LAST_ARM_JOINT])
    return header + named([f"arm_joint_{i + 1}" for i in range(len(degrees))], degrees)


def _base_pose(seconds: float, header: bytes) -> bytes:
    return header + struct.pack("<6d", 0.1 * seconds, 0.2 * seconds, 0, 0, 0, np.sin(seconds))


def _claw_state(seconds: float, header: bytes) -> bytes:
    state = struct.pack("<I2b", 2, 1, 1)
    return header + state + named(("left_claw", "right_claw"), 100 * closing(seconds - COMMAND_LEADS_S))


def _claw_command(seconds: float, header: bytes) -> bytes:
    return header + named(("left_claw", "right_claw"), 100 * closing(seconds))


def _hand_state(seconds: float, header: bytes) -> bytes:
    closed = np.round(100 * closing(seconds - COMMAND_LEADS_S, 2 * HAND_JOINTS))
    return header + named([f"joint_{i}" for i in range(2 * HAND_JOINTS)], closed)


def _hand_command(seconds: float, header: bytes) -> bytes:
    closed = np.round(100 * closing(seconds, 2 * HAND_JOINTS)).astype(np.uint8)
    left, right = closed[:HAND_JOINTS].tobytes(), closed[HAND_JOINTS:].tobytes()
    return header + struct.pack("<I", HAND_JOINTS) + left + struct.pack("<I", HAND_JOINTS) + right


def _gripper_state(seconds: float, header: bytes) -> bytes:
    return header + named((), 0.8 * closing(seconds - COMMAND_LEADS_S))


def _gripper_command(seconds: float, header: bytes) -> bytes:
    return header + named((), np.round(255 * closing(seconds)))


class _CameraImages:
    """One camera: JPEGs, and the depth behind them as 16-bit PNGs in millimetres."""

    def __init__(self, script: KuavoScript, seed: int) -> None:
        self._script = script
        self._jpegs = Jpegs(script.width, script.height, script.fps, script.quality, seed, script.distinct_images)
        rows, columns = np.mgrid[0 : script.height, 0 : script.width]
        self._floor_mm = (400 + 1200 * rows / script.height + 5 * (columns % 7)).astype(np.uint16)

    def colour(self, seconds: float, header: bytes) -> bytes:
        jpeg = self._jpegs.at(int(seconds * self._script.fps))
        return header + text("jpeg") + struct.pack("<I", len(jpeg)) + jpeg

    def depth(self, seconds: float, header: bytes) -> bytes:
        import cv2

        number = int(seconds * self._script.fps)
        if self._script.distinct_images is not None:
            number %= self._script.distinct_images
        pixels = depth_mm(self._floor_mm, number)
        png = cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()
        data = struct.pack("<iff", 0, 0.0, 0.0) + png
        return header + text("16UC1; compressedDepth png") + struct.pack("<I", len(data)) + data


def depth_mm(floor_mm: NDArray[np.uint16], number: int) -> NDArray[np.uint16]:
    """The depth image of a number: the floor with something that moves over it, and pixels without a reading."""
    depth: NDArray[np.uint16] = floor_mm.copy()
    left = (7 * number) % max(depth.shape[1] - 8, 1)
    depth[4:12, left : left + 8] = 350 + number % 1000
    depth[::9, ::11] = 0
    return depth


# Bytes as ROS 1 lays them out


def header(stamp_ns: int, sequence: int) -> bytes:
    return struct.pack("<III", sequence, *divmod(stamp_ns, 10**9)) + text("")


def text(content: str) -> bytes:
    data = content.encode()
    return struct.pack("<I", len(data)) + data


def _floats(values: NDArray[np.float64]) -> bytes:
    return struct.pack("<I", len(values)) + np.asarray(values, "<f8").tobytes()


def named(names: list[str] | tuple[str, ...], position: NDArray[np.float64]) -> bytes:
    """name, position, velocity and effort, as JointState and endEffectorData have them."""
    zeros = _floats(np.zeros(len(position)))
    return struct.pack("<I", len(names)) + b"".join(map(text, names)) + _floats(position) + zeros + zeros
