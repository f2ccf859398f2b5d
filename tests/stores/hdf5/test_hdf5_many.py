"""Many rows and many files: opening stays quick and small, and few files are open at a time."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock._src.stores.hdf5 import column as hdf5_column
from penstock._src.stores.hdf5 import survey as hdf5_survey
from penstock._src.stores.hdf5.store import open_hdf5
from penstock._src.stores.store import Scratch
from penstock.errors import StoreCorrupt, StoreError
from tests.stores import hdf5_files as files

ROWS = 2_000_000


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two million rows of three cameras, 1.9 TB that are nearly all holes."""
    path = tmp_path_factory.mktemp("long") / "long.hdf5"
    with h5py.File(path, "w") as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        file.create_group("observations")
        for name, shape, kind in (
            ("observations/left_image", (ROWS, 480, 640, 3), h5py.h5t.STD_U8LE),
            ("observations/right_image", (ROWS, 48, 64, 3), h5py.h5t.STD_U8LE),
            ("observations/global_image", (ROWS, 3, 48, 64), h5py.h5t.STD_U8LE),
            ("observations/joint", (ROWS, 16), h5py.h5t.IEEE_F32LE),
            ("actions", (ROWS, 16), h5py.h5t.IEEE_F32LE),
            ("rewards", (ROWS,), h5py.h5t.IEEE_F32LE),
        ):
            h5py.h5d.create(file.id, name.encode(), kind, h5py.h5s.create_simple(shape), plist)
        terminals = np.zeros(ROWS, bool)
        terminals[99::100] = True
        file["terminals"] = terminals
        file["actions"][1_234_567] = np.arange(16)
        file["observations/left_image"][ROWS - 1, 0, 0] = (1, 2, 3)
    return path


def test_two_million_rows(long: Path) -> None:
    with open_hdf5(long) as store:
        assert store.rows == ROWS and store.episodes == 20_000 and store.episode_starts[1] == 100
        assert store.ends_terminal is not None and store.ends_terminal.all()
        assert store.index_bytes < ROWS, "a fraction of a byte for each row"
        assert store.stored_bytes > 1.8e12
        rows = np.array([1_234_567, 5, 1_234_567], np.int64)
        assert store.numbers("actions", rows)[:, 3].tolist() == [3, 0, 3]
        last = next(iter(store.images("observations/left_image").read([ROWS - 1], Scratch())))
        assert last[0, 0].tolist() == [1, 2, 3] and last.shape == (480, 640, 3)
        assert store.images("observations/global_image").scratch_bytes == 48 * 64 * 3
    with open_hdf5(long, episodes=range(0, 20_000, 2), check=False) as half:
        assert half.rows == ROWS // 2 and half.index_bytes < ROWS
        assert half.numbers("terminals", np.array([98, 99, 199], np.int64)).tolist() == [False, True, True]


def test_every_row_an_episode_stays_within_32_bytes_a_row(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "short.hdf5", "w") as file:
        file["actions"] = np.arange(50_000, dtype=np.float32).reshape(-1, 1)
        file["terminals"] = np.ones(50_000, bool)
    with open_hdf5(tmp_path / "short.hdf5", episodes=range(0, 50_000, 2), check=False) as store:
        assert store.episodes == store.rows == 25_000
        assert store.index_bytes <= 32 * store.rows
        assert store.numbers("actions", np.array([3, 0], np.int64)).tolist() == [[6], [0]]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    files.aloha(root / "episode_0.hdf5", 3, seed=0)
    for number in range(1, 300):
        shutil.copyfile(root / "episode_0.hdf5", root / f"episode_{number}.hdf5")
    with h5py.File(root / "episode_250.hdf5", "r+") as file:
        file["action"][...] = 250
    return root


def open_below(directory: Path) -> int:
    """How many descriptors of this process are of files there."""
    found = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum(os.path.realpath(path).startswith(f"{directory.resolve()}/") for path in found)


def test_hundreds_of_files_in_few_children_and_few_open_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    real = hdf5_survey.run_guarded

    def counted(*arguments: Any) -> list[dict[str, Any]]:
        started.append(1)
        return real(*arguments)

    monkeypatch.setattr(hdf5_survey, "run_guarded", counted)
    with open_hdf5(directory) as store:
        assert store.episodes == 300 and store.rows == 900
        assert 1 <= len(started) <= 5, "not one child for each file"
        assert store._files.n_open == 0
        assert store.numbers("action", np.array([750, 752, 0], np.int64))[:2].tolist() == [[250.0] * 14] * 2
        for image in store.images("observations/images/cam_high").read(range(0, 900, 3), Scratch()):
            assert image[:2].tolist() == [255, 216]
        assert 1 < store._files.n_open <= hdf5_column.most_open() <= 128
        assert 1 < open_below(directory) <= 128
    assert store._files.n_open == open_below(directory) == 0


def test_a_pickle_of_many_files_is_opened_without_looking_at_them(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(directory, root)
    with open_hdf5(root, episodes=range(299, 200, -1), check=False) as store:
        held = pickle.dumps(store)
        rows = np.arange(0, store.rows, 7)
        assert len(held) < 300 * len(store._survey.paths)
        monkeypatch.setattr("penstock._src.stores.hdf5.store.survey_files", None)
        with pickle.loads(held) as other:
            assert np.array_equal(other.numbers("action", rows), store.numbers("action", rows))
            assert other.fingerprint("action") == store.fingerprint("action") and other.roles == store.roles
    with h5py.File(root / "episode_250.hdf5", "r+") as file:
        file["action"][...] = 1
    os.utime(root / "episode_250.hdf5", ns=(5, 5))
    with pickle.loads(held) as other, pytest.raises(StoreCorrupt, match=r"episode_250\.hdf5 was changed"):
        other.numbers("action", rows)


def test_one_damaged_file_among_hundreds_is_named(directory: Path, tmp_path: Path) -> None:
    root = tmp_path / "copy"
    shutil.copytree(directory, root)
    whole = (root / "episode_217.hdf5").read_bytes()
    (root / "episode_217.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=r"episode_217.hdf5 is cut: it has"):
        open_hdf5(root)
    with open_hdf5(root, episodes=[216, 218]) as store:
        assert store.rows == 6
