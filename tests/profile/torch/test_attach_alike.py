"""An attached DataLoader does what it did before: errors, copies, methods of its own; and what is timed counts once."""

from __future__ import annotations

import copy
import gc
import pickle
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from penstock import profile
from penstock._src.profile.record.registry import loader_infos, registered, tunable_of
from penstock.errors import UsageError
from penstock.profile import attach, detach, snapshot, span

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset  # noqa: E402
from torch.utils.data import Dataset as TorchDataset  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),
]

SAMPLES, BATCH = 20, 4
TOTAL = "00_TOTAL_getitem"


def workers(count: int) -> dict[str, Any]:
    return {"num_workers": count, "timeout": 120 if count else 0}


# Streams


class Faulty(IterableDataset[Any]):
    """An iterator that goes on after a sample that cannot be read."""

    def __iter__(self) -> Iterator[Any]:
        return FaultyPass()


class FaultyPass(Iterator[Any]):
    def __init__(self) -> None:
        self.number = -1

    def __next__(self) -> Any:
        self.number += 1
        if self.number == 5:
            raise ValueError("sample 5 is broken")
        if self.number >= SAMPLES:
            raise StopIteration
        return torch.tensor(self.number)


def taken(loader: Any) -> list[Any]:
    found: list[Any] = []
    batches = iter(loader)
    while True:
        try:
            found.append(next(batches).tolist())
        except ValueError:
            found.append("broken")
        except StopIteration:
            return found


@pytest.mark.parametrize("count", [0, 1])
def test_a_stream_goes_on_after_a_sample_that_raises_as_it_did(count: int) -> None:
    plain = taken(DataLoader(Faulty(), batch_size=2, **workers(count)))
    assert "broken" in plain and len(plain) > SAMPLES // 2 - 2
    assert taken(attach(DataLoader(Faulty(), batch_size=2, **workers(count)))) == plain
    assert snapshot().by_name()[TOTAL].count == SAMPLES - 1


class Unreadable(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise OSError("the data is not there")


def test_a_stream_is_begun_when_the_pass_is() -> None:
    for loader in (DataLoader(Unreadable()), attach(DataLoader(Unreadable()))):
        with pytest.raises(OSError, match="not there"):
            iter(loader)


class Decoded(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(SAMPLES):
            with span("03b_image_decode"):
                time.sleep(0.003)
            yield torch.tensor(number)


@pytest.mark.parametrize("count", [0, 1])
def test_what_is_inside_a_sample_of_a_stream_is_counted_once(count: int) -> None:
    for _ in attach(DataLoader(Decoded(), batch_size=BATCH, **workers(count))):
        pass
    told = snapshot().by_name()
    total, decode = told[TOTAL], told["03b_image_decode"]
    assert total.count == decode.count == SAMPLES
    assert decode.total_ns <= total.total_ns and total.self_ns == total.total_ns - decode.total_ns


# A total of the data set's own


class Timed(TorchDataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        with span(TOTAL):
            with span("03b_image_decode"):
                time.sleep(0.002)
            return torch.tensor(index)


class TimedTogether(Timed):
    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]


class TimedStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return (Timed()[number] for number in range(SAMPLES))


class TimedOverYield(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for number in range(SAMPLES):
            with span(TOTAL):
                with span("03b_image_decode"):
                    time.sleep(0.002)
                yield torch.tensor(number)


@pytest.mark.parametrize("dataset", [Timed, TimedTogether, TimedStream, TimedOverYield])
@pytest.mark.parametrize("count", [0, 1])
def test_a_sample_that_the_data_set_times_itself_counts_once(dataset: type, count: int) -> None:
    for _ in attach(DataLoader(dataset(), batch_size=BATCH, **workers(count))):
        pass
    told = snapshot().by_name()
    assert told[TOTAL].count == told["03b_image_decode"].count == SAMPLES
    assert told[TOTAL].mean_ns >= 2e6 and told[TOTAL].total_ns >= told["03b_image_decode"].total_ns
    assert told[TOTAL].self_ns <= told[TOTAL].total_ns - told["03b_image_decode"].total_ns
    assert all(each.self_ns >= 0 for each in snapshot().spans)


# The loader


class Own(DataLoader[Any]):
    """A loader with names that a verdict has as well."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def describe(self) -> str:
        return "my loader"

    def variant(self) -> str:
        return "my variant"


def test_methods_of_the_users_class_stay_his() -> None:
    plain = {name for name in dir(Own) if not name.startswith("_")}
    loader = attach(Own(Timed(), batch_size=BATCH))
    assert {name for name in dir(type(loader)) if not name.startswith("_")} - plain == {"plain_class"}
    for _ in loader:
        pass
    assert profile.verdict(check=True, seconds=0.01).now.service_ms > 8
    assert (loader.describe(), loader.variant(), loader.is_closed) == ("my loader", "my variant", False)
    loader.close()
    assert loader.is_closed and snapshot().loaders[-1].batches_handed == SAMPLES // BATCH


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_an_attached_loader_travels_as_the_plain_one(protocol: int) -> None:
    for kind in (DataLoader, Own):
        loader: Any = attach(kind(Timed(), batch_size=BATCH))
        made = pickle.loads(pickle.dumps(loader, protocol))
        assert type(made) is kind and len(made) == len(loader) and made.batch_size == BATCH
        assert type(copy.copy(loader)) is type(copy.deepcopy(loader)) is kind
        assert type(loader) is not kind


def test_workers_from_before_are_not_gone_on_with() -> None:
    loader = DataLoader(Timed(), batch_size=BATCH, persistent_workers=True, **workers(1))
    list(loader)
    profile.reset()
    list(attach(loader))
    told = snapshot().by_name()
    assert told["fetch"].count == told["collate"].count == SAMPLES // BATCH
    list(detach(loader))
    assert snapshot().by_name()["fetch"].count == SAMPLES // BATCH
    vars(loader)["_iterator"] = None


def test_a_stream_is_not_asked_for_its_length_behind_the_users_back() -> None:
    class Sized(Decoded):
        def __len__(self) -> int:
            return 3  # a promise that is not kept: torch warns whoever has asked

    loader = attach(DataLoader(Sized(), batch_size=None))
    for _ in range(2):
        assert sum(1 for _ in loader) == SAMPLES and snapshot().loaders[-1].batches is None


class Lengthless(Timed):
    def __len__(self) -> int:
        raise RuntimeError("not yet")


def test_a_length_that_cannot_be_told_is_no_reason_to_fail() -> None:
    loader = attach(DataLoader(Lengthless(), batch_size=BATCH, sampler=range(SAMPLES)))
    assert len(list(loader)) == SAMPLES // BATCH
    assert snapshot().loaders[-1].batches_handed == SAMPLES // BATCH


# As a subject


def test_a_verdict_about_a_loader_is_asked_for_by_the_loader() -> None:
    loader = attach(DataLoader(Timed(), batch_size=BATCH))
    list(loader)
    assert tunable_of(loader) in registered() and tunable_of(tunable_of(loader)) is tunable_of(loader)
    assert profile.verdict(loader=loader).now.service_ms > 8
    with pytest.raises(UsageError, match="tells nothing of itself") as caught:
        profile.verdict(loader=detach(loader))
    assert "attach" in str(caught.value.hint)
    assert not [each for each in loader_infos() if each.kind == "torch.utils.data.DataLoader"]


def test_what_was_tried_is_not_remembered() -> None:
    loader = attach(DataLoader(Timed(), batch_size=BATCH))
    for _ in range(2):
        list(loader)
    known = tunable_of(loader)
    other = known.variant(num_workers=1)
    assert len(list(other)) == SAMPLES // BATCH and other not in registered()
    other.close()
    del other
    gc.collect()
    assert len(loader_infos()) == 1
    del loader
    gc.collect()
    assert [each.ended for each in loader_infos()] == [True]
    with pytest.raises(UsageError, match="gone"):
        iter(known)
    profile.reset()
    assert loader_infos() == []
