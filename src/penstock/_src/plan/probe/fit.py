"""The probe's arithmetic: which batches to measure, the line through their peaks, and the batch that still fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock._src.plan.probe.caching_allocator import ScaledTrace, Trace
from penstock._src.system.units import format_bytes
from penstock.errors import LimitExceeded

_MOST_POINTS = 9
_APART = 1.2  # points that are closer than this give no line: what is measured has its noise
_LINEAR = 0.02  # a point that is further from the line is not on it
_REPLAY_ERROR = 0.05
MOST_SAMPLES = 1 << 20  # of a batch: beyond it nothing is looked for


@dataclass(frozen=True)
class ProbePoint:
    """The peak of some steps at one batch size."""

    batch_size: int
    allocated_bytes: int
    reserved_bytes: int
    seconds: float = 0.0


@dataclass(frozen=True)
class LinearFit:
    """peak(b) = fixed_bytes + sample_bytes · b."""

    fixed_bytes: float
    sample_bytes: float

    def at(self, batch_size: int) -> int:
        """The peak at a batch size."""
        return round(self.fixed_bytes + self.sample_bytes * batch_size)

    def largest(self, limit_bytes: int) -> int:
        """The largest batch whose peak is within a limit; 0 where none is."""
        if self.at(1) > limit_bytes:
            return 0
        if self.sample_bytes <= 0:
            return MOST_SAMPLES
        return min(MOST_SAMPLES, int((limit_bytes - self.fixed_bytes) / self.sample_bytes))


def fit_line(first: tuple[int, int], second: tuple[int, int]) -> LinearFit:
    """The line through two (batch size, bytes); memory does not fall with the batch."""
    slope = max(0.0, (second[1] - first[1]) / (second[0] - first[0]))
    return LinearFit(second[1] - slope * second[0], slope)


@dataclass(frozen=True)
class ProbeFit:
    """The points measured, the lines through the last two, and how far a third point was from the line."""

    points: tuple[ProbePoint, ...]
    allocated: LinearFit
    reserved: LinearFit
    linearity_error: float


def climb(
    measure: Callable[[int], ProbePoint], limit_bytes: int, start: int, most: int, held_bytes: int = 0
) -> ProbeFit:
    """Measure rising batches up to about half of what fits. `held_bytes`: what is held before any step.

    A batch is tried only if it fits even where all that steps take grows in proportion to it, its fixed part too. So
    nothing runs out of memory, whatever small batches hide: an optimizer step that outweighs them, or workspaces.
    """
    points = [measure(start)]
    if points[0].reserved_bytes > limit_bytes:
        raise LimitExceeded(
            f"a step with {start} samples takes {format_bytes(points[0].reserved_bytes)}, over the limit of "
            f"{format_bytes(limit_bytes)}",
            size=points[0].reserved_bytes,
            limit=limit_bytes,
            hint="a smaller model or optimizer, activation checkpointing, or start=1",
        )
    while len(points) < _MOST_POINTS:
        following = _next(points, limit_bytes, most, held_bytes)
        if following is None:
            break
        points.append(measure(following))
    allocated, reserved = (_last_line(points, name) for name in ("allocated_bytes", "reserved_bytes"))
    error = _linearity_error(points)
    if len(points) == 2 and points[1].batch_size > points[0].batch_size + 1:
        # No room above for a third point: one between the two checks the line as well.
        points.insert(1, measure((points[0].batch_size + points[1].batch_size) // 2))
        error = _off_line(reserved, points[1])
    return ProbeFit(tuple(points), allocated, reserved, error)


def _next(points: Sequence[ProbePoint], limit_bytes: int, most: int, held_bytes: int) -> int | None:
    last = points[-1]
    used, room = max(last.reserved_bytes - held_bytes, 1), max(limit_bytes - held_bytes, 0)
    safe = min(most, last.batch_size * room // used)
    if len(points) == 1:
        wanted = 2 * last.batch_size
    else:
        goal = _last_line(points, "reserved_bytes").largest(limit_bytes)
        is_linear = len(points) > 2 and _linearity_error(points) <= _LINEAR
        if last.batch_size >= (0.4 if is_linear else 0.7) * min(goal, most):
            return None
        share = 8 if len(points) == 2 else 2 if last.batch_size < 0.4 * goal else 1.3
        wanted = min(int(goal / share), 16 * last.batch_size)
    following = min(max(wanted, last.batch_size + 1), safe)
    return following if following >= _APART * last.batch_size else None


def _last_line(points: Sequence[ProbePoint], name: str) -> LinearFit:
    if len(points) == 1:  # nothing else fits: in proportion
        return LinearFit(0.0, getattr(points[0], name) / points[0].batch_size)
    first, second = points[-2:]
    return fit_line((first.batch_size, getattr(first, name)), (second.batch_size, getattr(second, name)))


def _linearity_error(points: Sequence[ProbePoint]) -> float:
    """The last point against the line through the two before it, relative; not known with two points."""
    if len(points) < 3:
        return math.inf
    return _off_line(_last_line(points[:-1], "reserved_bytes"), points[-1])


def _off_line(line: LinearFit, point: ProbePoint) -> float:
    return abs(line.at(point.batch_size) - point.reserved_bytes) / max(point.reserved_bytes, 1)


def scaled_trace(traces: Sequence[Trace | None]) -> tuple[ScaledTrace | None, float]:
    """What the last two points allocated, as a trace of any batch, and how far its replay is from what was measured.

    There is none where nothing was recorded, or where the replay is too far off: other rules, several streams.
    """
    known = sorted((each for each in traces if each is not None), key=lambda each: each.batch_size)
    if len(known) < 2:
        return None, math.inf
    trace = ScaledTrace(known[-2], known[-1])
    error = trace.error()
    return (trace if error <= _REPLAY_ERROR else None), error


def largest_batch(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The largest batch from `low` to `high` that fits, by bisection; 0 where `low` does not."""
    if high < low or not fits(low):
        return 0
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
