"""Reading the board: what every buffer recorded, each as it stood at one moment, while its owner goes on.

The ring is copied twice. The owner writes one event after the other: when the first copy holds an event, all events
before it are written. The second copy gives those, and nothing newer. If the owner folded meanwhile, the buffer is read
again, until it did not. So count, total, self time and percentiles of a thread are those of the same calls; between
threads there may be microseconds.
"""

from __future__ import annotations

import os
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from penstock._src.profile.record import layout as at
from penstock._src.profile.record.board import Board, Entry
from penstock._src.profile.record.buffer import add_events
from penstock._src.profile.stats import GaugeStats, SpanEvent, SpanStats, ThreadEvents, grouped

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_HEADER = Struct(f"={at.PAGE_HEADER_BYTES // at.WORD}q")


class Level(NamedTuple):
    """A counter or gauge of one buffer."""

    name: str
    kind: int
    last: float
    time_ns: float
    sum: float
    times: float
    least: float
    most: float


class BufferReading(NamedTuple):
    """What one buffer holds."""

    spans: tuple[SpanStats, ...]
    thread: ThreadEvents
    levels: tuple[Level, ...]
    lost_levels: int


def read_buffers(board: Board, *, events: bool = True) -> list[BufferReading]:
    """All buffers that were ever claimed, in that order; with their last events unless `events` is False."""
    return [_read_buffer(board, entry, events=events) for entry in board.entries()]


def _read_buffer(board: Board, entry: Entry, *, events: bool) -> BufferReading:
    start, reset_ns = at.BUFFERS_AT + entry.number * at.PAGE_BYTES, board.reset_ns
    rows, ring = _consistent(board.fd, start, reset_ns)
    head = os.pread(board.fd, at.SUMS_AT, start)  # after the events, so that their names are there
    words = _HEADER.unpack_from(head)
    names: list[str] = []
    paths: list[tuple[str, ...]] = []  # parents, outermost first; a parent always comes before its children
    for parent, name in at.named_rows(head, at.NODES_AT, words[at.P_NODES]):
        names.append(name)
        paths.append((*paths[parent], names[parent]) if parent else ())
    spans = tuple(
        _stats(rows[number], names[number], paths[number], entry)
        for number in range(1, len(names))
        if rows[number, at.R_COUNT]
    )
    timeline = tuple(
        SpanEvent(names[tag & at.NODE_MASK], start_ns, duration, len(paths[tag & at.NODE_MASK]))
        for start_ns, duration, inner, tag in (ring.tolist() if events else ())
        if inner >= 0 or not inner & at.CALLS_MASK  # sums of many calls are no stretch of time
    )
    thread = ThreadEvents(entry.pid, entry.process, entry.thread, timeline)
    if words[at.P_LEVELS_RESET_NS] != reset_ns:
        return BufferReading(spans, thread, (), 0)
    found = at.named_rows(head, at.LEVELS_AT, words[at.P_LEVELS], at.LEVEL)
    levels = tuple(Level(name, kind, *values) for *values, kind, name in found)
    return BufferReading(spans, thread, levels, words[at.P_LOST_LEVELS])


def _consistent(fd: int, start: int, reset_ns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(the rows of the sums with all events in them, the last events since the reset, oldest first)."""
    import numpy as np

    while True:  # a fold comes every 1,024 events, and copying takes the time of a hundred: this ends soon
        folds, nodes = _HEADER.unpack(os.pread(fd, at.PAGE_HEADER_BYTES, start))[:2]
        copy = start + at.SUMS_AT + (folds & 1) * at.SUMS_WORDS * at.WORD
        sums = np.frombuffer(os.pread(fd, (at.SUMS_HEADER + nodes * at.ROW_WORDS) * at.WORD, copy), np.int64)
        newest = int(_ring(fd, start)[:, 3].max()) >> at.TAG_BITS
        ring = _ring(fd, start)
        if _HEADER.unpack(os.pread(fd, at.PAGE_HEADER_BYTES, start))[at.P_FOLDS] == folds:
            break
    sequences = ring[:, 3] >> at.TAG_BITS
    # Until its next fold the owner may overwrite the places of one quarter: the one in which the newest event lies.
    overwritable = -(-newest // at.FOLD_EVERY) * at.FOLD_EVERY - at.N_EVENTS
    whole = ring[(sequences > max(overwritable, 0)) & (sequences <= newest)]
    whole = whole[np.argsort(whole[:, 3])]
    recent = whole[:, 0] + whole[:, 1] >= reset_ns
    rows = np.zeros((at.N_NODES, at.ROW_WORDS), np.int64)
    if sums[at.S_RESET_NS] == reset_ns:
        kept = sums[at.SUMS_HEADER :].reshape(-1, at.ROW_WORDS)
        rows[: len(kept)] = kept
    behind = (whole[:, 3] >> at.TAG_BITS) > sums[at.S_SEQUENCE]
    add_events(rows, whole[behind & recent])
    return rows, whole[recent]


def _ring(fd: int, start: int) -> NDArray[np.int64]:
    import numpy as np

    data = os.pread(fd, at.N_EVENTS * at.EVENT_BYTES, start + at.RING_AT)
    return np.frombuffer(data, np.int64).reshape(-1, at.EVENT_WORDS)


def _stats(row: NDArray[np.int64], name: str, path: tuple[str, ...], entry: Entry) -> SpanStats:
    histogram = row[at.R_HISTOGRAM :]
    filled = histogram.nonzero()[0]
    count, total_ns, self_ns, min_ns, max_ns = row[: at.R_MAX + 1].tolist()
    return SpanStats(
        name=name, path=path, process=entry.pid, thread=entry.thread, count=count, total_ns=total_ns,
        self_ns=self_ns, min_ns=min_ns, max_ns=max_ns,
        histogram=tuple(zip(filled.tolist(), histogram[filled].tolist(), strict=True)),
    )  # fmt: skip


def merge_gauges(levels: list[Level]) -> dict[str, GaugeStats]:
    """The newest value of any buffer, and the values of all."""
    gauges = [each for each in levels if each.kind == at.GAUGE and each.times]
    return {
        name: GaugeStats(
            last=max(alike, key=lambda each: each.time_ns).last,
            mean=sum(each.sum for each in alike) / sum(each.times for each in alike),
            min=min(each.least for each in alike),
            max=max(each.most for each in alike),
            count=int(sum(each.times for each in alike)),
        )
        for name, alike in grouped(gauges, lambda each: each.name).items()
    }
