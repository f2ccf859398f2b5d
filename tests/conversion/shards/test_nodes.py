"""What people see of a conversion by several machines: a line for each, groups that take long, rows of the report."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._src.cli.display import Lines
from penstock._src.conversion.commit.groups import Group
from penstock._src.conversion.commit.writing import InputProgress
from penstock._src.conversion.inputs.input import InputRef
from penstock._src.conversion.shards import cluster, ray_run
from penstock._src.conversion.shards.nodes import NodeTable
from penstock._src.conversion.shards.write import GroupResult
from penstock.errors import BudgetExceeded

MIB = 2**20


def result(node: str, group: int, **more: Any) -> GroupResult:
    known = {"seconds": 2.0, "bytes_in": 10 * MIB, "episodes": 1, "frames": 9, "peak_bytes": 90 * MIB}
    known |= {"predicted_bytes": 100 * MIB, "budget_bytes": 128 * MIB, "failed": {}}
    return GroupResult(group=group, node=node, **{**known, **more})


def test_a_table_adds_up_what_each_node_did(capsys: pytest.CaptureFixture[str]) -> None:
    table = NodeTable()
    table.add(result("b", 0))
    table.add(result("b", 1, peak_bytes=95 * MIB, failed={"3": {}}))
    table.add(result("a", 2))
    table.row("b").lost += 1
    table.now({3: {"node": "b", "moved": {"7": 5 * MIB}, "bytes": 80 * MIB}})
    first, second = table.rows()
    assert (first["node"], first["groups"], first["bytes_in"]) == ("a", 1, 10 * MIB)
    assert second == {
        "node": "b", "groups": 2, "bytes_in": 20 * MIB, "seconds": 4.0, "peak_bytes": 95 * MIB,
        "budget_bytes": 128 * MIB, "failed": 1, "lost": 1,
    }  # fmt: skip
    Lines(results=False).nodes(table.lines())
    shown = capsys.readouterr().err.splitlines()
    assert shown[0].startswith("a: 0 running · 1 groups done")
    assert "b: 1 running · 2 groups done · 26.2 MB" in shown[1] and "80 MiB of 128 MiB · 1 failed · 1 lost" in shown[1]
    table.now({})
    assert "b: 0 running" in table.lines()[1]


def test_a_group_that_takes_long_is_named_once_in_the_report() -> None:
    notes: list[str] = []
    entries = [InputProgress(InputRef("recording", f"run_{number}.bag"), 1) for number in range(2)]
    job = SimpleNamespace(inputs=SimpleNamespace(entries=entries), note=notes.append)
    run = ray_run._RayRun(SimpleNamespace(remote=lambda task: task), job, None, 1, None, [])  # type: ignore[arg-type]
    now_s = time.monotonic()
    usual = ray_run._Attempt(Group(0, 0, 1, 1), Path("a"), 1, "a", now_s - 100)
    slow = ray_run._Attempt(Group(1, 1, 2, 1), Path("b"), 1, "b", now_s - 400)
    run._running = {1: usual, 2: slow}
    assert run._slow_lines(now_s) == []  # nobody knows yet what is usual
    run._taken_s = [50.0, 60.0, 70.0]
    assert run._slow_lines(now_s) == run._slow_lines(now_s) == ["slow: run_1.bag on b: 400 s, others took 60 s"]
    assert notes == ["run_1.bag on b takes more than 180 s"]


def test_a_task_that_no_node_can_hold_any_more_is_named_and_then_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    job = SimpleNamespace(note=notes.append)
    ray = SimpleNamespace(remote=lambda task: task, nodes=list)
    run = ray_run._RayRun(ray, job, None, 1, None, [])  # type: ignore[arg-type]
    run._running = {1: ray_run._Attempt(Group(0, 0, 1, 1), "a", 128 * MIB)}
    monkeypatch.setattr(ray_run, "_NODES_EVERY_S", 0.0)
    run._submit()
    run._submit()
    assert notes == ["no node of the cluster can hold a task of 224 MiB any more: waiting for one"]
    monkeypatch.setattr(cluster, "NODE_WAIT_S", 0.0)
    with pytest.raises(BudgetExceeded, match="no node is alive"):
        run._submit()


def test_what_a_task_raised_is_named_when_it_is_given_up() -> None:
    class TaskError(Exception):
        cause = OSError(28, "No space left on device")

    entries = [InputProgress(InputRef("recording", "run_0.bag"), 1)]
    job = SimpleNamespace(inputs=SimpleNamespace(entries=entries), note=lambda text: None, keep_going=False)
    nothing = SimpleNamespace(is_published=lambda *_: False, read_progress=lambda names: [None],
                              discard=lambda name: None, end_progress=lambda name: None)  # fmt: skip
    exceptions = SimpleNamespace(TaskCancelledError=KeyError, OutOfMemoryError=KeyError)
    ray = SimpleNamespace(remote=lambda task: task, exceptions=exceptions)
    run = ray_run._RayRun(ray, job, nothing, 1, None, [])  # type: ignore[arg-type]
    run._states[0] = ray_run._GroupState(MIB)
    for _ in range(4):
        run._lost(ray_run._Attempt(Group(0, 0, 1, 1), "a", MIB), TaskError("ray::penstock 0() (pid=1)\n…"))
    error = run._done[0]
    assert error is not None
    assert error.message == "run_0.bag: its task was lost 4 times, last: [Errno 28] No space left on device"
