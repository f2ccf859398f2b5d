"""What a loader tells of the loop over it: each `next` is a data wait, and from one to the following is a step.

    loader_pass = LoaderPass(loader)
    start_ns = loader_pass.ask()
    batch = ...
    loader_pass.take(start_ns, batch is not None)

`steps.py` says which of several loops is the training.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns

from penstock._src.profile.record import spans
from penstock._src.profile.record.counters import count
from penstock._src.profile.record.steps import WAIT, steps


class _Local(threading.local):
    """What the calling thread is doing."""

    is_ahead = False
    samples = 0


_local = _Local()


def work_ahead() -> None:
    """The calling thread prepares batches for the loop: what it waits for is no data wait."""
    _local.is_ahead = True


def is_ahead() -> bool:
    """Whether the calling thread prepares batches for the loop."""
    return _local.is_ahead


@contextmanager
def counted_sample() -> Iterator[None]:
    """What the calling thread does inside is a sample that is counted."""
    _local.samples += 1
    try:
        yield
    finally:
        _local.samples -= 1


def is_in_sample() -> bool:
    """Whether the calling thread is inside a sample that is counted: what it asks for is a part of that one."""
    return _local.samples > 0


class LoaderPass:
    """One loop over a loader."""

    def __init__(self, loader: object = None) -> None:
        self.loader = id(loader)
        self._data = id(getattr(loader, "dataset", loader))
        self.key = (self._data, True)
        """What tells its loop from others: the data set, and whether gradients are wanted."""
        self._is_under_way = False
        self._cpu_from_ns = 0

    @property
    def has_gradients(self) -> bool:
        return self.key[1]

    def ask(self) -> int:
        """The loop asks for a batch: the step before it is over."""
        start_ns = perf_counter_ns()
        if not spans.is_enabled():
            return start_ns
        if self._is_under_way:
            count("batches_used")
            # The CPU time is what the step keeps from the loader; several threads may share the iterator.
            steps().use_batch(self, start_ns, max(0, thread_time_ns() - self._cpu_from_ns))
        else:
            is_grad = getattr(sys.modules.get("torch"), "is_grad_enabled", None)  # it may be just being imported
            self.key = (self._data, is_grad is None or bool(is_grad()))
            steps().begin_pass(self)
        return start_ns

    def take(self, start_ns: int, is_batch: bool) -> None:
        """The loop gets it, or learns that there is none."""
        if not spans.is_enabled():
            return
        if is_batch:
            self._is_under_way = True
            wait_ns = perf_counter_ns() - start_ns
            spans.record(WAIT, wait_ns, start_ns)
            steps().add_pass_wait(self, start_ns, wait_ns)
            self._cpu_from_ns = thread_time_ns()
        elif self._is_under_way:
            self._is_under_way = False
            steps().end_pass(self)
