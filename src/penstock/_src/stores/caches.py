"""Bounded caches of what is costly to open: descriptors, indexes, decoders; for threads and across forks."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from penstock._src.profile.record.spans import span
from penstock._src.system.closing import Closing
from penstock._src.system.files import ByteSource, Prefetch, ReadErrors, open_source
from penstock.errors import StoreCorrupt, StoreError

FILE_CACHE = "01_file_cache"
"""The stage of a profile in which something is opened that was not held."""

V = TypeVar("V")


_alive: weakref.WeakSet[Lru[Any] | Pool[Any]] = weakref.WeakSet()


def _in_child() -> None:
    for each in list(_alive):
        each.after_fork()


os.register_at_fork(after_in_child=_in_child)


ERRORS = ReadErrors(StoreError, StoreCorrupt)


def open_file(path: str) -> ByteSource:
    """A file open for reading at any place by any thread; closed with the last reference."""
    with span(FILE_CACHE):
        return open_source(path, ERRORS)


class _Together(Prefetch):
    def __init__(self, parts: Sequence[Prefetch]) -> None:
        self._parts = parts

    def close(self) -> None:
        for part in self._parts:
            part.close()


def prefetch_all(asked: Sequence[tuple[ByteSource, Sequence[tuple[int, int]]]]) -> Prefetch:
    """Ranges of several files, asked for ahead."""
    return _Together([source.prefetch(ranges) for source, ranges in asked])


def content_sample(path: str | os.PathLike[str], n_bytes: int) -> bytes:
    """A few KiB of a file that has this size, for the fingerprint of a store."""
    with open_source(path) as source:
        return source.sample(n_bytes)


class Lru(Generic[V]):
    """Values by key, the most lately used ones: together at most `limit` of what `cost` says (but always one).

    A value may be in use when it is dropped from here, so it must take care of itself, as an open file does.
    """

    def __init__(self, limit: int, cost: Callable[[V], int] = lambda _: 1) -> None:
        self._limit = limit
        self._cost = cost
        self._held: OrderedDict[Hashable, V] = OrderedDict()
        self.total = 0  # what the values cost together
        self._lock = threading.Lock()
        _alive.add(self)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key; where there is none, `make` is called (by two threads, if both come first)."""
        with self._lock:
            value = self._held.get(key)
            if value is not None:
                self._held.move_to_end(key)
                return value
        made = make()
        with self._lock:
            value = self._held.get(key)
            if value is not None:
                return value
            self._held[key] = made
            self.total += self._cost(made)
            while self.total > self._limit and len(self._held) > 1:
                _, dropped = self._held.popitem(last=False)
                self.total -= self._cost(dropped)
        return made

    def __len__(self) -> int:
        return len(self._held)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()
            self.total = 0

    def after_fork(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held the old one


R = TypeVar("R", bound=Closing)


class Pool(Generic[R]):
    """Readers between two uses, each of which one thread takes, reads with and gives back.

    A reader stands somewhere in a file: going on from there is cheap, going elsewhere is not.

    There are never more than were in use at the same time, but at least `fewest`.
    """

    def __init__(self, fewest: int = 2) -> None:
        self._fewest = fewest
        self._idle: list[R] = []
        self._in_use: list[R] = []
        self._peak = 0
        self._closed = False
        self._lock = threading.Lock()
        _alive.add(self)

    def take(self, distance: Callable[[R], float | None], make: Callable[[], R]) -> R:
        """The idle reader with the smallest distance; where all are None, a new one."""
        dropped: R | None = None
        with self._lock:
            best, least = None, float("inf")
            for reader in self._idle:
                away = distance(reader)
                if away is not None and away < least:
                    best, least = reader, away
            if best is not None:
                self._idle.remove(best)
                self._use(best)
                return best
            if self._idle and len(self._idle) + len(self._in_use) >= self._most:
                dropped = self._idle.pop(0)
        if dropped is not None:
            dropped.close()
        made = make()
        with self._lock:
            self._use(made)
        return made

    def give(self, reader: R, *, whole: bool = True) -> None:
        """Return it after use; not `whole`: something failed, and it is not used again."""
        with self._lock:
            if reader not in self._in_use:  # taken before a fork or before the pool was closed
                return
            self._in_use.remove(reader)
            if whole and not self._closed and len(self._idle) + len(self._in_use) < self._most:
                self._idle.append(reader)
                return
        reader.close()

    @property
    def n_open(self) -> int:
        return len(self._idle) + len(self._in_use)

    @property
    def _most(self) -> int:
        return max(self._fewest, self._peak)

    def _use(self, reader: R) -> None:
        self._in_use.append(reader)
        self._peak = max(self._peak, len(self._in_use))

    def close(self) -> None:
        """Close the idle ones; those in use follow when they are given back."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for reader in idle:
            reader.close()

    def after_fork(self) -> None:
        """A decoder of the parent must not be used here, nor closed: that would wait for threads that are not here."""
        self._lock = threading.Lock()
        for reader in (*self._idle, *self._in_use):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(reader))
        self._idle, self._in_use, self._peak = [], [], 0
