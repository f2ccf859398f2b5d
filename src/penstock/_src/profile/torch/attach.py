"""`attach(dataloader)`: an ordinary torch DataLoader tells its data wait, and its workers what they spend time on.

    loader = penstock.profile.attach(DataLoader(dataset, batch_size=64, num_workers=4))
    for batch in loader: ...                      # as before

The loader stays the object that it was, and so do its data set and its collate_fn for everybody who looks at them:
what is timed are wrappers that only the workers' fetching sees.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from time import perf_counter_ns
from typing import Any

from penstock._src.profile.record.registry import register, unregister
from penstock._src.profile.record.spans import is_enabled
from penstock._src.profile.record.steps import LoaderPass
from penstock._src.profile.stats import TORCH_LOADER, LoaderInfo
from penstock._src.profile.torch.wrappers import wrapped
from penstock._src.system.limits import read_memory_limit
from penstock.errors import UsageError

_KEY = "_penstock_attachment"
_classes: dict[type, type] = {}


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
            with wrapped(self.__dict__):
                return super()._get_iterator()

        def __reduce_ex__(self, protocol: Any) -> Any:  # a copy is an ordinary one
            return base.__new__, (base,), {name: each for name, each in vars(self).items() if name != _KEY}

    Attached.__name__, Attached.__qualname__, Attached.__module__ = plain.__name__, plain.__qualname__, plain.__module__
    _classes[plain] = Attached
    return Attached


class _TimedPass:
    """The iterator of a pass, whose `next` is the data wait and begins a step."""

    def __init__(self, inner: Any, loader: Any, is_start: bool) -> None:
        self._inner, self._attachment, self._is_start = inner, vars(loader)[_KEY], is_start
        self._loader_pass = LoaderPass(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start_ns = self._loader_pass.ask()
        try:
            found = next(self._inner)
        except BaseException:
            self._loader_pass.take(start_ns, False)
            raise
        self._loader_pass.take(start_ns, True)
        self._attachment.add(perf_counter_ns() - start_ns, self._is_start)
        self._is_start = False
        return found

    def __len__(self) -> int:
        return len(self._inner)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_inner":
            raise AttributeError(name)
        return getattr(self._inner, name)


# What speaks for an attached DataLoader


_PATIENCE_S = 60.0  # for a batch of workers that are only tried


class Attachment:
    """A DataLoader, while it lives and as it was; what its passes gave since the last reset, and how long each but the
    very first let wait."""

    def __init__(self, loader: Any, *, keeps_alive: bool = False) -> None:
        self._loader: Callable[[], Any] = (lambda: loader) if keeps_alive else weakref.ref(loader)
        self._info = LoaderInfo(kind=TORCH_LOADER)
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

    def add(self, wait_ns: int, is_start: bool) -> None:
        """A batch came."""
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
