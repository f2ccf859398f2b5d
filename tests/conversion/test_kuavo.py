"""A Kuavo configuration becomes the rows that its users know: joints, hands, units and rates, against plain numpy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
from penstock._src.conversion import kuavo
from penstock._src.demo.kuavo import KuavoScript, write_kuavo_recording
from penstock._src.lerobot.read.reader import open_data_set
from penstock.errors import ConfigError, RecordingError
from tests.conversion import kuavo_oracle as oracle
from tests.lerobot import reading

CONFIGURATIONS = Path(__file__).resolve().parents[2] / "compat" / "configs" / "data"
SMALL = {"seconds": 1.5, "width": 64, "height": 48}
SIDES = {"left": ("left",), "right": ("right",), "both": ("left", "right")}
FULL = {"leju_claw": (100, 100), "qiangnao": (100, 100), "rq2f85": (0.8, 255)}
CLOSED = {"leju_claw": (50, 50), "qiangnao": (50, 50), "rq2f85": (0.4, 70)}


@pytest.fixture(scope="module")
def bags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One recording per end effector."""
    directory = tmp_path_factory.mktemp("kuavo")
    made = {}
    for kind in FULL:
        made[kind] = directory / f"{kind}.bag"
        write_kuavo_recording(made[kind], KuavoScript(end_effector=kind, **SMALL))  # type: ignore[arg-type]
    made["whole"] = directory / "whole.bag"
    write_kuavo_recording(made["whole"], KuavoScript(base_pose=True, **SMALL))  # type: ignore[arg-type]
    made["no_trajectory"] = directory / "no_trajectory.bag"
    write_kuavo_recording(made["no_trajectory"], KuavoScript(arm_trajectory=False, **SMALL))  # type: ignore[arg-type]
    return made


def job_of(bag: Path, out: Path, *words: str) -> kuavo.KuavoJob:
    keys = [f"rosbag.rosbag_dir={bag}", f"rosbag.lerobot_dir={out}", "dataset.resize=null", "dataset.sample_drop=2"]
    return kuavo.arguments(CONFIGURATIONS, "KuavoRosbag2Lerobot", [*keys, *words])


def convert(bag: Path, out: Path, *words: str) -> tuple[penstock.Report, NDArray[Any], NDArray[Any]]:
    job = job_of(bag, out, *words)
    report = penstock.convert(list(job.sources), job.out, **job.values)
    return report, column(out, "observation.state"), column(out, "action")


def column(out: Path, key: str) -> NDArray[Any]:
    data = open_data_set(out)
    return np.asarray(reading.rows(data, [key], 0, data.info.total_frames)[key])


def names(out: Path, key: str) -> list[str]:
    return list(json.loads((out / "meta" / "info.json").read_text())["features"][key]["names"])


def expected(
    bag: Path, kind: str, sides: Sequence[str], *, action: bool, binary: bool = False, fingers: int = 1
) -> NDArray[np.float64]:
    recorded = oracle.read(bag)
    rows = oracle.row_times(recorded, drop=2)
    joints = oracle.body(recorded, rows, action=action)
    hands = oracle.hands(recorded, rows, kind, action=action, fingers=fingers)
    parts = []
    for side in sides:
        hand = hands[side]
        hand = (hand > CLOSED[kind][action]).astype(float) if binary else hand / FULL[kind][action]
        parts += [joints[:, oracle.ARM[side]], hand]
    return np.concatenate(parts, axis=1)


def same(stored: NDArray[Any], wanted: NDArray[np.float64]) -> None:
    assert stored.shape == wanted.shape
    np.testing.assert_allclose(stored, wanted, rtol=0, atol=2e-6)


# Joints and hands


def test_both_arms_with_claws_are_sixteen_numbers_in_the_known_order(bags: dict[str, Path], tmp_path: Path) -> None:
    bag, out = bags["leju_claw"], tmp_path / "out"
    report, state, action = convert(bag, out)
    assert (report.episodes, report.fps, report.exit_code) == (1, 10, 0)
    assert len(state) == len(range(2, 43, 3))  # 45 images, 2 dropped at both ends, every third
    same(state, expected(bag, "leju_claw", ("left", "right"), action=False))
    same(action, expected(bag, "leju_claw", ("left", "right"), action=True))
    arms = [f"zarm_{side}{i}_link" for side in "lr" for i in range(1, 8)]
    assert names(out, "action") == names(out, "observation.state") == [*arms[:7], "left_claw", *arms[7:], "right_claw"]
    info = json.loads((out / "meta" / "info.json").read_text())
    assert info["robot_type"] == "kuavo4pro"
    assert (out / "meta" / "tasks.parquet").exists()
    cameras = [key for key, feature in info["features"].items() if feature["dtype"] == "video"]
    assert cameras == [f"observation.images.{name}" for name in ("head_cam_h", "wrist_cam_l", "wrist_cam_r")]


@pytest.mark.parametrize("kind", list(FULL))
@pytest.mark.parametrize("which", ["left", "right", "both"])
def test_every_hand_and_arm(bags: dict[str, Path], tmp_path: Path, kind: str, which: str) -> None:
    bag, out = bags[kind], tmp_path / "out"
    _, state, action = convert(bag, out, f"dataset.which_arm={which}", f"dataset.eef_type={kind}")
    same(state, expected(bag, kind, SIDES[which], action=False))
    same(action, expected(bag, kind, SIDES[which], action=True))
    assert state.shape[1] == 8 * len(SIDES[which]) == len(names(out, "observation.state"))
    wrists = [f"observation.images.wrist_cam_{side[0]}" for side in SIDES[which]]
    features = json.loads((out / "meta" / "info.json").read_text())["features"]
    assert [key for key in features if "wrist" in key] == wrists
    assert np.ptp(action[:, 7]) > 0.05  # a hand that moves: the test would see a swapped side or a lost scale


@pytest.mark.parametrize("fingers", [2, 6])
def test_more_fingers_of_a_dexterous_hand(bags: dict[str, Path], tmp_path: Path, fingers: int) -> None:
    bag, out = bags["qiangnao"], tmp_path / "out"
    _, state, action = convert(bag, out, f"dataset.dex_dof_needed={fingers}")
    same(state, expected(bag, "qiangnao", ("left", "right"), action=False, fingers=fingers))
    same(action, expected(bag, "qiangnao", ("left", "right"), action=True, fingers=fingers))
    assert names(out, "action")[7 : 7 + fingers] == [f"left_qiangnao_{i}" for i in range(1, fingers + 1)]


@pytest.mark.parametrize("kind", list(FULL))
def test_a_binary_hand_is_open_or_closed(bags: dict[str, Path], tmp_path: Path, kind: str) -> None:
    bag, out = bags[kind], tmp_path / "out"
    _, state, action = convert(bag, out, "dataset.is_binary=true")
    same(state, expected(bag, kind, ("left", "right"), action=False, binary=True))
    same(action, expected(bag, kind, ("left", "right"), action=True, binary=True))
    assert set(np.unique(action[:, [7, 15]])) == {0.0, 1.0}


def test_without_an_arm_trajectory_the_joint_commands_are_the_action(bags: dict[str, Path], tmp_path: Path) -> None:
    bag, out = bags["no_trajectory"], tmp_path / "out"
    job = job_of(bag, out)
    assert any("/kuavo_arm_traj is not recorded" in note for note in job.notes)
    _, _, action = convert(bag, out)
    recorded = oracle.read(bag)
    rows = oracle.row_times(recorded, drop=2)
    same(action[:, :7], oracle.body(recorded, rows, action=True, arm_trajectory=False)[:, 12:19])


def test_the_whole_body_has_legs_in_front_and_the_head_behind(bags: dict[str, Path], tmp_path: Path) -> None:
    bag, out = bags["whole"], tmp_path / "out"
    _, state, action = convert(bag, out, "dataset.only_arm=false")
    recorded = oracle.read(bag)
    rows = oracle.row_times(recorded, drop=2)
    joints = oracle.body(recorded, rows, action=False)
    arms = expected(bag, "leju_claw", ("left", "right"), action=False)
    same(state, np.concatenate((joints[:, :12], arms, joints[:, 26:28]), axis=1))
    joints = oracle.body(recorded, rows, action=True)
    arms = expected(bag, "leju_claw", ("left", "right"), action=True)
    poses = [each.twist for each in recorded.nearest("/cmd_pose_world_synced", rows)]
    base = np.array([[twist.linear.x, twist.linear.y, twist.angular.z] for twist in poses])
    same(action, np.concatenate((joints[:, :12], arms, joints[:, 26:28], base), axis=1))
    assert names(out, "observation.state")[:1] == ["l_leg_roll"]
    assert names(out, "action")[-5:] == ["head_yaw", "head_pitch", "cmd_pos_x", "cmd_pos_y", "cmd_pos_yaw"]


@pytest.mark.parametrize("delta", [False, True])
@pytest.mark.parametrize("start", [False, True])
def test_arms_are_made_relative_and_hands_are_not(
    bags: dict[str, Path], tmp_path: Path, delta: bool, start: bool
) -> None:
    bag, out = bags["leju_claw"], tmp_path / "out"
    words = (f"dataset.delta_action={str(delta).lower()}", f"dataset.relative_start={str(start).lower()}")
    _, state, action = convert(bag, out, *words, "rosbag.chunk_size=4")
    wanted_state = expected(bag, "leju_claw", ("left", "right"), action=False)
    wanted_action = expected(bag, "leju_claw", ("left", "right"), action=True)
    arms = [*range(7), *range(8, 15)]
    if start:
        wanted_state[:, arms] -= wanted_state[0, arms]
        wanted_action[:, arms] -= wanted_action[0, arms]
    if delta:
        wanted_action[:, arms] -= wanted_state[:, arms]
    same(state, wanted_state)
    same(action, wanted_action)


def test_a_commanded_base_stays_absolute_beside_relative_arms(bags: dict[str, Path], tmp_path: Path) -> None:
    bag, words = bags["whole"], ("dataset.only_arm=false",)
    _, state, plain = convert(bag, tmp_path / "plain", *words)
    _, _, relative = convert(bag, tmp_path / "relative", *words, "dataset.delta_action=true")
    moving = [i for i in range(30) if i not in (19, 27)]  # all but the two claws
    wanted = plain.astype(np.float64)
    wanted[:, moving] -= state[:, moving]
    same(relative, wanted)


# Rows


@pytest.mark.parametrize(("hz", "stride"), [(30, 1), (15, 2), (10, 3), (5, 6)])
def test_train_hz_takes_every_nth_image_of_the_main_camera(
    bags: dict[str, Path], tmp_path: Path, hz: int, stride: int
) -> None:
    bag, out = bags["leju_claw"], tmp_path / "out"
    report, state, _ = convert(bag, out, f"dataset.train_hz={hz}", "dataset.main_timeline=wrist_cam_l")
    recorded = oracle.read(bag)
    rows = oracle.row_times(recorded, camera="cam_l", drop=2, stride=stride)
    assert report.fps == hz
    same(state[:, :7], oracle.body(recorded, rows, action=False)[:, 12:19])


def test_a_false_rate_of_the_main_camera_is_not_believed(bags: dict[str, Path], tmp_path: Path) -> None:
    words = ("dataset.main_timeline_fps=60", "dataset.train_hz=10")
    report, _, _ = convert(bags["leju_claw"], tmp_path / "out", *words)
    assert report.frames == 14  # 10 Hz: stride 6 of 30 Hz would have made 5 Hz of it


def test_a_train_hz_that_does_not_divide_the_rate_is_kept_all_the_same(bags: dict[str, Path], tmp_path: Path) -> None:
    report, _, _ = convert(bags["leju_claw"], tmp_path / "out", "dataset.train_hz=20")
    assert (report.fps, report.frames) == (20, 27)  # 41 images of 1/30 s: 1.33 s


def test_images_are_copied_when_they_have_the_asked_size(bags: dict[str, Path], tmp_path: Path) -> None:
    for size, fate in (("{width: 64, height: 48}", "copied"), ("{width: 32, height: 24}", "mjpeg")):
        report, _, _ = convert(bags["leju_claw"], tmp_path / fate, f"dataset.resize={size}")
        camera = report.features["observation.images.head_cam_h"]
        assert camera["stored_as"] == fate
    assert camera["size_px"] == [24, 32]


# The configuration


def test_the_end_effector_is_found_by_its_topic(bags: dict[str, Path], tmp_path: Path) -> None:
    for kind in FULL:
        job = job_of(bags[kind], tmp_path / kind)
        assert f"dataset.eef_type: {kind}" in job.notes
    bare = tmp_path / "bare.bag"
    write_kuavo_recording(bare, KuavoScript(end_effector="none", **SMALL))  # type: ignore[arg-type]
    _, state, _ = convert(bare, tmp_path / "bare")
    assert state.shape[1] == 14


def test_num_used_takes_the_same_recordings_every_time(bags: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "many"
    directory.mkdir()
    for i in range(7):
        (directory / f"run_{i}.bag").hardlink_to(bags["leju_claw"])
    jobs = [job_of(directory, tmp_path / "out", "rosbag.num_used=3") for _ in range(3)]
    assert len(jobs[0].sources) == 3
    assert {job.sources for job in jobs} == {jobs[0].sources}
    assert list(jobs[0].sources) == sorted(jobs[0].sources)
    more = job_of(directory, tmp_path / "out", "rosbag.num_used=70")
    assert len(more.sources) == 7
    assert any("70" in note for note in more.notes)


def test_penstocks_own_keys_stand_beside_kuavos(bags: dict[str, Path], tmp_path: Path) -> None:
    bag, out = bags["leju_claw"], tmp_path / "out"
    file = tmp_path / "robot.yaml"
    file.write_text(
        "hydra: {run: {dir: './outputs/${now:%Y}'}}\n"
        f"rosbag: {{rosbag_dir: {bag}, lerobot_dir: {out}, chunk_size: null}}\n"
        "dataset: {eef_type: leju_claw, resize: null}\n"
        "missing: reject\n"
        "features: {observation.imu: {topic: /sensors_data_raw, field: imu_data.acc}}\n"
    )
    job = kuavo.arguments(tmp_path, "robot", ["video=mjpeg", "features.action.dtype=float64"])
    report = penstock.convert(list(job.sources), job.out, **job.values)
    assert report.features["observation.images.head_cam_h"]["stored_as"] == "mjpeg"
    info = json.loads((out / "meta" / "info.json").read_text())
    assert info["features"]["action"]["dtype"] == "float64"
    assert info["features"]["observation.imu"]["shape"] == [3]
    assert job.values["missing"] == "reject"
    assert job.values["rosbag"] == {"chunk_size": None}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dataset.wich_arm=left"], "did you mean 'which_arm'"),
        (["dataset.which_arm=middle"], "dataset.which_arm"),
        (["dataset.eef_type=hook"], "dataset.eef_type"),
        (["dataset.main_timeline=cam_h"], "main_timeline"),
        (["dataset.dex_dof_needed=7"], "dex_dof_needed is 7"),
        (["dataset.train_hz=0"], "train_hz is 0"),
        (["rosbag.num_used=0"], "rosbag.num_used is 0"),
        (["rosbag.lerobot_dir=null"], "rosbag.lerobot_dir is not set"),
        (["rosbag.rosbag_dir=null"], "rosbag.rosbag_dir is not set"),
    ],
)
def test_a_wrong_key_is_named(bags: dict[str, Path], tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        job_of(bags["leju_claw"], tmp_path / "out", *words)


def test_what_is_not_a_kuavo_recording_is_named(tmp_path: Path) -> None:
    from penstock._src.demo.recording import Script, write_recording

    bag = tmp_path / "other.bag"
    write_recording(bag, Script(seconds=0.2, width=64, height=48))
    with pytest.raises(ConfigError, match="not a recording of a Kuavo"):
        job_of(bag, tmp_path / "out")
    with pytest.raises(RecordingError, match="no such file"):
        job_of(tmp_path / "nothing", tmp_path / "out")
    with pytest.raises(ConfigError, match="no such configuration"):
        kuavo.arguments(tmp_path, "nothing", [])


def test_a_kuavo_file_given_as_a_plain_configuration_is_recognised(bags: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="key of Kuavo's converter") as caught:
        penstock.convert(bags["leju_claw"], tmp_path / "out", config=CONFIGURATIONS / "KuavoRosbag2Lerobot.yaml")
    assert "--config-name" in str(caught.value)
