"""Spans of one process: nesting and self time, folding, names without end, order, switching, decorators."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import profile
from penstock._src.profile.record.board import open_board
from penstock._src.profile.record.layout import OTHER
from penstock._src.profile.record.spans import paused, record, record_calls
from penstock._src.profile.stats import SpanEvent, SpanStats
from penstock.errors import UsageError
from penstock.profile import log_timing, reset, snapshot, span


def by_path() -> dict[tuple[str, ...], SpanStats]:
    """The spans of this thread, by parents and name."""
    here = threading.current_thread().name
    told = [each for each in snapshot().spans if each.thread == here and each.process == os.getpid()]
    return {(*each.path, each.name): each for each in told}


def run_in_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# Nesting

Tree = tuple[str, list[Any], bool]
trees = st.recursive(
    st.tuples(st.sampled_from("abc"), st.just([]), st.booleans()),
    lambda inner: st.tuples(st.sampled_from("abcd"), st.lists(inner, max_size=4), st.booleans()),
    max_leaves=25,
)


class Expected(Exception):
    """Thrown inside spans."""


def walk(tree: Tree) -> None:
    name, children, fails = tree
    try:
        with span(name):
            for child in children:
                walk(child)
            if fails:
                raise Expected
    except Expected:
        pass


def count_paths(tree: Tree, path: tuple[str, ...], counts: dict[tuple[str, ...], int]) -> None:
    path = (*path, tree[0])
    counts[path] = counts.get(path, 0) + 1
    for child in tree[1]:
        count_paths(child, path, counts)


def own_events() -> list[SpanEvent]:
    return [event for thread in snapshot().events if thread.process == os.getpid() for event in thread.events]


def reference(events: list[SpanEvent]) -> dict[str, tuple[int, int, int]]:
    """(calls, total without calls inside themselves, self) of each name, from the intervals alone."""
    found: dict[str, tuple[int, int, int]] = {}
    stack: list[tuple[SpanEvent, list[int]]] = []

    def close() -> None:
        event, inner = stack.pop()
        calls, total, own = found.get(event.name, (0, 0, 0))
        is_inside = any(open_one.name == event.name for open_one, _ in stack)
        found[event.name] = (
            calls + 1, total + (0 if is_inside else event.duration_ns), own + event.duration_ns - sum(inner)
        )  # fmt: skip
        if stack:
            stack[-1][1].append(event.duration_ns)

    for event in sorted(events, key=lambda each: (each.start_ns, -each.duration_ns, each.depth)):
        while stack and event.start_ns >= stack[-1][0].start_ns + stack[-1][0].duration_ns:
            close()
        stack.append((event, []))
    while stack:
        close()
    return found


@settings(max_examples=30, derandomize=True)  # a page has room for 256 names under parents, also for those of tests
@given(st.lists(trees, max_size=4))
def test_counts_totals_and_self_times_are_those_of_the_intervals(forest: list[Tree]) -> None:
    reset()
    for tree in forest:
        walk(tree)
    expected = reference(own_events())
    found = {name: (each.count, each.total_ns, each.self_ns) for name, each in snapshot().by_name().items()}
    assert found == expected
    counts: dict[tuple[str, ...], int] = {}
    for tree in forest:
        count_paths(tree, (), counts)
    shallow = {path: n for path, n in counts.items() if all(path.count(name) <= 2 for name in path)}
    told = by_path()
    assert sum(each.count for each in told.values()) == sum(counts.values())
    # What lies more than twice inside itself is counted at the second place.
    assert all(told[path].count >= n for path, n in shallow.items())
    assert all(each.min_ns <= each.p50_ns <= each.p95_ns <= each.p99_ns <= each.max_ns for each in told.values())


def test_the_self_times_of_a_tree_add_up_to_its_root() -> None:
    for _ in range(2000):
        with span("root"):
            with span("left"), span("leaf"):
                pass
            with span("right"):
                pass
    told = by_path()
    assert sum(each.self_ns for each in told.values()) == told[("root",)].total_ns
    assert {path: each.count for path, each in told.items()} == {
        ("root",): 2000, ("root", "left"): 2000, ("root", "left", "leaf"): 2000, ("root", "right"): 2000,
    }  # fmt: skip


def test_a_span_that_ends_by_an_exception_is_recorded_and_the_exception_goes_on() -> None:
    with pytest.raises(Expected), span("outer"), span("inner"):
        raise Expected
    with span("after"):
        pass
    assert set(by_path()) == {("outer",), ("outer", "inner"), ("after",)}


def test_recursion_counts_every_call_and_the_time_once() -> None:
    def down(depth: int) -> None:
        with span("down"):
            if depth:
                down(depth - 1)

    down(99)
    merged = snapshot().by_name()["down"]
    outermost = max(own_events(), key=lambda each: each.duration_ns)
    assert (merged.count, merged.total_ns) == (100, outermost.duration_ns)
    assert merged.self_ns == merged.total_ns
    assert len(by_path()) <= 65


def test_mutual_recursion_takes_a_bounded_number_of_rows() -> None:
    def ping(depth: int) -> None:
        with span("ping" if depth % 2 else "pong"):
            if depth:
                ping(depth - 1)

    ping(199)
    merged = snapshot().by_name()
    assert (merged["ping"].count, merged["pong"].count) == (100, 100)
    assert len(by_path()) <= 66


# Sums and percentiles


@pytest.mark.parametrize("n", [1, 5, 1023, 1024, 1025, 4096, 20_000])
def test_percentiles_are_within_six_percent_of_the_true_ones(n: int) -> None:
    durations = np.random.default_rng(n).lognormal(13, 2.0, n).astype(np.int64) + 1
    for each in durations.tolist():
        record("work", each)
    told = snapshot().by_name()["work"]
    assert (told.count, told.total_ns, told.min_ns, told.max_ns) == (
        n, durations.sum(), durations.min(), durations.max()
    )  # fmt: skip
    for fraction, found in ((0.50, told.p50_ns), (0.95, told.p95_ns), (0.99, told.p99_ns)):
        true = np.quantile(durations, fraction, method="inverted_cdf")
        assert found == pytest.approx(true, rel=0.06)


def test_durations_of_nothing_and_below_are_kept_as_nothing() -> None:
    for each in (0, 1, 1 << 40, -5):
        record("odd", each)
    told = snapshot().by_name()["odd"]
    assert (told.count, told.total_ns, told.min_ns, told.max_ns) == (4, (1 << 40) + 1, 0, 1 << 40)


def test_what_took_longer_than_the_machine_is_up_is_counted() -> None:
    up_ns = time.perf_counter_ns()
    record("longer", up_ns + 10**12)
    record_calls("longer still", 2 * up_ns + 10**12, 7)
    merged = snapshot().by_name()
    assert (merged["longer"].total_ns, merged["longer still"].count) == (up_ns + 10**12, 7)


def test_durations_beyond_all_measure_count_as_the_longest() -> None:
    for seconds in (1e20, 1e300, 1e308):
        log_timing("far", seconds)
    record("further", 10**30)
    told = snapshot().by_name()
    assert (told["far"].count, told["far"].min_ns, told["far"].total_ns) == (3, 1 << 56, 3 << 56)
    assert told["further"].total_ns == told["further"].self_ns == 1 << 56


def test_log_timing_is_a_span_or_records_seconds() -> None:
    with span("outer"):
        with log_timing("inner"):
            pass
        log_timing("elsewhere", 0.25)
    told = by_path()
    assert told["outer", "elsewhere"].total_ns == 250_000_000
    # It was measured elsewhere: the span that is open does not lose it.
    assert told["outer",].self_ns == told["outer",].total_ns - told["outer", "inner"].total_ns


# Names


def test_names_without_end_are_counted_together_and_none_is_lost() -> None:
    def work() -> None:
        for number in range(5000):
            with span(f"item {number}"), span("inside"):
                pass

    run_in_thread(work)
    merged = snapshot().by_name()
    assert sum(each.count for each in merged.values()) == 10_000
    assert merged[OTHER].count > 9_000
    assert merged[OTHER].self_ns <= merged[OTHER].total_ns
    # The next thread does not inherit the full page.
    run_in_thread(lambda: record("one more", 1))
    assert snapshot().by_name()["one more"].count == 1


def test_long_names_stay_apart_and_any_text_is_a_name() -> None:
    names = ["é" * 300 + "1", "é" * 300 + "2", " ", "线程", "a\nb", "\udc80"]
    for name in names:
        with span(name):
            pass
    assert len(by_path()) == len(names)
    assert all(len(path[-1].encode()) <= 112 for path in by_path())


def test_an_empty_name_is_refused() -> None:
    for use in (span, log_timing):
        with pytest.raises(UsageError, match="empty"):
            use("")
    profile.disable()
    with pytest.raises(UsageError, match="empty"):
        span("")
    assert snapshot().spans == ()


# Order


def test_a_generator_that_holds_a_span_open_does_not_disturb_the_counts() -> None:
    def holding() -> Iterator[int]:
        with span("held"):
            yield 1

    with span("outer"):
        held = holding()
        next(held)
    with span("later"):
        assert next(held, None) is None
    told = snapshot().by_name()
    assert {name: each.count for name, each in told.items()} == {"outer": 1, "held": 1, "later": 1}
    assert told["held"].total_ns <= told["outer"].total_ns  # it ends with the span around it
    with span("clean"):
        pass
    assert ("clean",) in by_path()


def test_a_span_whose_end_never_came_ends_with_its_parent() -> None:
    with span("outer"):
        span("lost").__enter__()
    with span("after"):
        pass
    assert set(by_path()) == {("outer",), ("outer", "lost"), ("after",)}


def test_an_end_without_a_beginning_records_nothing() -> None:
    with span("outer"):
        span("never").__exit__(None, None, None)
    assert set(by_path()) == {("outer",)}


def test_one_span_object_serves_all_threads() -> None:
    held = span("shared")
    barrier = threading.Barrier(4)

    def work() -> None:
        barrier.wait(60)
        for _ in range(500):
            with held, held:
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    merged = snapshot().by_name()["shared"]
    assert merged.count == 4000
    assert merged.self_ns <= merged.total_ns


# Decorators


def test_a_decorated_function_is_timed_under_its_name_or_another() -> None:
    @span
    def plain(x: int) -> int:
        """Doc."""
        return x + 1

    @span("named")
    def other(*, y: int) -> int:
        return y

    assert (plain(1), other(y=3), plain.__name__, plain.__doc__) == (2, 3, "plain", "Doc.")
    names = set(snapshot().by_name())
    assert names == {plain.__qualname__, "named"}


def test_a_function_decorated_while_disabled_is_the_function_itself() -> None:
    def work() -> None: ...

    profile.disable()
    assert span("name")(work) is work
    assert span(work) is work


def test_a_decorated_generator_is_timed_between_its_yields() -> None:
    @span("steps")
    def numbers() -> Iterator[int]:
        got = yield 1
        assert got == "x"
        yield 2

    running: Any = numbers()
    assert next(running) == 1
    with span("outside"):
        pass
    assert running.send("x") == 2
    assert list(running) == []
    told = by_path()
    assert told["steps",].count == 3
    assert ("outside",) in told


def test_a_decorated_coroutine_is_timed_from_call_to_end() -> None:
    @span("wait")
    async def wait(n: int) -> int:
        await asyncio.sleep(0)
        return n

    async def both() -> list[int]:
        return list(await asyncio.gather(wait(1), wait(2)))

    assert asyncio.run(both()) == [1, 2]
    assert by_path()["wait",].count == 2


def test_something_else_than_a_name_is_refused() -> None:
    with pytest.raises(UsageError, match="int: it is no function"):
        span(3)  # type: ignore[call-overload]


# On and off


def test_off_records_nothing_and_spans_that_somebody_holds_obey() -> None:
    held = span("held")
    profile.disable()
    assert not profile.is_enabled()
    with held, span("new"):
        profile.count("bytes", 3)
        profile.gauge("depth", 1)
        profile.mark_step()
        log_timing("seconds", 1.0)
    assert os.environ["PENSTOCK_PROFILE"] == "0"
    profile.enable()
    with held:
        pass
    taken = snapshot()
    assert {name: each.count for name, each in taken.by_name().items()} == {"held": 1}
    assert (dict(taken.counters), dict(taken.gauges), taken.steps.count) == ({}, {}, 0)


def test_a_span_that_is_open_when_it_is_switched_off_counts_when_it_ends() -> None:
    with span("outer"):
        profile.disable()
        with span("while off"):
            profile.enable()
            with span("on again"):
                pass
    with span("after"):
        pass
    assert set(by_path()) == {("outer",), ("outer", "on again"), ("after",)}


# Pauses


def counts() -> dict[str, int]:
    return {name: each.count for name, each in snapshot().by_name().items()}


def test_a_pause_records_nothing_and_what_was_open_goes_on() -> None:
    held = span("held")
    with span("outer"), held:
        with span("before"):
            pass
        with paused():
            assert not profile.is_enabled() and os.environ["PENSTOCK_PROFILE"] == "0"
            with span("new"), span("outer"):
                profile.count("bytes", 3)
                profile.gauge("depth", 1)
                profile.mark_step()
                record("elsewhere", 5)
            time.sleep(0.01)
            assert counts() == {"before": 1}
        assert profile.is_enabled() and os.environ["PENSTOCK_PROFILE"] == "1"
        with span("after"), held:
            pass
    assert set(by_path()) == {
        ("outer",), ("outer", "held"), ("outer", "held", "before"), ("outer", "held", "after"),
        ("outer", "held", "after", "held"),
    }  # fmt: skip
    told, taken = by_path(), snapshot()
    assert all(each.count == 1 for each in told.values())
    assert told["outer", "held"].self_ns >= 10_000_000  # the pause is its own time
    assert sum(each.self_ns for each in told.values()) == told["outer",].total_ns
    assert (dict(taken.counters), dict(taken.gauges), taken.steps.count) == ({}, {}, 0)


def test_spans_of_other_threads_are_counted_whole_in_and_after_a_pause() -> None:
    began, go_on, ended, last = (threading.Event() for _ in range(4))

    def work() -> None:
        with span("long"):
            with span("short"):
                began.set()
                assert go_on.wait(60)
                with span("in the pause"):
                    pass
            ended.set()
            assert last.wait(60)

    thread = threading.Thread(target=work)
    thread.start()
    assert began.wait(60)
    with paused():
        go_on.set()
        assert ended.wait(60)
        run_in_thread(lambda: span("of a new thread").__enter__())
        assert counts() == {"short": 1}  # it was open when the pause began
    last.set()
    thread.join()
    assert counts() == {"short": 1, "long": 1}


@pytest.mark.parametrize("name", ["same", "other"])
def test_a_span_that_begins_in_a_pause_and_ends_later_is_not_recorded(name: str) -> None:
    pause = paused()
    with span("same"):
        pause.__enter__()
        with span(name):
            pause.__exit__(None, None, None)
            with span("inside"):
                pass
            time.sleep(0.01)
        assert counts() == {"inside": 1}
        with span("next"):
            pass
    told = by_path()
    assert {path: each.count for path, each in told.items()} == {
        ("same",): 1, ("same", "inside"): 1, ("same", "next"): 1,
    }  # fmt: skip
    inner = told["same", "inside"].total_ns + told["same", "next"].total_ns
    assert told["same",].self_ns == told["same",].total_ns - inner >= 10_000_000


def test_a_generator_that_holds_a_span_of_a_pause_open_does_not_disturb_the_counts() -> None:
    def holding() -> Iterator[int]:
        with span("held"):
            yield 1

    held = holding()
    with span("outer"), paused():
        next(held)
    with span("later"), span("held"):
        pass
    assert next(held, None) is None
    assert counts() == {"outer": 1, "later": 1, "held": 1}
    with span("clean"):
        pass
    assert ("clean",) in by_path()


def test_the_environment_switches_off_and_nothing_is_made() -> None:
    code = (
        "import os; from penstock import profile\n"
        "with profile.span('a'): profile.count('b')\n"
        "def f(): pass\n"
        "assert profile.span('x')(f) is f and not profile.is_enabled()\n"
        "assert profile.snapshot().spans == () and 'PENSTOCK_PROFILE_BOARD' not in os.environ"
    )
    environment = {**os.environ, "PENSTOCK_PROFILE": "0"}
    environment.pop("PENSTOCK_PROFILE_BOARD", None)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


def test_importing_the_profile_changes_nothing_in_the_process() -> None:
    code = (
        "import os; before = dict(os.environ), os.listdir('/proc/self/fd')\n"
        "import penstock.profile\n"
        "assert (dict(os.environ), os.listdir('/proc/self/fd')) == before"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_PROFILE")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


def test_importing_the_profile_imports_no_heavy_library() -> None:
    code = "import sys, penstock.profile; print([n for n in ('torch', 'numpy', 'rich', 'cv2') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


# Threads


def test_threads_that_end_leave_their_counts_and_their_pages() -> None:
    buffers = len(open_board().entries())

    def work() -> None:
        for _ in range(3):
            with span("short"):
                pass

    for _ in range(300):
        run_in_thread(work)
    assert snapshot().by_name()["short"].count == 900
    assert len(open_board().entries()) <= buffers + 1


def test_a_page_of_an_ended_thread_goes_on_with_its_sums_whatever_it_holds() -> None:
    for n in (1, 1023, 1, 1024, 5000, 7):

        def work(n: int = n) -> None:
            for _ in range(n):
                record("each", 1000)
            profile.count("all", n)
            profile.gauge("level", n)

        run_in_thread(work)
    taken = snapshot()
    told = taken.by_name()["each"]
    assert (told.count, told.total_ns) == (7056, 7_056_000)
    assert taken.counters["all"] == 7056
    assert (taken.gauges["level"].count, taken.gauges["level"].max, taken.gauges["level"].last) == (6, 5000, 7)


def test_a_snapshot_while_threads_record_is_never_torn() -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            record("each", 1000)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        before = rounds = 0
        until = time.monotonic() + 60
        while (rounds < 20 or before <= 2048) and time.monotonic() < until:
            rounds += 1
            for told in snapshot().spans:
                if told.name == "each":
                    assert told.total_ns == told.self_ns == told.count * 1000
                    assert sum(n for _, n in told.histogram) == told.count
            now = snapshot(events=False).by_name().get("each")
            assert now is None or now.count >= before
            before = now.count if now is not None else 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert before > 2048


def test_a_reset_while_threads_record_leaves_only_what_ended_after_it() -> None:
    stop = threading.Event()
    written = [0]

    def work() -> None:
        while not stop.is_set():
            record("each", 1000)
            written[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            before = written[0]
            reset()
            told = snapshot().by_name().get("each")
            after = written[0]
            assert told is None or told.total_ns == told.count * 1000
            assert told is None or told.count <= after - before + 2
            while written[0] < after + 1500:
                pass
    finally:
        stop.set()
        thread.join()
    before = snapshot().by_name()["each"].count
    for _ in range(10):
        record("each", 1)
    assert snapshot().by_name()["each"].count == before + 10
    reset()
    assert snapshot().spans == ()
