"""One step on the page: which spans of which thread lie in it, short neighbours drawn as one bar."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from penstock.profile.report.page_charts import Block, Lane, Stage, round_marks
from penstock.system.units import format_duration_ns

_MAX_LANES = 40
_MAX_BLOCKS = 1500
_FINEST = 1 / 1200  # of the step: about a pixel
_COARSEST = 1 / 20
_MAX_DEPTH = 12


class Piece(NamedTuple):
    """One span as the timeline needs it."""

    name: str
    start_ns: int
    duration_ns: int
    depth: int


class Track(NamedTuple):
    """What one thread (or the GPU) did."""

    title: str
    subtitle: str
    pieces: Sequence[Piece]


def step_lanes(tracks: Iterable[Track], start_ns: int, duration_ns: int, stages: Mapping[str, Stage]) -> list[Lane]:
    """The lanes of the threads that did something between `start_ns` and its end, with few enough bars for a page."""
    inside = [(track, [piece for piece in track.pieces if _overlaps(piece, start_ns, duration_ns)]) for track in tracks]
    busy = [(track, pieces) for track, pieces in inside if pieces][:_MAX_LANES]
    resolution = _FINEST
    while True:
        lanes = [
            Lane(track.title, track.subtitle, _blocks(pieces, start_ns, duration_ns, resolution, stages))
            for track, pieces in busy
        ]
        if sum(len(lane.blocks) for lane in lanes) <= _MAX_BLOCKS or resolution >= _COARSEST:
            return lanes
        resolution *= 2


def step_ticks(duration_ns: int) -> list[tuple[float, str]]:
    """Where the axis below a step has labels: round times, and the end of the step."""
    power = 1_000 if duration_ns < 2_000_000 else 1_000_000 if duration_ns < 2_000_000_000 else 1_000_000_000
    unit = {1_000: "µs", 1_000_000: "ms", 1_000_000_000: "s"}[power]
    top = max(duration_ns, 1) / power
    marks = [(mark / top, f"{mark:g} {unit}") for mark in round_marks(top, 6)]
    return [*(mark for mark in marks if mark[0] < 0.9), (1.0, format_duration_ns(duration_ns))]


def _overlaps(piece: Piece, start_ns: int, duration_ns: int) -> bool:
    return piece.start_ns < start_ns + duration_ns and piece.start_ns + piece.duration_ns > start_ns


def _blocks(
    pieces: Sequence[Piece], start_ns: int, duration_ns: int, resolution: float, stages: Mapping[str, Stage]
) -> list[Block]:
    found: list[Block] = []
    for depth in sorted({min(piece.depth, _MAX_DEPTH) for piece in pieces}):
        level = sorted((p for p in pieces if min(p.depth, _MAX_DEPTH) == depth), key=lambda piece: piece.start_ns)
        for group in _groups(level, duration_ns * resolution):
            found.append(_block(group, depth, start_ns, duration_ns, stages))
    return found


def _groups(level: Sequence[Piece], smallest_ns: float) -> list[list[Piece]]:
    """Neighbours that are too short to be seen alone, together; the others alone."""
    groups: list[list[Piece]] = []
    end_ns, open_ = 0, False
    for piece in level:
        short = piece.duration_ns < smallest_ns
        if short and open_ and piece.start_ns - end_ns < smallest_ns:
            groups[-1].append(piece)
        else:
            groups.append([piece])
        open_, end_ns = short, piece.start_ns + piece.duration_ns
    return groups


def _block(group: Sequence[Piece], depth: int, start_ns: int, duration_ns: int, stages: Mapping[str, Stage]) -> Block:
    first_ns, last_ns = group[0].start_ns, max(piece.start_ns + piece.duration_ns for piece in group)
    left = max(0.0, (first_ns - start_ns) / duration_ns)
    right = min(1.0, (last_ns - start_ns) / duration_ns)
    time_by_name: dict[str, int] = {}
    for piece in group:
        time_by_name[piece.name] = time_by_name.get(piece.name, 0) + piece.duration_ns
    ranked = sorted(time_by_name, key=lambda name: -time_by_name[name])
    label = ranked[0] if len(ranked) == 1 else f"{ranked[0]} …"
    if len(group) == 1:
        tip = f"{label}\n{format_duration_ns(group[0].duration_ns)}, from {format_duration_ns(first_ns - start_ns)}"
    else:
        told = ", ".join(f"{name} {format_duration_ns(time_by_name[name])}" for name in ranked[:5])
        tip = f"{len(group)} short spans\n{told}"
    return Block(label, tip, left, max(0.0, right - left), depth, stages[ranked[0]])
