"""Any layout, chunk shape, filter and order of rows: a store gives what h5py gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.stores.hdf5.chunks import ChunkTable
from penstock._src.stores.hdf5.store import open_hdf5
from penstock._src.stores.store import Scratch


@st.composite
def storages(draw: st.DrawFn, shape: tuple[int, ...]) -> dict[str, Any]:
    if draw(st.booleans()):
        return {}
    chunks = tuple(draw(st.integers(1, max(size, 1))) for size in shape)
    if draw(st.booleans()):
        chunks = (chunks[0], *shape[1:])  # whole rows
    packed: dict[str, Any] = draw(
        st.sampled_from([{}, {"compression": "gzip"}, {"shuffle": True}, {"compression": "gzip", "shuffle": True},
                         {"compression": "lzf"}, {"fletcher32": True}])
    )  # fmt: skip
    return {"chunks": chunks, **packed}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rows_are_those_of_h5py(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    root = tmp_path_factory.mktemp("any")
    kind = data.draw(st.sampled_from(["replay", "robomimic", "aloha"]))
    groups = {"replay": [""], "robomimic": ["data/demo_0/", "data/demo_1/"], "aloha": ["", ""]}[kind]
    turned = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(["<f4", ">f8", "<i2", "?"]))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    pixels, numbers = [], []
    for number, group in enumerate(groups):
        rows = data.draw(st.integers(1, 12))
        shape = (rows, 3, 7, 9) if turned else (rows, 7, 9, 3)
        pixels.append(rng.integers(0, 256, shape, dtype=np.uint8))
        numbers.append((rng.normal(size=(rows, 3)) * 50).astype(dtype))
        path = root / (f"episode_{number}.hdf5" if kind == "aloha" else "one.hdf5")
        with h5py.File(path, "a") as file:
            file.create_dataset(f"{group}obs/image", data=pixels[-1], **data.draw(storages(shape)))
            file.create_dataset(f"{group}actions", data=numbers[-1], **data.draw(storages((rows, 3))))
            if kind == "replay":
                file.create_dataset("terminals", data=rng.random(rows) < 0.3, **data.draw(storages((rows,))))
    every = np.concatenate(pixels)
    every = every.transpose(0, 2, 3, 1) if turned else every
    wanted = np.array(data.draw(st.lists(st.integers(0, len(every) - 1), max_size=30)), np.int64)
    with open_hdf5(root if kind == "aloha" else root / "one.hdf5", check=False) as store:
        assert store.rows == len(every)
        assert np.array_equal(store.numbers("actions", wanted), np.concatenate(numbers)[wanted])
        source = store.images("obs/image")
        ordered = wanted[np.argsort(source.keys(wanted), kind="stable")]
        found = [image.copy() for image in source.read(ordered.tolist(), Scratch())]
        assert len(found) == len(ordered)
        assert all(np.array_equal(image, every[row]) for image, row in zip(found, ordered, strict=True))
        size = data.draw(st.integers(1, 200))
        blocks = list(store.number_blocks(["actions"], size))
        assert np.array_equal(np.concatenate([block["actions"] for _, block in blocks]), np.concatenate(numbers))


def test_rows_out_of_order_are_right_too(tmp_path: Path) -> None:
    """Readers get rows sorted, but one that does not sort is only slower."""
    pixels = np.random.default_rng(0).integers(0, 256, (20, 6, 8, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        file.create_dataset("packed_image", data=pixels, chunks=(4, 3, 8, 3), compression="gzip")
        file.create_dataset("lzf_image", data=pixels, chunks=(4, 6, 8, 3), compression="lzf")
        file["action"] = np.zeros((20, 2))
    rows = [19, 3, 2, 3, 0, 17, 16]
    with open_hdf5(tmp_path / "one.hdf5", check=False) as store:
        for name in ("packed_image", "lzf_image"):
            found = [image.copy() for image in store.images(name).read(rows, Scratch())]
            assert np.array_equal(np.stack(found), pixels[rows]), name


def test_rows_that_nobody_wrote_are_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        for name, storage in (("plain", {}), ("packed", {"compression": "gzip"})):
            data = file.create_dataset(name, (12, 2), "f4", chunks=(3, 2), fillvalue=7, **storage)
            data[3:6] = [[1, 2]] * 3
        file.create_dataset("never", (12, 2), "f4", fillvalue=5)
        file["action"] = np.zeros((12, 2))
    rows = np.array([11, 4, 0, 3, 4], np.int64)
    with open_hdf5(tmp_path / "one.hdf5", check=False) as store:
        for name in ("plain", "packed"):
            assert store.numbers(name, rows)[:, 1].tolist() == [7, 2, 7, 2, 2], name
        assert store.numbers("never", rows)[:, 0].tolist() == [5] * 5


def test_a_truth_that_is_neither_0_nor_1_is_true(tmp_path: Path) -> None:
    path = tmp_path / "truths.h5"
    with h5py.File(path, "w") as file:
        file["terminals"] = np.array([True, False] * 40)
        file["actions"] = np.zeros((80, 2))
    path.write_bytes(path.read_bytes().replace(bytes([1, 0] * 40), bytes([7, 0] * 40)))
    with open_hdf5(path, check=False) as store:
        assert store.numbers("terminals", np.arange(80)).view(np.uint8).tolist() == [1, 0] * 40
        ((_, block),) = store.number_blocks(["terminals"], 1000)
        assert block["terminals"].view(np.uint8).tolist() == [1, 0] * 40
        assert store.episodes == 41 and store.ends_terminal is not None and store.ends_terminal.sum() == 40


def test_chunks_of_two_parts_are_two_runs(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        for demo in ("data/demo_0", "data/demo_1"):
            pixels = np.zeros((4, 8, 8, 3), np.uint8)
            file.create_dataset(f"{demo}/obs/image", data=pixels, chunks=(4, 8, 8, 3), compression="gzip")
            file[f"{demo}/actions"] = np.zeros((4, 2))
    with open_hdf5(tmp_path / "one.hdf5", check=False) as store:
        assert store.images("obs/image").runs(np.arange(8)).tolist() == [0, 0, 0, 0, 1, 1, 1, 1]


def test_chunks_are_listed_by_one_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (5000, 2, 2, 3), dtype=np.uint8)
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        file.create_dataset("some_image", data=pixels, chunks=(1, 2, 2, 3))
        file["action"] = np.zeros((5000, 2))
    walks: list[str] = []
    whole = ChunkTable._list
    monkeypatch.setattr(ChunkTable, "_list", lambda self, file: (walks.append(self.name), whole(self, file))[1])
    with open_hdf5(tmp_path / "one.hdf5", check=False) as store:
        assert walks == [], "opening lists nothing"
        for _ in range(3):
            rows = np.random.default_rng(1).integers(0, 5000, 500)
            for row, image in zip(rows, store.images("some_image").read(rows.tolist(), Scratch()), strict=True):
                assert np.array_equal(image, pixels[row])
        assert walks == ["some_image"]
        assert store.index_bytes <= 32 * 5000
