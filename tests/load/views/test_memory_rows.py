"""Rows in shared memory: places as they come, memory made present for them, children of a fork."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.load.views import memory_rows
from penstock._src.load.views.memory_rows import MemoryRows
from penstock._src.load.views.view import View
from penstock._src.system import mapped_memory
from penstock._src.system.files import memory_file
from penstock._src.system.mapped_memory import HUGE_BYTES, make_present, map_shared
from tests.load.view_rows import assert_holds, fill, open_files, pixels_of, spec_of

BIG = {"size": (256, 256)}  # 196,608 bytes a row


def _blocks_bytes(view: View) -> int:
    return os.fstat(view._fd).st_blocks * 512


def test_memory_is_mapped_on_a_border_of_huge_pages_and_made_present_without_a_change() -> None:
    fd = memory_file("penstock-view")
    n_bytes = 3 * HUGE_BYTES + 4096
    os.ftruncate(fd, n_bytes)
    written = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    os.pwrite(fd, written.data, HUGE_BYTES + 100)
    mapping, memory = map_shared(fd, n_bytes)
    assert len(memory) == n_bytes and memory.ctypes.data % HUGE_BYTES == 0 and memory.flags.writeable
    is_present = make_present(memory[: 3 * HUGE_BYTES])
    assert np.array_equal(memory[HUGE_BYTES + 100 : HUGE_BYTES + 5100], written)
    assert np.count_nonzero(memory) == np.count_nonzero(written)
    if is_present:
        assert os.fstat(fd).st_blocks * 512 >= 3 * HUGE_BYTES
    memory[-1] = 7
    assert os.pread(fd, 1, n_bytes - 1) == b"\x07"
    os.close(fd)
    del memory
    mapping.close()


def test_an_old_system_has_no_such_calls_and_rows_are_kept_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_memory, "_advise", lambda memory, advice: False)
    with View.in_ram(spec_of(**BIG), 64) as view:
        fill(view, range(64))
        assert_holds(view, range(64))


def test_a_view_takes_memory_for_the_rows_that_it_has() -> None:
    with View.in_ram(spec_of(**BIG), 400) as view:
        assert _blocks_bytes(view) <= 64 << 10
        assert not view.filled(np.arange(400)).any() and not view.get(3, np.empty(view.spec.shape, np.uint8))
        assert _blocks_bytes(view) <= 64 << 10
        fill(view, range(300, 301))
        assert _blocks_bytes(view) <= 2 * HUGE_BYTES
        assert_holds(view, range(300, 301))


def test_memory_is_made_present_for_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts: list[int] = []
    real = make_present
    monkeypatch.setattr(memory_rows, "make_present", lambda part: (parts.append(len(part)), real(part))[1])
    with View.in_ram(spec_of(**BIG), 4000) as view, view.new_rows(range(60)) as new:
        needed_bytes = 60 * view.spec.row_bytes
        assert len(parts) == 1 and needed_bytes <= parts[0] <= needed_bytes + 2 * HUGE_BYTES
        assert parts[0] % HUGE_BYTES == 0
        pixels = new.memory(7)
        assert pixels is not None
        pixels[...] = 9
        assert new.put(7, pixels)


def test_rows_that_could_not_be_begun_give_their_places_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(part: object) -> bool:
        raise KeyboardInterrupt

    with View.in_ram(spec_of(), 100) as view:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(memory_rows, "make_present", interrupted)
            view.new_rows(range(60))
        fill(view, range(100))
        assert view.n_filled == 100 and not view.n_refused
        assert_holds(view, range(100))


def test_a_system_without_such_calls_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(memory_rows, "make_present", lambda part: bool(asked.append(len(part))))
    with View.in_ram(spec_of(**BIG), 64) as view:
        fill(view, range(64))
        assert len(asked) == 1
        assert_holds(view, range(64))


@given(st.lists(st.integers(0, 40), unique=True))
def test_runs_are_the_places_in_their_order(places: list[int]) -> None:
    runs = list(memory_rows._runs(places))
    assert [place for run in runs for place in run] == places
    assert all(run.stop != after.start for run, after in itertools.pairwise(runs)), "as few as can be"


def test_rows_of_a_batch_are_kept_at_once_as_far_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = np.stack([pixels_of(spec_of(), row) for row in range(40)])
    with View.in_ram(spec_of(), 100) as view:
        fill(view, range(3, 6))
        order = np.random.default_rng(0).permutation(40)
        slots = view.slots(order).tolist()
        with view.new_rows(slots) as new:
            new.put_all(slots, batch, order.tolist())
            assert view.n_filled == 3, "marked at the end, all together"
        assert_holds(view, range(40))
        assert view.n_filled == 40 and not view.n_refused
        rest = view.slots(np.arange(40, 100)).tolist()
        with view.new_rows(rest), view.new_rows(rest[:30]) as second:
            assert not second._places, "another thread makes them"
            second.put_all(rest[:30], batch, [0] * 30)
        assert view.n_filled == 40
        assert view._memory is not None
        few = [view._memory._next_place() for _ in range(5)]
        monkeypatch.setattr(view._memory, "_next_place", iter([*few, *[None] * 55]).__next__)
        with view.new_rows(rest) as new:
            new.put_all(rest, np.zeros((60, *view.spec.shape), np.uint8), list(range(60)))
        assert view.n_filled == 45 and view.n_refused == 55


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_child_of_a_fork_takes_places_of_its_own() -> None:
    before = open_files()
    with View.in_ram(spec_of(), 600) as view:
        fill(view, range(3))
        assert view._memory is not None and view._memory._free, "places that both would take"
        child = os.fork()
        if child == 0:
            try:
                fill(view, range(3, 600, 2))
                os._exit(0)
            finally:
                os._exit(1)
        fill(view, range(4, 600, 2))
        assert os.waitpid(child, 0)[1] == 0
        assert_holds(view, range(600))
    assert not open_files() - before


def test_threads_of_a_child_that_begin_at_once_follow_the_fork_once(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, begun = MemoryRows._begin, []
    others = [threading.Thread(target=lambda: fill(view, range(3, 6)))]

    def slow(self: MemoryRows, fd: int) -> None:
        begun.append(fd)
        if len(begun) == 1:
            others[0].start()
            others[0].join(0.2)  # it may have to wait
        begin(self, fd)

    with View.in_ram(spec_of(), 600) as view:
        assert view._memory is not None
        view._memory._pid = -1  # as in a child
        monkeypatch.setattr(MemoryRows, "_begin", slow)
        fill(view, range(3))
        others[0].join()
        assert len(begun) == 1
        assert_holds(view, range(6))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize("parent_begins", [True, False], ids=["other number", "same number"])
def test_places_of_a_killed_process_are_used_by_others(parent_begins: bool) -> None:
    with View.in_ram(spec_of(), 600) as view:
        if parent_begins:
            fill(view, range(1))
        for _ in range(3):
            child = os.fork()
            if child == 0:
                with view.new_rows(range(1, 400)) as new:
                    assert new.put(1, pixels_of(view.spec, 1)), "not counted: its mark comes at the end"
                    os.kill(os.getpid(), signal.SIGKILL)
            assert os.waitpid(child, 0)[1] == signal.SIGKILL
        fill(view, range(600))
        assert_holds(view, range(600))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_process_that_is_killed_while_it_takes_places_leaves_none_to_two_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Killed:
        """In place of the count: the process ends before it writes how many places are taken."""

        def __getitem__(self, number: int) -> int:
            return 0

        def __setitem__(self, number: int, value: int) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

    def in_child(rows: range, *, is_killed: bool) -> int:
        child = os.fork()
        if child == 0:
            try:
                if is_killed:
                    monkeypatch.setattr(view._memory, "_taken", Killed())
                fill(view, rows)
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(child, 0)[1]

    with View.in_ram(spec_of(), 400) as view:
        assert in_child(range(1), is_killed=True) == signal.SIGKILL
        fill(view, range(1))
        assert in_child(range(200, 210), is_killed=False) == 0
        fill(view, range(1, 4))
        assert_holds(view, range(4))
        assert_holds(view, range(200, 210))


def test_rows_that_come_several_times_at_once_take_one_place_each() -> None:
    with View.in_ram(spec_of(), 600) as view:
        assert view.layout.spare == 4, "one for every thread"
        barrier = threading.Barrier(4)
        kept: list[bool] = []

        def put() -> None:
            barrier.wait()
            kept.extend(view.put(row, pixels_of(view.spec, row)) for row in range(600))

        threads = [threading.Thread(target=put) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(kept) == 2400 and all(kept)
        assert_holds(view, range(600))


def test_rows_that_a_task_does_not_finish_give_their_places_back() -> None:
    with View.in_ram(spec_of(), 100) as view:
        slots = view.slots(np.arange(20)).tolist()
        with pytest.raises(ZeroDivisionError), view.new_rows(slots) as new:
            for row in range(5):
                assert new.put(slots[row], pixels_of(view.spec, row))
            raise ZeroDivisionError
        assert view.n_filled == 5
        assert_holds(view, range(5))
        with view.new_rows(slots) as first, view.new_rows(slots) as second:
            for row in range(20):
                assert second.put(slots[row], np.zeros(view.spec.shape, np.uint8)), "another thread is making it"
                assert first.put(slots[row], pixels_of(view.spec, row))
        assert_holds(view, range(20))
        fill(view, range(100))
        assert view.n_filled == 100 and not view.n_refused, "no place was lost"
