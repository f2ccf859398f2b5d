"""Requests in threads: many at once, in order, and the main thread hears Ctrl-C while it waits for them."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from penstock._src.system.files.remote.settings import settings

T = TypeVar("T")
_THREAD_NAME = "penstock-remote-"


@dataclass
class RemoteCounters:
    """What this process asked of remote stores since it began."""

    requests: int = 0
    bytes_read: int = 0
    wait_ns: int = 0
    """How long all requests took, added up."""
    retries: int = 0
    """Answers that were cut or short and asked for again; retries inside the client are not among them."""
    first_byte_ns: int = 0
    """How long all requests took until their answer began."""

    def copy(self) -> RemoteCounters:
        return RemoteCounters(**vars(self))

    def since(self, before: RemoteCounters) -> RemoteCounters:
        return RemoteCounters(**{name: value - getattr(before, name) for name, value in vars(self).items()})


counters = RemoteCounters()
_counters_lock = threading.Lock()


def count_request(n_bytes: int, began_ns: int, first_byte_ns: int) -> None:
    now_ns = time.perf_counter_ns()
    with _counters_lock:
        counters.requests += 1
        counters.bytes_read += n_bytes
        counters.wait_ns += now_ns - began_ns
        counters.first_byte_ns += first_byte_ns - began_ns


def count_retry() -> None:
    with _counters_lock:
        counters.retries += 1


class Cancelled(Exception):
    """The request was cancelled before it began."""


class Pending(Generic[T]):
    """The answer to a request that is under way. A few times lighter than a `Future`, of which thousands are made."""

    __slots__ = ("_call", "_error", "_is_taken", "_lock", "_value")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call: Callable[[], T] | None = call
        self._value: T | None = None
        self._error: BaseException | None = None
        self._is_taken: list[None] = [None]  # whoever pops it decides: a thread that makes the call, or `cancel`
        self._lock = threading.Lock()  # held until there is an answer
        self._lock.acquire()

    def make(self) -> None:
        """Make the call, in this thread."""
        if not self._take():
            return
        call, self._call = self._call, None
        assert call is not None
        try:
            self._value = call()
        except BaseException as error:
            self._error = error
        self._lock.release()

    def cancel(self) -> None:
        """Let it not be made, where it has not begun."""
        if self._take():
            self._call, self._error = None, Cancelled()
            self._lock.release()

    def result(self) -> T:
        """Wait for the answer; the main thread hears signals meanwhile."""
        with self._lock:  # no two calls: Ctrl-C in between would leave it taken, and others wait for the same answer
            pass
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def _take(self) -> bool:
        try:
            self._is_taken.pop()
        except IndexError:
            return False
        return True


class RequestPool:
    """Daemon threads that make requests, in the order in which they were asked for.

    They are no ThreadPoolExecutor: that waits for all requests when the program ends, so that Ctrl-C would last as long
    as their time limits.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._waiting: queue.SimpleQueue[Pending[Any]] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._threads = 0

    def submit(self, call: Callable[[], T]) -> Pending[T]:
        """Make the call as soon as a thread is free. One that is cancelled before is never made."""
        pending = Pending(call)
        self._waiting.put(pending)
        if self._threads < self.count and not self._waiting.empty():
            with self._starting:
                if self._threads < self.count:
                    self._threads += 1
                    threading.Thread(target=self._work, name=f"{_THREAD_NAME}{self._threads}", daemon=True).start()
        return pending

    def run(self, call: Callable[[], T]) -> T:
        """Make the call and wait for it: in another thread where this one has to hear signals."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        return self.submit(call).result()

    def run_all(self, calls: Iterable[Callable[[], T]]) -> list[T]:
        """Make all calls, many at once, and wait for them; the first error is raised when all have ended.

        A thread of the pool makes them by itself: if all threads waited for others, none would be left to make them.
        """
        if threading.current_thread().name.startswith(_THREAD_NAME):
            return [call() for call in calls]
        futures = [self.submit(call) for call in calls]
        error: BaseException | None = None
        results: list[T] = []
        try:
            for future in futures:
                try:
                    results.append(future.result())
                except Cancelled:
                    continue
                except Exception as found:
                    error = error or found
                    for each in futures:
                        each.cancel()
        except BaseException:  # Ctrl-C: what has not begun is not made
            for each in futures:
                each.cancel()
            raise
        if error is not None:
            raise error
        return results

    def _work(self) -> None:
        while True:
            pending = self._waiting.get()
            pending.make()
            del pending  # an idle thread holds no bytes


_pool: RequestPool | None = None
_pool_lock = threading.Lock()


def pool() -> RequestPool:
    """The threads of this process for all of its stores."""
    global _pool
    wanted = settings().in_flight
    with _pool_lock:
        if _pool is None or _pool.count < wanted:  # an older, smaller one ends its requests by itself
            _pool = RequestPool(wanted)
        return _pool


def _in_child() -> None:
    global _pool, _pool_lock, _counters_lock
    _pool, _pool_lock, _counters_lock = None, threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_in_child)
