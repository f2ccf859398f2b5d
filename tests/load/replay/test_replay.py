"""The replay buffer against h5py and cv2 alone; loading, limits, sampling, and the thread that samples ahead."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from penstock._src.load.engine.fetch import SampleFetcher
from penstock._src.load.engine.job import BatchJob
from penstock._src.load.replay.buffer import AsyncSampleBuffer, MultimodalReplayBuffer
from penstock._src.load.sampling.window import Window
from penstock._src.stores.hdf5.column import Hdf5Images
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock.errors import BudgetExceeded, PenstockError, StoreCorrupt, StoreError, UsageError
from tests.load.image_store import ArraySource, ArrayStore
from tests.load.replay_files import Naive, write_replay
from tests.threads import earlier_threads, left_running, penstock_threads


def buffer(**options: Any) -> MultimodalReplayBuffer:
    words: dict[str, Any] = {"action_dim": 4, "output": "numpy", "threads": 2, "quiet": True, "memory": "512MiB"}
    return MultimodalReplayBuffer(**{**words, **options})


TRUSTED = {"check": False}  # no child looks at the files first: these tests are not about damage


def check_equal(batch: tuple[Any, ...], *naives: Naive) -> None:
    """Every sample of the batch is the naive transition with its reward, to the last pixel."""
    assert len(batch) == 11
    for place, reward in enumerate(batch[9][:, 0].tolist()):
        naive = next(each for each in naives if int(reward) in each.rewards())
        for number, (got, expected) in enumerate(zip(batch, naive.transition(reward), strict=True)):
            assert np.array_equal(got[place], expected.astype(got.dtype)), (number, reward)


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_replay(tmp_path_factory.mktemp("replay") / "replay.hdf5")


# What is sampled


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"channels_first": True},
        {"chunks": (2, 30, 40, 3), "compression": "gzip"},
        {"dtype": "float64", "joint": "observations/qpos"},
        {"jpeg": True},
    ],
    ids=["contiguous", "channels-first", "packed", "doubles", "jpeg"],
)
@pytest.mark.parametrize("size", [(224, 224), (16, 20)], ids=["larger", "smaller"])
def test_samples_are_those_of_a_naive_buffer(tmp_path: Path, options: dict[str, Any], size: tuple[int, int]) -> None:
    path = write_replay(tmp_path / "a.hdf5", **options)
    naive = Naive(path, size, options.get("joint", "observations/joint"))
    with buffer(image_size=size, exact=True) as replay:
        replay.load_from_hdf5(path, **TRUSTED)
        batch = replay.sample(40)
        assert [array.shape for array in batch] == [
            *[(40, 3, *size)] * 3, (40, 16), (40, 4), *[(40, 3, *size)] * 3, (40, 16), (40, 1), (40, 1)
        ]  # fmt: skip
        assert [str(array.dtype) for array in batch] == [
            *["uint8"] * 3, *["float32"] * 2, *["uint8"] * 3, *["float32"] * 3
        ]  # fmt: skip
        check_equal(batch, naive)


def test_all_transitions_come_and_none_crosses_an_episode(replay: Path) -> None:
    naive = Naive(replay)
    with buffer(image_size=8) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        seen = {int(reward) for _ in range(4) for reward in made.sample(100)[9][:, 0]}
        # 17 rows; the one that ends by time (row 12) has no next one, the three terminal ones mask theirs.
        assert seen == naive.rewards() == set(range(17)) - {12}
        assert len(made) == made.size == 16


def test_the_seed_decides_the_samples(replay: Path) -> None:
    def rewards(seed: int | None, threads: int) -> list[float]:
        with buffer(image_size=8, seed=seed, threads=threads) as made:
            made.load_from_hdf5(replay, **TRUSTED)
            return [reward for _ in range(5) for reward in made.sample(16)[9][:, 0].tolist()]

    assert rewards(3, 1) == rewards(3, 4)
    assert rewards(3, 1) != rewards(4, 1)
    assert rewards(None, 1) != rewards(None, 1)


def test_several_files_become_one_buffer(tmp_path: Path) -> None:
    first = write_replay(tmp_path / "a.hdf5")
    second = write_replay(tmp_path / "b.hdf5", (6, 9), (), first_reward=100, dtype="float64", joint="observations/qpos")
    naives = [Naive(first, (24, 24)), Naive(second, (24, 24), "observations/qpos")]
    with buffer(image_size=(24, 24)) as made:
        made.load_from_hdf5([first, second], **TRUSTED)
        assert made.size == 16 + 15
        batch = made.sample(200)
        check_equal(batch, *naives)
        assert {int(each) for each in batch[9][:, 0]} == naives[0].rewards() | naives[1].rewards()
        actions = np.concatenate([naive.actions().astype(np.float64) for naive in naives])
        assert np.allclose(made.action_mean, actions.mean(axis=0), atol=1e-6)
        assert np.allclose(made.action_std, actions.std(axis=0), atol=1e-6)


def test_views_give_the_same_pixels_and_are_used(replay: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    for view in ("ram", "disk"):
        with buffer(view=view, image_size=(24, 24)) as made:
            made.load_from_hdf5(replay, **TRUSTED)
            for _ in range(3):
                check_equal(made.sample(40), Naive(replay, (24, 24)))
            (file,) = made._loaded.files
            assert [each.n_filled for each in file.source.views.values()] == [17] * 3


def test_statistics_leave_out_what_is_not_finite(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        file["actions"][3, 1] = np.nan
        file["actions"][4, 2] = np.inf
    naive = Naive(path)
    actions = np.where(np.isfinite(naive.actions()), naive.actions(), np.nan)
    with buffer() as made:
        made.load_from_hdf5(path, **TRUSTED)
        assert np.allclose(made.action_mean, np.nanmean(actions, axis=0), atol=1e-6)
        assert np.allclose(made.action_std, np.nanstd(actions, axis=0), atol=1e-6)


def test_without_torch_arrays_are_given(replay: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from penstock._src.load.replay.buffer import MultimodalReplayBuffer\n"
        f"with MultimodalReplayBuffer(4, image_size=8) as buffer:\n    buffer.load_from_hdf5({str(replay)!r})\n"
        "    print(type(buffer.sample(3)[0]).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("ndarray\n")


# Limits


def test_num_traj_takes_the_first_transitions(replay: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with buffer(image_size=8, quiet=False) as made:
        made.load_from_hdf5(replay, num_traj=8, **TRUSTED)
        assert {int(reward) for reward in made.sample(200)[9][:, 0]} == set(range(8))
        assert np.allclose(made.action_mean, Naive(replay).actions(8).mean(axis=0), atol=1e-6)
        text = capsys.readouterr().out
        assert "8 transitions" in text and "not used 8 more" in text and "num_traj=8" in text


def test_num_traj_reads_no_numbers_of_later_episodes(replay: Path) -> None:
    with buffer(image_size=8) as made:
        made.load_from_hdf5(replay, num_traj=5, **TRUSTED)
        (file,) = made._loaded.files
        assert file.store.rows == 5  # the first episode


def test_max_size_bounds_all_files_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write_replay(tmp_path / f"{name}.hdf5", first_reward=100 * n) for n, name in enumerate("abc")]
    with buffer(image_size=8, max_size=20, quiet=False) as made:
        made.load_from_hdf5(paths[:2], **TRUSTED)
        assert made.size == 20
        assert "not used 12 more transitions of the file: max_size leaves room for 4" in capsys.readouterr().out
        assert {int(reward) for reward in made.sample(300)[9][:, 0]} == Naive(paths[0]).rewards() | {100, 101, 102, 103}
        with pytest.raises(UsageError, match="max_size=20 transitions already"):
            made.load_from_hdf5(paths[2], **TRUSTED)


def test_files_that_find_no_room_are_named(tmp_path: Path) -> None:
    paths = [write_replay(tmp_path / f"{name}.hdf5") for name in "abc"]
    for words, reason in (({"max_size": 16}, "max_size"), ({}, "num_traj")):
        with buffer(image_size=8, **words) as made:
            made.load_from_hdf5(paths, None if words else 16, **TRUSTED)
            assert made.size == 16
            assert f"not opened, because {reason} is reached: 2 files ({paths[1]}, {paths[2]})" in made.notes


def test_loading_reports_rows_and_memory(replay: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with buffer(quiet=False) as made:
        made.load_from_hdf5(replay, **TRUSTED)
    text = capsys.readouterr().out
    assert re.search(r"17 in 4 episodes; without a next row: 1, at ends of episodes", text)
    assert re.search(r"memory   [\d.,]+ \w+ of numbers, without images; the process grew by", text)
    assert "observations/left_image 30×40 → 224×224 read from disk when sampled" in text


def test_batches_are_held_within_the_memory(replay: Path) -> None:
    with buffer(memory="90MiB", threads=1) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        kept = [made.sample(32)]  # 29 MB each
        with pytest.raises(BudgetExceeded, match="batches that your code still holds"):
            kept += [made.sample(32) for _ in range(3)]
        kept.clear()
        gc.collect()  # the error's traceback holds batches, too
        for _ in range(8):  # dropped ones are used again
            made.sample(32)


def test_memory_of_a_dropped_batch_is_used_again_and_a_kept_one_stays(replay: Path) -> None:
    with buffer(image_size=(24, 24)) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        kept = made.sample(8)
        copies = [array.copy() for array in kept]
        for _ in range(6):
            made.sample(8)
        assert made._batches._slots is not None and len(made._batches._slots) == 2
        assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_batches_of_every_size_are_held_within_the_memory(replay: Path) -> None:
    with buffer(memory="120MiB", threads=1) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        kept = [made.sample(32), made.sample(32)]  # 29 MB each
        with pytest.raises(BudgetExceeded, match="batches that your code still holds"):
            made.sample(33)
        kept.clear()
        gc.collect()  # the error's traceback holds batches, too
        made.sample(64)
        kept += [made.sample(16) for _ in range(4)]  # a smaller batch takes less
    assert made._budget.used_bytes >= sum(array.nbytes for batch in kept for array in batch), "they are still there"
    kept.clear()
    assert not made._budget.used_bytes


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_the_memory_of_its_parents_batches(replay: Path) -> None:
    with buffer(memory="120MiB", threads=1) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        for _ in range(2):
            made.sample(32)
        kept = [made.sample(32), made.sample(32)]
        kept.clear()
        pid = os.fork()
        if not pid:
            status = 1
            signal.alarm(60)
            try:
                kept += [made.sample(32), made.sample(32)]
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0


def test_a_batch_that_was_interrupted_writes_no_more_to_the_next_one(
    replay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, go_on = threading.Event(), threading.Event()
    read, wait, give_up = Hdf5Images.read, BatchJob.wait, BatchJob.cancel_and_wait

    def slow(self: Hdf5Images, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        for image in read(self, rows, scratch):
            if not reading.is_set():
                reading.set()
                go_on.wait()
            yield image

    def interrupted(self: BatchJob) -> None:
        if not go_on.is_set():
            reading.wait()
            raise KeyboardInterrupt
        wait(self)

    def given_up(self: BatchJob) -> None:
        go_on.set()
        give_up(self)

    with buffer(image_size=(24, 24)) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        monkeypatch.setattr(Hdf5Images, "read", slow)
        monkeypatch.setattr(BatchJob, "wait", interrupted)
        monkeypatch.setattr(BatchJob, "cancel_and_wait", given_up)
        with pytest.raises(KeyboardInterrupt):
            made.sample(16)
        is_over = go_on.is_set()
        go_on.set()  # where nobody has waited for its tasks
        assert is_over


# Names and sizes


def test_two_cameras_give_nine_arrays(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "a.hdf5", cameras=("front_image", "wrist_image"))
    with buffer() as made:
        with pytest.raises(StoreError, match=r"observations/front_image, observations/wrist_image") as caught:
            made.load_from_hdf5(path, **TRUSTED)
        assert "images=('front_image', 'wrist_image')" in str(caught.value)
    with buffer(images=("wrist_image", "observations/front_image"), image_size=None) as made:
        made.load_from_hdf5(path, **TRUSTED)
        batch = made.sample(6)
        assert len(batch) == 9
        with h5py.File(path) as file:
            for place, reward in enumerate(batch[7][:, 0].astype(int)):
                expected = file["observations/wrist_image"][reward].transpose(2, 0, 1)
                assert np.array_equal(batch[0][place], expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"action_dim": 7}, r"actions has 4 numbers a row, the buffer was made for action_dim=7"),
        ({"joint_dim": 14}, r"observations/joint has 16 numbers a row, the buffer was made for joint_dim=14"),
        ({"reward": "actions"}, r"actions has 4 numbers a row, one is expected"),
        ({"images": ("joint",)}, r"observations/joint is numbers, not colour images"),
        ({"joint": "left_image"}, r"joint=observations/left_image: this column is image"),
        ({"terminal": "nothing"}, r"no column 'nothing'"),
    ],
)
def test_what_does_not_fit_is_refused(replay: Path, words: dict[str, Any], message: str) -> None:
    with buffer(**words) as made:
        with pytest.raises(StoreError, match=message):
            made.load_from_hdf5(replay, **TRUSTED)
        assert made.size == 0


def test_a_missing_reward_is_named(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "a.hdf5")
    with h5py.File(path, "r+") as file:
        file.move("rewards", "gains")
    with buffer() as made:
        with pytest.raises(StoreError, match="no column is called rewards or reward") as caught:
            made.load_from_hdf5(path, **TRUSTED)
        assert "gains" in str(caught.value)
    with buffer(reward="gains", image_size=8) as made:
        made.load_from_hdf5(path, **TRUSTED)
        assert made.size == 16


def test_a_terminal_of_another_name_cuts_episodes(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "a.hdf5", (5, 6, 4), (), ends="finished")
    with buffer(terminal="finished", image_size=(24, 24)) as made:
        made.load_from_hdf5(path, **TRUSTED)
        assert made.size == 15
        check_equal(made.sample(60), Naive(path, (24, 24)))


def test_a_nan_among_the_terminals_is_no_end(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "a.hdf5", (5, 6), ())
    with h5py.File(path, "r+") as file:
        ends = file["terminals"][()].astype(np.float32)
        ends[[2, 7]] = np.nan
        del file["terminals"]
        file["terminals"] = ends
    with buffer(image_size=8) as made:
        made.load_from_hdf5(path, **TRUSTED)
        batch = made.sample(200)
        done = {int(reward) for reward, goes_on in zip(batch[9][:, 0], batch[10][:, 0], strict=True) if not goes_on}
        assert made.size == 11 and done == {4, 10}


@pytest.mark.parametrize("words", [{"action_dim": 0}, {"max_size": 0}, {"images": ()}, {"images": "a"}, {"view": "x"}])
def test_nonsense_is_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        buffer(**words)


def test_files_of_different_images_do_not_mix(tmp_path: Path) -> None:
    first = write_replay(tmp_path / "a.hdf5")
    second = write_replay(tmp_path / "b.hdf5", jpeg=False)
    with h5py.File(second, "r+") as file:
        small = file["observations/left_image"][:, :20, :20]
        del file["observations/left_image"]
        file["observations/left_image"] = small
    with buffer(image_size=None) as made:
        made.load_from_hdf5(first, **TRUSTED)
        with pytest.raises(StoreError, match=r"\(3, 20, 20\).*\(3, 30, 40\)"):
            made.load_from_hdf5(second, **TRUSTED)
        assert made.size == 16


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    path = write_replay(tmp_path / "a.hdf5", jpeg=True)
    with h5py.File(path, "r+") as file:
        file["observations/right_image"][7, :] = 0
    with buffer(image_size=8) as made:
        made.load_from_hdf5(path, **TRUSTED)
        with pytest.raises(StoreCorrupt, match=r"right_image, row 7 \(row 1 of episode 2\)"):
            for _ in range(20):
                made.sample(32)


# Life


def test_add_says_what_to_do_instead() -> None:
    with buffer() as made, pytest.raises(NotImplementedError, match="load_from_hdf5"):
        made.add(1, 2, reward=3)


def test_an_empty_and_a_closed_buffer_say_so(replay: Path) -> None:
    earlier = earlier_threads()
    made = buffer()
    with pytest.raises(UsageError, match="empty"):
        made.sample(1)
    with pytest.raises(UsageError, match="empty"):
        made.action_mean
    made.load_from_hdf5(replay, **TRUSTED)
    made.close()
    made.close()
    with pytest.raises(UsageError, match="closed"):
        made.sample(1)
    assert not penstock_threads("penstock-load") - earlier


def test_several_threads_sample_at_a_time(replay: Path) -> None:
    naive = Naive(replay, (24, 24))
    found: list[tuple[Any, ...]] = []
    with buffer(image_size=(24, 24)) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        threads = [threading.Thread(target=lambda: found.extend(made.sample(12) for _ in range(4))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    assert len(found) == 16
    for batch in found:
        check_equal(batch, naive)


def test_a_fork_samples_by_itself(replay: Path) -> None:
    code = (
        "import os\nfrom penstock._src.load.replay.buffer import MultimodalReplayBuffer\n"
        f"buffer = MultimodalReplayBuffer(4, image_size=8, output='numpy')\nbuffer.load_from_hdf5({str(replay)!r})\n"
        "first = buffer.sample(16)\npid = os.fork()\n"
        "assert buffer.sample(16)[0].shape == (16, 3, 8, 8)\n"
        "if not pid: os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\nbuffer.close()\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# Ahead


@pytest.fixture(name="earlier")
def threads_before() -> set[threading.Thread]:
    """Those that other tests of this process left."""
    return earlier_threads()


def threads_ahead(earlier: set[threading.Thread]) -> set[threading.Thread]:
    return penstock_threads("penstock-ahead") - earlier


def test_batches_ahead_are_those_of_the_buffer_in_order(replay: Path, earlier: set[threading.Thread]) -> None:
    with buffer(image_size=8) as alone, buffer(image_size=8) as made:
        alone.load_from_hdf5(replay, **TRUSTED)
        made.load_from_hdf5(replay, **TRUSTED)
        with AsyncSampleBuffer(made, 8, queue_size=2) as ahead:
            for _ in range(6):
                for got, expected in zip(ahead.get_batch(), alone.sample(8), strict=True):
                    assert np.array_equal(got, expected)
    assert not threads_ahead(earlier)


def test_stop_ends_a_full_queue_twice_and_for_good(replay: Path, earlier: set[threading.Thread]) -> None:
    with buffer(image_size=8) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        ahead = AsyncSampleBuffer(made, 4, queue_size=1)
        while not ahead._shared.ready:
            time.sleep(0.001)  # the thread now waits for room
        ahead.stop()
        ahead.stop()
        assert not threads_ahead(earlier)
        with pytest.raises(UsageError, match="stopped"):
            ahead.get_batch()


class Broken:
    """A buffer whose second batch fails."""

    def __init__(self) -> None:
        self.calls = 0

    def sample(self, batch_size: int) -> int:
        self.calls += 1
        if self.calls > 1:
            raise StoreCorrupt("row 17 is broken")
        return batch_size


def test_an_error_of_the_thread_is_raised_and_stays(earlier: set[threading.Thread]) -> None:
    broken = Broken()
    ahead = AsyncSampleBuffer(broken, 4)
    for _ in range(4):
        try:
            assert ahead.get_batch() == 4  # the first batch may come before the error is known
        except StoreCorrupt:
            break
    for _ in range(3):
        with pytest.raises(StoreCorrupt, match="row 17 is broken"):
            ahead.get_batch()
    assert broken.calls == 2
    ahead.stop()
    assert not threads_ahead(earlier)


def test_a_closed_buffer_ends_the_thread_with_its_error(replay: Path) -> None:
    made = buffer(image_size=8)
    made.load_from_hdf5(replay, **TRUSTED)
    with AsyncSampleBuffer(made, 4) as ahead:
        ahead.get_batch()
        made.close()
        with pytest.raises(PenstockError, match="closed"):
            for _ in range(10):
                ahead.get_batch()


def test_a_forgotten_one_ends_its_thread(replay: Path, earlier: set[threading.Thread]) -> None:
    with buffer(image_size=8) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        ahead = AsyncSampleBuffer(made, 4)
        gone, thread = weakref.ref(ahead), ahead._thread
        del ahead
        gc.collect()
        assert gone() is None
        thread.join(60)
        assert not threads_ahead(earlier)


class _Collecting(ArrayStore):
    """From the second batch on, reading waits for a sign, and its thread collects garbage."""

    def __init__(self) -> None:
        super().__init__([8])
        self.batches = 0
        self.asked, self.go_on = threading.Event(), threading.Event()

    def images(self, name: str) -> ImageSource:
        store = self

        class Collecting(ArraySource):
            def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
                if store.batches > 1:
                    store.asked.set()
                    if store.go_on.wait(60):
                        gc.collect()
                yield from super().read(rows, scratch)

        return Collecting(self.raw, frozenset(), [])


def test_a_forgotten_one_that_a_thread_of_its_buffer_collects_ends(earlier: set[threading.Thread]) -> None:
    store = _Collecting()
    samples = SampleFetcher(store, Window(columns=["raw"]), image_size=(24, 32), view="off", threads=1)

    class Samples:
        def sample(self, batch_size: int) -> Any:
            store.batches += 1
            return samples.fetch(range(batch_size))

    class Trainer:
        pass

    gc.disable()
    try:
        trainer = Trainer()
        trainer.me = trainer  # type: ignore[attr-defined]
        trainer.ahead = AsyncSampleBuffer(Samples(), 4)  # type: ignore[attr-defined]
        assert store.asked.wait(60)  # the only thread of the buffer is at work for it
        del trainer
        store.go_on.set()  # … and collects what waits for it
        assert left_running(earlier, "penstock-ahead") == [], "they wait for each other"
    finally:
        gc.enable()
    samples.close()


def test_fewer_batches_are_prepared_where_memory_is_short(replay: Path) -> None:
    with buffer(memory="112MiB", threads=1) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        with AsyncSampleBuffer(made, 32, queue_size=8) as ahead:  # 29 MB each: two fit
            for _ in range(8):
                batch = ahead.get_batch()
                assert len(batch) == 11
            del batch
            kept = []
            with pytest.raises(BudgetExceeded, match="your code still holds"):
                for _ in range(8):
                    kept.append(ahead.get_batch())
            assert len(kept) == 2


def test_after_a_fork_the_child_is_reported() -> None:
    with AsyncSampleBuffer(Broken(), 4) as ahead:
        ahead._pid = os.getpid() + 1  # as a child sees it
        with pytest.raises(UsageError, match="before a fork"):
            ahead.get_batch()


def test_the_names_are_public() -> None:
    import penstock

    assert penstock.MultimodalReplayBuffer is MultimodalReplayBuffer
    assert penstock.AsyncSampleBuffer is AsyncSampleBuffer


def _rewards_of_children(made: MultimodalReplayBuffer, count: int) -> list[list[float]]:
    """What children of this process sample, forked one after the other."""
    found = []
    for _ in range(count):
        reading, writing = os.pipe()
        pid = os.fork()
        if not pid:
            signal.alarm(60)  # nobody waits for ever for a child that hangs
            try:
                os.write(writing, made.sample(40)[9].tobytes())
                made.close()
            finally:
                os._exit(0)
        os.close(writing)
        assert os.waitpid(pid, 0)[1] == 0
        found.append(np.frombuffer(os.read(reading, 1 << 16), np.float32).tolist())
        os.close(reading)
    return found


def test_forked_children_sample_each_in_its_own_way(replay: Path) -> None:
    with buffer(image_size=8, seed=3, threads=1) as made, buffer(image_size=8, seed=3, threads=1) as plain:
        for each in (made, plain):
            each.load_from_hdf5(replay, **TRUSTED)
        children = _rewards_of_children(made, 3)
        own = made.sample(40)[9].reshape(-1).tolist()
        assert all(len(child) == 40 for child in children)
        assert len({tuple(each) for each in (*children, own)}) == 4
        assert own == plain.sample(40)[9].reshape(-1).tolist()  # the parent's order is that of its seed, forks or not


_FORKING = """
import os, sys
import numpy as np
from penstock._src.load.replay.buffer import MultimodalReplayBuffer
made = MultimodalReplayBuffer(4, 16, image_size=8, seed=int(sys.argv[2]), threads=1, output="numpy", quiet=True)
made.load_from_hdf5(sys.argv[1], allow_external=True)
for _ in range(2):
    sys.stdout.flush()
    if not os.fork():
        print(made.sample(16)[9].reshape(-1).tolist())
        sys.stdout.flush()
        if not os.fork():
            print(made.sample(16)[9].reshape(-1).tolist())
            sys.stdout.flush()
            os._exit(0)
        os.wait()
        os._exit(0)
    os.wait()
"""


def test_what_a_child_samples_follows_from_the_seed_and_the_number_of_the_fork(replay: Path) -> None:
    def run(seed: int) -> list[str]:
        root = Path(__file__).resolve().parents[3]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(root / "src")])}
        words = [sys.executable, "-c", _FORKING, str(replay), str(seed)]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = run(3)
    assert len(first) == len(set(first)) == 4 and run(3) == first and not set(run(4)) & set(first)


def test_a_child_forked_while_a_thread_samples_can_close(replay: Path) -> None:
    with buffer(image_size=8, threads=1) as made:
        made.load_from_hdf5(replay, **TRUSTED)
        with made._sampling:  # as a thread that is just sampling would
            pid = os.fork()
            if not pid:
                status = 1
                signal.alarm(30)
                try:
                    made.sample(4)
                    made.close()
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
