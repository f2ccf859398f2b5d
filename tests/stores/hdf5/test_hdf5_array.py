"""Rows of HDF5 data sets by every way, compared with h5py; and who reads how."""

from __future__ import annotations

import multiprocessing
import os
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.stores.hdf5.array import Hdf5Array
from penstock._src.stores.hdf5.file import Hdf5File
from penstock._src.stores.hdf5.store import open_hdf5
from penstock.errors import LimitExceeded, StoreCorrupt

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (37, 12, 16, 3), dtype=np.uint8)
NUMBERS = RNG.normal(size=(37, 7))
TRUTHS = RNG.random(37) > 0.5
STORED = {
    "plain": (IMAGES, {}, "file"),
    "big_endian": (NUMBERS.astype(">f4"), {}, "file"),
    "truths": (TRUTHS, {}, "file"),
    "text": (np.array([b"one", b"three\0x"] * 5, dtype="S9"), {}, "file"),
    "half": (NUMBERS.astype(np.float16), {}, "file"),
    "chunks": (IMAGES, {"chunks": (5, 12, 16, 3)}, "chunks"),
    "parts": (IMAGES, {"chunks": (5, 7, 16, 2)}, "unpacked chunks"),
    "wider": (NUMBERS, {"chunks": (16, 16), "maxshape": (None, None)}, "unpacked chunks"),
    "gzip": (NUMBERS, {"chunks": (5, 3), "compression": "gzip", "shuffle": True}, "unpacked chunks"),
    "shuffled": (NUMBERS, {"chunks": (5, 7), "shuffle": True}, "unpacked chunks"),
    "packed_truths": (TRUTHS, {"chunks": (8,), "compression": "gzip"}, "unpacked chunks"),
    "lzf": (NUMBERS, {"compression": "lzf"}, "library"),
    "sums": (NUMBERS, {"fletcher32": True}, "library"),
}


def test_every_way_gives_what_h5py_gives(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "all.h5", "w") as file:
        for name, (values, storage, _) in STORED.items():
            file.create_dataset(name, data=values, **storage)
        file.create_dataset("never", shape=(37, 2), dtype="f4", fillvalue=3)
        file.create_dataset("never_in_chunks", shape=(37, 2), dtype="f4", chunks=(4, 2), fillvalue=3)
        file["link"] = h5py.SoftLink("/plain")
        file["group/relative"] = h5py.SoftLink("../nothing")
    ways = {name: way for name, (_, _, way) in STORED.items()}
    ways |= {"never": "library", "never_in_chunks": "chunks", "link": "file"}
    with h5py.File(tmp_path / "all.h5") as oracle, Hdf5File(tmp_path / "all.h5") as file:
        for name, way in ways.items():
            array = Hdf5Array(file, name)
            assert array.way == way and array.why, name
            for start, stop in ((0, array.count), (3, 9), (5, 5), (array.count - 1, array.count)):
                assert np.array_equal(array.rows(start, stop), oracle[name][start:stop]), (name, start, stop)
            for row in range(array.count):  # a chunk that is asked for again and again
                assert np.array_equal(array.rows(row, row + 1), oracle[name][row : row + 1])
        assert file.kind("group/relative") is None


@settings(max_examples=40)
@given(st.data())
def test_any_chunks_of_any_shape(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    chunks = tuple(data.draw(st.integers(1, size)) for size in shape)
    dtype = data.draw(st.sampled_from(["u1", "<i4", ">i2", "<f8"]))
    values = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    path = tmp_path_factory.mktemp("any") / "any.h5"
    with h5py.File(path, "w") as file:
        compression = data.draw(st.sampled_from([None, "gzip"]))
        file.create_dataset("x", data=values, chunks=chunks, compression=compression, shuffle=data.draw(st.booleans()))
    start = data.draw(st.integers(0, shape[0]))
    stop = data.draw(st.integers(start, shape[0]))
    with Hdf5File(path) as file:
        array = Hdf5Array(file, "x")
        assert array.way in ("chunks", "unpacked chunks")
        assert np.array_equal(array.rows(start, stop), values[start:stop])


@pytest.mark.parametrize("storage", [{}, {"chunks": (3,)}, {"chunks": (3,), "compression": "gzip"}])
def test_rows_of_their_own_length_are_found_in_the_heap(tmp_path: Path, storage: dict[str, object]) -> None:
    rows = [np.arange(size % 251, dtype=np.uint8) for size in (0, 1, 8, 9, 4000, 70000, 3, 5)]
    with h5py.File(tmp_path / "own.h5", "w") as file:
        data = file.create_dataset("x", (len(rows) + 1,), dtype=h5py.vlen_dtype(np.uint8), **storage)
        for i, row in enumerate(rows):
            data[i] = row
    with Hdf5File(tmp_path / "own.h5") as file:
        array = Hdf5Array(file, "x")
        assert array.way == "heap"
        assert list(array.encoded(0, array.count, 10**6)) == [*(row.tobytes() for row in rows), b""]
        with pytest.raises(LimitExceeded, match="row 4: 235 bytes, 100 were planned for"):
            list(array.encoded(0, array.count, 100))


def test_a_chunk_that_unpacks_to_more_than_it_may_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.h5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("x", (4, 8), dtype="u1", chunks=(4, 8), compression="gzip")
        data.id.write_direct_chunk((0, 0), zlib.compress(bytes(10_000_000), 9)[:40])
        other = file.create_dataset("y", (4, 8), dtype="u1", chunks=(4, 8), compression="gzip")
        other.id.write_direct_chunk((0, 0), zlib.compress(bytes(64)))
        third = file.create_dataset("z", (4, 8), dtype="u1", chunks=(4, 8), compression="gzip")
        third.id.write_direct_chunk((0, 0), zlib.compress(bytes(31)))
    with Hdf5File(path) as file:
        for name in "xyz":
            with pytest.raises(StoreCorrupt, match=f"{name}: the chunk at"):
                Hdf5Array(file, name).rows(0, 4)


def test_more_chunks_than_any_file_has_are_refused_before_they_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "claims.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", ((1 << 27) + 1,), dtype="u1", chunks=(1,))
    with Hdf5File(path) as file:
        array = Hdf5Array(file, "x")
        with pytest.raises(LimitExceeded, match=r"claims\.h5: x claims 134,217,729 chunks"):
            array.rows(0, 1)


def test_bytes_beyond_the_end_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=IMAGES, chunks=(1, 12, 16, 3))
    with Hdf5File(path) as file:
        array = Hdf5Array(file, "x")
        os.truncate(path, path.stat().st_size - 2000)
        with pytest.raises(StoreCorrupt, match="lies beyond the end of the file"):
            array.rows(0, array.count)


def test_a_truth_that_is_neither_0_nor_1_is_true(tmp_path: Path) -> None:
    path = tmp_path / "truths.h5"
    with h5py.File(path, "w") as file:
        file["action"] = np.array([True, False] * 40)
    path.write_bytes(path.read_bytes().replace(bytes([1, 0] * 40), bytes([7, 0] * 40)))
    with open_hdf5(path) as store:
        found = store.numbers("action", np.arange(80))
    assert found.view(np.uint8).tolist() == [1, 0] * 40


def _child(array: Hdf5Array, pipe: object) -> None:
    rows = array.rows(2, 4)
    pipe.send((rows, array.file._owner == os.getpid()))  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["lzf"])
def test_a_forked_child_reads_for_itself(tmp_path: Path, name: str) -> None:
    with h5py.File(tmp_path / "fork.h5", "w") as file:
        file.create_dataset(name, data=NUMBERS, compression="lzf" if name == "lzf" else None)
    context = multiprocessing.get_context("fork")
    with Hdf5File(tmp_path / "fork.h5") as file:
        array = Hdf5Array(file, name)
        mine, theirs = context.Pipe()
        child = context.Process(target=_child, args=(array, theirs))
        child.start()
        assert mine.poll(60), "the child hangs"
        rows, opened_itself = mine.recv()
        assert np.array_equal(rows, NUMBERS[2:4]) and opened_itself
        child.join(60)
        assert child.exitcode == 0
        assert np.array_equal(array.rows(2, 4), NUMBERS[2:4]), "the parent reads on"
