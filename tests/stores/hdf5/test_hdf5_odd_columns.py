"""HDF5 rows that are not what they seem at first: images with anything behind them, texts, NaN ends, floats in the
shape of images; and chunks of one episode that must not be taken for those of the next."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock._src.media.image import jpeg
from penstock._src.stores.hdf5.store import open_hdf5
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Scratch
from penstock.errors import StoreError
from tests.stores import hdf5_files as files

TEXTS = ["pick the cup", "拿杯子", "", "place it, slowly", "é"]


def with_tails(rows: list[np.ndarray], tail: Any) -> np.ndarray:
    longest = max(len(row) for row in rows) + 40
    return np.stack([np.concatenate([row, tail(longest - len(row))]) for row in rows]).astype(np.uint8)


def noise(count: int) -> np.ndarray:
    found = np.random.default_rng(count).integers(1, 256, count)
    found[:-2:9], found[1:-2:9] = 0xFF, 0xD9  # end markers, too
    return found


@pytest.mark.parametrize("tail", [noise, lambda count: np.full(count, 0xFF)], ids=["noise", "ff"])
def test_a_jpeg_ends_at_its_own_marker_whatever_follows(tmp_path: Path, tail: Any) -> None:
    rows = files.encoded(6)
    with h5py.File(tmp_path / "episode_0.hdf5", "w") as file:
        file["action"] = np.zeros((6, 2))
        file["observations/images/cam"] = with_tails(rows, tail)
        file["observations/images/packed"] = with_tails(rows, tail)
        own = file.create_dataset("observations/images/own", (6,), h5py.vlen_dtype(np.uint8))
        for number, row in enumerate(with_tails(rows, tail)):
            own[number] = row
        file["compress_len"] = np.array([[len(row) for row in rows]] * 3, np.float32)
    with open_hdf5(tmp_path) as store:
        assert store.notes == ()
        for name in ("cam", "packed", "own"):
            source = store.images(f"observations/images/{name}")
            found = [image.copy() for image in source.read(range(6), Scratch())]
            assert all(np.array_equal(one, other) for one, other in zip(found, rows, strict=True)), name


def test_where_a_jpeg_ends() -> None:
    import cv2

    for options in ([], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1], [cv2.IMWRITE_JPEG_RST_INTERVAL, 1]):
        whole = cv2.imencode(".jpg", files.image(3), options)[1].tobytes()
        thumbnail = b"\xff\xe1" + (2 + 8).to_bytes(2, "big") + b"\xff\xd8\xff\xd9\xff\xd9ab"
        for data in (whole, whole[:2] + thumbnail + whole[2:]):
            for behind in (b"", b"\0\0", b"\xff" * 9, b"abc\xff\xd9", data):
                assert jpeg.end_of(data + behind) == len(data)
            for cut in (2, 5, 30, len(data) // 2, len(data) - 1):
                assert jpeg.end_of(data[:cut]) is None


def test_a_cut_jpeg_is_still_called_cut(tmp_path: Path) -> None:
    rows = [row[: len(row) // 2] for row in files.encoded(3)]
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        file["action"] = np.zeros((3, 2))
        file["images/cam"] = with_tails(rows, lambda count: np.full(count, 7))
    with open_hdf5(tmp_path / "one.hdf5", check=False) as store:
        assert any("images/cam is left out" in note and "is cut" in note for note in store.notes)


def test_compress_len_is_bookkeeping(tmp_path: Path) -> None:
    files.aloha(tmp_path / "episode_0.hdf5", 2)  # as many rows as cameras
    files.aloha(tmp_path / "episode_1.hdf5", 9)
    with open_hdf5(tmp_path, check=False) as store:
        assert store.notes == () and "compress_len" not in store.columns
    with open_hdf5(tmp_path, episodes=[0], columns=["compress_len"], check=False) as store:
        assert list(store.columns) == ["compress_len"]
    with h5py.File(tmp_path / "episode_0.hdf5", "a") as file:
        del file["compress_len"]
    with open_hdf5(tmp_path, check=False) as store:
        assert store.notes == ()


def test_a_nan_ends_no_episode(tmp_path: Path) -> None:
    ends = np.zeros(12, np.float32)
    ends[[3, 7]], ends[5] = np.nan, 1
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        file["actions"], file["terminals"] = np.zeros((12, 2)), ends
    with open_hdf5(tmp_path / "one.hdf5", check=False) as store:
        assert store.episode_starts.tolist() == [0, 6, 12]
        assert any("terminals is NaN in 2 of 12 rows" in note for note in store.notes)
    files.robomimic(tmp_path / "demos.hdf5", (5, 7))
    with h5py.File(tmp_path / "demos.hdf5", "a") as file:
        del file["data/demo_2/dones"]
        file["data/demo_2/dones"] = np.full(7, np.nan)
        del file["data/demo_0/dones"]
        file["data/demo_0/dones"] = np.ones(5)
    with open_hdf5(tmp_path / "demos.hdf5", check=False) as store:
        assert store.ends_terminal is not None and store.ends_terminal.tolist() == [True, False]


def test_strings_are_left_out(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "one.hdf5", "w") as file:
        file["action"] = np.zeros((4, 2))
        file["bytes"] = np.array([b"\x80\x81\xfe"] * 4)
        file.create_dataset("pairs", data=[["a", "b"]] * 4, dtype=h5py.string_dtype())
    with open_hdf5(tmp_path / "one.hdf5", check=False) as store:
        assert list(store.columns) == ["action"]
        notes = " ".join(store.notes)
        assert "bytes is left out: neither JPEG nor PNG" in notes
        assert "pairs is left out: rows of different lengths, in a layout of their own" in notes
    with h5py.File(tmp_path / "one.hdf5", "a") as file:
        file["terminals"] = ["no"] * 4
    with pytest.raises(StoreError, match=r"terminals is \(4,\), one value for each of 4 rows expected"):
        open_hdf5(tmp_path / "one.hdf5", check=False)


def test_episodes_are_whole_numbers_and_at_least_one(tmp_path: Path) -> None:
    for number in range(3):
        files.aloha(tmp_path / f"episode_{number}.hdf5", 4, seed=number)
    for path in (tmp_path, tmp_path / "episode_0.hdf5"):
        for opener in (open_store, open_hdf5):
            with pytest.raises(StoreError, match=r"episodes=\[\] opens nothing"):
                opener(path, episodes=[])
            for wrong in (1.9, True, "2", None):
                with pytest.raises(StoreError, match="is not the number of an episode"):
                    opener(path, episodes=[wrong])  # type: ignore[list-item]
    with open_store(tmp_path, episodes=(number for number in np.array([2, 0]))) as store:
        assert store.rows == 8


def test_a_file_in_the_place_of_another_has_another_fingerprint(tmp_path: Path) -> None:
    """Of the same size and time: a view of the old pixels is not one of the new."""
    path = tmp_path / "one.hdf5"
    files.aloha(path, 6, raw=True)
    state = path.stat()
    with open_hdf5(path, check=False) as store:
        before = store.fingerprint("action")
    copy = tmp_path / "there" / "one.hdf5"
    copy.parent.mkdir()
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(state.st_atime_ns, state.st_mtime_ns))
    with open_hdf5(copy, check=False) as store:
        assert store.fingerprint("action") == before, "a copy that keeps the time is the same"
    files.aloha(path, 6, seed=7, raw=True)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert path.stat().st_size == state.st_size
    with open_hdf5(path, check=False) as store:
        assert store.fingerprint("action") != before


def test_a_chunk_of_one_episode_is_not_taken_for_that_of_the_next(tmp_path: Path) -> None:
    """A block that ends within a packed chunk keeps it for the next block, which may begin in another episode."""
    values = [np.arange(16.0).reshape(8, 2) + 100 * number for number in range(3)]
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for number, each in enumerate(values):
            file.create_dataset(f"data/demo_{number}/actions", data=each, chunks=(8, 2), compression="gzip")
    with open_hdf5(tmp_path / "demos.hdf5", check=False) as store:
        for step in range(1, 13):
            blocks = [block["actions"] for _, block in store.number_blocks(["actions"], step * 16)]
            assert np.array_equal(np.concatenate(blocks), np.concatenate(values)), step
