"""The drawings of the page: bars and curves as HTML and SVG, made from plain numbers; every name is escaped here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

LANE_PX = 22
_COLOURS = 10
_LETTERS = 160
_TIP_LETTERS = 800


class Stage(NamedTuple):
    """How a stage looks wherever it appears: its number finds its bars, and is its colour."""

    number: int
    waits: bool  # the data wait has a colour of its own

    @property
    def paint(self) -> str:
        return f"background-color:var(--{'wait' if self.waits else f'c{self.number % _COLOURS}'})"

    @property
    def wait_class(self) -> str:
        return " wait" if self.waits else ""


class Block(NamedTuple):
    """One bar of the timeline, in fractions of the step; several short spans may be one bar."""

    label: str
    tip: str
    left: float
    width: float
    depth: int
    stage: Stage


class Lane(NamedTuple):
    """One thread: who it is, and its bars."""

    title: str
    subtitle: str
    blocks: Sequence[Block]


class StageBar(NamedTuple):
    """One row of the stages: how much of the longest total is total, and how much self time."""

    name: str
    where: str
    tip: str
    total: float
    self_: float
    numbers: tuple[str, str]
    stage: Stage


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


def timeline(lanes: Sequence[Lane], ticks: Sequence[tuple[float, str]]) -> str:
    """Threads below each other, their spans as bars, children below their parents."""
    rows = []
    for lane in lanes:
        height = LANE_PX * (1 + max((block.depth for block in lane.blocks), default=0)) + 2
        subtitle = f"<small>{html(lane.subtitle)}</small>" if lane.subtitle else ""
        who = attribute(f"{lane.title} {lane.subtitle}".strip())
        bars = "".join(_bar(block) for block in lane.blocks)
        rows.append(
            f'<div class="who" title="{who}">{html(lane.title)}{subtitle}</div>'
            f'<div class="lanes" style="height:{max(height, 38 if subtitle else 0)}px">{bars}</div>'
        )
    grid = percent(ticks[1][0]) if len(ticks) > 2 else "100%"  # lines where the labels are
    return f'<div class="steps" style="--grid:{grid}">{"".join(rows)}<div></div>{_ticks(ticks)}</div>'


def _bar(block: Block) -> str:
    wide = block.width > 0.035
    tip = attribute(block.tip)
    place = f"left:{percent(block.left)};width:{percent(block.width)};top:{LANE_PX * block.depth + 1}px"
    return (
        f'<div class="bar{"" if wide else " thin"}{block.stage.wait_class}" data-stage="{block.stage.number}" '
        f'title="{tip}" style="{place};{block.stage.paint}">{html(block.label) if wide else ""}</div>'
    )


def _ticks(ticks: Sequence[tuple[float, str]]) -> str:
    spans = "".join(f'<span style="left:{percent(at)}">{html(text)}</span>' for at, text in ticks)
    return f'<div class="ticks">{spans}</div>'


def stage_bars(bars: Sequence[StageBar]) -> str:
    """One row per stage: total behind, self time before it."""
    return "".join(_stage_bar(bar) for bar in bars)


def _stage_bar(bar: StageBar) -> str:
    tip = attribute(bar.tip)
    number, paint = bar.stage.number, bar.stage.paint
    total = f'class="fill total" data-stage="{number}" style="width:{percent(bar.total)};{paint}"'
    own = f'class="fill self{bar.stage.wait_class}" data-stage="{number}" style="width:{percent(bar.self_)};{paint}"'
    where = f"<small>{html(bar.where)}</small>" if bar.where else ""
    return (
        f'<div class="stage" title="{tip}"><div class="name">{html(bar.name)}{where}</div>'
        f'<div class="track"><div {total}></div><div {own}></div></div>'
        f'<div class="numbers"><b>{html(bar.numbers[0])}</b> {html(bar.numbers[1])}</div></div>'
    )


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
    if not xs:
        return ""
    spots = [
        # A little above the top is enough to leave the drawing; a far spike would only cost digits.
        f"{1000 * x:.1f} {1000 * (1 - min(value / top, 1.2)):.1f}"
        for x, value in zip(xs, curve.values, strict=True)
    ]
    line = "M" + "L".join(spots)
    if len(spots) == 1:  # one point is a line across
        line = f"M0 {spots[0].split()[1]}H1000"
    area = ""
    if curve.fill:
        ends = (f"{1000 * xs[0]:.1f}", f"{1000 * xs[-1]:.1f}") if len(spots) > 1 else ("0", "1000")
        area = f'<path d="{line}L{ends[1]} 1000L{ends[0]} 1000Z" style="fill:var(--{curve.fill});stroke:none"/>'
    dash = ";stroke-dasharray:6 5" if curve.dashed else ""
    return f'{area}<path d="{line}" style="stroke:var(--{curve.stroke}){dash}"/>'


def round_marks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to `top`, about `wanted` of them: 0, 20, 40, 60."""
    if not math.isfinite(top) or top <= 0:
        return [0.0]
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(step * number, 12) for number in range(int(top / step + 1e-9) + 1)]
