"""`SampleFetcher`: samples asked for by number, made at once, into arrays of their own; no order and no slots.

What `penstock.torch.Dataset` and the replay buffer stand on. It may be pickled and used after a fork: each process
opens files and starts threads for itself, and views are shared.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from penstock._src.load import settings
from penstock._src.load.engine.batch_tasks import begin_job
from penstock._src.load.engine.job import BatchJob, BatchPart
from penstock._src.load.engine.slots import lay_out
from penstock._src.load.engine.source import ImageSize, Normalize, SampleSource, Shaping
from penstock._src.load.engine.tables import Numbers
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.memory_split import LIBRARIES_BYTES, TABLE_SHARE
from penstock._src.load.sampling.window import Sampling
from penstock._src.load.views.choose_views import attach_views, held_bytes
from penstock._src.load.views.view import View
from penstock._src.profile.record.steps import this_thread
from penstock._src.stores.store import Store
from penstock._src.system.budget import Budget, Reservation
from penstock.errors import UsageError


class SampleFetcher:
    """Samples of a window over a store; `threads=0` works in the calling thread."""

    def __init__(
        self,
        store: Store,
        window: Sampling | None = None,
        *,
        image_size: ImageSize = (224, 224),
        memory: str | int | Budget = "auto",
        view: str | Mapping[str, View] = "auto",
        threads: int | str = 0,
        exact: bool = False,
        resize: str = "linear",
        dtype: str = "uint8",
        normalize: Normalize = None,
    ) -> None:
        self.store = store
        self.window = settings.window_for(window)
        self.shaping = Shaping(image_size, exact, resize, dtype, normalize)
        self.shaping.check_names(store)
        self.threads = 0 if threads == 0 else settings.threads_for(threads)
        if not isinstance(view, Mapping):
            settings.one_of("view", view, settings.VIEWS)
        budget = settings.budget_for(memory)[0]
        self.limit_bytes = budget.free_bytes  # others may hold a part of a budget that is shared
        self._make_source()
        notes = self._attach(view, budget)
        self.notes: tuple[str, ...] = (*self._source.describe(), *notes)

    def _make_source(self) -> None:
        """The same in every process that has these samples."""
        self._source = SampleSource(self.window.bind(self.store), self.shaping, self.limit_bytes // TABLE_SHARE)
        self._views: list[View] = []
        self._pool: ThreadPool | None = None
        self._pid = os.getpid()
        self._closed = False
        self._reserved: list[Reservation] = []
        self._release = weakref.finalize(self, _give_back, self._reserved)

    def _attach(self, view: str | Mapping[str, View], budget: Budget) -> list[str]:
        """Hold the memory of numbers and views; what was decided."""
        self._reserved.append(budget.reserve("numbers", self._source.numbers.in_memory_bytes))
        try:
            self._views, notes = attach_views([self._source], view, self._left_bytes())
            held = held_bytes(self._views)
            self._reserved.append(budget.reserve("views", min(held, budget.free_bytes)))
        except BaseException:
            self._release()
            raise
        return notes

    def _left_bytes(self) -> int:
        """For views: what numbers, threads and one batch of a usual size leave."""
        one = lay_out(self._source.shapes(1)).n_bytes
        held = self._source.numbers.held_bytes + max(self.threads, 1) * self._source.scratch_bytes() + 64 * one
        return self.limit_bytes - LIBRARIES_BYTES - held

    @property
    def count(self) -> int:
        """The number of samples."""
        return self._source.bound.count

    @property
    def views(self) -> dict[str, View]:
        return self._source.views

    @property
    def numbers(self) -> Numbers:
        """The numbers of the store, as they are gathered."""
        return self._source.numbers

    def __len__(self) -> int:
        return self.count

    def shapes(self, size: int) -> dict[str, tuple[tuple[int, ...], str]]:
        """Shape and dtype of every array of a batch of this size."""
        return self._source.shapes(size)

    def arrays(self, size: int) -> dict[str, NDArray[Any]]:
        """New arrays for a batch of this size."""
        return {name: np.empty(shape, dtype) for name, (shape, dtype) in self._source.shapes(size).items()}

    def fetch(
        self, samples: ArrayLike, out: dict[str, NDArray[Any]] | None = None, *, hand_out_ns: int = 0
    ) -> dict[str, Any]:
        """A batch of these samples, in their order; into `out` (from `arrays`) where it is given.

        A row that cannot be had raises, naming column, row and episode. `hand_out_ns`: what making `out` took.
        """
        if self._closed:
            raise UsageError("these samples are closed already")
        numbers = np.asarray(samples, np.int64).reshape(-1)
        self._source.numbers.fill()
        job = BatchJob(len(numbers), self.arrays(len(numbers)) if out is None else out, {})
        job.is_counted, job.sums.hand_out_ns = not this_thread.samples, hand_out_ns
        part = BatchPart(self._source, np.arange(len(numbers), dtype=np.int64), numbers)
        begin_job(job, [part], self._workers())
        try:
            job.wait()
        except BaseException:
            job.cancel_and_wait()  # the caller may use `out` again
            raise
        if job.failures:
            leave_out = "penstock.open(…, episodes=[…]) leaves episodes out"
            raise job.failures[0].raised(leave_out) from job.failures[0].error
        arrays, job.arrays = job.arrays, {}  # threads may know the job for a moment longer than the caller its batch
        return {**arrays, **job.texts}

    def _workers(self) -> ThreadPool:
        if self._pool is None or self._pid != os.getpid():  # a child of a fork has none of its parent's threads
            # The pool first: neither another thread nor Ctrl-C in between may take the parent's for this process's own.
            self._pool, self._pid = ThreadPool(self.threads), os.getpid()
        return self._pool

    def close(self) -> None:
        """End threads and views; more than once is fine. The store stays open: it is the caller's."""
        if self._closed:
            return
        self._closed = True
        if self._pool is not None and self._pid == os.getpid():
            self._pool.close()
        self._pool = None
        for view in self._views:
            view.close()
        self._source.numbers.close()
        self._release()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "window": self.window,
            "shaping": self.shaping,
            "threads": self.threads,
            "limit_bytes": self.limit_bytes,
            "views": dict(self._source.views),
            "laid_out": self._source.numbers.laid_out,
            "notes": self.notes,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.store, self.window, self.shaping = state["store"], state["window"], state["shaping"]
        self.threads, self.limit_bytes, self.notes = state["threads"], state["limit_bytes"], state["notes"]
        self._make_source()
        self._source.numbers.adopt_files(state["laid_out"])
        self._source.views = state["views"]
        self._views = list(state["views"].values())


def _give_back(reserved: list[Reservation]) -> None:
    while reserved:
        reserved.pop().release()
