"""Cameras that only some files have, that have no three channels, or are named twice; a state of another shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from act.checkpoint import read_checkpoint  # noqa: E402

from tests.examples.making import ROWS, walk, write_episode, write_walks  # noqa: E402
from tests.examples.running import run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGES = "observations/images"


def _with(directory: Path, number: int, name: str, values: Any) -> None:
    with h5py.File(directory / f"episode_{number}.hdf5", "r+") as file:
        if name in file:
            del file[name]
        if values is not None:
            file[name] = values


def _pixels(channels: int) -> Any:
    return np.random.default_rng(channels).integers(0, 256, (ROWS, 32, 48, channels), dtype=np.uint8)


def _cameras(directory: Path) -> list[str]:
    return list(read_checkpoint(directory / "policy_last.ckpt")["columns"]["cameras"])


def test_a_camera_that_the_first_file_lacks_is_not_dropped_without_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_walks(tmp_path / "data", cameras=("cam_high", "cam_low"))
    _with(data, 0, f"{IMAGES}/cam_low", None)
    assert run(data, tmp_path / "ck") == 2
    stderr = capsys.readouterr().err
    assert f"{IMAGES}/cam_low is left out: episode_0.hdf5 has none, episode_1.hdf5 and 2 more have" in stderr
    assert "→ --cameras cam_high trains with those that all files have, --episodes" in stderr
    assert run(data, tmp_path / "one", "--cameras", "cam_high") == 0
    assert run(data, tmp_path / "two", "--episodes", "1-3") == 0 and len(_cameras(tmp_path / "two")) == 2


def test_a_run_that_was_begun_without_a_camera_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_walks(tmp_path / "data")
    _with(data, 2, f"{IMAGES}/cam_low", _pixels(3))
    monkeypatch.setattr("act.data.check_cameras", lambda *_: None)  # as it was begun
    assert run(data, tmp_path / "ck") == 0
    monkeypatch.undo()
    assert run(data, tmp_path / "ck", "--resume", "--num_epochs", "2") == 0
    assert f"note: {IMAGES}/cam_low is left out: episode_0.hdf5 has none" in capsys.readouterr().out


def test_what_else_a_store_leaves_out_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_walks(tmp_path / "data")
    _with(data, 1, "observations/effort", walk(0, 3))
    assert run(data, tmp_path / "ck") == 0
    assert "note: observations/effort is left out: episode_0.hdf5 has none" in capsys.readouterr().out


@pytest.mark.parametrize(("channels", "message"), [(1, "1 channel"), (4, "4 channels")])
def test_a_camera_without_three_channels_is_reported(
    channels: int, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_walks(tmp_path / "data")
    for number in range(4):
        _with(data, number, f"{IMAGES}/odd", _pixels(channels))
    note = f"{IMAGES}/odd has {message}: not used"
    assert run(data, tmp_path / "ck") == 0
    assert f"note: {note}\n" in capsys.readouterr().out and _cameras(tmp_path / "ck") == [f"{IMAGES}/cam_high"]
    assert run(data, tmp_path / "named", "--cameras", "odd") == 2
    assert f"has no camera 'odd' of 3 channels: {note}" in capsys.readouterr().err
    for number in range(4):
        _with(data, number, f"{IMAGES}/cam_high", None)
    assert run(data, tmp_path / "alone") == 2
    assert f"has no camera of 3 channels: ACT looks at images\n  → {note}" in capsys.readouterr().err


def test_a_camera_that_is_named_twice_is_one(reach: Path, tmp_path: Path) -> None:
    words = f"cam_high, {IMAGES}/cam_high , cam_low,cam_high"
    assert run(reach, tmp_path / "ck", "--cameras", words) == 0
    assert _cameras(tmp_path / "ck") == [f"{IMAGES}/cam_high", f"{IMAGES}/cam_low"]


@pytest.mark.parametrize("cameras", [[], ["--cameras", "cam_high"]])
def test_no_cameras_do_without_the_state(
    cameras: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_walks(tmp_path / "data")
    write_episode(data / "episode_2.hdf5", walk(2, 5), walk(102, 3))
    assert run(data, tmp_path / "ck", *cameras) == 1
    stderr = capsys.readouterr().err
    assert "a row of observations/qpos is" in stderr and "--cameras A,B" not in stderr
    assert "→ --episodes 0-40,45 opens the others; a policy needs observations/qpos whole and in one shape" in stderr
    write_episode(data / "episode_2.hdf5", walk(2, 3), walk(102, 3), width=64)  # of a camera it is true
    assert run(data, tmp_path / "ck", *cameras) == 1
    stderr = capsys.readouterr().err
    assert "--cameras A,B does without the column" in stderr  # it has no other
    rich = write_walks(tmp_path / "rich", cameras=("cam_high", "cam_low", "cam_back"))
    with h5py.File(rich / "episode_1.hdf5", "r+") as file:
        del file[f"{IMAGES}/cam_low"]
    assert run(rich, tmp_path / "ck") == 1
    assert "--cameras cam_back,cam_high does without it" in capsys.readouterr().err
