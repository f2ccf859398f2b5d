"""The board over processes: fork, spawn, killed workers, pages of those that ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from penstock._src.profile.stats import Snapshot

PRELUDE = """
import json, multiprocessing, os, signal, sys, threading, time
import numpy  # once, not in every worker
from penstock import profile
from penstock.profile import count, gauge, mark_step, reset, snapshot, span
from penstock._src.profile.record.spans import record
"""


def run(body: str, tmp_path: Path, **environment: str) -> dict[str, Any]:
    """Run a script of its own (so that a fork copies no thread of pytest's) and return what it prints as JSON."""
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + textwrap.dedent(body))
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PENSTOCK_PROFILE")}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, env={**inherited, **environment}
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def counts(told: dict[str, Any]) -> dict[str, int]:
    return {name: each.count for name, each in Snapshot.from_dict(told).by_name().items()}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_what_workers_record_is_merged_exactly(method: str, tmp_path: Path) -> None:
    told = run(
        f"""
        def work(n):
            for _ in range(n):
                with span("sample"):
                    for _ in range(4):
                        with span("camera"): count("images")
            gauge("queue", n)

        if __name__ == "__main__":
            with span("before"): pass
            context = multiprocessing.get_context("{method}")
            workers = [context.Process(target=work, args=(n,)) for n in (300, 700)]
            with span("main"):
                for each in workers: each.start()
                for each in workers: each.join()
            assert [each.exitcode for each in workers] == [0, 0]
            print(json.dumps(snapshot().to_dict()))
        """,
        tmp_path,
    )
    taken = Snapshot.from_dict(told)
    assert counts(told) == {"before": 1, "main": 1, "sample": 1000, "camera": 4000}
    assert taken.counters == {"images": 4000}
    assert (taken.gauges["queue"].count, taken.gauges["queue"].max) == (2, 700)
    by_process = {each.process: each.count for each in taken.spans if each.name == "sample"}
    assert sorted(by_process.values()) == [300, 700]
    assert taken.process not in by_process
    # One clock: what the workers did lies inside the span that waited for them.
    waited = next(event for thread in taken.events for event in thread.events if event.name == "main")
    for thread in taken.events:
        for event in thread.events:
            if event.name == "sample":
                assert waited.start_ns <= event.start_ns
                assert event.start_ns + event.duration_ns <= waited.start_ns + waited.duration_ns


@pytest.mark.parametrize("n", [1, 1024, 2500])
def test_a_worker_killed_after_recording_loses_nothing(n: int, tmp_path: Path) -> None:
    told = run(
        f"""
        ready, told = os.pipe()
        pid = os.fork()
        if pid == 0:
            for _ in range({n}): record("work", 1000)
            os.write(told, b"x")
            while True: signal.pause()
        os.read(ready, 1)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        print(json.dumps(snapshot().to_dict()))
        """,
        tmp_path,
    )
    taken = Snapshot.from_dict(told).by_name()["work"]
    assert (taken.count, taken.total_ns) == (n, n * 1000)


def test_workers_killed_at_any_moment_leave_whole_sums_and_the_page_goes_on(tmp_path: Path) -> None:
    told = run(
        """
        seen = []
        for round in range(12):
            ready, told = os.pipe()
            pid = os.fork()
            if pid == 0:
                number = 0
                while True:
                    record("work", 1000)
                    count("done")
                    number += 1
                    if number == 1500: os.write(told, b"x")
            os.read(ready, 1)
            time.sleep(0.001 * round)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            taken = snapshot(events=False)
            each = taken.by_name()["work"]
            seen.append([each.count, each.total_ns, each.self_ns, sum(n for _, n in each.histogram),
                         taken.counters["done"]])
        print(json.dumps({"seen": seen}))
        """,
        tmp_path,
    )
    before = 0
    for killed, (count, total_ns, self_ns, in_histogram, done) in enumerate(told["seen"], 1):
        assert total_ns == self_ns == count * 1000
        assert in_histogram == count
        assert count >= before + 1500
        assert done <= count <= done + killed  # a worker may die between the two
        before = count


def test_pages_of_many_ended_processes_are_used_again(tmp_path: Path) -> None:
    told = run(
        """
        from penstock._src.profile.record import board
        board._KEPT_BUFFERS = 4
        for _ in range(30):
            pid = os.fork()
            if pid == 0:
                for _ in range(100): record("work", 10)
                os._exit(0)
            os.waitpid(pid, 0)
        print(json.dumps({"buffers": len(board.open_board().entries()), **snapshot().to_dict()}))
        """,
        tmp_path,
    )
    assert told.pop("buffers") <= 5
    assert counts(told) == {"work": 3000}


def test_a_fork_inside_a_span_records_it_once(tmp_path: Path) -> None:
    told = run(
        """
        with span("outer"):
            pid = os.fork()
            with span("child" if pid == 0 else "parent"): pass
        with span("after"): pass
        if pid == 0: os._exit(0)
        os.waitpid(pid, 0)
        print(json.dumps(snapshot().to_dict()))
        """,
        tmp_path,
    )
    assert counts(told) == {"outer": 1, "child": 1, "parent": 1, "after": 2}
    paths = {(each.name, each.path) for each in Snapshot.from_dict(told).spans}
    assert ("parent", ("outer",)) in paths
    assert ("child", ()) in paths


def test_a_fork_while_other_threads_record_and_claim_does_not_hang(tmp_path: Path) -> None:
    told = run(
        """
        import warnings
        warnings.simplefilter("ignore")  # later Pythons warn of a fork beside threads, which is what is tried here
        stop = threading.Event()
        def claim():
            while not stop.is_set():
                each = threading.Thread(target=lambda: record("short", 1)); each.start(); each.join()
        threads = [threading.Thread(target=claim) for _ in range(2)]
        for each in threads: each.start()
        for _ in range(15):
            pid = os.fork()
            if pid == 0:
                record("child", 1)
                os._exit(0)
            os.waitpid(pid, 0)
        stop.set()
        for each in threads: each.join()
        print(json.dumps(snapshot(events=False).to_dict()))
        """,
        tmp_path,
    )
    assert counts(told)["child"] == 15
    assert told["lost"] == {}


def test_a_worker_that_finds_no_board_makes_its_own(tmp_path: Path) -> None:
    for address in ("nonsense", f"{os.getpid()}/0/ff", "999999999/3/ab"):
        told = run("with span('alone'): pass\nprint(json.dumps(snapshot().to_dict()))", tmp_path,
                   PENSTOCK_PROFILE_JOIN=address)  # fmt: skip
        assert counts(told) == {"alone": 1}


def test_a_reset_reaches_workers_that_are_at_work(tmp_path: Path) -> None:
    told = run(
        """
        go, ask = os.pipe()
        ready, done = os.pipe()
        pid = os.fork()
        if pid == 0:
            for n in (1500, 10):
                for _ in range(n): record("work", 10)
                count("bytes", n)
                gauge("level", n)
                os.write(done, b"x")
                os.read(go, 1)
            os._exit(0)
        os.read(ready, 1)
        first = snapshot()
        reset()
        between = snapshot()
        os.write(ask, b"x")
        os.read(ready, 1)
        last = snapshot()
        os.write(ask, b"x")
        os.waitpid(pid, 0)
        print(json.dumps([each.to_dict() for each in (first, between, last)]))
        """,
        tmp_path,
    )
    first, between, last = (Snapshot.from_dict(each) for each in told)
    assert [each.count for each in first.spans] == [1500]
    assert (between.spans, between.counters, between.gauges) == ((), {}, {})
    assert [(each.count, each.total_ns) for each in last.spans] == [(10, 100)]
    assert last.counters == {"bytes": 10}
    assert (last.gauges["level"].count, last.gauges["level"].min) == (1, 10)


def test_more_threads_than_pages_are_counted_as_lost(tmp_path: Path) -> None:
    told = run(
        """
        from penstock._src.profile.record import layout
        layout.MAX_BUFFERS = 3
        barrier = threading.Barrier(6)
        def work():
            with span("each"): barrier.wait(60)
        threads = [threading.Thread(target=work) for _ in range(6)]
        for each in threads: each.start()
        for each in threads: each.join()
        print(json.dumps(snapshot().to_dict()))
        """,
        tmp_path,
    )
    assert counts(told) == {"each": 3}
    assert told["lost"] == {"threads": 3}


def test_disabling_reaches_processes_that_start_later(tmp_path: Path) -> None:
    told = run(
        """
        def work(): record("late", 1)

        if __name__ == "__main__":
            record("early", 1)
            profile.disable()
            for method in ("fork", "spawn"):
                worker = multiprocessing.get_context(method).Process(target=work)
                worker.start()
                worker.join()
            print(json.dumps(snapshot().to_dict()))
        """,
        tmp_path,
    )
    assert counts(told) == {"early": 1}


def test_a_command_is_a_run_of_its_own_unless_it_is_told_to_join(tmp_path: Path) -> None:
    told = run(
        """
        import subprocess
        from penstock._src.profile.record.spans import joining
        child = "from penstock import profile; profile.log_timing('child', 1); print(len(profile.snapshot().spans))"
        record("launcher", 1)
        for environment, spans in (({}, b"1"), (joining(), b"2"), ({"PENSTOCK_PROFILE_JOIN": "nonsense"}, b"1")):
            done = subprocess.run([sys.executable, "-c", child], env={**os.environ, **environment},
                                  stdout=subprocess.PIPE, check=True, timeout=120)
            assert done.stdout.strip() == spans, done.stdout
        print(json.dumps(snapshot().to_dict()))
        """,
        tmp_path,
    )
    assert counts(told) == {"launcher": 1, "child": 1}


def test_a_grandchild_finds_the_board_through_its_parent(tmp_path: Path) -> None:
    told = run(
        """
        def grandchild(): record("grandchild", 1)

        def child():
            # Through what started it the board is found, whatever process made it.
            record("child", 1)
            assert int(os.environ["PENSTOCK_PROFILE_BOARD"].split("/")[0]) == os.getpid()
            start(grandchild)

        def start(work):
            worker = multiprocessing.get_context("spawn").Process(target=work)
            worker.start()
            worker.join()
            assert worker.exitcode == 0

        if __name__ == "__main__":
            profile.enable()
            start(child)
            print(json.dumps(snapshot().to_dict()))
        """,
        tmp_path,
    )
    assert counts(told) == {"child": 1, "grandchild": 1}


def test_a_snapshot_while_a_worker_records_is_never_torn(tmp_path: Path) -> None:
    told = run(
        """
        pid = os.fork()
        if pid == 0:
            number = 0
            while True:  # durations and starts belong together, so that a half written event shows
                number += 1
                record("work", number & 1023, 1_000_000 * (number & 1023) + (1 << 62))
        wrong, folds = [], 0
        try:
            until = time.monotonic() + 60
            while folds < 200 and time.monotonic() < until:
                taken = snapshot()
                for each in taken.spans:
                    folds = each.count // 1024
                    whole, rest = divmod(each.count, 1024)
                    total = whole * 1023 * 512 + rest * (rest + 1) // 2
                    seen = [each.count, sum(n for _, n in each.histogram), each.total_ns, each.self_ns]
                    if seen != [each.count, each.count, total, total]: wrong.append([*seen, total])
                for thread in taken.events:
                    for event in thread.events:
                        if event.start_ns != 1_000_000 * event.duration_ns + (1 << 62): wrong.append(list(event))
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        print(json.dumps({"wrong": wrong[:5], "folds": folds}))
        """,
        tmp_path,
    )
    assert told["wrong"] == []
    assert told["folds"] >= 1
