"""One view in RAM for the processes of a machine: found, filled once, kept while one of them lives, then gone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock._src.load.engine.images import Fitter, fit_for
from penstock._src.load.engine.source import SampleSource, Shaping
from penstock._src.load.sampling.window import Window
from penstock._src.load.views.choose_views import attach_views, held_bytes, stats_of_views
from penstock._src.load.views.view import View
from penstock._src.system.shared_memory import Holder, holders_of
from tests.load.clips.cache_pss import cache_pss_bytes
from tests.load.image_store import ArrayStore
from tests.load.view_rows import assert_holds, environment, fill, open_files, run, spec_of, start

ROWS = 120
SIZE = (160, 160)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PENSTOCK_RUNTIME", str(tmp_path / "runtime"))
    return tmp_path / "runtime"


TAKING = """
def batches_of(loader, rows):
    \"\"\"Of an epoch. So many rows are in the view before the last one is taken: then the next epoch begins.\"\"\"
    taken = iter(loader)
    for number in range(len(loader)):
        while number == len(loader) - 1 and next(iter(loader.stats()["views"].values()))["rows"] < rows:
            time.sleep(0.001)
        yield next(taken)
"""
RANK = f"""
import json, penstock, time
{TAKING}
from tests.load.image_store import ArrayStore
rank, world = int(sys.argv[1]), int(sys.argv[2])
store = ArrayStore([{ROWS}])
window = penstock.Window(columns=["cam"])
options = {{"image_size": {SIZE}, "view": "ram", "threads": 2, "shard": (rank, world), "engine": "thread"}}
loader = penstock.Loader(store, window, batch_size=20, **options)
(view,) = loader.stats()["views"].values()
print(json.dumps(view), flush=True)
for _ in sys.stdin:
    store.log.clear()
    total = 0
    for batch in batches_of(loader, int(sys.argv[3])):
        total += int(batch["cam"].astype(np.int64).sum())
    print(json.dumps({{"decoded": store.log, "total": total, "views": loader.stats()["views"]}}), flush=True)
loader.close()
"""


class Rank:
    """A process of its own with a loader; `epoch` lets it make one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.view = self.told()

    def told(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return json.loads(line)

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def epoch(self) -> Any:
        self.begin()
        return self.told()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextmanager
def _rank(rank: int, world: int, rows: int = 0) -> Iterator[Rank]:
    with start(RANK, rank, world, rows) as process:
        try:
            yield Rank(process)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(60)
        finally:
            process.kill()


def _total() -> int:
    store = ArrayStore([ROWS])
    fit = fit_for(store.column("cam"), SIZE)
    out = np.empty((3, *SIZE), np.uint8)
    total = 0
    for row in range(ROWS):
        Fitter().fit(store.jpeg[row], fit, out)
        total += int(out.astype(np.int64).sum())
    return total


def test_two_ranks_hold_one_copy_and_decode_each_row_once(runtime: Path) -> None:
    with _rank(0, 2, ROWS) as first, _rank(1, 2, ROWS) as second:
        assert [first.view["shared"], second.view["shared"]] == [False, True]
        first.begin()
        second.begin()
        reported = [first.told(), second.told()]
        assert sorted(reported[0]["decoded"] + reported[1]["decoded"]) == list(range(ROWS))
        assert sum(each["total"] for each in reported) == _total()
        for _ in range(4):  # each in another order: both come to almost all rows
            again = [first.epoch(), second.epoch()]
            assert [each["decoded"] for each in again] == [[], []]
            assert sum(each["total"] for each in again) == _total()
        (view,) = again[1]["views"].values()
        assert view["rows"] == view["capacity"] == ROWS
        pids = [first.process.pid, second.process.pid]
        bytes_of = {field: cache_pss_bytes(pids, field, "penstock-view") for field in ("Pss", "Rss")}
        pixels = ROWS * 3 * SIZE[0] * SIZE[1]
        assert 0.9 * pixels < bytes_of["Pss"] < 1.3 * pixels < 1.7 * pixels < bytes_of["Rss"]
    assert list(runtime.iterdir()) == []


def test_the_view_outlives_its_maker_and_a_third_one_joins(runtime: Path) -> None:
    with _rank(1, 2) as other:
        with _rank(0, 2) as maker:
            pass  # it was not the first
        assert maker.view["shared"] and not other.view["shared"]
    with ExitStack() as stack:
        maker = stack.enter_context(start_rank(0, 2))
        other = stack.enter_context(_rank(1, 2))
        maker.epoch()
        other.begin()
        maker.kill()
        other.told()
        third = stack.enter_context(_rank(0, 1))
        # Two threads of each rank, with two rows each: places of the killed one are lost, those of the other may lie
        # idle where both made the same rows.
        at_work = 8
        assert third.view["shared"] and third.view["rows"] >= ROWS - at_work
        reported = third.epoch()
        # A set: rows without a place are decoded again for the next epoch, which is made ahead.
        assert len(set(reported["decoded"])) <= at_work and reported["total"] == _total()
    assert list(runtime.iterdir()) == []


@contextmanager
def start_rank(rank: int, world: int) -> Iterator[Rank]:
    """One that the test kills."""
    with start(RANK, rank, world, 0) as process:
        try:
            yield Rank(process)
        finally:
            process.kill()


def test_what_killed_processes_left_is_removed_by_the_next(runtime: Path) -> None:
    with start_rank(0, 2) as first, start_rank(1, 2) as second:
        first.kill()
        second.kill()
    assert len(list(runtime.iterdir())) == 1
    store = ArrayStore([8], name="other")
    with penstock.Loader(store, Window(columns=["cam"]), batch_size=4, image_size=(24, 32), view="ram") as loader:
        assert [view["shared"] for view in loader.stats()["views"].values()] == [False]
        (left,) = runtime.iterdir()
        assert f"{os.getpid()} " in left.read_text()
    assert list(runtime.iterdir()) == []


HOLDING = """
view = View.shared_in_ram(spec_of(), 40, None)
fill(view, range(0, 40, 2))
print("ready", flush=True)
sys.stdin.readline()
"""


@contextmanager
def _holding(code: str = HOLDING) -> Iterator[subprocess.Popen[str]]:
    with start(code) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_view_of_another_spec_or_number_of_rows_is_not_taken() -> None:
    with _holding():
        for spec, rows in ((spec_of(fingerprint="other"), 40), (spec_of(size=(8, 13)), 40), (spec_of(), 41)):
            with View.shared_in_ram(spec, rows, None) as view:
                assert not view.is_shared and view.n_filled == 0
        with View.shared_in_ram(spec_of(), 40, None) as view:
            assert view.is_shared and view.n_filled == 20
            assert_holds(view, range(0, 40, 2))


def test_a_view_that_is_much_smaller_than_ones_own_is_left_to_others() -> None:
    small = HOLDING.replace("40, None", "400, 30_000")
    with _holding(small.replace("range(0, 40, 2)", "range(0)")):
        with View.shared_in_ram(spec_of(), 400, None) as view:
            assert not view.is_shared and view.capacity == 400
        with View.shared_in_ram(spec_of(), 400, 0, makes=False) as view:
            assert view.is_shared and view.capacity < 400
    assert View.shared_in_ram(spec_of(), 400, 0, makes=False) is None


def test_a_rank_without_memory_for_a_view_takes_the_shared_one_and_counts_nothing() -> None:
    source = SampleSource(Window(columns=["cam"]).bind(ArrayStore([ROWS])), Shaping(image_size=SIZE), 1 << 20)
    assert attach_views([source], "auto", 0)[0] == []
    with start_rank(0, 2) as maker:
        made, notes = attach_views([source], "auto", 0)
        assert len(made) == 1 and made[0].is_shared and held_bytes(made) == 0
        assert "shared: another process made it" in notes[0]
        assert [each["shared"] for each in stats_of_views([source], {}).values()] == [True]
        assert maker.epoch()["decoded"] and made[0].n_filled >= ROWS // 2
    made[0].close()


def test_views_of_one_process_are_its_own() -> None:
    before = open_files()
    with View.shared_in_ram(spec_of(), 10, None) as one, View.shared_in_ram(spec_of(), 10, None) as other:
        fill(one, range(10))
        assert not other.is_shared and other.n_filled == 0
    assert not open_files() - before


def test_a_name_that_points_to_other_memory_is_not_believed(runtime: Path) -> None:
    with View.in_ram(spec_of(), 40) as stranger, _holding() as process:
        (listed,) = runtime.iterdir()
        true = Holder.parse(listed.read_text().strip())
        assert true is not None and true.pid == process.pid
        wrong = Holder.of(stranger._fd, true.token)
        with holders_of(listed.stem) as held:
            held.listed[:] = [wrong, Holder(true.pid, true.fd, true.device, true.inode + 1, true.token)]
        found = run("view = View.shared_in_ram(spec_of(), 40, None)\nprint(view.is_shared, view.n_filled)")
        assert found.split() == ["False", "0"]


def test_half_a_row_is_never_seen_and_its_row_can_be_put_by_another() -> None:
    code = """
view = View.shared_in_ram(spec_of(), 40, None)
with view.new_rows([7]) as new:
    new.memory(7)[: view.spec.size[0] // 2] = 255
    print("ready", flush=True)
    sys.stdin.readline()
"""
    with _holding(code) as process, View.shared_in_ram(spec_of(), 40, None) as view:
        out = np.empty(view.spec.shape, np.uint8)
        assert view.is_shared and not view.get(7, out) and not view.filled(np.array([7]))[0]
        process.kill()
        process.wait()
        fill(view, range(40))
        assert_holds(view, range(40))  # also in the place that the killed one had


def test_processes_that_fill_at_once_take_different_places() -> None:
    # So few rows that a process takes few places at a time: none lies idle that another needs.
    code = """
view = View.shared_in_ram(spec_of(), 256, None)
print("ready", flush=True)
sys.stdin.readline()
fill(view, range(int(sys.argv[1]), 256, 3))
print("filled", flush=True)
sys.stdin.readline()
fill(view, range(256))
assert_holds(view, range(256))
print(view.n_refused, view.n_filled, flush=True)
sys.stdin.readline()
"""
    with ExitStack() as stack:
        processes = [stack.enter_context(start(code, number)) for number in range(3)]
        try:
            for expected in ("ready\n", "filled\n", "0 256\n"):
                reported = [process.stdout.readline() for process in processes if process.stdout is not None]
                assert reported == [expected] * 3, [process.communicate()[1] for process in processes]
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write("\n")
                    process.stdin.flush()
        finally:
            for process in processes:
                process.kill()


TORCHRUN = f"""
import json, os, sys, time
import numpy as np, penstock
import torch.distributed as dist
from tests.load.image_store import ArrayStore
{TAKING}
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
store = ArrayStore([{ROWS}])
window = penstock.Window(columns=["cam"])
with penstock.Loader(store, window, 20, {SIZE}, view="ram", threads=1, shard=(rank, world), output="numpy") as loader:
    total = 0
    for epoch in range(2):
        for batch in batches_of(loader, {ROWS}):
            total += int(batch["cam"].astype(np.int64).sum())
        dist.barrier()
    (view,) = loader.stats()["views"].values()
    with open(os.path.join(sys.argv[1], str(rank)), "w") as file:
        json.dump({{"decoded": loader.stats()["images_made"], "total": total, "view": view}}, file)
    dist.barrier()
dist.destroy_process_group()
"""


def test_two_ranks_of_torchrun_share_one_view(tmp_path: Path, runtime: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TORCHRUN)
    (tmp_path / "told").mkdir()
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "train.py")]
    ended = subprocess.run(
        [sys.executable, *command, str(tmp_path / "told")], env=environment(OMP_NUM_THREADS="1"),
        cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    report = [json.loads((tmp_path / "told" / str(rank)).read_text()) for rank in range(2)]
    assert report[0]["decoded"] + report[1]["decoded"] == ROWS
    assert sorted(each["view"]["shared"] for each in report) == [False, True]
    assert all(each["view"]["rows"] == ROWS for each in report)
    assert sum(each["total"] for each in report) == 2 * _total()
    assert list(runtime.iterdir()) == []
