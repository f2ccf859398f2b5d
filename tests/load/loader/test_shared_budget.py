"""One Budget for several: each plans with what the others leave, and gives back what it held."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock._src.load.engine.fetch import SampleFetcher
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Window
from penstock._src.system.budget import Budget
from penstock.errors import BudgetExceeded, LimitExceeded
from tests.load.image_store import ArrayStore

MIB = 1 << 20
LIMIT = 150 * MIB
OPTIONS: dict[str, Any] = {"image_size": (240, 320), "view": "ram"}


def _samples(budget: Budget, **options: Any) -> SampleFetcher:
    return SampleFetcher(ArrayStore([300]), Window(columns=["cam", "state"]), memory=budget, **{**OPTIONS, **options})


def _held(samples: SampleFetcher) -> int:
    return samples.numbers.in_memory_bytes + sum(view.n_bytes for view in samples.views.values())


def test_the_second_plans_with_what_the_first_leaves() -> None:
    budget = Budget(LIMIT)
    first = _samples(budget)
    assert budget.by_name() == {"views": first.views["cam"].n_bytes, "numbers": 300 * 16}
    assert _held(first) > LIMIT // 3
    second = _samples(budget)
    assert _held(first) + _held(second) == budget.used_bytes <= LIMIT
    first.close()
    first.close()
    second.close()
    assert budget.free_bytes == LIMIT


def test_a_copy_for_another_process_holds_nothing_of_its_own() -> None:
    budget = Budget(LIMIT)
    samples = _samples(budget)
    held = budget.used_bytes
    copy = pickle.loads(pickle.dumps(samples))
    assert budget.used_bytes == held and copy.limit_bytes == samples.limit_bytes
    copy.close()
    assert budget.used_bytes == held
    samples.close()
    assert not budget.used_bytes


def test_what_is_forgotten_or_not_made_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(LIMIT)
    samples = _samples(budget)
    assert budget.used_bytes
    del samples
    gc.collect()
    assert not budget.used_bytes
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", "1kB")
    with pytest.raises(LimitExceeded):
        _samples(budget, view="disk")
    assert not budget.used_bytes


def test_a_dataset_holds_its_part() -> None:
    pytest.importorskip("torch")
    from penstock.torch import Dataset

    budget = Budget(LIMIT)
    with Dataset(ArrayStore([300]), Window(columns=["cam"]), memory=budget, threads=1, **OPTIONS) as dataset:
        assert budget.used_bytes == dataset.views["cam"].n_bytes > LIMIT // 3
    assert budget.free_bytes == LIMIT


def test_a_loader_that_finds_no_room_says_who_holds_it() -> None:
    budget = Budget(LIMIT)
    words: dict[str, Any] = {"batch_size": 4, "threads": 1, "output": "numpy", "memory": budget, **OPTIONS}
    with Loader(ArrayStore([300]), Window(columns=["cam"]), **words):
        with pytest.raises(BudgetExceeded) as caught:
            Loader(ArrayStore([300]), Window(columns=["cam"]), **words)
        message = str(caught.value)
        assert "free of the Budget of 150 MiB (held by " in message
        assert all(f"{name} " in message for name in budget.by_name())
        assert 'view="off"' in message and 'memory="' not in message
        enough = int(message.partition('Budget.parse("')[2].partition("MiB")[0]) * MIB
        assert 0 <= enough - (budget.used_bytes + caught.value.size) < MIB
    with pytest.raises(BudgetExceeded, match='memory="') as caught:
        Loader(ArrayStore([300]), Window(columns=["cam"]), **{**words, "memory": 50 * MIB})
    assert "Budget of" not in str(caught.value)
