"""What kind of file it is, said in words; channels first or last; what is an image."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from penstock._src.cli import main
from penstock._src.stores.hdf5.store import open_hdf5
from penstock.errors import StoreError
from tests.stores import hdf5_files as files

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "hdf5"


def test_layouts_are_distinguished(tmp_path: Path) -> None:
    files.aloha(tmp_path / "aloha.h5", rows=3)
    files.robomimic(tmp_path / "demos.h5")
    files.replay(tmp_path / "replay.h5", first=True)
    expected = {"aloha": [3], "robomimic": [5, 7, 6], "replay": [4, 7, 4]}
    for name, kind in (("aloha", "aloha"), ("demos", "robomimic"), ("replay", "replay")):
        with open_hdf5(tmp_path / f"{name}.h5") as store:
            assert store.layout == kind and store.episodes_from
            assert np.diff(store.episode_starts).tolist() == expected[kind]
            if name == "replay":
                assert store.columns["observations/left_image"].why.endswith("channels first on disk, given as a "
                                                                             "transposed view")  # fmt: skip
            if name == "aloha":
                assert store.columns["observations/images/cam_high"].encoding == "jpeg"


def test_without_actions_an_episode_has_the_rows_of_most_data_sets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["language_raw"] = np.array([b"put the cup away"])
        file["master/joint_position"] = file["puppet/joint_position"] = np.zeros((9, 7))
    with open_hdf5(tmp_path / "x.h5") as store:
        assert (store.rows, list(store.columns)) == (9, ["master/joint_position", "puppet/joint_position"])


def test_channels_that_may_be_first_or_last_are_not_guessed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images/cam"] = np.zeros((2, 3, 64, 3), np.uint8)
        file["images/deep"] = np.zeros((2, 10, 64, 1), np.uint8)
        file["action"] = np.zeros((2, 2))
    with open_hdf5(tmp_path / "x.h5") as store, pytest.raises(StoreError, match=r"hdf5\.channels=last"):
        store.column("images/cam")
    with open_hdf5(tmp_path / "x.h5", channels="first") as store:
        assert store.columns["images/cam"].shape == (64, 3, 3) and store.columns["images/deep"].shape == (10, 64, 1)


def test_a_mask_that_is_not_there(tmp_path: Path) -> None:
    files.robomimic(tmp_path / "demos.h5")
    with open_hdf5(tmp_path / "demos.h5", mask="train") as store:
        assert [store.episode_label(number) for number in range(2)] == ["data/demo_0", "data/demo_10"]
    with pytest.raises(StoreError, match="has no mask/valid"):
        open_hdf5(tmp_path / "demos.h5", mask="valid")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared recordings are not here")
def test_files_that_others_recorded() -> None:
    expected = {
        "offline_rl_flat": ("replay", 20_000),
        "offline_rl_empty": ("replay", 0),
        "robosuite_lift_panda": ("robomimic", 412),
    }
    for name, (kind, rows) in expected.items():
        path = SHARED / f"{name}.hdf5"
        with h5py.File(path) as oracle, open_hdf5(path) as store:
            assert (store.layout, store.rows) == (kind, rows)
            group = "data/demo_1/" if kind == "robomimic" else ""
            for column in store.columns:
                middle = np.arange(store.rows // 2, store.rows)
                assert np.array_equal(store.numbers(column, middle), oracle[group + column][store.rows // 2 :])


def test_inspect_says_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files.aloha(tmp_path / "episode_0.hdf5", rows=3)
    assert main(["inspect", str(tmp_path / "episode_0.hdf5")]) == 0
    shown = capsys.readouterr().out
    assert "one episode" in shown and "contiguous: one run of bytes" in shown and "give fps=50" in shown
    assert main(["inspect", str(tmp_path), "fps=50", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["conversion"]["features"]["observation.images.cam_high"]["stored_as"] == "copied"
    assert main(["inspect", str(tmp_path / "episode_0.hdf5"), "fps=50", "--suggest-config"]) == 0
    assert "topic: observations/qpos" in capsys.readouterr().out
