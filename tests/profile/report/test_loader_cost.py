"""What a loader adds to the step: a line of the table, a card of the page, and a verdict of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock import profile
from penstock._src.profile.record.steps import STEP_ALONE, STEP_BESIDE
from penstock._src.profile.report.figures import loader_cost
from penstock._src.profile.report.page import render_page
from penstock._src.profile.report.table import table
from penstock._src.profile.stats import GaugeStats, Snapshot
from tests.profile.runs import run


def compute_bound() -> Snapshot:
    """A step that hardly waits."""
    return run(61, 1.0, {"03b_image_decode": 40.0}, computing_ms={"21_backward": 36.0})


def _gauge(value: float) -> GaugeStats:
    return GaugeStats(value, value, value, value, 1)


def _with_cost(snapshot: Snapshot, alone_ms: float, beside_ms: float) -> Snapshot:
    return replace(snapshot, gauges={STEP_ALONE: _gauge(alone_ms), STEP_BESIDE: _gauge(beside_ms)})


@pytest.mark.parametrize(("beside_ms", "bound"), [(41.0, "compute"), (52.0, "loader")])
def test_a_step_that_the_loader_makes_longer_is_told(beside_ms: float, bound: str) -> None:
    snapshot = _with_cost(compute_bound(), 40.0, beside_ms)
    found = profile.verdict(snapshot, calibrate=False)
    assert found.bound == bound and found.cost is not None and found.cost.alone_ms == 40.0
    assert found.to_dict()["step_with_loader_ms"] == beside_ms
    is_told = found.sentence.startswith("slowed by the loader: the step takes 52 ms while the loader works and 40 ms")
    assert is_told == (bound == "loader")
    assert any("threads=" in note or "engine=" in note for note in found.notes) == (bound == "loader")
    assert ("被加载器拖慢" in found.lines("zh")[0]) == (bound == "loader")


def test_the_table_and_the_page_show_it() -> None:
    snapshot = _with_cost(compute_bound(), 40.0, 52.0)
    assert "step alone: 40.0 ms, with the loader at work: 52.0 ms (1.30×)" in table(snapshot)
    assert "52.0 ms while it works, 40.0 ms while it rests" in render_page(snapshot)


def test_without_a_measurement_nothing_is_shown() -> None:
    assert loader_cost(compute_bound()) is None
    assert "step alone" not in table(compute_bound())
