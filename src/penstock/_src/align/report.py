"""What the alignment did, in numbers: plain JSON for programs, short lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.pairing import Pairing, RowPick
from penstock._src.align.rate import NS_PER_S
from penstock._src.align.streams import OrderedTimes, TopicStream

STATIC = "static"  # the policy of a stream that has a message for every row
# Gaps beyond this many are counted, not listed: a report does not grow with the recording.
LISTED_GAPS = 20


class Gap(NamedTuple):
    """A run of rows, or a hole between two, in seconds from the start of the timeline."""

    from_s: float
    to_s: float
    rows: int


@dataclass(frozen=True, eq=False)
class Gaps:
    """How many gaps, how many rows they span, and the first few of them."""

    count: int
    rows: int
    listed: tuple[Gap, ...]

    def to_json(self) -> list[dict[str, Any]]:
        return [gap._asdict() for gap in self.listed]


class Skew(NamedTuple):
    """Distance in time between a row and the message it takes (of two, the closer), in milliseconds."""

    p50: float
    p95: float
    p99: float
    max: float
    mean: float


class StreamReport(NamedTuple):
    """How one stream fared. `lost` and `trimmed` count timeline rows that it lacked; the others, rows of the output."""

    name: str
    policy: str
    missing: str
    is_timeline: bool
    tolerance_ms: float
    offset_ms: float
    messages: int
    used: int
    unused: int
    repeats: int
    rate_hz: float | None
    skew_ms: Skew
    trimmed_head: int
    trimmed_tail: int
    lost: int
    held: int
    gaps: Gaps
    out_of_order: int
    duplicate_times: int

    def to_json(self) -> dict[str, Any]:
        plain = {key: value for key, value in self._asdict().items() if key not in ("name", "skew_ms", "gaps")}
        return plain | {
            "skew_ms": self.skew_ms._asdict(),
            "gaps": self.gaps.to_json(),
            "gap_count": self.gaps.count,
        }

    def facts(self) -> str:
        """One fragment for a table or a line: `nearest, p99 skew 4 ms, 60 rows trimmed at the start`."""
        parts = ["timeline"] if self.is_timeline else [self.policy]
        if not self.is_timeline and self.policy != STATIC:
            parts.append(f"p99 skew {format_ms(self.skew_ms.p99)}")
        if self.trimmed_head:
            parts.append(f"{count_of(self.trimmed_head, 'row')} trimmed at the start")
        if self.trimmed_tail:
            parts.append(f"{count_of(self.trimmed_tail, 'row')} trimmed at the end")
        if self.held:
            parts.append(f"{count_of(self.held, 'row')} held")
        if self.lost:
            parts.append(f"{count_of(self.lost, 'row')} lost in {count_of(self.gaps.count, 'gap')}")
        return ", ".join(parts)


class AlignmentReport(NamedTuple):
    """How the rows came about. `timeline_rows = rows + trimmed_head + trimmed_tail + lost`."""

    rows: int
    fps: int
    real_fps: float | None
    timeline: str
    stride: int | None
    origin_ns: int
    timeline_rows: int
    sample_dropped: int
    trimmed_head: int
    trimmed_tail: int
    lost: int
    lost_by_cause: Mapping[str, int]
    timeline_gaps: Gaps
    notes: tuple[str, ...]
    streams: Mapping[str, StreamReport]
    loss_notes: Mapping[str, str]  # those of `notes` that speak of lost rows, by stream

    def to_json(self) -> dict[str, Any]:
        """A plain dict that `json.dumps` takes as it is."""
        of_plain = (int, float, str, type(None))
        plain = {key: value for key, value in self._asdict().items() if isinstance(value, of_plain)}
        return plain | {
            "lost_by_cause": dict(self.lost_by_cause),
            "timeline_gaps": self.timeline_gaps.to_json(),
            "timeline_gap_count": self.timeline_gaps.count,
            "notes": list(self.notes),
            "streams": {name: stream.to_json() for name, stream in self.streams.items()},
        }


def format_ms(milliseconds: float) -> str:
    """`4 ms`, `0.25 ms`, `1.2 s`."""
    return f"{milliseconds:.3g} ms" if milliseconds < 999.5 else f"{milliseconds / 1000:.3g} s"


def count_of(n: int, noun: str) -> str:
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


# ── measuring ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Cut(NamedTuple):
    """Which rows of the timeline remain: those of `keep`, all within first … stop."""

    times_ns: NDArray[np.int64]
    keep: NDArray[np.bool_]
    first: int
    stop: int
    origin_ns: int

    def seconds(self, row: int) -> float:
        return (int(self.times_ns[row]) - self.origin_ns) / NS_PER_S


def describe_stream(
    stream: TopicStream, order: OrderedTimes, pairing: Pairing, pick: RowPick, cut: Cut, *, is_timeline: bool
) -> StreamReport:
    """Count what happened to one stream; `pick` holds the remaining rows, `pairing` all rows of the timeline."""
    missing, held = pairing.missing, pairing.held
    middle = slice(cut.first, cut.stop)
    apart = missing[middle] if held is None else missing[middle] | held[middle]
    used = _used(pick, stream.times_ns.size)
    return StreamReport(
        name=stream.name,
        policy=STATIC if stream.is_static else stream.policy,
        missing=stream.missing,
        is_timeline=is_timeline,
        tolerance_ms=pairing.tolerance_ns / 1e6,
        offset_ms=stream.offset_ns / 1e6,
        messages=int(stream.times_ns.size),
        used=used,
        unused=int(stream.times_ns.size) - used,
        repeats=_repeats(pick),
        rate_hz=None if order.rate is None else order.rate.hz,
        skew_ms=_skew(stream, pick, cut.times_ns if cut.keep.all() else cut.times_ns[cut.keep]),
        trimmed_head=int(np.count_nonzero(missing[: cut.first])),
        trimmed_tail=int(np.count_nonzero(missing[cut.stop :])),
        lost=int(np.count_nonzero(missing[middle])),
        held=0 if held is None else int(np.count_nonzero(held & cut.keep)),
        gaps=_runs(apart, cut),
        out_of_order=order.out_of_order,
        duplicate_times=order.duplicate_times,
    )


def holes(times_ns: NDArray[np.int64], longest_ns: int, period_ns: int, origin_ns: int) -> Gaps:
    """Steps between rows that are longer than `longest_ns`; `rows` says how many rows would have fitted."""
    before = np.flatnonzero(np.diff(times_ns) > longest_ns)
    absent = np.maximum((times_ns[before + 1] - times_ns[before] + period_ns // 2) // period_ns - 1, 1)
    listed = tuple(
        Gap(
            (int(times_ns[row]) - origin_ns) / NS_PER_S,
            (int(times_ns[row + 1]) - origin_ns) / NS_PER_S,
            int(absent[i]),
        )
        for i, row in enumerate(before[:LISTED_GAPS].tolist())
    )
    return Gaps(int(before.size), int(absent.sum()), listed)


def _runs(apart: NDArray[np.bool_], cut: Cut) -> Gaps:
    edges = np.flatnonzero(np.diff(apart, prepend=False, append=False)) + cut.first
    starts, stops = edges[::2], edges[1::2]
    listed = tuple(
        Gap(cut.seconds(start), cut.seconds(stop - 1), stop - start)
        for start, stop in zip(starts[:LISTED_GAPS].tolist(), stops[:LISTED_GAPS].tolist(), strict=True)
    )
    return Gaps(int(starts.size), int((stops - starts).sum()), listed)


def _used(pick: RowPick, n_messages: int) -> int:
    seen = np.zeros(n_messages, dtype=np.bool_)
    seen[pick.left] = True
    if pick.right is not None:
        seen[pick.right] = True
    return int(np.count_nonzero(seen))


def _repeats(pick: RowPick) -> int:
    same = np.diff(pick.left) == 0
    if pick.right is not None and pick.weight is not None:
        same &= (np.diff(pick.right) == 0) & (np.diff(pick.weight) == 0)
    return int(np.count_nonzero(same))


def _skew(stream: TopicStream, pick: RowPick, row_ns: NDArray[np.int64]) -> Skew:
    row_ns = row_ns - stream.offset_ns
    away_ns = np.abs(row_ns - stream.times_ns[pick.left])
    if pick.right is not None:
        np.minimum(away_ns, np.abs(row_ns - stream.times_ns[pick.right]), out=away_ns)
    away_ns.sort()
    n = away_ns.size

    def rank(percent: int) -> float:
        return float(away_ns[(percent * n + 99) // 100 - 1]) / 1e6

    return Skew(rank(50), rank(95), rank(99), rank(100), float(away_ns.mean()) / 1e6)
