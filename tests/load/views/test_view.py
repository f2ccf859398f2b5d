"""A view in RAM: one copy for threads, forked and spawned processes, within its limit, gone without a trace."""

from __future__ import annotations

import os
import pickle
import threading

import numpy as np
import pytest

from penstock._src.load.views.view import View
from penstock.errors import LimitExceeded, StoreError, UsageError
from tests.load.view_rows import assert_holds, fill, open_files, pickled, pixels_of, run, spec_of, start, verified


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("size", [(8, 12), (7, 5), (33, 31)])
def test_what_is_put_is_what_comes_out(channels: int, size: tuple[int, int]) -> None:
    with View.in_ram(spec_of(channels=channels, size=size), 20, None) as view:
        assert view.capacity == view.rows == 20 and view.n_filled == 0
        out = np.full(view.spec.shape, 77, np.uint8)
        assert not view.get(3, out) and (out == 77).all()
        fill(view, range(0, 20, 2))
        assert_holds(view, range(0, 20, 2))
        slots = np.array([[0, 1], [-1, 18]])
        assert view.filled(slots).tolist() == [[True, False], [False, True]]
        assert verified(view, slots).tolist() == [[True, False], [False, True]]
        assert view.n_filled == 10 and view.n_damaged == 0
        taken = np.empty((3, *view.spec.shape), np.uint8)
        view.take(np.array([4, 0, 4]), taken)
        assert np.array_equal(taken, np.stack([pixels_of(view.spec, row) for row in (4, 0, 4)]))


def test_a_row_that_is_there_stays_as_it_is() -> None:
    with View.in_ram(spec_of(), 4, None) as view:
        fill(view, range(1))
        assert view.put(0, pixels_of(view.spec, 99))
        assert_holds(view, range(1))
        assert not view.put(-1, pixels_of(view.spec, 9)) and not view.put(4, pixels_of(view.spec, 9))
        assert view.n_filled == 1


def test_other_shapes_and_types_are_refused() -> None:
    with View.in_ram(spec_of(), 4, None) as view:
        for wrong in (np.zeros((8, 12, 3), np.uint8), np.zeros((3, 8, 12), np.float32), np.zeros((8, 12), np.uint8)):
            with pytest.raises(UsageError, match="view of uint8"):
                view.put(0, wrong)
        for wrong in (np.zeros((8, 12, 3), np.uint8), np.zeros((3, 8, 12), np.int8), np.zeros((3, 8, 1), np.uint8)):
            with pytest.raises(UsageError, match="does not go into"):
                view.get(0, wrong)
        turned = pixels_of(spec_of(size=(12, 8)), 0).transpose(0, 2, 1)
        out = np.empty(view.spec.shape, np.uint8)
        assert view.put(0, turned) and view.get(0, out) and np.array_equal(out, turned)


def test_a_view_takes_no_more_than_its_limit_and_pages_appear_as_rows_do() -> None:
    spec = spec_of(size=(64, 64))
    limit = 1_000_000
    with View.in_ram(spec, 1000, limit) as view:
        found = os.fstat(view._fd)
        assert view.n_bytes == found.st_size <= limit < found.st_size + spec.row_bytes + 2 * 4096
        assert found.st_blocks * 512 < 40_000, "rows that were not put take no memory"
        fill(view, range(0))
        for slot in range(view.capacity):
            assert view.put(slot, pixels_of(spec, int(view.rows_of(np.array([slot]))[0])))
        assert os.fstat(view._fd).st_blocks * 512 <= limit
        rows = np.arange(1000)
        slots = view.slots(rows)
        assert (slots >= 0).sum() == view.capacity == view.n_filled < 1000
        for row in rows[slots >= 0].tolist():
            assert_holds(view, range(row, row + 1))


def test_a_limit_below_one_row_and_more_than_the_machine_has_are_refused_with_both_numbers() -> None:
    with pytest.raises(LimitExceeded, match=r"needs .* for one row, the limit is") as refused:
        View.in_ram(spec_of(), 10, 9000)
    assert refused.value.limit == 9000 < refused.value.size
    with pytest.raises(LimitExceeded, match=r"needs 13\.4 TiB .* available") as refused:
        View.in_ram(spec_of(size=(224, 224)), 97_906_250, None)
    assert refused.value.size > refused.value.limit
    with pytest.raises(UsageError, match="0 rows"):
        View.in_ram(spec_of(), 0, None)


def test_a_process_limit_rules_before_the_memory_is_asked_for() -> None:
    code = """
import cv2, pathlib, resource
from penstock.errors import LimitExceeded
used = int(pathlib.Path('/proc/self/statm').read_text().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), used + (200 << 20)))
try:
    View.in_ram(spec_of(size=(224, 224)), 4000, None)
except LimitExceeded as error:
    print(error.message)
View.in_ram(spec_of(size=(224, 224)), 4000, 50 << 20).close()
"""
    assert "address space" in run(code)


def test_threads_fill_and_read_one_view() -> None:
    with View.in_ram(spec_of(), 200, None) as view:
        together = threading.Barrier(4)
        wrong: list[int] = []

        def work(number: int) -> None:
            out = np.empty(view.spec.shape, np.uint8)
            together.wait(timeout=60)
            for row in np.random.default_rng(number).permutation(200).tolist():
                if view.get(row, out) and not np.array_equal(out, pixels_of(view.spec, row)):
                    wrong.append(row)
                view.put(row, pixels_of(view.spec, row))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong and view.n_filled == 200
        assert_holds(view, range(200))


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_children_of_a_fork_fill_the_same_memory(encoding: str) -> None:
    code = """
view = View.in_ram(spec_of(encoding=sys.argv[1], size=(16, 16)), 40, 1 << 20)
children = []
for number in range(3):
    pid = os.fork()
    if not pid:
        try:
            fill(view, range(number, 40, 4))
        except BaseException:
            os._exit(1)
        os._exit(0)
    children.append(pid)
fill(view, range(3, 40, 4))
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
out = np.empty(view.spec.shape, np.uint8)
assert all(view.get(row, out) for row in range(40))
if sys.argv[1] == "raw":
    assert_holds(view, range(40))
print(view.n_filled)
"""
    assert run(code, encoding).strip() == "40"


def test_a_spawned_process_attaches_to_the_same_memory() -> None:
    with View.in_ram(spec_of(), 10, None) as view:
        fill(view, range(5))
        before = open_files()
        code = """
view = unpickled(sys.argv[1])
assert_holds(view, range(5))
fill(view, range(5, 10))
print(view.n_filled, view.n_bytes)
"""
        assert run(code, pickled(view)).split() == ["10", str(view.n_bytes)]
        assert_holds(view, range(10))
        with pickle.loads(pickle.dumps(view)) as again:
            assert_holds(again, range(10))
        assert not open_files() - before


def test_multiprocessing_spawn_and_forkserver_share_it() -> None:
    code = """
import multiprocessing
from tests.load.view_rows import fill
if __name__ == '__main__':
    with View.in_ram(spec_of(), 6, None) as view:
        for number, method in enumerate(('spawn', 'forkserver')):
            rows = range(3 * number, 3 * number + 3)
            process = multiprocessing.get_context(method).Process(target=fill, args=(view, rows))
            process.start()
            process.join(100)
            assert process.exitcode == 0, process.exitcode
        assert_holds(view, range(6))
    print('ok')
"""
    assert run(code).strip() == "ok"


def test_an_owner_that_has_ended_is_a_clear_error() -> None:
    text = run("view = View.in_ram(spec_of(), 10, None)\nprint(pickled(view))").strip()
    with pytest.raises(StoreError, match=r"in the memory of process .* cannot be opened") as refused:
        pickle.loads(bytes.fromhex(text))
    assert "keep it open" in str(refused.value)


def test_a_descriptor_that_became_something_else_is_not_taken_for_the_view() -> None:
    view = View.in_ram(spec_of(), 10, None)
    text = pickle.dumps(view)
    number = view._fd
    view.close()
    other = View.in_ram(spec_of(), 10, None)
    try:
        if other._fd != number:
            os.dup2(other._fd, number)
        with pytest.raises(StoreError, match=r"closed the view|another view"):
            pickle.loads(text)
    finally:
        if other._fd != number:
            os.close(number)
        other.close()


def test_nothing_stays_when_the_owner_is_killed() -> None:
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    with start("view = View.in_ram(spec_of(), 10, None)\nprint(view.n_bytes, flush=True)\nsys.stdin.read()") as process:
        assert process.stdout is not None and int(process.stdout.readline())
        process.kill()
    after = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    assert not [name for name in after - before if "view" in name]


def test_closing_leaves_no_descriptor() -> None:
    before = open_files()
    view = View.in_ram(spec_of(), 10, None)
    fill(view, range(10))
    view.close()
    view.close()
    out = np.empty(view.spec.shape, np.uint8)
    slots = np.array([0])
    uses = (lambda: view.take(slots, out[None]), lambda: view.filled(slots), lambda: view.get(0, out), view.__reduce__)
    for use in uses:
        with pytest.raises(UsageError, match="closed"):
            use()
    assert "closed" in repr(view)
    assert not open_files() - before
    forgotten = View.in_ram(spec_of(), 10, None)
    del forgotten
    assert not open_files() - before


def test_the_image_of_a_view_says_shape_and_bytes_never_data() -> None:
    with View.in_ram(spec_of(), 1000, None) as view:
        fill(view, range(2))
        assert repr(view) == "<View of 'cam' 8×12×3 raw in RAM: 2 of 1,000 rows, 300 KiB>"
