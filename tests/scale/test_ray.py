"""Conversion on two Ray nodes: the data set of one machine, whatever worker, node or driver was lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock._src.conversion.shards.directory import shards_of
from penstock.errors import BudgetExceeded, Interrupted, PenstockError, RecordingError
from tests.conversion.sharing import local, make_recordings
from tests.faults.jobs import contents, leftovers
from tests.scale import faults

pytest.importorskip("ray")

FRAMES = (14, 6, 6, 15, 5, 12, 4, 13, 9, 8, 7, 11)
GROUPS = 7
# A node that died is noticed by others after a while: nobody waits longer than this for anything.
pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return make_recordings(tmp_path_factory.mktemp("ray") / "in", FRAMES)


@pytest.fixture(scope="module")
def whole(sources: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The conversion on one machine, with the same rule for files."""
    out = tmp_path_factory.mktemp("ray-whole") / "out"
    penstock.convert(**local(sources, out))
    return out


def distributed(sources: list[Path], out: Path, **more: Any) -> Any:
    words = {**local(sources, out), "memory": "auto", "jobs": "auto", **more}
    return penstock.convert(**words, on="ray")


def with_fault(patch: pytest.MonkeyPatch, task: Callable[..., Any]) -> None:
    patch.setattr("penstock._src.conversion.shards.ray_run.run_group", task)


def test_two_nodes_give_the_bytes_of_one_machine(
    two_nodes: Any, sources: list[Path], whole: Path, tmp_path: Path
) -> None:
    report = distributed(sources, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(whole)
    assert leftovers(tmp_path / "out") == []
    assert report.frames == sum(FRAMES) and report.exit_code == 0
    assert sum(each["groups"] for each in report.nodes) == GROUPS
    assert sum(each["bytes_in"] for each in report.nodes) == report.bytes_in
    assert all(0 < each["peak_bytes"] <= each["budget_bytes"] for each in report.nodes)


@pytest.mark.parametrize(
    "task",
    [
        faults.killed_before_publishing,
        faults.killed_after_publishing,
        faults.killed_in_the_middle,
        faults.over_memory,
        faults.needs_more,
        faults.sees_late_that_it_may_run,
    ],
)
def test_a_task_that_ends_too_early_is_done_again(
    task: Callable[..., Any],
    two_nodes: Any,
    sources: list[Path],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_fault(monkeypatch, task)
    report = distributed(sources, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(whole)
    assert leftovers(tmp_path / "out") == []
    assert (tmp_path / "fault").exists() or task is faults.needs_more
    lost = sum(each["lost"] for each in report.nodes)
    if task in (faults.killed_before_publishing, faults.killed_in_the_middle):
        assert lost == 1 and any("was lost" in note for note in report.notes)
    if task in (faults.over_memory, faults.needs_more):
        assert any("again with 256 MiB" in note for note in report.notes)


def test_a_job_that_another_machine_stops_ends_and_can_be_resumed(
    two_nodes: Any, sources: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        with_fault(patch, faults.stopped_by_another_machine)
        with pytest.raises(Interrupted, match="was stopped, or committed by another machine"):
            distributed(sources, tmp_path / "out")
    distributed(sources, tmp_path / "out", resume=True)
    assert contents(tmp_path / "out") == contents(whole)
    assert leftovers(tmp_path / "out") == []


@pytest.mark.parametrize("end", ["node removed", "raylet killed"])
def test_a_lost_node_costs_only_what_it_was_doing(
    end: str, two_nodes: Any, sources: list[Path], whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "head").write_text(two_nodes.head_node.node_id)
    with_fault(monkeypatch, faults.hangs_on_the_second_node)

    def end_it() -> None:
        while not (tmp_path / "hangs").exists():
            time.sleep(0.05)
        second = next(each for each in two_nodes.list_all_nodes() if each is not two_nodes.head_node)
        if end == "raylet killed":
            second.kill_raylet()
        two_nodes.remove_node(second, allow_graceful=False)

    ending = threading.Thread(target=end_it, daemon=True)
    ending.start()
    report = distributed(sources, tmp_path / "out")
    ending.join()
    assert contents(tmp_path / "out") == contents(whole)
    assert sum(each["groups"] for each in report.nodes) == GROUPS and any("was lost" in note for note in report.notes)


def driver(words: dict[str, Any]) -> subprocess.Popen[bytes]:
    code = (
        "import json, sys, penstock._src.cli\n"
        "from penstock._src.conversion.shards import ray_run\n"
        "from tests.scale import faults\n"
        "ray_run.run_group = faults.all_but_one_wait\n"
        "sys.argv = ['penstock', *json.loads(sys.argv[1])]\n"
        "penstock._src.cli.entry()"
    )
    import json

    from penstock._src.cli import convert  # the words of the command are those of the call

    assert convert.add_parser is not None
    given = ["convert", *words["sources"], words["out"], "--on", "ray", "task=fold", "split_episodes=true", "fps=30"]
    given += ["rosbag.chunk_size=5", "files.group_mb=1", "files.data_mb=1"]
    return subprocess.Popen([sys.executable, "-c", code, json.dumps(given)], start_new_session=True)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_was_ended_is_resumed(
    end: signal.Signals, two_nodes: Any, sources: list[Path], whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = driver(local(sources, out))
    shards = shards_of(out)
    published = f"{'[0-9]' * 6}/result.json"
    end_s = time.monotonic() + 120
    while not any(shards.glob(f"*/{published}")):
        assert time.monotonic() < end_s and process.poll() is None
        time.sleep(0.02)
    os.kill(process.pid, end)
    (tmp_path / "go").touch()
    code = process.wait(120)
    assert code == (-9 if end == signal.SIGKILL else 130)
    assert not out.exists()
    report = distributed(sources, out, resume=True)
    assert contents(out) == contents(whole) and leftovers(out) == []
    assert report.frames == sum(FRAMES)


def test_an_input_that_ends_every_worker_is_left_out_or_ends_the_job(
    two_nodes: Any, sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_fault(monkeypatch, faults.always_dies)
    monkeypatch.setattr("penstock._src.conversion.shards.ray_run._MOST_LOSSES", 2)
    with pytest.raises(RecordingError, match=r"run_3.bag: its task was lost 2 times"):
        distributed(sources[:5], tmp_path / "out")
    report = distributed(sources[:5], tmp_path / "out", resume=True, keep_going=True)
    assert [Path(path).name for path in report.failed] == ["run_3.bag"] and report.exit_code == 3
    mine = [Path(shutil.copy(path, tmp_path)) for path in sources[:5]]
    mine[3].write_bytes(b"#ROSBAG V2.0\n" + mine[3].read_bytes()[13:13] + bytes(mine[3].stat().st_size - 13))
    penstock.convert(**local(mine, tmp_path / "local", keep_going=True))
    assert contents(tmp_path / "out") == contents(tmp_path / "local")


def test_failures_and_appends_are_those_of_one_machine(two_nodes: Any, sources: list[Path], tmp_path: Path) -> None:
    mine = [Path(shutil.copy(path, tmp_path)) for path in sources[:5]]
    mine[3].write_bytes(b"#ROSBAG V2.0\nno bag at all")
    with pytest.raises(PenstockError, match=r"run_3.bag"):
        distributed(mine, tmp_path / "out")
    shared = distributed(mine, tmp_path / "out", resume=True, keep_going=True)
    alone = penstock.convert(**local(mine, tmp_path / "local", keep_going=True))
    assert dict(shared.failed) == dict(alone.failed) and dict(shared.lost) == dict(alone.lost)
    assert contents(tmp_path / "out") == contents(tmp_path / "local")
    distributed(sources[5:8], tmp_path / "out", append=True)
    penstock.convert(**local(sources[5:8], tmp_path / "local", append=True))
    assert contents(tmp_path / "out") == contents(tmp_path / "local")


def test_a_plan_that_no_node_can_hold_is_refused_with_the_numbers(
    two_nodes: Any, sources: list[Path], tmp_path: Path
) -> None:
    with pytest.raises(BudgetExceeded, match=r"needs 1 CPU and 5.1 GiB, and no node .*: 1 CPUs, 1 GiB"):
        distributed(sources, tmp_path / "out", memory="5GiB")
    with pytest.raises(BudgetExceeded, match="needs 2 CPUs"):
        distributed(sources, tmp_path / "out", jobs=2, memory="200MiB")
    assert list(tmp_path.iterdir()) == []
