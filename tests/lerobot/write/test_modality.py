"""modality.json names the parts of a data set: limbs where the names of joints say so, else whole vectors."""

from __future__ import annotations

import pytest

from penstock._src.lerobot.features import Feature
from penstock._src.lerobot.write.modality import joint_group, modality

G1 = (
    [f"kLeft{joint}" for joint in ("ShoulderPitch", "ShoulderRoll", "Elbow", "WristYaw")]
    + [f"kRight{joint}" for joint in ("ShoulderPitch", "ShoulderRoll", "Elbow", "WristYaw")]
    + [f"kLeftHand{finger}" for finger in ("Pinky", "Index", "ThumbBend")]
    + [f"kRightHand{finger}" for finger in ("Pinky", "Index", "ThumbBend")]
)
SO100 = [
    f"{joint}.pos" for joint in ("shoulder_pan", "shoulder_lift", "elbow_flex", "wrist_flex", "wrist_roll", "gripper")
]
ALOHA = [
    f"{side}_{joint}" for side in ("left", "right") for joint in ("waist", "shoulder", "elbow", "wrist", "gripper")
]
KUAVO = [f"zarm_l{i}_link" for i in (1, 2)] + ["left_claw"] + [f"zarm_r{i}_link" for i in (1, 2)] + ["right_claw"]


def vector(names: list[str], key: str = "observation.state", dtype: str = "float32") -> Feature:
    return Feature(key, dtype, (len(names),), names)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (G1, {"left_arm": (0, 4), "right_arm": (4, 8), "left_hand": (8, 11), "right_hand": (11, 14)}),
        (SO100, {"single_arm": (0, 5), "gripper": (5, 6)}),
        (ALOHA, {"left_arm": (0, 4), "left_gripper": (4, 5), "right_arm": (5, 9), "right_gripper": (9, 10)}),
        (KUAVO, {"left_arm": (0, 2), "left_gripper": (2, 3), "right_arm": (3, 5), "right_gripper": (5, 6)}),
        (["l_knee", "r_knee", "head_yaw", "torso_yaw"],
         {"left_leg": (0, 1), "right_leg": (1, 2), "head": (2, 3), "waist": (3, 4)}),
        ([f"joint_{i}" for i in range(7)], {"all": (0, 7)}),
        (["x", "y", "z", "r", "p", "y", "gripper"], {"all": (0, 7)}),
        (["left_elbow", "right_elbow", "left_wrist"], {"all": (0, 3)}),  # a part must be one run of numbers
        (["elbow", "elbow", "something"], {"all": (0, 3)}),
    ],
)  # fmt: skip
def test_vectors_are_split_by_the_names_of_their_numbers(
    names: list[str], expected: dict[str, tuple[int, int]]
) -> None:
    found = modality([vector(names), vector(names, "action")])
    wanted = {name: {"start": start, "end": end} for name, (start, end) in expected.items()}
    assert found["state"] == wanted and found["action"] == wanted
    assert max(end for _, end in expected.values()) == len(names)


def test_a_vector_without_names_is_one_part() -> None:
    assert modality([Feature("action", "float32", (3,))])["action"] == {"all": {"start": 0, "end": 3}}


def test_cameras_tasks_and_annotations_are_named() -> None:
    features = [
        Feature("observation.images.cam_h", "video", (48, 64, 3), ("height", "width", "channels")),
        Feature("top", "video", (48, 64, 3), ("height", "width", "channels")),
        Feature("observation.images.still", "image", (48, 64, 3), ("height", "width", "channels")),
        Feature("annotation.human.validity", "int64", (1,)),
        Feature("annotation.human.remark", "string", (1,)),
    ]
    found = modality(features)
    assert found["video"] == {
        "cam_h": {"original_key": "observation.images.cam_h"},
        "top": {"original_key": "top"},
    }
    assert found["annotation"] == {"human.task_description": {"original_key": "task_index"}, "human.validity": {}}
    assert found["state"] == found["action"] == {}


def test_other_columns_of_numbers_name_their_column() -> None:
    features = [
        vector(["gripper"]),
        vector(["a", "b"], "observation.velocity"),
        vector(["a"], "observation.gripper"),
        vector(["a", "b"], "action.base"),
        vector(["a"], "observation.count", "int64"),
        Feature("observation.pose", "float32", (2, 3)),
        vector(["a"], "reward"),
    ]
    found = modality(features)
    assert found["state"] == {
        "gripper": {"start": 0, "end": 1},
        "velocity": {"start": 0, "end": 2, "original_key": "observation.velocity"},
        "observation.gripper": {"start": 0, "end": 1, "original_key": "observation.gripper"},
    }
    assert found["action"] == {"base": {"start": 0, "end": 2, "original_key": "action.base"}}


def test_words_of_a_name_say_the_limb() -> None:
    assert joint_group("leftArmJoint3") == "left_arm"
    assert joint_group("r_wrist_yaw_joint") == "right_arm"
    assert joint_group("left_arm_gripper") == "left_gripper"
    assert joint_group("LEFT_KNEE") == "left_leg"
    assert joint_group("armour") is None and joint_group("") is None and joint_group("17") is None
