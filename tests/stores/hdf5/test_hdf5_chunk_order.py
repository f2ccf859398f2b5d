"""Chunks lie where the file had room for them, not in the order of their rows: every row is the one that h5py gives."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock._src.stores.hdf5.store import Hdf5Store, open_hdf5
from penstock._src.stores.store import Scratch

ROWS, STEP = 41, 4
CHUNKS = -(-ROWS // STEP)
NEVER_WRITTEN = 5
NUMBERS = {"actions": ((3,), "<f4"), "rewards": ((), "<f8"), "bytes": ((), "u1"), "big": ((2,), ">i2")}


@pytest.fixture(scope="module")
def permuted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Each chunk written by itself, in an order that is not that of rows; one is never written."""
    path = tmp_path_factory.mktemp("permuted") / "steps.hdf5"
    order = np.random.default_rng(7).permutation([number for number in range(CHUNKS) if number != NEVER_WRITTEN])
    with h5py.File(path, "w", rdcc_nbytes=0) as file:
        for name, (shape, dtype) in NUMBERS.items():
            values = np.random.default_rng(len(name)).integers(0, 200, (ROWS, *shape)).astype(dtype)
            made = file.create_dataset(name, (ROWS, *shape), dtype, chunks=(STEP, *shape), fillvalue=77)
            _write(made, values, order)
        images = np.random.default_rng(1).integers(0, 256, (ROWS, 8, 8, 3), dtype=np.uint8)
        _write(file.create_dataset("image", images.shape, "u1", chunks=(STEP, 8, 8, 3)), images, order)
    with h5py.File(path) as file:
        places: list[int] = []
        file["rewards"].id.chunk_iter(lambda info: places.append(info.byte_offset))
        assert places != sorted(places), "else nothing is tested here"
    return path


def _write(data: h5py.Dataset, values: np.ndarray, order: np.ndarray) -> None:
    for number in order.tolist():
        data[number * STEP : (number + 1) * STEP] = values[number * STEP : (number + 1) * STEP]
        data.flush()


@pytest.fixture(scope="module")
def store(permuted: Path) -> Hdf5Store:
    return open_hdf5(permuted, check=False)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(st.integers(0, ROWS - 1), max_size=30))
def test_any_rows_of_permuted_chunks(permuted: Path, store: Hdf5Store, rows: list[int]) -> None:
    wanted = np.array(rows, np.int64)
    with h5py.File(permuted) as file:
        for name in NUMBERS:
            assert store.columns[name].way == "chunks"
            assert np.array_equal(store.numbers(name, wanted), file[name][()][wanted]), name
        images = file["image"][()]
        for row, image in zip(rows, store.images("image").read(rows, Scratch()), strict=True):
            assert np.array_equal(image, images[row])


def test_all_rows_in_order_of_permuted_chunks(permuted: Path, store: Hdf5Store) -> None:
    with h5py.File(permuted) as file:
        for name in NUMBERS:
            for block_bytes in (1, 100, 1 << 20):
                blocks = [block[name] for _, block in store.number_blocks([name], block_bytes)]
                assert np.array_equal(np.concatenate(blocks), file[name][()])


def demonstrations(path: Path) -> Path:
    """What h5py itself writes: the room that a small data set left is used by chunks of the next."""
    with h5py.File(path, "w") as file:
        for demo in range(20):
            group = file.create_group(f"data/demo_{demo}")
            for name, shape, dtype in (("actions", (7,), "f4"), ("obs/a", (3,), "f8"), ("obs/b", (32,), "f8")):
                group.create_dataset(name, data=np.zeros((50, *shape), dtype), chunks=(5, *shape))
            values = np.arange(50.0) + 50 * demo
            group.create_dataset("rewards", data=values, chunks=(5,))
    return path


def test_rows_of_demonstrations_that_were_written_plainly(tmp_path: Path) -> None:
    with open_hdf5(demonstrations(tmp_path / "demos.hdf5"), check=False) as store:
        rng = np.random.default_rng(1)
        for _ in range(200):
            rows = rng.integers(0, store.rows, 64)
            assert np.array_equal(store.numbers("rewards", rows), rows)


def test_batches_of_demonstrations_that_were_written_plainly(tmp_path: Path) -> None:
    rows: list[int] = []
    with (
        open_hdf5(demonstrations(tmp_path / "demos.hdf5"), check=False) as store,
        penstock.Loader(store, batch_size=64, seed=0, drop_last=False, output="numpy") as loader,
    ):
        for batch in loader:
            assert batch["rewards"].tolist() == batch["index"].tolist()
            rows += batch["index"].tolist()
    assert sorted(rows) == list(range(1000))
