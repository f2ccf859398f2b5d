"""The timeline: when the rows of an episode are, whatever they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.rate import NS_PER_S, Rate
from penstock._src.align.streams import TopicStream, in_time_order
from penstock.errors import AlignError

# How far rate/stride may be from the asked fps before single messages are chosen instead of every n-th.
_STRIDE_FIT = 0.05
# A fixed timeline with more rows than this per message means a clock jump, not a recording.
_ROWS_PER_MESSAGE = 64
_ROWS_ALWAYS_ALLOWED = 100_000


@dataclass(frozen=True)
class TopicTimeline:
    """One row per message of a stream (usually the main camera), every `stride`-th, or thinned to `fps`.

    With both, `stride` chooses the messages and `fps` is what the data set states.
    """

    stream: str
    stride: int | None = None
    fps: int | None = None


@dataclass(frozen=True)
class FixedTimeline:
    """Rows at a fixed rate from the first message of any stream to the last."""

    fps: int


Timeline = TopicTimeline | FixedTimeline


class TimelineRows(NamedTuple):
    """The rows that a timeline offers, before missing data takes some away."""

    times_ns: NDArray[np.int64]
    numbers: NDArray[np.int32] | None  # of the timeline stream's messages; None for a fixed timeline
    fps: int
    stride: int | None
    origin_ns: int  # the timeline's first instant: seconds in the report count from here
    gap_ns: int  # a longer step between two rows is a hole
    grain_ns: int  # what the first and the last row may be off their place in a perfect timeline
    sample_dropped: int

    @property
    def period_ns(self) -> int:
        return period_ns(self.fps)


def period_ns(fps: int) -> int:
    """The time between two rows, rounded to a nanosecond."""
    return (2 * NS_PER_S + fps) // (2 * fps)


def lay_out(streams: Sequence[TopicStream], timeline: Timeline, sample_drop: int) -> TimelineRows:
    """Compute the rows of `timeline`, `sample_drop` of its instants cut at both ends."""
    if isinstance(timeline, FixedTimeline):
        return _fixed_rows(streams, timeline.fps, sample_drop)
    main = next(stream for stream in streams if stream.name == timeline.stream)
    return _topic_rows(main, timeline, sample_drop)


def _cut_ends(n: int, sample_drop: int, what: str) -> slice:
    if n <= 2 * sample_drop:
        raise AlignError(
            f"{what} has {n:,} instants; sample_drop {sample_drop:,} at both ends leaves none",
            hint="lower sample_drop",
        )
    return slice(sample_drop, n - sample_drop)


# ── rows from a topic ────────────────────────────────────────────────────────────────────────────────────────────────


def _topic_rows(stream: TopicStream, timeline: TopicTimeline, sample_drop: int) -> TimelineRows:
    if not stream.times_ns.size:
        raise AlignError(
            f"the timeline {stream.name} has no messages", hint="choose another topic or a fixed fps as timeline"
        )
    ordered = in_time_order(stream.times_ns)
    inside = _cut_ends(ordered.times_ns.size, sample_drop, f"the timeline {stream.name}")
    rate = ordered.rate
    stride, fps = _stride_and_fps(timeline, None if rate is None else rate.hz, stream.name)
    times_ns = ordered.times_ns[inside]
    positions = _thinned(times_ns, fps) if stride is None else np.arange(0, times_ns.size, stride, dtype=np.intp)
    return TimelineRows(
        times_ns=times_ns[positions] + stream.offset_ns,
        numbers=ordered.numbers(positions + sample_drop),
        fps=fps,
        stride=stride,
        origin_ns=int(ordered.times_ns[0]) + stream.offset_ns,
        gap_ns=_gap_ns(fps, stride, ordered.rate),
        grain_ns=3 * period_ns(fps) // 2 + _pause_ns(stride, ordered.rate),
        sample_dropped=2 * sample_drop,
    )


def _gap_ns(fps: int, stride: int | None, rate: Rate | None) -> int:
    """1.5 times the step between two rows of a steady topic; scattered ones may be as far apart as messages are."""
    slowest_ns = 0 if rate is None or stride is None else stride * rate.period_ns
    pause_ns = _pause_ns(stride, rate)
    return 3 * (period_ns(fps) if pause_ns else max(period_ns(fps), slowest_ns)) // 2 + pause_ns


def _pause_ns(stride: int | None, rate: Rate | None) -> int:
    """How much longer a step may be for what lies between two messages; 0 of a steady topic.

    A thinned row may stand half a source interval off its grid point, on either side.
    """
    if rate is None or (stride is not None and rate.longest_ns == rate.period_ns):
        return 0
    return rate.longest_ns


def _stride_and_fps(timeline: TopicTimeline, rate_hz: float | None, name: str) -> tuple[int | None, int]:
    """The stride (None: messages nearest to a grid) and the rate that the data set states."""
    stride, fps = timeline.stride, timeline.fps
    if rate_hz is None:
        if fps is None:
            raise AlignError(
                f"the timeline {name} has no two messages at different times: its rate is unknown",
                hint="give fps, for example fps=30",
            )
        return stride or 1, fps
    if fps is None:
        stride = stride or 1
        return stride, max(1, round(rate_hz / stride))
    if stride is not None:
        return stride, fps
    stride = max(1, round(rate_hz / fps))
    if abs(rate_hz / stride - fps) <= _STRIDE_FIT * fps:
        return stride, fps
    if rate_hz < fps:
        raise AlignError(
            f"fps {fps} is above the rate of the timeline {name}, {rate_hz:.2f} Hz",
            hint=f"use fps {max(1, round(rate_hz))} or less, or a fixed timeline, which repeats messages",
        )
    return None, fps


def _thinned(times_ns: NDArray[np.int64], fps: int) -> NDArray[np.intp]:
    """Positions of the messages nearest to the grid first + k/fps (ties: the earlier), each once.

    A message is chosen when a grid point lies between its two midpoints; counting grid points below each midpoint
    needs no grid in memory, however far the clock jumps.
    """
    first_of_time = np.flatnonzero(np.diff(times_ns, prepend=times_ns[0] - 1))
    since_ns = (times_ns[first_of_time] - times_ns[0]).astype(np.uint64)  # the sum of two fits without a sign
    doubled_ns = 2 * since_ns  # twice the midpoint to the next message: a whole number
    doubled_ns[:-1] = since_ns[:-1] + since_ns[1:]
    whole, rest = np.divmod(doubled_ns, np.uint64(2 * NS_PER_S))
    grid_points = (whole * np.uint64(fps) + rest * np.uint64(fps) // np.uint64(2 * NS_PER_S)).astype(np.int64)
    return first_of_time[np.flatnonzero(np.diff(grid_points, prepend=-1))]


def real_fps(rows: TimelineRows) -> float | None:
    """Rows per second as the timeline has them, holes left out; None for a single row."""
    steps_ns = np.diff(rows.times_ns)
    steps_ns = steps_ns[steps_ns <= rows.gap_ns]
    total_ns = int(steps_ns.sum())
    return NS_PER_S * steps_ns.size / total_ns if total_ns else None


# ── rows at a fixed rate ─────────────────────────────────────────────────────────────────────────────────────────────


def _fixed_rows(streams: Sequence[TopicStream], fps: int, sample_drop: int) -> TimelineRows:
    filled = [stream for stream in streams if stream.times_ns.size]
    if not filled:
        raise AlignError(f"none of the {len(streams)} streams has a message", hint="penstock inspect lists the topics")
    first_ns = min(int(s.times_ns.min()) + s.offset_ns for s in filled)
    last_ns = max(int(s.times_ns.max()) + s.offset_ns for s in filled)
    count = (last_ns - first_ns) * fps // NS_PER_S + 1
    messages = max(s.times_ns.size for s in filled)
    allowed = _ROWS_ALWAYS_ALLOWED + _ROWS_PER_MESSAGE * messages
    if count > allowed:
        early = min(filled, key=lambda s: int(s.times_ns.min()) + s.offset_ns)
        late = max(filled, key=lambda s: int(s.times_ns.max()) + s.offset_ns)
        raise AlignError(
            f"a fixed timeline at {fps} fps would have {count:,} rows for at most {messages:,} messages in a stream: "
            f"{early.name} begins at {first_ns / NS_PER_S:.3f} s and {late.name} ends at {last_ns / NS_PER_S:.3f} s",
            hint="a clock jumps or a stamp is zero; try time: log",
        )
    inside = _cut_ends(count, sample_drop, f"the fixed timeline at {fps} fps")
    # Whole seconds and the rest apart: k · 10⁹ stays within 64 bits, and no error adds up.
    whole, rest = np.divmod(np.arange(inside.start, inside.stop, dtype=np.int64), fps)
    times_ns = first_ns + whole * NS_PER_S + rest * NS_PER_S // fps
    return TimelineRows(
        times_ns=times_ns,
        numbers=None,
        fps=fps,
        stride=None,
        origin_ns=first_ns,
        gap_ns=3 * period_ns(fps) // 2,
        grain_ns=3 * period_ns(fps) // 2,
        sample_dropped=2 * sample_drop,
    )
