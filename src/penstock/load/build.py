"""`build_view`: fills views in one pass over the store, forward through its files, with threads and bounded memory."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LimitExceeded, OutputFailed, PenstockError, StoreCorrupt, StoreError, UsageError
from penstock.load.choose_views import views_on_disk
from penstock.load.crew import start_thread
from penstock.load.pictures import Fit, Fitter, begin_quiet, end_quiet, fit_for
from penstock.load.source import ImageSize, Shaping
from penstock.load.stages import Clock, Sums, now_ns
from penstock.load.view import View, ViewSpec
from penstock.load.view_file import Encoding
from penstock.stores.store import Column, ImageSource, Picture, Scratch, Store
from penstock.system.budget import Budget
from penstock.system.limits import read_cpu_limit, read_memory_limit
from penstock.system.units import format_bytes, parse_bytes, parse_workers

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all) from the thread that called `build_view`."""

_CHUNK_ROWS = 1 << 16  # rows that are sorted at a time
_CHUNK_BYTES = _CHUNK_ROWS * 8 * 8  # rows, slots, keys, runs and what sorting takes
_PIECE_ROWS = 64  # rows that a thread takes at a time …
_VIDEO_PIECE_ROWS = 1024  # … and of a video, where it begins with a seek
_PIECES_PER_CPU = 4
_TOLD_ROWS = 16


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
    """Decode picture columns (all, where none is named) once, and keep them at `image_size`.

    What is there already is not made again: a build that was stopped, or killed, goes on where it was. `limit` bounds
    the views together, header and tables included; if not all rows fit, rows spread evenly are kept. `memory` bounds
    what the build holds besides. A row that cannot be decoded raises, or is left out and told in the view's `notes`.

    >>> views = build_view(store, image_size=(224, 224))                               # doctest: +SKIP
    >>> loader = Loader(store, batch_size=64, view=views)                              # doctest: +SKIP
    """
    if where not in ("disk", "ram") or on_error not in ("raise", "skip"):
        raise UsageError(f"where={where!r}, on_error={on_error!r}", hint="where: disk or ram; on_error: raise or skip")
    if where == "ram" and directory is not None:
        raise UsageError("a view in RAM lies in no directory", hint='leave `directory` out, or say where="disk"')
    if not isinstance(store, Store):
        raise UsageError(f"{store!r} is no store", hint="build_view(penstock.open(path))")
    shaping = Shaping(image_size=image_size, exact=exact, resize=resize)
    shaping.check_names(store)
    chosen = _chosen(store, columns)
    fits = {column.name: fit_for(column, shaping.size_of(column.name), exact, resize) for column in chosen}
    specs = {name: _spec(store, fit, encoding, quality) for name, fit in fits.items()}
    limit_bytes = None if limit is None else parse_bytes(limit)
    if where == "ram":
        _check_together(specs, store.rows, limit_bytes)
    limits = _shares(specs, limit_bytes)
    views: dict[str, View] = {}
    try:
        if where == "disk":
            wanted = [(spec, store.rows, limits[name]) for name, spec in specs.items()]
            views.update(zip(specs, views_on_disk(wanted, directory), strict=True))
        else:
            for name, spec in specs.items():
                views[name] = View.in_ram(spec, store.rows, limits[name])
        tasks = [_Task(name, views[name], fits[name], store.images(name), _piece_rows(store, name)) for name in fits]
        _Build(store, tasks, on_error).run(Budget.parse(memory), threads, progress or (lambda done, total: None))
        for view in views.values():
            view.sync()
    except BaseException:
        for view in views.values():
            view.close()
        raise
    return views


def _chosen(store: Store, columns: str | Sequence[str] | None) -> list[Column]:
    if columns is None:
        chosen = [column for column in store.columns.values() if column.kind == "image"]
    else:
        chosen = [store.column(name) for name in ([columns] if isinstance(columns, str) else dict.fromkeys(columns))]
    for column in chosen:
        if column.kind != "image":
            raise UsageError(f"{column.name!r} holds {column.kind}: only pictures of 8 bits have views")
    if not chosen:
        raise UsageError(f"{store.path} has no picture column to make a view of")
    return chosen


def _spec(store: Store, fit: Fit, encoding: Encoding, quality: int) -> ViewSpec:
    fingerprint = store.fingerprint(fit.name)
    return ViewSpec(fit.name, fingerprint, fit.size, fit.channels, fit.exact, encoding, quality, fit.resize)


def _check_together(specs: dict[str, ViewSpec], rows: int, limit_bytes: int | None) -> None:
    """Views in RAM take their memory while they are filled: each alone may fit where all of them do not."""
    full_bytes = rows * sum(spec.row_bytes for spec in specs.values() if spec.encoding == "raw")
    needed_bytes = full_bytes if limit_bytes is None else min(limit_bytes, full_bytes)
    memory = read_memory_limit()
    if needed_bytes > memory.available_bytes:
        raise LimitExceeded(
            f"views in RAM of {', '.join(specs)} need {format_bytes(needed_bytes)} for {rows:,} rows, "
            f"{format_bytes(memory.available_bytes)} available by {memory.available_ruled_by}",
            size=needed_bytes,
            limit=memory.available_bytes,
            hint='give a smaller limit (then a part of the rows is kept), a smaller image_size, or where="disk"',
        )


def _shares(specs: dict[str, ViewSpec], limit_bytes: int | None) -> dict[str, int | None]:
    """A common limit, shared by the size of the rows."""
    together = sum(spec.row_bytes for spec in specs.values())
    return {
        name: None if limit_bytes is None else limit_bytes * spec.row_bytes // together for name, spec in specs.items()
    }


def _piece_rows(store: Store, name: str) -> int:
    """What a thread takes at a time; of a short video less, so that no thread stands idle while the last one works."""
    if not store.column(name).is_decoded_while_read:
        return _PIECE_ROWS
    even = store.rows // (_PIECES_PER_CPU * read_cpu_limit().count)
    return max(_PIECE_ROWS, min(_VIDEO_PIECE_ROWS, even))


@dataclass(frozen=True)
class _Task:
    """One column to build."""

    name: str
    view: View
    fit: Fit
    reader: ImageSource
    piece_rows: int

    @property
    def thread_bytes(self) -> int:
        """What one thread holds for it."""
        return self.reader.scratch_bytes + self.fit.scratch_bytes + 2 * self.view.spec.row_bytes

    def pieces(self) -> Iterator[NDArray[np.int64]]:
        """The rows that are missing, forward through the files; rows of a short run stay together."""
        for start in range(0, self.view.capacity, _CHUNK_ROWS):
            slots = np.arange(start, min(start + _CHUNK_ROWS, self.view.capacity), dtype=np.int64)
            rows = self.view.rows_of(slots[~self.view.filled(slots)])
            if not len(rows):
                continue
            rows = rows[np.argsort(self.reader.keys(rows), kind="stable")]
            runs = self.reader.runs(rows)
            begin = 0
            for end in [*(np.flatnonzero(np.diff(runs)) + 1).tolist(), len(rows)]:
                while end - begin >= 2 * self.piece_rows:  # a long run is cut: one more seek, and all threads have work
                    yield rows[begin : begin + self.piece_rows]
                    begin += self.piece_rows
                if end - begin >= self.piece_rows or end == len(rows):
                    yield rows[begin:end]
                    begin = end


class _Build:
    """Threads that take piece after piece; the caller's thread waits, tells the progress, and stops them."""

    def __init__(self, store: Store, tasks: Sequence[_Task], on_error: str) -> None:
        self._store = store
        self._tasks = tasks
        self._on_error = on_error
        self._stop = threading.Event()
        self._taking = threading.Lock()
        self._pieces = ((task, rows) for task in tasks for rows in task.pieces())
        self._told: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
        self._left_out: dict[str, tuple[int, str]] = {}
        self._full: set[str] = set()

    def run(self, budget: Budget, threads: str | int, progress: Progress) -> None:
        total = sum(task.view.capacity for task in self._tasks)
        done = sum(task.view.n_filled for task in self._tasks)
        progress(done, total)
        thread_bytes = max(task.thread_bytes for task in self._tasks)
        n_threads = self._n_threads(budget, threads, thread_bytes)
        with budget.reserve("building views", n_threads * thread_bytes + _CHUNK_BYTES):
            begin_quiet()
            workers = [threading.Thread(target=self._work, name=f"penstock-view-{n}") for n in range(n_threads)]
            try:
                for worker in workers:
                    start_thread(worker)
                running = n_threads
                while running:
                    told = self._told.get()
                    if told is None:
                        running -= 1
                    elif isinstance(told, BaseException):
                        raise told
                    else:
                        done += told
                        progress(done, total)
            finally:
                self._stop.set()
                for worker in workers:
                    if worker.ident is not None:
                        worker.join()
                end_quiet()
        self._tell_left_out()

    def _n_threads(self, budget: Budget, threads: str | int, thread_bytes: int) -> int:
        cpus = read_cpu_limit().count
        # A video decoder may bring threads of its own.
        own = max(int(getattr(task.reader, "decoder_threads", 1) or 1) for task in self._tasks)
        asked = max(1, cpus // own) if threads == "auto" else parse_workers(threads, cpus, "threads")
        return max(1, min(asked, (budget.free_bytes - _CHUNK_BYTES) // thread_bytes))

    def _take(self) -> tuple[_Task, NDArray[np.int64]] | None:
        with self._taking:
            return None if self._stop.is_set() else next(self._pieces, None)

    def _work(self) -> None:
        scratch, fitter = Scratch(), Fitter()
        try:
            while (taken := self._take()) is not None:
                task, rows = taken
                if task.name not in self._full:
                    self._make(task, rows, scratch, fitter)
        except BaseException as error:
            self._told.put(error)
        finally:
            self._told.put(None)

    def _make(self, task: _Task, rows: NDArray[np.int64], scratch: Scratch, fitter: Fitter) -> None:
        """Decode one piece and keep its rows."""
        pixels = np.empty(task.view.spec.shape, np.uint8)
        slots = task.view.slots(rows).tolist()
        made = 0
        clock = Clock()
        for number, picture in self._readable(task, rows.tolist(), scratch, clock):
            if self._stop.is_set():
                break
            try:
                fitter.fit(picture, task.fit, pixels)
            except PenstockError as error:
                self._lose(task, int(rows[number]), error)
                continue
            since_ns = now_ns()
            try:
                kept = task.view.keep(slots[number], pixels)
            except OSError as error:
                raise OutputFailed(task.view.path or "memory", f"row {rows[number]:,} cannot be kept", error) from error
            clock.put(since_ns)
            if not kept:
                self._full.add(task.name)
                break
            made += 1
            if made == _TOLD_ROWS:
                self._told.put(made)
                made = 0
        if made:
            self._told.put(made)
        sums = Sums()
        sums.add_pictures(clock, self._store.column(task.name), self._store.rows, decodes=True)
        sums.record(is_counted=False, is_inside=False)

    def _readable(
        self, task: _Task, rows: Sequence[int], scratch: Scratch, clock: Clock
    ) -> Iterator[tuple[int, Picture]]:
        """(number, picture) of the rows that can be read; behind one that cannot, reading begins anew."""
        done = 0
        while done < len(rows):
            try:
                for picture in task.reader.read(rows[done:], scratch):
                    done += 1
                    clock.read(picture)
                    yield done - 1, picture
                    clock.used()
                if done < len(rows):
                    raise StoreCorrupt("nothing came")
            except PenstockError as error:
                self._lose(task, rows[done], error)
                done += 1
            except OSError as error:  # the disk or the network: without this, nobody would know which row
                refused = StoreCorrupt(f"it cannot be read: {error}")
                refused.__cause__ = error
                self._lose(task, rows[done], refused)
                done += 1

    def _lose(self, task: _Task, row: int, error: PenstockError) -> None:
        where = f"{self._store.file_of(row, task.name)}: column {task.name!r}, row {row:,}"
        if self._on_error == "raise":
            hint = 'on_error="skip" leaves such rows out and counts them'
            raise StoreError(f"{where}: {error.message}", hint=hint) from error
        with self._taking:
            count, first = self._left_out.get(task.name, (0, f"row {row:,}: {error.message}"))
            self._left_out[task.name] = (count + 1, first)

    def _tell_left_out(self) -> None:
        for task in self._tasks:
            count, first = self._left_out.get(task.name, (0, ""))
            if count:
                rows = "rows were" if count > 1 else "row was"
                task.view.notes = (*task.view.notes, f"{count:,} {rows} left out, the first: {first}")
