"""What a verdict is about: whatever feeds the training step makes itself known here, can be measured and varied.

    profile.register(loader)         # penstock.Loader does it itself
    registered()                       # those that still live, the oldest first

Only a weak reference is kept. What one that has ended said of itself is remembered until the next reset: the run that
it fed can still be judged.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from penstock.errors import UsageError
from penstock.profile.loader_info import LoaderInfo
from penstock.profile.record.board import current_board
from penstock.profile.record.spans import is_enabled, share_board
from penstock.profile.record.steps import steps
from penstock.profile.schema import encode


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
        nearest = min(self.ms_by_threads, key=lambda each: (abs(each - threads), each))
        return self.ms_by_threads[nearest]

    def to_dict(self) -> dict[str, Any]:
        told = {str(threads): round(ms, 4) for threads, ms in self.ms_by_threads.items()}
        return {"pictures": self.images, "ms_by_threads": told, "cpu_ms": round(self.cpu_ms, 4),
                "stored_bytes": round(self.stored_bytes)}  # fmt: skip


@runtime_checkable
class Tunable(Protocol):
    """Something that yields batches, says how it is set up, and can be made anew with other options.

    One that tells of its passes (`LoaderPass`) has its number there as `serial`.
    """

    def describe(self) -> LoaderInfo | Mapping[str, Any]:
        """How it is set up and what it gave; a table of its own has the names of the file (RUN.json)."""

    def calibrate(self, ways: Sequence[str], threads: Sequence[int]) -> dict[str, AccessPath]:
        """Measure ways on some fifty rows, with each number of threads at once; ways that do not apply are left out."""

    def variant(self, **options: Any) -> Tunable:
        """The same batches in the same order, with some options changed."""

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch."""

    def close(self) -> None:
        """Give everything back."""


_MOST_ENDED = 32  # some code makes a new one for every epoch

_lock = threading.Lock()
_registered: list[_Entry] = []
_ended: deque[Any] = deque(maxlen=_MOST_ENDED)


class _Entry:
    """A subject, and what it speaks for where that is another object."""

    def __init__(self, subject: Any, of: Any) -> None:
        self._subject = weakref.ref(subject)
        self._of = None if of is None else weakref.ref(of)

    def subject(self) -> Any:
        """None once it, or what it speaks for, is gone."""
        return None if self._of is not None and self._of() is None else self._subject()

    def is_of(self, thing: Any) -> bool:
        return self._of is not None and self._of() is thing


class _Ended:
    """The description of a subject when it ended; an empty one after a reset."""

    def __init__(self, description: LoaderInfo) -> None:
        self._description, self._reset_ns = description, _reset_ns()

    def describe(self) -> LoaderInfo:
        return self._description if self._reset_ns == _reset_ns() else LoaderInfo()


def _reset_ns() -> int:
    board = current_board()
    return 0 if board is None else board.reset_ns


def register(subject: Any, of: Any = None) -> None:
    """Make a subject known to `snapshot()` and `verdict()`; it is forgotten when nobody holds it any more.

    `of`: what it speaks for, and what users hold.
    """
    share_board()  # its workers may start before anything is recorded
    with _lock:
        _registered[:] = _without(subject)
        _registered.append(_Entry(subject, of))


def unregister(subject: Any, *, forget: bool = False) -> None:
    """Leave out a subject that still lives: it was closed. With `forget` (it was only tried out) without a trace."""
    with _lock:
        is_known = any(each.subject() is subject for each in _registered)
        _registered[:] = _without(subject)
    if is_known and not forget and is_enabled():
        try:
            keep(_Ended(loader_info_of(subject)))
        except Exception:  # it is half closed: an end must not fail for it
            pass


def keep(ended: Any) -> None:
    """Remember one that has ended by what its `describe()` says; called wherever something is freed: no lock here."""
    _ended.append(ended)


def _without(subject: Any) -> list[_Entry]:
    return [each for each in _registered if each.subject() is not None and each.subject() is not subject]


def registered() -> list[Any]:
    """Those that are registered and live, in the order in which they came."""
    with _lock:
        return [found for each in _registered if (found := each.subject()) is not None]


def tunable_of(thing: Any) -> Any:
    """The subject that speaks for an object: itself, where it can."""
    with _lock:
        found = next((each.subject() for each in _registered if each.is_of(thing)), None) or thing
    if not hasattr(found, "describe"):
        raise UsageError(
            f"loader={type(thing).__name__}: it tells nothing of itself", hint="profile.attach(dataloader) before"
        )
    return found


def loader_infos() -> list[LoaderInfo]:
    """Those of all subjects, first the ones that have ended since the last reset (`ended`) and were used.

    One that cannot tell any more is left out.
    """
    gone = [replace(each, ended=True) for each in _described(list(_ended)) if each.batches_handed]
    return gone + _described(registered())


def loader_info_of(subject: Any) -> LoaderInfo:
    """What a subject tells of itself, and what training steps took of it and waited for it."""
    found = subject.describe()
    if not isinstance(found, LoaderInfo):
        found = LoaderInfo.from_json(encode(found), f"{type(subject).__name__}.describe()")
    serial = getattr(subject, "serial", None)
    if serial is None:
        return found
    use = steps().use_of(serial)
    is_companion = use.companion_wait_ns > 0
    return replace(found, step_batches=use.batches, steps_waited_ms=use.wait_ns / 1e6, is_companion=is_companion)


def _described(those: Sequence[Any]) -> list[LoaderInfo]:
    found = []
    for subject in those:
        try:
            found.append(loader_info_of(subject))
        except Exception:  # closed meanwhile: a snapshot must not fail for it
            continue
    return found
