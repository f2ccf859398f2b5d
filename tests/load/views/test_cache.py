"""The cache directory: where it is, what it may hold, and who has to go."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from penstock._src.load.views import cache
from penstock._src.load.views.view import View
from penstock._src.system.cache_directory import cache_directory
from penstock.errors import LimitExceeded, OutputFailed, UsageError
from tests.load.view_rows import assert_holds, fill, open_files, run, spec_of, start

ROWS = 20
SPEC_BYTES = 20_480  # of one view of ROWS rows, asserted below


def _view(directory: Path, name: str, limit: int | None = None) -> View:
    return View.on_disk(spec_of(fingerprint=name), ROWS, directory, cache_limit_bytes=limit)


def _age(path: Path | None, seconds: int) -> Path:
    assert path is not None
    os.utime(path, (seconds, seconds))
    return path


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "own"))
    assert cache_directory() == tmp_path / "own"
    assert cache.views_directory() == tmp_path / "own" / "views"
    assert cache.views_directory(tmp_path / "x") == tmp_path / "x"
    monkeypatch.setenv("PENSTOCK_CACHE", "~/c")
    assert cache_directory() == tmp_path / "home" / "c"
    monkeypatch.delenv("PENSTOCK_CACHE")
    assert cache_directory() == tmp_path / "xdg" / "penstock"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert cache_directory() == tmp_path / "home" / ".cache" / "penstock"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == tmp_path / "home" / ".cache" / "penstock"


def test_the_default_directory_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "own"))
    with View.on_disk(spec_of(), ROWS) as view:
        assert view.path is not None and view.path.parent == tmp_path / "own" / "views"
        assert view.n_bytes == SPEC_BYTES


def test_the_least_recently_used_go_first_and_only_as_many_as_needed(tmp_path: Path) -> None:
    paths = {}
    for name in "abcd":
        with _view(tmp_path, name) as view:
            fill(view, range(ROWS))
            paths[name] = view.path
    for number, name in enumerate("abcd"):
        _age(paths[name], 1000 + number)
    with _view(tmp_path, "a", limit=1):  # used now: the oldest is b, and a view that is there needs no room
        pass
    with _view(tmp_path, "e", limit=int(3.5 * SPEC_BYTES)) as new:
        left = {path.name for path in tmp_path.iterdir()}
        assert left == {each.name for each in (paths["a"], paths["d"], new.path) if each is not None}
        assert len([note for note in new.notes if "removed to make room" in note]) == 2


def test_what_somebody_holds_is_never_removed(tmp_path: Path) -> None:
    code = """
view = View.on_disk(spec_of(fingerprint='a'), 20, sys.argv[1])
fill(view, range(20))
print(1, flush=True)
sys.stdin.read()
"""
    with start(code, tmp_path) as other:
        try:
            assert other.stdout is not None and other.stdout.readline()
            (held_by_other,) = tmp_path.iterdir()
            _age(held_by_other, 1000)
            own = _view(tmp_path, "b")
            _age(own.path, 1001)
            with _view(tmp_path, "c") as unheld:
                _age(unheld.path, 2000)
            with _view(tmp_path, "d", limit=3 * SPEC_BYTES):
                assert held_by_other.exists() and own.path is not None and own.path.exists()
                assert unheld.path is not None and not unheld.path.exists(), "younger, but nobody holds it"
                with pytest.raises(LimitExceeded, match=r"beside 3 in use \(61\.4 kB\)") as refused:
                    _view(tmp_path, "e", limit=3 * SPEC_BYTES)
                assert refused.value.size == SPEC_BYTES and refused.value.limit == 0
            own.close()
        finally:
            other.kill()
    with _view(tmp_path, "f", limit=SPEC_BYTES):
        assert not held_by_other.exists(), "a killed process holds nothing"


def test_a_child_of_a_fork_holds_what_its_parent_opened(tmp_path: Path) -> None:
    code = """
view = View.on_disk(spec_of(fingerprint='a'), 20, sys.argv[1])
fill(view, range(20))
go = os.pipe()
if not os.fork():
    os.close(go[1])
    os.read(go[0], 1)
    assert_holds(view, range(20))
    os._exit(0)
view.close()
from penstock.errors import LimitExceeded
try:
    View.on_disk(spec_of(fingerprint='b'), 20, sys.argv[1], cache_limit_bytes=30_000)
except LimitExceeded:
    print('held')
os.close(go[1])
assert os.wait()[1] == 0
View.on_disk(spec_of(fingerprint='b'), 20, sys.argv[1], cache_limit_bytes=30_000).close()
"""
    assert run(code, tmp_path).strip() == "held"


def test_nothing_is_removed_for_a_view_that_cannot_fit_anyway(tmp_path: Path) -> None:
    with _view(tmp_path, "a"):
        pass
    before = open_files()
    with pytest.raises(LimitExceeded, match=r"needs 20\.5 kB, 20 kB available, by the limit of this cache") as refused:
        _view(tmp_path, "b", limit=20_000)
    assert (refused.value.size, refused.value.limit) == (SPEC_BYTES, 20_000)
    assert "PENSTOCK_CACHE" in str(refused.value)
    assert len(list(tmp_path.iterdir())) == 1 and not open_files() - before


def test_the_limit_of_the_environment_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", "30kB")
    with _view(tmp_path, "a"), pytest.raises(LimitExceeded, match="PENSTOCK_CACHE_LIMIT, 30 kB"):
        _view(tmp_path, "b")
    _view(tmp_path, "b").close()
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setenv("PENSTOCK_CACHE_LIMIT", "much")
    with pytest.raises(UsageError, match="much"):
        _view(tmp_path, "c")


def test_a_disk_without_room_is_refused_and_a_part_of_it_stays_free(tmp_path: Path) -> None:
    disk = os.statvfs(tmp_path)
    free = disk.f_bavail * disk.f_frsize
    spec = spec_of(size=(1024, 1024))
    rows = 3 * free // spec.row_bytes + 1  # others use this disk, too, and may give some of it back
    with pytest.raises(LimitExceeded, match=r"by the disk: .* free") as refused:
        View.on_disk(spec, rows, tmp_path, cache_limit_bytes=10 * free)
    disk = os.statvfs(tmp_path)
    assert refused.value.size > refused.value.limit and refused.value.limit < max(free, disk.f_bavail * disk.f_frsize)
    with pytest.raises(LimitExceeded, match=r"half of what is free|by the disk"):
        View.on_disk(spec, rows, tmp_path)
    assert not list(tmp_path.iterdir())


def test_rows_that_a_held_view_will_still_get_are_spoken_for(tmp_path: Path) -> None:
    with cache.CacheDirectory(tmp_path, 1 << 40) as held:
        before = held.room().n_bytes
    spec = spec_of(size=(1024, 1024))
    rows = before // 4 // spec.row_bytes
    with View.on_disk(spec, rows, tmp_path) as view, cache.CacheDirectory(tmp_path, 1 << 40) as held:
        # Others use this disk too: the answer is near, not exact.
        assert held.room().n_bytes < before - view.n_bytes // 2
        (found,) = held.views()
        assert found.is_held and found.n_bytes == view.n_bytes > found.stored_bytes


def test_what_a_killed_maker_left_behind_goes(tmp_path: Path) -> None:
    left = tmp_path / f".{'a' * 64}.123.new"
    left.write_bytes(b"half")
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with _view(tmp_path, "a"):
        assert not left.exists() and other.read_text() == "mine"


def test_other_files_are_neither_counted_nor_removed(tmp_path: Path) -> None:
    names = ["x.view", "a" * 63 + ".view", "A" * 64 + ".view", "a" * 64 + ".view.bak"]
    for name in names:
        (tmp_path / name).write_bytes(bytes(100_000))
    (tmp_path / ("b" * 64 + ".view")).mkdir()
    with _view(tmp_path, "a", limit=SPEC_BYTES):
        pass
    assert all((tmp_path / name).exists() for name in names)


@pytest.mark.parametrize("where", ["below a file", "where nothing can be made"])
def test_a_directory_that_cannot_be_used_says_penstock_cache(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    directory = tmp_path / "file" / "views" if where == "below a file" else Path("/proc/penstock/views")
    before = open_files()
    with pytest.raises(OutputFailed, match="the cache of views cannot be used") as refused:
        View.on_disk(spec_of(), ROWS, directory)
    assert "PENSTOCK_CACHE" in str(refused.value) and not open_files() - before


def test_a_directory_that_may_not_be_written_says_penstock_cache(tmp_path: Path) -> None:
    from tests.load.views.test_view_disk import WITHOUT_RIGHTS

    with _view(tmp_path, "there") as view:
        fill(view, range(ROWS))
    tmp_path.chmod(0o555)
    code = f"""{WITHOUT_RIGHTS}
from penstock.errors import OutputFailed
drop_rights()
assert_holds(View.on_disk(spec_of(fingerprint='there'), 20, sys.argv[1]), range(20))
try:
    View.on_disk(spec_of(fingerprint='new'), 20, sys.argv[1])
except OutputFailed as error:
    print(error)
"""
    try:
        out = run(code, tmp_path)
    finally:
        tmp_path.chmod(0o755)
    assert "Permission denied" in out and "PENSTOCK_CACHE" in out


def test_opening_counts_as_use(tmp_path: Path) -> None:
    with _view(tmp_path, "a") as view:
        path = _age(view.path, 1000)
    with _view(tmp_path, "a") as view:
        assert path.stat().st_mtime > 1_000_000
        fill(view, range(ROWS))
        assert_holds(view, range(ROWS))
    with cache.CacheDirectory(tmp_path) as held:
        (found,) = held.views()
        assert not found.is_held and found.path == path
        assert np.isclose(found.used_ns / 1e9, path.stat().st_mtime)
