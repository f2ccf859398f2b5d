"""What happened between two snapshots of one run: the last seconds instead of all of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from penstock._src.profile.record.histogram import middle_ns, pairs_of
from penstock._src.profile.stats import Snapshot, SpanStats, StepStats, span_stats


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


_Threads = dict[tuple[int, str], SpanStats]


def _newer(before: Iterable[SpanStats], after: Iterable[SpanStats]) -> tuple[SpanStats, ...]:
    known = _grouped(before)
    return tuple(each for key, new in _grouped(after).items() for each in _stage(known.get(key, {}), new))


def _grouped(spans: Iterable[SpanStats]) -> dict[tuple[tuple[str, ...], str], _Threads]:
    """Spans by parents and name, then by thread; threads that share a name are one."""
    found: dict[tuple[tuple[str, ...], str], _Threads] = {}
    for each in spans:
        threads = found.setdefault((each.path, each.name), {})
        key = each.process, each.thread
        threads[key] = _combined([threads[key], each]) if key in threads else each
    return found


def _stage(old: _Threads, new: _Threads) -> list[SpanStats]:
    """What came to a stage: thread by thread, or in all where a thread has the page, and the sums, of one before it."""
    if all(key in new and _is_within(each, new[key]) for key, each in old.items()):
        found = [_combined([each], [old[key]]) if key in old else each for key, each in new.items()]
    else:
        found = [_combined(sorted(new.values(), key=lambda each: -each.count), list(old.values()))]
    return [each for each in found if each.count > 0]


def _is_within(old: SpanStats, new: SpanStats) -> bool:
    counts = dict(new.histogram)
    return old.count <= new.count and all(counts.get(bucket, 0) >= count for bucket, count in old.histogram)


def _combined(spans: Sequence[SpanStats], less: Sequence[SpanStats] = ()) -> SpanStats:
    """Spans of one stage as one, where the first ran, less what others had."""
    counts: Counter[int] = Counter()
    for each in spans:
        counts.update(dict(each.histogram))
    for each in less:
        counts.subtract(dict(each.histogram))
    pairs = pairs_of(counts)
    min_ns, max_ns = min(each.min_ns for each in spans), max(each.max_ns for each in spans)
    if less and pairs:
        # The extremes of the time between are not known, but the buckets at its ends are: they bound the percentiles.
        low_ns, high_ns = (round(middle_ns(pairs[end][0])) for end in (0, -1))
        min_ns, max_ns = max(low_ns, min_ns), max(low_ns, min(high_ns, max_ns))
    first = spans[0]
    return span_stats(
        first.name,
        pairs,
        path=first.path,
        process=first.process,
        thread=first.thread,
        count=sum(each.count for each in spans) - sum(each.count for each in less),
        total_ns=max(0, sum(each.total_ns for each in spans) - sum(each.total_ns for each in less)),
        self_ns=max(0, sum(each.self_ns for each in spans) - sum(each.self_ns for each in less)),
        min_ns=min_ns,
        max_ns=max_ns,
    )
