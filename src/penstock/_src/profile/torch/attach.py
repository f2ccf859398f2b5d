"""`attach(dataloader)`: an ordinary torch DataLoader tells its data wait, and its workers what they spend time on.

    loader = penstock.profile.attach(DataLoader(dataset, batch_size=64, num_workers=4))
    for batch in loader: ...                      # as before

The loader stays the object that it was, and so do its data set and its collate_fn for everybody who looks at them:
what is timed are wrappers that only the workers' fetching sees.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from time import perf_counter_ns
from typing import Any

from penstock._src.profile.record.loader_pass import LoaderPass
from penstock._src.profile.record.registry import register, unregister
from penstock._src.profile.torch.attachment import Attachment
from penstock._src.profile.torch.wrappers import wrapped
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
