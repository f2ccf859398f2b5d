"""A brute-force aligner: docs/how-it-works/alignment.md in plain Python, O(rows · messages), slow.

It shares no code with penstock. Times are ints in nanoseconds, ratios are Fractions, so nothing is rounded on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

SECOND = 1_000_000_000


class Refused(Exception):
    """The aligner has to refuse; the text is one of: empty, rate, fps, drop, reject, nothing."""


@dataclass(frozen=True)
class BruteStream:
    name: str
    times: Sequence[int]
    policy: str = "nearest"
    tolerance: int | None = None
    offset: int = 0
    missing: str = "trim"


@dataclass(frozen=True)
class Choice:
    """What one row takes from one stream: two message numbers (one and the same if it suffices), weight of `right`."""

    left: int
    right: int
    weight: Fraction
    held: bool = False


@dataclass
class BruteCounts:
    trimmed_head: int = 0
    trimmed_tail: int = 0
    lost: int = 0
    held: int = 0
    used: int = 0
    repeats: int = 0
    gaps: list[tuple[int, int, int]] = field(default_factory=list)  # first row time, last row time, rows
    skews: list[int] = field(default_factory=list)


@dataclass
class BruteAlignment:
    fps: int
    times: list[int]
    choices: dict[str, list[Choice]]
    counts: dict[str, BruteCounts]
    trimmed_head: int
    trimmed_tail: int
    lost: int
    lost_by_cause: dict[str, int]


def brute_align(
    streams: Sequence[BruteStream],
    *,
    timeline: str | None,
    stride: int | None = None,
    fps: int | None = None,
    sample_drop: int = 0,
) -> BruteAlignment:
    """Align to the messages of the stream `timeline`, or (None) to a fixed rate."""
    if timeline is None:
        assert fps is not None
        rows = [(time, None) for time in fixed_times(streams, fps, sample_drop)]
    else:
        own = next(stream for stream in streams if stream.name == timeline)
        fps, chosen = topic_rows(own, stride, fps, sample_drop)
        rows = [(time, number) for time, number in chosen]
    table: dict[str, list[Choice | None]] = {}
    for stream in streams:
        tolerance = stream.tolerance if stream.tolerance is not None else automatic_tolerance(stream.times, fps)
        if stream.name == timeline:
            column = [Choice(number, number, Fraction(0)) for _, number in rows]
        else:
            column = [choose(stream, time, tolerance) for time, _ in rows]
        if stream.missing == "reject" and None in column:
            raise Refused("reject")
        table[stream.name] = column
    return keep_whole_rows(streams, fps, [time for time, _ in rows], table)


def automatic_tolerance(times: Sequence[int], fps: int) -> int:
    row_period = math.floor(Fraction(SECOND, fps) + Fraction(1, 2))
    return 3 * max(row_period, usual_silence(times) or 0) // 2


def usual_period(times: Sequence[int]) -> int | None:
    """One second divided by the rate."""
    measured = period_and_silence(times)
    return None if measured is None else measured[0]


def usual_silence(times: Sequence[int]) -> int | None:
    """The usual time without a message: the period, or the pause between bursts."""
    measured = period_and_silence(times)
    return None if measured is None else measured[1]


def period_and_silence(times: Sequence[int]) -> tuple[int, int] | None:
    every = [b - a for a, b in pairwise(sorted(times))]
    intervals = [step for step in every if step]
    if not intervals:
        return None
    usual = middle_half(intervals)
    long = [step for step in intervals if step > 4 * usual]
    in_bursts = is_bursty(usual, long, every)
    if not in_bursts:
        mean = rounded_mean([step for step in every if step <= 4 * usual])
        if 20 * abs(mean - usual) <= usual:
            return usual, usual
    typical = middle_half(long) if in_bursts else usual
    mean = max(1, rounded_mean([step for step in every if step <= 10 * typical]))
    return mean, max(mean, typical)


def is_bursty(usual: int, long: list[int], every: list[int]) -> bool:
    if not long:
        return False
    if usual < 200_000:
        return True
    if len(long) < 3:
        return False
    if len(every) <= 10 * len(long):
        return True
    return (len(every) <= 20 * len(long) or 2 * sum(long) > sum(every)) and middle_half(long) <= 2 * SECOND


def middle_half(intervals: list[int]) -> int:
    quarter = len(intervals) // 4
    return rounded_mean(sorted(intervals)[quarter : len(intervals) - quarter])


def rounded_mean(intervals: list[int]) -> int:
    return math.floor(Fraction(sum(intervals), len(intervals)) + Fraction(1, 2))


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def fixed_times(streams: Sequence[BruteStream], fps: int, sample_drop: int) -> list[int]:
    everything = [time + stream.offset for stream in streams for time in stream.times]
    if not everything:
        raise Refused("empty")
    start, end = min(everything), max(everything)
    times = []
    k = 0
    while start + Fraction(k * SECOND, fps) <= end:
        times.append(start + math.floor(Fraction(k * SECOND, fps)))
        k += 1
    if len(times) <= 2 * sample_drop:
        raise Refused("drop")
    return times[sample_drop : len(times) - sample_drop]


def topic_rows(
    own: BruteStream, stride: int | None, fps: int | None, sample_drop: int
) -> tuple[int, list[tuple[int, int]]]:
    if not own.times:
        raise Refused("empty")
    messages = sorted((time + own.offset, number) for number, time in enumerate(own.times))
    if len(messages) <= 2 * sample_drop:
        raise Refused("drop")
    period = usual_period([time for time, _ in messages])
    messages = messages[sample_drop : len(messages) - sample_drop]
    if fps is None:
        if period is None:
            raise Refused("rate")
        stride = stride or 1
        return max(1, round(SECOND / period / stride)), messages[::stride]
    if stride is not None or period is None:
        return fps, messages[:: stride or 1]
    rate = SECOND / period
    stride = max(1, round(rate / fps))
    if abs(rate / stride - fps) <= 0.05 * fps:
        return fps, messages[::stride]
    if rate < fps:
        raise Refused("fps")
    return fps, nearest_to_grid(messages, fps)


def nearest_to_grid(messages: list[tuple[int, int]], fps: int) -> list[tuple[int, int]]:
    first, last = messages[0][0], messages[-1][0]
    chosen = set()
    k = 0
    while first + Fraction(k * SECOND, fps) <= last:
        at = first + Fraction(k * SECOND, fps)
        chosen.add(min(messages, key=lambda m: (abs(m[0] - at), m[0], m[1])))
        k += 1
    return sorted(chosen)


# ── messages for a row ───────────────────────────────────────────────────────────────────────────────────────────────


def choose(stream: BruteStream, row: int, tolerance: int) -> Choice | None:
    messages = [(time + stream.offset, number) for number, time in enumerate(stream.times)]
    before = [m for m in messages if m[0] <= row]
    after = [m for m in messages if m[0] > row]
    latest = max(before) if before else None
    next_one = min(after) if after else None
    found: Choice | None = None
    if stream.policy == "nearest" and messages:
        time, number = min(messages, key=lambda m: (abs(m[0] - row), m[0], m[1]))
        if abs(time - row) <= tolerance:
            found = Choice(number, number, Fraction(0))
    elif stream.policy == "hold" and latest is not None:
        if row - latest[0] <= tolerance:
            found = Choice(latest[1], latest[1], Fraction(0))
    elif stream.policy in ("linear", "slerp") and latest is not None:
        if latest[0] == row:
            found = Choice(latest[1], latest[1], Fraction(0))
        elif next_one is not None and row - latest[0] <= tolerance and next_one[0] - row <= tolerance:
            found = Choice(latest[1], next_one[1], Fraction(row - latest[0], next_one[0] - latest[0]))
    if found is None and stream.missing == "hold" and latest is not None:
        return Choice(latest[1], latest[1], Fraction(0), held=True)
    return found


def keep_whole_rows(
    streams: Sequence[BruteStream], fps: int, times: list[int], table: dict[str, list[Choice | None]]
) -> BruteAlignment:
    whole = [row for row in range(len(times)) if all(column[row] is not None for column in table.values())]
    if not whole:
        raise Refused("nothing")
    head, tail = whole[0], whole[-1] + 1
    lost_rows = [row for row in range(head, tail) if row not in set(whole)]
    by_cause: dict[str, int] = {}
    for row in lost_rows:
        cause = next(stream.name for stream in streams if table[stream.name][row] is None)
        by_cause[f"gap:{cause}"] = by_cause.get(f"gap:{cause}", 0) + 1
    result = BruteAlignment(
        fps=fps,
        times=[times[row] for row in whole],
        choices={name: [c for row in whole if (c := column[row]) is not None] for name, column in table.items()},
        counts={},
        trimmed_head=head,
        trimmed_tail=len(times) - tail,
        lost=len(lost_rows),
        lost_by_cause=by_cause,
    )
    for stream in streams:
        result.counts[stream.name] = count(stream, times, table[stream.name], head, tail, result)
    return result


def count(
    stream: BruteStream, times: list[int], column: list[Choice | None], head: int, tail: int, result: BruteAlignment
) -> BruteCounts:
    choices = result.choices[stream.name]
    counts = BruteCounts(
        trimmed_head=column[:head].count(None),
        trimmed_tail=column[tail:].count(None),
        lost=column[head:tail].count(None),
        held=sum(choice.held for choice in choices),
        used=len({number for choice in choices for number in (choice.left, choice.right)}),
    )
    for one, other in pairwise(choices):
        same_weight = float(one.weight) == float(other.weight)
        counts.repeats += (one.left, one.right) == (other.left, other.right) and same_weight
    for time, choice in zip(result.times, choices, strict=True):
        distances = [abs(stream.times[number] + stream.offset - time) for number in (choice.left, choice.right)]
        counts.skews.append(min(distances))
    counts.skews.sort()
    run: list[int] = []
    for row in range(head, tail + 1):
        choice_here = column[row] if row < tail else Choice(0, 0, Fraction(0))
        if choice_here is None or choice_here.held:
            run.append(times[row])
        elif run:
            counts.gaps.append((run[0], run[-1], len(run)))
            run = []
    return counts
