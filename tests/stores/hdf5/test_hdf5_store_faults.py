"""Faults 16 and 17 for stores: other files are refused by name, damage is our error, and never a crash or a hang."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.stores.hdf5 import column as hdf5_column
from penstock._src.stores.hdf5 import guard as hdf5_guard
from penstock._src.stores.hdf5.store import Hdf5Store, open_hdf5
from penstock._src.stores.store import Scratch
from penstock.errors import ExternalRefused, PenstockError, StoreCorrupt, StoreError
from tests.stores import hdf5_files as files

SECRET = np.arange(12.0).reshape(6, 2)


def elsewhere(tmp_path: Path, kind: str) -> Path:
    """A file whose action lies somewhere else."""
    with h5py.File(tmp_path / "secret.h5", "w") as other:
        other["values"] = SECRET
    (tmp_path / "secret.bin").write_bytes(SECRET.tobytes())
    path = tmp_path / "run.hdf5"
    with h5py.File(path, "w") as file:
        file["observations/qpos"] = np.zeros((6, 3))
        if kind == "link":
            file["action"] = h5py.ExternalLink("secret.h5", "/values")
        elif kind == "storage":
            place = [(str(tmp_path / "secret.bin"), 0, h5py.h5f.UNLIMITED)]
            file.create_dataset("action", (6, 2), dtype="f8", external=place)
        else:
            layout = h5py.VirtualLayout((6, 2), dtype="f8")
            layout[:] = h5py.VirtualSource(str(tmp_path / "secret.h5"), "values", (6, 2))
            file.create_virtual_dataset("action", layout)
    return path


@pytest.mark.parametrize("kind", ["link", "storage", "virtual"])
def test_other_files_are_refused_by_name_and_read_when_allowed(tmp_path: Path, kind: str) -> None:
    path = elsewhere(tmp_path, kind)
    with pytest.raises(ExternalRefused, match=r"secret\.") as refused:
        open_hdf5(path, check=kind == "link")
    assert "secret." in refused.value.target and "allow_external=True" in str(refused.value)
    with open_hdf5(path, allow_external=True, check=False) as store:
        rows = np.array([5, 0, 5], np.int64)
        assert np.array_equal(store.numbers("action", rows), SECRET[rows])
        assert store.columns["action"].way == "library"


def test_a_link_in_a_later_file_is_refused_too(tmp_path: Path) -> None:
    root = tmp_path / "episodes"
    root.mkdir()
    for number in range(3):
        files.aloha(root / f"episode_{number}.hdf5", 3)
    with h5py.File(tmp_path / "secret.h5", "w") as other:
        other["values"] = np.zeros((3, 14))
    with h5py.File(root / "episode_2.hdf5", "r+") as file:
        del file["observations/qpos"]
        file["observations/qpos"] = h5py.ExternalLink("../secret.h5", "/values")
    with pytest.raises(ExternalRefused, match=r"episode_2.*secret\.h5"):
        open_hdf5(root)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "whole.h5"
    files.aloha(path, rows=4, fps=10)
    with h5py.File(path, "r+") as file:
        file.create_dataset("observations/packed", data=np.ones((4, 3)), chunks=(2, 3), compression="gzip")
    return path.read_bytes()


def read_all(store: Hdf5Store) -> None:
    rows = np.arange(store.rows, dtype=np.int64)
    for name, column in store.columns.items():
        if column.is_image:
            for _ in store.images(name).read(rows.tolist(), Scratch()):
                pass
        else:
            store.numbers(name, rows)


@settings(max_examples=8, deadline=None)
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
        with open_hdf5(path) as store:
            if store.rows < 1000:
                read_all(store)
    except PenstockError as error:
        assert "damaged.h5" in error.message


def test_a_file_left_open_for_writing_is_reported_to_be(tmp_path: Path) -> None:
    path = tmp_path / "open.hdf5"
    script = (
        "import h5py, os, sys\nfile = h5py.File(sys.argv[1], 'w', libver='latest')\n"
        "file['action'] = [[1.0, 2.0]]\nfile.flush()\nos._exit(9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(path)], timeout=60, check=False).returncode == 9
    with pytest.raises(StoreCorrupt, match=r"open\.hdf5 was left open for writing"):
        open_hdf5(path)


@pytest.mark.parametrize(
    ("harm", "text"),
    [
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", r"it crashes HDF5 \(SIGSEGV\)"),
        ("import time\ntime.sleep(600)\n", "does not return"),
        ("raise SystemExit(4)\n", "cannot be read: exit code 4"),
    ],
)
def test_a_child_that_crashes_or_hangs_is_an_error_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str, text: str
) -> None:
    for number in range(2):
        files.aloha(tmp_path / f"episode_{number}.h5", rows=2)
    (tmp_path / "h5py.py").write_text(harm)
    monkeypatch.syspath_prepend(str(tmp_path))
    # The child that hangs is waited for in vain; the others must have the time to start, and to end.
    monkeypatch.setattr(hdf5_guard, "TIMEOUT_S", 3.0 if "sleep" in harm else 120.0)
    monkeypatch.setattr(hdf5_guard, "can_fork", lambda: False)  # a fork has the library already
    with pytest.raises(StoreCorrupt, match=text) as error:
        open_hdf5(tmp_path)
    assert "episode_0.h5" in error.value.message and "episodes=[…] opens the others" in str(error.value)


def storages(path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 8, 10, 3), dtype=np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("lzf_image", data=pixels, compression="lzf", chunks=(1, 8, 10, 3))
        file.create_dataset("packed_image", data=pixels, compression="gzip", chunks=(2, 8, 10, 3))
        file["action"] = np.arange(40.0).reshape(20, 2)
        file.create_dataset("chunk_image", data=pixels, chunks=(1, 8, 10, 3))
        file["file_image"] = pixels


@pytest.mark.parametrize("name", ["file_image", "chunk_image", "packed_image", "lzf_image", "action"])
def test_a_file_that_is_cut_or_changed_after_opening_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "one.hdf5"
    storages(path)

    def read(store: Hdf5Store) -> None:
        if name == "action":
            store.numbers(name, np.arange(20))
        else:
            for _ in store.images(name).read(range(20), Scratch()):
                pass

    with open_hdf5(path, check=False) as store:
        read(store)
        os.truncate(path, 3000)
        with pytest.raises(StoreCorrupt, match=r"one\.hdf5 was changed since the store was opened: 3,000 bytes"):
            read(store)
    storages(path)
    with open_hdf5(path, check=False) as store:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
        os.utime(path, ns=(1, 1))
        with pytest.raises(StoreCorrupt, match="was changed"):
            read(store)
    storages(path)
    with open_hdf5(path, check=False) as store:
        path.unlink()
        with pytest.raises(StoreError, match="cannot be read"):
            read(store)


@pytest.mark.parametrize("name", ["file_image", "chunk_image"])
def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "one.hdf5"
    storages(path)
    with open_hdf5(path, check=False) as store:
        images = store.images(name).read(range(20), Scratch())
        next(images)
        os.truncate(path, 3000)
        with pytest.raises(StoreCorrupt, match="beyond the end of the file"):
            list(images)


def test_files_that_are_dropped_while_others_read_stay_open_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two files open at a time, a descriptor that was closed and given to another file would mix episodes."""
    monkeypatch.setattr(hdf5_column, "most_open", lambda: 2)
    for number in range(12):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["a_image"] = np.full((5, 8, 6, 3), number, np.uint8)
            file.create_dataset("b_image", data=file["a_image"][()], chunks=(2, 8, 6, 3), compression="lzf")
            file["action"] = np.full((5, 2), float(number))
    failures: list[BaseException] = []

    def work(store: Hdf5Store, seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            for turn in range(6):
                rows = rng.integers(0, 60, 25)
                name = "ab"[turn % 2] + "_image"
                for row, image in zip(rows, store.images(name).read(rows.tolist(), Scratch()), strict=True):
                    assert (image == row // 5).all()
                assert np.array_equal(store.numbers("action", rows)[:, 0], rows // 5)
        except BaseException as error:
            failures.append(error)

    with open_hdf5(tmp_path, check=False) as store:
        threads = [threading.Thread(target=work, args=(store, seed)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not failures and not any(thread.is_alive() for thread in threads)
        assert store._files.n_open <= 2
