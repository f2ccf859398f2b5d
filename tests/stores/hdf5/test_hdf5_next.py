"""Comparing next observations with the rows after them: what a loop over all rows finds, whatever the blocks."""

from __future__ import annotations

import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.conversion.mapping import next_columns
from penstock._src.conversion.mapping.next_columns import NextRows, compare_next, comparing_bytes
from penstock._src.stores.hdf5.store import open_hdf5
from tests.stores import hdf5_files as files

SPECIAL = (0.0, -0.0, 1.0, np.nan, np.inf)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return bool(np.array_equal(one, other, equal_nan=True))


def by_hand(now: np.ndarray, after: np.ndarray, ends: list[int], terminal: set[int]) -> NextRows:
    compared = equal = open_ends = terminal_ends = 0
    for row in range(len(now)):
        if row in ends or row == len(now) - 1:
            if not same(after[row], now[row]):
                open_ends += row not in terminal
                terminal_ends += row in terminal
        else:
            compared += 1
            equal += same(after[row], now[row + 1])
    return NextRows(compared, equal, open_ends, terminal_ends)


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_counts_are_those_of_a_loop_over_all_rows(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 24))
    values = st.lists(st.sampled_from(SPECIAL), min_size=2 * rows, max_size=2 * rows)
    now = np.array(data.draw(values), np.float64).reshape(rows, 2)
    after = np.concatenate([now[1:], now[-1:]])
    for row in data.draw(st.lists(st.integers(0, rows - 1), max_size=6)):
        after[row] = data.draw(st.sampled_from(SPECIAL))
    ends = data.draw(st.lists(st.integers(0, rows - 1), unique=True, max_size=5))
    terminal = set(data.draw(st.lists(st.sampled_from(ends), unique=True))) if ends else set()
    block_bytes = data.draw(st.sampled_from([1, 16, 40, 1 << 20]))
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        patch.setattr(next_columns, "BLOCK_BYTES", block_bytes)
        with h5py.File(Path(place) / "x.hdf5", "w") as file:
            chunks = data.draw(st.sampled_from([None, (1, 2), (5, 1)]))
            file.create_dataset("observations", data=now, chunks=chunks and (min(chunks[0], rows), chunks[1]))
            file["next_observations"], file["actions"] = after, np.zeros((rows, 1))
            file["terminals"] = np.isin(np.arange(rows), list(terminal))
            file["timeouts"] = np.isin(np.arange(rows), [row for row in ends if row not in terminal])
        with open_hdf5(Path(place) / "x.hdf5") as store:
            found = compare_next(store, "observations", "next_observations")
    assert found == by_hand(now, after, ends, terminal)


def test_demonstrations_are_compared_each_within_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for number, rows in enumerate((1, 4, 3)):
            now = np.arange(rows * 2.0).reshape(rows, 2) + 10 * number
            file[f"data/demo_{number}/actions"], file[f"data/demo_{number}/obs/a"] = np.zeros((rows, 1)), now
            file[f"data/demo_{number}/next_obs/a"] = now + 2
            file[f"data/demo_{number}/dones"] = np.arange(rows) == (rows - 1 if number else rows)
    with open_hdf5(tmp_path / "x.hdf5") as store:
        found = compare_next(store, "obs/a", "next_obs/a")
        assert found == NextRows(compared=5, equal=5, open_ends=1, terminal_ends=2) and not found.is_row_after
        monkeypatch.setattr(next_columns, "BLOCK_BYTES", 5 * 16)
        part = compare_next(store, "obs/a", "next_obs/a", most_bytes=40)
        assert part == NextRows(compared=3, equal=3, open_ends=1, terminal_ends=1, is_whole=False)


def test_what_comparing_holds_follows_the_longest_row(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        for number, longest in enumerate((10, 3000)):
            for name in ("obs/cam", "next_obs/cam"):
                data = file.create_dataset(f"data/demo_{number}/{name}", (4,), dtype=h5py.vlen_dtype(np.uint8))
                for row, image in enumerate(files.encoded(4, 1)):
                    data[row] = np.pad(image, (0, longest - row))
            file[f"data/demo_{number}/obs/wide"] = file[f"data/demo_{number}/next_obs/wide"] = np.zeros((4, 1 << 18))
            file[f"data/demo_{number}/obs/few"] = file[f"data/demo_{number}/next_obs/few"] = np.zeros((4, 3))
            file[f"data/demo_{number}/actions"] = np.zeros((4, 1))
    with open_hdf5(tmp_path / "x.hdf5") as store:
        assert 3000 <= comparing_bytes(store, "obs/cam", "next_obs/cam") < 200_000
        numbers = comparing_bytes(store, "obs/wide", "next_obs/wide")
        assert next_columns.BLOCK_BYTES < numbers < 8 * next_columns.BLOCK_BYTES
        assert comparing_bytes(store, "obs/few", "next_obs/few") < 1024  # no more than there is to compare
