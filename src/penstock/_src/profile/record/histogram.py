"""Durations and series in constant memory.

Durations have eight buckets per doubling, so that a percentile is within 4.5 % of the true one.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Generic, TypeVar

# From 1 ns to 2^48 ns (78 hours); what is longer goes into the last bucket, and its true size into `max_ns`.
PER_OCTAVE = 8
N_BUCKETS = 48 * PER_OCTAVE

T = TypeVar("T")
Pairs = tuple[tuple[int, int], ...]


def bucket_of(duration_ns: int) -> int:
    """The bucket of a duration: floor(8 · log2 ns)."""
    return min(N_BUCKETS - 1, int(math.log2(duration_ns) * PER_OCTAVE)) if duration_ns > 1 else 0


def middle_ns(bucket: int) -> float:
    """What a bucket stands for: its geometric middle."""
    return float(2.0 ** ((bucket + 0.5) / PER_OCTAVE))


def pairs_of(counts: Mapping[int, int]) -> Pairs:
    """Counts by bucket as ascending pairs, empty buckets left out."""
    return tuple(sorted((bucket, count) for bucket, count in counts.items() if count > 0))


@dataclass(frozen=True, kw_only=True)
class Durations:
    """Count, total, extremes and percentiles of durations; `histogram` is (bucket, count) pairs, ascending."""

    count: int
    total_ns: int
    min_ns: int
    max_ns: int
    histogram: Pairs = ()

    @property
    def mean_ns(self) -> float:
        return self.total_ns / self.count if self.count else 0.0

    @property
    def p50_ns(self) -> int:
        return self.percentile_ns(0.50)

    @property
    def p95_ns(self) -> int:
        return self.percentile_ns(0.95)

    @property
    def p99_ns(self) -> int:
        return self.percentile_ns(0.99)

    def percentile_ns(self, fraction: float) -> int:
        """The duration that `fraction` of all do not exceed (nearest rank)."""
        ends = list(accumulate(count for _, count in self.histogram))
        if not ends:
            return 0
        rank = max(1, math.ceil(fraction * ends[-1]))
        if rank == ends[-1]:
            return self.max_ns
        bucket = self.histogram[bisect_left(ends, rank)][0]
        return round(min(max(middle_ns(bucket), self.min_ns), self.max_ns))


class Histogram:
    """Durations that one process records."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.count = self.total_ns = self.min_ns = self.max_ns = 0

    def add(self, duration_ns: int) -> None:
        self._counts[bucket_of(duration_ns)] += 1
        self.min_ns = min(self.min_ns, duration_ns) if self.count else duration_ns
        self.max_ns = max(self.max_ns, duration_ns)
        self.count += 1
        self.total_ns += duration_ns

    def durations(self) -> Durations:
        pairs = pairs_of(self._counts)
        return Durations(
            count=self.count, total_ns=self.total_ns, min_ns=self.min_ns, max_ns=self.max_ns, histogram=pairs
        )


class Series(Generic[T]):
    """Points in constant memory: when full, neighbours are merged and every point stands for twice as many."""

    def __init__(self, most: int, merge: Callable[[Sequence[T]], T]) -> None:
        self._most, self._merge, self.per_point = most, merge, 1
        self._points: list[T] = []
        self._pending: list[T] = []

    def add(self, point: T) -> None:
        self._pending.append(point)
        if len(self._pending) == self.per_point:
            self._points.append(self._merge(self._pending))
            self._pending.clear()
        if len(self._points) >= self._most:
            self._points = [self._merge(self._points[i : i + 2]) for i in range(0, len(self._points), 2)]
            self.per_point *= 2

    @property
    def points(self) -> tuple[T, ...]:
        """All points, with what is not a whole point yet as the last."""
        pending = tuple(self._pending)  # another thread may add
        return (*self._points, *([self._merge(pending)] if pending else []))[-self._most :]
