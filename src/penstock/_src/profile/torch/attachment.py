"""What speaks for an attached DataLoader: how it is set up, what it gave, and the same one varied."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from penstock._src.profile.loader_info import TORCH_LOADER, LoaderInfo
from penstock._src.profile.record.spans import is_enabled
from penstock._src.system.limits import read_memory_limit
from penstock.errors import UsageError

_PATIENCE_S = 60.0  # for a batch of workers that are only tried


class Attachment:
    """A DataLoader, while it lives and as it was; what its passes gave since the last reset, and how long each but the
    very first let wait."""

    def __init__(self, loader: Any) -> None:
        self._loader = weakref.ref(loader)
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

    def variant(self, **options: Any) -> Variant:
        """The same DataLoader with other num_workers, prefetch_factor, pin_memory, persistent_workers, or batch_size
        where torch itself makes batches of what its sampler gives."""
        return Variant(_varied(self._living(), options))

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


class Variant:
    """A DataLoader that was only made to be tried, and lives as long as this."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.loader
        except RuntimeError as error:
            if "DataLoader timed out" not in str(error):
                raise
            raise UsageError(
                f"no batch came from num_workers={self.loader.num_workers} within {self.loader.timeout:.0f} s: a data "
                "set that was used here may have threads or locks that a forked worker has not",
                hint="make such things in the worker, when the first sample is asked for",
            ) from error

    def close(self) -> None:
        """End workers that persist."""
        vars(self.loader)["_iterator"] = None


def _info(loader: Any) -> LoaderInfo:
    stream = getattr(sys.modules.get("torch.utils.data"), "IterableDataset", ())
    is_stream = isinstance(loader.dataset, stream)
    return LoaderInfo(
        kind=TORCH_LOADER,
        text=repr(loader),
        workers=loader.num_workers,
        batch_size=loader.batch_size,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=bool(loader.persistent_workers),
        dataset=type(loader.dataset).__name__,
        is_stream=is_stream,
        # torch remembers who asks a stream for its length, and warns later.
        samples=None if is_stream else _length(loader.dataset),
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
