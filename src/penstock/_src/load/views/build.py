"""`build_view`: fills views in one pass over the store, forward through its files, by the threads that fill batches."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.batch_tasks import lose, readable
from penstock._src.load.engine.job import BatchJob, Failure
from penstock._src.load.engine.source import ImageColumn, ImageSize, SampleSource, Shaping, Unique
from penstock._src.load.engine.stages import now_ns
from penstock._src.load.engine.thread_pool import ThreadPool, WorkerState
from penstock._src.load.sampling.window import Window
from penstock._src.load.views.choose_views import shared_or_new, spec_for, views_on_disk
from penstock._src.load.views.new_rows import PLACES_AT_ONCE
from penstock._src.load.views.view import View, ViewSpec
from penstock._src.load.views.view_file import Encoding
from penstock._src.stores.store import Store
from penstock._src.system.budget import Budget
from penstock._src.system.limits import read_cpu_limit, read_memory_limit
from penstock._src.system.units import format_bytes, parse_bytes, parse_workers
from penstock.errors import LimitExceeded, OutputFailed, PenstockError, UsageError

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all) from the thread that called `build_view`."""

_CHUNK_ROWS = 1 << 16  # rows that are sorted at a time
_CHUNK_BYTES = _CHUNK_ROWS * 8 * 8  # rows, slots, keys, runs and what sorting takes
_PIECE_ROWS = 64  # rows that a thread takes at a time …
_VIDEO_PIECE_ROWS = 1024  # … and of a video, where it begins with a seek
_PIECES_PER_CPU = 4
_PIECES_PER_THREAD = 2  # that are under way


def build_view(
    store: Store,
    columns: str | Sequence[str] | None = None,
    image_size: ImageSize = (224, 224),
    *,
    where: Literal["disk", "ram"] = "disk",
    memory: str | int | Budget = "auto",
    threads: str | int = "auto",
    encoding: Encoding = "raw",
    quality: int = 90,
    exact: bool = False,
    resize: str = "linear",
    directory: str | os.PathLike[str] | None = None,
    limit: str | int | None = None,
    progress: Progress | None = None,
    on_error: Literal["raise", "skip"] = "raise",
) -> dict[str, View]:
    """Decode image columns (all, where none is named) once, and keep them at `image_size`.

    What is there already is not made again: a build that was stopped, or killed, goes on where it was. `limit` bounds
    the views together, header and tables included; if not all rows fit, rows spread evenly are kept. `memory` bounds
    what the build holds besides. A row that cannot be decoded raises, or is left out and listed in the view's `notes`.

    >>> views = build_view(store, image_size=(224, 224))                               # doctest: +SKIP
    >>> loader = Loader(store, batch_size=64, view=views)                              # doctest: +SKIP
    """
    if where not in ("disk", "ram") or on_error not in ("raise", "skip"):
        raise UsageError(f"where={where!r}, on_error={on_error!r}", hint="where: disk or ram; on_error: raise or skip")
    if where == "ram" and directory is not None:
        raise UsageError("a view in RAM has no directory", hint='leave `directory` out, or say where="disk"')
    if not isinstance(store, Store):
        raise UsageError(f"{store!r} is not a store", hint="build_view(penstock.open(path))")
    shaping = Shaping(image_size=image_size, exact=exact, resize=resize)
    shaping.check_names(store)
    names = _chosen(store, columns)
    source = SampleSource(Window(columns=names).bind(store), shaping, 0)
    images = {column.name: column for column in source.images}
    specs = {
        name: replace(spec_for(source, images[name]), encoding=encoding, quality=quality) for name in names
    }  # fmt: skip
    limit_bytes = None if limit is None else parse_bytes(limit)
    source.views = _on_disk(specs, store.rows, limit_bytes, directory) if where == "disk" else {}
    try:
        if where == "ram":
            _make_in_ram(specs, store.rows, limit_bytes, source.views)
        _fill(source, Budget.parse(memory), threads, progress or (lambda done, total: None), on_error == "skip")
        for view in source.views.values():
            view.sync()
    except BaseException:
        for view in source.views.values():
            view.close()
        raise
    return source.views


def _chosen(store: Store, columns: str | Sequence[str] | None) -> list[str]:
    if columns is None:
        chosen = [column for column in store.columns.values() if column.kind == "image"]
    else:
        chosen = [store.column(name) for name in ([columns] if isinstance(columns, str) else dict.fromkeys(columns))]
    for column in chosen:
        if column.kind != "image":
            raise UsageError(f"{column.name!r} holds {column.kind}: only images of 8 bits have views")
    if not chosen:
        raise UsageError(f"{store.path} has no image column to make a view of")
    return [column.name for column in chosen]


def _on_disk(
    specs: Mapping[str, ViewSpec], rows: int, limit_bytes: int | None, directory: str | os.PathLike[str] | None
) -> dict[str, View]:
    limits = _shares(specs, limit_bytes)
    made = views_on_disk([(spec, rows, limits[name]) for name, spec in specs.items()], directory)
    return dict(zip(specs, made, strict=True))


def _make_in_ram(
    specs: Mapping[str, ViewSpec], rows: int, limit_bytes: int | None, views: dict[str, View]
) -> None:  # fmt: skip
    """Those that another process has, and new ones: they take their memory while they are filled, and each alone may
    fit where all of them do not."""
    limits = _shares(specs, limit_bytes)
    missing = []
    for name, spec in specs.items():
        view = shared_or_new(spec, rows, limits[name], makes=False)
        views.update({} if view is None else {name: view})
        missing += [name] if view is None else []
    full_bytes = rows * sum(specs[name].row_bytes for name in missing if specs[name].encoding == "raw")
    needed_bytes = full_bytes if limit_bytes is None else min(limit_bytes, full_bytes)
    memory = read_memory_limit()
    if needed_bytes > memory.available_bytes:
        raise LimitExceeded(
            f"views in RAM of {', '.join(missing)} need {format_bytes(needed_bytes)} for {rows:,} rows, "
            f"{format_bytes(memory.available_bytes)} available by {memory.available_ruled_by}",
            size=needed_bytes,
            limit=memory.available_bytes,
            hint='give a smaller limit (then a part of the rows is kept), a smaller image_size, or where="disk"',
        )
    for name in missing:
        made = shared_or_new(specs[name], rows, limits[name])
        assert made is not None
        views[name] = made


def _shares(specs: Mapping[str, ViewSpec], limit_bytes: int | None) -> dict[str, int | None]:
    """A common limit, shared by the size of the rows."""
    together = sum(spec.row_bytes for spec in specs.values())
    return {
        name: None if limit_bytes is None else limit_bytes * spec.row_bytes // together for name, spec in specs.items()
    }


def _fill(source: SampleSource, budget: Budget, threads: str | int, progress: Progress, skips: bool) -> None:
    """Piece after piece, a few ahead of those that are done; what was left out is listed in the notes of the views."""
    views = source.views
    done = _Done(sum(view.n_filled for view in views.values()), sum(view.capacity for view in views.values()), progress)
    thread_bytes = source.scratch_bytes() + 2 * max(view.spec.row_bytes for view in views.values())
    count = _n_threads(source, budget, threads, thread_bytes)
    under_way: deque[_BuildJob] = deque()
    with budget.reserve("building views", count * thread_bytes + _CHUNK_BYTES):
        pool = ThreadPool(count)
        try:
            for column in sorted(source.images, key=lambda each: list(views).index(each.name)):
                for rows in _pieces(source, column):
                    under_way.append(_BuildJob(skips))
                    under_way[-1].start([_Fill(under_way[-1], source, column, rows)], pool)
                    if len(under_way) >= _PIECES_PER_THREAD * count and done.add(under_way):
                        break  # the view is full
            while under_way:
                done.add(under_way)
        finally:
            for job in under_way:
                job.cancel()  # not waited for: Ctrl-C may have come before its task was handed out
            pool.close()
    for name, (n_rows, first) in done.left_out.items():
        rows_were = "rows were" if n_rows > 1 else "row was"
        views[name].notes += (f"{n_rows:,} {rows_were} left out, the first: {first}",)


def _n_threads(source: SampleSource, budget: Budget, threads: str | int, thread_bytes: int) -> int:
    cpus = read_cpu_limit().count
    # A video decoder may bring threads of its own.
    own = max(int(getattr(column.reader, "decoder_threads", 1) or 1) for column in source.images)
    wanted = max(1, cpus // own) if threads == "auto" else parse_workers(threads, cpus, "threads")
    return max(1, min(wanted, (budget.free_bytes - _CHUNK_BYTES) // thread_bytes))


def _pieces(source: SampleSource, column: ImageColumn) -> Iterator[NDArray[np.int64]]:
    """The rows that are missing, forward through the files; rows of a short run stay together."""
    view, size = source.views[column.name], _PIECE_ROWS
    if column.column.is_decoded_while_read:  # of a short video less, so that no thread stands idle at the end
        even = source.store.rows // (_PIECES_PER_CPU * read_cpu_limit().count)
        size = max(_PIECE_ROWS, min(_VIDEO_PIECE_ROWS, even))
    for start in range(0, view.capacity, _CHUNK_ROWS):
        slots = np.arange(start, min(start + _CHUNK_ROWS, view.capacity), dtype=np.int64)
        rows = view.rows_of(slots[~view.filled(slots)])
        if not len(rows):
            continue
        rows = rows[np.argsort(column.reader.keys(rows), kind="stable")]
        runs = column.reader.runs(rows)
        begin = 0
        for end in [*(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(rows)]:
            while end - begin >= 2 * size:  # a long run is cut: one more seek, and all threads have work
                yield rows[begin : begin + size]
                begin += size
            if end - begin >= size or end == len(rows):
                yield rows[begin:end]
                begin = end


class _BuildJob(BatchJob):
    """Some rows of one column; a row that cannot be had ends all, or is left out."""

    def __init__(self, skips: bool) -> None:
        super().__init__(0, {}, {})
        self.is_counted = False
        self.is_full = False
        self._skips = skips

    def lost(self, failure: Failure) -> None:
        if not self._skips:
            raise failure.raised('on_error="skip" leaves such rows out and counts them') from failure.error
        super().lost(failure)


class _Done:
    """Pieces that are over: rows that are there, and those that were left out."""

    def __init__(self, rows: int, total: int, progress: Progress) -> None:
        self._rows, self._total, self._progress = rows, total, progress
        self.left_out: dict[str, tuple[int, str]] = {}
        progress(rows, total)

    def add(self, under_way: deque[_BuildJob]) -> bool:
        """Wait for the first one; whether it found its view full."""
        job = under_way[0]
        job.wait()
        under_way.popleft()
        for failure in job.failures:
            n_rows, first = self.left_out.get(failure.column, (0, f"row {failure.row:,}: {failure.error.message}"))
            self.left_out[failure.column] = (n_rows + 1, first)
        self._rows += job.made
        self._progress(self._rows, self._total)
        return job.is_full


class _Fill:
    """The task: rows of a column are decoded and kept, in RAM without a copy."""

    def __init__(self, job: _BuildJob, source: SampleSource, column: ImageColumn, rows: NDArray[np.int64]) -> None:
        self.job, self.source, self.column = job, source, column
        self.view = source.views[column.name]
        # Another process may have come to them first.
        rows = rows[~self.view.filled(self.view.slots(rows))]
        self.unique = Unique(rows, np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64), rows[:0])
        self.slots = self.view.slots(rows).tolist()

    def __call__(self, worker: WorkerState) -> None:
        worker.clock.begin()
        with contextlib.ExitStack() as held:
            made = self._make_all(worker, held)
        self.job.read(worker.clock, self.source, self.column, made)

    def _make_all(self, worker: WorkerState, held: contextlib.ExitStack) -> int:
        """How many could be made."""
        made, end = 0, 0
        chosen = np.arange(len(self.slots))
        for number, image in readable(self.job, self.source, self.column, self.unique, chosen, worker):
            if self.job.error is not None:
                break  # it was given up
            if number >= end:
                held.close()
                end = number + PLACES_AT_ONCE
                new = held.enter_context(self.view.new_rows(self.slots[number:end]))
            slot = self.slots[number]
            pixels = new.memory(slot)
            if pixels is None:
                pixels = worker.small(self.column.shape)
            try:
                worker.fitter.fit(image, self.column.fit, pixels)
            except PenstockError as error:
                lose(self.job, self.source, self.column, self.unique, number, error)
                continue
            since_ns = now_ns()
            try:
                if not new.keep(slot, pixels):
                    self.job.is_full = True
                    break
            except OSError as error:
                row = int(self.view.rows_of(np.array([slot]))[0])
                raise OutputFailed(self.view.path or "memory", f"row {row:,} cannot be kept", error) from error
            worker.clock.put(since_ns)
            made += 1
        return made
