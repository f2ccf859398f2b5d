"""A replay buffer that is asked for something odd: told what and what next, before memory is taken; and its order holds
however short the memory is."""

from __future__ import annotations

import copy
import pickle
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import penstock
from penstock import AsyncSampleBuffer, MultimodalReplayBuffer
from penstock.errors import BudgetExceeded, PenstockError, StoreError, UsageError
from tests.load.replay_files import write_replay


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_replay(tmp_path_factory.mktemp("replay") / "data.hdf5")


def buffer_of(path: Path | None = None, **words: Any) -> MultimodalReplayBuffer:
    made = MultimodalReplayBuffer(**{"action_dim": 4, "quiet": True, "output": "numpy", **words})
    if path is not None:
        made.load_from_hdf5(path)
    return made


def test_a_batch_that_does_not_fit_takes_no_memory_before_it_is_refused(replay: Path) -> None:
    with buffer_of(replay, memory="128MiB") as buffer:
        buffer.sample(2)
        tracemalloc.start()
        try:
            with pytest.raises(BudgetExceeded, match="a batch takes"):
                buffer.sample(20_000_000)  # its numbers alone are 160 MB
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 16 << 20


def test_a_batch_that_was_refused_costs_no_samples(replay: Path) -> None:
    with buffer_of(replay, memory="128MiB", seed=3) as plain, buffer_of(replay, memory="128MiB", seed=3) as other:
        with pytest.raises(BudgetExceeded):
            other.sample(20_000)
        assert np.array_equal(plain.sample(8)[-2], other.sample(8)[-2])


def test_the_seed_decides_what_comes_ahead_also_where_memory_is_short(replay: Path) -> None:
    words: dict[str, Any] = {"memory": "64MiB", "seed": 11, "threads": 1}
    with buffer_of(replay, **words) as plain:
        expected = [plain.sample(6)[-2].copy() for _ in range(8)]
    found = []
    with buffer_of(replay, **words) as buffer, AsyncSampleBuffer(buffer, 6, queue_size=8) as ahead:
        time.sleep(0.2)  # it has tried to make more than the memory holds
        for _ in expected:
            batch = ahead.get_batch()
            found.append(batch[-2].copy())
            del batch
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize("given", ["5", 2.5, True, float("nan"), 0])
def test_num_traj_is_a_whole_number(replay: Path, given: Any) -> None:
    with buffer_of() as buffer, pytest.raises(UsageError, match="num_traj="):
        buffer.load_from_hdf5(replay, num_traj=given)
    with buffer_of() as buffer:
        buffer.load_from_hdf5(replay, num_traj=1e1)  # type: ignore[arg-type]
        assert len(buffer) == 10 and type(len(buffer)) is int


@pytest.mark.parametrize("given", ["3", 2.5, None, True, 0, -1])
def test_a_batch_is_a_whole_number(replay: Path, given: Any) -> None:
    with buffer_of(replay) as buffer:
        with pytest.raises(UsageError, match="batch_size="):
            buffer.sample(given)
        with pytest.raises(UsageError, match="batch_size="):
            AsyncSampleBuffer(buffer, given)
        assert buffer.sample(np.int64(3))[-1].shape == (3, 1)


@pytest.mark.parametrize(
    "words, message",
    [
        ({"action_dim": None}, "action_dim=None"),
        ({"max_size": float("nan")}, "max_size=nan"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": "a"}, "seed='a'"),
        ({"images": [1]}, "images="),
        ({"joint": 5}, "joint=5"),
        ({"threads": "many"}, "threads: 'many'"),
        ({"device": "nowhere"}, "device='nowhere'"),
        ({"image_size": {"lef_image": 8}}, "lef_image"),
    ],
)
def test_wrong_words_are_reported(replay: Path, words: dict[str, Any], message: str) -> None:
    with pytest.raises(PenstockError) as caught:
        buffer_of(replay, **words)
    assert message in str(caught.value)


def test_a_device_that_is_not_there_is_reported_at_once() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UsageError, match="no CUDA device"):
        buffer_of(device="cuda")


def test_what_is_no_file_is_reported(replay: Path) -> None:
    with buffer_of() as buffer, h5py.File(replay) as open_file:
        with pytest.raises(UsageError, match="no files"):
            buffer.load_from_hdf5([])
        for given in (None, open_file, 5, b"data.hdf5"):
            with pytest.raises(UsageError, match="is not the path"):
                buffer.load_from_hdf5(given)  # type: ignore[arg-type]


def test_files_may_come_one_by_one(replay: Path) -> None:
    with buffer_of(replay) as one, buffer_of() as several:
        several.load_from_hdf5(replay.parent.glob("*.hdf5"))
        assert several.size == one.size > 0


def test_a_size_by_camera_goes_by_the_last_part_of_its_name(replay: Path, tmp_path: Path) -> None:
    with buffer_of(replay, image_size={"left_image": (8, 9), "observations/right_image": 7}) as buffer:
        shapes = [each.shape[1:] for each in buffer.sample(2)]
        assert shapes[:3] == shapes[5:8] == [(3, 8, 9), (3, 7, 7), (3, 30, 40)]


def test_images_that_follow_in_a_column_of_their_own_have_the_size_of_the_others(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        group = file.create_group("data/demo_0")
        group["actions"], group["rewards"] = rng.normal(size=(6, 4)), np.arange(6.0)
        group["dones"] = np.eye(6)[5]
        for name in ("obs", "next_obs"):
            group[f"{name}/camera"] = rng.integers(0, 256, (6, 20, 24, 3), dtype=np.uint8)
            group[f"{name}/pos"] = rng.normal(size=(6, 3))
        after = group["next_obs/camera"][:]
    words: dict[str, Any] = {"images": ["camera"], "joint": "pos", "joint_dim": 3}
    with buffer_of(tmp_path / "demos.hdf5", image_size={"camera": (6, 5)}, **words) as buffer:
        camera, _, _, following, *_, reward, _ = buffer.sample(4)
        assert camera.shape == following.shape == (4, 3, 6, 5)
        for number, row in enumerate(reward[:, 0].astype(int)):
            small = cv2.resize(after[row], (5, 6), interpolation=cv2.INTER_LINEAR)
            assert np.array_equal(following[number], small.transpose(2, 0, 1))


def test_the_hint_about_memory_can_be_followed_in_python() -> None:
    with pytest.raises(BudgetExceeded) as caught:
        buffer_of(memory="1MiB")
    assert 'for example memory="48MiB"' in str(caught.value)


def test_nothing_is_kept_of_a_shared_budget_by_a_buffer_that_was_refused() -> None:
    budget = penstock.Budget(256 << 20)
    with pytest.raises(UsageError):
        buffer_of(memory=budget, seed=-1)
    assert budget.used_bytes == 0


def test_one_transition_is_one(replay: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with buffer_of(quiet=False) as buffer:
        buffer.load_from_hdf5(replay, num_traj=1)
    assert "1 transition, 1 in the buffer" in capsys.readouterr().out


@pytest.mark.parametrize("travel", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_does_not_travel_and_says_what_to_do(replay: Path, travel: Callable[[object], object]) -> None:
    with buffer_of(replay) as buffer:
        with pytest.raises(UsageError, match="neither copied nor pickled") as caught:
            travel(buffer)
        assert "make one in each process" in str(caught.value.hint)


def test_what_cannot_be_sampled_is_reported() -> None:
    with pytest.raises(UsageError, match="sample"):
        AsyncSampleBuffer(None, 4)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", ["camera", "pos"])
def test_what_follows_in_another_shape_is_refused_when_it_is_loaded(tmp_path: Path, what: str) -> None:
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        group = file.create_group("data/demo_0")
        group["actions"], group["rewards"], group["dones"] = np.zeros((6, 4)), np.arange(6.0), np.eye(6)[5]
        for number, name in enumerate(("obs", "next_obs")):
            group[f"{name}/camera"] = np.zeros((6, 20 + 9 * number * (what == "camera"), 24, 3), np.uint8)
            group[f"{name}/pos"] = np.zeros((6, 3 + number * (what == "pos")))
    words: dict[str, Any] = {"images": ["camera"], "joint": "pos", "joint_dim": 3, "image_size": None}
    with pytest.raises(StoreError, match=f"next_obs/{what}"):
        buffer_of(tmp_path / "demos.hdf5", **words)


def test_files_of_other_channels_are_not_sent_to_the_size(tmp_path: Path) -> None:
    for number, channels in enumerate((3, 1)):
        with h5py.File(tmp_path / f"{number}.hdf5", "w") as file:
            file["observations/cam"] = np.zeros((5, 20, 24, channels), np.uint8)
            file["observations/joint"], file["actions"] = np.zeros((5, 16)), np.zeros((5, 4))
            file["rewards"], file["terminals"] = np.zeros(5), np.eye(5)[4]
    with buffer_of(images=["cam"]) as buffer, pytest.raises(StoreError, match="same batches") as caught:
        buffer.load_from_hdf5([tmp_path / "0.hdf5", tmp_path / "1.hdf5"])
    assert "image_size" not in str(caught.value) and "channels" in str(caught.value)
