"""Wrappers around the data set, the collate_fn and the worker_init_fn of an attached DataLoader, which time them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns, process_time_ns
from typing import Any

from penstock._src.profile.record.spans import count, is_enabled, own_buffer, record_calls, span
from penstock._src.profile.record.steps import counted_sample

TOTAL, FETCH, COLLATE = "00_TOTAL_getitem", "fetch", "collate"
FETCH_CPU = "fetch_cpu_ns"
"""Counter: what CPUs worked for samples and batches; beside their time it tells how much of that was waiting."""


@contextmanager
def wrapped(own: dict[str, Any]) -> Iterator[None]:
    """In place only while workers are made: whoever asks the loader sees what he gave it."""
    kept = {name: own[name] for name in ("dataset", "collate_fn", "worker_init_fn")}
    own["dataset"] = _TimedSamples(kept["dataset"])
    own["collate_fn"] = _TimedCollate(kept["collate_fn"])
    own["worker_init_fn"] = _Start(kept["worker_init_fn"])
    try:
        yield
    finally:
        own.update(kept)


@contextmanager
def _working() -> Iterator[None]:
    """Counts what CPUs work inside in all threads of the process, for a data set may have some. Not nested."""
    began_ns = process_time_ns()
    yield
    count(FETCH_CPU, process_time_ns() - began_ns)


def _sampled(samples: int, make: Callable[[], Any]) -> Any:
    """What `make` gives: so many samples, whose spans stand beside their total. That is recorded once they are there,
    less what is in those spans. Where the data set has such a span around each itself, that is the one that counts."""
    if not is_enabled():
        return make()
    buffer = own_buffer()
    around, known_ns, began_ns = buffer.node, buffer.node.child_ns, perf_counter_ns()
    with counted_sample():
        found = make()
    ended_ns = perf_counter_ns()
    while buffer.node.depth > around.depth:  # a generator holds a span open over its yield
        buffer.end_through(buffer.node.name, ended_ns)
    own = around.kids.get(TOTAL)
    if own is None or own.start_ns < began_ns:
        inner_ns, around.child_ns = around.child_ns - known_ns, known_ns
        record_calls(TOTAL, ended_ns - began_ns, samples, child_ns=inner_ns, inside=True)
    return found


class _TimedSamples:
    """Stands in for the data set where samples are fetched; everything else is answered by the data set itself."""

    def __init__(self, dataset: Any) -> None:
        self.plain = dataset

    def __getitem__(self, index: Any) -> Any:
        with _working():
            return self._one(index)

    def _one(self, index: Any) -> Any:
        with counted_sample(), span(TOTAL):
            if is_enabled():
                # A data set that has such a span around its sample itself enters the same one: it counts once.
                node = own_buffer().node
                node.kids.setdefault(TOTAL, node)
            return self.plain[index]

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        with _working(), span(FETCH):
            together = getattr(self.plain, "__getitems__", None)
            if not together:
                return [self._one(index) for index in indices]
            return _sampled(len(indices), lambda: together(indices))  # nobody knows how long each took

    def __iter__(self) -> Iterator[Any]:
        return _TimedStream(iter(self.plain))

    def __len__(self) -> int:
        return len(self.plain)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)


class _TimedStream:
    """Stands in for the iterator of a data set. What that raises is handed on, and does not end it."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with _working():
            return _sampled(1, lambda: next(self._source))


class _TimedCollate:
    """Stands in for the collate_fn."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._plain = collate

    def __call__(self, samples: Any) -> Any:
        with _working(), span(COLLATE):
            return self._plain(samples)


class _Start:
    """Stands in for the worker_init_fn: in the worker, `get_worker_info().dataset` is the data set itself again."""

    def __init__(self, start: Callable[[int], None] | None) -> None:
        self._start = start

    def __call__(self, worker: int) -> None:
        import torch.utils.data

        info: Any = torch.utils.data.get_worker_info()
        object.__setattr__(info, "dataset", info.dataset.plain)  # torch hands it out as unchangeable
        if self._start is not None:
            self._start(worker)
