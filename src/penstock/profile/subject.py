"""What a verdict is about: whatever feeds the training step makes itself known here, can be measured and varied.

    profile.register(loader)         # penstock.Loader does it itself
    subjects()                       # those that still live, the oldest first

Only a weak reference is kept.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from penstock.lazy import dataclass


@dataclass(frozen=True)
class Way:
    """One way by which a picture gets into a batch, measured on some rows of the user's own data."""

    name: str
    """"now" (read and decoded as it is), "scaled", "read" (the stored bytes alone), "ram", "disk", "gpu"."""
    pictures: int
    """That were measured, at each number of threads."""
    ms_by_threads: Mapping[int, float]
    """Threads at work at once → what one of them needs for one picture."""
    cpu_ms: float
    """Of a CPU, for one picture; the rest of the time it waits."""
    stored_bytes: float
    """Read for one picture."""

    def ms(self, threads: int) -> float:
        """What one of `threads` threads needs for a picture: as measured, or at the nearest number measured."""
        nearest = min(self.ms_by_threads, key=lambda each: (abs(each - threads), each))
        return self.ms_by_threads[nearest]

    def to_dict(self) -> dict[str, Any]:
        told = {str(threads): round(ms, 4) for threads, ms in self.ms_by_threads.items()}
        return {"pictures": self.pictures, "ms_by_threads": told, "cpu_ms": round(self.cpu_ms, 4),
                "stored_bytes": round(self.stored_bytes)}  # fmt: skip


@runtime_checkable
class Subject(Protocol):
    """Something that yields batches, says how it is set up, and can be made anew with other options."""

    def describe(self) -> dict[str, Any]:
        """JSON-safe: kind, threads, batch_size, pictures_per_batch, bytes, view, columns and the options asked for."""

    def calibrate(self, ways: Sequence[str], threads: Sequence[int]) -> dict[str, Way]:
        """Measure ways on some fifty rows, with each number of threads at once; ways that do not apply are left out."""

    def variant(self, **options: Any) -> Subject:
        """The same batches in the same order, with some options changed."""

    def __iter__(self) -> Iterator[Any]:
        """The batches of an epoch."""

    def close(self) -> None:
        """Give everything back."""


_lock = threading.Lock()
_registered: list[weakref.ref[Any]] = []


def register(subject: Any) -> None:
    """Make a subject known to `snapshot()` and `verdict()`; it is forgotten when nobody holds it any more."""
    with _lock:
        _registered[:] = _without(subject)
        _registered.append(weakref.ref(subject))


def unregister(subject: Any) -> None:
    """Forget a subject that still lives: it was closed, or only tried out."""
    with _lock:
        _registered[:] = _without(subject)


def _without(subject: Any) -> list[weakref.ref[Any]]:
    return [each for each in _registered if each() is not None and each() is not subject]


def subjects() -> list[Any]:
    """Those that are registered and live, in the order in which they came."""
    with _lock:
        return [found for each in _registered if (found := each()) is not None]


def descriptions() -> list[dict[str, Any]]:
    """What all subjects say of themselves; one that cannot tell any more is left out."""
    told = []
    for subject in subjects():
        try:
            told.append(dict(subject.describe()))
        except Exception:  # closed meanwhile: a snapshot must not fail for it
            continue
    return told
