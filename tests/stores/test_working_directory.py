"""A store that was opened by a relative path goes on reading the same files wherever the process goes."""

from __future__ import annotations

import pickle
from pathlib import Path

import h5py
import numpy as np
import pytest

import penstock
from tests.stores.lerobot import test_ends_terminal

ROWS = np.array([3, 0, 5])


def lerobot(root: Path, value: int) -> None:
    """Episodes whose states are their number; `value` of them are terminal."""
    test_ends_terminal.make(root, tuple(number < value for number in range(3)))


def hdf5(root: Path, value: int, count: int) -> None:
    root.mkdir()
    for number in range(count):
        with h5py.File(root / f"episode_{number}.hdf5", "w") as file:
            file["action"] = np.full((6, 2), value, np.float32)
            file.create_dataset("packed", data=np.full((6, 2), value), chunks=(2, 2), compression="lzf")


@pytest.mark.parametrize("count", [1, 20], ids=["one file", "many files"])
@pytest.mark.parametrize("check", [True, False])
def test_hdf5(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, check: bool) -> None:
    for place, value in (("here", 1), ("there", 2)):
        (tmp_path / place).mkdir()
        hdf5(tmp_path / place / "set", value, count)
    monkeypatch.chdir(tmp_path / "here")
    with penstock.open("set", check=check) as store:
        print_of = store.fingerprint("action")
        monkeypatch.chdir(tmp_path / "there")
        assert str(store.path) == "set" and "'set'" in repr(store), "as the user spells it"
        with pickle.loads(pickle.dumps(store)) as other:
            for each in (store, other):
                for name in ("action", "packed"):
                    assert (each.numbers(name, ROWS) == 1).all()
                assert each.fingerprint("action") == print_of
                assert each.file_of(0) == tmp_path / "here" / "set" / "episode_0.hdf5"


def test_lerobot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, value in (("here", 1), ("there", 2)):
        (tmp_path / place).mkdir()
        lerobot(tmp_path / place / "set", value)
    monkeypatch.chdir(tmp_path / "here")
    with penstock.open("set") as store:
        print_of = store.fingerprint("next.done")
        monkeypatch.chdir(tmp_path / "there")
        assert str(store.path) == "set"
        with pickle.loads(pickle.dumps(store)) as other:
            for each in (store, other):
                assert each.ends_terminal is not None and each.ends_terminal.tolist() == [True, False, False]
                assert each.fingerprint("next.done") == print_of
                assert each.texts("task", np.array([0])) == ["x"]
