"""One cache for all processes: places are fixed and within the limit, strangers find it, the killed do not wedge it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.load.clips.ram_cache import RamCache, places_bytes
from penstock.errors import StoreError, UsageError
from tests.load.clips.cache_pss import cache_pss_bytes

KIB, MIB = 1 << 10, 1 << 20
SIZES = np.full(64, 64 * KIB, np.int64)

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc")


def _image(number: int, n_bytes: int = 64 * KIB) -> np.ndarray:
    return np.full(n_bytes, number + 1, np.uint8)


@contextmanager
def _strangers(directory: Path, count: int, code: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that open the shared cache of 64 images, run `code`, say so, and wait for a line."""
    source = f"""
import sys
from pathlib import Path
import numpy as np
from penstock._src.load.clips.ram_cache import RamCache
cache = RamCache.shared("key", np.full(64, 65536, np.int64), 1 << 30, Path({str(directory)!r}))
{code}
print("ready", flush=True)
sys.stdin.readline()
"""
    pipe = subprocess.PIPE
    started = [
        subprocess.Popen([sys.executable, "-c", source], stdin=pipe, stdout=pipe, text=True) for _ in range(count)
    ]
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.communicate()


def _wait(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@given(st.lists(st.integers(1, 5000), max_size=60), st.integers(0, 200_000))
def test_places_do_not_overlap_and_keep_to_the_limit(sizes: list[int], limit_bytes: int) -> None:
    expected = np.array(sizes, np.int64)
    with RamCache(expected, limit_bytes) as cache:
        images = [np.random.default_rng(number).integers(0, 256, size, np.uint8) for number, size in enumerate(sizes)]
        kept = [cache.put(number, image) for number, image in enumerate(images)]
        assert kept == (cache._table[:, 0] >= 0).tolist()
        assert cache.n_filled == cache.n_places == sum(kept)
        for number, image in enumerate(images):
            found = cache.get(number)
            assert (found is not None) == kept[number]
            if found is not None:
                np.testing.assert_array_equal(found, image)
        assert not any(kept) or places_bytes(expected, limit_bytes) <= limit_bytes
        assert cache.filled_bytes == cache.limit_bytes == int(expected[kept].sum())


def test_a_cache_that_is_large_enough_takes_only_what_the_images_need() -> None:
    assert places_bytes(SIZES, 1 << 40) < 64 * 64 * KIB + 16 * KIB
    with RamCache(SIZES, 1 << 40) as cache:
        assert cache.n_places == 64


def test_images_are_only_read_and_never_replaced() -> None:
    with RamCache(SIZES, 1 << 30) as cache:
        assert cache.get(3) is None
        assert cache.put(3, _image(3)) and cache.put(3, _image(9))
        found = cache.get(3)
        assert found is not None and (found == 4).all()
        with pytest.raises(ValueError, match="read-only"):
            found[0] = 1
        with pytest.raises(UsageError, match="image 4 has 10 bytes"):
            cache.put(4, np.zeros(10, np.uint8))


def test_strangers_find_one_cache_and_each_others_images(tmp_path: Path) -> None:
    code = "cache.put(5, np.full(65536, 77, np.uint8))"
    with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as cache, _strangers(tmp_path, 2, code) as others:
        assert [_wait(each) for each in others] == ["ready", "ready"]
        assert cache.n_filled == 1
        assert cache.put(20, _image(20))
        assert len(list(tmp_path.iterdir())) == 1


def test_the_cache_outlives_whoever_made_it(tmp_path: Path) -> None:
    with _strangers(tmp_path, 1, "cache.put(7, np.full(65536, 9, np.uint8))") as (maker,):
        assert _wait(maker) == "ready"
        with _strangers(tmp_path, 1, "assert cache.get(7) is not None") as (heir,):
            assert _wait(heir) == "ready"
            maker.kill()
            maker.wait()
            with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as cache:
                found = cache.get(7)
                assert found is not None and (found == 9).all()
    with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as cache:  # all are gone: a new one
        assert cache.n_filled == 0
    assert list(tmp_path.iterdir()) == []


def test_a_process_killed_while_it_writes_wedges_nothing(tmp_path: Path) -> None:
    # It stops with half of an image written, and with the list of holders locked.
    code = """
import os, penstock._src.load.clips.ram_cache as module
from penstock._src.system.shared_memory import holders_of
real = os.pwrite
def half(fd, data, offset):
    real(fd, data[: len(data) // 2], offset)
    print("half", flush=True)
    import time; time.sleep(600)
module.os.pwrite = half
path = cache._leave.peek()[2][0]
with holders_of(path.stem, path.parent):
    cache.put(11, np.full(65536, 5, np.uint8))
"""
    with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as cache:
        with _strangers(tmp_path, 1, code) as (killed,):
            assert _wait(killed) == "half"
            assert cache.get(11) is None
            killed.send_signal(signal.SIGKILL)
            killed.wait()
        assert cache.put(11, _image(11))
        with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as again:
            found = again.get(11)
            assert found is not None and (found == 12).all()


def test_other_images_or_another_limit_make_another_cache(tmp_path: Path) -> None:
    with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as cache:
        cache.put(0, _image(0))
        for key, sizes, limit in (("other", SIZES, 1 << 30), ("key", SIZES[:32], 1 << 30), ("key", SIZES, 1 << 20)):
            with RamCache.shared(key, sizes, limit, tmp_path) as other:
                assert other.n_filled == 0


def test_a_damaged_list_of_holders_is_read_past(tmp_path: Path) -> None:
    with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as cache:
        cache.put(0, _image(0))
        (path,) = tmp_path.iterdir()
        good = path.read_text()
        path.write_bytes(b"\xff\xfe junk\n1 2 3\n999999999 3 4 abc\n" + f"{os.getpid()} 0 1 x\n{good}".encode())
        with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as again:
            assert again.n_filled == 1


def test_eight_processes_hold_the_cache_once(tmp_path: Path) -> None:
    total = 64 * 64 * KIB
    touch = "for number in range(64):\n    assert int(cache.get(number).sum()) == 65536 * (number + 1)"
    with RamCache.shared("key", SIZES, 1 << 30, tmp_path) as cache:
        for number in range(64):
            cache.put(number, _image(number))
        with _strangers(tmp_path, 8, touch) as workers:
            assert [_wait(each) for each in workers] == ["ready"] * 8
            held = cache_pss_bytes([os.getpid(), *(each.pid for each in workers)])
    assert total <= held < total + MIB  # 8 copies would be 8 times that


def test_pickled_it_is_a_place_and_not_data() -> None:
    with RamCache(SIZES, 1 << 30) as cache:
        cache.put(1, _image(1))
        data = pickle.dumps(cache)
        assert len(data) < 1000
        again = pickle.loads(data)
        found = again.get(1)
        assert found is not None and (found == 2).all()
        again.close()
    with pytest.raises(StoreError, match="cannot be opened"):
        pickle.loads(data)


def test_a_directory_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.mkdir(exist_ok=True)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        RamCache.shared("key", SIZES, 1 << 30, tmp_path)
