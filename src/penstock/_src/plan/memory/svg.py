"""A sampler's curves as one small SVG: the tree of processes, this process in it, and the peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock._src.system.units import format_bytes, format_duration_ns

if TYPE_CHECKING:
    from penstock._src.plan.memory.sampler import MemoryPeaks, MemorySample

_WIDTH, _HEIGHT = 720, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 12, 24, 28


def draw(samples: Sequence[MemorySample], peaks: MemoryPeaks) -> str:
    """An SVG document."""
    top = max([peaks.tree_bytes, peaks.own_bytes, 1])
    end = max([each.seconds for each in samples] or [0.0]) or 1.0

    def x(seconds: float) -> float:
        return _LEFT + seconds / end * (_WIDTH - _LEFT - _RIGHT)

    def y(n_bytes: int) -> float:
        return _HEIGHT - _BOTTOM - n_bytes / top * (_HEIGHT - _TOP - _BOTTOM)

    marks = [_tick(y(round(top * share)), format_bytes(round(top * share))) for share in (0.0, 0.5, 1.0)]
    base = _HEIGHT - 8
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="15">all processes (blue), this process (grey): peak {format_bytes(top)}</text>',
        *marks,
        _curve(samples, x, y, lambda each: each.tree_bytes, "#1f6feb"),
        _curve(samples, x, y, lambda each: each.own_bytes, "#888888"),
        f'<text x="{_LEFT}" y="{base}">0</text>',
        f'<text x="{_WIDTH - _RIGHT}" y="{base}" text-anchor="end">{format_duration_ns(end * 1e9)}</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _tick(height: float, text: str) -> str:
    return (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{height:.1f}" y2="{height:.1f}" stroke="#dddddd"/>'
        f'<text x="{_LEFT - 6}" y="{height + 4:.1f}" text-anchor="end">{text}</text>'
    )


def _curve(
    samples: Sequence[MemorySample],
    x: Callable[[float], float],
    y: Callable[[int], float],
    size: Callable[[MemorySample], int],
    colour: str,
) -> str:
    points = " ".join(f"{x(each.seconds):.1f},{y(size(each)):.1f}" for each in samples)
    return f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>'
