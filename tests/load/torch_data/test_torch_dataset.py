"""Penstock under torch's DataLoader: the same batches in the same order as the Loader's, from any kind of worker."""

from __future__ import annotations

import gc
import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import penstock
from penstock._src.load.replay.buffer import MultimodalReplayBuffer
from penstock.errors import StoreCorrupt, UsageError
from tests.lerobot import making
from tests.load.image_store import ArrayStore
from tests.load.replay_files import Naive, write_replay
from tests.threads import earlier_threads, penstock_threads

torch = pytest.importorskip("torch")

from torch.utils.data import ConcatDataset, DataLoader, Subset  # noqa: E402

from penstock.torch import Dataset, FetchedSamples, Sampler, collate  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),  # torch's, on a single core
]

WINDOW = penstock.Window(action=range(3))
LENGTHS = (12, 7, 9)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("lerobot") / "set"
    making.make(root, LENGTHS, tasks=("lift the cup", "put it down"))
    return root


@pytest.fixture()
def dataset(path: Path) -> Iterable[Dataset]:
    with Dataset(path, WINDOW, image_size=(16, 24), memory="256MiB", view="off", threads=1) as made:
        yield made


def with_workers(dataset: Any, batches: Any, workers: int = 0, **words: Any) -> DataLoader[Any]:
    if workers:
        words["timeout"] = 120
    return DataLoader(dataset, batch_sampler=batches, num_workers=workers, collate_fn=collate, **words)


def same(a: dict[str, Any], b: dict[str, Any]) -> None:
    assert list(a) == list(b)
    for name, value in a.items():
        if isinstance(value, (list, str)):
            assert value == b[name]
        else:
            assert value.dtype == b[name].dtype and torch.equal(value, b[name]), name


# One sample


def test_a_sample_is_what_was_recorded(path: Path) -> None:
    jpegs = [data for number, length in enumerate(LENGTHS) for data in making.jpegs(length, number)]
    actions = np.concatenate([making.numbers(length, number)["action"] for number, length in enumerate(LENGTHS)])
    with Dataset(path, WINDOW, image_size=(16, 24), exact=True, view="off", threads=1) as dataset:
        assert len(dataset) == sum(LENGTHS)
        for row in (0, 11, 12, 27, -1):
            sample = dataset[row]
            row %= len(dataset)
            pixels = cv2.imdecode(np.frombuffer(jpegs[row], np.uint8), cv2.IMREAD_COLOR)[:, :, ::-1]
            small = cv2.resize(np.ascontiguousarray(pixels), (24, 16), interpolation=cv2.INTER_LINEAR)
            assert np.array_equal(sample[making.CAMERA].numpy(), small.transpose(2, 0, 1))
            assert int(sample["index"]) == row and sample["index"].ndim == 0
            end = int(np.searchsorted(np.cumsum(LENGTHS), row, side="right"))
            last = int(np.cumsum(LENGTHS)[end]) - 1
            wanted = [min(row + step, last) for step in range(3)]
            assert np.array_equal(sample["action"].numpy(), actions[wanted])
            assert sample["action_is_pad"].tolist() == [row + step > last for step in range(3)]
            assert sample["task"] == ("lift the cup", "put it down")[end % 2]


def test_numbers_outside_are_index_errors(dataset: Dataset) -> None:
    for number in (28, -29):
        with pytest.raises(IndexError, match="of 28"):
            dataset[number]
    assert sum(1 for _ in dataset) == 28  # type: ignore[attr-defined]  # iteration ends by IndexError


def test_floats_and_options_of_the_store(path: Path) -> None:
    with Dataset(path, dtype="float32", normalize=([0.5] * 3, [0.25] * 3), episodes=[1], view="off") as dataset:
        assert len(dataset) == 7
        assert dataset[0][making.CAMERA].dtype == torch.float32
    with penstock.open(path) as store, pytest.raises(UsageError, match="open already"):
        Dataset(store, episodes=[1])


def test_a_mix_is_refused_and_what_the_hint_says_works() -> None:
    stores = [ArrayStore([12], size=(8, 8), name=name) for name in ("one", "two")]
    window = penstock.Window(columns=["state"])
    with pytest.raises(UsageError, match=r"one store, not of a Mix of 2\n.*penstock\.Loader.*ConcatDataset"):
        Dataset(penstock.Mix([(store, 1) for store in stores]), window)  # type: ignore[arg-type]
    with Dataset(stores[0], window) as one, Dataset(stores[1], window) as two:
        loaded = DataLoader(ConcatDataset([one, two]), batch_size=8, shuffle=True, collate_fn=collate)
        rows = [row for batch in loaded for row in batch["index"].tolist()]
    assert sorted(rows) == sorted([*range(12)] * 2)


# Many samples


def test_samples_fetched_together_are_views_of_one_batch(dataset: Dataset) -> None:
    numbers = [5, 0, 5, 27]
    fetched = dataset.__getitems__(numbers)
    assert len(fetched) == 4 and isinstance(fetched, FetchedSamples)
    assert collate(fetched) is fetched.batch
    for place, number in enumerate(numbers):
        same(fetched[place], dataset[number])
    assert fetched[1][making.CAMERA].data_ptr() == fetched.batch[making.CAMERA][1].data_ptr()
    assert [int(each["index"]) for each in (fetched[1], fetched[2])] == [0, 5]
    same(collate(fetched), collate(list(fetched)))  # torch's own collate makes the same, with copies
    with pytest.raises(IndexError):
        fetched[4]


def test_a_batch_that_is_kept_stays(dataset: Dataset) -> None:
    kept = collate(dataset.__getitems__([1, 2]))
    copies = {name: value if isinstance(value, list) else value.clone() for name, value in kept.items()}
    for number in range(5):
        collate(dataset.__getitems__([number, number + 9]))
    same(kept, copies)


# The order


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_order_is_that_of_the_loader_for_any_threads_and_workers(path: Path, shuffle: bool) -> None:
    words: dict[str, Any] = {"image_size": (16, 24), "memory": "512MiB", "view": "off"}
    runs: list[list[dict[str, Any]]] = []
    with penstock.open(path) as store:
        for threads in (1, 2, 8):
            with penstock.Loader(
                store, WINDOW, 8, threads=threads, seed=5, shuffle=shuffle, output="torch", **words
            ) as loader:  # fmt: skip
                runs.append([_copy(batch) for _ in range(2) for batch in loader])
        with Dataset(store, WINDOW, threads=2, **words) as dataset:
            sampler = Sampler(dataset, 8, seed=5, shuffle=shuffle)
            for workers in (0, 2):
                sampler.set_epoch(0)
                loaded = with_workers(dataset, sampler, workers)
                assert len(loaded) == len(sampler) == 4
                runs.append([_copy(batch) for _ in range(2) for batch in loaded])
    assert [len(run) for run in runs] == [8] * 5
    for run in runs[1:]:
        for got, expected in zip(run, runs[0], strict=True):
            same(got, expected)
    first, second = ([int(row) for batch in runs[0][at : at + 4] for row in batch["index"]] for at in (0, 4))
    assert sorted(first) == sorted(second) == list(range(28))
    assert (first == second) is not shuffle


def _copy(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, list) else value.clone() for name, value in batch.items()}


@pytest.mark.parametrize("world", [2, 4])
def test_shards_in_order_are_the_whole(dataset: Dataset, world: int) -> None:
    whole = list(Sampler(dataset, 8, seed=1, drop_last=True))
    parts = [list(Sampler(dataset, 8, seed=1, shard=(rank, world))) for rank in range(world)]
    assert [[number for share in shares for number in share] for shares in zip(*parts, strict=True)] == whole
    singles = [list(Sampler(dataset, seed=1, shard=(rank, world))) for rank in range(world)]
    assert [number for shares in zip(*singles, strict=True) for number in shares] == list(Sampler(dataset, seed=1))


def test_a_sampler_without_batches_serves_torchs_own(dataset: Dataset) -> None:
    words = {"batch_size": 8, "sampler": Sampler(dataset, seed=5), "collate_fn": collate}
    rows = [batch["index"].tolist() for batch in DataLoader(dataset, **words)]
    assert rows == list(Sampler(dataset, 8, seed=5))


def test_a_state_taken_at_any_step_yields_the_exact_tail(dataset: Dataset) -> None:
    one = Sampler(dataset, 8, seed=2)
    whole = [*one, *one]
    for steps in range(8):
        sampler = Sampler(dataset, 8, seed=2)
        going = _forever(sampler)
        for _ in range(steps):
            next(going)
        state = json.loads(json.dumps(sampler.state_dict()))
        again = Sampler(dataset, 8, seed=2)
        again.load_state_dict(state)
        # at the end of an epoch, the rest of it is an empty pass
        assert [batch for _ in range(3) for batch in again][: 8 - steps] == whole[steps:]


def _forever(sampler: Sampler) -> Any:
    while True:
        yield from sampler


def test_states_count_what_the_loop_took_and_go_to_the_loader(dataset: Dataset) -> None:
    sampler = Sampler(dataset, 4, seed=3)
    rows = [batch["index"].tolist() for batch in with_workers(dataset, Sampler(dataset, 4, seed=3))]
    loaded = iter(with_workers(dataset, sampler, 2, prefetch_factor=2))
    for _ in range(2):
        next(loaded)
    assert sampler.state_dict()["position"] > 8  # workers were asked for more already
    state = sampler.state_dict(taken=2)
    assert state["position"] == 8
    del loaded
    words: dict[str, Any] = {"image_size": (16, 24), "view": "off", "threads": 1, "memory": "256MiB", "seed": 3}
    with penstock.Loader(dataset.store, WINDOW, 4, **words) as loader:
        loader.load_state_dict(state)
        assert [batch["index"].tolist() for batch in loader] == rows[2:]
        going = iter(loader)
        next(going)
        again = Sampler(dataset, 4, seed=3)
        again.load_state_dict(loader.state_dict())
        going.close()
    second = Sampler(dataset, 4, seed=3)
    second.set_epoch(1)
    assert list(again) == list(second)[1:]
    with pytest.raises(UsageError, match="taken=9"):
        sampler.state_dict(taken=9)
    with pytest.raises(UsageError, match="another order"):
        Sampler(dataset, 4, seed=4).load_state_dict(state)


def test_a_pass_that_is_left_is_followed_by_the_next_epoch(dataset: Dataset) -> None:
    sampler = Sampler(dataset, 8, seed=5)
    epochs = [list(sampler) for _ in range(3)]
    again = Sampler(dataset, 8, seed=5)
    for batch in again:
        assert batch == epochs[0][0]
        break
    assert list(again) == epochs[1]
    again.set_epoch(0)
    assert list(again) == epochs[0]
    with pytest.raises(UsageError):
        again.set_epoch(-1)


# Workers


def test_it_is_small_when_pickled_and_comes_back(tmp_path: Path) -> None:
    sizes = []
    for rows in (20, 4000):
        data = write_replay(tmp_path / f"{rows}.hdf5", (rows,), (), cameras=())
        with Dataset(data, view="ram", memory="512MiB", check=False) as dataset:
            before = dataset[17]
            data_bytes = pickle.dumps(dataset)
            sizes.append(len(data_bytes))
            with pickle.loads(data_bytes) as again:
                same(again[17], before)
                same(dataset[17], before)
    assert max(sizes) < 8 << 10
    assert abs(sizes[1] - sizes[0]) < 256


def test_numbers_are_held_once_for_all_processes(dataset: Dataset) -> None:
    again = pickle.loads(pickle.dumps(dataset))
    inodes = {os.fstat(each._fd).st_ino for made in (dataset, again) for each in made._shared.values()}
    assert len(inodes) == len(dataset._shared) > 0
    table = again._fetcher.numbers.in_memory()["action"]
    assert not table.flags.writeable and np.array_equal(table, dataset._fetcher.numbers.in_memory()["action"])
    again.close()
    del again, table
    gc.collect()
    dataset[3]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_share_a_view_in_memory(path: Path, start: str) -> None:
    with Dataset(path, image_size=(16, 24), view="ram", memory="256MiB", threads=1) as dataset:
        (view,) = dataset.views.values()
        assert view.n_filled == 0
        sampler = Sampler(dataset, 7, shuffle=False)
        batches = [_copy(batch) for batch in with_workers(dataset, sampler, 1, multiprocessing_context=start)]
        assert view.n_filled == 28  # this process decoded nothing
        for number, batch in enumerate(batches):
            same(batch, collate(dataset.__getitems__(range(7 * number, 7 * number + 7))))


def test_batches_of_workers_take_nothing_from_dev_shm(dataset: Dataset) -> None:
    before = _torchs_shared_memory()
    (batch, *_) = with_workers(dataset, Sampler(dataset, 8), 1)
    images, index = batch[making.CAMERA], batch["index"]
    assert images.is_shared()
    assert images.untyped_storage().data_ptr() == index.untyped_storage().data_ptr()
    assert "memfd:penstock-batch" in Path("/proc/self/maps").read_text()
    assert not _torchs_shared_memory() - before


def _torchs_shared_memory() -> set[str]:
    """What of /dev/shm this process has mapped by torch; other tests may have left some."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.partition("/dev/shm/")[2] for line in lines if "/dev/shm/torch" in line}


_EARLIER: set[threading.Thread] = set()  # those that other tests left


def _names_of_threads(samples: Any) -> list[str]:
    return [thread.name for thread in penstock_threads() - _EARLIER]


def test_a_worker_works_in_its_own_thread(path: Path) -> None:
    with Dataset(path, image_size=(16, 24), view="off", threads=3) as dataset:
        _EARLIER.update(earlier_threads())
        dataset[0]  # starts threads here, which a fork does not take along
        words: dict[str, Any] = {"batch_size": 8, "collate_fn": _names_of_threads}
        assert [len(names) for names in DataLoader(dataset, **words)] == [3] * 4
        assert list(DataLoader(dataset, num_workers=1, timeout=120, **words)) == [[]] * 4


def test_torchs_other_way_of_sharing_works_too(dataset: Dataset) -> None:
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        got = [batch["index"].tolist() for batch in with_workers(dataset, Sampler(dataset, 8, seed=1), 1)]
    finally:
        torch.multiprocessing.set_sharing_strategy(before)
    assert got == list(Sampler(dataset, 8, seed=1))


def test_a_subset_is_fetched_together_too(dataset: Dataset) -> None:
    loaded = DataLoader(Subset(dataset, [3, 9, 20]), batch_size=3, collate_fn=collate)
    (batch,) = loaded
    assert batch["index"].tolist() == [3, 9, 20]


def test_a_broken_row_in_a_worker_is_named(tmp_path: Path) -> None:
    import h5py

    data = write_replay(tmp_path / "a.hdf5", jpeg=True)
    with h5py.File(data, "r+") as file:
        file["observations/right_image"][7, :] = 0
    with Dataset(data, image_size=8, view="off", check=False) as dataset:
        with pytest.raises(StoreCorrupt, match=r"right_image, row 7"):
            dataset[7]
        with pytest.raises(StoreCorrupt, match=r"right_image, row 7"):
            list(with_workers(dataset, Sampler(dataset, 4, shuffle=False), 1))


# Without torch, and beside it


def test_without_torch_importing_works_and_using_says_what_is_missing(path: Path) -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nimport penstock\npenstock.torch.collate\n"
        f"try: penstock.torch.Dataset({str(path)!r})\nexcept penstock.PenstockError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "pip install 'penstock[torch]'" in done.stdout


def test_a_replay_buffer_gives_tensors(tmp_path: Path) -> None:
    data = write_replay(tmp_path / "a.hdf5")
    naive = Naive(data, (24, 24))
    with MultimodalReplayBuffer(4, quiet=True, image_size=(24, 24), exact=True, device="cpu") as buffer:
        buffer.load_from_hdf5(data, check=False)
        batch = buffer.sample(12)
        assert all(isinstance(each, torch.Tensor) for each in batch)
        assert buffer.action_mean.shape == (4,) and buffer.action_mean.dtype == torch.float32
        for place, reward in enumerate(batch[9][:, 0].tolist()):
            for got, expected in zip(batch, naive.transition(reward), strict=True):
                assert np.array_equal(got[place].numpy(), expected)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_last_batch_smaller_than_the_world_is_the_same_for_loader_and_sampler(rank: int) -> None:
    store, window = ArrayStore((7,)), penstock.Window(columns=["state"])
    words: dict[str, Any] = {"shard": (rank, 3), "drop_last": False, "shuffle": False}
    with penstock.Loader(store, window, 6, output="torch", **words) as loader, Dataset(store, window) as dataset:
        expected = [batch["index"].tolist() for batch in loader]
        sampler = Sampler(dataset, 6, **words)
        batches = DataLoader(dataset, batch_sampler=sampler, collate_fn=collate)
        assert [batch["index"].tolist() for batch in batches] == expected and len(batches) == len(loader) == 2
        one_by_one = Sampler(dataset, **words)
        assert len(list(one_by_one)) == len(one_by_one) == (3 if rank == 2 else 2)
