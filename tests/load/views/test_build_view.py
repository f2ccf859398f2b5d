"""Building views: every row once, forward, with threads; stopped and killed builds go on where they were."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._src.load.engine.images import Fitter, fit_for
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.views import build
from penstock._src.load.views.build import build_view
from penstock._src.load.views.view import View
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock.errors import BudgetExceeded, ImageError, LimitExceeded, StoreError, UsageError
from tests.load.image_store import ArraySource, ArrayStore
from tests.load.view_rows import open_files, start, verified
from tests.threads import earlier_threads, penstock_threads

SIZE = (24, 32)


EARLIER: set[threading.Thread] = set()  # those that other tests left


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    EARLIER.update(earlier_threads())


def _right(store: ArrayStore, name: str, row: int, size: tuple[int, int] = SIZE) -> NDArray[np.uint8]:
    fit = fit_for(store.column(name), size)
    out = np.empty((fit.channels, *size), np.uint8)
    Fitter().fit((store.jpeg if name == "cam" else store.raw)[row], fit, out)
    return out


def _assert_whole(store: ArrayStore, views: dict[str, View], size: tuple[int, int] = SIZE) -> None:
    for name, view in views.items():
        out = np.empty(view.spec.shape, np.uint8)
        for row in range(store.rows):
            slot = int(view.slots(np.array([row]))[0])
            assert slot < 0 or (view.get(slot, out) and np.array_equal(out, _right(store, name, row, size)))
        assert view.n_filled == view.capacity


def _close(views: dict[str, View]) -> None:
    for view in views.values():
        view.close()


@pytest.mark.parametrize("where", ["disk", "ram"])
def test_all_rows_of_all_image_columns_are_built_once(where: Any) -> None:
    store = ArrayStore([30, 50, 45])
    reported: list[tuple[int, int]] = []
    views = build_view(store, image_size=SIZE, where=where, threads=3, progress=lambda *now: reported.append(now))
    try:
        assert list(views) == ["cam", "raw"] and [view.path is None for view in views.values()] == [where == "ram"] * 2
        assert sorted(store.log) == sorted([*range(125), *range(125)])
        assert reported[0] == (0, 250) and reported[-1] == (250, 250) and reported == sorted(reported)
        _assert_whole(store, views)
    finally:
        _close(views)
    assert not penstock_threads("penstock-load") - EARLIER


def test_a_view_that_is_there_is_not_built_again_and_the_loader_finds_it() -> None:
    store = ArrayStore([30, 50])
    _close(build_view(store, "cam", SIZE))
    store.log.clear()
    views = build_view(store, ["cam", "cam"], SIZE)
    _assert_whole(store, views)
    _close(views)
    assert store.log == []
    from penstock._src.load.engine.source import SampleSource, Shaping
    from penstock._src.load.sampling.window import Window
    from penstock._src.load.views.choose_views import attach_views

    source = SampleSource(Window().bind(store), Shaping(image_size=SIZE), 1 << 20)
    made, _ = attach_views([source], "auto", 0)
    try:
        assert [view.path for view in made] == [views["cam"].path]
    finally:
        for view in made:
            view.close()


def test_rows_are_read_in_the_order_of_the_keys_and_runs_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_PIECE_ROWS", 10)
    monkeypatch.setattr(build, "_CHUNK_ROWS", 64)
    asked: list[list[int]] = []

    class Runs(ArraySource):
        def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
            asked.append(list(rows))
            return super().read(rows, scratch)

        def runs(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return rows // 4

    class RunStore(ArrayStore):
        def images(self, name: str) -> ImageSource:
            return Runs(self.jpeg, frozenset(), self.log)

    store = RunStore([130])
    _close(build_view(store, "cam", SIZE, threads=1))
    assert store.log == [*range(63, -1, -1), *range(127, 63, -1), 129, 128], "sorted within chunks of bounded size"
    assert all(10 <= len(rows) <= 13 or rows[-1] % 64 == 0 for rows in asked)
    ends = {rows[-1] % 4 for rows in asked}
    assert ends == {0}, "no run is cut"


def test_a_limit_keeps_rows_spread_evenly_within_it(tmp_path: Path) -> None:
    store = ArrayStore([100])
    views = build_view(store, image_size=SIZE, limit="200kB", directory=tmp_path / "here")
    try:
        assert sum(view.n_bytes for view in views.values()) <= 200_000
        assert sum(path.stat().st_size for path in (tmp_path / "here").iterdir()) <= 200_000
        assert all(20 < view.capacity < 100 for view in views.values())
        _assert_whole(store, views)
    finally:
        _close(views)
    with pytest.raises(LimitExceeded, match="for one row"):
        build_view(store, image_size=SIZE, limit=20_000)


def test_jpeg_views_stop_where_they_are_full() -> None:
    store = ArrayStore([100])
    views = build_view(store, "cam", (48, 64), encoding="jpeg")
    with views["cam"] as view:
        out = np.empty(view.spec.shape, np.uint8)
        assert view.n_filled == 100 and view.get(7, out)
        right = _right(store, "cam", 7, (48, 64))
        assert np.mean((out.astype(float) - right) ** 2) < 20
        full_bytes = view.n_bytes
    views = build_view(store, "cam", (48, 64), encoding="jpeg", where="ram", limit=full_bytes // 2)
    with views["cam"] as view:
        assert 10 < view.n_filled < 100 and view.n_bytes <= full_bytes // 2
        assert any("full" in note for note in view.notes)


def test_a_broken_row_raises_with_its_place_and_the_rest_is_kept() -> None:
    store = ArrayStore([40], broken=[17])
    before = open_files()
    place = r"arrays: cam, row 17 \(row 17 of episode 0\): row 17 is broken on purpose"
    with pytest.raises(StoreError, match=place) as refused:
        build_view(store, "cam", SIZE, threads=1)
    assert "skip" in str(refused.value) and store.log == list(range(39, 17, -1))
    assert not open_files() - before
    assert not penstock_threads("penstock-load") - EARLIER
    views = build_view(store, "cam", SIZE, on_error="skip")
    with views["cam"] as view:
        assert store.log == [row for row in range(39, -1, -1) if row != 17], "what was kept is not made again"
        assert view.n_filled == 39
        assert view.notes == ("1 row was left out, the first: row 17: row 17 is broken on purpose",)


def test_a_image_that_does_not_decode_is_a_broken_row() -> None:
    store = ArrayStore([20])
    store.jpeg[3] = store.jpeg[3][:4].copy()
    store.jpeg[9] = np.frombuffer(b"no image at all", np.uint8)
    with pytest.raises(StoreError, match="cam, row 9 ") as refused:
        build_view(store, "cam", SIZE, threads=1)
    assert isinstance(refused.value.__cause__, ImageError)
    with build_view(store, "cam", SIZE, on_error="skip")["cam"] as view:
        assert view.n_filled == 18 and view.notes[0].startswith("2 rows were left out, the first: row ")


def test_a_progress_that_raises_stops_the_build_which_goes_on_later() -> None:
    store = ArrayStore([400])

    class Enough(Exception):
        pass

    def progress(done: int, total: int) -> None:
        if done >= 32:
            raise Enough

    before = open_files()
    with pytest.raises(Enough):
        build_view(store, "cam", SIZE, progress=progress, threads=2)
    assert not open_files() - before
    assert not penstock_threads("penstock-load") - EARLIER
    first: list[tuple[int, int]] = []
    views = build_view(store, "cam", SIZE, progress=lambda done, total: first.append((done, total)))
    _assert_whole(store, views)
    _close(views)
    assert first[0][0] >= 32 and len(store.log) < 400 + 3 * 64, "almost nothing was made twice"


def test_an_interrupt_before_a_piece_is_handed_out_ends_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    made = build._Fill.__init__
    pieces: list[int] = []

    def interrupted(*words: Any) -> None:
        pieces.append(1)
        if len(pieces) == 3:
            raise KeyboardInterrupt
        made(*words)

    monkeypatch.setattr(build._Fill, "__init__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_view(ArrayStore([400]), "cam", SIZE, threads=2)
    assert not penstock_threads("penstock-load") - EARLIER


BUILDING = """
import signal, time
from tests.load.image_store import ArraySource, ArrayStore
from penstock._src.load.views.build import build_view

class Slow(ArraySource):
    def read(self, rows, scratch):
        for image in super().read(rows, scratch):
            # Nobody waits for 2,000 rows: the signal comes when the first are there.
            time.sleep(0.05 if len(self._log) > 100 else 0)
            yield image

class SlowStore(ArrayStore):
    def images(self, name):
        return Slow(self.jpeg, frozenset(), self.log)

signal.signal(signal.SIGINT, signal.default_int_handler)  # the background job of a shell ignores it
store = SlowStore([2000], name='slow')
try:
    build_view(store, 'cam', (24, 32), threads=2, progress=lambda done, total: print(done, flush=True))
except KeyboardInterrupt:
    import threading
    print('stopped', [thread.name for thread in threading.enumerate()], flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_or_interrupted_build_goes_on(number: signal.Signals) -> None:
    with start(BUILDING, PENSTOCK_CACHE=os.environ["PENSTOCK_CACHE"]) as process:
        try:
            assert process.stdout is not None
            while int(process.stdout.readline()) < 64:
                pass
            process.send_signal(number)
            out, stderr = process.communicate(timeout=120)
        finally:
            process.kill()
    if number == signal.SIGINT:
        assert out.splitlines()[-1] == "stopped ['MainThread']" and process.returncode == 0, stderr
    store = ArrayStore([2000], name="slow")
    reported: list[int] = []
    views = build_view(store, "cam", SIZE, progress=lambda done, total: reported.append(done))
    try:
        assert 64 <= reported[0] < 2000 and len(store.log) == 2000 - reported[0]
        assert verified(views["cam"], np.arange(2000)).all()
        out_pixels = np.empty(views["cam"].spec.shape, np.uint8)
        for row in range(0, 2000, 37):
            assert views["cam"].get(row, out_pixels) and np.array_equal(out_pixels, _right(store, "cam", row))
    finally:
        _close(views)


def test_memory_bounds_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ArrayStore([40], size=(480, 640))
    per_thread = fit_for(store.column("cam"), SIZE).scratch_bytes
    counts: list[int] = []

    class Counted(ThreadPool):
        def __init__(self, threads: int) -> None:
            counts.append(threads)
            super().__init__(threads)

    monkeypatch.setattr(build, "ThreadPool", Counted)
    _close(build_view(store, "cam", SIZE, threads=8, memory=(4 << 20) + int(2.5 * per_thread)))
    assert counts == [2]
    with pytest.raises(BudgetExceeded, match="building views"):
        build_view(store, "cam", SIZE, memory="1MiB")


def test_words_that_make_no_sense_are_refused() -> None:
    store = ArrayStore([4])
    for words in ({"where": "tape"}, {"on_error": "ignore"}, {"where": "ram", "directory": "x"}, {"encoding": "png"}):
        with pytest.raises(UsageError):
            build_view(store, "cam", SIZE, **words)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="'state' holds numbers"):
        build_view(store, ["cam", "state"], SIZE)
    with pytest.raises(StoreError, match="did you mean 'cam'"):
        build_view(store, "cm", SIZE)
