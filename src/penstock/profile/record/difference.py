"""What happened between two snapshots of one run: the last seconds instead of all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from penstock.profile.record.histogram import merge_pairs, middle_ns, pairs_of
from penstock.profile.snapshot import Snapshot, SpanStats, StepStats, span_stats

_Stage = tuple[tuple[str, ...], str]
_Thread = tuple[int, str]


def between(before: Snapshot, after: Snapshot) -> Snapshot:
    """What happened from one snapshot to a later one of the same run: its spans and steps alone."""
    if after.start_ns != before.start_ns or after.process != before.process:
        return after  # it was reset in between: everything in it is new
    steps = StepStats(
        count=max(0, after.steps.count - before.steps.count),
        total_ns=max(0, after.steps.total_ns - before.steps.total_ns),
        wait_total_ns=max(0, after.steps.wait_total_ns - before.steps.wait_total_ns),
    )
    spans, gpu = _newer(before.spans, after.spans), _newer(before.gpu, after.gpu)
    return Snapshot(
        spans=spans, gpu=gpu, steps=steps, process=after.process, start_ns=before.taken_ns, taken_ns=after.taken_ns
    )


def sums(snapshot: Snapshot) -> Snapshot:
    """What `between` needs of a snapshot, without its series and events: small enough to keep several."""
    steps = snapshot.steps
    return Snapshot(
        spans=snapshot.spans,
        gpu=snapshot.gpu,
        steps=StepStats(count=steps.count, total_ns=steps.total_ns, wait_total_ns=steps.wait_total_ns),
        process=snapshot.process,
        start_ns=snapshot.start_ns,
        taken_ns=snapshot.taken_ns,
    )


def _newer(before: Iterable[SpanStats], after: Iterable[SpanStats]) -> tuple[SpanStats, ...]:
    known = _grouped(before)
    return tuple(
        each
        for key, new in _grouped(after).items()
        for each in (_stage(known[key], new) if key in known else new.values())
    )


def _grouped(spans: Iterable[SpanStats]) -> dict[_Stage, dict[_Thread, SpanStats]]:
    """Spans by parents and name, then by thread; threads that share a name are one."""
    found: dict[_Stage, dict[_Thread, SpanStats]] = {}
    for each in spans:
        threads = found.setdefault((each.path, each.name), {})
        key = each.process, each.thread
        threads[key] = _sum(threads[key], each) if key in threads else each
    return found


def _stage(old: dict[_Thread, SpanStats], new: dict[_Thread, SpanStats]) -> list[SpanStats]:
    """What came to a stage: thread by thread, or in all where a thread has the page, and the sums, of one before it."""
    if any(key not in new or not _is_within(each, new[key]) for key, each in old.items()):
        least, most = (reduce(_sum, each.values()) for each in (old, new))
        where = max(new.values(), key=lambda each: each.count)
        found = [replace(_difference(least, most), process=where.process, thread=where.thread)]
    else:
        found = [_difference(old[key], each) if key in old else each for key, each in new.items()]
    return [each for each in found if each.count > 0]


def _is_within(old: SpanStats, new: SpanStats) -> bool:
    counts = dict(new.histogram)
    return old.count <= new.count and all(counts.get(bucket, 0) >= count for bucket, count in old.histogram)


def _sum(one: SpanStats, other: SpanStats) -> SpanStats:
    return span_stats(
        one.name,
        merge_pairs((one.histogram, other.histogram)),
        path=one.path,
        process=one.process,
        thread=one.thread,
        count=one.count + other.count,
        total_ns=one.total_ns + other.total_ns,
        self_ns=one.self_ns + other.self_ns,
        min_ns=min(one.min_ns, other.min_ns),
        max_ns=max(one.max_ns, other.max_ns),
    )


def _difference(old: SpanStats, new: SpanStats) -> SpanStats:
    counts = dict(new.histogram)
    for bucket, count in old.histogram:
        counts[bucket] = counts.get(bucket, 0) - count
    pairs = pairs_of(counts)
    # The extremes of the time between are not known, but the buckets at its ends are: they bound the percentiles.
    low, high = (round(middle_ns(pairs[end][0])) for end in (0, -1)) if pairs else (new.min_ns, new.max_ns)
    return span_stats(
        new.name,
        pairs,
        path=new.path,
        process=new.process,
        thread=new.thread,
        count=new.count - old.count,
        total_ns=max(0, new.total_ns - old.total_ns),
        self_ns=max(0, new.self_ns - old.self_ns),
        min_ns=max(low, new.min_ns),
        max_ns=max(low, min(high, new.max_ns)),
    )
