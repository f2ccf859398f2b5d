"""Flat steps end wherever a column of ends says so."""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock._src.stores.hdf5.store import open_hdf5
from penstock._src.stores.roles import TERMINALS, TIMEOUTS
from penstock.errors import StoreError

ROWS = 12
ENDS = (*TERMINALS, *TIMEOUTS)


def write(path: Path, ends: dict[str, list[int]]) -> Path:
    with h5py.File(path, "w") as file:
        file["actions"] = np.zeros((ROWS, 2), np.float32)
        for name, rows in ends.items():
            file[name] = np.isin(np.arange(ROWS), rows)
    return path


def test_dones_end_what_terminals_do_not(tmp_path: Path) -> None:
    path = write(tmp_path / "steps.hdf5", {"terminals": [], "dones": [3, 8]})
    with open_hdf5(path) as store:
        assert store.episode_starts.tolist() == [0, 4, 9, 12]
        assert store.ends_terminal is not None and not store.ends_terminal.any()
        assert store.roles["terminal"] == "terminals"
        assert "2 ends by dones alone, not by terminals: taken as cut off by a time limit" in store.notes
        assert not any(note.startswith("no timeouts") for note in store.notes), "dones tells them"
        window = penstock.Transition(next_columns=["actions"])
        with penstock.Loader(store, window, batch_size=1, shuffle=False, output="numpy") as loader:
            assert [int(batch["index"][0]) for batch in loader] == [0, 1, 2, 4, 5, 6, 7, 9, 10]
    write(path, {"terminals": [3], "dones": [3, 8], "timeouts": [8]})
    with open_hdf5(path, columns=["actions"], check=False) as store:
        assert store.episode_starts.tolist() == [0, 4, 9, 12]
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == [True, False, False]
        assert not any("dones" in note for note in store.notes)


@settings(max_examples=40, deadline=None)
@given(ends=st.dictionaries(st.sampled_from(ENDS), st.lists(st.integers(0, ROWS - 1)), min_size=1))
def test_a_store_is_cut_at_every_end(ends: dict[str, list[int]]) -> None:
    stops = sorted({row + 1 for rows in ends.values() for row in rows} | {ROWS})
    with tempfile.TemporaryDirectory() as place:
        path = write(Path(place) / "steps.hdf5", ends)
        with open_hdf5(path, check=False) as store:
            named = ", ".join(name for name in ENDS if name in ends)
            assert store.episodes_from == f"flat steps: {named} say where episodes end"
            assert store.episode_starts.tolist() == [0, *stops]
            first = next((name for name in TERMINALS if name in ends), None)
            if first is None:
                assert store.ends_terminal is None
            else:
                assert store.ends_terminal is not None
                assert store.ends_terminal.tolist() == [stop - 1 in ends[first] for stop in stops]


def test_ends_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "steps.hdf5", {"terminals": [3]})
    with h5py.File(path, "a") as file:
        file["dones"] = np.array([b"no"] * ROWS)
    with pytest.raises(StoreError, match=r"dones is \(12,\), one value for each of 12 rows expected"):
        open_hdf5(path, check=False)
