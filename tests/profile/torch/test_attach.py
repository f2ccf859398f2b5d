"""`attach`: an ordinary DataLoader, unchanged for everybody who looks at it, tells its wait and its workers' stages."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock import profile
from penstock._src.load.loader import Loader
from penstock._src.profile.record.registry import registered, tunable_of
from penstock._src.profile.verdict.model import Fix
from penstock._src.profile.verdict.trial import try_fix
from penstock.errors import UsageError
from penstock.profile import attach, detach, reset, snapshot, span
from tests.load.image_store import ArrayStore
from tests.profile.ledger import Ledger, until_a_worker_dies

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402
from torch.utils.data import Dataset as TorchDataset  # noqa: E402

from penstock.torch import Dataset, collate  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),  # torch's, on a single core
]

SAMPLES, BATCH = 22, 4
BATCHES = 6


def counts() -> dict[str, int]:
    return {name: each.count for name, each in snapshot().by_name().items()}


class Squares(TorchDataset[Any]):
    """A data set as people write them, with the timing calls of the seed inside."""

    factor = 1

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        for _ in range(2):
            with profile.log_timing("03b_image_decode"):
                pass
        return torch.tensor([self.factor * index * index])


class Together(Squares):
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [super(Together, self).__getitem__(index) for index in indices]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        start, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (torch.tensor([number]) for number in range(start, SAMPLES, step))


def tripled(worker: int) -> None:
    """As the documentation of torch has it: the worker's copy of the data set is set up here."""
    info = get_worker_info()
    assert info is not None and type(info.dataset) is Squares
    info.dataset.factor = 3


def taken(batches: Any) -> list[int]:
    return sorted(int(value) for batch in batches for value in batch.reshape(-1))


@pytest.mark.parametrize("dataset", [Squares, Together])
@pytest.mark.parametrize("workers", [0, 2])
def test_samples_batches_and_waits_are_counted_exactly(dataset: type, workers: int) -> None:
    words: dict[str, Any] = {"num_workers": workers, "timeout": 120 if workers else 0}
    batches = attach(DataLoader(dataset(), batch_size=BATCH, **words))
    assert taken(batches) == [number * number for number in range(SAMPLES)]
    found, told = counts(), snapshot()
    assert found["00_TOTAL_getitem"] == SAMPLES and found["03b_image_decode"] == 2 * SAMPLES
    assert found["fetch"] == found["collate"] == found["data_wait"] == told.steps.count == BATCHES
    total, fetch = told.by_name()["00_TOTAL_getitem"], told.by_name()["fetch"]
    assert 0 <= fetch.self_ns <= fetch.total_ns - total.total_ns + 1
    if workers:
        assert len({each.process for each in told.spans if each.name == "fetch"} - {os.getpid()}) == 2


def test_nobody_who_looks_at_the_loader_sees_a_difference() -> None:
    dataset, init = Squares(), tripled
    batches = DataLoader(dataset, batch_size=BATCH, num_workers=2, worker_init_fn=init, timeout=120)
    gathering, kind = batches.collate_fn, type(batches)
    assert attach(batches) is batches and attach(batches) is batches
    assert isinstance(batches, DataLoader) and type(batches).__name__ == "DataLoader"
    assert taken(batches) == [3 * number * number for number in range(SAMPLES)]
    assert batches.dataset is dataset and batches.collate_fn is gathering and batches.worker_init_fn is init
    assert type(copy.copy(batches)) is kind and dataset.factor == 1 and len(batches) == len(iter(batches)) == BATCHES
    assert registered()[-1] is tunable_of(batches) and snapshot().loaders[-1].workers == 2


def test_a_detached_loader_is_what_it_was() -> None:
    batches = attach(DataLoader(Squares(), batch_size=BATCH))
    known = tunable_of(batches)
    assert detach(batches) is batches and type(batches) is DataLoader and known not in registered()
    assert len(taken(batches)) == SAMPLES
    assert "00_TOTAL_getitem" not in counts() and "data_wait" not in counts()
    assert detach(batches) is batches


def test_workers_that_persist_count_every_epoch() -> None:
    batches = attach(DataLoader(Squares(), batch_size=BATCH, num_workers=1, persistent_workers=True, timeout=120))
    for _ in range(3):
        assert len(taken(batches)) == SAMPLES
    assert counts()["00_TOTAL_getitem"] == 3 * SAMPLES and snapshot().steps.count == 3 * BATCHES
    tunable_of(batches).close()


def test_a_stream_counts_what_it_yields() -> None:
    batches = attach(DataLoader(Stream(), batch_size=BATCH, num_workers=2, timeout=120))
    assert taken(batches) == list(range(SAMPLES))
    assert counts()["00_TOTAL_getitem"] == SAMPLES and counts()["data_wait"] == 6


def test_samples_without_batches_are_counted() -> None:
    assert len(list(attach(DataLoader(Squares(), batch_size=None)))) == SAMPLES
    assert counts()["00_TOTAL_getitem"] == counts()["data_wait"] == SAMPLES


def test_a_worker_that_was_spawned_tells_as_much() -> None:
    words: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn", "timeout": 120}
    batches = attach(DataLoader(Squares(), batch_size=BATCH, worker_init_fn=tripled, **words))
    assert taken(batches) == [3 * number * number for number in range(SAMPLES)]
    found = counts()
    assert found["00_TOTAL_getitem"] == SAMPLES and found["fetch"] == found["collate"] == BATCHES
    assert found["03b_image_decode"] == 2 * SAMPLES


class Wrapped(TorchDataset[Any]):
    """Somebody's data set around penstock's."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        with span("augment"):
            return self.inner[index]


@pytest.mark.parametrize("wrap", [lambda inner: inner, Wrapped])
def test_a_sample_of_penstock_inside_counts_once(wrap: Any) -> None:
    with Dataset(ArrayStore((9, 13)), image_size=(24, 32), view="off", memory="512MiB") as dataset:
        words: dict[str, Any] = {"collate_fn": collate, "num_workers": 2, "timeout": 120}
        for _ in attach(DataLoader(wrap(dataset), batch_size=BATCH, **words)):
            pass
    found = counts()
    assert found["00_TOTAL_getitem"] == found["03_read_images_total"] == found["02_read_qpos"] == SAMPLES
    assert found["03a_read_one_camera"] == found["03b_image_decode"] == SAMPLES * 2
    assert all(each.self_ns >= 0 for each in snapshot().spans)


class Mortal(Squares):
    """The worker that comes to one of the samples dies, when so many others were collated and three batches taken."""

    def __init__(self, ledger: Ledger, others: int, taken: Ledger) -> None:
        self.ledger, self.others, self.taken = ledger, others, taken

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            self.ledger.until(self.others)
            self.taken.until(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


class Noted:
    """A collate that notes which samples came."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def __call__(self, samples: Any) -> Any:
        self.ledger.note(int(each) for each in samples)
        return torch.cat(samples)


def test_a_worker_that_is_killed_loses_nothing_that_it_recorded(tmp_path: Path) -> None:
    ledger, taken = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "taken")
    # Of the first worker all three batches, of the second one its first; sample 12 is complete, too, and in none.
    collated = [*range(12), *range(16, 20)]
    words: dict[str, Any] = {"num_workers": 2, "collate_fn": Noted(ledger), "timeout": 120}
    batches = attach(DataLoader(Mortal(ledger, len(collated), taken), batch_size=BATCH, **words))
    assert until_a_worker_dies(batches, taken)
    assert sorted(ledger.noted()) == [number * number for number in collated]
    found = counts()
    assert found["00_TOTAL_getitem"] == len(collated) + 1 and found["03b_image_decode"] == 2 * (len(collated) + 1)


class Slow(Squares):
    """Waits for its storage, or works."""

    def __init__(self, works: bool) -> None:
        self.works = works

    def __getitem__(self, index: int) -> Any:
        end = time.thread_time() + 0.004  # of a CPU, which others may use as well
        while self.works and time.thread_time() < end:
            pass
        if not self.works:
            time.sleep(0.02)
        return torch.tensor([index])

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


class SlowStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (Slow(True)[index] for index in range(SAMPLES))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_cpus_work_in_the_workers_is_counted_once(workers: int) -> None:
    words: dict[str, Any] = {"num_workers": workers, "timeout": 120 if workers else 0}
    for batches in (DataLoader(Slow(True), batch_size=BATCH, **words), DataLoader(Slow(True), batch_size=None, **words),
                    DataLoader(SlowStream(), batch_size=BATCH, **words)):  # fmt: skip
        reset()
        taken(attach(batches))
        told = snapshot()
        spent = sum(each.self_ns for each in told.spans if each.name in ("fetch", "collate", "00_TOTAL_getitem"))
        assert SAMPLES * 4e6 <= told.counters["fetch_cpu_ns"] < 1.2 * spent
    reset()
    taken(attach(DataLoader(Slow(False), batch_size=BATCH, **words)))
    assert snapshot().counters["fetch_cpu_ns"] < 0.5 * SAMPLES * 20e6


def test_each_of_some_loaders_counts_for_itself_and_others_may_after_a_reset() -> None:
    kept = attach(DataLoader(Squares(), batch_size=BATCH))
    list(kept)
    number = tunable_of(kept).describe().number
    for _ in range(3):
        reset()
        others = [attach(DataLoader(Squares(), batch_size=BATCH)) for _ in range(20)]  # one for each epoch, say
        for loader in others:
            list(loader)
        numbers = [tunable_of(loader).describe().number for loader in others]
        told = [each for each in numbers if each]
        assert number not in told and len(set(told)) == len(told) >= 15 and not any(numbers[len(told) :])
        counters = snapshot().counters
        for name in ("fetch_ns", "fetch_cpu_ns"):
            counted = {f"{name} of loader {each}" for each in told}
            assert counted == {each for each in counters if each.startswith(f"{name} of loader ")}
            assert all(0 < counters[each] < counters["fetch_cpu_ns"] for each in counted if name == "fetch_cpu_ns")
        assert not snapshot().lost.get("counters")


def test_a_loader_tells_what_it_handed_out_and_how_long_its_later_passes_let_wait() -> None:
    words: dict[str, Any] = {"num_workers": 1, "worker_init_fn": sleepy, "timeout": 120}
    batches = attach(DataLoader(Squares(), batch_size=BATCH, **words))
    taken(batches)
    told = tunable_of(batches).describe()
    assert (told.batches, told.batches_handed, told.starts, told.start_wait_ms) == (6, 6, 0, None)
    taken(batches)
    taken(batches)
    told = tunable_of(batches).describe()
    assert (told.batches_handed, told.starts) == (18, 2) and told.start_wait_ms >= 200
    reset()
    assert tunable_of(batches).describe().batches_handed == 0 == tunable_of(batches).describe().starts
    taken(batches)  # its workers start again, and it is not the first time
    assert (tunable_of(batches).describe().batches_handed, tunable_of(batches).describe().starts) == (6, 1)
    assert tunable_of(attach(DataLoader(Stream(), batch_size=BATCH))).describe().batches is None


def sleepy(worker: int) -> None:
    time.sleep(0.2)


def test_workers_that_start_slowly_are_advised_to_stay_and_it_is_tried() -> None:
    words: dict[str, Any] = {"num_workers": 1, "worker_init_fn": sleepy, "timeout": 120}
    batches = attach(DataLoader(Squares(), batch_size=BATCH, **words))
    for _ in range(4):
        for _ in batches:
            time.sleep(0.004)
    found = profile.verdict(check=True, seconds=0.01, loader=batches)
    assert found.stage == "worker_start" and found.best is not None and found.trial is not None
    assert found.trial.fix.change["persistent_workers"] is True  # and more of them, where the machine is busy
    assert found.trial.measured_ms < (found.trial.control_ms or 0) > 200 / BATCHES


def test_workers_that_wait_are_advised_to_be_more_than_the_cpus() -> None:
    words: dict[str, Any] = {"num_workers": 1, "timeout": 120, "persistent_workers": True}
    batches = attach(DataLoader(Slow(False), batch_size=BATCH, **words))
    for _ in range(5):
        taken(batches)
    told = replace(snapshot(), machine={"cores": 1})
    found = profile.verdict(told, loader=batches)
    more = next(fix for fix in found.fixes if fix.name == "workers")
    assert 1 < more.change["num_workers"] <= 2
    tunable_of(batches).close()


def test_other_things_are_refused_and_loaders_of_penstock_are_known() -> None:
    with pytest.raises(UsageError, match="list"):
        attach([1, 2, 3])
    with Loader(ArrayStore((9,)), batch_size=4, image_size=(24, 32), memory="512MiB", threads=1) as own:
        assert attach(own) is own and registered()[-1] is own


def test_while_it_is_off_it_costs_nothing_and_changes_nothing() -> None:
    batches = attach(DataLoader(Together(), batch_size=BATCH))
    profile.disable()
    assert taken(batches) == [number * number for number in range(SAMPLES)]
    assert not snapshot().spans and not snapshot().steps.count


def test_a_variant_has_other_workers_and_the_same_samples() -> None:
    batches = attach(DataLoader(Squares(), batch_size=BATCH))
    other = tunable_of(batches).variant(num_workers=2)
    made = other._living()
    assert (batches.num_workers, made.num_workers, made.prefetch_factor) == (0, 2, 2)
    assert taken(other) == taken(batches)
    larger = tunable_of(batches).variant(batch_size=8)
    assert [len(batch) for batch in larger] == [8, 8, 6] and taken(larger) == taken(batches)
    own = attach(DataLoader(Squares(), batch_sampler=[[0, 1], [2]]))
    with pytest.raises(UsageError, match="batch_size"):
        tunable_of(own).variant(batch_size=8)


def test_a_larger_batch_of_a_dataloader_is_tried() -> None:
    sizes = []

    def step(batch: Any) -> None:
        sizes.append(len(batch))

    batches = attach(DataLoader(Squares(), batch_size=2))
    fix = Fix("larger batch", {"batch_size": 4}, 1.0, "", True, batch_factor=2.0)
    found = try_fix(tunable_of(batches), fix, step, seconds=0.001, control=True)
    assert found.measured_ms > 0 and found.control_ms is not None and {2, 4} <= set(sizes)
    assert [len(batch) for batch in batches] == [2] * (SAMPLES // 2)
