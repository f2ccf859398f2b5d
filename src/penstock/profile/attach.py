"""`attach(dataloader)`: an ordinary torch DataLoader tells its data wait, and its workers what they spend time on.

    loader = penstock.profile.attach(DataLoader(dataset, batch_size=64, num_workers=4))
    for batch in loader: ...                      # as before

The loader stays the object that it was, and so do its data set and its collate_fn for everybody who looks at them:
what is timed are stand-ins that only the workers' fetching sees.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns, process_time_ns, thread_time_ns
from types import TracebackType
from typing import Any

from penstock.errors import UsageError
from penstock.limits import read_memory_limit
from penstock.profile.counters import count
from penstock.profile.feeding import Feeding, begin_sample, end_sample
from penstock.profile.layout import B_RESET_NS
from penstock.profile.marks import marks
from penstock.profile.spans import is_enabled, own_lane, record_calls, span
from penstock.profile.subject import Way, register, unregister

TOTAL, FETCH, COLLATE = "00_TOTAL_getitem", "fetch", "collate"
FETCH_CPU = "fetch_cpu_ns"
"""Counter: what CPUs worked for samples and batches; beside their time it tells how much of that was waiting."""
FETCH_NS = "fetch_ns of loader {}"
"""Counter: what samples and batches of one loader took."""

_classes: dict[type, type] = {}
_tallies: weakref.WeakKeyDictionary[Any, _Tally] = weakref.WeakKeyDictionary()
_MOST_COUNTED = 32  # loaders one by one: some code makes a new one for every epoch, and names take room


def attach(dataloader: Any) -> Any:
    """Instrument a DataLoader from its next pass on, and return it; again is harmless.

    Recorded are the data wait and the steps in this process, and in the process that fetches (a worker, forked or
    spawned, or this one): `00_TOTAL_getitem` for every sample, `fetch` and `collate` for every batch, and the counter
    `fetch_cpu_ns`, what CPUs worked in them.
    """
    if isinstance(dataloader, _Attached):
        return dataloader
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is None or not isinstance(dataloader, torch_data.DataLoader):
        if hasattr(dataloader, "describe") and hasattr(dataloader, "variant"):
            register(dataloader)  # a loader of penstock's records by itself
            return dataloader
        kind = type(dataloader).__name__
        raise UsageError(f"attach({kind}): it is no torch.utils.data.DataLoader", hint="attach(DataLoader(…))")
    object.__setattr__(dataloader, "__class__", _attached_class(type(dataloader)))
    register(dataloader)
    return dataloader


def detach(dataloader: Any) -> Any:
    """Make a DataLoader what it was before `attach`, from its next pass on, and return it."""
    if isinstance(dataloader, _Attached):
        unregister(dataloader)
        object.__setattr__(dataloader, "__class__", type(dataloader).plain_class)
        vars(dataloader)["_iterator"] = None  # workers that persist would go on timing
    return dataloader


class _Attached:
    """What a DataLoader is besides, once it is attached."""

    __slots__ = ()  # a class that brings no memory of its own can be given to an object that is there
    plain_class: type


def _attached_class(plain: type) -> type:
    """The class of a DataLoader that is attached: a child of the one that it had."""
    known = _classes.get(plain)
    if known is not None:
        return known
    base: Any = plain

    class Attached(base, _Attached):  # type: ignore[misc]
        plain_class = plain

        def __iter__(self) -> Iterator[Any]:
            tally = _tally(self)
            is_first, tally.has_begun = not tally.has_begun, True
            return _TimedPass(super().__iter__(), tally, is_first, self)

        def _get_iterator(self) -> Any:
            with _stand_ins(self.__dict__, _tally(self).counter):
                return super()._get_iterator()

        def __reduce_ex__(self, protocol: Any) -> Any:  # a copy is an ordinary one
            copied = base.__new__(base)
            copied.__dict__.update(self.__dict__)
            return copied.__reduce_ex__(protocol)

        def describe(self) -> dict[str, Any]:
            """How it is set up, JSON-safe."""
            return _description(self)

        def variant(self, **options: Any) -> Any:
            """The same DataLoader with other num_workers, prefetch_factor, pin_memory or persistent_workers."""
            return _variant(self, options)

        def calibrate(self, ways: Sequence[str], threads: Sequence[int]) -> dict[str, Way]:
            """What is inside a data set is not known here."""
            return {}

        def close(self) -> None:
            """End workers that persist."""
            self.__dict__["_iterator"] = None

    Attached.__name__, Attached.__qualname__, Attached.__module__ = plain.__name__, plain.__qualname__, plain.__module__
    _classes[plain] = Attached
    return Attached


@contextmanager
def _stand_ins(own: dict[str, Any], counter: str) -> Iterator[None]:
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


class _Counters:
    """Names of counters for loaders: none is given twice between two resets, nor while its loader lives."""

    def __init__(self) -> None:
        self._reset_ns = -1
        self._taken: set[str] = set()

    def take(self) -> str:
        """The next name; "" where too many were given."""
        reset_ns = own_lane().board_words[B_RESET_NS]
        if reset_ns != self._reset_ns:
            self._reset_ns = reset_ns
            self._taken = {each.counter for each in list(_tallies.values())}
        names = (FETCH_NS.format(number) for number in range(1, _MOST_COUNTED + 1))
        found = next((name for name in names if name not in self._taken), "")
        self._taken.add(found)
        return found


_counters = _Counters()


class _Tally:
    """What the passes of one loader gave since the last reset, and how long each but the very first let wait."""

    def __init__(self) -> None:
        self.counter = _counters.take() if is_enabled() else ""
        self.has_begun = False
        self._reset_ns = -1
        self._clear()

    def _clear(self) -> None:
        self.batches = self.starts = self.start_wait_ns = 0

    def add(self, wait_ns: int, is_start: bool) -> None:
        """A batch came."""
        if not is_enabled():
            return
        self.look()
        self.batches += 1
        if is_start:
            self.starts += 1
            self.start_wait_ns += wait_ns

    def look(self) -> None:
        """Begin anew where the profile was."""
        reset_ns = own_lane().board_words[B_RESET_NS]
        if reset_ns != self._reset_ns:
            self._reset_ns = reset_ns
            self._clear()


def _tally(loader: Any) -> _Tally:
    found = _tallies.get(loader)
    return _tallies.setdefault(loader, _Tally()) if found is None else found


def _description(loader: Any) -> dict[str, Any]:
    tally = _tally(loader)
    if is_enabled():
        tally.look()
    return {
        "kind": "torch.utils.data.DataLoader",
        "text": repr(loader),
        "workers": loader.num_workers,
        "batch_size": loader.batch_size,
        "prefetch_factor": loader.prefetch_factor,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "dataset": type(loader.dataset).__name__,
        "samples": _length(loader.dataset),
        "batches": _length(loader),
        "batches_handed": tally.batches,
        "step_batches": marks().fed_by(id(loader)),
        "service_counter": tally.counter,
        "starts": tally.starts,
        "start_wait_ms": tally.start_wait_ns / 1e6 / tally.starts if tally.starts else None,
        "memory_available_bytes": read_memory_limit().available_bytes,
    }


def _length(of: Any) -> int | None:
    """None where it is not known: a stream has none."""
    try:
        return len(of)
    except (TypeError, NotImplementedError):
        return None


def _variant(loader: Any, options: dict[str, Any]) -> Any:
    unknown = set(options) - {"num_workers", "prefetch_factor", "pin_memory", "persistent_workers"}
    if unknown:
        raise UsageError(f"a DataLoader has no option {', '.join(sorted(unknown))} that can be varied")
    made = copy.copy(loader)
    made.__dict__.update({"_iterator": None, **_own_order(loader), **options})
    if made.num_workers and made.prefetch_factor is None:
        made.__dict__["prefetch_factor"] = 2  # torch's own choice
    return attach(made)


def _own_order(loader: Any) -> dict[str, Any]:
    """Samplers and the generator of their own, as they stand: a pass must not move those of the training."""
    generator = loader.generator
    memo: dict[int, Any] = {id(loader.dataset): loader.dataset}
    if generator is not None:
        memo[id(generator)] = type(generator)(device=generator.device).set_state(generator.get_state())
    found = {"generator": memo.get(id(generator))}
    for name in ("sampler", "batch_sampler"):
        try:
            found[name] = copy.deepcopy(getattr(loader, name), memo)
        except Exception:  # a sampler of the user's own that cannot be copied: it is asked itself
            found[name] = getattr(loader, name)
    return found


def _is_pipe(dataset: Any) -> bool:
    """Data pipes are rewritten by torch when a pass begins, so a stand-in would be in the way."""
    return any(kind.__name__ in ("IterDataPipe", "MapDataPipe") for kind in type(dataset).__mro__)


class _TimedPass:
    """The iterator of a pass, whose `next` is the data wait and begins a step."""

    def __init__(self, inner: Any, tally: _Tally, is_first: bool, loader: Any) -> None:
        self._inner, self._tally = inner, tally
        self._is_start = not is_first  # the first pass has to start workers, whatever is set
        self._feeding = Feeding(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start_ns = self._feeding.ask()
        try:
            found = next(self._inner)
        except BaseException:
            self._feeding.take(start_ns, False)
            raise
        self._feeding.take(start_ns, True)
        self._tally.add(perf_counter_ns() - start_ns, self._is_start)
        self._is_start = False
        return found

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


class _Working:
    """Counts the time inside, and what CPUs work: of a worker process all its threads, since a data set may have some,
    else this one.

    Not nested: the time of what is inside would count twice.
    """

    __slots__ = ("_began_ns", "_clock", "_counter", "_worked_ns")

    def __init__(self, counter: str) -> None:
        self._counter = counter

    def __enter__(self) -> None:
        self._clock = process_time_ns if _is_worker() else thread_time_ns
        self._worked_ns = self._clock() if is_enabled() else None
        self._began_ns = perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._worked_ns is not None:
            count(FETCH_CPU, self._clock() - self._worked_ns)
            if self._counter:
                count(self._counter, perf_counter_ns() - self._began_ns)


def _is_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


class _TimedSamples:
    """Stands in for the data set where samples are fetched; everything else is answered by the data set itself."""

    def __init__(self, dataset: Any, counter: str) -> None:
        self.plain, self._counter = dataset, counter

    def __getitem__(self, index: Any) -> Any:
        with _Working(self._counter):
            return self._one(index)

    def _one(self, index: Any) -> Any:
        begin_sample()
        try:
            with span(TOTAL):
                return self.plain[index]
        finally:
            end_sample()

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        with _Working(self._counter), span(FETCH):
            together = getattr(self.plain, "__getitems__", None)
            if not together:
                return [self._one(index) for index in indices]
            return self._together(together, indices)

    def _together(self, fetch: Callable[[Sequence[Any]], Any], indices: Sequence[Any]) -> Any:
        """As many calls as there are samples, of which nobody knows how long each took."""
        began_ns = perf_counter_ns()
        begin_sample()
        try:
            return fetch(indices)
        finally:
            end_sample()
            if is_enabled():
                around = own_lane().node  # the batch's span: what was inside it so far was inside these samples
                spent_ns, inner_ns = perf_counter_ns() - began_ns, around.child_ns
                around.child_ns = 0
                record_calls(TOTAL, spent_ns, len(indices), child_ns=inner_ns, inside=True)

    def __iter__(self) -> Iterator[Any]:
        source = iter(self.plain)
        while True:
            began_ns = perf_counter_ns()
            begin_sample()
            try:
                with _Working(self._counter):
                    found = next(source)
            except StopIteration:
                return
            finally:
                end_sample()
            record_calls(TOTAL, perf_counter_ns() - began_ns, 1)
            yield found

    def __len__(self) -> int:
        return len(self.plain)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("plain", "_counter"):
            raise AttributeError(name)
        return getattr(self.plain, name)


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
