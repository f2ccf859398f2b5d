"""What a loader tells of the loop over it: each `next` is a data wait, and from one to the following is a step.

    loader_pass = LoaderPass(loader)
    start_ns = loader_pass.ask()
    batch = ...
    loader_pass.take(start_ns, batch is not None)

`steps.py` says which of several loops is the training.
"""

from __future__ import annotations

import itertools
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns, thread_time_ns
from typing import Any

from penstock._src.profile.record import spans
from penstock._src.profile.record.counters import count
from penstock._src.profile.record.steps import WAIT, passes_under_way, steps

# Numbers of loaders

_numbers = itertools.count(1)
_known: dict[int, tuple[weakref.ref[Any], int]] = {}


def loader_id(*candidates: object) -> int:
    """The number of the first object that can be referred to weakly; it is never given again, unlike an `id`."""
    for each in candidates:
        place = id(each)
        known = _known.get(place)
        if known is not None and known[0]() is each:
            return known[1]
        number = next(_numbers)
        try:
            _known[place] = weakref.ref(each, lambda ref, place=place: _forget(ref, place)), number  # type: ignore[misc]
        except TypeError:
            continue
        return number
    return next(_numbers)


def _forget(ref: weakref.ref[Any], place: int) -> None:
    # Called wherever a loader is freed, perhaps in the midst of something: it takes no lock.
    known = _known.get(place)
    if known is not None and known[0] is ref:
        _known.pop(place, None)


# What the calling thread is doing


class _Local(threading.local):
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
        self.loader = loader_id(loader)
        self._source = loader_id(getattr(loader, "dataset", loader), loader)
        self.is_training = True
        self.is_under_way = self.is_over = self.has_batch = False
        self.leader: LoaderPass | None = None
        """The pass whose steps it feeds beside it."""
        self.outer: LoaderPass | None = None
        """The pass inside whose step it began, while it is open whether it belongs to that step."""
        self._inner: list[weakref.ref[LoaderPass]] = []
        self._thread = self.began_ns = self.began_cpu_ns = self.cpu_from_ns = 0
        self.open_waits = self.open_wait_ns = self.open_batches = self.open_cpu_ns = 0

    @property
    def key(self) -> tuple[int, bool]:
        """What tells its loop from others."""
        return self._source, self.is_training

    def ask(self) -> int:
        """The loop asks for a batch: the step before it is over."""
        start_ns = perf_counter_ns()
        if spans.is_enabled():
            self.has_batch = False
            if self.is_under_way:
                count("batches_used")
                # The CPU time is what the step keeps from the loader; several threads may share the iterator.
                steps().use_batch(self, start_ns, max(0, thread_time_ns() - self.cpu_from_ns))
            else:
                self._begin(start_ns)
        return start_ns

    def take(self, start_ns: int, is_batch: bool) -> None:
        """The loop gets it, or learns that there is none."""
        if not spans.is_enabled():
            return
        if is_batch:
            self.is_under_way = self.has_batch = True
            wait_ns = perf_counter_ns() - start_ns
            spans.record(WAIT, wait_ns, start_ns)
            steps().add_pass_wait(self, start_ns, wait_ns)
            self.cpu_from_ns = thread_time_ns()
        else:
            was_under_way, self.is_under_way, self.is_over = self.is_under_way, False, True
            if was_under_way:
                steps().end_pass(self, perf_counter_ns())

    def inner(self) -> list[LoaderPass]:
        """The passes that began inside the step that ends now and are still under way."""
        found = [each for ref in self._inner if (each := ref()) is not None and each.is_under_way]
        self._inner.clear()
        return found

    def _begin(self, start_ns: int) -> None:
        """A pass begins, perhaps inside a step of another one of this thread."""
        is_grad = getattr(sys.modules.get("torch"), "is_grad_enabled", None)  # a thread may be importing it just now
        self.is_training = is_grad is None or bool(is_grad())
        self._thread, self.began_ns, self.began_cpu_ns = threading.get_ident(), start_ns, thread_time_ns()
        self.open_waits = self.open_wait_ns = self.open_batches = self.open_cpu_ns = 0
        self.is_over = False
        around = [each.leader or each for each in passes_under_way(self)]
        outer = around[-1] if around else None
        if outer is not None and outer.has_batch and outer.is_under_way and outer.loader != self.loader:
            self.outer = outer
            outer._inner.append(weakref.ref(self))
        steps().begin_pass(self)

    def __del__(self) -> None:
        if self.outer is not None and self._thread == threading.get_ident() and spans.is_enabled():
            steps().end_pass(self, perf_counter_ns(), is_freed=True)
