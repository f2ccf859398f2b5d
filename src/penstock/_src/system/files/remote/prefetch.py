"""Ranges that will be read soon are asked for ahead, many at once, and bounded in bytes.

    ahead = source.prefetch([(4096, 81_920), (1 << 20, 90_112)])
    source.read_into(target, 4096)        # waits for the request that is under way
    ahead.close()                         # what nobody read is dropped

Requests begin in the order in which they were asked for, as long as all that is under way or not yet read stays below
the limit. A read whose request has not begun makes it by itself, so nobody waits for bytes that others hold.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock._src.system.files.remote.requests import Cancelled, Pending, RequestPool, pool
from penstock._src.system.files.source import Prefetch

GAP_BYTES = 32 << 10
"""Two ranges no farther apart than this are one request: so many bytes take less time than a request."""
MOST_BYTES = 8 << 20
"""No request is larger: it would end at the time limit, and others could not overtake it."""
PREFETCH_BYTES = 32 << 20
"""What all ranges that are under way or not yet read may take in a process that sets nothing else."""

Range = tuple[int, int]  # offset, number of bytes
Read = Callable[[int, int], memoryview]  # begin, end


@dataclass
class MergedRange:
    """Ranges that one request brings."""

    begin: int
    end: int
    wanted_bytes: int
    """Without the gaps between the ranges."""

    @property
    def n_bytes(self) -> int:
        return self.end - self.begin


def merge_ranges(ranges: Sequence[Range]) -> list[MergedRange]:
    """Neighbours together, in the order of the file."""
    merged: list[MergedRange] = []
    for offset, n_bytes in sorted(ranges):
        if n_bytes <= 0:
            continue
        last = merged[-1] if merged else None
        end = offset + n_bytes
        if last is not None and offset - last.end <= GAP_BYTES and max(end, last.end) - last.begin <= MOST_BYTES:
            last.end = max(last.end, end)
            last.wanted_bytes += n_bytes
        else:
            merged.append(MergedRange(offset, end, n_bytes))
    return merged


_MOST_NUMBER = 1 << 62  # larger than that of any entry
_NEAR = 12  # entries before a place that may cover it: those of other batches lie between


@dataclass(eq=False)
class _PrefetchRequest:
    """One request ahead."""

    table: RangeTable
    read: Read
    span: MergedRange
    left_bytes: int
    number: int = 0
    future: Pending[memoryview] | None = None
    is_dropped: bool = field(default=False)


class RangeTable:
    """The requests ahead of one file, by offset."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int, _PrefetchRequest]] = []
        """Begin, a number that no two have, entry: the first two decide the order, and no entries are compared."""

    def find(self, begin: int, end: int) -> _PrefetchRequest | None:
        """The request that covers a range, rather one that has begun: two batches may want the same rows."""
        place = bisect_right(self.entries, (begin, _MOST_NUMBER))
        waiting = None
        for _, _, entry in self.entries[max(0, place - _NEAR) : place]:
            if entry.span.begin <= begin and end <= entry.span.end:
                if entry.future is not None:
                    return entry
                waiting = waiting or entry
        return waiting


_tables: weakref.WeakValueDictionary[Hashable, RangeTable] = weakref.WeakValueDictionary()


def table_of(version: Hashable) -> RangeTable:
    """The requests ahead of a version of a file: whoever opened it asks for ranges that others read."""
    with _tables_lock:
        found = _tables.get(version)
        if found is None:
            found = _tables[version] = RangeTable()
        return found


_tables_lock = threading.Lock()


class Prefetcher:
    """All requests ahead of a process."""

    def __init__(self, limit_bytes: int = PREFETCH_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = self.peak_bytes = 0
        self._queue: deque[_PrefetchRequest] = deque()
        self._number = 0
        self.forgotten: deque[Sequence[_PrefetchRequest]] = deque()
        self._lock = threading.Lock()
        self._pool: RequestPool | None = None

    def add(self, table: RangeTable, ranges: Sequence[Range], read: Read) -> list[_PrefetchRequest]:
        made = []
        while self.forgotten:
            self.drop(self.forgotten.popleft())
        with self._lock:
            for span in merge_ranges(ranges):
                entry = _PrefetchRequest(table, read, span, span.wanted_bytes)
                self._number += 1
                entry.number = self._number
                insort(table.entries, (span.begin, self._number, entry))
                self._queue.append(entry)
                made.append(entry)
            self._pool = pool()  # not for each request: it looks into the environment
            self._begin_more()
        return made

    def take(self, table: RangeTable, target: memoryview, offset: int) -> bool:
        """Fill the target from a request ahead; False where none covers it, or where it has not begun."""
        end = offset + len(target)
        with self._lock:
            entry = table.find(offset, end)
            if entry is None:
                return False
            future = entry.future
            if future is None:
                self._used(entry, len(target))
                return False
        try:
            data = future.result()
        except Cancelled:
            return False
        except BaseException:
            with self._lock:
                self._drop(entry)
            raise
        start = offset - entry.span.begin
        target[:] = data[start : start + len(target)]
        with self._lock:
            self._used(entry, len(target))
        return True

    def _used(self, entry: _PrefetchRequest, n_bytes: int) -> None:
        entry.left_bytes -= n_bytes
        if entry.left_bytes <= 0:
            self._drop(entry)

    def ahead_of(self, table: RangeTable, offset: int) -> int:
        """How many bytes from an offset on a request that has begun brings."""
        with self._lock:
            entry = table.find(offset, offset + 1)
            return 0 if entry is None or entry.future is None else entry.span.end - offset

    def drop(self, entries: Sequence[_PrefetchRequest]) -> None:
        with self._lock:
            for entry in entries:
                self._drop(entry)

    def _drop(self, entry: _PrefetchRequest) -> None:
        if entry.is_dropped:
            return
        entry.is_dropped = True
        del entry.table.entries[bisect_left(entry.table.entries, (entry.span.begin, entry.number))]
        if entry.future is not None:
            entry.future.cancel()
            entry.future = None
            self.held_bytes -= entry.span.n_bytes
            self._begin_more()

    def _begin_more(self) -> None:
        while self._queue and self._pool is not None:
            entry = self._queue[0]
            if not entry.is_dropped:
                if self.held_bytes and self.held_bytes + entry.span.n_bytes > self.limit_bytes:
                    return
                self.held_bytes += entry.span.n_bytes
                self.peak_bytes = max(self.peak_bytes, self.held_bytes)
                entry.future = self._pool.submit(partial(entry.read, entry.span.begin, entry.span.end))
            self._queue.popleft()


class Prefetched(Prefetch):
    """Ranges that were asked for ahead; closing drops what was not read."""

    def __init__(self, entries: Sequence[_PrefetchRequest]) -> None:
        self._entries = entries

    def close(self) -> None:
        entries, self._entries = self._entries, ()
        if entries:
            prefetcher().drop(entries)

    def __del__(self) -> None:
        if self._entries:  # forgotten; garbage is collected at any moment, also while the lock is held
            _prefetcher.forgotten.append(self._entries)


_prefetcher = Prefetcher()


def prefetcher() -> Prefetcher:
    return _prefetcher


def _in_child() -> None:
    global _prefetcher, _tables_lock
    _prefetcher, _tables_lock = Prefetcher(), threading.Lock()
    _tables.clear()


os.register_at_fork(after_in_child=_in_child)
