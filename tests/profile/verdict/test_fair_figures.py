"""Figures that stay true: beside a validation, while memory comes and goes, of data sets with threads of their own."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from penstock import profile
from penstock._src.profile.record import machine
from penstock._src.profile.record.registry import tunable_of
from penstock._src.profile.report.figures import peak_bytes, stage_rows
from penstock._src.system.units import MIB
from penstock.errors import UsageError
from penstock.profile import data_wait, mark_step, print_timing_stats, snapshot, span


def test_what_a_validation_waits_and_does_is_no_share_of_the_step() -> None:
    for _ in range(4):
        with data_wait():
            time.sleep(0.002)
        mark_step()
    told = snapshot()
    spans = {each.name: each for each in told.spans}
    more = replace(spans["data_wait"], total_ns=20 * told.steps.total_ns)  # as if 100 batches of a validation came
    for name, expected in (("data_wait", told.steps.wait_share), ("10_val_forward_pass", None), ("21_backward", 20.0)):
        kept = tuple(each for each in told.spans if each.name != "data_wait")
        found = stage_rows(replace(told, spans=(*kept, replace(more, name=name))))
        (row,) = [each for each in found if each.name == name]
        assert row.share == pytest.approx(expected) if expected is not None else row.share is None


def test_memory_that_comes_and_goes_between_two_looks_at_the_tree_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    held, trees = [300 * MIB], []
    monkeypatch.setattr(machine, "rss_bytes", lambda: held[0])

    def tree() -> int:
        trees.append(held[0])
        time.sleep(0.005)  # so that the next look comes five seconds later
        return held[0] + 50 * MIB

    monkeypatch.setattr(machine, "tree_pss_bytes", tree)
    monkeypatch.setattr(machine, "_INTERVAL_NS", 0)
    for now in (300, 1300, 200):
        held[0] = now * MIB
        mark_step()
    told = snapshot()
    assert trees == [300 * MIB] and peak_bytes(told) == 1350 * MIB
    assert [(p.rss_bytes // MIB, p.tree_pss_bytes // MIB) for p in told.memory[:3]] == [
        (300, 350), (1300, 1350), (200, 250)
    ]  # fmt: skip
    assert told.memory[-1].rss_bytes == 200 * MIB  # as it is when it is asked for


def test_while_it_is_off_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    profile.disable()
    with span("a"):
        mark_step()
    with pytest.raises(UsageError, match=r"profiling is off, by PENSTOCK_PROFILE=0 or profile.disable\(\)"):
        profile.verdict()
    print_timing_stats()
    assert "profiling is off" in capsys.readouterr().out
    profile.enable()
    with pytest.raises(UsageError, match="no step was recorded"):
        profile.verdict()


class Pooled:
    """Two threads of its own work for each sample; once used, those of a forked worker are not there."""

    def __init__(self) -> None:
        self.pool: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> int:
        if self.pool is None:
            self.pool = ThreadPoolExecutor(2)
        return sum(self.pool.map(self.work, range(2)))

    def work(self, number: int) -> int:
        end = time.thread_time() + 0.004
        while time.thread_time() < end:
            pass
        return number


def test_threads_of_a_data_set_work_and_a_trial_that_hangs_on_them_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pytest.importorskip("torch.utils.data")
    monkeypatch.setattr("penstock._src.profile.torch.attach._PATIENCE_S", 2.0)
    batches = profile.attach(data.DataLoader(Pooled(), batch_size=4))
    for _ in range(3):
        for _ in batches:
            time.sleep(0.001)
    assert snapshot().counters["fetch_cpu_ns"] >= 3 * 24 * 8e6  # not that of the thread which waits for them
    found = profile.verdict(loader=batches)
    assert found.now.cpu_ms > 0.9 * 4 * 8
    assert not [fix for fix in found.fixes if fix.change.get("num_workers", 0) > found.now.cores]
    before = _children()
    with pytest.raises(RuntimeError, match="timed out after 2"):
        list(tunable_of(batches).variant(num_workers=1))
    end = time.monotonic() + 60
    while (left := _children() - before) and time.monotonic() < end:  # torch ends those that do not answer
        time.sleep(0.05)
    assert not left


def _children() -> set[int | None]:
    return {child.pid for child in multiprocessing.active_children()}
