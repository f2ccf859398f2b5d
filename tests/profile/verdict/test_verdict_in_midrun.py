"""A verdict with a trial in the midst of a training: it leaves record, order and random numbers alone, and is about the
loader that feeds the training."""

from __future__ import annotations

import importlib
import random
import time
from typing import Any

import numpy as np
import pytest

from penstock import profile
from penstock._src.profile.record.registry import tunable_of
from penstock._src.profile.verdict.trial import preserved_rng_state

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data import Dataset as TorchDataset  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*worker processes in total:UserWarning"),
]


class Slow(TorchDataset[Any]):
    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        time.sleep(self.seconds)
        return torch.tensor(index)


def numbers(loader: Any) -> list[int]:
    return [int(each) for batch in loader for each in batch]


@pytest.mark.parametrize("own_generator", [True, False])
def test_the_order_of_the_training_goes_on_as_without_a_trial(own_generator: bool) -> None:
    def second_pass(check: bool) -> tuple[list[int], float, float, float]:
        profile.reset()
        torch.manual_seed(3)
        random.seed(3)
        np.random.seed(3)
        generator = torch.Generator().manual_seed(1) if own_generator else None
        loader = profile.attach(DataLoader(Slow(40, 0.002), batch_size=4, shuffle=True, generator=generator))
        numbers(loader)
        if check:
            profile.verdict(check=True, seconds=0.02, step=lambda batch: torch.rand(3))
        return numbers(loader), float(torch.rand(1)), random.random(), float(np.random.random())

    assert second_pass(False) == second_pass(True)


def test_shared_generators_stand_where_they_stood() -> None:
    with preserved_rng_state():
        before = random.random(), np.random.random(), float(torch.rand(1))
    assert before == (random.random(), np.random.random(), float(torch.rand(1)))


def test_open_spans_and_steps_know_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    module, spent_ns = importlib.import_module("penstock._src.profile.verdict.verdict"), 0
    judge = module._judged

    def timed(*words: Any) -> Any:
        nonlocal spent_ns
        began_ns = time.perf_counter_ns()
        found = judge(*words)
        spent_ns = time.perf_counter_ns() - began_ns
        return found

    monkeypatch.setattr(module, "_judged", timed)
    loader = profile.attach(DataLoader(Slow(60, 0.001), batch_size=2))
    with profile.span("run"):
        for number, _ in enumerate(loader):
            if number == 15:
                profile.verdict(check=True, seconds=0.3)
    told = profile.snapshot()
    assert told.by_name()["run"].count == 1 and told.by_name()["00_TOTAL_getitem"].count == 60
    assert told.steps.count == 30 and spent_ns > 0
    assert told.steps.total_ns <= told.by_name()["run"].total_ns - spent_ns


def test_it_is_about_the_loader_that_feeds_the_training() -> None:
    training = profile.attach(DataLoader(Slow(24, 0.004), batch_size=2, num_workers=1, persistent_workers=True))
    validation = profile.attach(DataLoader(Slow(80, 0.0), batch_size=2))
    for _ in range(2):
        for _ in training:
            time.sleep(0.001)
        with torch.no_grad():
            for _ in validation:
                pass
    found = profile.verdict()
    assert found.now.threads == 1 and found.timing.steps <= 24
    tunable_of(training).close()
