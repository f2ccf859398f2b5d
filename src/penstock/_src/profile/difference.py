"""What happened between two snapshots of one run: the last seconds instead of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from penstock._src.profile.record.histogram import middle_ns, pairs_of
from penstock._src.profile.stats import Snapshot, SpanStats, StepStats, combine_spans


def between(before: Snapshot, after: Snapshot) -> Snapshot:
    """What happened from one snapshot to a later one of the same run: its spans and steps alone.

    Threads come and go, and a new one goes on with the sums of one that has ended: only what all of them did together
    can be told apart.
    """
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
    steps = replace(snapshot.steps, series=())
    return replace(snapshot, steps=steps, epochs=(), memory=(), machine={}, loaders=(), events=())


def _newer(before: Iterable[SpanStats], after: Iterable[SpanStats]) -> tuple[SpanStats, ...]:
    known = _by_place(before)
    found = [_less(new, known[place]) if place in known else new for place, new in _by_place(after).items()]
    return tuple(each for each in found if each.count > 0)


def _by_place(spans: Iterable[SpanStats]) -> dict[tuple[tuple[str, ...], str], SpanStats]:
    """Spans by parents and name, those of all threads as one."""
    grouped: dict[tuple[tuple[str, ...], str], list[SpanStats]] = {}
    for each in spans:
        grouped.setdefault((each.path, each.name), []).append(each)
    return {place: combine_spans(alike) for place, alike in grouped.items()}


def _less(after: SpanStats, before: SpanStats) -> SpanStats:
    counts = Counter(dict(after.histogram))
    counts.subtract(dict(before.histogram))
    pairs = pairs_of(counts)
    min_ns, max_ns = after.min_ns, after.max_ns
    if pairs:
        # The extremes of the time between are not known, but the buckets at its ends are: they bound the percentiles.
        low_ns, high_ns = (round(middle_ns(pairs[end][0])) for end in (0, -1))
        min_ns, max_ns = max(low_ns, min_ns), max(low_ns, min(high_ns, max_ns))
    return replace(
        after,
        count=after.count - before.count,
        total_ns=max(0, after.total_ns - before.total_ns),
        self_ns=max(0, after.self_ns - before.self_ns),
        min_ns=min_ns,
        max_ns=max_ns,
        histogram=pairs,
    )
