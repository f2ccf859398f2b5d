"""Fault 17: an HDF5 file that is cut, damaged, or left open for writing.

Expected: our error within seconds, never a crash of the process that asked; what one row lost is counted.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock._src.stores.hdf5 import guard as hdf5_guard
from penstock._src.stores.store import Scratch
from penstock.errors import PenstockError, StoreCorrupt, StoreError
from tests.stores import hdf5_files as files


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "whole.h5"
    files.aloha(path, rows=4, fps=10, task="stack")
    with h5py.File(path, "r+") as file:
        file.create_dataset("observations/packed", data=np.ones((4, 3)), chunks=(2, 3), compression="gzip")
    return path.read_bytes()


@settings(max_examples=8)
@given(data=st.data())
def test_flipped_and_cut_files_are_read_or_refused(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "damaged.h5"
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))] if data.draw(st.booleans()) else whole)
    for at in data.draw(st.lists(st.integers(0, max(len(damaged) - 1, 0)), max_size=6)):
        if damaged:
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(damaged)
    try:
        with penstock.open(path) as store:
            for name, column in store.columns.items():
                rows = np.arange(min(store.rows, 4))
                if column.kind == "numbers" and column.row_bytes + store.scratch_bytes([name]) < 1 << 26:
                    store.numbers(name, rows)
                if column.is_image:
                    list(store.images(name).read(rows.tolist(), Scratch()))
    except PenstockError as error:
        assert str(path) in error.message or "rows" in error.message


@pytest.mark.parametrize("keep", [0, 7, 60, 5000])
def test_a_cut_file_is_called_cut(whole: bytes, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.hdf5"
    path.write_bytes(whole[:keep])
    with pytest.raises(StoreError, match=r"is cut|not an HDF5 file|0 bytes") as error:
        penstock.convert(path, tmp_path / "out", fps=10)
    if keep == 5000:
        assert f"it has 5,000 of {len(whole):,} bytes" in str(error.value)


def test_a_file_left_open_for_writing_is_reported_to_be(tmp_path: Path) -> None:
    path = tmp_path / "open.hdf5"
    script = (
        "import h5py, os, sys\n"
        "file = h5py.File(sys.argv[1], 'w', libver='latest')\n"
        "file['action'] = [[1.0, 2.0]]\n"
        "file.flush()\n"
        "os._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], timeout=60, check=False).returncode == 9
    with pytest.raises(StoreCorrupt, match="left open for writing"):
        penstock.convert(path, tmp_path / "out", fps=10)


@pytest.mark.skipif("HDF5_USE_FILE_LOCKING" in os.environ, reason="HDF5 was told whether to lock files")
def test_a_file_that_is_being_written_is_reported_to_be(tmp_path: Path) -> None:
    path = tmp_path / "busy.hdf5"
    with h5py.File(path, "w") as file:
        file["action"] = np.zeros((3, 2))
        file.flush()
        script = (
            "import sys\nimport penstock\nfrom penstock.errors import StoreError\n"
            "try:\n    penstock.open(sys.argv[1])\nexcept StoreError as error:\n    print(error.message)\n"
        )
        environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
        done = subprocess.run(
            [sys.executable, "-c", script, str(path)], env=environment, timeout=120, capture_output=True, check=False
        )
    assert b"is being written by another process" in done.stdout, done.stderr


def test_a_heap_of_zeros_does_not_hang_the_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HDF5 2.0 walks such a heap for ever; other versions may refuse it."""
    path = tmp_path / "zeros.h5"
    with h5py.File(path, "w") as file:
        file["action"] = np.zeros((4, 2))
        file.attrs["task"] = "stack the cups"
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"GCOL") + 16
    damaged[at : at + 64] = bytes(64)
    path.write_bytes(damaged)
    monkeypatch.setattr(hdf5_guard, "FORK_TIMEOUT_S", 1.0)
    monkeypatch.setattr(hdf5_guard, "TIMEOUT_S", 2.0)
    try:
        with penstock.open(path) as store:
            assert not store.task(0)
    except StoreCorrupt as error:
        assert "does not return" in error.message


def test_a_crash_in_the_child_is_an_error_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fine.h5"
    files.aloha(path, rows=2)
    (tmp_path / "h5py.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(hdf5_guard, "can_fork", lambda: False)  # a fork has the library already
    with pytest.raises(StoreCorrupt, match=r"it crashes HDF5 \(SIGSEGV\)"):
        penstock.open(path)


def test_a_damaged_row_of_its_own_length_is_lost_alone(tmp_path: Path) -> None:
    rows = files.encoded(6, 1)
    path = tmp_path / "own.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("observations/images/cam", (6,), dtype=h5py.vlen_dtype(np.uint8))
        for i, row in enumerate(rows):
            data[i] = row
        file["action"] = np.zeros((6, 2))
    damaged = bytearray(path.read_bytes())
    at = damaged.index(rows[3].tobytes()) - 16
    damaged[at : at + 16] = bytes(16)
    path.write_bytes(damaged)
    report = penstock.convert(path, tmp_path / "out", fps=10)
    lost = report.lost["unusable image: observations/images/cam"]
    assert report.exit_code == 3 and lost >= 1 and report.frames == 6 - lost
