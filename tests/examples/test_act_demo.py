"""`penstock demo act`: the same episodes each time, a task that images tell, files as ALOHA's are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.cli import main
from penstock._src.demo.act import CAMERAS, ReachScript, ReachTask, write_episodes

SMALL = ReachScript(episodes=3, rows=6, height=32, width=48)


def _bytes(directory: Path) -> dict[str, bytes]:
    import h5py

    found: dict[str, bytes] = {}
    for path in sorted(directory.iterdir()):
        with h5py.File(path) as file:
            file.visititems(
                lambda name, each, path=path: (
                    found.update({f"{path.name}/{name}": each[()].tobytes()}) if hasattr(each, "shape") else None
                )
            )
    return found


def test_episodes_depend_on_the_seed_and_nothing_else(tmp_path: Path) -> None:
    write_episodes(tmp_path / "one", SMALL, threads=1)
    write_episodes(tmp_path / "two", SMALL, threads=3)
    write_episodes(tmp_path / "other", ReachScript(episodes=3, rows=6, height=32, width=48, seed=1))
    one, two, other = (_bytes(tmp_path / name) for name in ("one", "two", "other"))
    assert one == two and len(one) == 3 * 7
    assert one.keys() == other.keys() and all(one[name] != other[name] for name in one if "qvel" not in name)


def test_a_store_finds_four_jpeg_cameras_and_the_roles(tmp_path: Path) -> None:
    assert main(["demo", "act", "--out", str(tmp_path / "d"), "--episodes", "2", "--rows", "5", "--size", "32x48"]) == 0
    with penstock.open(tmp_path / "d") as store:
        assert store.kind == "ALOHA episodes" and (store.rows, store.episodes, store.fps) == (10, 2, 50.0)
        assert store.roles["state"] == "observations/qpos" and store.roles["action"] == "action"
        cameras = {name.rsplit("/", 1)[-1]: column for name, column in store.columns.items() if column.is_image}
        assert set(cameras) == set(CAMERAS)
        assert {(column.encoding, column.shape) for column in cameras.values()} == {("jpeg", (32, 48, 3))}
        assert store.columns["action"].shape == (14,)


def test_every_camera_shows_where_a_target_is() -> None:
    task = ReachTask(ReachScript(height=48, width=64), seed=3)
    for _ in range(40):  # hands are at the targets: the wrist cameras see them, too
        task.step(task.expert())
    before = task.images()
    for side, shown in (("left", ("cam_high", "cam_low", "cam_left_wrist")), ("right", ("cam_right_wrist",))):
        task.targets[side] = task.targets[side] + np.array([0.06, 0.05])
        after = task.images()
        assert all((before[camera] != after[camera]).any() for camera in shown)


def test_the_demonstrator_reaches_its_targets_and_goals_differ() -> None:
    goals = []
    for seed in range(8):
        task = ReachTask(SMALL, seed)
        assert not task.reached
        for _ in range(60):
            task.step(task.expert())
        assert task.reached
        goals.append(task.qpos)
    assert np.std(goals, axis=0)[[0, 1, 7, 8]].min() > 0.1  # shoulders and elbows: only the image tells them


def test_nothing_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "episode_0.hdf5").write_bytes(b"precious")
    assert main(["demo", "act", "--out", str(tmp_path)]) == 1
    assert (tmp_path / "episode_0.hdf5").read_bytes() == b"precious"
    assert "is left alone" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--size", "big"], ["--rows", "1"], ["--episodes", "0"], ["--seed", "-1"]])
def test_a_wrong_call_exits_2_before_it_makes_anything(words: list[str], tmp_path: Path) -> None:
    assert main(["demo", "act", "--out", str(tmp_path / "here"), *words]) == 2
    assert not (tmp_path / "here").exists()
