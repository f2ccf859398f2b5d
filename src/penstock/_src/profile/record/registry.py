"""What a verdict is about: whatever feeds the training step makes itself known here, can be measured and varied.

A tunable yields batches and has `describe() -> LoaderInfo`, `variant(**options)` (the same batches in the same order,
with some options changed) and `close()`; one that can measure on some fifty rows has `calibrate(access_paths, threads)
-> dict[str, AccessPath]`.

A loader is held by a weak reference. What one that has ended said of itself is kept until the next reset: the run that
it fed can still be judged.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock._src.profile.record.spans import is_enabled, share_board
from penstock._src.profile.record.steps import steps
from penstock._src.profile.stats import LoaderInfo
from penstock.errors import UsageError

_MOST_KEPT = 32  # some code makes a new one for every epoch


@dataclass(frozen=True)
class AccessPath:
    """One way by which an image gets into a batch, measured on some rows of the user's own data."""

    name: str
    """"now" (read and decoded as it is), "scaled", "read" (the stored bytes alone), "ram", "disk", "gpu"."""
    images: int
    """That were measured, at each number of threads."""
    ms_by_threads: Mapping[int, float]
    """Threads at work at once → what one of them needs for one image."""
    cpu_ms: float
    """Of a CPU, for one image; the rest of the time it waits."""
    stored_bytes: float
    """Read for one image."""

    def ms(self, threads: int) -> float:
        """What one of `threads` threads needs for an image: as measured, or at the nearest number measured."""
        return self.ms_by_threads[min(self.ms_by_threads, key=lambda each: (abs(each - threads), each))]


@dataclass
class _RegisteredLoader:
    """A loader, and what speaks for it: itself, or a tunable that outlives it."""

    loader: weakref.ref[Any]
    number: int
    tunable: Any = None
    last_info: LoaderInfo | None = None
    """Of one that was closed."""

    @property
    def living(self) -> Any:
        """What speaks for the loader while it is in use."""
        loader = self.loader()
        return None if loader is None or self.last_info is not None else self.tunable or loader

    def info(self) -> LoaderInfo | None:
        """What it says of itself; None of one that cannot tell any more."""
        ended, living = self.last_info, self.living or self.tunable
        if ended is None and living is not None:
            ended = replace(living.describe(), step_batches=steps().batches_of(self.number))
        if self.living is not None or ended is None:
            return ended
        return replace(ended, ended=True) if ended.batches_handed else None


_entries: deque[_RegisteredLoader] = deque(maxlen=_MOST_KEPT)


def register(loader: Any, tunable: Any = None) -> None:
    """Make a loader known to `snapshot()` and `verdict()`; `tunable` speaks for it where it does not do so itself."""
    share_board()  # its workers may start before anything is recorded
    unregister(loader, forget=True)
    _entries.append(_RegisteredLoader(weakref.ref(loader), id(loader), tunable))


def unregister(loader: Any, *, forget: bool = False) -> None:
    """A loader was closed: what it says of itself now is kept; with `forget` (it was only tried out) nothing is."""
    entry = _entry_of(loader)
    if entry is None:
        return
    if forget or not is_enabled():
        _entries.remove(entry)
    elif entry.last_info is None:
        entry.last_info = entry.info()


def begin_anew() -> None:
    """The record was reset: those that have ended are no part of it, and others count from here."""
    for each in list(_entries):
        if each.living is None:
            _entries.remove(each)
        elif each.tunable is not None:
            each.tunable.begin_anew()


def _entry_of(loader: Any) -> _RegisteredLoader | None:
    return next((each for each in _entries if each.loader() is loader or each.tunable is loader), None)


def registered() -> list[Any]:
    """Those that are registered and live, in the order in which they came."""
    return [each.living for each in list(_entries) if each.living is not None]


def tunable_of(loader: Any) -> Any:
    """What speaks for a loader: itself, where it can."""
    entry = _entry_of(loader)
    found = (entry and entry.tunable) or loader
    if not hasattr(found, "describe"):
        hint = "profile.attach(dataloader) before"
        raise UsageError(f"loader={type(loader).__name__}: it tells nothing of itself", hint=hint)
    return found


def loader_infos() -> list[LoaderInfo]:
    """Those of all loaders, also of such as have ended since the last reset and were used (`ended`)."""
    return [info for each in list(_entries) if (info := each.info()) is not None]


def loader_info_of(tunable: Any) -> LoaderInfo:
    """What a loader tells of itself, and how many batches of it training steps took."""
    entry = _entry_of(tunable)
    info: LoaderInfo = (entry and entry.info()) or tunable.describe()
    return info
