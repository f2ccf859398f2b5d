"""Threads that work behind the one that reads, with back-pressure; their first error reaches the reader."""

from __future__ import annotations

import importlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from penstock.system.closing import on_error

Step = Callable[[], object]


class Lane:
    """Jobs are done in the order they were put; `put` waits while `depth` of them are waiting."""

    def __init__(self, name: str, depth: int = 2) -> None:
        self._jobs: queue.Queue[tuple[Step, Step] | None] = queue.Queue(depth)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Step, after: Step) -> None:
        """Do `job` in its turn; `after`, which gives buffers back, follows even a job that failed or never began."""
        with on_error(after):
            self._raise()
        self._jobs.put((job, after))

    def drain(self) -> None:
        """Wait until everything that was put is done."""
        self._jobs.join()
        self._raise()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while True:
            entry = self._jobs.get()
            try:
                if entry is None:
                    return
                # After a failure the rest is taken from the queue undone, so that the reader never waits for ever.
                try:
                    if self._error is None:
                        entry[0]()
                finally:
                    entry[1]()
            except BaseException as error:
                self._error = self._error or error
            finally:
                self._jobs.task_done()

    def __enter__(self) -> Lane:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # What still waits after a failure of the reader is dropped, not done.
        self._error = self._error or error
        self.close()


class Crew:
    """Who helps a pass: a lane that writes, a lane that decodes for the statistics, and a pool that encodes."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self.writing = Lane("penstock-write", depth=6)
        self.statistics = Lane("penstock-statistics", depth=8)

    @property
    def pool(self) -> ThreadPoolExecutor:
        """Made at first use: a pass that copies pictures never needs it."""
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="penstock-encode")
        return self._pool

    def load_arrow(self) -> None:
        """The first flush will need it; loading it meanwhile costs the pass nothing."""
        self.statistics.put(lambda: importlib.import_module("pyarrow.parquet"), lambda: None)

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.statistics.__exit__(kind, error, trace)
        self.writing.__exit__(kind, error, trace)
        if self._pool is not None:
            self._pool.shutdown()
