"""Trials: whole epochs where workers have short ones, halves of batches, and changes that do not help."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from penstock._src.profile.schema import decode
from penstock._src.profile.stats import LoaderInfo
from penstock._src.profile.verdict.model import Fix
from penstock._src.profile.verdict.trial import FixTrial, batch_cost
from penstock._src.profile.verdict.verdict import verdict
from penstock.errors import UsageError
from tests.profile.runs import Measured, loader_told, run, way

SIZE = 4


class Fake:
    """A DataLoader that gives the same batch some times, and notes how it was asked."""

    def __init__(self, batch: Any = 0, **told: Any) -> None:
        self.batch, self.told = batch, {"workers": 0, "prefetch_factor": None, "batches": 16, **told}
        self.begun: list[dict[str, Any]] = []
        self.ended = 0

    def describe(self) -> LoaderInfo:
        return decode(LoaderInfo, self.told)

    def variant(self, **options: Any) -> Fake:
        self.begun.append(options)
        return self

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.told["batches"] or 16):
            yield self.batch
        self.ended += 1

    def close(self) -> None:
        pass


# Whole epochs


def fix(workers: int, ms: float = 1.0) -> Fix:
    return Fix("workers", {"num_workers": workers}, ms, "")


# Halves of batches


class Sized(Fake):
    """Gives as many rows as it is asked for."""

    def variant(self, **options: Any) -> Fake:
        return Sized(np.arange(options["batch_size"]), **self.told) if options else self


def test_half_a_batch_is_one_of_the_loader_made_with_half_the_size() -> None:
    seen: list[int] = []
    cost = batch_cost(Sized(np.arange(SIZE)), lambda batch: seen.append(len(batch)), SIZE)
    assert cost is not None and cost.sizes == (2, 4) and sorted(set(seen)) == [2, 4]


def test_the_size_of_a_batch_that_processes_share_is_that_of_all_of_them() -> None:
    seen: list[int] = []
    assert batch_cost(Sized(np.arange(SIZE)), lambda batch: seen.append(len(batch)), SIZE, 3) is not None
    assert set(seen) == {6, 4}


@pytest.mark.parametrize("size", [1, SIZE])
def test_a_loader_without_half_batches_gives_nothing_and_no_traceback(size: int) -> None:
    class Fixed(Fake):
        def variant(self, **options: Any) -> Fake:
            raise UsageError("its batches have no size")

    assert batch_cost(Fixed(), lambda batch: pytest.fail("it must not run"), size) is None


def test_what_the_users_step_raises_is_his_to_see() -> None:
    def step(batch: Any) -> None:
        if len(batch) != SIZE:
            raise TypeError("this model wants four")

    with pytest.raises(TypeError, match="wants four"):
        batch_cost(Sized(np.arange(SIZE)), step, SIZE)


# What was not confirmed


@pytest.mark.parametrize(
    ("measured", "control", "factor", "is_gain"),
    [(9.0, 10.0, 1.0, True), (10.5, 10.0, 1.0, False), (10.5, None, 1.0, True), (15.0, 10.0, 2.0, True),
     (21.0, 10.0, 2.0, False)],
)  # fmt: skip
def test_a_change_helps_if_as_many_samples_take_less_than_without_it(
    measured: float, control: float | None, factor: float, is_gain: bool
) -> None:
    changed = Fix("larger batch", {"batch_size": 32}, 5.0, "", batch_factor=factor)
    assert FixTrial(changed, 5.0, measured, (measured,), control).is_gain == is_gain


def test_nothing_that_a_trial_did_not_confirm_is_called_shorter() -> None:
    made = run(61, 38, {"03b_image_decode": 118.0})
    found = verdict(made, loader=Measured(loader_told(), way("now", 6.0), way("ram", 0.02)))
    assert found.best is not None and found.sentence.endswith("a view in RAM would make the step 23 ms")
    tried = replace(found, trial=FixTrial(found.best, 23.0, 64.0, (64.0,), control_ms=60.0))
    assert "would make" not in tried.sentence and tried.sentence.endswith("23 ms, and a trial did not confirm it")
    assert any(line.startswith("tried ") and "the trial did not confirm it" in line for line in tried.lines())
    chinese = tried.lines("zh")
    assert "未能证实" in chinese[0] and any(line.startswith("已试") and "未能证实" in line for line in chinese)
    helped = replace(found, trial=FixTrial(found.best, 23.0, 24.0, (24.0,), control_ms=60.0))
    assert helped.sentence == found.sentence and not any("confirm" in line for line in helped.lines())
