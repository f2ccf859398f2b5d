"""What one image takes by each way into a batch, measured on some fifty rows of the user's own data.

    calibrate(sources, ("now", "scaled", "ram"), threads=(1, 2))

The ways take turns in short rounds and the median counts, so that a noisy moment hits them all alike.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.bench import page_cache
from penstock._src.load.engine.images import begin_quiet, end_quiet
from penstock._src.load.engine.source import ImageColumn, SampleSource
from penstock._src.load.engine.thread_pool import WorkerState
from penstock._src.load.views.choose_views import spec_for
from penstock._src.load.views.view import View
from penstock._src.profile.record.registry import AccessPath
from penstock._src.system.cache_directory import cache_directory
from penstock._src.system.limits import read_memory_limit
from penstock.errors import PenstockError

WAYS = ("now", "scaled", "read", "ram", "disk")
_ROUNDS = 3
_IMAGES = 16  # of one thread in one round
_MOST_S = 1.0  # of one thread in one round; slow storage gives fewer images
_POOL_BYTES = 96 << 20  # copied from at random: more than caches hold, as a view is


@dataclass(frozen=True)
class _Measured:
    ms: float
    cpu_ms: float
    n_bytes: float
    images: int


Work = Callable[[WorkerState, int], Iterator[int]]
"""By thread number: makes one image after the other, yields the bytes that each read."""


def calibrate(
    sources: Sequence[SampleSource], ways: Sequence[str], threads: Sequence[int], *, device: str = "cpu"
) -> dict[str, AccessPath]:
    """Measure ways with several numbers of threads; those that do not apply to these images are left out."""
    parts = [(source, column) for source in sources for column in source.images if column.view_row_bytes]
    if not parts:
        return {}
    by_name: dict[str, dict[int, list[_Measured]]] = {}
    with ExitStack() as held:
        begin_quiet()
        held.callback(end_quiet)
        works = {name: _work(name, parts, max(threads), held) for name in ways if name in WAYS}
        usable = {name: work for name, work in works.items() if work is not None}
        for work in usable.values():
            _round(work, 1, seed=0, most=2)  # opens files, builds indexes
        for number in range(_ROUNDS):
            for name, work in usable.items():
                for count in sorted(set(threads)):
                    measured = _round(work, count, seed=1 + number * 64 + count)
                    by_name.setdefault(name, {}).setdefault(count, []).append(measured)
    done = {name: _way(name, by_threads) for name, by_threads in by_name.items()}
    on_device = _on_device(device, parts) if "gpu" in ways else None
    return done if on_device is None else {**done, "gpu": on_device}


def _way(name: str, by_threads: dict[int, list[_Measured]]) -> AccessPath:
    everything = [each for rounds in by_threads.values() for each in rounds]
    fewest = by_threads[min(by_threads)]
    return AccessPath(
        name,
        images=min(sum(each.images for each in rounds) for rounds in by_threads.values()),
        ms_by_threads={count: statistics.median(each.ms for each in rounds) for count, rounds in by_threads.items()},
        cpu_ms=statistics.median(each.cpu_ms for each in fewest),
        stored_bytes=statistics.fmean(each.n_bytes for each in everything),
    )


def _round(work: Callable[[int, int], Work], count: int, *, seed: int, most: int = _IMAGES) -> _Measured:
    """Some threads at once, each at its own images."""
    begin = threading.Barrier(count)
    results: list[_Measured | None] = [None] * count
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            worker = WorkerState()
            steps = work(seed, most)(worker, number)
            begin.wait()
            results[number] = _timed(steps)
        except BaseException as error:
            errors.append(error)
            begin.abort()

    running = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(count)]
    for each in running:
        each.start()
    for each in running:
        each.join()
    if errors:
        raise next((each for each in errors if not isinstance(each, threading.BrokenBarrierError)), errors[0])
    done = [each for each in results if each is not None]
    return _Measured(
        statistics.fmean(each.ms for each in done), statistics.fmean(each.cpu_ms for each in done),
        statistics.fmean(each.n_bytes for each in done), sum(each.images for each in done),
    )  # fmt: skip


def _timed(steps: Iterator[int]) -> _Measured:
    wall, cpu = time.perf_counter(), time.thread_time()
    images = n_bytes = 0
    for read in steps:
        images += 1
        n_bytes += read
        if time.perf_counter() - wall > _MOST_S:
            break
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    count = max(images, 1)
    return _Measured(wall * 1e3 / count, cpu * 1e3 / count, n_bytes / count, images)


# The ways

Part = tuple[SampleSource, ImageColumn]


def _work(name: str, parts: Sequence[Part], threads: int, held: ExitStack) -> Callable[[int, int], Work] | None:
    if name == "now":
        return lambda seed, most: _Decoding(parts, seed, most)
    if name == "read":
        return lambda seed, most: _Reading(parts, seed, most)
    if name == "scaled":
        scaled = [(source, replace(column, fit=replace(column.fit, exact=False))) for source, column in parts]
        if not any(column.is_jpeg and column.fit.reduction > 1 for _, column in scaled):
            return None
        return lambda seed, most: _Decoding(scaled, seed, most)
    if name == "ram":
        pool = _Pool(parts)
        return lambda seed, most: _Copying(pool, seed, most)
    kept = _view_on_disk(parts, threads, held)
    return None if kept is None else lambda seed, most: _ViewReads(*kept, most)


class _Reading:
    """The stored bytes of rows at random, nothing made of them."""

    def __init__(self, parts: Sequence[Part], seed: int, most: int) -> None:
        self.parts, self.seed, self.most = parts, seed, most

    def __call__(self, worker: WorkerState, number: int) -> Iterator[int]:
        rng = np.random.default_rng([self.seed, number])
        each = max(1, -(-self.most // len(self.parts)))
        for source, column in self.parts:
            rows = rng.integers(0, source.store.rows, each)
            rows = rows[np.argsort(column.reader.keys(rows), kind="stable")]
            stored = column.column.stored_bytes / max(source.store.rows, 1)
            for image in column.reader.read(rows.tolist(), worker.scratch):
                self.make(worker, column, image)
                yield int(image.nbytes if image.ndim == 1 or column.column.encoding == "raw" else stored)

    def make(self, worker: WorkerState, column: ImageColumn, image: NDArray[Any]) -> None:
        """Nothing."""


class _Decoding(_Reading):
    """Read, decoded and shaped as the loader's threads do it."""

    def make(self, worker: WorkerState, column: ImageColumn, image: NDArray[Any]) -> None:
        pixels = worker.small(column.shape)
        worker.fitter.fit(image, column.fit, pixels)
        _as_floats(column, pixels)


def _as_floats(column: ImageColumn, pixels: NDArray[np.uint8]) -> None:
    if column.table is not None:
        column.table.write(pixels, np.empty(column.shape, np.float32))


class _Pool:
    """Images in memory, of the column with the largest ones; as many as caches do not hold."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.column = max((column for _, column in parts), key=lambda column: column.view_row_bytes)
        count = max(_IMAGES, _POOL_BYTES // self.column.view_row_bytes)
        self.pixels = np.ones((count, *self.column.shape), np.uint8)
        self.targets = np.ones((4 * _IMAGES, *self.column.shape), np.uint8)


class _Copying:
    def __init__(self, pool: _Pool, seed: int, most: int) -> None:
        self.pool, self.seed, self.most = pool, seed, most

    def __call__(self, worker: WorkerState, number: int) -> Iterator[int]:
        """Runs of images in one call, as the engine copies them."""
        pool = self.pool
        rng = np.random.default_rng([self.seed, number])
        for _ in range(4):  # copying is quick: more of it, for a stable time
            slots = rng.integers(0, len(pool.pixels), self.most)
            first = int(rng.integers(0, len(pool.targets) - self.most + 1))
            target = pool.targets[first : first + self.most]
            np.take(pool.pixels, slots, axis=0, out=target, mode="clip")
            for pixels in target:
                _as_floats(pool.column, pixels)
                yield 0


def _view_on_disk(parts: Sequence[Part], threads: int, held: ExitStack) -> tuple[ImageColumn, View, bool] | None:
    """A small view in a directory of its own in the cache; None where nothing may be written there."""
    source, column = max(parts, key=lambda part: part[1].view_row_bytes)
    try:
        place = cache_directory()
        place.mkdir(parents=True, exist_ok=True)
        directory = held.enter_context(tempfile.TemporaryDirectory(prefix="calibrate-", dir=place))
        rows = threads * _IMAGES
        view = View.on_disk(spec_for(source, column), rows, directory)
    except (OSError, PenstockError):
        return None
    held.callback(view.close)
    pixels = np.random.default_rng(0).integers(0, 256, column.shape, np.uint8)
    for slot in range(rows):
        view.put(slot, pixels)
    needed = sum(column.view_row_bytes * source.store.rows for source, column in parts)
    is_cold = needed > read_memory_limit().available_bytes  # the system cannot keep it in memory
    if is_cold:
        view.sync()
    return column, view, is_cold


def _on_device(name: str, parts: Sequence[Part]) -> AccessPath | None:
    """JPEGs decoded and resized by nvJPEG, as the loader's device thread does it; None where there is no such thing."""
    torch = sys.modules.get("torch")
    jpegs = [(source, column) for source, column in parts if column.is_jpeg and column.fit.channels == 3]
    if torch is None or not torch.cuda.is_available() or not jpegs:
        return None
    from penstock._src.load.device.nvjpeg import BatchDecoder, NvJpegUnavailable

    source, column = jpegs[0]
    rows = np.random.default_rng(0).integers(0, source.store.rows, _ROUNDS * _IMAGES)
    rows = rows[np.argsort(column.reader.keys(rows), kind="stable")]
    data = [image.copy() for image in column.reader.read(rows.tolist(), WorkerState().scratch)]
    device = torch.device("cuda" if name.startswith("cpu") else name)
    times: list[float] = []
    try:
        decoder = BatchDecoder(device)
        for _ in range(_ROUNDS + 1):
            began = time.perf_counter()
            pixels = decoder.decode(data, column.fit.stored)
            if pixels is None:
                return None
            torch.nn.functional.interpolate(pixels.to(torch.float32), size=column.fit.size, mode="bilinear")
            torch.cuda.synchronize(device)
            times.append((time.perf_counter() - began) * 1e3 / len(data))
        decoder.close()
    except (NvJpegUnavailable, RuntimeError):
        return None
    ms = statistics.median(times[1:])  # the first sets the decoder up
    return AccessPath("gpu", len(data), {1: ms}, 0.0, statistics.fmean(len(each) for each in data))


class _ViewReads:
    def __init__(self, column: ImageColumn, view: View, is_cold: bool, most: int) -> None:
        self.column, self.view, self.is_cold, self.most = column, view, is_cold, most

    def __call__(self, worker: WorkerState, number: int) -> Iterator[int]:
        if self.is_cold and self.view.path is not None:
            page_cache.drop([Path(self.view.path)])
        pixels = worker.small(self.column.shape)
        for slot in range(number * self.most, (number + 1) * self.most):
            self.view.get(slot % self.view.capacity, pixels)
            _as_floats(self.column, pixels)
            yield self.column.view_row_bytes if self.is_cold else 0
