"""From sample numbers to a batch: needs merged and sorted, views asked first, the rest fetched and decoded by threads.

    begin_job(job, parts, pool)               # cuts the work into tasks; threads start at once
    job.wait()                                # all images and numbers are in their places

Threads do the work: reads and decoders release Python's lock. A thread holds one scratch and one image at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.job import BatchJob, BatchPart, EncodedImages, Failure
from penstock._src.load.engine.source import INDEX, OUTPUT_SHIFT, PLACE_MASK, ImageColumn, SampleSource, Unique, merge
from penstock._src.load.engine.stages import now_ns
from penstock._src.load.engine.thread_pool import FreshScratch, Task, ThreadPool, WorkerState
from penstock._src.load.views.new_rows import PLACES_AT_ONCE, NewRows
from penstock._src.load.views.view import View
from penstock._src.stores.store import Scratch
from penstock.errors import PenstockError, RemoteError, StoreCorrupt

_MOST_IMAGES_PER_TASK = 16
_TASKS_PER_THREAD = 4
_LEAST_COPIED = 8 << 20  # bytes of a task: with less of them, threads would rather fight for lock and memory than copy


def begin_job(
    job: BatchJob,
    parts: Sequence[BatchPart],
    pool: ThreadPool,
    encoded: Callable[[ImageColumn], bool] = lambda _: False,
) -> None:
    """Cut a batch into tasks and start them. Columns of which `encoded` says so stay encoded."""
    began_ns = now_ns()
    tasks: list[Task] = []
    first = parts[0].source
    job.names = tuple(name for output in first.bound.outputs for name in (output.name, output.mask) if name)
    job.images = {output.name: column for column in first.images for output in column.outputs}
    for part in parts:
        source = part.source
        needs = source.bound.needs(part.samples)
        _place_small(job, part, needs)
        for column in source.images:
            image_tasks = _take_tasks(job, part, column, needs.rows, pool.count)
            if image_tasks is not None:
                tasks += image_tasks
                continue
            unique = merge(column.outputs, needs.rows, part.places)
            if encoded(column):
                tasks += _fetch_tasks(job, source, column, unique, pool.count)
            else:
                tasks += _image_tasks(job, source, column, unique, pool)
        job.sums.plan(part.samples.size, len(source.images))
    job.sums.plan_ns = now_ns() - began_ns
    job.start(tasks, pool)


def _place_small(job: BatchJob, part: BatchPart, needs: Any) -> None:
    """Numbers, masks, texts and the row numbers: little work, done while the batch is planned."""
    source, places = part.source, part.places
    whole = len(places) == job.size
    for output in source.number_outputs:
        began_ns = now_ns()
        out = job.arrays[output.name] if output.steps is not None else job.arrays[output.name][:, None]
        source.numbers.gather(output.column, needs.rows[output.name], out, None if whole else places)
        job.sums.add_numbers(output.column == source.store.roles.get("action"), now_ns() - began_ns)
    for output in source.bound.outputs:
        if output.mask is not None:
            job.arrays[output.mask][places] = needs.pads[output.name]
    for output in source.text_outputs:
        texts = source.store.texts(output.column, needs.rows[output.name].reshape(-1))
        kept = job.texts.setdefault(output.name, [""] * job.size)
        for place, text in zip(places.tolist(), texts, strict=True):
            kept[place] = text
    if INDEX in job.arrays and not source.has_own_index:
        job.arrays[INDEX][places] = needs.anchors


def _take_tasks(
    job: BatchJob, part: BatchPart, column: ImageColumn, rows_of: Mapping[str, NDArray[np.int64]], threads: int
) -> list[Task] | None:
    """Where a view in memory holds everything that the batch needs of a column: copies in the order of the batch, many
    images in one call. None where it does not."""
    view = part.source.views.get(column.name)
    if view is None or not _is_copied(view, column):
        return None
    if len(part.places) != job.size:
        return None
    tasks: list[Task] = []
    for output in column.outputs:
        slots = view.slots(rows_of[output.name].reshape(-1))
        if not view.filled(slots).all():
            return None
        target = job.arrays[output.name].reshape(-1, *column.shape)
        for chosen in _copy_chunks(np.arange(len(slots)), target, threads):
            part_of = slice(int(chosen[0]), int(chosen[-1]) + 1)
            tasks.append(_CopyTask(job, view, slots[part_of], target[part_of], len(chosen)))
    return tasks


def _is_copied(view: View, column: ImageColumn) -> bool:
    """Whether rows of a view are copied to a batch as they are, many in one call."""
    return view.path is None and view.spec.encoding == "raw" and column.table is None


class _CopyTask:
    """Images of the batch that are in memory: one behind the other, or each at its place."""

    def __init__(
        self, job: BatchJob, view: View, slots: NDArray[np.int64], out: NDArray[np.uint8], n_rows: int,
        places: NDArray[np.int64] | None = None,
    ) -> None:  # fmt: skip
        self.job, self.view, self.slots, self.out, self.n_rows, self.places = job, view, slots, out, n_rows, places

    def __call__(self, worker: WorkerState) -> None:
        worker.clock.begin()
        self.view.take(self.slots, self.out, self.places)
        self.job.copied(worker.clock, self.n_rows)


def _image_tasks(
    job: BatchJob, source: SampleSource, column: ImageColumn, unique: Unique, pool: ThreadPool
) -> Iterator[Task]:
    threads = pool.count
    targets = [
        job.arrays[output.name].reshape(-1, *column.shape) for output in column.outputs
    ]  # views of the batch's arrays, one image after the other
    view = source.views.get(column.name)
    missing = np.arange(len(unique.rows))
    slots = None
    if view is not None:
        slots = view.slots(unique.rows)
        there = slots >= 0
        there[there] = view.filled(slots[there])
        hits = np.flatnonzero(there)
        missing = np.flatnonzero(~there)
        if len(hits) and _is_copied(view, column):
            yield from _scatter_tasks(job, view, unique, slots, there, targets, threads)
            hits = hits[:0]
        for chosen in _chunks(hits, threads, 4 * _MOST_IMAGES_PER_TASK):
            yield _ViewTask(job, source, column, unique, targets, slots, chosen, view)
    if len(missing):
        missing = missing[np.argsort(column.reader.keys(unique.rows[missing]), kind="stable")]
        job.prefetch(column, unique.rows[missing])
        chunks = list(_run_chunks(missing, column.reader.runs(unique.rows[missing]), threads))
        keeper = None
        if view is not None and slots is not None and _is_copied(view, column):
            # The batch has the very bytes that the view keeps; of a batch of floats each task keeps its own images.
            keeper, view = _Keeper(job, view, unique, targets, slots, pool, len(chunks)), None
        for chosen in chunks:
            yield _ImageTask(job, source, column, unique, targets, slots, chosen, view, keeper)


def _scatter_tasks(
    job: BatchJob,
    view: Any,
    unique: Unique,
    slots: NDArray[np.int64],
    there: NDArray[np.bool_],
    targets: list[NDArray[Any]],
    threads: int,
) -> Iterator[Task]:
    """Images that a view in memory holds, beside others of the batch that it does not."""
    every_slot, is_there = np.repeat(slots, unique.counts), np.repeat(there, unique.counts)
    is_first = np.zeros(len(unique.dests), np.bool_)
    is_first[unique.first] = True
    for number, target in enumerate(targets):
        own = np.flatnonzero(is_there & (unique.dests >> OUTPUT_SHIFT == number))
        own = own[np.argsort(unique.dests[own])]
        for chosen in _chunks(own, threads, 4 * _MOST_IMAGES_PER_TASK):
            places = unique.dests[chosen] & PLACE_MASK
            yield _CopyTask(job, view, every_slot[chosen], target, int(is_first[chosen].sum()), places)


def _copy_chunks(numbers: NDArray[np.int64], target: NDArray[Any], threads: int) -> Iterator[NDArray[np.int64]]:
    """Pieces for tasks that copy images of a batch."""
    least = -(-_LEAST_COPIED // target[0].nbytes) if len(target) else 1
    return _chunks(numbers, threads, max(least, 4 * _MOST_IMAGES_PER_TASK), least)


def _chunks(numbers: NDArray[np.int64], threads: int, most: int, least: int = 1) -> Iterator[NDArray[np.int64]]:
    size = max(least, min(most, -(-len(numbers) // max(1, threads * _TASKS_PER_THREAD))))
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]


def _run_chunks(numbers: NDArray[np.int64], runs: NDArray[np.int64], threads: int) -> Iterator[NDArray[np.int64]]:
    """Pieces for tasks; rows of one run stay together."""
    if not len(numbers):
        return
    size = max(1, min(_MOST_IMAGES_PER_TASK, -(-len(numbers) // max(1, threads * _TASKS_PER_THREAD))))
    starts = np.append(np.flatnonzero(np.diff(runs, prepend=runs[0] - 1)), len(numbers))
    begin = 0
    for stop in starts[1:].tolist():
        if stop - begin >= size or stop == len(numbers):
            yield numbers[begin:stop]
            begin = stop


@dataclass(frozen=True)
class _ColumnTask:
    """Some rows of one column, and where their images go."""

    job: BatchJob
    source: SampleSource
    column: ImageColumn
    unique: Unique
    targets: list[NDArray[Any]]
    slots: NDArray[np.int64] | None
    """The slot of every unique row in the view; -1: it has none."""
    chosen: NDArray[np.int64]

    def target(self, dest: int) -> NDArray[Any]:
        target: NDArray[Any] = self.targets[dest >> OUTPUT_SHIFT][dest & PLACE_MASK]
        return target


@dataclass(frozen=True)
class _ViewTask(_ColumnTask):
    """Images that a view holds already."""

    view: View

    def __call__(self, worker: WorkerState) -> None:
        worker.clock.begin()
        spoiled: list[int] = []
        assert self.slots is not None
        slots = self.slots[self.chosen].tolist()
        for number, slot in zip(self.chosen.tolist(), slots, strict=True):
            places = self.unique.places(number)
            out = self.target(places[0])
            if self.column.table is None:
                good = self.view.get(slot, out)
            else:
                small = worker.small(self.column.shape)
                good = self.view.get(slot, small)
                if good:
                    self.column.table.write(small, out)
            if not good:  # the disk gave other bytes than were written: made anew
                spoiled.append(number)
            else:
                for place in places[1:]:
                    self.target(place)[...] = out
        self.job.copied(worker.clock, len(slots) - len(spoiled))
        if spoiled:
            anew = np.array(spoiled, np.int64)
            anew = anew[np.argsort(self.column.reader.keys(self.unique.rows[anew]), kind="stable")]
            rest = (self.job, self.source, self.column, self.unique, self.targets, self.slots, anew)
            _ImageTask(*rest, self.view)(worker)


@dataclass(frozen=True)
class _ImageTask(_ColumnTask):
    """Images to fetch and decode. A view keeps each as it comes (`view`), or those of the whole batch (`keeper`)."""

    view: View | None
    keeper: _Keeper | None = None

    def __call__(self, worker: WorkerState) -> None:
        worker.clock.begin()
        if self.view is None or self.slots is None:
            made = self._make_all(worker, None)
        else:
            with self.view.new_rows(self.slots[self.chosen].tolist()) as new:
                made = self._make_all(worker, new)
        self.job.read(worker.clock, self.source, self.column, len(made))
        if self.keeper is not None:
            self.keeper.add(made)

    def _make_all(self, worker: WorkerState, new: NewRows | None) -> list[int]:
        """Those that could be made."""
        made: list[int] = []
        for number, image in readable(self.job, self.source, self.column, self.unique, self.chosen, worker):
            places = self.unique.places(number)
            out = self.target(places[0])
            slot = -1 if new is None or self.slots is None else int(self.slots[number])
            try:
                self._make(worker, image, out, slot, None if slot < 0 else new)
            except PenstockError as error:
                lose(self.job, self.source, self.column, self.unique, number, error)
                continue
            made.append(number)
            for place in places[1:]:
                self.target(place)[...] = out
        return made

    def _make(
        self, worker: WorkerState, image: NDArray[Any], out: NDArray[Any], slot: int, new: NewRows | None
    ) -> None:
        table = self.column.table
        pixels = None if new is None else new.memory(slot)
        if pixels is None:
            pixels = out if table is None else worker.small(self.column.shape)
        worker.fitter.fit(image, self.column.fit, pixels)
        if new is not None:
            since_ns = now_ns()
            new.put(slot, pixels)
            worker.clock.put(since_ns)
        if table is not None:
            since_ns = now_ns()
            table.write(pixels, out)
            worker.clock.add_floats(since_ns)


class _Keeper:
    """Has a view in memory keep what a batch decodes: copied when all of it is there, many images in one call.

    A copy of each image as it comes would have its thread wait for Python's lock once more, which takes longer.
    """

    def __init__(
        self, job: BatchJob, view: View, unique: Unique, targets: list[NDArray[Any]], slots: NDArray[np.int64],
        pool: ThreadPool, tasks: int,
    ) -> None:  # fmt: skip
        self._job, self._view, self._unique, self._targets, self._slots = job, view, unique, targets, slots
        self._pool, self._left = pool, tasks
        self._made: list[int] = []
        self._lock = threading.Lock()

    def add(self, made: list[int]) -> None:
        """A task has decoded these. The last one has all of them copied, before threads go on with other batches."""
        with self._lock:
            self._made += made
            self._left -= 1
            if self._left:
                return
        self._job.start(list(self._tasks()), self._pool, is_urgent=True)

    def _tasks(self) -> Iterator[Task]:
        made = np.array(self._made, np.int64)
        made = made[self._slots[made] >= 0]
        dests = self._unique.dests[self._unique.first[made]]
        for number, target in enumerate(self._targets):
            own = np.flatnonzero(dests >> OUTPUT_SHIFT == number)
            own = own[np.argsort(dests[own])]
            for chosen in _copy_chunks(own, target, self._pool.count):
                at = (dests[chosen] & PLACE_MASK).tolist()
                yield _KeepTask(self._job, self._view, target, at, self._slots[made[chosen]].tolist())


@dataclass(frozen=True)
class _KeepTask:
    """Images of a batch that a view in memory is to keep: where each is in the batch, and its slot in the view."""

    job: BatchJob
    view: View
    batch: NDArray[np.uint8]
    at: list[int]
    slots: list[int]

    def __call__(self, worker: WorkerState) -> None:
        worker.clock.begin()
        kept = 0
        for begin in range(0, len(self.slots), PLACES_AT_ONCE):
            some = slice(begin, begin + PLACES_AT_ONCE)
            with self.view.new_rows(self.slots[some]) as new:
                kept += new.put_all(self.slots[some], self.batch, self.at[some])
        self.job.kept(worker.clock, kept)


def readable(
    job: BatchJob,
    source: SampleSource,
    column: ImageColumn,
    unique: Unique,
    chosen: NDArray[np.int64],
    worker: WorkerState,
    scratch: Scratch | None = None,
) -> Iterator[tuple[int, NDArray[Any]]]:
    """(number, image) of the rows that can be read; one that cannot is noted, and reading goes on behind it."""
    numbers, rows = chosen.tolist(), unique.rows[chosen].tolist()
    clock, scratch = worker.clock, worker.scratch if scratch is None else scratch
    done = 0
    while done < len(rows):
        reading = column.reader.read(rows[done:], scratch)
        try:
            for image in reading:
                number = numbers[done]
                done += 1
                clock.read(image)
                yield number, image
                clock.used()
            if done < len(rows):
                raise StoreCorrupt(f"{source.store.path}: {column.name}: nothing came for row {rows[done]:,}")
        except RemoteError:
            raise  # the network or the store, not this row: no row is skipped for it
        except PenstockError as error:
            lose(job, source, column, unique, numbers[done], error)
            done += 1
        except OSError as error:  # the disk or the network: this adds the row to the error
            refused = StoreCorrupt(f"it cannot be read: {error}")
            refused.__cause__ = error
            lose(job, source, column, unique, numbers[done], refused)
            done += 1


def lose(
    job: BatchJob, source: SampleSource, column: ImageColumn, unique: Unique, number: int, error: PenstockError
) -> None:
    places = []
    for dest in unique.places(number):
        steps = column.outputs[dest >> OUTPUT_SHIFT].steps or 1
        places.append((dest & PLACE_MASK) // steps)
    job.lost(Failure(source, column.name, int(unique.rows[number]), tuple(places), error))


def _fetch_tasks(
    job: BatchJob, source: SampleSource, column: ImageColumn, unique: Unique, threads: int
) -> Iterator[Task]:
    """Images whose bytes go to the device as they are."""
    shapes = [(job.size, output.steps or 1) for output in column.outputs]
    kept = next((each for each in job.encoded if each.column.outputs == column.outputs), None)
    base = 0
    if kept is None:
        kept = EncodedImages(column, len(unique.rows), shapes)
        job.encoded.append(kept)
    else:  # another source of a mixture gives rows of the same outputs
        base = len(kept.bytes)
        kept.bytes += [None] * len(unique.rows)
    kept.origins.append((base, source, unique.rows))
    numbers = np.repeat(np.arange(len(unique.rows)), unique.counts) + base
    for number, inverse in enumerate(kept.inverse):
        is_own = (unique.dests >> OUTPUT_SHIFT) == number
        inverse.reshape(-1)[unique.dests[is_own] & PLACE_MASK] = numbers[is_own]
    order = np.argsort(column.reader.keys(unique.rows), kind="stable")
    job.prefetch(column, unique.rows[order])
    for chosen in _run_chunks(order, column.reader.runs(unique.rows[order]), threads):
        yield _Fetch(job, source, column, unique, chosen, kept, base)


class _Fetch:
    def __init__(
        self,
        job: BatchJob,
        source: SampleSource,
        column: ImageColumn,
        unique: Unique,
        chosen: NDArray[np.int64],
        kept: EncodedImages,
        base: int,
    ) -> None:
        self.job, self.source, self.column, self.unique = job, source, column, unique
        self.chosen, self.kept, self.base = chosen, kept, base

    def __call__(self, worker: WorkerState) -> None:
        fresh = worker.fresh if self.job.area is None else FreshScratch(self.job.area)
        worker.clock.begin()
        for number, image in readable(self.job, self.source, self.column, self.unique, self.chosen, worker, fresh):
            try:  # the decoder on the device writes as far as a header says
                worker.fitter.check(image, self.column.fit)
            except PenstockError as error:
                lose(self.job, self.source, self.column, self.unique, number, error)
                continue
            self.kept.bytes[self.base + number] = image if fresh.is_last(image) else image.copy()
        self.job.read(worker.clock, self.source, self.column, len(self.chosen), decodes=False)
