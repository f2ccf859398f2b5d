"""Align: every row's messages, from timestamps alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.pairing import Pairing, RowPick, pair, pair_timeline, tolerance_of
from penstock._src.align.rate import NS_PER_S, clock_notes, measure_rate
from penstock._src.align.report import (
    AlignmentReport,
    Cut,
    Gaps,
    StreamReport,
    count_of,
    describe_stream,
    format_ms,
    holes,
)
from penstock._src.align.streams import TopicStream, in_time_order
from penstock._src.align.timeline import FixedTimeline, Timeline, TimelineRows, lay_out, real_fps
from penstock.errors import AlignError

# What a stream may trim at one end before a note says so: a share of the rows, and a time.
_TRIM_NOTED = 0.05
_TRIM_NOTED_S = 1.0


@dataclass(frozen=True, eq=False)
class Alignment:
    """The rows of one recording: when each is, and which messages it takes from each stream.

    `lost_times_ns` says by cause when the rows would have been that are missing between the first and the last; a
    longer step of the timeline than `gap_ns` is a hole, and its ends may be off by `grain_ns`.
    """

    fps: int
    row_times_ns: NDArray[np.int64]
    picks: Mapping[str, RowPick]
    report: AlignmentReport
    lost_times_ns: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    gap_ns: int = 0
    grain_ns: int = 0

    def __len__(self) -> int:
        return int(self.row_times_ns.size)


def align(
    streams: Sequence[TopicStream],
    timeline: Timeline,
    *,
    sample_drop: int = 0,
) -> Alignment:
    """Decide for every row of `timeline` which message it takes from every stream.

    `sample_drop` instants are cut at both ends of the timeline first.

        cameras = Stream("/cam_h", camera_times_ns)
        joints = Stream("/joint_states", joint_times_ns, policy="linear", missing="reject")
        alignment = align([cameras, joints], TopicTimeline("/cam_h", fps=10))
    """
    rows = lay_out(streams, timeline, sample_drop)
    own = None if isinstance(timeline, FixedTimeline) else timeline.stream
    orders = {stream.name: in_time_order(stream.times_ns) for stream in streams}
    pairings: dict[str, Pairing] = {}
    for stream in streams:
        ordered = orders[stream.name]
        if stream.name == own and rows.numbers is not None:
            pairings[stream.name] = pair_timeline(rows.numbers, stream, tolerance_of(stream, ordered, rows))
        else:
            pairings[stream.name] = pair(stream, ordered, rows)
    cut = _cut(streams, pairings, rows)
    whole = cut.keep.all()
    picks = {name: pairing.pick if whole else pairing.pick[cut.keep] for name, pairing in pairings.items()}
    described = {
        name: describe_stream(stream, orders[name], pairings[name], picks[name], cut, is_timeline=name == own)
        for name, stream in zip(orders, streams, strict=True)
    }
    row_times_ns = rows.times_ns if whole else rows.times_ns[cut.keep]
    lost_times_ns = _lost_times(pairings, cut)
    report = _report(rows, cut, lost_times_ns, described, own)
    return Alignment(rows.fps, row_times_ns, picks, report, lost_times_ns, rows.gap_ns, rows.grain_ns)


def _cut(streams: Sequence[TopicStream], pairings: Mapping[str, Pairing], rows: TimelineRows) -> Cut:
    """Keep the rows that every stream can serve; AlignError with each stream's range when there is none."""
    keep = np.ones(rows.times_ns.size, dtype=np.bool_)
    for pairing in pairings.values():
        keep &= ~pairing.missing
    remaining = np.flatnonzero(keep)
    if not remaining.size:
        raise _nothing_left(streams, pairings, rows)
    return Cut(rows.times_ns, keep, int(remaining[0]), int(remaining[-1]) + 1, rows.origin_ns)


def _nothing_left(streams: Sequence[TopicStream], pairings: Mapping[str, Pairing], rows: TimelineRows) -> AlignError:
    text = f"no row of {rows.times_ns.size:,} finds a message of every stream"
    hint = (
        "the streams do not overlap in time or the tolerance is too small; "
        "compare time: header with time: log, or set missing: hold"
    )
    late = [each.name for each in streams if _begins_late(each, rows) and pairings[each.name].missing.all()]
    if late:  # no message can be held before the first one
        text += f": {', '.join(late)} {'begins' if len(late) == 1 else 'begin'} after the last row"
        hint = (
            f"compare time: header with time: log; leave {'it' if len(late) == 1 else 'them'} out, or make rows until "
            "the end of the recording: timeline=fixed fps=10, with missing: hold for what ends before"
        )
    return AlignError(f"{text}: {_ranges(streams, pairings, rows)}", hint=hint)


def _begins_late(stream: TopicStream, rows: TimelineRows) -> bool:
    return bool(stream.times_ns.size) and int(stream.times_ns.min()) + stream.offset_ns > int(rows.times_ns[-1])


def _ranges(streams: Sequence[TopicStream], pairings: Mapping[str, Pairing], rows: TimelineRows) -> str:
    first, last = ((int(rows.times_ns[i]) - rows.origin_ns) / NS_PER_S for i in (0, -1))
    parts = [f"rows {first:.3f} … {last:.3f} s"]
    for stream in streams:
        if not stream.times_ns.size:
            parts.append(f"{stream.name} has no messages")
            continue
        to_origin_ns = stream.offset_ns - rows.origin_ns
        low, high = ((int(end) + to_origin_ns) / NS_PER_S for end in (stream.times_ns.min(), stream.times_ns.max()))
        served = int(np.count_nonzero(~pairings[stream.name].missing))
        parts.append(f"{stream.name} {low:.3f} … {high:.3f} s ({stream.times_ns.size:,} messages, {served:,} rows)")
    return "; ".join(parts)


def _report(
    rows: TimelineRows,
    cut: Cut,
    lost_times_ns: Mapping[str, NDArray[np.int64]],
    described: Mapping[str, StreamReport],
    own: str | None,
) -> AlignmentReport:
    gaps = holes(rows.times_ns, rows.gap_ns, rows.period_ns, rows.origin_ns)
    by_cause = {cause: int(times_ns.size) for cause, times_ns in lost_times_ns.items()}
    on_clock = clock_notes([rows.times_ns[cut.keep]], rows.fps, rows.grain_ns)
    loss_notes = {name: note for name, stream in described.items() if (note := _loss_note(stream))}
    return AlignmentReport(
        rows=int(np.count_nonzero(cut.keep)),
        fps=rows.fps,
        real_fps=real_fps(rows),
        timeline="fixed" if own is None else own,
        stride=rows.stride,
        origin_ns=rows.origin_ns,
        timeline_rows=int(rows.times_ns.size),
        sample_dropped=rows.sample_dropped,
        trimmed_head=cut.first,
        trimmed_tail=int(rows.times_ns.size) - cut.stop,
        lost=sum(by_cause.values()),
        lost_by_cause=by_cause,
        timeline_gaps=gaps,
        notes=(*on_clock, *_notes(described, gaps, _absent(rows), own, loss_notes), *_trim_notes(described, cut)),
        streams=described,
        loss_notes=loss_notes,
    )


def _absent(rows: TimelineRows) -> float:
    """How many rows the timeline lacks for its rate: none where late messages are followed by early ones."""
    rate = measure_rate(rows.times_ns)
    if rate is None:
        return 0.0
    return int(rows.times_ns[-1] - rows.times_ns[0]) / rate.period_ns - (rows.times_ns.size - 1)


def _lost_times(pairings: Mapping[str, Pairing], cut: Cut) -> dict[str, NDArray[np.int64]]:
    """Each lost row once, under the first stream that lacks it."""
    unclaimed = np.ones(cut.stop - cut.first, dtype=np.bool_)
    by_cause: dict[str, NDArray[np.int64]] = {}
    for name, pairing in pairings.items():
        missing = pairing.missing[cut.first : cut.stop]
        rows = np.flatnonzero(missing & unclaimed)
        if rows.size:
            by_cause[f"gap:{name}"] = cut.times_ns[cut.first + rows]
            unclaimed &= ~missing
    return by_cause


def _loss_note(stream: StreamReport) -> str | None:
    if not stream.lost:
        return None
    gap = stream.gaps.listed[0]
    return (
        f"{stream.name}: no message within {format_ms(stream.tolerance_ms)} for {count_of(stream.lost, 'row')}, "
        f"first at {gap.from_s:.3f} … {gap.to_s:.3f} s; a larger tolerance or missing: hold would keep them"
    )


def _notes(
    described: Mapping[str, StreamReport], gaps: Gaps, absent: float, own: str | None, loss_notes: Mapping[str, str]
) -> list[str]:
    notes = []
    if gaps.count and 2 * absent >= gaps.rows:
        notes.append(
            f"the timeline {own or 'fixed'} has {count_of(gaps.count, 'hole')} where about "
            f"{count_of(gaps.rows, 'row')} would be; the first at {gaps.listed[0].from_s:.3f} s"
        )
    for name, stream in described.items():
        if stream.out_of_order:
            notes.append(
                f"{name}: time goes backwards {count_of(stream.out_of_order, 'time')}; messages were paired by time"
            )
        if name in loss_notes:
            notes.append(loss_notes[name])
    return notes


def _trim_notes(described: Mapping[str, StreamReport], cut: Cut) -> list[str]:
    """Streams that start late or end early and take a good part of the rows with them."""
    notes = []
    rows = int(cut.times_ns.size)
    for name, stream in described.items():
        head, tail = stream.trimmed_head, stream.trimmed_tail
        late_s = cut.seconds(head) - cut.seconds(0)
        if late_s >= _TRIM_NOTED_S and head > _TRIM_NOTED * rows:
            notes.append(f"{name} starts {late_s:.3f} s late: {count_of(head, 'row')} before it trimmed")
        early_s = cut.seconds(rows - 1) - cut.seconds(rows - 1 - tail)
        if early_s >= _TRIM_NOTED_S and tail > _TRIM_NOTED * rows:
            notes.append(f"{name} ends {early_s:.3f} s early: {count_of(tail, 'row')} after it trimmed")
    return notes
