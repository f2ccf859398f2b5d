"""`attach(dataloader)`: an ordinary torch DataLoader tells its data wait, and its workers what they spend time on.

The loader stays the object that it was, and so do its data set and its collate_fn for everybody who looks at them:
what is timed are wrappers that only the workers' fetching sees.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter_ns, process_time_ns
from typing import Any

from penstock._src.profile.record.board import open_board
from penstock._src.profile.record.registry import register, unregister
from penstock._src.profile.record.spans import count, is_enabled, own_buffer, record_calls, span
from penstock._src.profile.record.steps import LoaderPass, counted_sample
from penstock._src.profile.stats import FETCH_CPU, FETCH_NS, TORCH_LOADER, LoaderInfo, own_counter
from penstock._src.system.limits import read_memory_limit
from penstock.errors import UsageError

_KEY = "_penstock_attachment"
_classes: dict[type, type] = {}


def attach(dataloader: Any) -> Any:
    """Instrument a DataLoader from its next pass on, and return it; again is harmless.

    Recorded are the data wait and the steps in this process, and in the process that fetches (a worker, forked or
    spawned, or this one): `00_TOTAL_getitem` for every sample, `fetch` and `collate` for every batch, and the counter
    `fetch_cpu_ns`, what CPUs worked in them; the first loaders count for themselves besides (`… of loader 1`).
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
    own = vars(dataloader)
    own["_iterator"] = None  # workers that persist would go on as they began
    own[_KEY] = Attachment(dataloader)
    object.__setattr__(dataloader, "__class__", _attached_class(type(dataloader)))
    register(dataloader, own[_KEY])
    return dataloader


def detach(dataloader: Any) -> Any:
    """Make a DataLoader what it was before `attach`, from its next pass on, and return it."""
    if isinstance(dataloader, _Attached):
        unregister(dataloader, forget=True)
        object.__setattr__(dataloader, "__class__", type(dataloader).plain_class)
        own = vars(dataloader)
        own["_iterator"] = None
        del own[_KEY]
    return dataloader


class _Attached:
    """What a DataLoader is besides, once it is attached."""

    __slots__ = ()  # a class that brings no memory of its own can be given to an object that is there
    plain_class: type


def _attached_class(plain: type) -> type:
    """The class of a DataLoader that is attached: a child of the one that it had, with nothing public of its own."""
    if plain in _classes:
        return _classes[plain]
    base: Any = plain

    class Attached(base, _Attached):  # type: ignore[misc]
        plain_class = plain

        def __iter__(self) -> Iterator[Any]:
            is_start = vars(self)[_KEY].begin_pass(self)
            return _TimedPass(super().__iter__(), self, is_start)

        def _get_iterator(self) -> Any:
            # Only while workers are made: whoever asks the loader sees what he gave it.
            own: dict[str, Any] = self.__dict__
            number = own[_KEY].own_number()
            kept = {name: own[name] for name in ("dataset", "collate_fn", "worker_init_fn")}
            own["dataset"] = _TimedSamples(kept["dataset"], number)
            own["collate_fn"] = _TimedCollate(kept["collate_fn"], number)
            own["worker_init_fn"] = _Start(kept["worker_init_fn"])
            try:
                return super()._get_iterator()
            finally:
                own.update(kept)

        def __reduce_ex__(self, protocol: Any) -> Any:  # a copy is an ordinary one
            return base.__new__, (base,), {name: each for name, each in vars(self).items() if name != _KEY}

    Attached.__name__, Attached.__qualname__, Attached.__module__ = plain.__name__, plain.__qualname__, plain.__module__
    _classes[plain] = Attached
    return Attached


class _StandIn:
    """Times what it stands in for; everything else is answered by that itself."""

    def __init__(self, plain: Any, number: int) -> None:
        self.plain, self._number = plain, number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "plain":
            raise AttributeError(name)
        return getattr(self.plain, name)


class _TimedPass(_StandIn):
    """The iterator of a pass, whose `next` is the data wait and begins a step."""

    def __init__(self, plain: Any, loader: Any, is_start: bool) -> None:
        self.plain, self._attachment, self._is_start = plain, vars(loader)[_KEY], is_start
        self._loader_pass = LoaderPass(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start_ns = self._loader_pass.ask()
        try:
            found = next(self.plain)
        except BaseException:
            self._loader_pass.take(start_ns, False)
            raise
        self._loader_pass.take(start_ns, True)
        self._attachment.add(perf_counter_ns() - start_ns, self._is_start)
        self._is_start = False
        return found

    def __len__(self) -> int:
        return len(self.plain)


# What speaks for an attached DataLoader


_PATIENCE_S = 60.0  # for a batch of workers that are only tried
_MOST_COUNTED = 16  # loaders one by one: some code makes a new one for every epoch, and names take room
_numbered: Counter[int] = Counter()  # loaders, by the reset since which they are


class Attachment:
    """A DataLoader, while it lives and as it was; what its passes gave since the last reset, and how long each but the
    very first let wait."""

    def __init__(self, loader: Any, *, keeps_alive: bool = False) -> None:
        self._loader: Callable[[], Any] = (lambda: loader) if keeps_alive else weakref.ref(loader)
        self._info = LoaderInfo(kind=TORCH_LOADER)
        self._number = 0
        self._has_begun = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """The record was reset."""
        self._batches = self._starts = self._start_wait_ns = 0

    def begin_pass(self, loader: Any) -> bool:
        """A pass begins; whether it is a start to count: the first has to start workers, whatever is set."""
        self._info = _info(loader)  # should it be gone when somebody asks
        had_begun, self._has_begun = self._has_begun, True
        return had_begun

    def own_number(self) -> int:
        """By which it counts for itself, from its first pass that is recorded on; 0: it does not."""
        if not self._number and is_enabled():
            reset_ns = open_board().reset_ns
            if _numbered[reset_ns] < _MOST_COUNTED:
                _numbered[reset_ns] += 1
                self._number = _numbered.total()
        return self._number

    def add(self, wait_ns: int, is_start: bool) -> None:
        if is_enabled():
            self._batches += 1
            if is_start:
                self._starts += 1
                self._start_wait_ns += wait_ns

    def describe(self) -> LoaderInfo:
        """How it is set up, and what it gave since the last reset."""
        loader = self._loader()
        return replace(
            self._info if loader is None else _info(loader),
            batches_handed=self._batches,
            number=self._number or None,
            starts=self._starts,
            start_wait_ms=self._start_wait_ns / 1e6 / self._starts if self._starts else None,
            memory_available_bytes=read_memory_limit().available_bytes,
        )

    def variant(self, **options: Any) -> Attachment:
        """The same DataLoader with other num_workers, prefetch_factor, pin_memory, persistent_workers, or batch_size
        where torch itself makes batches of what its sampler gives."""
        return Attachment(_varied(self._living(), options), keeps_alive=True)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._living())

    def close(self) -> None:
        """End workers that persist."""
        vars(self._living())["_iterator"] = None

    def _living(self) -> Any:
        loader = self._loader()
        if loader is None:
            raise UsageError("the DataLoader is gone", hint="keep it while it is looked at")
        return loader


def _info(loader: Any) -> LoaderInfo:
    stream = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    is_stream = isinstance(loader.dataset, stream)
    return LoaderInfo(
        kind=TORCH_LOADER,
        text=repr(loader),
        workers=loader.num_workers,
        batch_size=loader.batch_size,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=bool(loader.persistent_workers),
        is_stream=is_stream,
        # torch remembers who asks a stream for its length, and warns later.
        batches=None if is_stream else _length(loader),
    )


def _length(of: Any) -> int | None:
    """None where it is not known."""
    try:
        return len(of)
    except Exception:  # of a data set of the user's own: nothing fails for it
        return None


def _varied(loader: Any, options: dict[str, Any]) -> Any:
    data = sys.modules["torch.utils.data"]
    known = {"num_workers", "prefetch_factor", "pin_memory", "persistent_workers"}
    known |= {"batch_size"} if type(loader.batch_sampler) is data.BatchSampler else set()
    if unknown := set(options) - known:
        raise UsageError(f"this DataLoader has no option {', '.join(sorted(unknown))} that can be varied")
    made = copy.copy(loader)
    own = vars(made)
    own.update({"_iterator": None, **_own_order(loader), **options})
    if "batch_size" in options:
        own["batch_sampler"] = data.BatchSampler(made.sampler, options["batch_size"], made.drop_last)
    if made.num_workers:
        own["prefetch_factor"] = made.prefetch_factor or 2  # torch's own choice
        own["timeout"] = made.timeout or _PATIENCE_S
    return made


def _own_order(loader: Any) -> dict[str, Any]:
    """Samplers and the generator of their own, as they stand: a pass must not move those of the training."""
    memo: dict[int, Any] = {id(loader.dataset): loader.dataset}
    if (generator := loader.generator) is not None:
        memo[id(generator)] = type(generator)(device=generator.device).set_state(generator.get_state())
    samplers = {name: copy.deepcopy(getattr(loader, name), memo) for name in ("sampler", "batch_sampler")}
    return {**samplers, "generator": memo.get(id(generator))}


# What stands in for the data set, the collate_fn and the worker_init_fn, and times them


TOTAL, FETCH, COLLATE = "00_TOTAL_getitem", "fetch", "collate"


@contextmanager
def _working(number: int) -> Iterator[None]:
    """Counts what CPUs work inside in all threads of the process, for a data set may have some. Not nested."""
    began_ns, cpu_began_ns = perf_counter_ns(), process_time_ns()
    yield
    cpu_ns = process_time_ns() - cpu_began_ns
    count(FETCH_CPU, cpu_ns)
    if number:
        count(own_counter(FETCH_NS, number), perf_counter_ns() - began_ns)
        count(own_counter(FETCH_CPU, number), cpu_ns)


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


class _TimedSamples(_StandIn):
    """Stands in for the data set where samples are fetched."""

    def __getitem__(self, index: Any) -> Any:
        with _working(self._number):
            return self._one(index)

    def _one(self, index: Any) -> Any:
        with counted_sample(), span(TOTAL):
            if is_enabled():
                # A data set that has such a span around its sample itself enters the same one: it counts once.
                node = own_buffer().node
                node.kids.setdefault(TOTAL, node)
            return self.plain[index]

    def __getitems__(self, indices: Sequence[Any]) -> Any:
        with _working(self._number), span(FETCH):
            together = getattr(self.plain, "__getitems__", None)
            if not together:
                return [self._one(index) for index in indices]
            return _sampled(len(indices), lambda: together(indices))  # nobody knows how long each took

    def __iter__(self) -> Iterator[Any]:
        return _TimedStream(iter(self.plain), self._number)

    def __len__(self) -> int:
        return len(self.plain)


class _TimedStream(_StandIn):
    """Stands in for the iterator of a data set. What that raises is handed on, and does not end it."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with _working(self._number):
            return _sampled(1, lambda: next(self.plain))


class _TimedCollate(_StandIn):
    """Stands in for the collate_fn."""

    def __call__(self, samples: Any) -> Any:
        with _working(self._number), span(COLLATE):
            return self.plain(samples)


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
