"""The snapshot as a value: there and back as JSON, merged by name, and the figures that marks and levels add up to."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import profile
from penstock._src.profile.record.histogram import Histogram, Series, bucket_of, middle_ns
from penstock._src.profile.record.machine import MAX_POINTS as MAX_MEMORY_POINTS
from penstock._src.profile.record.machine import MemorySeries
from penstock._src.profile.record.steps import MAX_POINTS, Steps
from penstock._src.profile.stats import EpochStats, LoaderInfo, Snapshot, StepPoint
from penstock.errors import OutputFailed, UsageError
from penstock.profile import count, data_wait, gauge, mark_epoch, mark_step, reset, snapshot, span
from tests.profile.made import stats

# JSON


def recorded() -> Snapshot:
    """Something of everything."""
    with span("outer"), span("inner"), data_wait():
        count("read", 3)
        gauge("depth", 0.5)
    mark_step()
    mark_epoch()
    return replace(snapshot(), loaders=(LoaderInfo(kind="a loader", threads=2),), lost={"counters": 1})


def test_a_snapshot_goes_to_a_file_and_comes_back_the_same(tmp_path: Path) -> None:
    with span("性能"), span("inner"), data_wait():
        count("bytes", 1 << 40)
        gauge("depth", 0.5)
    mark_step()
    mark_step(7)
    mark_epoch()
    taken = snapshot()
    assert Snapshot.load(taken.save(tmp_path / "RUN.json")) == taken
    assert json.loads(json.dumps(taken.to_dict(), allow_nan=False)) == taken.to_dict()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["RUN.json"]
    assert taken.events
    assert snapshot(events=False).events == ()
    assert profile.load(profile.save(tmp_path / "again.json")).counters == {"bytes": 1 << 40}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is no JSON"),
        ("[]", "this is no profile of penstock"),
        ('{"penstock_profile": 99}', "has version 99"),
        ('{"penstock_profile": 3, "spans": [3]}', "damaged"),
        ("[" * 100_000, "is no JSON"),
    ],
)
def test_a_file_that_is_no_profile_is_refused_by_name(text: str, what: str, tmp_path: Path) -> None:
    path = tmp_path / "RUN.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=what) as caught:
        Snapshot.load(path)
    assert "RUN.json" in caught.value.message
    with pytest.raises(UsageError, match=r"cannot be read"):
        Snapshot.load(tmp_path / "absent.json")
    with pytest.raises(OutputFailed, match="cannot be written"):
        Snapshot().save(tmp_path / "absent" / "RUN.json")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("spans", [{"name": "a"}]), ("spans", [3]), ("counters", {"read": 0.5}), ("gauges", {"depth": 3}),
        ("steps", {"count": "abc"}), ("memory", None), ("memory", [[1, 2]]), ("taken_at", None),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused(field: str, value: object) -> None:
    with pytest.raises(UsageError, match="the profile is damaged"):
        Snapshot.from_dict({**recorded().to_dict(), field: value})


def test_fields_that_are_not_known_are_left_alone_and_those_of_later_versions_may_be_missing() -> None:
    taken = recorded()
    whole = json.loads(json.dumps(taken.to_dict()))
    listed = [whole[name][0] for name in ("spans", "epochs", "events")]
    for each in (whole, *listed, whole["steps"], whole["gauges"]["depth"]):
        each["later"] = {"any": [None, "thing"]}
    del whole["steps"]["cpu_total_ns"]
    assert Snapshot.from_dict(whole) == taken
    del whole["steps"]["total_ns"], whole["spans"][0]["count"]
    with pytest.raises(UsageError, match=r"the profile is damaged: .*'count'"):
        Snapshot.from_dict(whole)


def test_a_file_that_is_read_and_written_again_has_the_same_bytes(tmp_path: Path) -> None:
    first = recorded().save(tmp_path / "first.json")
    assert Snapshot.load(first).save(tmp_path / "second.json").read_bytes() == first.read_bytes()


def test_an_empty_snapshot_has_all_figures() -> None:
    empty = Snapshot()
    assert (empty.by_name(), empty.steps.wait_share, empty.duration_ns, empty.counters["any"]) == ({}, 0.0, 0, 0)
    assert Snapshot.from_dict(empty.to_dict()) == empty
    assert "0 spans" in repr(empty)


def test_the_package_offers_functions_whatever_modules_were_imported() -> None:

    assert callable(profile.snapshot)
    assert callable(profile.table)
    assert callable(profile.verdict)
    assert all(callable(getattr(profile, name)) for name in profile.__all__)
    assert profile.__all__ == sorted(profile.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        profile.nothing  # type: ignore[attr-defined]


# Histograms


@settings(max_examples=100)
@given(st.integers(1, (1 << 48) - 1))
def test_a_bucket_stands_for_what_is_in_it(duration_ns: int) -> None:
    assert middle_ns(bucket_of(duration_ns)) == pytest.approx(duration_ns, rel=0.06, abs=1)


def test_a_duration_beyond_the_last_bucket_is_counted_in_it() -> None:
    histogram = Histogram()
    for each in (0, 1 << 62):
        histogram.add(each)
    assert (histogram.count, histogram.durations().p99_ns) == (2, 1 << 62)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(1, 10**12), min_size=1, max_size=40), min_size=1, max_size=5))
def test_merged_percentiles_are_those_of_all_durations(parts: list[list[int]]) -> None:
    spans = [stats("x", part, thread=str(thread)) for thread, part in enumerate(parts)]
    merged = Snapshot(spans=tuple(spans)).by_name()["x"]
    together = [each for part in parts for each in part]
    assert (merged.count, merged.total_ns, merged.min_ns, merged.max_ns) == (
        len(together), sum(together), min(together), max(together)
    )  # fmt: skip
    for fraction, found in ((0.5, merged.p50_ns), (0.95, merged.p95_ns), (0.99, merged.p99_ns)):
        assert found == pytest.approx(np.quantile(together, fraction, method="inverted_cdf"), rel=0.06, abs=1)
    assert sum(count for _, count in merged.histogram) == len(together)


# Steps and epochs


def test_a_step_reaches_from_mark_to_mark_and_holds_its_waits() -> None:
    marks = Steps()
    marks.add_wait(100, 30)
    marks.mark_step(None, 200)  # the first begins with its wait
    marks.add_wait(200, 10)
    marks.add_wait(250, 5)
    marks.mark_step(None, 300)
    told = marks.stats()
    assert told.series == (StepPoint(0, 100, 100, 30), StepPoint(1, 200, 100, 15))
    assert (told.count, told.total_ns, told.wait_total_ns, told.mean_ns) == (2, 200, 45, 100.0)
    assert told.wait_share == pytest.approx(0.225)


def test_the_first_mark_without_a_wait_starts_the_clock() -> None:
    marks = Steps()
    marks.mark_step(None, 100)
    assert marks.stats().count == 0
    marks.mark_step(41, 150)
    marks.mark_step(None, 190)
    assert [(each.step, each.duration_ns) for each in marks.stats().series] == [(41, 50), (42, 40)]


def test_what_lies_between_epochs_belongs_to_no_step() -> None:
    marks = Steps()
    marks.add_wait(0, 10)
    marks.mark_step(None, 100)
    marks.mark_epoch(None, 110)
    marks.add_wait(1000, 20)
    marks.mark_step(None, 1100)
    marks.mark_epoch(5, 1110)
    assert [each.duration_ns for each in marks.stats().series] == [100, 100]
    assert marks.stats().wait_total_ns == 30
    assert marks.epochs() == (EpochStats(0, 0, 110, 1, 100, 10), EpochStats(5, 110, 1000, 1, 100, 20))


def test_a_long_series_is_thinned_and_keeps_its_sum() -> None:
    series = Series(MAX_POINTS, lambda points: points[0])
    for step in range(100_000):
        series.add(StepPoint(step, step * 10, 10, 2))
        if step % 997 == 0:
            assert len(series.points) <= MAX_POINTS
    points = series.points
    assert len(points) > MAX_POINTS // 4
    assert [each.step for each in points] == list(range(0, 100_000, series.per_point))
    assert {(each.duration_ns, each.wait_ns) for each in points} == {(10, 2)}


def test_the_memory_over_time_is_bounded() -> None:
    series = MemorySeries()
    for _ in range(10_000):
        series.sample()
    points = series.points
    assert MAX_MEMORY_POINTS // 4 < len(points) < MAX_MEMORY_POINTS
    assert points[0].tree_pss_bytes > 0


def test_steps_take_memory_along() -> None:
    for _ in range(3):
        with data_wait():
            pass
        mark_step()
    taken = snapshot()
    assert taken.steps.count == 3
    assert taken.by_name()["data_wait"].count == 3
    assert 0 < taken.steps.wait_total_ns <= taken.steps.total_ns
    assert taken.machine["cores"] >= 1
    assert taken.machine["memory_bytes"] > 0


def test_a_wait_that_failed_is_no_wait() -> None:
    with pytest.raises(StopIteration), data_wait():
        raise StopIteration
    mark_step()
    assert snapshot().steps.count == 0


# Counters and gauges


def test_counters_and_gauges_are_summed_over_threads() -> None:
    def work(n: int) -> None:
        for each in range(n):
            count("bytes", each)
            gauge("depth", each)

    threads = [threading.Thread(target=work, args=(n,)) for n in (10, 100, 1000)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    count("bytes", -5)
    taken = snapshot()
    assert taken.counters["bytes"] == 45 + 4950 + 499_500 - 5
    told = taken.gauges["depth"]
    assert (told.count, told.min, told.max) == (1110, 0, 999)
    assert told.mean == pytest.approx((45 + 4950 + 499_500) / 1110)


def test_counters_and_gauges_without_room_are_told() -> None:
    def work() -> None:
        for each in range(100):
            count(f"counter {each}")
            gauge(f"gauge {each}", 1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    taken = snapshot()
    assert len(taken.counters) + len(taken.gauges) + taken.lost["counters"] == 200
    reset()
    assert snapshot().lost == {}
