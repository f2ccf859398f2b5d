"""Rows, paths and columns that are none: told, never guessed."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.demo.recording import Script, write_recording
from penstock.errors import StoreError, UsageError
from tests.stores import hdf5_files as files


@pytest.fixture(scope="module", params=["hdf5", "lerobot"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("asked")
    if request.param == "hdf5":
        path = root / "replay.hdf5"
        files.replay(path)
    else:
        write_recording(root / "run.bag", Script(seconds=1, width=64, height=48))
        path = root / "run"
        penstock.convert(root / "run.bag", path, task="stack the cups")
    with penstock.open(path) as opened:
        yield opened


@pytest.mark.parametrize("rows", [np.array([0.5]), [1.0], np.ones(3, bool), np.array(["1"])])
def test_rows_are_whole_numbers(store: Any, rows: Any) -> None:
    name = store.roles["action"]
    with pytest.raises(StoreError, match="whole numbers") as caught:
        store.numbers(name, rows)
    if np.asarray(rows).dtype == bool:
        assert "flatnonzero" in str(caught.value)


def test_rows_of_every_kind_of_whole_number(store: Any) -> None:
    name = store.roles["action"]
    expected = store.numbers(name, np.array([2, 0], np.int64))
    for rows in ([2, 0], (2, 0), np.array([2, 0], np.uint8), range(2, -1, -2)):
        assert np.array_equal(store.numbers(name, rows), expected)
    assert np.array_equal(store.numbers(name, 2), expected[:1]) and len(store.numbers(name, [])) == 0


def test_an_empty_list_of_columns_is_refused(store: Any) -> None:
    with pytest.raises(StoreError, match=r"columns=\[\]"):
        penstock.open(store.path, columns=[])
    with pytest.raises(StoreError, match="columns"):
        penstock.open(store.path, columns=[1])  # type: ignore[list-item]


@pytest.mark.parametrize("path", [None, 5, b"run.hdf5", ""])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(UsageError, match="is not a path"):
        penstock.open(path)


def test_a_home_directory_is_not_guessed() -> None:
    with pytest.raises(StoreError, match="expanduser"):
        penstock.open("~/nowhere/at/all.hdf5")


def test_what_may_not_be_looked_at_is_an_error_for_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "locked"
    place.mkdir()
    real = os.stat

    def refusing(path: Any, *args: Any, **words: Any) -> os.stat_result:
        if "locked" in os.fsdecode(path) and not os.fsdecode(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path, *args, **words)

    monkeypatch.setattr(os, "stat", refusing)
    for asked in (place, place / "run.hdf5"):
        with pytest.raises(StoreError, match="cannot be read: Permission denied"):
            penstock.open(asked)


def test_a_file_without_rows_says_where_to_look(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "nothing.hdf5"
    h5py.File(path, "w").close()
    with pytest.raises(StoreError, match="no data set with rows") as caught:
        penstock.open(path)
    assert "penstock inspect" not in str(caught.value) and "actions" in str(caught.value)
