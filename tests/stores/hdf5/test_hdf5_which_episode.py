"""Which episodes a store opens, where they end by the names that others use, and how errors name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import penstock
from penstock._src.load.replay.buffer import MultimodalReplayBuffer
from penstock.errors import StoreCorrupt, StoreError


def demonstrations(place: Path, files: int = 2, demos: int = 4) -> Path:
    place.mkdir()
    for number in range(files):
        with h5py.File(place / f"task_{number}.hdf5", "w") as file:
            for demo in range(demos):
                file[f"data/demo_{demo}/actions"] = np.full((2, 1), 10 * number + demo)
    return place


@pytest.mark.parametrize("chosen", [[6, 1, 4, 0], [3, 7, 2, 5], [1, 0], [0, 1], [7]])
def test_episodes_of_several_files_are_those_with_these_numbers(tmp_path: Path, chosen: list[int]) -> None:
    place = demonstrations(tmp_path / "set")
    with penstock.open(place, episodes=chosen) as store:
        found = store.numbers("actions", np.arange(0, store.rows, 2)).reshape(-1).tolist()
        assert found == [10 * (number // 4) + number % 4 for number in chosen]
        assert [store.episode_number(position) for position in range(store.episodes)] == chosen
        assert store.file_of(0).name == f"task_{chosen[0] // 4}.hdf5"


@pytest.mark.parametrize("names", [("terminated", "truncated"), ("terminations", "truncations")])
def test_the_names_of_gymnasium_end_episodes(tmp_path: Path, names: tuple[str, str]) -> None:
    ends, cuts = np.zeros(9, bool), np.zeros(9, bool)
    ends[[2, 8]], cuts[5] = True, True
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"], file["actions"] = np.arange(9.0)[:, None], np.zeros((9, 1))
        file["rewards"], file[names[0]], file[names[1]] = np.zeros(9), ends, cuts
    with penstock.open(tmp_path / "a.hdf5") as store:
        assert store.episode_starts.tolist() == [0, 3, 6, 9] and store.ends_terminal is not None
        assert store.ends_terminal.tolist() == [True, False, True]
    with h5py.File(tmp_path / "a.hdf5", "r+") as file:
        del file[names[0]]
    with penstock.open(tmp_path / "a.hdf5") as store:
        assert any(note.startswith("no 'terminals' column: ") for note in store.notes)


def robomimic(path: Path, lengths: list[int], *, ends: bool = True) -> Path:
    with h5py.File(path, "w") as file:
        for number, rows in enumerate(lengths):
            group = file.create_group(f"data/demo_{number}")
            group["actions"], group["rewards"] = np.zeros((rows, 2)), np.full(rows, float(number))
            group["obs/joint"], group["obs/cam_image"] = np.zeros((rows, 3)), np.zeros((rows, 8, 8, 3), np.uint8)
            if ends:
                group["dones"] = (np.arange(rows) == rows - 1).astype(np.int64)
    return path


def loaded(path: Path, **options: Any) -> MultimodalReplayBuffer:
    words = {name: options.pop(name) for name in ("max_size",) if name in options}
    buffer = MultimodalReplayBuffer(2, 3, images=("cam_image",), quiet=True, image_size=8, **words)
    buffer.load_from_hdf5(path, **options)
    return buffer


@pytest.mark.parametrize("count", [3, 5, 6, 8, 12, 19, 30])
def test_empty_episodes_cost_a_replay_buffer_nothing(tmp_path: Path, count: int) -> None:
    path = robomimic(tmp_path / "a.hdf5", [5, 0, 3, 4, 7])
    for words in ({"num_traj": count}, {"max_size": count}):
        with loaded(path, **words) as buffer:
            assert buffer.size == min(count, 19)


def test_a_replay_buffer_of_some_episodes(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "a.hdf5", [5, 0, 3, 4, 7])
    for limit, expected in ((None, 11), (5, 5)):
        with loaded(path, episodes=[4, 3], num_traj=limit) as buffer:
            rewards = {int(each) for each in buffer.sample(200)[-2].reshape(-1)}
            assert buffer.size == expected and rewards == ({3, 4} if limit is None else {4})


def test_a_replay_buffer_without_terminals_says_so(tmp_path: Path) -> None:
    with loaded(robomimic(tmp_path / "a.hdf5", [5], ends=False)) as buffer:
        assert any("not_done is always 1" in note for note in buffer.notes)
        assert (buffer.sample(4)[-1] == 1).all()
    with loaded(robomimic(tmp_path / "b.hdf5", [5])) as buffer:
        assert not any("not_done" in note for note in buffer.notes)


def images(path: Path, *, broken: int = -1) -> None:
    with h5py.File(path, "w") as file:
        file["action"] = np.zeros((4, 2))
        rows = file.create_dataset("observations/images/a", (4,), dtype=h5py.vlen_dtype(np.uint8))
        for row in range(4):
            good = cv2.imencode(".jpg", np.zeros((16, 16, 3), np.uint8))[1].reshape(-1)
            rows[row] = np.zeros(3, np.uint8) if row == broken else good


def test_an_error_names_file_and_episode_as_they_can_be_asked_for(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    for number in range(3):
        images(tmp_path / "set" / f"episode_{number}.hdf5", broken=3 if number == 2 else -1)
    with (
        penstock.open(tmp_path / "set", episodes=[2]) as store,
        penstock.Loader(store, None, 2, 8, output="numpy") as loader,
        pytest.raises(StoreCorrupt, match=r"episode_2\.hdf5.*row 3 \(row 3 of episode 2\)") as caught,
    ):
        list(loader)
    assert 'on_error="skip"' in str(caught.value.hint)
    assert "doctor" not in str(caught.value.hint)  # it knows no HDF5 files


def test_groups_that_are_no_known_layout_are_refused_or_told(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for number in range(3):
            file[f"episode_{number}/actions"] = np.zeros((5, 2))
    with pytest.raises(StoreError, match="3 groups hold actions"):
        penstock.open(tmp_path / "a.hdf5")
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        file["anything"] = np.zeros((5, 2))
    with penstock.open(tmp_path / "b.hdf5") as store:
        assert store.notes[0].startswith("no layout that is known")


def test_depth_whose_png_is_as_large_as_its_pixels(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 16, (2, 900, 700), dtype=np.uint16)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["action"] = np.zeros((2, 2))
        rows = file.create_dataset("observations/depth", (2,), dtype=h5py.vlen_dtype(np.uint8))
        for number, each in enumerate(values):
            rows[number] = cv2.imencode(".png", each)[1].reshape(-1)
            assert len(rows[number]) > each.nbytes
    with (
        penstock.open(tmp_path / "a.hdf5") as store,
        penstock.Loader(store, None, 2, None, output="numpy", shuffle=False) as loader,
    ):
        (batch,) = loader
        assert (batch["observations/depth"][:, 0] == values).all()
