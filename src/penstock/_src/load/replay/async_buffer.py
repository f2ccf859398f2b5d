"""`AsyncSampleBuffer`: a thread that samples ahead of the training step, and that can always be stopped."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from types import TracebackType
from typing import Any, Protocol

from penstock._src.load import settings
from penstock._src.load.engine.thread_pool import FORGOTTEN_S, start_thread
from penstock._src.profile.record.spans import gauge
from penstock._src.profile.record.steps import LoaderPass, this_thread
from penstock.errors import BudgetExceeded, UsageError

_LOOK_S = 0.05  # how often it is tried whether batches were dropped


class Samples(Protocol):
    """Anything with `sample`, such as a replay buffer."""

    def sample(self, batch_size: int) -> Any:
        """One batch."""


class _Shared:
    """What the thread and the user share; it does not know the AsyncSampleBuffer, so that a forgotten one ends."""

    def __init__(self, buffer: Samples, batch_size: int, most: int) -> None:
        self.buffer, self.batch_size, self.most = buffer, batch_size, most
        self.changed = threading.Condition()
        self.ready: deque[Any] = deque()
        self.error: BaseException | None = None
        self.trace: TracebackType | None = None
        self.stopped = False
        self.waiting = 0  # callers in get_batch

    def run(self) -> None:
        """The thread: keep the queue full until stopped; an error ends it and stays."""
        this_thread.is_ahead = True
        try:
            while self._wait_for_room():
                batch = self._sampled()
                if batch is None:
                    continue
                with self.changed:
                    if not self.stopped:
                        self.ready.append(batch)
                    self.changed.notify_all()
                del batch  # a full queue and this one would be one too many
        except BaseException as error:
            with self.changed:
                self.error, self.trace = error, error.__traceback__
                self.changed.notify_all()

    def _wait_for_room(self) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or len(self.ready) < self.most)
            return not self.stopped

    def _sampled(self) -> Any:
        """A batch; None where memory has to be waited for first."""
        with self.changed:
            awaited = self.waiting > 0 and not self.ready
        try:
            return self.buffer.sample(self.batch_size)
        except BudgetExceeded:
            if awaited:
                raise  # nothing is dropped while this waits: the batches that fill the memory are kept for good
            with self.changed:  # the budget holds no more ahead: the queue is shorter than asked for
                self.changed.wait_for(lambda: self.stopped or (self.waiting > 0 and not self.ready), _LOOK_S)
            return None


class AsyncSampleBuffer:
    """Batches of a replay buffer, `queue_size` of them prepared ahead by a thread; a context manager.

    What goes wrong in the thread is raised by `get_batch`, each time. Where the buffer's memory holds fewer batches
    than `queue_size`, fewer are prepared.
    """

    def __init__(self, buffer: Samples, batch_size: int, queue_size: int = 4) -> None:
        if not callable(getattr(buffer, "sample", None)):
            hint = "AsyncSampleBuffer(buffer, batch_size=256)"
            raise UsageError(f"{type(buffer).__name__} has no sample(batch_size)", hint=hint)
        sizes = (settings.count_for("batch_size", batch_size), settings.count_for("queue_size", queue_size))
        self._shared = _Shared(buffer, *sizes)
        self._feeding = LoaderPass(self)
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._shared.run, name="penstock-ahead", daemon=True)
        start_thread(self._thread)
        self._end = weakref.finalize(self, _stop, self._shared, self._thread, self._pid, weakref.ref(self))

    def get_batch(self) -> Any:
        """The next batch, in the order in which they were sampled."""
        shared = self._shared
        if os.getpid() != self._pid:
            raise UsageError("this AsyncSampleBuffer was made before a fork: its thread is the parent's",
                             hint="make one in this process")  # fmt: skip
        start_ns = self._feeding.ask()
        with shared.changed:
            gauge("queue_depth", len(shared.ready))
            shared.waiting += 1
            shared.changed.notify_all()
            try:
                shared.changed.wait_for(lambda: shared.stopped or shared.error is not None or shared.ready)
            finally:
                shared.waiting -= 1
            if shared.error is not None:
                raise shared.error.with_traceback(shared.trace)
            if shared.stopped:
                raise UsageError("this AsyncSampleBuffer is stopped", hint="make a new one")
            batch = shared.ready.popleft()
            shared.changed.notify_all()
        self._feeding.take(start_ns, True)
        return batch

    def stop(self) -> None:
        """End the thread, after the batch it is making, and drop what is prepared; more than once is fine."""
        self._end()

    def __enter__(self) -> AsyncSampleBuffer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        shared = self._shared
        state = "stopped" if shared.stopped else f"{len(shared.ready)} of {shared.most} batches ready"
        return f"<AsyncSampleBuffer of {shared.buffer!r}, batches of {shared.batch_size}: {state}>"


def _stop(shared: _Shared, thread: threading.Thread, pid: int, whole: weakref.ref[AsyncSampleBuffer]) -> None:
    if os.getpid() != pid:
        return  # a child of a fork: the thread is the parent's
    with shared.changed:
        shared.stopped = True
        shared.ready.clear()
        shared.changed.notify_all()
    if thread is not threading.current_thread():
        # What was forgotten is ended by whatever thread collects garbage: that may be one which makes its batches.
        thread.join(FORGOTTEN_S if whole() is None else None)
