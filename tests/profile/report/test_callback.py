"""The flat dict for loggers: names, units, and values between two snapshots."""

from __future__ import annotations

import json
import math

import pytest

from penstock._src.profile.report.callback import callback
from penstock._src.profile.stats import GaugeStats, Snapshot, StepStats, between, sums
from tests.profile.made import MAIN, MS, START_NS, empty_run, stats, training_run


def test_values_have_the_names_and_units_that_are_promised() -> None:
    run = training_run(100)
    values = callback(snapshot=run)
    decode = run.by_name()["03b_image_decode"]
    assert values["penstock/data_wait_share"] == run.steps.wait_share
    assert values["penstock/03b_image_decode/p95_ms"] == decode.p95_ns / 1e6
    assert values["penstock/03b_image_decode/calls"] == decode.count
    assert values["penstock/step/p50_ms"] == run.steps.p50_ns / 1e6
    assert values["penstock/21_backward [GPU]/mean_ms"] == 19.0
    assert values["penstock/counters/images_decoded"] == 1600.0
    assert values["penstock/memory/rss_bytes"] == run.memory[-1].rss_bytes


def test_every_value_is_a_finite_float_and_every_key_one_line() -> None:
    run = training_run(30, extra_name="a/b\nc")
    odd = Snapshot(
        spans=run.spans, steps=run.steps, process=MAIN, gauges={"q": GaugeStats(math.nan, math.inf, 0, 0, 1)}
    )
    for values in (callback(snapshot=run), callback(snapshot=odd), callback(snapshot=empty_run())):
        assert all(type(value) is float and math.isfinite(value) for value in values.values())
        assert all(key.isprintable() and key.startswith("penstock/") for key in values)
        json.dumps(values, allow_nan=False)
    assert callback(snapshot=run)["penstock/a_b\\nc/calls"] == 1.0
    assert "penstock/gauges/q" not in callback(snapshot=odd)


def test_values_since_a_snapshot_are_those_of_the_time_between() -> None:
    common = {"process": MAIN, "start_ns": START_NS}
    before = Snapshot(
        spans=(stats("a", [10 * MS] * 100, thread="x"),),
        steps=StepStats(count=10, total_ns=1000 * MS, wait_total_ns=900 * MS),
        taken_ns=START_NS + 10**9,
        **common,  # type: ignore[arg-type]
    )
    after = Snapshot(
        spans=(stats("a", [10 * MS] * 100 + [2 * MS] * 50, thread="x"), stats("new", [MS])),
        steps=StepStats(count=30, total_ns=1200 * MS, wait_total_ns=910 * MS),
        taken_ns=START_NS + 2 * 10**9,
        **common,  # type: ignore[arg-type]
    )
    values = callback(before, snapshot=after)
    assert values["penstock/a/calls"] == 50
    assert values["penstock/a/mean_ms"] == 2.0
    assert values["penstock/a/p95_ms"] == pytest.approx(2.0, rel=0.06)
    assert values["penstock/data_wait_share"] == pytest.approx(10 / 200)
    assert values["penstock/step/mean_ms"] == 10.0
    assert values["penstock/steps"] == 30
    assert values["penstock/new/calls"] == 1
    assert between(sums(before), after).spans == between(before, after).spans


def test_threads_of_one_name_are_not_taken_for_each_other() -> None:
    before = Snapshot(spans=(stats("a", [MS] * 5), stats("a", [MS] * 100)), process=MAIN)
    after = Snapshot(spans=(stats("a", [MS] * 6), stats("a", [MS] * 120)), process=MAIN)
    assert sum(each.count for each in between(before, after).spans) == 21


def test_after_a_reset_everything_is_new() -> None:
    before = Snapshot(spans=(stats("a", [MS] * 5),), process=MAIN, start_ns=1)
    after = Snapshot(spans=(stats("a", [MS] * 7),), process=MAIN, start_ns=2)
    assert between(before, after) is after
