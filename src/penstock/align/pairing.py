"""Pairing: which message, or which two, every row takes from one stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.align.rate import NS_PER_S, Rate
from penstock.align.streams import OrderedTimes, Stream
from penstock.align.timeline import Rows
from penstock.errors import AlignError


@dataclass(frozen=True, eq=False)
class Pick:
    """What each row takes from one stream: message numbers in file order, and for interpolation a second one.

    The value of a row is `left + weight · (right - left)`; without `right`, it is `left`. `pick[100:200]` is a view.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32] | None = None
    weight: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return int(self.left.size)

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> Pick:
        return Pick(
            self.left[rows],
            None if self.right is None else self.right[rows],
            None if self.weight is None else self.weight[rows],
        )

    def needs(self) -> tuple[NDArray[np.int64], NDArray[np.intp], NDArray[np.intp]]:
        """The distinct messages, ascending, and for each row the positions of its left and right one among them."""
        if self.right is None:
            numbers, at = np.unique(self.left, return_inverse=True)
            at = at.reshape(-1)
            return numbers.astype(np.int64), at, at
        numbers, at = np.unique(np.concatenate((self.left, self.right)), return_inverse=True)
        at = at.reshape(-1)
        return numbers.astype(np.int64), at[: len(self)], at[len(self) :]

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in (self.left, self.right, self.weight) if part is not None)

    def __repr__(self) -> str:
        kind = "one message" if self.right is None else "two messages and a weight"
        return f"Pick({len(self):,} rows of {kind}, {self.nbytes:,} bytes)"


class Pairing(NamedTuple):
    """A stream's pick for every row of the timeline, and where it had none."""

    pick: Pick
    missing: NDArray[np.bool_]  # nothing may be taken here
    held: NDArray[np.bool_] | None  # an older message stands in; None: nowhere
    tolerance_ns: int


class _Match(NamedTuple):
    """Positions in time order; `right` and `weight` for interpolation only."""

    left: NDArray[np.intp]
    right: NDArray[np.intp] | None
    weight: NDArray[np.float32] | None
    missing: NDArray[np.bool_]


def pair(stream: Stream, ordered: OrderedTimes, rows: Rows) -> Pairing:
    """Find the messages of `stream` for every row; AlignError where its policy rejects missing data."""
    tolerance_ns = tolerance_of(stream, ordered, rows)
    n_rows = rows.times_ns.size
    if not ordered.times_ns.size:
        pick = _blank_pick(n_rows, stream.interpolates)
        missing = np.ones(n_rows, dtype=np.bool_)
        _refuse_missing(stream, ordered, rows, missing, tolerance_ns)
        return Pairing(pick, missing, None, tolerance_ns)
    row_ns = rows.times_ns - stream.offset_ns
    if stream.is_static:
        latest, _ = _latest(ordered.times_ns, row_ns)
        return Pairing(Pick(ordered.numbers(latest)), np.zeros(n_rows, dtype=np.bool_), None, tolerance_ns)
    if stream.interpolates:
        match = _interpolated(ordered.times_ns, row_ns, tolerance_ns)
    elif stream.policy == "hold":
        match = _held(ordered.times_ns, row_ns, tolerance_ns)
    else:
        match = _nearest(ordered.times_ns, row_ns, tolerance_ns, has_duplicates=ordered.duplicate_times > 0)
    _refuse_missing(stream, ordered, rows, match.missing, tolerance_ns)
    held = None
    if stream.missing == "hold" and match.missing.any():
        match, held = _stand_in(match, ordered.times_ns, row_ns)
    right = None if match.right is None else ordered.numbers(match.right)
    return Pairing(Pick(ordered.numbers(match.left), right, match.weight), match.missing, held, tolerance_ns)


def tolerance_of(stream: Stream, ordered: OrderedTimes, rows: Rows) -> int:
    """The tolerance that the stream has, or the usual one."""
    if stream.tolerance_ns is not None:
        return stream.tolerance_ns
    return usual_tolerance_ns(rows.period_ns, ordered.rate)


def usual_tolerance_ns(row_period_ns: int, rate: Rate | None) -> int:
    """1.5 times the longer of the row period and the topic's usual time without a message."""
    return 3 * max(row_period_ns, 0 if rate is None else rate.arrival_ns) // 2


def pair_timeline(numbers: NDArray[np.int32], stream: Stream, tolerance_ns: int) -> Pairing:
    """The timeline's own stream: every row is one of its messages, and takes exactly that one."""
    pick = Pick(numbers)
    if stream.interpolates:
        pick = Pick(numbers, numbers, np.zeros(numbers.size, dtype=np.float32))
    return Pairing(pick, np.zeros(numbers.size, dtype=np.bool_), None, tolerance_ns)


def _blank_pick(n_rows: int, interpolates: bool) -> Pick:
    nothing = np.zeros(n_rows, dtype=np.int32)
    return Pick(nothing, nothing, np.zeros(n_rows, dtype=np.float32)) if interpolates else Pick(nothing)


def _nearest(
    times_ns: NDArray[np.int64], row_ns: NDArray[np.int64], tolerance_ns: int, *, has_duplicates: bool
) -> _Match:
    after = np.searchsorted(times_ns, row_ns, side="left")
    before = np.maximum(after - 1, 0)
    np.minimum(after, times_ns.size - 1, out=after)
    to_before = np.abs(row_ns - times_ns[before])
    to_after = np.abs(times_ns[after] - row_ns)
    nearest = np.where(to_before <= to_after, before, after)
    if has_duplicates:  # of several messages at one time, the first that was written
        nearest = np.searchsorted(times_ns, times_ns[nearest], side="left")
    return _Match(nearest, None, None, np.minimum(to_before, to_after) > tolerance_ns)


def _held(times_ns: NDArray[np.int64], row_ns: NDArray[np.int64], tolerance_ns: int) -> _Match:
    latest, none_before = _latest(times_ns, row_ns)
    return _Match(latest, None, None, none_before | (row_ns - times_ns[latest] > tolerance_ns))


def _interpolated(times_ns: NDArray[np.int64], row_ns: NDArray[np.int64], tolerance_ns: int) -> _Match:
    left, none_before = _latest(times_ns, row_ns)
    since_left = row_ns - times_ns[left]
    exact = ~none_before & (since_left == 0)
    right = np.where(exact | none_before, left, np.minimum(left + 1, times_ns.size - 1))
    to_right = times_ns[right] - row_ns
    bracketed = ~none_before & (to_right > 0) & (since_left <= tolerance_ns) & (to_right <= tolerance_ns)
    weight = np.zeros(row_ns.size, dtype=np.float32)
    np.divide(since_left, since_left + to_right, out=weight, where=bracketed, casting="unsafe")
    return _Match(left, right, weight, ~(exact | bracketed))


def _latest(times_ns: NDArray[np.int64], row_ns: NDArray[np.int64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Position of the last message at or before each row, and where there is none (position 0 then)."""
    latest = np.searchsorted(times_ns, row_ns, side="right")
    latest -= 1
    none_before = latest < 0
    np.maximum(latest, 0, out=latest)
    return latest, none_before


def _stand_in(
    match: _Match, times_ns: NDArray[np.int64], row_ns: NDArray[np.int64]
) -> tuple[_Match, NDArray[np.bool_]]:
    """Let the last message before a missing row stand in, whatever its age; before the first one nothing can."""
    latest, none_before = _latest(times_ns, row_ns)
    held = match.missing & ~none_before
    left = np.where(held, latest, match.left)
    right = None if match.right is None else np.where(held, latest, match.right)
    if match.weight is not None:
        match.weight[held] = 0.0
    return _Match(left, right, match.weight, match.missing & none_before), held


def _refuse_missing(
    stream: Stream, ordered: OrderedTimes, rows: Rows, missing: NDArray[np.bool_], tolerance_ns: int
) -> None:
    if stream.missing != "reject" or not missing.any():
        return
    where_ns = rows.times_ns[missing]
    what = f"{stream.name}: {where_ns.size:,} of {missing.size:,} rows find no message ({stream.policy}, within "
    what += f"{tolerance_ns / 1e6:.1f} ms); the first at {(int(where_ns[0]) - rows.origin_ns) / NS_PER_S:.3f} s"
    if ordered.times_ns.size:
        nearest = _nearest(ordered.times_ns, where_ns - stream.offset_ns, 0, has_duplicates=False).left
        farthest_ns = int(np.abs(where_ns - stream.offset_ns - ordered.times_ns[nearest]).max())
        what += f", the farthest {farthest_ns / NS_PER_S:.3f} s away from any message"
    else:
        what += "; the stream has no messages"
    raise AlignError(what, hint="missing: trim cuts and counts such rows, missing: hold repeats the last message")
