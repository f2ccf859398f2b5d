"""A view on disk: found again, shared by processes, sound after kill -9, and never other pixels than were put."""

from __future__ import annotations

import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock._src.load.views import view_file
from penstock._src.load.views.view import View
from penstock._src.load.views.view_file import HEADER_BYTES
from tests.load.view_rows import assert_holds, fill, open_files, pickled, pixels_of, run, spec_of, start, verified


def _file(directory: Path) -> Path:
    (found,) = directory.glob("*.view")
    return found


def test_rows_are_there_when_the_view_is_opened_again(tmp_path: Path) -> None:
    with View.on_disk(spec_of(), 20, tmp_path) as view:
        fill(view, range(0, 20, 2))
        view.sync()
    with View.on_disk(spec_of(), 20, tmp_path) as view:
        assert not view.notes and view.n_filled == 10
        assert verified(view, np.arange(20)).tolist() == [True, False] * 10
        assert_holds(view, range(0, 20, 2))
    assert [each.name for each in tmp_path.iterdir()] == [_file(tmp_path).name], "one file and nothing else"


def test_another_fingerprint_size_or_limit_is_another_file(tmp_path: Path) -> None:
    with View.on_disk(spec_of(), 20, tmp_path) as view:
        fill(view, range(20))
    for spec, limit in ((spec_of(fingerprint="other"), None), (spec_of(size=(9, 9)), None), (spec_of(), 17_000)):
        with View.on_disk(spec, 20, tmp_path, limit) as view:
            assert view.n_filled == 0
    assert len(list(tmp_path.iterdir())) == 4


def test_a_view_of_a_part_stays_within_its_limit(tmp_path: Path) -> None:
    spec, limit = spec_of(size=(32, 32)), 200_000
    with View.on_disk(spec, 500, tmp_path, limit) as view:
        for slot in range(view.capacity):
            row = int(view.rows_of(np.array([slot]))[0])
            assert view.put(slot, pixels_of(spec, row))
        found = _file(tmp_path).stat()
        assert found.st_size == view.n_bytes <= limit
        assert found.st_blocks * 512 <= limit + 65_536, "a file system may add blocks of its own"
        assert 0 < view.capacity < 500


def test_a_view_is_found_whatever_its_limit_was_and_nothing_is_made_for_looking(tmp_path: Path) -> None:
    assert View.find_on_disk(spec_of(), 20, tmp_path / "none") is None
    assert not (tmp_path / "none").exists()
    View.on_disk(spec_of(), 20, tmp_path, 17_000).close()
    (tmp_path / ("0" * 64 + ".view")).write_bytes(b"no view")
    (tmp_path / ("1" * 64 + ".view")).mkdir()
    found = View.find_on_disk(spec_of(), 20, tmp_path)
    assert found is not None and found.capacity < 20
    with found, pickle.loads(pickle.dumps(found)) as again:
        assert again.path == found.path
    View.on_disk(spec_of(), 20, tmp_path).close()
    with View.find_on_disk(spec_of(), 20, tmp_path) or View.in_ram(spec_of(), 1, None) as view:
        assert view.capacity == 20 and view.path is not None
    assert View.find_on_disk(spec_of(), 21, tmp_path) is None
    assert View.find_on_disk(spec_of(encoding="jpeg"), 20, tmp_path) is None


def test_processes_share_one_file(tmp_path: Path) -> None:
    with View.on_disk(spec_of(), 20, tmp_path) as view:
        fill(view, range(10))
        code = """
view = unpickled(sys.argv[1])
assert_holds(view, range(10))
fill(view, range(10, 20))
print(view.path)
"""
        assert run(code, pickled(view), PENSTOCK_CACHE="/nonexistent").strip() == str(_file(tmp_path))
        assert_holds(view, range(20))


def test_makers_that_come_at_once_end_with_one_file(tmp_path: Path) -> None:
    code = """
sys.stdin.readline()
view = View.on_disk(spec_of(), 40, sys.argv[1])
fill(view, range(int(sys.argv[2]), 40, 4))
print(os.fstat(view._fd).st_ino)
"""
    makers = [start(code, tmp_path / "views", number) for number in range(4)]
    try:
        for maker in makers:
            assert maker.stdin is not None
            maker.stdin.write("go\n")
            maker.stdin.flush()
        inodes = {maker.communicate(timeout=120)[0] for maker in makers}
    finally:
        for maker in makers:
            maker.kill()
            maker.wait()
    assert len(inodes) == 1 and inodes != {""}
    with View.on_disk(spec_of(), 40, tmp_path / "views") as view:
        assert_holds(view, range(40))


@pytest.mark.parametrize("encoding", ["raw", "jpeg"])
def test_what_a_killed_process_put_is_there_and_the_rest_goes_on(encoding: str, tmp_path: Path) -> None:
    code = """
view = View.on_disk(spec_of(encoding=sys.argv[2], size=(16, 16)), 5000, sys.argv[1])
for row in range(5000):
    fill(view, range(row, row + 1))
    print(row, flush=True)
"""
    with start(code, tmp_path, encoding) as process:
        assert process.stdout is not None
        while int(process.stdout.readline()) < 50:
            pass
        process.kill()
    with View.on_disk(spec_of(encoding=encoding, size=(16, 16)), 5000, tmp_path) as view:
        rows = np.arange(50)
        assert verified(view, rows).all() and view.n_filled >= 50 and not view.notes and not view.n_damaged
        assert verified(view, np.arange(5000)).sum() == view.n_filled, "no row is half there"
        fill(view, range(4990, 5000))
        if encoding == "raw":
            assert_holds(view, range(50))
            assert_holds(view, range(4990, 5000))


@pytest.fixture(scope="module")
def whole_view(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw and a JPEG view of 12 rows, all but row 5 filled."""
    directory = tmp_path_factory.mktemp("whole")
    for encoding in ("raw", "jpeg"):
        with View.on_disk(spec_of(encoding=encoding), 12, directory / encoding) as view:
            fill(view, range(5))
            fill(view, range(6, 12))
    return directory


def _expected(whole: Path, encoding: str) -> list[bytes | None]:
    rows: list[bytes | None] = []
    with View.on_disk(spec_of(encoding=encoding), 12, whole / encoding) as view:
        out = np.empty(view.spec.shape, np.uint8)
        for row in range(12):
            rows.append(out.tobytes() if view.get(row, out) else None)
    return rows


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_changed_byte_anywhere_never_gives_other_pixels(
    data: st.DataObject, whole_view: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    encoding = data.draw(st.sampled_from(["raw", "jpeg"]))
    expected = _expected(whole_view, encoding)
    directory = tmp_path_factory.mktemp("changed")
    path = Path(shutil.copy(_file(whole_view / encoding), directory))
    n_bytes = path.stat().st_size
    with View.on_disk(spec_of(encoding=encoding), 12, whole_view / encoding) as view:
        table, rows_at = view.layout.table_at, view.layout.rows_at
    parts = [(0, HEADER_BYTES), (HEADER_BYTES, HEADER_BYTES + 12), (table, table + 16 * 12), (rows_at, n_bytes)]
    first, end = data.draw(st.sampled_from(parts))
    with open(path, "r+b") as file:
        for _ in range(data.draw(st.integers(1, 3))):
            place = data.draw(st.integers(first, end - 1))
            file.seek(place)
            old = file.read(1)[0]
            file.seek(place)
            file.write(bytes([old ^ data.draw(st.integers(1, 255))]))
    with View.on_disk(spec_of(encoding=encoding), 12, directory) as view:
        out = np.empty(view.spec.shape, np.uint8)
        found = [out.tobytes() if view.get(row, out) else None for row in range(12)]
        if first == 0:
            # Two changes of one byte may undo each other.
            assert found == [None] * 12 or found == expected
            assert bool(view.notes) == (found == [None] * 12)
        else:
            assert not view.notes
            assert all(now is None or now == then for now, then in zip(found, expected, strict=True))
            assert sum(now is not None for now in found) >= 11 - 3
        assert view.filled(np.arange(12)).tolist() == [each is not None for each in found]
        for row in range(12):
            assert view.put(row, pixels_of(view.spec, row)), "and it can be put again"
        assert verified(view, np.arange(12)).all() and view.n_filled == 12


def test_reading_a_view_on_disk_takes_no_memory_of_the_process(tmp_path: Path) -> None:
    code = """
from penstock._src.system.memory import rss_bytes
spec = spec_of(size=(512, 512))
with View.on_disk(spec, 64, sys.argv[1]) as view:
    fill(view, range(64))
with View.on_disk(spec, 64, sys.argv[1]) as view:
    out = np.empty(spec.shape, np.uint8)
    view.get(0, out)
    before = rss_bytes()
    assert all(view.get(row, out) for row in range(64))
    print(rss_bytes() - before, view.n_bytes)
"""
    grown, n_bytes = map(int, run(code, tmp_path).split())
    assert n_bytes > 50_000_000 and grown < 5_000_000


def test_rows_go_into_arrays_that_are_not_contiguous(tmp_path: Path) -> None:
    with View.on_disk(spec_of(), 4, tmp_path) as view:
        fill(view, range(4))
        wide = np.zeros((3, 8, 24), np.uint8)
        assert view.get(2, wide[:, :, ::2])
        assert np.array_equal(wide[:, :, ::2], pixels_of(view.spec, 2)) and not wide[:, :, 1::2].any()


def test_damaged_rows_are_counted_and_put_again_for_everybody(tmp_path: Path) -> None:
    spec = spec_of()
    with View.on_disk(spec, 10, tmp_path) as view:
        fill(view, range(10))
        rows_at = view.layout.rows_at
    with open(_file(tmp_path), "r+b") as file:
        file.seek(rows_at + 3 * spec.row_bytes + 17)
        file.write(b"\x00\x01\x02")
    with View.on_disk(spec, 10, tmp_path) as view, View.on_disk(spec, 10, tmp_path) as other:
        assert view.filled(np.arange(10)).all(), "by the table it is there"
        assert verified(view, np.arange(10)).tolist() == [row != 3 for row in range(10)]
        assert view.n_damaged == 1 and view.n_filled == 9
        assert not other.get(3, np.empty(spec.shape, np.uint8)), "the mark was taken back for everybody"
        fill(view, range(3, 4))
        assert_holds(other, range(10))
        assert view.n_damaged == 1 and other.n_damaged == 0


def test_checksums_are_looked_at_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of()
    with View.on_disk(spec, 4, tmp_path) as view:
        fill(view, range(4))
    looked_at: list[int] = []
    right = view_file.checksum

    def checksum(row: NDArray[np.uint8], slot: int) -> int:
        looked_at.append(slot)
        return right(row, slot)

    monkeypatch.setattr(view_file, "checksum", checksum)
    with View.on_disk(spec, 4, tmp_path) as view:
        assert_holds(view, range(2))
        assert verified(view, np.arange(4)).all()
        assert_holds(view, range(4))
        assert verified(view, np.arange(4)).all() and looked_at == [0, 1, 2, 3]


@pytest.mark.parametrize("n_bytes", [0, 100, HEADER_BYTES, HEADER_BYTES + 5, 12_288, 20_481])
def test_a_file_of_another_size_is_made_anew(n_bytes: int, tmp_path: Path) -> None:
    with View.on_disk(spec_of(), 10, tmp_path) as view:
        fill(view, range(10))
    os.truncate(_file(tmp_path), n_bytes)
    with View.on_disk(spec_of(), 10, tmp_path) as view:
        assert view.n_filled == 0 and "built again" in view.notes[0]
        fill(view, range(10))
    with View.on_disk(spec_of(), 10, tmp_path) as view:
        assert_holds(view, range(10))
        assert not view.notes


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_links_and_pipes_are_not_followed(what: str, tmp_path: Path) -> None:
    View.on_disk(spec_of(), 10, tmp_path).close()
    path = _file(tmp_path)
    outside = tmp_path / "outside"
    path.rename(outside)
    before = outside.read_bytes()
    path.symlink_to(outside) if what == "link" else os.mkfifo(path)
    with View.on_disk(spec_of(), 10, tmp_path) as view:
        assert view.notes and path.is_file() and not path.is_symlink()
        fill(view, range(10))
    assert outside.read_bytes() == before


def test_a_view_in_use_survives_that_its_file_is_removed(tmp_path: Path) -> None:
    with View.on_disk(spec_of(), 10, tmp_path) as view:
        fill(view, range(5))
        _file(tmp_path).unlink()
        fill(view, range(5, 10))
        assert_holds(view, range(10))


WITHOUT_RIGHTS = """
import ctypes
def drop_rights():
    # root may write everywhere: without its capabilities the modes of files count
    libc = ctypes.CDLL(None)
    assert libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
"""


def test_a_view_that_may_only_be_read_is_read(tmp_path: Path) -> None:
    spec = spec_of()
    with View.on_disk(spec, 10, tmp_path) as view:
        fill(view, range(8))
        rows_at = view.layout.rows_at
    with open(_file(tmp_path), "r+b") as file:
        file.seek(rows_at)
        file.write(b"\x00\x01\x02\x03")
    _file(tmp_path).chmod(0o444)
    code = f"""{WITHOUT_RIGHTS}
drop_rights()
view = View.on_disk(spec_of(), 10, sys.argv[1])
assert_holds(view, range(1, 8))
out = np.empty(view.spec.shape, np.uint8)
assert not view.get(0, out) and not view.get(0, out) and not view.filled(np.array([0]))[0]
assert not view.put(0, pixels_of(view.spec, 0)) and not view.put(9, pixels_of(view.spec, 9))
print(view.n_damaged, view.n_refused, view.notes)
"""
    out = run(code, tmp_path)
    assert out.startswith("1 2 ") and "may only be read" in out


def test_what_the_disk_refuses_is_counted_and_no_signal(tmp_path: Path) -> None:
    code = """
import resource
view = View.on_disk(spec_of(size=(64, 64)), 100, sys.argv[1])
limit = view.layout.rows_at + 10 * view.spec.row_bytes + 100
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
kept = [view.put(row, pixels_of(view.spec, row)) for row in range(20)]
assert kept == [True] * 10 + [False] * 10, kept
assert_holds(view, range(10))
print(view.n_refused, view.n_filled, view.notes)
"""
    out = run(code, tmp_path)
    assert out.startswith("10 10 ") and "cannot be kept: File too large" in out


def test_closing_leaves_no_descriptor(tmp_path: Path) -> None:
    before = open_files()
    view = View.on_disk(spec_of(), 10, tmp_path)
    jpeg = View.on_disk(spec_of(encoding="jpeg"), 10, tmp_path)
    fill(view, range(10))
    fill(jpeg, range(10))
    again = pickle.loads(pickle.dumps(view))
    found = View.find_on_disk(spec_of(), 10, tmp_path)
    for each in (view, jpeg, again, found):
        assert each is not None
        each.close()
    for path in tmp_path.glob("*.view"):
        path.write_bytes(b"broken")
    View.on_disk(spec_of(), 10, tmp_path).close()
    assert not open_files() - before
