"""What a loader reaches on this machine: samples per second and memory for several batch sizes, with views and without.

    bench = bench_load(Plan(path="datasets/run", batch_sizes=(64, 256), views=("off", "ram")))
    for point in bench.points: print(point.view, point.batch_size, point.samples_per_s)

There is no training step: batches are dropped at once.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock._src.load.bench import page_cache
from penstock._src.load.bench.memory import HeldMeter
from penstock._src.load.bench.points import COLD, FillTime, LoadBench, Plan, Point, SkippedPoint, check, window_for
from penstock._src.load.engine.remote import request_counts
from penstock._src.load.engine.source import Shaping
from penstock._src.load.loader import Loader
from penstock._src.load.sampling.window import Sampling
from penstock._src.load.views.build import build_view
from penstock._src.load.views.cache import lies_in_memory
from penstock._src.load.views.view import View
from penstock._src.stores.first_rows import FirstRows
from penstock._src.stores.opening import open_store
from penstock._src.stores.store import Store
from penstock._src.system.cache_directory import cache_directory
from penstock._src.system.files import as_path
from penstock._src.system.units import format_bytes, parse_bytes
from penstock.errors import LimitExceeded, OutputFailed, PenstockError

_LEAST_BATCHES = 3  # of a point: what one batch takes says little
_FILL_SLOTS_S = 10.0  # at most
_WARM_UP_S = 5.0  # at most, or three times what is measured
_WARM_UP_ROUNDS = 2  # of batches in every slot: by then each thread has opened its files and decoders


def bench_load(plan: Plan, say: Callable[[str], None] = lambda text: None, window: Sampling | None = None) -> LoadBench:
    """Measure all points of a plan, one after the other; `say` gets each. `window` stands in for `plan.window`."""
    check(plan)
    return _BenchRun(plan, say, window).all()


class _BenchRun:
    """The points of a plan as they come in."""

    def __init__(self, plan: Plan, say: Callable[[str], None], window: Sampling | None) -> None:
        self.plan, self.say, self.window = plan, say, window
        self.points: list[Point] = []
        self.left_out: list[SkippedPoint] = []
        self.fillings: list[FillTime] = []
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
        store = open_store(self.plan.path, **{"episodes": self.plan.episodes, **(self.plan.options or {})})
        return store if self.plan.most_rows is None else FirstRows(store, self.plan.most_rows)

    def _with_view(self, view: str, store: Store, window: Sampling, samples: int) -> None:
        if view == "off":
            self._sizes(view, store, window, samples, "off")
            return
        if samples < min(self.plan.batch_sizes):  # a view is not filled for nothing
            self._leave_out(view, None, f"{samples:,} samples do not make a batch of {min(self.plan.batch_sizes)}")
            return
        columns = self._viewable(store)
        if not columns:
            self._leave_out(view, None, "there are no images that a view would spare a decode or a resize")
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

    def _sizes(
        self, view: str, store: Store, window: Sampling, samples: int, view_option: str | Mapping[str, View]
    ) -> None:
        for batch_size in self.plan.batch_sizes:
            self._point(view, batch_size, store, window, samples, view_option)

    def _point(
        self, view: str, batch_size: int, store: Store, window: Sampling, samples: int,
        view_option: str | Mapping[str, View],
    ) -> None:  # fmt: skip
        if samples < batch_size * (2 if view == COLD else 1):
            least = "two batches" if view == COLD else "a batch"
            self._leave_out(view, batch_size, f"{samples:,} samples do not make {least} of {batch_size:,}")
            return
        shared = (
            0
            if isinstance(view_option, str)
            else sum(each.n_bytes for each in view_option.values() if each.path is None)
        )
        with HeldMeter(shared) as meter:
            try:
                loader = self._loader(store, window, batch_size, view_option)
            except LimitExceeded as error:
                self._leave_out(view, batch_size, error.message)
                return
            with loader:
                timed = _timed(loader, self.plan.seconds, once=view == COLD)
                if view != COLD:
                    _fill_slots(loader)
                stats = loader.stats()
        self.threads = max(self.threads, loader.memory_split.threads)
        self.notes += [f"batch {batch_size}: {note}" for note in loader.notes if note.startswith("memory")]
        if len(loader) < _LEAST_BATCHES and view != COLD:
            few = (
                f"batch {batch_size}: an epoch has only {len(loader)} batches, so the time to start one weighs heavily"
            )
            self.notes.append(few)
        images = stats["view_hits"] + stats["images_made"]
        hits = stats["view_hits"] / images if images and not isinstance(view_option, str) else None
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
        self.left_out.append(SkippedPoint(view, batch_size, reason))
        self.say(f"{view}{'' if batch_size is None else f', batch {batch_size}'}: left out: {reason}")

    # Cold

    def _cold(self, window: Sampling, samples: int) -> None:
        path = as_path(self.plan.path)
        if lies_in_memory(path):
            self._leave_out(COLD, None, f"{path} lies in memory, which has no page cache to drop")
            return
        files = page_cache.files_of(path)
        for batch_size in self.plan.batch_sizes:
            page_cache.drop(files)
            with self._open() as store:
                self._point(COLD, batch_size, store, window, samples, "off")
        size = format_bytes(sum(file.stat().st_size for file in files))
        self.notes.append(
            f"cold: before each point the page cache of {len(files):,} files ({size}) was dropped; each point reads "
            "the data at most once, and its time includes the first batch"
        )

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
                budget = format_bytes(parse_bytes(self.plan.memory))
                self._leave_out(view, None, f"{budget} of memory hold none of the batch sizes")
                return None
            limit = limit if self.plan.view_bytes is None else min(limit, self.plan.view_bytes)
        began = time.perf_counter()
        deadline = _Deadline(began + self.plan.fill_seconds)
        try:
            views = build_view(
                store, columns, self.plan.image_size, where="ram" if view == "ram" else "disk", memory=self.plan.memory,
                threads=self.plan.threads, directory=directory, limit=limit, progress=deadline,
            )  # fmt: skip
        except _FillTimeout:
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
        self.fillings.append(FillTime(view, rows, n_bytes, time.perf_counter() - began))
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
                    return loader.memory_split.left_bytes
            except LimitExceeded:
                continue
        return None


class _FillTimeout(PenstockError):
    """The time for filling is over."""


class _Deadline:
    """Ends a build that takes too long."""

    def __init__(self, at: float) -> None:
        self._at = at
        self.done = self.total = 0

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        if time.perf_counter() > self._at and done < total:
            raise _FillTimeout("the view was not filled in time")


def _fill_slots(loader: Loader) -> None:
    """Wait until the loader has made all batches that it makes ahead: with a training step that is slower than the
    loader, they are all in memory."""
    batches = iter(loader)
    next(batches)
    until = time.perf_counter() + _FILL_SLOTS_S
    left = len(loader) - 1  # a short epoch does not take every slot
    while not loader.is_full and loader.n_ready < left and time.perf_counter() < until:
        time.sleep(0.01)


def _timed(loader: Loader, seconds: float, *, once: bool) -> dict[str, Any]:
    """Take batches for some seconds, epoch after epoch; the numbers of a point. `once`: one pass at most, and its first
    batch counts. Else the clock starts when the loader is warm: threads, decoders and slots are made, and what files
    the system keeps in memory is there."""
    began = time.perf_counter()
    times: list[float] = []
    warm = None if not once else 0  # the number of the batch that the clock starts with
    batch_bytes, asked = 0, request_counts()
    for batch in _batches(loader, once):
        times.append(time.perf_counter())
        batch_bytes = batch_bytes or sum(each.nbytes for each in batch.values() if isinstance(each, np.ndarray))
        del batch
        if warm is None:
            warm = len(times) - 1 if _is_warm(loader, len(times), times[-1] - began, seconds) else None
            asked = request_counts()
        elif times[-1] - (began if once else times[warm]) >= seconds and (once or len(times) - warm > _LEAST_BATCHES):
            break
    waits = np.diff([began, *times] if once else times[warm:])
    requests, n_bytes, wait_ns, latency_ns = (now - then for now, then in zip(request_counts(), asked, strict=True))
    return {
        "batches": len(waits),
        "seconds": float(waits.sum()),
        "first_batch_s": times[0] - began,
        "p95_ms": float(np.percentile(waits, 95)) * 1e3,
        "batch_bytes": batch_bytes,
        "remote_requests": requests,
        "remote_bytes": n_bytes,
        "remote_wait_s": wait_ns / 1e9,
        "remote_latency_s": latency_ns / 1e9,
    }


def _batches(loader: Loader, once: bool) -> Iterator[Any]:
    yield from loader
    while not once:
        yield from loader


def _is_warm(loader: Loader, batches: int, passed_s: float, seconds: float) -> bool:
    """After a pass and some batches in every slot; or when that takes too long."""
    rounds = batches >= _WARM_UP_ROUNDS * loader.memory_split.slots
    passed = batches >= len(loader) or passed_s >= seconds
    return (rounds and passed) or passed_s >= max(_WARM_UP_S, 3 * seconds)
