"""Passes of the sampler: begun by their first batch, whatever a DataLoader makes of iterators; states in between."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.errors import UsageError
from tests.load.image_store import ArrayStore

pytest.importorskip("torch")

from torch.utils.data import DataLoader

from penstock.torch import Dataset, Sampler, collate

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),  # torch's, on a single core
]

Rows = list[list[int]]
SIZE, BATCHES = 10, 11  # of 103 samples
WORKERS = [(0, False), (1, False), (2, False), (1, True), (2, True)]


@pytest.fixture(scope="module")
def dataset() -> Iterable[Dataset]:
    with Dataset(ArrayStore((60, 43), size=(8, 8)), penstock.Window(columns=["state"]), threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def epochs(dataset: Dataset) -> list[Rows]:
    sampler = _sampler(dataset)
    found = [list(sampler) for _ in range(4)]
    assert all(len(each) == BATCHES for each in found) and found[0] != found[1]
    return found


def _sampler(dataset: Dataset) -> Sampler:
    return Sampler(dataset, SIZE, seed=3)


def _state_behind(dataset: Dataset, steps: int) -> dict[str, Any]:
    sampler = _sampler(dataset)
    going = iter(sampler)
    for _ in range(steps):
        next(going)
    state: dict[str, Any] = json.loads(json.dumps(sampler.state_dict()))
    return state


def _loaded(dataset: Dataset, sampler: Sampler, workers: int, persistent: bool) -> DataLoader[Any]:
    words: dict[str, Any] = {"timeout": 120, "persistent_workers": persistent} if workers else {}
    return DataLoader(dataset, batch_sampler=sampler, collate_fn=collate, num_workers=workers, **words)


def _rows(loaded: DataLoader[Any], most: int = 99) -> Rows:
    found: Rows = []
    for batch in loaded:
        found.append(batch["index"].tolist())
        if len(found) == most:
            break
    return found


# Under a DataLoader


@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
def test_a_resumed_epoch_keeps_its_rest_and_the_next_ones_follow(
    dataset: Dataset, epochs: list[Rows], workers: int, persistent: bool
) -> None:
    sampler = _sampler(dataset)
    sampler.load_state_dict(_state_behind(dataset, 4))
    loaded = _loaded(dataset, sampler, workers, persistent)
    assert _rows(loaded) == epochs[0][4:]
    assert _rows(loaded) == epochs[1]
    assert _rows(loaded, most=2) == epochs[2][:2]  # left in the middle: it is over
    assert _rows(loaded) == epochs[3]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_step_resumes_to_the_exact_rest(dataset: Dataset, epochs: list[Rows], workers: int) -> None:
    for steps in range(BATCHES + 1):
        sampler = _sampler(dataset)
        sampler.load_state_dict(_state_behind(dataset, steps))
        loaded = _loaded(dataset, sampler, workers, False)
        assert _rows(loaded) == epochs[0][steps:]
        assert (sampler.epoch, sampler.state_dict()["position"]) == (1, 0)


@pytest.mark.parametrize(("workers", "persistent"), WORKERS)
def test_what_the_loop_took_resumes_where_workers_are_ahead(
    dataset: Dataset, epochs: list[Rows], workers: int, persistent: bool
) -> None:
    sampler = _sampler(dataset)
    sampler.load_state_dict(_state_behind(dataset, 3))
    assert sampler.state_dict(taken=0)["position"] == 30
    going = iter(_loaded(dataset, sampler, workers, persistent))
    assert [next(going)["index"].tolist() for _ in range(2)] == epochs[0][3:5]
    state = sampler.state_dict(taken=2)
    del going
    again = _sampler(dataset)
    again.load_state_dict(state)
    assert _rows(_loaded(dataset, again, workers, persistent)) == epochs[0][5:]


# By itself


def test_an_iterator_that_is_never_used_moves_nothing(dataset: Dataset, epochs: list[Rows]) -> None:
    sampler = _sampler(dataset)
    sampler.load_state_dict(_state_behind(dataset, 4))
    unused = [iter(sampler) for _ in range(3)]
    assert list(sampler) == epochs[0][4:]
    going = iter(sampler)
    assert next(going) == epochs[1][0]
    iter(sampler)
    assert next(going) == epochs[1][1] and sampler.state_dict()["position"] == 20
    assert list(sampler) == epochs[2]
    assert next(unused[0]) == epochs[3][0]


def test_an_epoch_set_during_a_pass_stays_set(dataset: Dataset, epochs: list[Rows]) -> None:
    sampler = _sampler(dataset)
    for number, _ in enumerate(sampler):
        if number == 5:
            sampler.set_epoch(2)
        assert sampler.epoch == (0 if number < 5 else 2)
    assert (sampler.epoch, sampler.state_dict()["position"]) == (2, 0)
    assert list(sampler) == epochs[2] and list(sampler) == epochs[3]


def test_a_state_loaded_during_a_pass_stays_loaded(dataset: Dataset, epochs: list[Rows]) -> None:
    sampler = _sampler(dataset)
    for number, _ in enumerate(sampler):
        if number == 7:
            sampler.load_state_dict(_state_behind(dataset, 4))
    assert (sampler.epoch, sampler.state_dict()["position"]) == (0, 40)
    assert list(sampler) == epochs[0][4:]
    assert list(sampler) == epochs[1]


def test_taken_counts_from_where_the_next_pass_begins(dataset: Dataset) -> None:
    sampler = _sampler(dataset)
    list(sampler)
    sampler.load_state_dict(_state_behind(dataset, 4))
    places = [sampler.state_dict(taken=taken)["position"] for taken in (0, 1, 7)]
    assert places == [40, 50, 103] and sampler.state_dict(taken=0)["epoch"] == 0
    sampler.set_epoch(7)
    assert [sampler.state_dict(taken=0)[name] for name in ("epoch", "position")] == [7, 0]


@pytest.mark.parametrize("epoch", [1.7, "1", None, -1])
def test_an_epoch_that_is_no_whole_number_is_refused(dataset: Dataset, epoch: Any) -> None:
    sampler = _sampler(dataset)
    with pytest.raises(UsageError, match="epoch"):
        sampler.set_epoch(epoch)
    assert sampler.epoch == 0


# Numbers of numpy


def test_numbers_of_numpy_leave_states_that_json_and_the_loader_take(dataset: Dataset, epochs: list[Rows]) -> None:
    sampler = Sampler(dataset, np.int64(SIZE), seed=np.int64(3), shard=(np.int64(0), np.int64(1)))  # type: ignore[arg-type]
    going = iter(sampler)
    for _ in range(4):
        next(going)
    for state in (sampler.state_dict(), sampler.state_dict(taken=np.int64(4))):  # type: ignore[arg-type]
        again = _sampler(dataset)
        again.load_state_dict(state)
        assert list(again) == epochs[0][4:]
        assert json.loads(json.dumps(state)) == state
        size: Any = np.int64(SIZE)
        with penstock.Loader(dataset.store, dataset.window, size, seed=3, threads=1) as loader:
            loader.load_state_dict(state)
            next(iter(loader))
            again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        assert list(again) == epochs[0][5:]
    sampler.set_epoch(np.int64(2))  # type: ignore[arg-type]
    assert json.loads(json.dumps(sampler.state_dict()))["epoch"] == 2
    with pytest.raises(UsageError, match=r"taken must be a whole number, not 1\.5"):
        sampler.state_dict(taken=1.5)  # type: ignore[arg-type]
