"""Numeric topics that nobody named: the obvious field of every robot's messages, what is a command, what is said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import recordings
from penstock._src.conversion.inputs.recording import plan_recording
from penstock._src.conversion.mapping.topics import map_topics
from penstock._src.conversion.settings import Settings, read_settings
from tests.conversion import bags, datasets, topics
from tests.conversion.bags import CAM_H, STATE
from tests.conversion.topics import Note, at, notes

SECONDS = 1.0
CAMERA = bags.camera(CAM_H, bags.times(20, SECONDS))

KUAVO = {
    "kuavo_msgs/msg/jointData": "float64[] joint_q\nfloat64[] joint_v\nfloat64[] joint_vd\nfloat64[] joint_torque",
    "kuavo_msgs/msg/endEffectorData": "string[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort",
    "kuavo_msgs/msg/sensorsData": "std_msgs/Header header\ntime sensor_time\nkuavo_msgs/jointData joint_data\n"
    "kuavo_msgs/endEffectorData end_effector_data",
    "kuavo_msgs/msg/jointCmd": "std_msgs/Header header\nfloat64[] joint_q\nfloat64[] joint_v\nfloat64[] tau\n"
    "int32[] control_modes",
    "kuavo_msgs/msg/lejuClawState": "int8[] state\nkuavo_msgs/endEffectorData data",
    "demo_msgs/msg/Gripper": "float64 width\nfloat32 force",
    "demo_msgs/msg/Scan": "float32[] ranges",
    "demo_msgs/msg/JointJog": "string[] joint_names\nfloat64[] displacements\nfloat64[] velocities\nfloat64 duration",
}
# The public type, which ROS 1's standard set does not have.
JOG = {"control_msgs/msg/JointJog": KUAVO["demo_msgs/msg/JointJog"]}


def topic(name: str, type_name: str, fields: Mapping[str, Any], count: int = 20) -> list[Note]:
    return notes(name, type_name, [at(n * SECONDS / count) for n in range(count)], lambda _: fields)


def settled(path: Path, *groups: list[Note], states: bool = True) -> tuple[Settings, tuple[str, ...]]:
    tape = CAMERA + (bags.joints(STATE, bags.times(40, SECONDS)) if states else [])
    topics.write(path / "run.bag", tape, *groups, custom={**KUAVO, **JOG})
    with recordings.open(path / "run.bag") as recording:
        found = map_topics(recording, read_settings())
        return found.settings, found.notes


def names(path: Path) -> dict[str, tuple[str, ...]]:
    with recordings.open(path / "run.bag") as recording:
        plan, _ = plan_recording(recording, read_settings(), 256 << 20)
    return {vector.key: vector.names for vector in plan.columns.vectors}


POINT = {"x": 1.0, "y": 2.0, "z": 3.0}


def axes(name: str, letters: str = "xyz") -> tuple[str, ...]:
    return tuple(f"{name}.{letter}" for letter in letters)


XYZ = axes("position") + axes("orientation", "xyzw")
TWIST = axes("linear") + axes("angular")
WRENCH = axes("force") + axes("torque")


@pytest.mark.parametrize(
    ("type_name", "fields", "path", "expected"),
    [
        ("geometry_msgs/msg/Pose", {}, ".", XYZ),
        ("geometry_msgs/msg/PoseStamped", {}, "pose", XYZ),
        ("geometry_msgs/msg/PoseWithCovarianceStamped", {}, "pose.pose", XYZ),
        ("geometry_msgs/msg/Twist", {}, ".", TWIST),
        ("geometry_msgs/msg/TwistStamped", {}, "twist", TWIST),
        ("geometry_msgs/msg/TwistWithCovarianceStamped", {}, "twist.twist", TWIST),
        ("geometry_msgs/msg/WrenchStamped", {}, "wrench", WRENCH),
        ("geometry_msgs/msg/Vector3Stamped", {"vector": POINT}, "vector", ("x", "y", "z")),
        (
            "sensor_msgs/msg/Imu",
            {},
            ".",
            axes("orientation", "xyzw") + axes("angular_velocity") + axes("linear_acceleration"),
        ),
        (
            "nav_msgs/msg/Odometry",
            {},
            ".",
            tuple(f"pose.{name}" for name in XYZ) + tuple(f"twist.{name}" for name in TWIST),
        ),
        (
            "sensor_msgs/msg/Joy",
            {"axes": [0.0, 1.0], "buttons": [1]},
            ".",
            ("axes.0", "axes.1", "buttons.0"),
        ),
        ("sensor_msgs/msg/Range", {"range": 2.0}, "range", ("range",)),
        ("std_msgs/msg/Float32MultiArray", {"data": [1.0, 2.0]}, "data", ("data.0", "data.1")),
        ("std_msgs/msg/Float64", {"data": 1.0}, "data", ("data",)),
        ("std_msgs/msg/Int32", {"data": 4}, "data", ("data",)),
        ("std_msgs/msg/Bool", {"data": True}, "data", ("data",)),
        (
            "sensor_msgs/msg/MultiDOFJointState",
            {"joint_names": ["a", "b"], "transforms": [{}, {}]},
            "transforms[0:2]",
            tuple(
                f"transforms.{n}.{part}" for n in range(2) for part in axes("translation") + axes("rotation", "xyzw")
            ),
        ),
        ("demo_msgs/msg/Gripper", {"width": 0.1}, ".", ("width", "force")),
        (
            "kuavo_msgs/msg/lejuClawState",
            {"data": {"name": ["l", "r"], "position": [1.0, 2.0]}},
            "data.position",
            ("l", "r"),
        ),
    ],
)
def test_the_numbers_of_a_type_and_their_names(
    tmp_path: Path, type_name: str, fields: dict[str, Any], path: str, expected: tuple[str, ...]
) -> None:
    chosen, _ = settled(tmp_path, topic("/thing/one", type_name, fields))
    assert [source.field for source in chosen.features["observation.thing_one"].sources] == [path]
    assert names(tmp_path)["observation.thing_one"] == expected


@pytest.mark.parametrize(
    ("name", "type_name", "fields", "path", "expected"),
    [
        ("/cmd_vel", "geometry_msgs/msg/Twist", {}, ".", TWIST),
        ("/servo/target", "geometry_msgs/msg/TwistStamped", {}, "twist", TWIST),
        (
            "/arm_controller/joint_trajectory",
            "trajectory_msgs/msg/JointTrajectory",
            {"joint_names": ["a", "b"], "points": [{"positions": [1.0, 2.0]}]},
            "points[0].positions",
            ("a", "b"),
        ),
        (
            "/delta",
            "control_msgs/msg/JointJog",
            {"joint_names": ["a", "b"], "velocities": [1.0, 2.0]},
            "velocities",
            ("a", "b"),
        ),
        (
            "/delta",
            "control_msgs/msg/JointJog",
            {"joint_names": ["a"], "displacements": [1.0]},
            "displacements",
            ("a",),
        ),
        (
            "/whole_body",
            "kuavo_msgs/msg/jointCmd",
            {"joint_q": [1.0, 2.0], "joint_v": [0.0, 0.0], "tau": [0.0, 0.0]},
            "joint_q",
            ("joint_q.0", "joint_q.1"),
        ),
        ("/speed_command", "sensor_msgs/msg/JointState", {"name": ["a"], "velocity": [1.0]}, "velocity", ("a",)),
    ],
)
def test_commands_are_the_action(
    tmp_path: Path, name: str, type_name: str, fields: dict[str, Any], path: str, expected: tuple[str, ...]
) -> None:
    chosen, _ = settled(tmp_path, topic(name, type_name, fields))
    assert [(source.topic, source.field) for source in chosen.features["action"].sources] == [(name, path)]
    assert names(tmp_path)["action"] == expected


def test_the_custom_state_and_command_of_a_humanoid(tmp_path: Path) -> None:
    state = {
        "joint_data": {key: [0.0] * 28 for key in ("joint_q", "joint_v", "joint_vd", "joint_torque")},
        "end_effector_data": {"name": ["l", "r"], "position": [0.0, 1.0]},
    }
    command = {"joint_q": [0.0] * 28, "joint_v": [0.0] * 28, "tau": [0.0] * 28, "control_modes": [0] * 28}
    groups = (
        topic("/sensors_data_raw", "kuavo_msgs/msg/sensorsData", state),
        topic("/joint_cmd", "kuavo_msgs/msg/jointCmd", command),
    )
    chosen, _ = settled(tmp_path, *groups, states=False)
    sources = {key: [(s.topic, s.field) for s in each.sources] for key, each in chosen.features.items()}
    assert sources["observation.state"] == [("/sensors_data_raw", "joint_data.joint_q")]
    assert sources["action"] == [("/joint_cmd", "joint_q")]


def test_every_command_is_part_of_the_action_but_the_pose_that_joints_follow(tmp_path: Path) -> None:
    groups = (
        topic("/arm/command", "sensor_msgs/msg/JointState", {"name": ["a"], "position": [1.0]}),
        topic("/gripper/command", "std_msgs/msg/Float64", {"data": 1.0}),
        topic("/arm/target_pose", "geometry_msgs/msg/PoseStamped", {}),
        topic("/arm/command_state", "std_msgs/msg/Float64", {"data": 1.0}),
    )
    chosen, _ = settled(tmp_path, *groups)
    assert [source.topic for source in chosen.features["action"].sources] == ["/arm/command", "/gripper/command"]
    assert {"observation.arm_target_pose", "observation.arm_command_state"} <= set(chosen.features)
    assert names(tmp_path)["action"] == ("arm_command.a", "gripper_command.data")


def test_what_is_left_out_is_reported_with_its_reason(tmp_path: Path) -> None:
    groups = (
        topic("/scan", "demo_msgs/msg/Scan", {"ranges": [0.0] * 900}),
        topic("/empty", "sensor_msgs/msg/JointState", {"name": ["a"]}),
        notes("/gripper/command", "std_msgs/msg/Float64", [at(n / 3) for n in range(3)], lambda n: {"data": float(n)}),
        topic("/bytes", "std_msgs/msg/UInt8MultiArray", {"data": [1, 2, 3]}),
        topic("/unclear", "sensor_msgs/msg/MultiEchoLaserScan", {}),
    )
    chosen, expected_text = settled(tmp_path, *groups)
    assert set(chosen.features) == {"observation.images.cam_h", "observation.state"}
    text = "\n".join(expected_text)
    assert "/scan left out: 900 numbers in a message" in text
    assert "/gripper/command left out: too sparse for a row each: 3 messages, and 7 are needed (to keep it" in text
    for name in ("/bytes", "/empty", "/unclear"):
        assert f"{name} left out: its type has no default field; name one under features:" in text
    assert sum("/scan" in note for note in expected_text) == 1, "a reason each, and only one"
    assert "no action: no topic with a value for each row has a word like cmd" in text


def test_a_recorder_that_pauses_for_all_topics_makes_no_topic_sparse(tmp_path: Path) -> None:
    times = [*bags.times(20, 1.0), *bags.times(20, 1.0, offset_s=4.0)]
    tape = bags.camera(CAM_H, times) + bags.joints(STATE, times) + bags.joints(bags.COMMAND, times)
    with recordings.open(bags.write(tmp_path / "run.bag", tape)) as recording:
        features = map_topics(recording, read_settings()).settings.features
    assert [source.topic for source in features["action"].sources] == [bags.COMMAND]


def test_the_suggested_configuration_says_what_was_found_and_gives_the_same_rows(tmp_path: Path) -> None:
    from penstock._src.conversion.mapping.suggest import suggest_yaml

    groups = (
        topic("/odom", "nav_msgs/msg/Odometry", {"pose": {"pose": {"position": POINT}}}),
        topic("/cmd_vel", "geometry_msgs/msg/Twist", {"linear": POINT}),
        topic("/joy", "sensor_msgs/msg/Joy", {"axes": [0.5], "buttons": [1, 0]}),
    )
    settled(tmp_path, *groups)
    with recordings.open(tmp_path / "run.bag") as recording:
        plan, _ = plan_recording(recording, read_settings(), 256 << 20)
        (tmp_path / "robot.yaml").write_text(suggest_yaml(plan))
    penstock.convert(tmp_path / "run.bag", tmp_path / "by itself")
    penstock.convert(tmp_path / "run.bag", tmp_path / "suggested", config=tmp_path / "robot.yaml")
    assert datasets.info(tmp_path / "by itself") == datasets.info(tmp_path / "suggested")
    assert datasets.table(tmp_path / "by itself").equals(datasets.table(tmp_path / "suggested"))
    assert datasets.values(tmp_path / "suggested", "action")[0].tolist() == [1, 2, 3, 0, 0, 0]
    assert datasets.values(tmp_path / "suggested", "observation.joy")[0].tolist() == [0.5, 1, 0]


def test_one_field_may_be_named_twice_for_other_joints_or_another_time(tmp_path: Path) -> None:
    source = bags.write(tmp_path / "run.bag", bags.robot())
    position = {"topic": bags.STATE, "field": "position"}
    sources = [
        {**position, "names": ["joint_1"]},
        {**position, "names": ["joint_2"]},
        {**position, "names": ["joint_1"], "time_offset": "100ms"},
    ]

    def values(name: str, given: object) -> np.ndarray[Any, Any]:
        features = {"observation.images.cam": bags.CAM_H, "observation.state": given}
        penstock.convert(source, tmp_path / name, features=features)
        return datasets.values(tmp_path / name, "observation.state")

    together = values("together", sources)
    alone = [values(str(number), [each])[-len(together) :] for number, each in enumerate(sources)]
    assert len(together) > 20
    np.testing.assert_array_equal(together, np.concatenate(alone, axis=1))
    names = datasets.info(tmp_path / "together")["features"]["observation.state"]["names"]
    assert names == [f"joint_states.position.{which}" for which in ("joint_1", "2.joint_2", "3.joint_1")]
