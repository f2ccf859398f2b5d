"""What a loader reaches on this machine: samples per second and memory for several batch sizes, with views and without.

    bench = bench_load(Plan(path="datasets/run", batch_sizes=(64, 256), views=("off", "ram")))
    for point in bench.points: print(point.view, point.batch_size, point.samples_per_s)

The training step is left out: whoever takes the batches drops them at once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import LimitExceeded, OutputFailed, PenstockError
from penstock.load import page_cache
from penstock.load.bench_memory import HeldMeter
from penstock.load.bench_plan import COLD, Filling, LeftOut, LoadBench, Plan, Point, check, window_for
from penstock.load.build import build_view
from penstock.load.loader import Loader
from penstock.load.source import Shaping
from penstock.load.view import View
from penstock.load.window import Sampling
from penstock.stores.opening import open_store
from penstock.stores.store import Store
from penstock.system.cache_directory import cache_directory
from penstock.system.units import format_bytes, parse_bytes

_LEAST_BATCHES = 3  # of a point: what one batch takes says little
_FILL_SLOTS_S = 10.0  # at most
_MOST_RESIDENT = 0.05  # of the files: with more in the page cache nobody would call it cold


def bench_load(
    plan: Plan, say: Callable[[str], None] = lambda text: None, window: Sampling | None = None
) -> LoadBench:
    """Measure all points of a plan, one after the other; `say` hears of each. `window` stands in for `plan.window`."""
    check(plan)
    return _Run(plan, say, window).all()


class _Run:
    """The points of a plan as they come in."""

    def __init__(self, plan: Plan, say: Callable[[str], None], window: Sampling | None) -> None:
        self.plan, self.say, self.window = plan, say, window
        self.points: list[Point] = []
        self.left_out: list[LeftOut] = []
        self.fillings: list[Filling] = []
        self.notes: list[str] = []
        self.threads = 0

    def all(self) -> LoadBench:
        with self._open() as store:
            window = self.window or window_for(self.plan.window, store)
            samples = window.bind(store).count
        with HeldMeter() as meter:
            start_bytes = meter.start_bytes
        if self.plan.cold:
            self._cold(window, samples)
        with self._open() as store:
            for view in self.plan.views:
                self._with_view(view, store, window, samples)
        return LoadBench(
            repr(window), samples, self.threads, parse_bytes(self.plan.memory), start_bytes, tuple(self.points),
            tuple(self.left_out), tuple(self.fillings), tuple(dict.fromkeys(self.notes)),
        )  # fmt: skip

    def _open(self) -> Store:
        return open_store(self.plan.path, episodes=self.plan.episodes, **(self.plan.options or {}))

    def _with_view(self, view: str, store: Store, window: Sampling, samples: int) -> None:
        if view == "off":
            self._sizes(view, store, window, samples, "off")
            return
        if samples < min(self.plan.batch_sizes):  # a view is not filled for nothing
            self._leave_out(view, None, f"{samples:,} samples do not make a batch of {min(self.plan.batch_sizes)}")
            return
        columns = self._viewable(store)
        if not columns:
            self._leave_out(view, None, "there are no pictures that a view would spare a decode or a resize")
            return
        with self._directory(view) as directory:
            views = self._filled(view, store, window, samples, columns, directory)
            if views is None:
                return
            try:
                self._sizes(view, store, window, samples, views)
            finally:
                for each in views.values():
                    each.close()

    def _sizes(self, view: str, store: Store, window: Sampling, samples: int, given: str | Mapping[str, View]) -> None:
        for batch_size in self.plan.batch_sizes:
            self._point(view, batch_size, store, window, samples, given)

    def _point(
        self, view: str, batch_size: int, store: Store, window: Sampling, samples: int,
        given: str | Mapping[str, View],
    ) -> None:  # fmt: skip
        if samples < batch_size * (2 if view == COLD else 1):
            least = "two batches" if view == COLD else "a batch"
            self._leave_out(view, batch_size, f"{samples:,} samples do not make {least} of {batch_size:,}")
            return
        shared = 0 if isinstance(given, str) else sum(each.n_bytes for each in given.values() if each.path is None)
        with HeldMeter(shared) as meter:
            try:
                loader = self._loader(store, window, batch_size, given)
            except LimitExceeded as error:
                self._leave_out(view, batch_size, error.message)
                return
            with loader:
                timed = _timed(loader, self.plan.seconds, once=view == COLD)
                if view != COLD:
                    _fill_slots(loader)
                stats = loader.stats()
        self.threads = max(self.threads, loader.shares.threads)
        self.notes += [f"batch {batch_size}: {note}" for note in loader.notes if note.startswith("memory")]
        if len(loader) < _LEAST_BATCHES and view != COLD:
            few = f"batch {batch_size}: a pass has only {len(loader)} of them, so what beginning one takes counts much"
            self.notes.append(few)
        pictures = stats["view_hits"] + stats["pictures_made"]
        hits = stats["view_hits"] / pictures if pictures and not isinstance(given, str) else None
        point = Point(view, batch_size, peak_bytes=meter.peak_bytes, view_hits=hits, **timed)
        self.points.append(point)
        self.say(f"{view}, batch {batch_size}: {point.samples_per_s:,.0f} samples/s")

    def _loader(self, store: Store, window: Sampling, batch_size: int, view: str | Mapping[str, View]) -> Loader:
        plan = self.plan
        return Loader(
            store, window, batch_size, image_size=plan.image_size, memory=plan.memory, view=view, threads=plan.threads,
            output="numpy", drop_last=True,
        )  # fmt: skip

    def _leave_out(self, view: str, batch_size: int | None, reason: str) -> None:
        self.left_out.append(LeftOut(view, batch_size, reason))
        self.say(f"{view}{'' if batch_size is None else f', batch {batch_size}'}: left out: {reason}")

    # Cold

    def _cold(self, window: Sampling, samples: int) -> None:
        files = page_cache.files_of(Path(self.plan.path))
        told = False
        for batch_size in self.plan.batch_sizes:
            page_cache.drop(files)
            left = page_cache.resident_share(files)
            if left is not None and left > _MOST_RESIDENT:
                reason = f"the system keeps {left:.0%} of the files in memory (another process maps them, or a tmpfs)"
                self._leave_out(COLD, None, reason)
                return
            with self._open() as store:
                self._point(COLD, batch_size, store, window, samples, "off")
            if not told:
                size = format_bytes(sum(file.stat().st_size for file in files))
                checked = "which the system confirms" if left is not None else "which this user cannot check"
                self.notes.append(
                    f"cold: before each point the page cache of {len(files):,} files ({size}) was dropped, {checked}; "
                    "a point goes through the data once at most, and its clock includes the first batch"
                )
                told = True

    # Views

    def _viewable(self, store: Store) -> list[str]:
        shaping = Shaping(self.plan.image_size)
        return [
            name for name, column in store.columns.items()
            if column.kind == "image"
            and not (column.encoding == "raw" and (shaping.size_of(name) or column.shape[:2]) == column.shape[:2])
        ]  # fmt: skip

    @contextmanager
    def _directory(self, view: str) -> Iterator[str | None]:
        """Views on disk are measured in a directory of their own beside the others, which goes afterwards."""
        if view != "disk":
            yield None
            return
        place = cache_directory()
        try:
            place.mkdir(parents=True, exist_ok=True)
            made = tempfile.TemporaryDirectory(prefix="bench-", dir=place)
        except OSError as error:
            raise OutputFailed(place, "making a directory for views", error) from error
        with made as directory:
            yield directory

    def _filled(
        self, view: str, store: Store, window: Sampling, samples: int, columns: Sequence[str], directory: str | None
    ) -> dict[str, View] | None:
        limit = None
        if view == "ram":
            limit = self._left_bytes(store, window, samples)
            if limit is None:
                self._leave_out(view, None, f"{self.plan.memory} hold no batch size that was asked for")
                return None
        began = time.perf_counter()
        deadline = _Deadline(began + self.plan.fill_seconds)
        try:
            views = build_view(
                store, columns, self.plan.image_size, where="ram" if view == "ram" else "disk", memory=self.plan.memory,
                threads=self.plan.threads, directory=directory, limit=limit, progress=deadline,
            )  # fmt: skip
        except _TookLonger:
            needed = self.plan.fill_seconds * deadline.total / max(deadline.done, 1)
            self._leave_out(
                view, None, f"in {self.plan.fill_seconds:g} s {deadline.done:,} of {deadline.total:,} rows of the view "
                f"were filled; all would take about {needed:,.0f} s (--fill-seconds)",
            )  # fmt: skip
            return None
        except LimitExceeded as error:
            self._leave_out(view, None, error.message)
            return None
        rows = sum(each.n_filled for each in views.values())
        n_bytes = sum(each.n_bytes for each in views.values())
        self.fillings.append(Filling(view, rows, n_bytes, time.perf_counter() - began))
        kept = min(each.capacity for each in views.values())
        if kept < store.rows:
            self.notes.append(f"{view}: the view holds {kept:,} of {store.rows:,} rows, in {format_bytes(n_bytes)}")
        return views

    def _left_bytes(self, store: Store, window: Sampling, samples: int) -> int | None:
        """What the largest loader that fits leaves for views."""
        for batch_size in sorted(self.plan.batch_sizes, reverse=True):
            if batch_size > samples:
                continue
            try:
                with self._loader(store, window, batch_size, "off") as loader:
                    return loader.shares.left_bytes
            except LimitExceeded:
                continue
        return None


class _TookLonger(PenstockError):
    """The time for filling is over."""


class _Deadline:
    """Ends a build that takes too long."""

    def __init__(self, at: float) -> None:
        self._at = at
        self.done = self.total = 0

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if time.perf_counter() > self._at and done < total:
            raise _TookLonger("the view was not filled in time")


def _fill_slots(loader: Loader) -> None:
    """Wait until the loader has made all batches that it makes ahead: with a training step that is slower than the
    loader, they are all in memory."""
    batches = iter(loader)
    next(batches)
    until = time.perf_counter() + _FILL_SLOTS_S
    while not loader.is_full and time.perf_counter() < until:
        time.sleep(0.01)


def _timed(loader: Loader, seconds: float, *, once: bool) -> dict[str, Any]:
    """Take batches for some seconds, epoch after epoch (or one at most); the numbers of a point."""
    began = time.perf_counter()
    times: list[float] = []
    batch_bytes = 0
    least = 1 if once else _LEAST_BATCHES + 1
    over = False
    while not over:
        for batch in loader:
            times.append(time.perf_counter())
            batch_bytes = batch_bytes or sum(each.nbytes for each in batch.values() if isinstance(each, np.ndarray))
            del batch
            if times[-1] - began >= seconds and len(times) >= least:
                over = True
                break
        over = over or once
    marks = [began, *times] if once else times
    waits = np.diff(marks)
    return {
        "batches": len(waits),
        "seconds": float(waits.sum()),
        "first_batch_s": times[0] - began,
        "p95_ms": float(np.percentile(waits, 95)) * 1e3,
        "batch_bytes": batch_bytes,
    }
