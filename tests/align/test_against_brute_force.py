"""Every policy, tolerance, offset, timeline and way of cutting, compared with an aligner that knows no tricks."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._src.align import Alignment, FixedTimeline, Timeline, TopicStream, TopicTimeline, align
from penstock.errors import AlignError
from tests.align.brute import BruteAlignment, BruteStream, Refused, brute_align

MS = 1_000_000
EPOCH = 1_700_000_000_000_000_000

REFUSALS = {
    "empty": "no messages|has a message",
    "rate": "rate is unknown",
    "fps": "is above the rate",
    "drop": "leaves none",
    "reject": "find no message",
    "nothing": "finds a message of every stream",
}


@st.composite
def times(draw: st.DrawFn) -> list[int]:
    """A stream as robots record it: a rate with jitter, a pause, duplicates, a few messages out of order."""
    span_ms = draw(st.sampled_from([400, 700, 1000]))
    period = draw(st.sampled_from([10, 20, 33_333_333 / MS, 50, 100])) * MS
    n = draw(st.sampled_from([0, 1, 2])) if draw(st.integers(0, 19)) == 0 else round(span_ms * MS / period)
    jitter = draw(st.sampled_from([0, 0, 1, MS, 8 * MS]))
    noise = draw(st.randoms(use_true_random=False))
    begin = EPOCH + draw(st.sampled_from([0, 0, 1, 5 * MS, 40 * MS, 120 * MS]))
    moments = [begin + round(i * period) + noise.randint(-jitter, jitter) for i in range(n)]
    if n > 3 and draw(st.booleans()):
        pause_at, pause = draw(st.integers(1, n - 1)), draw(st.sampled_from([30, 90, 170])) * MS
        moments = [time + (pause if i >= pause_at else 0) for i, time in enumerate(moments)]
    for _ in range(draw(st.sampled_from([0, 0, 1, 4])) if n > 2 else 0):
        one = draw(st.integers(1, n - 1))
        moments[one] = moments[one - 1]
    if n > 2 and draw(st.integers(0, 3)) == 0:
        one, other = draw(st.integers(0, n - 1)), draw(st.integers(0, n - 1))
        moments[one], moments[other] = moments[other], moments[one]
    return moments


@st.composite
def brute_streams(draw: st.DrawFn, count: int) -> list[BruteStream]:
    return [
        BruteStream(
            name=f"/s{i}",
            times=draw(times()),
            policy=draw(st.sampled_from(["nearest", "hold", "linear", "slerp"])),
            tolerance=draw(st.sampled_from([None, None, None, 0, 5 * MS, 20 * MS, 50 * MS])),
            offset=draw(st.sampled_from([0, 0, -1, 4 * MS, -25 * MS])),
            missing="reject" if draw(st.integers(0, 11)) == 0 else draw(st.sampled_from(["trim", "trim", "hold"])),
        )
        for i in range(count)
    ]


def drops() -> st.SearchStrategy[int]:
    return st.sampled_from([0, 0, 0, 1, 3])


def fast(streams: list[BruteStream], timeline: Timeline, sample_drop: int) -> Alignment:
    given_streams = [
        TopicStream(s.name, np.array(s.times, dtype=np.int64), s.policy, s.tolerance, s.offset, s.missing)  # type: ignore[arg-type]
        for s in streams
    ]
    return align(given_streams, timeline, sample_drop=sample_drop)


def compare(streams: list[BruteStream], timeline: Timeline, sample_drop: int) -> None:
    fixed = isinstance(timeline, FixedTimeline)
    try:
        expected = brute_align(
            streams,
            timeline=None if isinstance(timeline, FixedTimeline) else timeline.stream,
            stride=None if isinstance(timeline, FixedTimeline) else timeline.stride,
            fps=timeline.fps,
            sample_drop=sample_drop,
        )
    except Refused as refused:
        with pytest.raises(AlignError, match=REFUSALS[str(refused)]):
            fast(streams, timeline, sample_drop)
        return
    got = fast(streams, timeline, sample_drop)
    assert got.fps == expected.fps
    assert got.row_times_ns.tolist() == expected.times
    for stream in streams:
        same_picks(got, expected, stream)
        same_counts(got, expected, stream, is_timeline=not fixed and timeline.stream == stream.name)  # type: ignore[union-attr]
    report = got.report
    assert report.rows == len(expected.times)
    assert (report.trimmed_head, report.trimmed_tail) == (expected.trimmed_head, expected.trimmed_tail)
    assert report.lost == expected.lost
    assert dict(report.lost_by_cause) == expected.lost_by_cause
    assert report.timeline_rows == report.rows + report.trimmed_head + report.trimmed_tail + report.lost
    assert json.loads(json.dumps(report.to_json())) == report.to_json()


def same_picks(got: Alignment, expected: BruteAlignment, stream: BruteStream) -> None:
    pick, choices = got.picks[stream.name], expected.choices[stream.name]
    assert pick.left.tolist() == [choice.left for choice in choices]
    if stream.policy in ("linear", "slerp"):
        assert pick.right is not None and pick.weight is not None
        assert pick.right.tolist() == [choice.right for choice in choices]
        assert pick.weight.tolist() == [float(np.float32(float(choice.weight))) for choice in choices]
    else:
        assert pick.right is None and pick.weight is None


def same_counts(got: Alignment, expected: BruteAlignment, stream: BruteStream, *, is_timeline: bool) -> None:
    report, counts = got.report.streams[stream.name], expected.counts[stream.name]
    assert report.is_timeline == is_timeline
    assert report.messages == len(stream.times)
    assert (report.used, report.unused) == (counts.used, len(stream.times) - counts.used)
    assert (report.lost, report.held, report.repeats) == (counts.lost, counts.held, counts.repeats)
    assert (report.trimmed_head, report.trimmed_tail) == (counts.trimmed_head, counts.trimmed_tail)
    origin = got.report.origin_ns
    gaps = [((a - origin) / 1e9, (b - origin) / 1e9, rows) for a, b, rows in counts.gaps]
    assert [(gap.from_s, gap.to_s, gap.rows) for gap in report.gaps.listed] == gaps[:20]
    assert report.gaps.count == len(gaps)
    in_file_order = list(stream.times)
    assert report.out_of_order == sum(b < a for a, b in pairwise(in_file_order))
    assert report.duplicate_times == len(in_file_order) - len(set(in_file_order))
    n = len(counts.skews)
    for percent, value in ((50, report.skew_ms.p50), (95, report.skew_ms.p95), (99, report.skew_ms.p99)):
        at_least = [skew for skew in counts.skews if 100 * sum(s <= skew for s in counts.skews) >= percent * n]
        assert value == at_least[0] / 1e6
    assert report.skew_ms.max == counts.skews[-1] / 1e6
    assert report.skew_ms.mean == pytest.approx(sum(counts.skews) / n / 1e6)


thorough = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])


@thorough
@given(st.data(), brute_streams(3), st.sampled_from([None, 1, 2, 3]), st.sampled_from([None, None, 10, 30]))
def test_rows_of_a_topic_timeline_equal_brute_force(
    data: st.DataObject, streams: list[BruteStream], stride: int | None, fps: int | None
) -> None:
    compare(streams, TopicTimeline("/s0", stride=stride, fps=fps), data.draw(drops()))


@thorough
@given(st.data(), brute_streams(2), st.one_of(st.integers(4, 16), st.integers(1, 120)))
def test_a_target_fps_on_a_topic_timeline_equals_brute_force(
    data: st.DataObject, streams: list[BruteStream], fps: int
) -> None:
    compare(streams, TopicTimeline("/s0", fps=fps), data.draw(drops()))


@thorough
@given(st.data(), brute_streams(3), st.sampled_from([3, 7, 10, 30, 60]))
def test_rows_of_a_fixed_timeline_equal_brute_force(data: st.DataObject, streams: list[BruteStream], fps: int) -> None:
    compare(streams, FixedTimeline(fps), data.draw(drops()))


@thorough
@given(brute_streams(2))
def test_streams_that_hold_equal_brute_force(streams: list[BruteStream]) -> None:
    full = [BruteStream(s.name, s.times or [EPOCH], s.policy, s.tolerance, s.offset, "hold") for s in streams]
    compare(full, TopicTimeline("/s0", fps=20, stride=1), 0)
