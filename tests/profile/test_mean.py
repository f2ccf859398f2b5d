"""The mean of a stage is that of its calls, also of those inside a call of the same name; the total holds them once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from penstock._src.profile.difference import between
from penstock._src.profile.report.figures import stage_rows
from penstock._src.profile.report.page import render_page
from penstock._src.profile.report.table import table
from penstock._src.profile.stats import Snapshot, combine_spans
from penstock.profile import snapshot, span
from tests.profile.made import MS, empty_run, stats


def nested_run() -> Snapshot:
    """Two calls of 10 ms, in each of which there are two more of 4 ms."""
    outer, inner = stats("walk", [10 * MS] * 2, self_ns=4 * MS), stats("walk", [4 * MS] * 4, path=("walk",))
    return replace(empty_run(), spans=(outer, inner, stats("flat", [3 * MS] * 2)))


def test_the_mean_of_nested_calls_is_the_sum_of_their_durations_over_their_count() -> None:
    merged = nested_run().by_name()["walk"]
    assert (merged.count, merged.total_ns, merged.mean_ns) == (6, 20 * MS, 6 * MS)
    assert combine_spans([merged, merged]).mean_ns == 6 * MS
    row = next(each for each in stage_rows(nested_run()) if each.name == "walk")
    assert (row.count, row.total_ns, row.mean_ns) == (6, 20 * MS, 6 * MS)
    assert between(empty_run(), nested_run()).by_name()["walk"].mean_ns == 6 * MS


def test_tasks_at_once_have_a_mean_between_the_shortest_and_the_longest() -> None:
    async def io() -> None:
        with span("io"):
            await asyncio.sleep(0.01)

    async def all_of_them() -> None:
        await asyncio.gather(*[io() for _ in range(20)])

    asyncio.run(all_of_them())
    told = snapshot().by_name()["io"]
    assert told.count == 20 and told.min_ns <= told.mean_ns <= told.max_ns


def test_recursion_has_the_mean_of_its_calls_however_deep() -> None:
    @span("walk")
    def walk(depth: int) -> None:
        if depth:
            walk(depth - 1)

    walk(70)
    calls = [each for each in snapshot().spans if each.name == "walk"]
    told = snapshot().by_name()["walk"]
    assert told.count == 71 and told.mean_ns == sum(each.total_ns for each in calls) / 71
    assert told.min_ns <= told.mean_ns <= told.max_ns


def test_table_and_page_say_what_total_and_mean_are_where_they_differ() -> None:
    text = table(nested_run())
    (line,) = [each for each in text.splitlines() if each.startswith("walk")]
    assert "mean:   6.00ms" in line and "total:     0.02s" in line
    assert "in it once; mean: of all calls (walk)" in text
    assert "同名嵌套的调用只计一次" in table(nested_run(), lang="zh")
    assert "A call inside a call of the same name is in the total once" in render_page(nested_run())
    flat = replace(nested_run(), spans=nested_run().spans[2:])
    assert "once" not in table(flat) and "of the same name" not in render_page(flat)


def test_a_snapshot_keeps_its_means_in_a_file() -> None:
    told = nested_run()
    assert Snapshot.from_dict(told.to_dict()).by_name()["walk"].mean_ns == 6 * MS
