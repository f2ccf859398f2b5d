"""Pairing: which message, or which two, every row takes from one stream; and the value between two messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.align.rate import NS_PER_S, Rate
from penstock._src.align.streams import OrderedTimes, Policy, TopicStream
from penstock._src.align.timeline import TimelineRows
from penstock.errors import AlignError

Quadruple = tuple[int, int, int, int]

# Below this angle sin(angle) loses its meaning and the chord is the arc.
_SMALLEST_ANGLE = 1e-9


@dataclass(frozen=True, eq=False)
class RowPick:
    """What each row takes from one stream: message numbers in file order, and for interpolation a second one.

    The value of a row is `left + weight · (right - left)`; without `right`, it is `left`. `pick[100:200]` is a view.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32] | None = None
    weight: NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return int(self.left.size)

    def __getitem__(self, rows: slice | NDArray[np.bool_]) -> RowPick:
        return RowPick(
            self.left[rows],
            None if self.right is None else self.right[rows],
            None if self.weight is None else self.weight[rows],
        )


class Pairing(NamedTuple):
    """A stream's pick for every row of the timeline, and where it had none."""

    pick: RowPick
    missing: NDArray[np.bool_]  # nothing may be taken here
    held: NDArray[np.bool_] | None  # an older message stands in; None: nowhere
    tolerance_ns: int


class _Match(NamedTuple):
    """Positions in time order; `right` and `weight` for interpolation only."""

    left: NDArray[np.intp]
    right: NDArray[np.intp] | None
    weight: NDArray[np.float32] | None
    missing: NDArray[np.bool_]


def pair(stream: TopicStream, ordered: OrderedTimes, rows: TimelineRows) -> Pairing:
    """Find the messages of `stream` for every row; AlignError where its policy rejects missing data."""
    tolerance_ns = tolerance_of(stream, ordered, rows)
    n_rows = rows.times_ns.size
    if not ordered.times_ns.size:
        pick = _blank_pick(n_rows, stream.interpolates)
        missing = np.ones(n_rows, dtype=np.bool_)
        _refuse_missing(stream, rows, missing, tolerance_ns)
        return Pairing(pick, missing, None, tolerance_ns)
    row_ns = rows.times_ns - stream.offset_ns
    if stream.is_static:
        latest, _ = _latest(ordered.times_ns, row_ns)
        return Pairing(RowPick(ordered.numbers(latest)), np.zeros(n_rows, dtype=np.bool_), None, tolerance_ns)
    if stream.interpolates:
        match = _interpolated(ordered.times_ns, row_ns, tolerance_ns)
    elif stream.policy == "hold":
        match = _held(ordered.times_ns, row_ns, tolerance_ns)
    else:
        match = _nearest(ordered.times_ns, row_ns, tolerance_ns, has_duplicates=ordered.duplicate_times > 0)
    _refuse_missing(stream, rows, match.missing, tolerance_ns)
    held = None
    if stream.missing == "hold" and match.missing.any():
        match, held = _hold_last(match, ordered.times_ns, row_ns)
    right = None if match.right is None else ordered.numbers(match.right)
    return Pairing(RowPick(ordered.numbers(match.left), right, match.weight), match.missing, held, tolerance_ns)


def tolerance_of(stream: TopicStream, ordered: OrderedTimes, rows: TimelineRows) -> int:
    """The tolerance that the stream has, or the usual one."""
    if stream.tolerance_ns is not None:
        return stream.tolerance_ns
    return usual_tolerance_ns(rows.period_ns, ordered.rate)


def usual_tolerance_ns(row_period_ns: int, rate: Rate | None) -> int:
    """1.5 times the longer of the row period and the topic's usual time without a message."""
    return 3 * max(row_period_ns, 0 if rate is None else rate.arrival_ns) // 2


def pair_timeline(numbers: NDArray[np.int32], stream: TopicStream, tolerance_ns: int) -> Pairing:
    """The timeline's own stream: every row is one of its messages, and takes exactly that one."""
    pick = RowPick(numbers)
    if stream.interpolates:
        pick = RowPick(numbers, numbers, np.zeros(numbers.size, dtype=np.float32))
    return Pairing(pick, np.zeros(numbers.size, dtype=np.bool_), None, tolerance_ns)


def _blank_pick(n_rows: int, interpolates: bool) -> RowPick:
    nothing = np.zeros(n_rows, dtype=np.int32)
    return RowPick(nothing, nothing, np.zeros(n_rows, dtype=np.float32)) if interpolates else RowPick(nothing)


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


def _hold_last(
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


def _refuse_missing(stream: TopicStream, rows: TimelineRows, missing: NDArray[np.bool_], tolerance_ns: int) -> None:
    if stream.missing != "reject" or not missing.any():
        return
    where_ns = rows.times_ns[missing]
    raise AlignError(
        f"{stream.name}: {where_ns.size:,} of {missing.size:,} rows find no message ({stream.policy}, within "
        f"{tolerance_ns / 1e6:.1f} ms); the first at {(int(where_ns[0]) - rows.origin_ns) / NS_PER_S:.3f} s",
        hint="missing: trim cuts and counts such rows, missing: hold repeats the last message",
    )


def interpolate(
    pick: RowPick,
    left_values: NDArray[Any],
    right_values: NDArray[Any] | None,
    policy: Policy,
    *,
    quaternions: Sequence[Quadruple] = (),
) -> NDArray[np.float64]:
    """The values of the rows of `pick`, one row of `left_values` and `right_values` (n, columns) for each.

    `quaternions` names, for slerp, the columns of each x, y, z, w; every other column is blended linearly.
    Where the weight is 0 the left values come back untouched (quaternions normalised), whatever the right ones hold.
    """
    left = np.asarray(left_values, np.float64)
    if policy not in ("linear", "slerp") or pick.weight is None or right_values is None:
        return left
    right = np.asarray(right_values, np.float64)
    weight = pick.weight.astype(np.float64)[:, np.newaxis]
    blended = linear(left, right, weight)
    if policy == "slerp":
        for columns in map(list, quaternions):
            blended[:, columns] = slerp(left[:, columns], right[:, columns], weight)
    return blended


def linear(left: NDArray[np.float64], right: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """`left` at weight 0, `right` at 1; exact at both ends, and never outside of the two."""
    with np.errstate(invalid="ignore", over="ignore"):
        blended = (1.0 - weight) * left + weight * right
    # An infinity or a NaN of a message that has no weight must not come through, and rounding must not leave the range.
    np.clip(blended, np.minimum(left, right), np.maximum(left, right), out=blended)
    return np.where(weight == 0.0, left, np.where(weight == 1.0, right, blended))


def slerp(left: NDArray[np.float64], right: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn from `left` to `right` (rows of x, y, z, w) along the shorter arc, at constant speed; unit length.

    A quaternion of length zero (or not finite) has no direction: such rows take the one with more weight as recorded.
    """
    left_unit, left_good = _unit(left)
    right_unit, right_good = _unit(right)
    # q and -q are the same rotation: turn the right one to the side of the left one.
    right_unit = np.where(np.sum(left_unit * right_unit, axis=1, keepdims=True) < 0.0, -right_unit, right_unit)
    # Half-angle form: accurate for tiny angles, where arccos of the dot product is not.
    angle = 2.0 * np.arctan2(_length(right_unit - left_unit), _length(right_unit + left_unit))
    tiny = angle < _SMALLEST_ANGLE
    sine = np.where(tiny, 1.0, np.sin(angle))
    from_left = np.where(tiny, 1.0 - weight, np.sin((1.0 - weight) * angle) / sine)
    from_right = np.where(tiny, weight, np.sin(weight * angle) / sine)
    turned, _ = _unit(from_left * left_unit + from_right * right_unit)
    turned = np.where(weight == 0.0, left_unit, turned)
    as_recorded = np.where(weight <= 0.5, left, right)
    return np.where((left_good & right_good) | (left_good & (weight == 0.0)), turned, as_recorded)


def _unit(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    length = _length(rows)
    good = np.isfinite(length) & (length > 0.0)
    with np.errstate(invalid="ignore"):
        unit = np.where(good, rows, 0.0) / np.where(good, length, 1.0)
    return unit, good


def _length(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        length: NDArray[np.float64] = np.sqrt(np.sum(rows * rows, axis=1, keepdims=True))
    return length
