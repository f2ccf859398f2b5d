"""What a verdict is about: whatever feeds the training step makes itself known here, can be measured and varied.

    register(loader)                 # penstock.Loader and profile.attach do it
    registered()                     # those that still live, the oldest first

A tunable yields batches and has `describe() -> LoaderInfo`, `variant(**options)` (the same batches in the same order,
with some options changed) and `close()`; one that can measure on some fifty rows has `calibrate(access_paths, threads)
-> dict[str, AccessPath]`, and one that tells of its passes (`LoaderPass`) has its number there as `serial`.

Only a weak reference is kept. The description of one that has ended is kept until the next reset: the run that
it fed can still be judged.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock._src.profile.loader_info import LoaderInfo
from penstock._src.profile.record.board import current_board
from penstock._src.profile.record.spans import is_enabled, share_board
from penstock._src.profile.record.steps import steps
from penstock.errors import UsageError

_MOST_ENDED = 32  # some code makes a new one for every epoch


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

    def to_dict(self) -> dict[str, Any]:
        by_threads = {str(threads): round(ms, 4) for threads, ms in self.ms_by_threads.items()}
        return {"images": self.images, "ms_by_threads": by_threads, "cpu_ms": round(self.cpu_ms, 4),
                "stored_bytes": round(self.stored_bytes)}  # fmt: skip


_lock = threading.Lock()
_registered: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []  # a tunable, and the loader that it speaks for
_ended: deque[tuple[int, Any]] = deque(maxlen=_MOST_ENDED)  # with the reset after which it was used


def register(loader: Any, tunable: Any = None) -> None:
    """Make a loader known to `snapshot()` and `verdict()`; it is forgotten when nobody holds it any more.

    `tunable` speaks for it where it does not do so itself.
    """
    speaker = loader if tunable is None else tunable
    share_board()  # its workers may start before anything is recorded
    with _lock:
        _registered[:] = [each for each in _living() if each[0]() is not speaker]
        _registered.append((weakref.ref(speaker), weakref.ref(loader)))


def unregister(tunable: Any, *, forget: bool = False) -> None:
    """Leave out one that still lives: it was closed. With `forget` (it was only tried out) without a trace."""
    with _lock:
        before = len(_living())
        _registered[:] = [each for each in _living() if each[0]() is not tunable]
        is_known = len(_registered) < before
    if is_known and not forget and is_enabled():
        try:
            remember(loader_info_of(tunable))
        except Exception:  # it is half closed: an end must not fail for it
            pass


def remember(ended: Any) -> None:
    """Keep one that has ended, or its info; called wherever something is freed: no lock here."""
    _ended.append((_reset_ns(), ended))


def _living() -> list[tuple[weakref.ref[Any], weakref.ref[Any]]]:
    return [each for each in _registered if each[0]() is not None and each[1]() is not None]


def _reset_ns() -> int:
    board = current_board()
    return 0 if board is None else board.reset_ns


def registered() -> list[Any]:
    """Those that are registered and live, in the order in which they came."""
    with _lock:
        return [tunable for each in _living() if (tunable := each[0]()) is not None]


def tunable_of(loader: Any) -> Any:
    """What speaks for a loader: itself, where it can."""
    with _lock:
        found = next((each[0]() for each in _living() if each[1]() is loader), None) or loader
    if not hasattr(found, "describe"):
        hint = "profile.attach(dataloader) before"
        raise UsageError(f"loader={type(loader).__name__}: it tells nothing of itself", hint=hint)
    return found


def loader_infos() -> list[LoaderInfo]:
    """Those of all loaders, first the ones that have ended since the last reset (`ended`) and were used.

    One that cannot tell any more is left out.
    """
    gone = _infos([each for reset_ns, each in list(_ended) if reset_ns == _reset_ns()])
    return [replace(each, ended=True) for each in gone if each.batches_handed] + _infos(registered())


def _infos(loaders: Sequence[Any]) -> list[LoaderInfo]:
    found = []
    for each in loaders:
        try:
            found.append(each if isinstance(each, LoaderInfo) else loader_info_of(each))
        except Exception:  # closed meanwhile: a snapshot must not fail for it
            continue
    return found


def loader_info_of(tunable: Any) -> LoaderInfo:
    """What a loader tells of itself, and what training steps took of it and waited for it."""
    found: LoaderInfo = tunable.describe()
    serial = getattr(tunable, "serial", None)
    if serial is None:
        return found
    use = steps().use_of(serial)
    is_companion = use.companion_wait_ns > 0
    return replace(found, step_batches=use.batches, steps_waited_ms=use.wait_ns / 1e6, is_companion=is_companion)
