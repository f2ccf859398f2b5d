"""A replay buffer whose batches an engine process makes: the batches of the thread engine, whatever happens to it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock._src.load.replay.buffer import AsyncSampleBuffer, MultimodalReplayBuffer
from penstock._src.system.memory import descendants
from penstock.errors import BudgetExceeded, StoreCorrupt
from tests.load.replay_files import write_replay

Batch = tuple[Any, ...]


def buffer(engine: str, **options: Any) -> MultimodalReplayBuffer:
    words: dict[str, Any] = {"output": "numpy", "threads": 2, "quiet": True, "memory": "512MiB", "image_size": (16, 20)}
    return MultimodalReplayBuffer(4, engine=engine, **{**words, **options})


def equal(one: Batch, two: Batch) -> bool:
    return len(one) == len(two) and all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def pid_of(replay: MultimodalReplayBuffer) -> int:
    pid = replay._batches.describe()["pid"]
    assert isinstance(pid, int)
    return pid


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("replay")
    return [write_replay(folder / f"{n}.hdf5", first_reward=100 * n) for n in range(2)]


def test_batches_are_those_of_the_thread_engine(files: list[Path]) -> None:
    sizes = (8, 8, 3, 20, 8)  # a larger batch than before takes larger slots
    with buffer("thread") as threads, buffer("process") as process:
        for replay in (threads, process):
            replay.load_from_hdf5(files[0])
        for size in sizes:
            assert equal(threads.sample(size), process.sample(size))
        for replay in (threads, process):
            replay.load_from_hdf5(files[1])
        assert equal(threads.sample(30), process.sample(30))
        assert np.array_equal(threads.action_mean, process.action_mean)
        assert np.array_equal(threads.action_std, process.action_std)
        assert "engine: process, as asked" in process.notes


def test_a_view_answers_in_the_engine(files: list[Path]) -> None:
    with buffer("thread") as threads, buffer("process", view="ram") as process:
        for replay in (threads, process):
            replay.load_from_hdf5(files[0])
        for _ in range(6):
            assert equal(threads.sample(8), process.sample(8))
        assert all(view.n_filled for file in process._loaded.files for view in file.source.views.values())


def test_an_engine_that_is_killed_is_started_again(files: list[Path]) -> None:
    with buffer("thread") as threads, buffer("process") as process:
        for replay in (threads, process):
            replay.load_from_hdf5(files[0])
        for turn in range(6):
            assert equal(threads.sample(8), process.sample(8)), turn
            if turn % 2:
                os.kill(pid_of(process), signal.SIGKILL)
        assert equal(threads.sample(8), process.sample(8))
        assert any("started again (3 times so far)" in note for note in process.notes)


def test_batches_that_are_kept_stay_as_they_are_and_the_memory_ends(files: list[Path]) -> None:
    with buffer("process", memory="140MiB", image_size=(480, 640)) as process:
        process.load_from_hdf5(files[0])
        kept: list[Batch] = []
        copies: list[np.ndarray] = []
        with pytest.raises(BudgetExceeded, match="your code still holds"):
            for _ in range(100):
                kept.append(process.sample(1))
                copies.append(kept[-1][0].copy())
        assert len(kept) > 1 and all(np.array_equal(one[0], two) for one, two in zip(kept, copies, strict=True))
        del kept[0]
        process.sample(1)  # in the slot of the one that was dropped


def test_a_damaged_row_is_named(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "a.hdf5", jpeg=True)
    with h5py.File(path, "r+") as file:
        data = file["observations/left_image"]
        data[3:, 4:] = 0
    with buffer("process") as process:
        process.load_from_hdf5(path)
        for _ in range(2):  # it is raised each time, and the engine goes on
            with pytest.raises(StoreCorrupt, match="left_image, row"):
                process.sample(16)


def test_several_threads_sample_and_an_async_buffer_works_ahead(files: list[Path]) -> None:
    with buffer("process") as process:
        process.load_from_hdf5(files[0])
        shapes: list[Any] = []
        threads = [threading.Thread(target=lambda: shapes.append(process.sample(4)[0].shape)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert shapes == [(4, 3, 16, 20)] * 4
        with AsyncSampleBuffer(process, batch_size=6, queue_size=2) as ahead:
            assert [ahead.get_batch()[0].shape for _ in range(5)] == [(6, 3, 16, 20)] * 5


def test_nothing_is_left_when_it_is_closed(files: list[Path]) -> None:
    before = set(descendants(os.getpid()))
    process = buffer("process")
    process.load_from_hdf5(files[0])
    process.sample(4)
    assert pid_of(process) in descendants(os.getpid())
    process.close()
    process.close()
    assert set(descendants(os.getpid())) <= before


def test_numpy_batches_and_small_budgets_are_for_threads(files: list[Path]) -> None:
    with buffer("auto") as made:
        assert "engine: thread, for numpy batches" in made.notes
