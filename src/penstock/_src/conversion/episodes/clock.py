"""Whether the timestamps of a data set keep the recording's time; where they do not, the options that help."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.align import measure_rate
from penstock._src.align.rate import (
    LARGEST_DIFFERENCE,
    NS_PER_S,
    clock_notes,
    clock_of,
    drift_text,
    is_wrong,
    worst_clock,
)
from penstock._src.conversion.inputs.pairing import PairedRows
from penstock._src.conversion.settings import Settings
from penstock._src.system import units
from penstock.errors import AlignError

# Of an episode, on average, where cutting at holes is proposed.
_FEWEST_ROWS, _SHORTEST_S = 10, 1
# Lengths of holes that people write, longest first.
_GAPS_NS: tuple[int, ...] = tuple(digit * 10**power for power in range(11, 5, -1) for digit in (5, 2, 1))
# What `timeline: fixed` takes, whatever the number of messages.
_MOST_FIXED_ROWS = 100_000


def note_on_clock(paired: PairedRows, episodes: Sequence[range]) -> list[str]:
    """The note on the timestamps of all episodes, where there is something to say."""
    alignment = paired.alignment
    times = [alignment.row_times_ns[rows.start : rows.stop] for rows in episodes]
    return clock_notes(times, paired.fps, alignment.grain_ns)


def check_clock(path: str, settings: Settings, paired: PairedRows, episodes: Sequence[range]) -> None:
    """Refuse rows whose timestamps would be more than 5 % off; AlignError with the options that make them right.

    Rows that are lost count as if they were there, since they are reported as lost. No row may be further off than 5 %
    of its episode, the last one not and none before: a rate that changes halfway can give the right length. Who sets
    both stride and fps says what the timestamps are to be.
    """
    if settings.stride is not None and settings.fps is not None:
        return
    alignment = paired.alignment
    lost_ns = np.sort(np.concatenate([np.zeros(0, np.int64), *alignment.lost_times_ns.values()]))
    rows = _RowTimes(alignment.row_times_ns, lost_ns, paired.fps, alignment.gap_ns, alignment.grain_ns)
    wrong = [number for number, each in enumerate(episodes) if rows.are_wrong(each)]
    if not wrong:
        return
    worst = max(wrong, key=lambda number: worst_clock(rows.whole(episodes[number]), rows.fps).apart_ns)
    where = episodes[worst]
    which = "" if len(episodes) == 1 else f"episode {worst}, rows {where.start:,}–{where.stop - 1:,}: "
    raise AlignError(
        f"{path}: {which}{_difference(rows, where)} (timeline {settings.timeline}, {_holes_text(rows.holes(where))})",
        hint=_hint(rows, episodes, paired.alignment.report.stride),
    )


def _difference(rows: _RowTimes, where: range) -> str:
    clock = clock_of(rows.whole(where), rows.fps)
    if not clock.exceeds(LARGEST_DIFFERENCE, rows.grain_ns):
        return drift_text(rows.whole(where), rows.fps)
    return (
        f"{clock.recorded_ns / NS_PER_S:.3f} s of the recording would become {clock.stated_ns / NS_PER_S:.3f} s "
        f"at {rows.fps} fps: timestamps that differ by {clock.difference:.1%}"
    )


class _RowTimes(NamedTuple):
    """The rows of a recording with those that were lost between them."""

    times_ns: NDArray[np.int64]
    lost_ns: NDArray[np.int64]
    fps: int
    gap_ns: int
    grain_ns: int

    def are_wrong(self, rows: range) -> bool:
        return is_wrong(self.whole(rows), self.fps, self.grain_ns)

    def whole(self, rows: range) -> NDArray[np.int64]:
        """The times of rows and of those lost between them."""
        times_ns = self.times_ns[rows.start : rows.stop]
        if not times_ns.size:
            return times_ns
        low, high = np.searchsorted(self.lost_ns, times_ns[[0, -1]])
        return np.sort(np.concatenate((times_ns, self.lost_ns[low:high])))

    def holes(self, rows: range) -> NDArray[np.int64]:
        steps_ns = np.diff(self.whole(rows))
        return steps_ns[steps_ns > self.gap_ns]


def _holes_text(holes_ns: NDArray[np.int64]) -> str:
    if not holes_ns.size:
        return "no holes"
    some = "1 hole of" if holes_ns.size == 1 else f"{holes_ns.size:,} holes, the longest of"
    return f"{some} {int(holes_ns.max()) / NS_PER_S:.3f} s"


def _hint(rows: _RowTimes, episodes: Sequence[range], stride: int | None) -> str:
    """Options that were tried on the times of the rows."""
    parts = []
    gap_ns = _gap_that_helps(rows, episodes)
    if gap_ns is not None:
        parts.append(f"episodes.gap={units.duration_text(gap_ns)} begins a new episode at each hole")
    rates = [rate for each in episodes if len(each) and (rate := measure_rate(rows.whole(each))) is not None]
    hz = max((rate.hz for rate in rates), default=float(rows.fps))
    even = round(hz) if abs(round(hz) - hz) <= LARGEST_DIFFERENCE * hz else int(hz) + 1
    seconds = int(rows.times_ns[-1] - rows.times_ns[0]) / NS_PER_S
    if seconds * even <= _MOST_FIXED_ROWS + rows.times_ns.size:
        held = any(rows.holes(each).size for each in episodes)
        words = f"timeline=fixed fps={even}{' missing=hold' if held else ''}"
        parts.append(f"{words} makes rows by the clock{' and repeats the last message in holes' if held else ''}")
    if stride is not None:
        parts.append(f"stride={stride} fps={rows.fps} writes it as it is, with a note")
    return "; or ".join(parts)


def _gap_that_helps(rows: _RowTimes, episodes: Sequence[range]) -> int | None:
    """A gap at which cutting leaves only episodes whose clock is right: the longest, with a margin to the holes."""
    steps_ns = np.concatenate([np.diff(rows.times_ns[each.start : each.stop]) for each in episodes])
    found_ns, cuts = None, 0
    for gap_ns in _GAPS_NS:
        holes_ns = steps_ns[steps_ns > gap_ns]
        if gap_ns < rows.gap_ns or (found_ns is not None and holes_ns.size != cuts):
            break
        if holes_ns.size and (found_ns is not None or _is_right(rows, episodes, gap_ns)):
            found_ns, cuts = gap_ns, holes_ns.size
            if 2 * gap_ns <= int(holes_ns.min()):
                break
    return found_ns


def _is_right(rows: _RowTimes, episodes: Sequence[range], gap_ns: int) -> bool:
    pieces = [piece for each in episodes for piece in _pieces(rows, each, gap_ns)]
    fewest = len(pieces) * max(_FEWEST_ROWS, _SHORTEST_S * rows.fps)
    if fewest > sum(len(piece) for piece in pieces):
        return False
    return not any(rows.are_wrong(piece) for piece in pieces)


def _pieces(rows: _RowTimes, episode: range, gap_ns: int) -> list[range]:
    steps_ns = np.diff(rows.times_ns[episode.start : episode.stop])
    edges = [episode.start, *(np.flatnonzero(steps_ns > gap_ns) + 1 + episode.start).tolist(), episode.stop]
    return [range(first, stop) for first, stop in pairwise(edges)]
