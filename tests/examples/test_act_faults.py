"""Numbers that are none are refused before the first step; a run that diverges keeps its last good checkpoint."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from act.checkpoint import read_checkpoint, write_json  # noqa: E402
from act.train import Trainer  # noqa: E402

from tests.examples.making import write_walks  # noqa: E402
from tests.examples.running import run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def _spoil(directory: Path, number: int, column: str, row: int, value: float) -> None:
    with h5py.File(directory / f"episode_{number}.hdf5", "r+") as file:
        file[column][row, 1] = value


@pytest.mark.parametrize("number", range(4))  # one of them validates
def test_nan_is_refused_on_both_sides_of_the_split(
    number: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_walks(tmp_path / "data")
    _spoil(data, number, "observations/qpos", 3, math.nan)
    _spoil(data, number, "observations/qpos", 5, math.inf)
    assert run(data, tmp_path / "ck") == 1
    stderr = capsys.readouterr().err
    assert f"2 values are NaN or infinity in observations/qpos, the first in row 3 of episode {number}\n" in stderr
    left = {0: "1-3", 1: "0,2-3", 2: "0-1,3", 3: "0-2"}[number]
    assert f"→ mend episode {number}, or train without: --episodes {left}\n" in stderr
    assert not list((tmp_path / "ck").iterdir())
    assert run(data, tmp_path / "ck", "--episodes", left) == 0


def test_both_columns_are_named_and_two_episodes_must_be_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = write_walks(tmp_path / "data")
    for number in (0, 1, 3):
        _spoil(data, number, "action", 0, -math.inf)
    _spoil(data, 1, "observations/qpos", 2, math.nan)
    assert run(data, tmp_path / "ck") == 1
    stderr = capsys.readouterr().err
    assert (
        "1 value is NaN" in stderr
        and "3 values are NaN or infinity in action, the first in row 0 of episode 0" in stderr
    )
    assert "→ mend episodes 0-1,3\n" in stderr


def test_json_has_no_bare_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", [{"l1": math.nan, "best": [math.inf, 1.5]}])
    assert json.loads((tmp_path / "a.json").read_text()) == [{"l1": None, "best": [None, 1.5]}]


def test_a_run_that_diverges_keeps_the_last_good_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, train_step = write_walks(tmp_path / "data"), Trainer._train_step

    def spoilt(self: Trainer, batch: dict[str, torch.Tensor]) -> None:
        train_step(self, batch)
        if self.step == 3:
            self.sums[0] = math.nan

    monkeypatch.setattr(Trainer, "_train_step", spoilt)
    words = ["--batch_size", "3", "--log_every", "0", "--amp"]
    assert run(data, tmp_path / "ck", *words, "--save_every", "1") == 1
    stderr = capsys.readouterr().err
    assert "epoch 0, step 4: the loss is nan: training has diverged; policy_last.ckpt of step 3 is kept\n" in stderr
    assert "→ train anew, slower and without --amp: the same options with --overwrite --lr 0.0001\n" in stderr
    assert read_checkpoint(tmp_path / "ck" / "policy_last.ckpt")["step"] == 3
    assert run(data, tmp_path / "none", *words) == 1
    assert "step 6: the loss is nan: training has diverged; there is no checkpoint yet" in capsys.readouterr().err
    assert run(data, tmp_path / "line", *words, "--log_every", "4") == 1  # a line that is due looks at it, too
    assert "step 4: the loss is nan" in capsys.readouterr().err
    monkeypatch.undo()
    assert run(data, tmp_path / "ck", *words, "--overwrite", "--lr", "0.0001") == 0  # the hint can be followed


def test_weights_that_a_last_step_spoilt_are_not_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, train_step = write_walks(tmp_path / "data"), Trainer._train_step

    def spoilt(self: Trainer, batch: dict[str, torch.Tensor]) -> None:
        train_step(self, batch)
        if self.step == 2:
            next(self.policy.parameters()).data.view(-1)[0] = math.inf

    monkeypatch.setattr(Trainer, "_train_step", spoilt)
    assert run(data, tmp_path / "ck", "--save_every", "3", "--log_every", "0", "--batch_size", "3") == 1
    assert "is no longer finite: training has diverged" in capsys.readouterr().err
    assert not (tmp_path / "ck" / "policy_last.ckpt").exists()


def test_a_validation_that_is_none_closes_no_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "validate", lambda self: {"val_l1": math.inf, "val_mean_l1": 1.0})
    assert run(write_walks(tmp_path / "data"), tmp_path / "ck") == 1
    assert "the validation's l1 is inf: training has diverged" in capsys.readouterr().err
    assert not (tmp_path / "ck" / "policy_last.ckpt").exists()


def test_a_broken_image_is_reported_with_the_episodes_that_are_left(
    reach: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(shutil.copytree(reach, tmp_path / "data"))
    with h5py.File(data / "episode_2.hdf5", "r+") as file:
        images = file["observations/images/cam_low"]
        images[5] = np.frombuffer(b"junk" * (images.shape[1] // 4 + 1), np.uint8)[: images.shape[1]]
    assert run(data, tmp_path / "ck") == 1
    stderr = capsys.readouterr().err
    assert "(row 5 of episode 2)" in stderr and "on_error" not in stderr
    assert "→ mend episode 2, or train without: --episodes 0-1,3\n" in stderr
    assert run(data, tmp_path / "ck", "--episodes", "0-1,3") == 0
