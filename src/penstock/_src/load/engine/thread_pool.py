"""Threads that take tasks from one queue, and what each keeps between two tasks."""

from __future__ import annotations

import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.images import Fitter, begin_quiet, end_quiet
from penstock._src.load.engine.stages import StageClock
from penstock._src.stores.store import Scratch


class FreshScratch(Scratch):
    """Not one memory again and again, but a new one each time: what is read may be kept. It comes from `area` as long
    as that has room."""

    def __init__(self, area: BatchMemory | None = None) -> None:
        super().__init__()
        self._area = area
        self._last: NDArray[np.uint8] | None = None

    def take(self, n_bytes: int) -> NDArray[np.uint8]:
        scratch = None if self._area is None else self._area.take(n_bytes)
        self._last = np.empty(n_bytes, np.uint8) if scratch is None else scratch
        return self._last

    def is_last(self, image: NDArray[Any]) -> bool:
        return image is self._last


class BatchMemory:
    """Memory of one batch that several threads read into, each piece behind the one before."""

    def __init__(self, memory: NDArray[np.uint8]) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._used = 0

    def clear(self) -> None:
        """Start again: what was read is not needed."""
        self._used = 0

    def take(self, n_bytes: int) -> NDArray[np.uint8] | None:
        """The next piece; None where it is full."""
        with self._lock:
            begin = self._used
            if begin + n_bytes > len(self._memory):
                return None
            self._used = begin + n_bytes
        return self._memory[begin : begin + n_bytes]


class WorkerState:
    """What one thread keeps between tasks."""

    def __init__(self) -> None:
        self.scratch = Scratch()
        self.fresh = FreshScratch()
        self.fitter = Fitter()
        self.clock = StageClock()
        self._small: dict[tuple[int, ...], NDArray[np.uint8]] = {}

    def small(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        held = self._small.get(shape)
        if held is None:
            held = self._small[shape] = np.empty(shape, np.uint8)
        return held


Task = Callable[[WorkerState], None]
Listen = Callable[[bool], bool | None]
"""Asks elsewhere for work and queues it as tasks; with True it waits for it. Whether there was some; None: none
will come any more."""
FORGOTTEN_S = 1.0  # how long the end of a forgotten object is waited for


def start_thread(thread: threading.Thread) -> None:
    """Start it. Ctrl-C inside Python's own `start` may become the RuntimeError of a lock: Ctrl-C again."""
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


class ThreadPool:
    """Threads that take tasks from one queue; `threads=0` lets the caller do them.

    With `listen`, one of the idle threads calls it, so that work which comes from elsewhere wakes the thread that does
    it. One in between would wait for Python's lock twice. Tasks that others queue meanwhile are left to the others.
    """

    def __init__(self, threads: int, listen: Listen | None = None) -> None:
        self.count = 0
        # The threads know the tasks alone, so that a pool that was forgotten ends.
        self._tasks = _Tasks(listen)
        self._threads: list[threading.Thread] = []
        self._callers = threading.local()  # the workers of callers: each thread has memory of its own
        self._giving = threading.Lock()
        begin_quiet()
        given_up = (self._tasks.queue, self._giving, self._threads, os.getpid(), weakref.ref(self))
        self._end = weakref.finalize(self, _end, *given_up)
        self.grow(threads)

    def grow(self, threads: int) -> None:
        """Have so many threads from now on."""
        added = range(self.count, threads)
        self._threads += [
            threading.Thread(target=_work, args=(self._tasks,), name=f"penstock-load-{number}", daemon=True)
            for number in added
        ]
        self.count = len(self._threads)
        for number in added:
            start_thread(self._threads[number])

    def do(self, task: Task, *, is_urgent: bool = False) -> None:
        """Queue a task for the next free thread; an urgent one goes before all others."""
        if self.count:
            with self._giving:  # when the interpreter ends, a thread may still ask for batches: no worker is left
                if self._end.alive:
                    if is_urgent:
                        self._tasks.urgent.append(task)
                    self._tasks.queue.put(no_task if is_urgent else task)  # which wakes a thread
                    return
        own: WorkerState | None = getattr(self._callers, "worker", None)
        if own is None:
            own = self._callers.worker = WorkerState()
        task(own)

    def has(self, thread: threading.Thread) -> bool:
        """Whether it is one of these threads, for which the others must not wait."""
        return thread in self._threads

    def close(self) -> None:
        """Finish what was given, and end the threads."""
        self._end()


def no_task(worker: WorkerState) -> None:
    """A task that is over, or one that only wakes a thread."""


class _Tasks:
    """What is to be done, and which threads wait for it."""

    def __init__(self, listen: Listen | None) -> None:
        self.queue: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self.urgent: deque[Task] = deque()
        self._listen = listen
        self._listening = threading.Lock()
        self._waiting: set[int] = set()  # threads that the next task wakes

    def next(self) -> Task | None:
        """The next task, for the calling thread; None: it ends."""
        thread = threading.get_ident()
        while (listen := self._listen) is not None:
            self._waiting.add(thread)  # first: a thread that stops listening looks for one that waits
            is_listening = self._listening.acquire(blocking=False)
            if not is_listening:
                task = self.queue.get()
                self._waiting.discard(thread)
                return task
            self._waiting.discard(thread)
            try:
                self._hear_all(listen)
            finally:
                self._listening.release()
            try:
                task = self.queue.get_nowait()
            except queue.Empty:
                continue
            if self._waiting:
                self.queue.put(no_task)  # another thread listens while this one works
            return task
        return self.queue.get()

    def _hear_all(self, listen: Listen) -> None:
        """Queue the work that has come; without any task, wait for some."""
        while has_heard := listen(self.queue.empty()):
            pass
        if has_heard is None:
            self._listen = None


def _work(tasks: _Tasks) -> None:
    worker = WorkerState()
    urgent = tasks.urgent
    while True:
        task = tasks.next()
        while urgent:
            try:
                first = urgent.popleft()
            except IndexError:
                break  # another thread was faster
            first(worker)
            del first
        if task is None:
            return
        task(worker)
        del task  # it holds arrays of a batch


def _end(
    tasks: queue.SimpleQueue[Task | None], giving: threading.Lock, threads: Sequence[threading.Thread], pid: int,
    pool: weakref.ref[ThreadPool],
) -> None:  # fmt: skip
    if os.getpid() != pid:
        return  # a child of a fork: the threads are the parent's
    with giving:  # what was given before is done before
        for _ in threads:
            tasks.put(None)
    try:
        _join(threads, is_forgotten=pool() is None)
    finally:
        end_quiet()


def _join(threads: Sequence[threading.Thread], *, is_forgotten: bool) -> None:
    """Wait until they have ended.

    What was forgotten is ended by whatever thread happens to collect garbage. That may be one of these, or one that
    holds a lock which they need: they are given a moment then, and end by themselves later.
    """
    if threading.current_thread() in threads:
        return
    for thread in threads:
        if thread.ident is not None:
            thread.join(FORGOTTEN_S if is_forgotten else None)
