"""Durations in constant memory: eight buckets per doubling, so that a percentile is within 4.5 % of the true one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

# From 1 ns to 2^48 ns (78 hours); what is longer goes into the last bucket, and its true size into `max_ns`.
PER_OCTAVE = 8
N_BUCKETS = 48 * PER_OCTAVE

Pairs = tuple[tuple[int, int], ...]


def bucket_of(duration_ns: int) -> int:
    """The bucket of a duration: floor(8 · log2 ns)."""
    return min(N_BUCKETS - 1, int(math.log2(duration_ns) * PER_OCTAVE)) if duration_ns > 1 else 0


def middle_ns(bucket: int) -> float:
    """What a bucket stands for: its geometric middle."""
    return float(2.0 ** ((bucket + 0.5) / PER_OCTAVE))


def percentile_ns(pairs: Pairs, fraction: float, min_ns: int, max_ns: int) -> int:
    """The duration that `fraction` of all do not exceed (nearest rank); `pairs` are (bucket, count), ascending."""
    total = sum(count for _, count in pairs)
    if total == 0:
        return 0
    rank = max(1, math.ceil(fraction * total))
    if rank == total:
        return max_ns
    below = 0
    for bucket, count in pairs:
        below += count
        if below >= rank:
            return round(min(max(middle_ns(bucket), min_ns), max_ns))
    return max_ns


def merge_pairs(many: Iterable[Pairs]) -> Pairs:
    """Several histograms as one."""
    merged: dict[int, int] = {}
    for pairs in many:
        for bucket, count in pairs:
            merged[bucket] = merged.get(bucket, 0) + count
    return pairs_of(merged)


def pairs_of(counts: Mapping[int, int]) -> Pairs:
    """Counts by bucket as ascending pairs, empty buckets left out."""
    return tuple(sorted((bucket, count) for bucket, count in counts.items() if count > 0))


class Histogram:
    """Count, total, extremes and percentiles of durations that one process records."""

    __slots__ = ("_counts", "count", "max_ns", "min_ns", "total_ns")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = self.total_ns = self.min_ns = self.max_ns = 0

    def add(self, duration_ns: int) -> None:
        """Record one duration."""
        bucket = bucket_of(duration_ns)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.min_ns = min(self.min_ns, duration_ns) if self.count else duration_ns
        self.max_ns = max(self.max_ns, duration_ns)
        self.count += 1
        self.total_ns += duration_ns

    @property
    def pairs(self) -> Pairs:
        """(bucket, count), ascending."""
        return pairs_of(self._counts)

    def percentile_ns(self, fraction: float) -> int:
        """The duration that `fraction` of all do not exceed."""
        return percentile_ns(self.pairs, fraction, self.min_ns, self.max_ns)
