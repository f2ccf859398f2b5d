"""The drawings of the page: a step's timeline, stages as bars, data wait and memory as curves; names are only text."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any, NamedTuple

from penstock._src.profile.report.figures import MAIN_THREAD, StageRow, memory_limit_bytes, stage_rows
from penstock._src.profile.stats import Snapshot, SpanEvent, StepPoint, ThreadEvents
from penstock._src.system.units import format_bytes, format_duration_ns

MOST_LETTERS = 2000

_LETTERS = 160
_COLOURS = 10
_ROW_PX = 22
_FINEST = 1 / 400  # of the step: a few pixels
_MAX_DEPTH = 12
_MOST_POINTS = 480
_MOST_STAGES = 30
_MOST_THREADS = 40


# Elements


def short(text: str, most: int = _LETTERS) -> str:
    """A name that is not too long."""
    return text if len(text) <= most else text[: most - 1] + "…"


def html(text: str, most: int = _LETTERS) -> str:
    """A name as it stands in the page: text and nothing else."""
    return escape(short(text, most))


def tag(name: str, inner: str = "", **attributes: str) -> str:
    """An element around HTML; its attributes are texts (`kind` is its class), of which empty ones are left out."""
    named = {"class" if key == "kind" else key.replace("_", "-"): text for key, text in attributes.items() if text}
    words = "".join(f' {key}="{escape(text)}"' for key, text in named.items())
    return f"<{name}{words}>{inner}</{name}>"


def section(title: str, lead: str, body: str = "") -> str:
    """A part of the page; without a body, what is said of it is why."""
    about = tag("p", html(lead, MOST_LETTERS), kind="lead" if body else "empty")
    return tag("section", tag("h2", html(title)) + about + body)


def percent(fraction: float) -> str:
    """For a style."""
    return f"{100 * min(max(fraction, 0.0), 1.0):.5g}%"


def _note(text: str) -> str:
    return tag("p", html(text, MOST_LETTERS), kind="note")


def _keys(*keys: tuple[str, str]) -> str:
    """The keys of a drawing: (style of the sample, what it means); a limit is dashed."""
    items = (tag("li", tag("i", style=style, kind="" if style else "dash") + html(text)) for style, text in keys)
    return tag("ul", "".join(items), kind="keys")


def _paint(colour: str) -> str:
    return f"background:var(--{colour})"


def _ticks(ticks: Sequence[tuple[float, str]]) -> str:
    spans = (tag("span", html(text), style=f"left:{percent(at)}") for at, text in ticks)
    return tag("div", "".join(spans), kind="ticks")


def round_marks(top: float, wanted: int = 4) -> list[float]:
    """Round numbers from 0 to `top`, about `wanted` of them: 0, 20, 40, 60."""
    if top <= 0:
        return [0.0]
    rough = top / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(step * number, 12) for number in range(int(top / step + 1e-9) + 1)]


def _unit_of(duration_ns: float) -> tuple[float, str]:
    return (1e3, "µs") if duration_ns < 2e6 else (1e6, "ms") if duration_ns < 2e9 else (1e9, "s")


class StageStyle(NamedTuple):
    """How a stage looks wherever it appears: its number finds its bars, and is its colour."""

    number: int
    waits: bool  # the data wait has a colour of its own

    @property
    def paint(self) -> str:
        return f"background-color:var(--{'wait' if self.waits else f'c{self.number % _COLOURS}'})"


def looks_of(rows: Sequence[StageRow]) -> dict[str, StageStyle]:
    """The number and colour of each stage; a stage of the host and of the GPU with one name look the same."""
    names = {row.name: row.is_wait for row in rows}
    return {name: StageStyle(number, waits) for number, (name, waits) in enumerate(names.items())}


# The timeline of a step


def step_section(snapshot: Snapshot) -> str:
    """The timeline of the median step, and of the slowest one that is still known."""
    known = _known_steps(snapshot)
    if not known:
        why = "no step was marked" if not snapshot.steps.count else "the last steps have no recorded spans"
        return section("One step", f"There is nothing to draw: {why}.")
    middle_ns = snapshot.steps.p50_ns or round(snapshot.steps.mean_ns)
    median = min(known, key=lambda point: (abs(point.duration_ns - middle_ns), -point.step))
    slowest = max(known, key=lambda point: point.duration_ns)
    panes = {"Median step": median}
    if slowest is not median:
        panes[f"Slowest of the last {len(known):,}"] = slowest
    tabs = "".join(
        f'<input type="radio" name="pane" id="pane{number}"{"" if number else " checked"}>'
        f'<label for="pane{number}">{label}</label>'
        for number, label in enumerate(panes)
    )
    drawn = "".join(tag("div", _one_step(snapshot, point), kind="pane") for point in panes.values())
    lead = "What every thread did during it. Loaders work ahead: what they do here is for later steps."
    return section("One step", lead, tag("div", tabs + drawn, kind="tabs"))


def _known_steps(snapshot: Snapshot) -> list[StepPoint]:
    """The steps of which the spans are still in the rings: of all threads, or else of any."""
    spans = [each.events for each in snapshot.events if each.events]
    firsts = [events[0].start_ns for events in spans]
    last_ns = max((event.start_ns + event.duration_ns for events in spans for event in events), default=0)
    points = [point for point in snapshot.steps.series if point.duration_ns > 0 and point.start_ns < last_ns]
    for begin_ns in (max(firsts, default=0), min(firsts, default=0)):
        if found := [point for point in points if point.start_ns + point.duration_ns // 2 >= begin_ns]:
            return found
    return []


def _one_step(snapshot: Snapshot, point: StepPoint) -> str:
    """Threads below each other, what they did in a step as bars, children below parents."""
    rows: list[str] = []
    stages = looks_of(stage_rows(snapshot))
    for thread in sorted(snapshot.events, key=lambda each: _place(each, snapshot.process)):
        for event in thread.events:
            stages.setdefault(event.name, StageStyle(len(stages), False))
        bars = step_bars(thread.events, point.start_ns, point.duration_ns, stages)
        if not bars or len(rows) == _MOST_THREADS:
            continue
        is_own = thread.process == snapshot.process
        title = thread.thread if is_own else thread.process_name or f"process {thread.process}"
        more = "" if is_own else f"{thread.thread} · {thread.process}"
        height = max(_ROW_PX * (1 + max(bar.depth for bar in bars)) + 2, 38 if more else 0)
        name = html(title) + (tag("small", html(more)) if more else "")
        lanes = tag("div", "".join(map(_bar, bars)), kind="lanes", style=f"height:{height}px")
        rows.append(tag("div", name, kind="who", title=short(f"{title} {more}".strip())) + lanes)
    ticks = step_ticks(point.duration_ns)
    grid = percent(ticks[1][0]) if len(ticks) > 2 else "100%"  # lines where the labels are
    took, waited = format_duration_ns(point.duration_ns), format_duration_ns(point.wait_ns)
    text = (
        f"Step {point.step:,}: {took}, of which {waited} ({100 * point.wait_ns / point.duration_ns:.0f} %) data wait."
    )
    if snapshot.steps.steps_per_point > 1:
        text += f" Its length is the mean of {snapshot.steps.steps_per_point} steps."
    return tag("div", "".join(rows) + "<div></div>" + _ticks(ticks), kind="steps", style=f"--grid:{grid}") + _note(text)


def _place(thread: ThreadEvents, main_process: int) -> tuple[Any, ...]:
    """The loop's thread first, then the others of its process, then workers, as people look for them."""
    name = thread.thread
    return thread.process != main_process, thread.process, name != MAIN_THREAD, len(name), name


class TimelineBar(NamedTuple):
    """One bar of the timeline, in fractions of the step; several short spans may be one bar."""

    label: str
    tip: str
    left: float
    width: float
    depth: int
    stage: StageStyle


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
    for depth, group in ((depth, group) for depth, row in sorted(groups.items()) for group in row):
        first_ns, last_ns = group[0].start_ns, max(each.start_ns + each.duration_ns for each in group)
        left, right = max(first_ns, start_ns) - start_ns, min(last_ns, end_ns) - start_ns
        name, spent = group[0].name, format_duration_ns(sum(each.duration_ns for each in group))
        tip = f"{short(name)}\n{spent}, from {format_duration_ns(first_ns - start_ns)}"
        if len(group) > 1:
            tip = f"{len(group)} short spans\n{short(', '.join(sorted({each.name for each in group})))}: {spent}"
        bars.append(TimelineBar(name, tip, left / duration_ns, (right - left) / duration_ns, depth, stages[name]))
    return bars


def _bar(bar: TimelineBar) -> str:
    is_wide = bar.width > 0.035
    place = f"left:{percent(bar.left)};width:{percent(bar.width)};top:{_ROW_PX * bar.depth + 1}px;{bar.stage.paint}"
    kind = "bar" + " thin" * (not is_wide) + " wait" * bar.stage.waits
    label = html(bar.label) if is_wide else ""
    return tag("div", label, kind=kind, title=bar.tip, style=place, data_stage=str(bar.stage.number))


def step_ticks(duration_ns: int) -> list[tuple[float, str]]:
    """Where the axis below a step has labels: round times, and the end of the step."""
    power, unit = _unit_of(duration_ns)
    top = duration_ns / power
    marks = [(mark / top, f"{mark:g} {unit}") for mark in round_marks(top, 6)]
    return [*(mark for mark in marks if mark[0] < 0.9), (1.0, format_duration_ns(duration_ns))]


# Stages


def stages_section(snapshot: Snapshot) -> str:
    """Self and total time of each stage as bars."""
    rows = stage_rows(snapshot)
    if not rows:
        return section("Stages", "No span was recorded.")
    stages, steps_ns, shown = looks_of(rows), snapshot.steps.total_ns, rows[:_MOST_STAGES]
    loop = [row for row in shown if row.is_gpu or not row.where]
    around = [row for row in shown if not row.is_gpu and row.where]
    drawn = ""
    for title, part, least_ns in (("The loop", loop, steps_ns), ("Around it", around, 0)):
        if part:
            longest_ns = max(row.total_ns for row in part)
            whole = "the time of all steps" if least_ns >= max(longest_ns, 1) else "the longest stage"
            width = f"full width: {whole}" if part is loop else f"summed over threads and workers; full width: {whole}"
            bars = (_stage_bar(row, stages[row.name], max(least_ns, longest_ns, 1)) for row in part)
            drawn += f"<h3>{title} <small>{width}</small></h3>" + "".join(bars)
    if left := len(rows) - len(shown):
        drawn += _note(f"{left:,} shorter stages are not drawn.")
    own, total = "self: without the stages inside it", "total: with them"
    drawn += _keys((_paint("c8"), own), (_paint("c8") + ";opacity:.32", total))
    return section("Stages", "Time in each stage; the longest first.", drawn)


def _stage_bar(row: StageRow, stage: StageStyle, longest_ns: int) -> str:
    """One row of the stages: total behind, self time before it; the table has all its numbers."""
    total, mean = format_duration_ns(row.total_ns), format_duration_ns(row.mean_ns)
    share = "" if row.share is None else f"\n{100 * row.share:.1f} % of the time of all steps"
    fills = ""
    for kind, ns in (("total", row.total_ns), ("self" + " wait" * stage.waits, row.self_ns)):
        width = f"width:{percent(ns / longest_ns)};{stage.paint}"
        fills += tag("div", kind=f"fill {kind}", style=width, data_stage=str(stage.number))
    name = tag("div", html(row.name) + (tag("small", html(row.where)) if row.where else ""), kind="name")
    numbers = tag("div", f"<b>{total}</b> · {mean} × {row.count:,}", kind="numbers")
    tip = f"{short(row.label)}\ntotal {total}, self {format_duration_ns(row.self_ns)}{share}"
    return tag("div", name + tag("div", fills, kind="track") + numbers, kind="stage", title=tip)


# Over time


class Curve(NamedTuple):
    """Values over the common x of a chart; `fill` paints the area below it."""

    values: Sequence[float]
    colour: str
    meaning: str = ""
    fill: str = ""


def wait_section(snapshot: Snapshot) -> str:
    """Step and data wait over the steps; of several steps per point the means, and the slowest as a thin line."""
    title, points = "Data wait over time", snapshot.steps.series
    if not points:
        return section(title, "No step was marked: call penstock.profile.mark_step() once per step.")
    bins = _binned(points)
    steps_ns = [fmean(point.duration_ns for point in each) for each in bins]
    waits_ns = [fmean(point.wait_ns for point in each) for each in bins]
    highest = [max(point.duration_ns for point in each) for each in bins]
    top = _cut_top(highest)
    tips = [
        f"step {each[0].step:,}\nstep {format_duration_ns(step)}\ndata wait {format_duration_ns(wait)}"
        f" ({100 * wait / max(step, 1):.0f} %)" + (f"\nslowest {format_duration_ns(most)}" if len(each) > 1 else "")
        for each, step, wait, most in zip(bins, steps_ns, waits_ns, highest, strict=True)
    ]
    curves = [Curve(highest, "faint")] if len(bins) < len(points) else []
    curves.append(Curve(steps_ns, "line", "step", "line-soft"))
    curves.append(Curve(waits_ns, "wait", "of it, waiting for data", "wait-soft"))
    # Not by their numbers, which may begin anew with every epoch.
    numbers = [f"{points[at].step:,}" for at in (0, (len(points) - 1) // 2, -1)]
    ticks = [(0.0, f"step {numbers[0]}"), (0.5, numbers[1]), (1.0, numbers[2])][: 1 + 2 * (len(points) > 1)]
    drawn = _chart(
        title, range(0, len(points), len(bins[0])), curves, tips=tips, ticks=ticks, top=top, unit=_unit_of(top)[0],
        y_text=lambda ns: format_duration_ns(ns).replace(".0 ", " "),
    )  # fmt: skip
    if above := [point for point in points if point.duration_ns > top]:
        worst = max(above, key=lambda point: point.duration_ns)
        took = format_duration_ns(worst.duration_ns)
        drawn += _note(f"{len(above):,} higher than drawn; the slowest, step {worst.step:,}, took {took}.")
    return section(title, "How long each step took, and how much of it the loop waited.", drawn)


def memory_section(snapshot: Snapshot) -> str:
    """Memory of the process and of it with its children over the run."""
    title, points = "Memory over time", snapshot.memory
    if not points:
        return section(title, "No memory was sampled.")
    bins = _binned(points)  # of several samples the highest: a peak must not vanish
    own = [max(point.rss_bytes for point in each) for each in bins]
    tree = [max(point.tree_pss_bytes for point in each) for each in bins]
    begin_ns, length_ns = points[0].time_ns, points[-1].time_ns - points[0].time_ns
    tips = [
        f"after {format_duration_ns(each[0].time_ns - begin_ns)}\nprocess {format_bytes(rss)}"
        f"\nwith children {format_bytes(pss)}"
        for each, rss, pss in zip(bins, own, tree, strict=True)
    ]
    curves = [Curve(tree, "line", "with its children (PSS)", "line-soft"), Curve(own, "c1", "this process (RSS)")]
    limit, most = memory_limit_bytes(snapshot), max(*own, *tree)
    if 0 < limit < 2.5 * most:
        curves.append(Curve([limit] * len(bins), "limit", f"{format_bytes(limit)} granted"))
        most = max(limit, most)
    ticks = [
        (part, format_duration_ns(length_ns * part) if part else "0")
        for part in ((0.0, 0.5, 1.0) if length_ns else (0.0,))
    ]
    drawn = _chart(
        title, [each[0].time_ns for each in bins], curves, tips=tips, ticks=ticks, top=most * 1.1 or 1.0,
        unit=float(2**10 if most < 2**21 else 2**20 if most < 2**31 else 2**30),
        y_text=lambda size: format_bytes(round(size)),
    )  # fmt: skip
    return section(title, "What the training process and its workers held.", drawn)


def _binned(points: Sequence[Any]) -> list[Sequence[Any]]:
    size = -(-len(points) // _MOST_POINTS)
    return [points[at : at + size] for at in range(0, len(points), size)]


def _cut_top(values: Sequence[float]) -> float:
    """Where the axis ends: above all values, but for a few spikes that would flatten the rest."""
    ordered = sorted(values)
    usual = ordered[int(0.98 * (len(ordered) - 1))]
    return (ordered[-1] if ordered[-1] <= 1.6 * usual else usual * 1.25) * 1.06 or 1.0


def _chart(
    title: str, places: Sequence[int], curves: Sequence[Curve], *, tips: Sequence[str],
    ticks: Sequence[tuple[float, str]], top: float, unit: float, y_text: Callable[[float], str],
) -> str:  # fmt: skip
    """Curves over ascending places and y from 0 to `top`; what lies above is cut, and the caller says so."""
    xs = [(place - places[0]) / max(places[-1] - places[0], 1) for place in places]
    marks = [mark * unit for mark in round_marks(top / unit)]
    lines = "".join(f'<path class="grid" d="M0 {1000 * (1 - mark / top):.1f}H1000"/>' for mark in marks[1:])
    labels = "".join(
        tag("span", html(y_text(mark) if mark else "0"), style=f"bottom:{percent(mark / top)}") for mark in marks
    )
    drawn = f'<svg viewBox="0 0 1000 1000" preserveAspectRatio="none" aria-hidden="true">{lines}'
    drawn += "".join(_curve(xs, curve, top) for curve in curves) + "</svg>"
    points = json.dumps([[round(x, 4), tip] for x, tip in zip(xs, tips, strict=True)], ensure_ascii=False)
    parts = tag("div", labels, kind="y") + tag("div", drawn, kind="plot", data_points=points)
    parts += tag("div", _ticks(ticks), kind="x")
    styles = {curve.meaning: "" if curve.colour == "limit" else _paint(curve.colour) for curve in curves}
    keys = _keys(*((style, meaning) for meaning, style in styles.items() if meaning))
    return tag("div", parts, kind="chart", role="img", aria_label=title) + keys


def _curve(xs: Sequence[float], curve: Curve, top: float) -> str:
    # A little above the top is enough to leave the drawing; a far spike would only cost digits.
    ys = [1000 * (1 - min(value / top, 1.2)) for value in curve.values]
    places = [1000 * x for x in xs]
    if len(ys) == 1:  # one point is a line across
        places, ys = [0.0, 1000.0], ys * 2
    line = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in zip(places, ys, strict=True))
    ends = f"L{places[-1]:.1f} 1000L{places[0]:.1f} 1000Z"
    area = f'<path d="{line}{ends}" style="fill:var(--{curve.fill});stroke:none"/>' if curve.fill else ""
    dash = ";stroke-dasharray:6 5" if curve.colour == "limit" else ""
    return f'{area}<path d="{line}" style="stroke:var(--{curve.colour}){dash}"/>'
