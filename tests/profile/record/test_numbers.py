"""Numbers that a user's code tells: tensors and numpy's are plain ones from the door on, and a file takes anything."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import profile
from penstock._src.profile.record.machine import _machine, tell_machine
from penstock.errors import UsageError
from penstock.profile import snapshot

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def machine_as_before() -> Iterator[None]:
    before = dict(_machine)
    yield
    _machine.clear()
    _machine.update(before)


# Gauges, counters, durations


def test_a_gauge_keeps_no_tensor_and_no_graph() -> None:
    layer = torch.nn.Linear(4, 4)
    graphs = []
    for _ in range(3):
        inputs = torch.randn(2, 4)
        graphs.append(weakref.ref(inputs))
        loss = layer(inputs).square().mean()
        profile.gauge("loss", loss)
    del inputs, loss
    assert [graph() for graph in graphs] == [None] * 3
    assert snapshot().gauges["loss"].count == 3


@pytest.mark.parametrize(
    "value",
    [2, 2.0, True + 1, np.float32(2), np.int8(2), np.array(2.0), torch.tensor(2), torch.tensor([2.0]), Fraction(2)],
)
def test_whatever_is_a_number_is_told(value: Any) -> None:
    profile.gauge("level", value)
    profile.log_timing("elsewhere", value)
    told = snapshot()
    assert (told.gauges["level"].last, told.by_name()["elsewhere"].total_ns) == (2.0, 2_000_000_000)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float32("nan"), torch.tensor(math.nan), 10**400])
def test_what_is_not_finite_tells_nothing(value: Any) -> None:
    profile.gauge("level", value)
    profile.log_timing("elsewhere", value)
    told = snapshot()
    assert told.gauges == {} and "elsewhere" not in told.by_name()


@pytest.mark.parametrize("value", ["2", [2], 2j, object(), torch.zeros(2), np.zeros(2)])
def test_what_is_no_number_is_refused_by_the_name_of_the_call(value: Any) -> None:
    with pytest.raises(UsageError, match=r"gauge\(name, value\): a number is needed, not a "):
        profile.gauge("level", value)
    with pytest.raises(UsageError, match=r"log_timing\(name, seconds\): a number is needed, not a "):
        profile.log_timing("elsewhere", value)
    profile.disable()
    profile.gauge("level", value)  # a switch that is off looks at nothing
    profile.enable()


def test_a_counter_takes_whole_numbers_of_any_kind() -> None:
    for n in (1, True, np.int64(2), np.uint8(3), torch.tensor(4)):
        profile.count("seen", n)
    assert snapshot().counters["seen"] == 11 and type(snapshot().counters["seen"]) is int
    for wrong in (1.5, "3", float("nan"), torch.tensor(1.0), None):
        with pytest.raises(UsageError, match=r"count\(name, n\): a whole number is needed, not a "):
            profile.count("seen", wrong)  # type: ignore[arg-type]
    assert snapshot().counters["seen"] == 11


# Marks


def test_marks_take_whole_numbers_of_any_kind_and_the_record_is_saved(tmp_path: Path) -> None:
    for epoch in np.arange(2):
        for step in np.arange(5):
            profile.mark_step(step)
        profile.mark_epoch(epoch)
    profile.mark_step(torch.tensor(7))
    profile.mark_epoch(torch.tensor(3))
    told = snapshot()
    assert [point.step for point in told.steps.series][-5:] == [1, 2, 3, 4, 7]
    assert [each.epoch for each in told.epochs] == [0, 1, 3]
    assert profile.load(profile.save(tmp_path / "run.json")).epochs == told.epochs


@pytest.mark.parametrize("wrong", [1.0, "warm", torch.tensor(0.5), np.zeros(2)])
def test_a_mark_that_is_no_whole_number_is_refused_where_it_is_made(wrong: Any) -> None:
    with pytest.raises(UsageError, match=r"mark_step\(number\): "):
        profile.mark_step(wrong)
    with pytest.raises(UsageError, match=r"mark_epoch\(number\): "):
        profile.mark_epoch(wrong)
    assert snapshot().epochs == ()


# Whatever was told of the machine


def test_what_is_no_json_value_is_saved_as_one_and_comes_back(tmp_path: Path) -> None:
    tell_machine(
        nan=math.nan, far=10**400, storage=np.float32(1.5), node=np.int64(3), ranks=np.arange(3), shared=np.bool_(True),
        speed=torch.tensor([1.0, math.inf]), where=Path("/data"), name="half \ud800", some={1: (2, {3})},
    )  # fmt: skip
    path = profile.save(tmp_path / "run.json")
    found = profile.load(path).machine
    expected = {
        "nan": None, "far": None, "storage": 1.5, "node": 3, "ranks": [0, 1, 2], "shared": True, "speed": [1.0, None],
        "where": "/data", "name": "half ?", "some": {"1": [2, [3]]},
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert json.loads(path.read_text())["machine"] == found
    assert "half ?" in profile.export_html(tmp_path / "run.html").read_text()
