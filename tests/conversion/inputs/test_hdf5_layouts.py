"""Layouts of HDF5 files that others write, converted and loaded: the same episodes, and the same columns by role."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.conversion.mapping.columns_by_name import map_columns
from penstock._src.stores.roles import LEROBOT
from penstock.errors import StoreError
from tests.conversion import datasets
from tests.stores import hdf5_files as files

SUCCESS = "next.success"


def old_robosuite(path: Path, lengths: tuple[int, ...] = (9, 6)) -> dict[str, dict[str, np.ndarray]]:
    """As robosuite 0.1 and RoboTurk wrote demonstrations: the parts of the action, and no `actions`."""
    made: dict[str, dict[str, np.ndarray]] = {}
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env"] = "SawyerLift"
        for number, rows in enumerate(lengths, 1):
            rng = np.random.default_rng(number)
            widths = {"states": 8, "joint_velocities": 7, "gripper_actuations": 1, "right_dpos": 3, "right_dquat": 4}
            demo = {name: rng.normal(size=(rows, width)) for name, width in widths.items()}
            group = file.create_group(f"data/demo_{number}")
            group.attrs["model_file"] = f"model_{number}.xml"
            for name, values in demo.items():
                group[name] = values
            made[f"demo_{number}"] = demo
    return made


def isaac_lab(path: Path, outcomes: tuple[bool | None, ...] = (True, False)) -> dict[str, dict[str, np.ndarray]]:
    """As Isaac Lab's recorder writes demonstrations; what became of each is an attribute."""
    made: dict[str, dict[str, np.ndarray]] = {}
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Isaac-Stack-Cube-Franka-v0", "type": 2})
        for number, success in enumerate(outcomes):
            rng = np.random.default_rng(number)
            rows = 4 + number
            widths = {"actions": 7, "obs/actions": 7, "obs/joint_pos": 9, "obs/joint_vel": 9, "obs/object": 39,
                      "obs/eef_pos": 3, "obs/eef_quat": 4, "obs/gripper_pos": 2}  # fmt: skip
            demo = {name: rng.normal(size=(rows, width)).astype(np.float32) for name, width in widths.items()}
            group = file.create_group(f"data/demo_{number}")
            group.attrs["num_samples"] = rows
            if success is not None:
                group.attrs["success"] = success
            for name, values in demo.items():
                group[name] = values
            made[f"demo_{number}"] = demo
    return made


def notes(report: Any) -> str:
    return "\n".join(report.notes)


def test_every_demonstration_of_an_old_robosuite_file_is_an_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = old_robosuite(tmp_path / "demo.hdf5")
    assert main(["inspect", str(tmp_path / "demo.hdf5")]) == 0
    shown = capsys.readouterr().out
    assert "2 groups demo_… without actions, as old robosuite files do" in shown
    assert "ALOHA" not in shown and "fps=50" not in shown
    report = penstock.convert(tmp_path / "demo.hdf5", tmp_path / "out", fps=20)
    assert (report.episodes, report.frames, report.lost) == (2, 15, {})
    whole = [np.concatenate([demo[name] for demo in made.values()]).astype(np.float32)
             for name in ("joint_velocities", "gripper_actuations", "states")]  # fmt: skip
    assert np.array_equal(datasets.values(tmp_path / "out", "action"), np.concatenate(whole[:2], axis=1))
    assert np.array_equal(datasets.values(tmp_path / "out", "observation.environment_state"), whole[2])
    with penstock.open(tmp_path / "demo.hdf5") as store, penstock.open(tmp_path / "out") as converted:
        assert store.episode_starts.tolist() == converted.episode_starts.tolist() == [0, 9, 15]
        for each in (store, converted):
            assert penstock.Transition().bind(each).count == 13


def test_a_demonstration_that_lacks_its_actions_is_lost_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files.robomimic(tmp_path / "demos.hdf5")
    with h5py.File(tmp_path / "demos.hdf5", "r+") as file:
        del file["data/demo_2/actions"]
        file["data/statistics/mean"] = np.zeros(3)  # no demonstration by its name
    report = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out")
    assert report.lost == {"demonstration without actions": 1} and report.exit_code == 3
    assert "lost: 7 rows of 1 demonstration without actions, the first is data/demo_2" in notes(report)
    assert [row["length"] for row in datasets.episodes(tmp_path / "out")] == [5, 6]
    assert main(["convert", str(tmp_path / "demos.hdf5"), str(tmp_path / "again")]) == 3
    assert main(["convert", str(tmp_path / "demos.hdf5"), str(tmp_path / "strict"), "--strict"]) == 1
    assert "data/demo_2" in capsys.readouterr().err
    masked = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "masked", overrides=["hdf5.mask=train"])
    assert masked.lost == {}  # it was not asked for


@pytest.mark.parametrize("rows", [2, None])
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("obs/robot0_eef_pos", "observation.state"),
        ("obs/agentview_image", "observation.images.agentview"),
        ("dones", "next.done"),
    ],
)
def test_a_column_that_does_not_fit_can_be_left_out(name: str, key: str, rows: int | None, tmp_path: Path) -> None:
    """In one demonstration it is too short, or not there at all."""
    made = files.robomimic(tmp_path / "demos.hdf5")
    with h5py.File(tmp_path / "demos.hdf5", "r+") as file:
        del file[f"data/demo_2/{name}"]
        if rows is not None:
            file[f"data/demo_2/{name}"] = made["demo_2"][name][:rows]
    with pytest.raises(StoreError, match=f"data/demo_2/{name}") as caught:
        penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out")
    assert f"leave_out={key};" in str(caught.value.hint)
    report = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out", leave_out=[key])
    assert (report.frames, report.exit_code) == (18, 0)
    assert key not in datasets.info(tmp_path / "out")["features"]
    with pytest.raises(StoreError, match=r"columns=\[…\] does without"):
        penstock.open(tmp_path / "demos.hdf5")


@pytest.mark.parametrize("with_actions", [True, False])
def test_demonstrations_at_the_root(tmp_path: Path, with_actions: bool) -> None:
    name = "actions" if with_actions else "states"
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for number, rows in ((10, 3), (2, 5)):
            file[f"demo_{number}/{name}"] = np.full((rows, 2), number, np.float32)
            file[f"demo_{number}/obs/joint_pos"] = np.full((rows, 4), number, np.float32)
        file["mask/valid"] = np.array([b"demo_10"])
    report = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out", fps=10)
    assert [row["length"] for row in datasets.episodes(tmp_path / "out")] == [5, 3] and report.lost == {}
    assert datasets.values(tmp_path / "out", "observation.state")[:, 0].tolist() == [2] * 5 + [10] * 3
    with penstock.open(tmp_path / "demos.hdf5") as store, penstock.open(tmp_path / "demos.hdf5", mask="valid") as part:
        assert store.episode_starts.tolist() == [0, 5, 8] and part.episode_starts.tolist() == [0, 3]
        assert store.roles["state"] == "obs/joint_pos"


def test_the_first_demonstration_of_a_mask_need_not_be_the_first_of_the_file(tmp_path: Path) -> None:
    files.robomimic(tmp_path / "demos.hdf5")
    with h5py.File(tmp_path / "demos.hdf5", "r+") as file:
        file["mask/late"] = np.array([b"demo_2"])
    report = penstock.convert(tmp_path / "demos.hdf5", tmp_path / "out", overrides=["hdf5.mask=late"])
    assert "observation.environment_state" in datasets.info(tmp_path / "out")["features"]
    assert "left out: it has" not in notes(report)


def test_files_of_different_layouts_are_refused(tmp_path: Path) -> None:
    old_robosuite(tmp_path / "b.hdf5")
    files.robomimic(tmp_path / "c.hdf5")
    with pytest.raises(StoreError, match=r"c\.hdf5: features\.action"):
        penstock.convert([tmp_path / "b.hdf5", tmp_path / "c.hdf5"], tmp_path / "out", fps=20)


def test_groups_of_different_lengths_are_not_taken_as_one_episode(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "runs.hdf5", "w") as file:
        for number, rows in enumerate((4, 7)):
            file[f"run_{number}/pose"] = np.zeros((rows, 3))
    for call in (lambda: penstock.convert(tmp_path / "runs.hdf5", tmp_path / "out", fps=20),
                 lambda: penstock.open(tmp_path / "runs.hdf5")):  # fmt: skip
        with pytest.raises(StoreError, match=r"2 groups hold pose, .*of rows \(run_0 4, run_1 7\)"):
            call()
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        for camera in ("left", "right"):
            file[f"{camera}/pose"] = np.zeros((4, 3))
    report = penstock.convert(tmp_path / "one.hdf5", tmp_path / "out", fps=20)
    assert report.frames == 4


@pytest.mark.parametrize("suffix", [".he5", ".hdf", ".h5", ".hdf5"])
def test_a_directory_that_opens_as_a_store_converts(tmp_path: Path, suffix: str) -> None:
    place = tmp_path / "in"
    place.mkdir()
    for number in range(2):
        files.aloha(place / f"episode_{number}{suffix}", rows=3, raw=True)
    with penstock.open(place) as store:
        assert store.episodes == 2
    assert penstock.convert(place, tmp_path / "out", fps=50).episodes == 2


def test_success_of_a_demonstration_is_true_in_its_last_row(tmp_path: Path) -> None:
    isaac_lab(tmp_path / "isaac.hdf5", (True, False, None))
    report = penstock.convert(tmp_path / "isaac.hdf5", tmp_path / "out", fps=20)
    assert datasets.info(tmp_path / "out")["features"][SUCCESS]["dtype"] == "bool"
    assert datasets.problems(tmp_path / "out", full=True) == []
    expected = [False] * 3 + [True] + [False] * 5 + [False] * 6
    assert datasets.values(tmp_path / "out", SUCCESS).reshape(-1).tolist() == expected
    assert "true in the last row of 1 of 3 episodes; nothing is known of 1" in notes(report)
    with penstock.open(tmp_path / "out") as store:
        assert store.roles["success"] == SUCCESS
    again = penstock.convert(tmp_path / "isaac.hdf5", tmp_path / "small", fps=20, overrides=["rosbag.chunk_size=2"])
    assert again.frames == 15
    assert datasets.values(tmp_path / "small", SUCCESS).reshape(-1).tolist() == expected


def test_success_of_an_aloha_episode_is_an_attribute_of_its_file(tmp_path: Path) -> None:
    files.aloha(tmp_path / "episode_0.hdf5", rows=3, raw=True, success=True)
    files.aloha(tmp_path / "episode_1.hdf5", rows=2, raw=True)
    report = penstock.convert(tmp_path, tmp_path / "out", fps=50)
    assert datasets.values(tmp_path / "out", SUCCESS).reshape(-1).tolist() == [False, False, True, False, False]
    assert "0 of 1 episodes; nothing is known of 1, which count as failed" in notes(report)
    reverse = [tmp_path / "b.hdf5", tmp_path / "c.hdf5"]
    for path, more in zip(reverse, ({}, {"success": False}), strict=True):
        files.aloha(path, rows=2, raw=True, **more)
    report = penstock.convert(reverse, tmp_path / "without", fps=50)
    assert "c.hdf5: success of 1 episodes left out: the data set was started without next.success" in notes(report)


@pytest.mark.parametrize("kind", ["single value", "one row", "every row"])
def test_success_as_a_data_set(tmp_path: Path, kind: str) -> None:
    each = np.array([False, False, True, True])
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["data/demo_0/actions"] = np.zeros((4, 2))
        file["data/demo_0/success"] = {"single value": True, "one row": np.ones(1), "every row": each}[kind]
    report = penstock.convert(tmp_path / "x.hdf5", tmp_path / "out", fps=20)
    expected = each.tolist() if kind == "every row" else [False, False, False, True]
    assert datasets.values(tmp_path / "out", SUCCESS).reshape(-1).tolist() == expected
    assert "success left out" not in notes(report)


@pytest.mark.parametrize(
    "names, state",
    [
        (["observations/joint", "observations/qpos"], ["observations/qpos"]),
        (["obs/joint_pos", "obs/eef_pos", "obs/eef_quat"], ["obs/joint_pos"]),
        (["obs/eef_pos", "obs/eef_quat"], ["obs/eef_pos", "obs/eef_quat"]),
        (["obs/robot0_joint_pos", "obs/robot0_eef_pos", "obs/robot0_gripper_qpos", "obs/robot1_eef_pos"],
         ["obs/robot0_eef_pos", "obs/robot0_gripper_qpos", "obs/robot1_eef_pos"]),
        (["obs/joint_states", "obs/ee_states"], ["obs/joint_states"]),
        (["qpos", "other"], ["qpos"]),
        (["observations"], ["observations"]),
        (["states"], []),
        (["other"], []),
    ],
)  # fmt: skip
def test_loading_and_conversion_choose_the_same_columns(tmp_path: Path, names: list[str], state: list[str]) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for name in (*names, "actions", "rewards", "terminals", "success"):
            file[name] = np.zeros((6, 1 if name in ("rewards", "terminals", "success") else 3))
    with penstock.open(tmp_path / "x.hdf5") as store:
        features = map_columns(store).features
        assert list(store.columns_for("state")) == state
        for role, keys in LEROBOT.items():
            named = features.get(keys[0])
            converted = () if named is None else tuple(source.topic for source in named.sources)
            assert store.columns_for(role) == converted, role


def test_a_replay_buffer_takes_a_state_of_several_columns(tmp_path: Path) -> None:
    made = files.robomimic(tmp_path / "demos.hdf5", (5, 7))
    parts = [f"obs/robot0_{part}" for part in ("eef_pos", "eef_quat", "gripper_qpos")]
    words: dict[str, Any] = {"action_dim": 7, "images": ("agentview_image",), "quiet": True, "output": "numpy"}
    with penstock.MultimodalReplayBuffer(joint_dim=9, image_size=None, **words) as buffer:
        buffer.load_from_hdf5(tmp_path / "demos.hdf5")
        _, joint, action, _, following, *_ = buffer.sample(64)
    states = np.concatenate([np.concatenate([demo[name] for name in parts], axis=1) for demo in made.values()])
    actions = np.concatenate([demo["actions"] for demo in made.values()])
    rows = np.argmin(np.abs(np.asarray(action)[:, None] - actions[None]).sum(axis=2), axis=1)
    assert np.allclose(joint, states[rows]) and following.shape == (64, 9)
    narrow = penstock.MultimodalReplayBuffer(joint_dim=7, **words)
    with narrow, pytest.raises(StoreError, match="gripper_qpos have 9 numbers a row"):
        narrow.load_from_hdf5(tmp_path / "demos.hdf5")
