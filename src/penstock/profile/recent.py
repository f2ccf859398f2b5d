"""What happened between two snapshots of one run: the last seconds instead of all of it."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.profile.histogram import merge_pairs, middle_ns, pairs_of
from penstock.profile.snapshot import Snapshot, SpanStats, StepStats, span_stats


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
    known, found = _keyed(before), []
    for key, new in _keyed(after).items():
        old = known.get(key)
        if old is None or old.count > new.count:  # a page of a new owner
            found.append(new)
        elif new.count > old.count:
            found.append(_difference(old, new))
    return tuple(found)


def _keyed(spans: Iterable[SpanStats]) -> dict[tuple[object, ...], SpanStats]:
    """Spans by thread, parents and name; threads that share a name are one."""
    found: dict[tuple[object, ...], SpanStats] = {}
    for each in spans:
        key = (each.process, each.thread, each.path, each.name)
        found[key] = _sum(found[key], each) if key in found else each
    return found


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
