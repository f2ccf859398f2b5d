"""What a Kuavo conversion must hold, computed with numpy from what the `rosbags` library reads: no code of penstock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ARM = {"left": slice(12, 19), "right": slice(19, 26)}


@dataclass
class Recorded:
    """Receive times and messages of every topic."""

    times: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    messages: dict[str, list[Any]] = field(default_factory=dict)

    def nearest(self, topic: str, rows: NDArray[np.int64]) -> list[Any]:
        gaps = np.abs(self.times[topic][np.newaxis, :] - rows[:, np.newaxis])
        return [self.messages[topic][i] for i in gaps.argmin(axis=1)]


def read(bag: Path) -> Recorded:
    from rosbags.rosbag1 import Reader
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    found: dict[str, list[tuple[int, Any]]] = {}
    store = get_typestore(Stores.EMPTY)
    with Reader(bag) as reader:
        for connection in reader.connections:
            text = getattr(connection.msgdef, "data", connection.msgdef)
            # rosbags takes the claw's constants, written with spaces around '=', for fields.
            text = re.sub(r"(?m)^int8 \w+ *= *-?\d+\n", "", text)
            store.register(get_types_from_msg(text, connection.msgtype))
        for connection, time_ns, raw in reader.messages():
            message = store.deserialize_ros1(raw, connection.msgtype)
            found.setdefault(connection.topic, []).append((time_ns, message))
    recorded = Recorded()
    for topic, pairs in found.items():
        recorded.times[topic] = np.array([time_ns for time_ns, _ in pairs])
        recorded.messages[topic] = [message for _, message in pairs]
    return recorded


def row_times(recorded: Recorded, *, camera: str = "cam_h", drop: int = 0, stride: int = 3) -> NDArray[np.int64]:
    times = recorded.times[f"/{camera}/color/image_raw/compressed"]
    return times[drop : len(times) - drop][::stride]


def _stack(values: list[Any]) -> Floats:
    return np.array([np.asarray(value, dtype=np.float64) for value in values])


def body(recorded: Recorded, rows: NDArray[np.int64], *, action: bool, arm_trajectory: bool = True) -> Floats:
    """All 28 joints in radians, per row."""
    if not action:
        return _stack([m.joint_data.joint_q for m in recorded.nearest("/sensors_data_raw", rows)])
    joints = _stack([m.joint_q for m in recorded.nearest("/joint_cmd", rows)])
    if arm_trajectory:
        degrees = _stack([m.position for m in recorded.nearest("/kuavo_arm_traj", rows)])
        joints[:, 12:26] = np.deg2rad(degrees)
    return joints


def hands(
    recorded: Recorded, rows: NDArray[np.int64], kind: str, *, action: bool, fingers: int = 1
) -> dict[str, Floats]:
    """The raw values of the left and the right end effector, per row."""
    if kind == "leju_claw":
        topic = "/leju_claw_command" if action else "/leju_claw_state"
        both = _stack([m.data.position for m in recorded.nearest(topic, rows)])
        return {"left": both[:, :1], "right": both[:, 1:2]}
    if kind == "rq2f85":
        both = _stack([m.position for m in recorded.nearest("/gripper/command" if action else "/gripper/state", rows)])
        return {"left": both[:, :1], "right": both[:, 1:2]}
    if action:
        sent = recorded.nearest("/control_robot_hand_position", rows)
        left, right = _stack([m.left_hand_position for m in sent]), _stack([m.right_hand_position for m in sent])
    else:
        both = _stack([m.position for m in recorded.nearest("/dexhand/state", rows)])
        left, right = both[:, :6], both[:, 6:]
    return {"left": left[:, :fingers], "right": right[:, :fingers]}
