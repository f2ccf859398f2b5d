"""Peaks are the kernel's, and shared pages count once."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading

import pytest

from penstock._src.system import memory
from penstock._src.system.units import MIB

_ALONE = """
import time
from penstock._src.system import memory
with memory.PeakMeter() as alone:
    time.sleep(0.2)
print(alone.tree_peak_bytes == alone.peak_bytes)
"""
_HOLD = "import sys; block = bytearray(64 << 20); print('ready', flush=True); sys.stdin.read()"


def _touched(size_bytes: int) -> mmap.mmap:
    """Pages of the system's own, all of them in memory: a bytearray may lie in what the heap keeps of earlier tests."""
    block = mmap.mmap(-1, size_bytes)
    block[:: mmap.PAGESIZE] = b"\1" * (size_bytes // mmap.PAGESIZE)
    return block


def _touch_and_free(size_bytes: int) -> None:
    _touched(size_bytes).close()


def _skip_without_marks(meter: memory.PeakMeter) -> None:
    if not meter.exact:
        pytest.skip("this kernel does not let a process reset its high-water mark")


def test_a_spike_that_is_gone_before_anyone_looks_is_still_the_peak() -> None:
    with memory.PeakMeter() as meter:
        _touch_and_free(96 * MIB)
        assert memory.rss_bytes() < meter.start_bytes + 48 * MIB
    _skip_without_marks(meter)
    assert meter.start_bytes + 90 * MIB < meter.peak_bytes < meter.start_bytes + 130 * MIB


def test_an_earlier_peak_is_not_charged_to_a_later_meter() -> None:
    _touch_and_free(128 * MIB)
    with memory.PeakMeter() as meter:
        pass
    _skip_without_marks(meter)
    assert meter.peak_bytes < meter.start_bytes + 32 * MIB


def test_a_meter_inside_a_meter_does_not_erase_what_the_outer_one_saw() -> None:
    with memory.PeakMeter() as outer:
        _touch_and_free(96 * MIB)
        with memory.PeakMeter() as inner:
            pass
    _skip_without_marks(outer)
    assert outer.peak_bytes > outer.start_bytes + 90 * MIB
    assert inner.peak_bytes < outer.peak_bytes


def test_a_closed_meter_keeps_its_peak() -> None:
    with memory.PeakMeter() as meter:
        pass
    before = meter.peak_bytes
    _touch_and_free(96 * MIB)
    assert meter.peak_bytes == before


def test_without_leave_to_reset_the_mark_memory_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_reset_high_water", lambda: False)
    _touch_and_free(128 * MIB)
    with memory.PeakMeter() as meter, _touched(48 * MIB):
        assert meter.peak_bytes > meter.start_bytes + 40 * MIB
    assert not meter.exact
    assert meter.start_bytes + 40 * MIB < meter.peak_bytes < meter.start_bytes + 100 * MIB


def test_the_tree_counts_a_child_and_a_process_alone_is_its_own_tree() -> None:
    # In a process of its own: this one may have children that other tests began, such as multiprocessing's tracker.
    alone = subprocess.run([sys.executable, "-c", _ALONE], capture_output=True, text=True, timeout=120)
    assert alone.stdout == "True\n", alone.stderr

    with memory.PeakMeter() as meter:
        child = subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert child.pid in memory.descendants(os.getpid())
        assert memory.pss_bytes(child.pid) > 60 * MIB
        assert memory.tree_pss_bytes() > 60 * MIB
        assert memory.tree_pss_bytes(child.pid) == pytest.approx(memory.pss_bytes(child.pid), rel=0.05)
        meter.sample()
        child.communicate()
    assert meter.tree_peak_bytes > meter.start_bytes + 50 * MIB
    assert memory.pss_bytes(child.pid) == 0
    assert memory.descendants(child.pid) == []


def test_the_sampler_sees_a_child_without_being_asked() -> None:
    seen = threading.Event()

    class Watched(memory.PeakMeter):
        def sample(self) -> int:
            tree_bytes = super().sample()
            if tree_bytes > self.start_bytes + 50 * MIB:
                seen.set()
            return tree_bytes

    with Watched() as meter:
        child = subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert seen.wait(60)
        child.communicate()
    assert meter.tree_peak_bytes > meter.start_bytes + 50 * MIB


def test_the_meter_leaves_no_thread_behind() -> None:
    before = set(threading.enumerate())
    with pytest.raises(KeyError), memory.PeakMeter():
        raise KeyError
    assert not set(threading.enumerate()) - before
