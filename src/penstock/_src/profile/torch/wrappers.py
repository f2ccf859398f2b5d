"""Wrappers around the data set, the collate_fn and the worker_init_fn of an attached DataLoader, which time them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns, process_time_ns, thread_time_ns
from typing import Any

from penstock._src.profile.record.buffer import Node
from penstock._src.profile.record.counters import count
from penstock._src.profile.record.loader_pass import counted_sample
from penstock._src.profile.record.spans import is_enabled, own_buffer, record_calls, span

TOTAL, FETCH, COLLATE = "00_TOTAL_getitem", "fetch", "collate"
FETCH_CPU = "fetch_cpu_ns"
"""Counter: what CPUs worked for samples and batches; beside their time it tells how much of that was waiting."""
FETCH_ELSEWHERE = "fetch_cpu_elsewhere_ns"
"""Counter: what of it other threads worked than the one that asks: what those wait for, nobody sees."""
FETCH_QUEUED = "fetch_queued_ns"
"""Counter: how long the thread that makes them stood in line for a CPU."""


_SCHEDSTAT = "/proc/thread-self/schedstat"


def queued_ns() -> int:
    """How long the calling thread stood in line for a CPU since it began; 0 where the kernel does not tell."""
    try:
        with open(_SCHEDSTAT, "rb") as file:
            return int(file.read().split()[1])
    except (OSError, ValueError, IndexError):
        return 0


@contextmanager
def wrapped(own: dict[str, Any], counter: str) -> Iterator[None]:
    """In place only while workers are made: whoever asks the loader sees what he gave it."""
    kept = {name: own[name] for name in ("dataset", "collate_fn", "worker_init_fn")}
    own["collate_fn"] = _TimedCollate(kept["collate_fn"], counter)
    if not _is_pipe(kept["dataset"]):
        own["dataset"] = _TimedSamples(kept["dataset"], counter)
        own["worker_init_fn"] = _Start(kept["worker_init_fn"])
    try:
        yield
    finally:
        own.update(kept)


def _is_pipe(dataset: Any) -> bool:
    """Data pipes are rewritten by torch when a pass begins, so a wrapper would be in the way."""
    return any(kind.__name__ in ("IterDataPipe", "MapDataPipe") for kind in type(dataset).__mro__)


class _Working:
    """Counts the time inside, and what CPUs work meanwhile in all threads of the process, since a data set may have
    some: the loop itself does nothing then.

    Not nested: the time of what is inside would count twice.
    """

    __slots__ = ("_began_ns", "_counter", "_own_ns", "_queued_ns", "_worked_ns")

    def __init__(self, counter: str) -> None:
        self._counter = counter

    def __enter__(self) -> None:
        self._worked_ns = process_time_ns() if is_enabled() else None
        self._own_ns, self._queued_ns = thread_time_ns(), queued_ns()
        self._began_ns = perf_counter_ns()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._worked_ns is not None:
            worked_ns, own_ns = process_time_ns() - self._worked_ns, thread_time_ns() - self._own_ns
            count(FETCH_CPU, worked_ns)
            count(FETCH_ELSEWHERE, max(worked_ns - own_ns, 0))
            count(FETCH_QUEUED, max(queued_ns() - self._queued_ns, 0))
            if self._counter:
                count(self._counter, perf_counter_ns() - self._began_ns)


def _leave_out_own_total() -> None:
    """A data set that has a span around its sample itself: directly below ours it is not counted a second time."""
    if is_enabled():
        node = own_buffer().node
        if node.name == TOTAL and TOTAL not in node.kids:
            node.kids[TOTAL] = Node(TOTAL, node, node.number, is_recorded=False)


@contextmanager
def _sampling(samples: int) -> Iterator[None]:
    """So many samples come inside, whose spans stand beside their total: that is recorded once they are there, less
    what is in those spans. Where the data set has such a span around each itself, that is the one that counts."""
    around = own_buffer().node if is_enabled() else None
    entered_ns, known_ns = (0, 0) if around is None else (around.start_ns, around.child_ns)
    began_ns = perf_counter_ns()
    with counted_sample():
        yield
    if around is None or around.name == TOTAL or not is_enabled():
        return
    own = around.kids.get(TOTAL)
    if own is not None and own.start_ns >= began_ns:
        return
    spent_ns = perf_counter_ns() - began_ns
    if own_buffer().node is not around or around.start_ns != entered_ns:
        # A generator holds a span open over its yield, which has the time when it ends.
        record_calls(TOTAL, spent_ns, samples)
        return
    inner_ns, around.child_ns = around.child_ns - known_ns, known_ns
    record_calls(TOTAL, spent_ns, samples, child_ns=inner_ns, inside=True)


class _TimedSamples:
    """Stands in for the data set where samples are fetched; everything else is answered by the data set itself."""

    def __init__(self, dataset: Any, counter: str) -> None:
        self.plain, self._counter = dataset, counter

    def __getitem__(self, index: Any) -> Any:
        with _Working(self._counter):
            return self._one(index)

    def _one(self, index: Any) -> Any:
        with counted_sample(), span(TOTAL):
            _leave_out_own_total()
            return self.plain[index]

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        with _Working(self._counter), span(FETCH):
            together = getattr(self.plain, "__getitems__", None)
            if not together:
                return [self._one(index) for index in indices]
            with _sampling(len(indices)):  # of which nobody knows how long each took
                return together(indices)

    def __iter__(self) -> Iterator[Any]:
        return _TimedStream(iter(self.plain), self._counter)

    def __len__(self) -> int:
        return len(self.plain)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("plain", "_counter"):
            raise AttributeError(name)
        return getattr(self.plain, name)


class _TimedStream:
    """Stands in for the iterator of a data set. What that raises is handed on, and does not end it."""

    def __init__(self, source: Iterator[Any], counter: str) -> None:
        self._source, self._counter = source, counter

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with _Working(self._counter), _sampling(1):
            return next(self._source)


class _TimedCollate:
    """Stands in for the collate_fn."""

    def __init__(self, collate: Callable[[Any], Any], counter: str) -> None:
        self.plain, self._counter = collate, counter

    def __call__(self, samples: Any) -> Any:
        with _Working(self._counter), span(COLLATE):
            return self.plain(samples)


class _Start:
    """Stands in for the worker_init_fn: in the worker, `get_worker_info().dataset` is the data set itself again."""

    def __init__(self, start: Callable[[int], None] | None) -> None:
        self._start = start

    def __call__(self, worker: int) -> None:
        import torch.utils.data

        info: Any = torch.utils.data.get_worker_info()
        if info is not None and isinstance(info.dataset, _TimedSamples):
            object.__setattr__(info, "dataset", info.dataset.plain)  # torch hands it out as unchangeable
        if self._start is not None:
            self._start(worker)
