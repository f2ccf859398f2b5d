"""The drawings of the page: bars and curves as HTML and SVG, made from plain numbers; every name is escaped here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from penstock._src.profile.report.figures import StageRow
from penstock._src.profile.stats import SpanEvent
from penstock._src.system.units import format_duration_ns

MOST_LETTERS = 2000

_ROW_PX = 22
_COLOURS = 10
_LETTERS = 160
_TIP_LETTERS = 800
_FINEST = 1 / 400  # of the step: a few pixels
_MAX_DEPTH = 12


class StageStyle(NamedTuple):
    """How a stage looks wherever it appears: its number finds its bars, and is its colour."""

    number: int
    waits: bool  # the data wait has a colour of its own

    @property
    def paint(self) -> str:
        return f"background-color:var(--{'wait' if self.waits else f'c{self.number % _COLOURS}'})"

    @property
    def wait_class(self) -> str:
        return " wait" if self.waits else ""


class TimelineBar(NamedTuple):
    """One bar of the timeline, in fractions of the step; several short spans may be one bar."""

    label: str
    tip: str
    left: float
    width: float
    depth: int
    stage: StageStyle


class Curve(NamedTuple):
    """Values over the common x of a chart; `fill` paints the area below it."""

    values: Sequence[float]
    stroke: str
    fill: str | None = None
    dashed: bool = False


def html(text: str, most: int = _LETTERS) -> str:
    """A name as it stands in the page: text and nothing else, and not too long."""
    return escape(text if len(text) <= most else text[: most - 1] + "…")


def attribute(text: str) -> str:
    """A text inside an attribute, its lines kept."""
    return html(text, _TIP_LETTERS).replace("\n", "&#10;")


def percent(fraction: float) -> str:
    return f"{100 * min(max(fraction, 0.0), 1.0):.3f}".rstrip("0").rstrip(".") + "%"


def round_marks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to `top`, about `wanted` of them: 0, 20, 40, 60."""
    if not math.isfinite(top) or top <= 0:
        return [0.0]
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(step * number, 12) for number in range(int(top / step + 1e-9) + 1)]


# The timeline of a step


def timeline(
    threads: Sequence[tuple[str, str, Sequence[SpanEvent]]],
    start_ns: int,
    duration_ns: int,
    stages: Mapping[str, StageStyle],
) -> str:
    """Threads (title, subtitle, events) below each other, what they did in a step as bars, children below parents."""
    rows = []
    for title, subtitle, events in threads:
        bars = step_bars(events, start_ns, duration_ns, stages)
        height = max(_ROW_PX * (1 + max((bar.depth for bar in bars), default=0)) + 2, 38 if subtitle else 0)
        small = f"<small>{html(subtitle)}</small>" if subtitle else ""
        rows.append(
            f'<div class="who" title="{attribute(f"{title} {subtitle}".strip())}">{html(title)}{small}</div>'
            f'<div class="lanes" style="height:{height}px">{"".join(map(_bar, bars))}</div>'
        )
    ticks = step_ticks(duration_ns)
    grid = percent(ticks[1][0]) if len(ticks) > 2 else "100%"  # lines where the labels are
    return f'<div class="steps" style="--grid:{grid}">{"".join(rows)}<div></div>{_ticks(ticks)}</div>'


def step_bars(
    events: Sequence[SpanEvent], start_ns: int, duration_ns: int, stages: Mapping[str, StageStyle]
) -> list[TimelineBar]:
    """The bars of one thread; neighbours that are too short to be seen alone are one, of the first one's name."""
    end_ns, smallest_ns = start_ns + duration_ns, duration_ns * _FINEST
    groups: dict[int, list[list[SpanEvent]]] = {}
    for each in sorted(events, key=lambda each: each.start_ns):
        if each.start_ns >= end_ns or each.start_ns + each.duration_ns <= start_ns:
            continue
        row = groups.setdefault(min(each.depth, _MAX_DEPTH), [])
        last = row[-1][-1] if row else None
        if last and each.start_ns - last.start_ns < smallest_ns > max(last.duration_ns, each.duration_ns):
            row[-1].append(each)
        else:
            row.append([each])
    bars = []
    for depth, row in sorted(groups.items()):
        for group in row:
            first_ns, last_ns = group[0].start_ns, max(each.start_ns + each.duration_ns for each in group)
            left, right = max(first_ns, start_ns) - start_ns, min(last_ns, end_ns) - start_ns
            name, spent = group[0].name, format_duration_ns(sum(each.duration_ns for each in group))
            tip = f"{name}\n{spent}, from {format_duration_ns(first_ns - start_ns)}"
            if len(group) > 1:
                tip = f"{len(group)} short spans\n{', '.join(sorted({each.name for each in group})[:5])}: {spent}"
            bars.append(TimelineBar(name, tip, left / duration_ns, (right - left) / duration_ns, depth, stages[name]))
    return bars


def _bar(bar: TimelineBar) -> str:
    is_wide = bar.width > 0.035
    place = f"left:{percent(bar.left)};width:{percent(bar.width)};top:{_ROW_PX * bar.depth + 1}px"
    return (
        f'<div class="bar{"" if is_wide else " thin"}{bar.stage.wait_class}" data-stage="{bar.stage.number}" '
        f'title="{attribute(bar.tip)}" style="{place};{bar.stage.paint}">{html(bar.label) if is_wide else ""}</div>'
    )


def step_ticks(duration_ns: int) -> list[tuple[float, str]]:
    """Where the axis below a step has labels: round times, and the end of the step."""
    power, unit = (1e3, "µs") if duration_ns < 2e6 else (1e6, "ms") if duration_ns < 2e9 else (1e9, "s")
    top = max(duration_ns, 1) / power
    marks = [(mark / top, f"{mark:g} {unit}") for mark in round_marks(top, 6)]
    return [*(mark for mark in marks if mark[0] < 0.9), (1.0, format_duration_ns(duration_ns))]


def _ticks(ticks: Sequence[tuple[float, str]]) -> str:
    spans = "".join(f'<span style="left:{percent(at)}">{html(text)}</span>' for at, text in ticks)
    return f'<div class="ticks">{spans}</div>'


# Stages


def stage_bar(row: StageRow, stage: StageStyle, longest_ns: int) -> str:
    """One row of the stages: total behind, self time before it."""
    lines = [
        row.label,
        f"total {format_duration_ns(row.total_ns)}, self {format_duration_ns(row.self_ns)}",
        f"{row.count:,} calls, mean {format_duration_ns(round(row.mean_ns))}",
        f"p50 {format_duration_ns(row.p50_ns)}, p95 {format_duration_ns(row.p95_ns)}",
        f"p99 {format_duration_ns(row.p99_ns)}, longest {format_duration_ns(row.max_ns)}",
    ]
    if row.share is not None:
        lines.append(f"{100 * row.share:.1f} % of the time of all steps")
    fills = "".join(
        f'<div class="fill {kind}" data-stage="{stage.number}" style="width:{percent(ns / longest_ns)};{stage.paint}">'
        "</div>"
        for kind, ns in (("total", row.total_ns), (f"self{stage.wait_class}", row.self_ns))
    )
    where = f"<small>{html(row.where)}</small>" if row.where else ""
    mean = f"· {format_duration_ns(round(row.mean_ns))} × {row.count:,}"
    tip = attribute("\n".join(lines))
    return (
        f'<div class="stage" title="{tip}"><div class="name">{html(row.name)}{where}</div>'
        f'<div class="track">{fills}</div>'
        f'<div class="numbers"><b>{html(format_duration_ns(row.total_ns))}</b> {html(mean)}</div></div>'
    )


# Curves


def chart(
    name: str,
    xs: Sequence[float],
    curves: Sequence[Curve],
    *,
    top: float,
    y_text: Callable[[float], str],
    x_ticks: Sequence[tuple[float, str]],
    tips: Sequence[str],
    unit: float = 1.0,
) -> str:
    """Curves over x from 0 to 1 (`xs`) and y from 0 to `top`; what lies above is cut, and the caller says so."""
    top = top if math.isfinite(top) and top > 0 else 1.0
    marks = [mark for mark in round_marks(top / unit) if mark * unit <= top * 1.0001]
    lines = "".join(
        f'<path class="grid" d="M0 {1000 * (1 - mark * unit / top):.1f}H1000"/>' for mark in marks if mark > 0
    )
    labels = "".join(
        f'<span style="bottom:{percent(mark * unit / top)}">{html(y_text(mark * unit))}</span>' for mark in marks
    )
    shapes = "".join(_curve(xs, curve, top) for curve in curves)
    points = escape(json.dumps([[round(x, 4), tip] for x, tip in zip(xs, tips, strict=True)], ensure_ascii=False))
    return (
        f'<div class="chart" role="img" aria-label="{attribute(name)}"><div class="y">{labels}</div>'
        f'<div class="plot" data-points="{points}">'
        '<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">'
        f'{lines}{shapes}</svg></div><div class="x">{_ticks(x_ticks)}</div></div>'
    )


def _curve(xs: Sequence[float], curve: Curve, top: float) -> str:
    # A little above the top is enough to leave the drawing; a far spike would only cost digits.
    ys = [1000 * (1 - min(value / top, 1.2)) for value in curve.values]
    places = [1000 * x for x in xs]
    if len(ys) == 1:  # one point is a line across
        places, ys = [0.0, 1000.0], ys * 2
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(places, ys, strict=True))
    area = ""
    if curve.fill:
        ends = f"L{places[-1]:.1f} 1000L{places[0]:.1f} 1000Z"
        area = f'<path d="{line}{ends}" style="fill:var(--{curve.fill});stroke:none"/>'
    dash = ";stroke-dasharray:6 5" if curve.dashed else ""
    return f'{area}<path d="{line}" style="stroke:var(--{curve.stroke}){dash}"/>'
