"""One batch being made: its arrays, how much of the work is left, what was lost on the way."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.source import ImageColumn, SampleSource
from penstock._src.load.engine.stages import StageClock, Sums
from penstock._src.load.engine.thread_pool import BatchMemory, Task, ThreadPool, WorkerState, no_task
from penstock._src.system.files import Prefetch
from penstock.errors import PenstockError, StoreCorrupt

_POLL_S = 0.05  # how often one of several that wait looks again


@dataclass(frozen=True)
class BatchPart:
    """The samples of a batch that come from one source, and their places in the batch."""

    source: SampleSource
    places: NDArray[np.int64]
    samples: NDArray[np.int64]


@dataclass(frozen=True)
class Failure:
    """One row that could not be had."""

    source: SampleSource
    column: str
    row: int
    places: tuple[int, ...]
    error: PenstockError

    def raised(self, *hints: str) -> StoreCorrupt:
        """The error with the place where it happened."""
        store = self.source.store
        position = int(store.episode_of(np.array([self.row]))[0])
        within = self.row - int(store.episode_starts[position])
        place = f"row {self.row:,} (row {within:,} of episode {store.episode_number(position):,})"
        text = f"{store.file_of(self.row, self.column)}: {self.column}, {place}: {self.error.message}"
        return StoreCorrupt(text, hint="; ".join([*hints, *self.doctor]))

    @property
    def doctor(self) -> list[str]:
        """What else looks for damage."""
        return ["`penstock doctor` lists what is damaged"] if self.source.store.has_doctor else []


class EncodedImages:
    """Images that stay encoded for the device: the bytes of every row once, and which one each place takes."""

    def __init__(self, column: ImageColumn, count: int, shapes: Sequence[tuple[int, int]]) -> None:
        self.column = column
        self.bytes: list[NDArray[np.uint8] | None] = [None] * count
        self.inverse = [np.zeros(shape, np.int64) for shape in shapes]
        self.origins: list[tuple[int, SampleSource, NDArray[np.int64]]] = []

    def origin(self, number: int) -> tuple[SampleSource, int]:
        """Where the bytes of a number came from: source and row."""
        base, source, rows = next(each for each in reversed(self.origins) if each[0] <= number)
        return source, int(rows[number - base])


class OneShotEvent:
    """Given once, seen by all. Not `threading.Event`: Ctrl-C in the midst of its `wait` or `set` may leave its lock
    taken, and whoever touches it next would wait for ever."""

    __slots__ = ("_is_set", "_lock")

    def __init__(self) -> None:
        self._is_set = False
        self._lock = threading.Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        try:
            self._lock.release()
        except RuntimeError:
            pass  # it was given before

    def wait(self) -> None:
        while not self._is_set:
            self._lock.acquire(timeout=_POLL_S)  # release wakes one waiter; the others poll


class EpochRecords:
    """What is recorded of batches, no sooner than their epoch begins: the counts of a profile are those of the epochs
    that were used, though the batches of the next one are made ahead. Any thread may call it; nothing is locked."""

    def __init__(self) -> None:
        self._epoch = -1
        self._held: dict[int, deque[Callable[[], None]]] = {}

    def add(self, epoch: int, record: Callable[[], None]) -> None:
        """A batch of an epoch is complete."""
        if epoch <= self._epoch:
            record()
            return
        held = self._held.setdefault(epoch, deque())
        held.append(record)
        if epoch <= self._epoch:  # it began just now, perhaps before this batch was held
            _record_all(held)

    def has_begun(self, epoch: int) -> bool:
        """Whether the user has come to an epoch."""
        return epoch <= self._epoch

    def begin(self, epoch: int) -> None:
        """The user has come to this epoch."""
        self._epoch = epoch
        for each in tuple(self._held):
            if each <= epoch:
                _record_all(self._held.pop(each))


def _record_all(held: deque[Callable[[], None]]) -> None:
    while True:
        try:
            record = held.popleft()
        except IndexError:
            return
        record()


class BatchJob:
    """One batch being made. Its arrays may be those of a slot."""

    def __init__(self, size: int, arrays: dict[str, NDArray[Any]], texts: dict[str, list[str]]) -> None:
        self.size = size
        self.arrays = arrays
        self.texts = texts
        self.encoded: list[EncodedImages] = []
        self.ahead: list[Prefetch] = []  # ranges of remote files that its tasks will read
        self.area: BatchMemory | None = None  # where the bytes of encoded images are read to
        self.failures: list[Failure] = []
        self.error: BaseException | None = None
        self.hits = 0
        self.made = 0
        self.decoded_there = 0  # images, on the device
        self.sums = Sums()
        self.is_counted = True  # in a profile, as samples; not where they are a part of another sample
        self.slot = -1  # the number of the slot that it is built in
        self.names: tuple[str, ...] = ()  # of the outputs, in the order of the window
        self.images: dict[str, ImageColumn] = {}  # by output
        self.after: Any = None  # where the order stands behind this batch
        self.epoch = 0
        self.is_last = False  # of its epoch
        self.epoch_records: EpochRecords | None = None
        self.answer: Callable[[BatchJob], None] | None = None  # called when it is over
        self._begun: dict[str, bool] = {}  # False: it was given up before a thread began it
        self._left = 0
        self._is_inside = False
        self._lock = threading.Lock()
        self._ready = OneShotEvent()
        self._over = OneShotEvent()

    def wait(self) -> None:
        """Until everything is in its place; raises what went wrong with the work itself."""
        self._ready.wait()
        if self.error is not None:
            raise self.error

    @property
    def is_ready(self) -> bool:
        """Whether `wait` returns at once."""
        return self._ready.is_set()

    def cancel(self) -> None:
        """Let nothing more be done for it."""
        with self._lock:
            self.error = self.error or PenstockError("this batch was given up")

    def cancel_and_wait(self) -> None:
        """Give it up, and wait for what is under way. Ctrl-C may have come before its first task was handed out."""
        self.cancel()
        if not self._begun.setdefault("begun", False):
            self._over.set()
            self._ready.set()
        self._over.wait()

    def plan_in(self, pool: ThreadPool, plan: Task) -> None:
        """Have a thread plan it, before tasks of other batches: `plan` starts its tasks, and asks for remote bytes."""
        pool.do(_CountedTask(self, plan, is_plan=True), is_urgent=True)

    def begin(self) -> bool:
        """Whether it may begin: it was not given up before."""
        with self._lock:
            self._left += 1
        return self._begun.setdefault("begun", True)

    def start(self, tasks: Sequence[Task], pool: ThreadPool, *, is_urgent: bool = False) -> None:
        """Hand out the tasks; one of them may hand out more. Urgent ones are done before tasks of other batches."""
        self._begun.setdefault("begun", True)
        self._is_inside = pool.count == 0
        with self._lock:
            self._left += 1  # for the loop below, which Ctrl-C may end
        try:
            for task in tasks:
                with self._lock:
                    self._left += 1
                pool.do(_CountedTask(self, task), is_urgent=is_urgent)
        finally:
            self.finish_task()

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error
        self._ready.set()

    def copied(self, clock: StageClock, images: int) -> None:
        """A task has copied images from a view."""
        clock.show()
        with self._lock:
            self.hits += images
            self.sums.add_copies(clock, images)

    def kept(self, clock: StageClock, images: int) -> None:
        """A task has put images into a view."""
        clock.show()
        with self._lock:
            self.sums.add_puts(clock, images)

    def read(
        self, clock: StageClock, source: SampleSource, column: ImageColumn, made: int, *, decodes: bool = True
    ) -> None:
        """A task has read images and, unless the device does, decoded them."""
        clock.show()
        with self._lock:
            self.made += made
            self.sums.add_images(clock, column.column, source.store.rows, decodes=decodes)

    def lost(self, failure: Failure) -> None:
        with self._lock:
            self.failures.append(failure)

    def prefetch(self, column: ImageColumn, rows: NDArray[np.int64]) -> None:
        """Ask for the bytes of rows that its tasks will read in this order, where reads take long."""
        found = column.reader.prefetch(rows.tolist())
        if found is not None:
            self.ahead.append(found)

    def finish_task(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._complete()

    def _complete(self) -> None:
        try:
            for each in self.ahead:
                each.close()
            if self.error is None:
                record = functools.partial(self.sums.record, is_counted=self.is_counted, is_inside=self._is_inside)
                record() if self.epoch_records is None else self.epoch_records.add(self.epoch, record)
        finally:
            try:
                if self.answer is not None:
                    self.answer(self)
            finally:
                self._over.set()
                self._ready.set()


class _CountedTask:
    """A task that reports its end to its job, whatever happens in it."""

    __slots__ = ("_is_plan", "_job", "_task")

    def __init__(self, job: BatchJob, task: Task, *, is_plan: bool = False) -> None:
        self._job, self._task, self._is_plan = job, task, is_plan

    def __call__(self, worker: WorkerState) -> None:
        job, task = self._job, self._task
        self._task = no_task
        if self._is_plan and not job.begin():
            return
        try:
            if job.error is None:
                task(worker)
        except BaseException as error:
            job.fail(error)
        finally:
            # Before the job is reported complete: this holds the batch's arrays, whose memory may be reused at once.
            del task
            job.finish_task()


ReadyBatch = tuple[BatchJob, dict[str, Any]]


class BatchIterator(Protocol):
    """The batches of a pass, as the user gets them."""

    def next(self) -> ReadyBatch | None:
        """The next one; None where all has ended."""

    def close(self) -> None:
        """End the pass."""
