"""Trials: whole epochs where workers have short ones, halves of batches of any build, and changes that do not help."""

from __future__ import annotations

import collections
import types
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock._src.profile.diagnosis.case import Fix
from penstock._src.profile.diagnosis.trial import FixTrial, batch_cost, try_fix
from penstock._src.profile.diagnosis.verdict import verdict
from penstock.errors import UsageError
from tests.profile.runs import Measured, loader_told, run, way

SIZE = 4


class Fake:
    """A DataLoader that gives the same batch some times, and notes how it was asked."""

    def __init__(self, batch: Any = 0, **told: Any) -> None:
        self.batch, self.told = batch, {"workers": 0, "prefetch_factor": None, "batches": 16, **told}
        self.begun: list[dict[str, Any]] = []
        self.ended = 0

    def describe(self) -> dict[str, Any]:
        return dict(self.told)

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


@pytest.mark.parametrize(
    ("workers", "told", "is_whole"),
    [
        (4, {}, True),
        (1, {"prefetch_factor": 4}, True),
        (1, {"batches": 17}, False),  # long enough for a steady state
        (4, {"batches": None}, False),  # a stream
        (0, {}, False),
    ],
)
def test_short_epochs_of_workers_are_gone_through_whole(workers: int, told: dict[str, Any], is_whole: bool) -> None:
    subject = Fake(**told)
    trial = try_fix(subject, fix(workers), lambda batch: None, seconds=0.0, control=True)
    assert subject.begun == [{}, {"num_workers": workers}, {}]
    whole = 4 + 2 * 2  # one that does not count, then one for each window; twice those of the control
    assert (subject.ended == whole) == is_whole and len(trial.windows_ms) == 3


def test_an_epoch_of_the_present_workers_may_be_too_short_as_well() -> None:
    subject = Fake(workers=2)
    try_fix(subject, Fix("persistent workers", {"persistent_workers": True}, 1.0, ""), lambda batch: None, seconds=0.0)
    assert subject.ended == 4


def test_nobody_waits_for_whole_epochs_that_take_long() -> None:
    with pytest.raises(UsageError, match="only over whole epochs, and one takes 32 s"):
        try_fix(Fake(), fix(4), lambda batch: None, seconds=0.0, batch_ms=2000.0)


# Halves of batches


class Pair(NamedTuple):
    image: Any
    name: Any


class Own(dict[str, Any]):
    """A batch of somebody's own kind."""

    scale = 3


ROWS = np.arange(SIZE)
NAMES = ["a", "b", "c", "d"]


def sizes(batch: Any) -> Any:
    """The same thing with lengths in it."""
    if isinstance(batch, Mapping):
        return {name: sizes(each) for name, each in batch.items()}
    if isinstance(batch, (list, tuple)) and not all(isinstance(each, (str, dict)) for each in batch):
        return [sizes(each) for each in batch]
    return batch if isinstance(batch, (str, int)) else len(batch) if np.ndim(batch) else "one"


@pytest.mark.parametrize(
    ("batch", "half"),
    [
        ({"obs": {"img": ROWS}, "a": ROWS, "n": 7, "of": "four"}, {"obs": {"img": 2}, "a": 2, "n": 7, "of": "four"}),
        ([ROWS, NAMES], [2, 2]),
        ((ROWS, {"y": ROWS}, np.float32(3)), [2, {"y": 2}, "one"]),
        (Pair(ROWS, NAMES), [2, 2]),
        ([ROWS, ROWS, ROWS, ROWS], [2, 2, 2, 2]),  # as many fields as samples
        ([[ROWS], [ROWS], [ROWS], {"deep": ROWS}], [[2], [2], [2], {"deep": 2}]),
        (NAMES, 2),
        ([{"boxes": np.zeros((n, 4))} for n in (1, 2, 3, 5)], 2),  # one thing for each sample
        ({"x": ROWS, "weights": np.zeros(9)}, {"x": 2, "weights": 9}),
        (types.MappingProxyType({"x": ROWS}), {"x": 2}),
        (ROWS, 2),
    ],
)  # fmt: skip
def test_a_batch_of_any_build_has_a_half(batch: Any, half: Any) -> None:
    seen: list[Any] = []
    cost = batch_cost(Fake(batch), seen.append, SIZE)
    assert cost is not None and cost.sizes == (2, 4)
    assert sizes(seen[0]) == half and seen[1] is batch
    assert type(seen[0]) is type(batch)


def test_a_batch_of_the_users_own_kind_stays_one() -> None:
    seen: list[Any] = []
    assert batch_cost(Fake(Own(x=ROWS)), lambda batch: seen.append((type(batch), batch.scale)), SIZE) is not None
    assert set(seen) == {(Own, 3)}


@pytest.mark.parametrize(
    "batch",
    [7, "text", None, {"n": 7}, (np.zeros(3), 1), object(), {"x": {1, 2, 3, 4}}, {"d": collections.deque(NAMES)}],
)
def test_a_batch_without_a_half_gives_nothing_and_no_traceback(batch: Any) -> None:
    assert batch_cost(Fake(batch), lambda batch: pytest.fail("it must not run"), SIZE) is None


def test_what_the_users_step_raises_is_his_to_see() -> None:
    def step(batch: Any) -> None:
        if len(batch[0]) != SIZE:
            raise TypeError("this model wants four")

    with pytest.raises(TypeError, match="wants four"):
        batch_cost(Fake([ROWS, ROWS]), step, SIZE)


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
    assert FixTrial(changed, 5.0, measured, (measured,), 16, control).is_gain == is_gain


def test_nothing_that_a_trial_did_not_confirm_is_called_shorter() -> None:
    made = run(61, 38, {"03b_image_decode": 118.0})
    found = verdict(made, loader=Measured(loader_told(), way("now", 6.0), way("ram", 0.02)))
    assert found.best is not None and found.sentence.endswith("a view in RAM would make the step 23 ms")
    tried = replace(found, trial=FixTrial(found.best, 23.0, 64.0, (64.0,), 16, control_ms=60.0))
    assert "would make" not in tried.sentence and tried.sentence.endswith("23 ms, and a trial did not confirm it")
    assert any(line.startswith("tried ") and "the trial did not confirm it" in line for line in tried.lines())
    chinese = tried.lines("zh")
    assert "未能证实" in chinese[0] and any(line.startswith("已试") and "未能证实" in line for line in chinese)
    helped = replace(found, trial=FixTrial(found.best, 23.0, 24.0, (24.0,), 16, control_ms=60.0))
    assert helped.sentence == found.sentence and not any("confirm" in line for line in helped.lines())
