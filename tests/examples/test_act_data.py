"""Episodes for a policy: the split, the statistics, ALOHA directories and LeRobot data sets."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import penstock
from penstock.errors import UsageError

torch = pytest.importorskip("torch")

from act import data as act_data  # noqa: E402
from act.columns import choose_columns  # noqa: E402
from act.data import Data, split_episodes, streamed_stats  # noqa: E402
from act.loading import Loading  # noqa: E402

from tests.examples.making import write_walks  # noqa: E402
from tests.examples.running import run  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = Loading(memory="512MiB", threads="1")


def test_the_split_is_of_episodes_and_repeats_itself() -> None:
    split = split_episodes(10, 0.2, seed=3)
    assert sorted([*split.train, *split.val]) == list(range(10)) and len(split.val) == 2
    assert split == split_episodes(10, 0.2, seed=3) and split != split_episodes(10, 0.2, seed=4)
    assert len(split_episodes(2, 0.01, 0).val) == len(split_episodes(2, 0.99, 0).train) == 1
    with pytest.raises(UsageError, match="1 episode"):
        split_episodes(1, 0.2, 0)


def test_statistics_in_blocks_are_those_of_the_whole(reach: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(act_data, "_BLOCK_BYTES", 3 * 14 * 4)  # three rows at a time
    with penstock.open(reach, episodes=[0, 2, 3]) as store:
        found = streamed_stats(store, ["action"])["action"]
        values = store.numbers("action", np.arange(store.rows)).astype(np.float64)
    assert found.count == len(values) == 24
    for name in ("mean", "std", "min", "max"):
        assert np.allclose(getattr(found, name), getattr(values, name)(axis=0), rtol=1e-12)


def test_far_from_zero_no_digits_are_lost() -> None:
    running = act_data._Running()
    values = 1e9 + np.random.default_rng(0).normal(0, 1e-3, (5000, 2))
    for start in range(0, 5000, 700):
        running.add(values[start : start + 700])
    assert np.allclose(running.stats().std, values.std(0), rtol=1e-4)


def test_batches_of_episodes(reach: Path) -> None:
    with Data(reach, 5, 4, 0, SMALL, val_share=0.25) as data:
        assert (data.train.samples, data.val.samples) == (24, 8) and data.image_size == (32, 48)
        batch = next(iter(data.train))
        assert batch["action"].shape == (4, 5, 14) and batch["action_is_pad"].dtype == torch.bool
        assert [batch[name].shape for name in data.columns.cameras] == [(4, 3, 32, 48)] * 4
        assert data.stats["action"].count == 24
        assert "ALOHA episodes: 3 episodes to train (24 samples), 1 to validate (8)" in data.describe()


def test_cameras_may_be_chosen_by_their_own_names(reach: Path) -> None:
    with penstock.open(reach) as store:
        assert choose_columns(store, ["cam_low"]).cameras == ("observations/images/cam_low",)
        with pytest.raises(UsageError, match="cam_nowhere"):
            choose_columns(store, ["cam_nowhere"])


def test_a_lerobot_data_set_is_the_same_to_a_policy(reach: Path, tmp_path: Path) -> None:
    penstock.convert(reach, tmp_path / "set", task="reach")
    with Data(tmp_path / "set", 5, 4, 0, SMALL) as there, Data(reach, 5, 4, 0, SMALL) as here:
        assert there.columns.state == "observation.state" and len(there.columns.cameras) == 4
        assert np.allclose(there.stats["action"].mean, here.stats["action"].mean, rtol=1e-6)
        batches = [next(iter(each.train)) for each in (there, here)]
        assert torch.equal(batches[0]["action"], batches[1]["action"])
        for name, other in zip(there.columns.cameras, here.columns.cameras, strict=True):
            assert torch.equal(batches[0][name], batches[1][other])


def test_numbers_that_hardly_move_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_walks(tmp_path / "data")
    for number in range(4):
        with h5py.File(data / f"episode_{number}.hdf5", "r+") as file:
            file["action"][:, 1] = np.linspace(0, 1e-3, 6)
    assert run(data, tmp_path / "ck") == 0
    stdout = capsys.readouterr().out
    assert "note: action: the spread of 1 of 3 numbers (1) is below 0.01: they are divided by 0.01 instead" in stdout
    kept = json.loads((tmp_path / "ck" / "dataset_stats.json").read_text())
    assert kept["action"]["scale"][1] == 0.01 > 0.001 > kept["action"]["std"][1] > 0
    assert kept["action"]["scale"][0] == kept["action"]["std"][0] and "note: observations/qpos" not in stdout
