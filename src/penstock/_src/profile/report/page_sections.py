"""The sections of the page: a step's timeline, stages, data wait and memory over time, the table, other facts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from penstock._src.profile.report.figures import MAIN_THREAD, StageRow, memory_limit_bytes, stage_rows
from penstock._src.profile.report.page_charts import MOST_LETTERS, Curve, StageStyle, chart, html, stage_bar, timeline
from penstock._src.profile.schema import encode
from penstock._src.profile.stats import Snapshot, StepPoint, ThreadEvents
from penstock._src.system.units import format_bytes, format_duration_ns

_MOST_POINTS = 480
_MOST_STAGES = 30
_MOST_ROWS = 200
_MOST_NOTES = 40
_MOST_THREADS = 40


def _section(title: str, lead: str, body: str) -> str:
    return f'<section><h2>{html(title)}</h2><p class="lead">{html(lead, MOST_LETTERS)}</p>{body}</section>'


def _nothing(title: str, why: str) -> str:
    return f'<section><h2>{html(title)}</h2><p class="empty">{html(why)}</p></section>'


def _note(text: str) -> str:
    return f'<p class="note">{html(text, MOST_LETTERS)}</p>'


def _keys(*keys: tuple[str, str]) -> str:
    """The keys of a drawing: (style of the sample, what it means)."""
    items = "".join(f"<li><i {style}></i>{html(text)}</li>" for style, text in keys)
    return f'<ul class="keys">{items}</ul>'


def _paint(colour: str) -> str:
    return f'style="background:var(--{colour})"'


def _looks(rows: Sequence[StageRow]) -> dict[str, StageStyle]:
    """The number and colour of each stage; a stage of the host and of the GPU with one name look the same."""
    found: dict[str, StageStyle] = {}
    for row in rows:
        if row.name not in found:
            found[row.name] = StageStyle(len(found), row.is_wait)
    return found


# A step


def step_section(snapshot: Snapshot) -> str:
    """The timeline of the median step, and of the slowest one that is still known."""
    known = _known_steps(snapshot)
    if not known:
        why = "no step was marked" if not snapshot.steps.count else "the last steps have no recorded spans"
        return _nothing("One step", f"There is nothing to draw: {why}.")
    middle_ns = snapshot.steps.p50_ns or round(snapshot.steps.mean_ns)
    median = min(known, key=lambda point: (abs(point.duration_ns - middle_ns), -point.step))
    slowest = max(known, key=lambda point: point.duration_ns)
    panes = [("Median step", median)]
    if slowest is not median:
        panes.append((f"Slowest of the last {len(known):,}", slowest))
    inputs = "".join(
        f'<input type="radio" name="pane" id="pane{number}"{" checked" if not number else ""}>'
        f'<label for="pane{number}">{html(label)}</label>'
        for number, (label, _) in enumerate(panes)
    )
    drawn = "".join(f'<div class="pane">{_one_step(snapshot, point)}</div>' for _, point in panes)
    lead = "What every thread did during it. Loaders work ahead: what they do here is for later steps."
    return _section("One step", lead, f'<div class="tabs">{inputs}{drawn}</div>')


def _one_step(snapshot: Snapshot, point: StepPoint) -> str:
    duration_ns = max(1, point.duration_ns)
    end_ns = point.start_ns + duration_ns
    threads = []
    stages = _looks(stage_rows(snapshot))
    for thread in sorted(snapshot.events, key=lambda each: _place(each, snapshot.process)):
        for event in thread.events:
            stages.setdefault(event.name, StageStyle(len(stages), False))
        if any(each.start_ns < end_ns and each.start_ns + each.duration_ns > point.start_ns for each in thread.events):
            is_own = thread.process == snapshot.process
            title = thread.thread if is_own else thread.process_name or f"process {thread.process}"
            threads.append((title, "" if is_own else f"{thread.thread} · {thread.process}", thread.events))
    share = 100 * point.wait_ns / duration_ns
    text = (
        f"Step {point.step:,}: {format_duration_ns(point.duration_ns)}, of which "
        f"{format_duration_ns(point.wait_ns)} ({share:.0f} %) data wait."
    )
    if snapshot.steps.steps_per_point > 1:
        text += f" Its length is the mean of {snapshot.steps.steps_per_point} steps."
    return timeline(threads[:_MOST_THREADS], point.start_ns, duration_ns, stages) + _note(text)


def _place(thread: ThreadEvents, main_process: int) -> tuple[Any, ...]:
    """The loop's thread first, then the others of its process, then workers, as people look for them."""
    name = thread.thread
    return thread.process != main_process, thread.process, name != MAIN_THREAD, len(name), name


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


# Stages


def stages_section(snapshot: Snapshot) -> str:
    """Self and total time of each stage as bars."""
    rows = stage_rows(snapshot)
    if not rows:
        return _nothing("Stages", "No span was recorded.")
    stages, steps_ns, shown = _looks(rows), snapshot.steps.total_ns, rows[:_MOST_STAGES]
    loop = [row for row in shown if row.is_gpu or not row.where]
    around = [row for row in shown if not row.is_gpu and row.where]
    drawn = ""
    for title, part, least_ns in (("The loop", loop, steps_ns), ("Around it", around, 0)):
        if part:
            longest_ns = max(row.total_ns for row in part)
            whole = "the time of all steps" if least_ns >= max(longest_ns, 1) else "the longest stage"
            width = f"full width: {whole}" if part is loop else f"summed over threads and workers; full width: {whole}"
            bars = (stage_bar(row, stages[row.name], max(least_ns, longest_ns, 1)) for row in part)
            drawn += f"<h3>{title} <small>{width}</small></h3>" + "".join(bars)
    if left := len(rows) - len(shown):
        drawn += f'<p class="note">{left:,} shorter stages are not drawn.</p>'
    keys = _keys(
        (_paint("c8"), "self: without the stages inside it"),
        ('style="background:var(--c8);opacity:.32"', "total: with them"),
    )
    return _section("Stages", "Time in each stage; the longest first.", drawn + keys)


# Over time


def wait_section(snapshot: Snapshot) -> str:
    """Step and data wait over the steps; of several steps per point the means, and the slowest as a thin line."""
    title, points = "Data wait over time", snapshot.steps.series
    if not points:
        return _nothing(title, "No step was marked: call penstock.profile.mark_step() once per step.")
    bins = _binned(points)
    steps_ns = [sum(point.duration_ns for point in each) / len(each) for each in bins]
    waits_ns = [sum(point.wait_ns for point in each) / len(each) for each in bins]
    highest = [max(point.duration_ns for point in each) for each in bins]
    top = _cut_top(highest)
    tips = [
        f"step {each[0].step:,}\nstep {format_duration_ns(round(step))}\ndata wait {format_duration_ns(round(wait))}"
        f" ({100 * wait / max(step, 1):.0f} %)" + (f"\nslowest {format_duration_ns(most)}" if len(each) > 1 else "")
        for each, step, wait, most in zip(bins, steps_ns, waits_ns, highest, strict=True)
    ]
    curves = [Curve(steps_ns, "line", "line-soft"), Curve(waits_ns, "wait", "wait-soft")]
    if max(len(each) for each in bins) > 1:
        curves.insert(0, Curve(highest, "faint"))
    # Not by their numbers, which may begin anew with every epoch.
    numbers = [f"{points[at].step:,}" for at in (0, (len(points) - 1) // 2, -1)]
    ticks = [(0.0, f"step {numbers[0]}"), (0.5, numbers[1]), (1.0, numbers[2])][: 1 + 2 * (len(points) > 1)]
    drawn = chart(
        title, _places(range(0, len(points), len(bins[0]))), curves, tips=tips, x_ticks=ticks, top=top,
        unit=1e3 if top < 2e6 else 1e6 if top < 2e9 else 1e9,
        y_text=lambda ns: format_duration_ns(round(ns)).replace(".0 ", " ") if ns else "0",
    )  # fmt: skip
    drawn += _keys((_paint("line"), "step"), (_paint("wait"), "of it, waiting for data"))
    if above := [point for point in points if point.duration_ns > top]:
        worst = max(above, key=lambda point: point.duration_ns)
        took = format_duration_ns(worst.duration_ns)
        drawn += _note(f"{len(above):,} higher than drawn; the slowest, step {worst.step:,}, took {took}.")
    return _section(title, "How long each step took, and how much of it the loop waited.", drawn)


def memory_section(snapshot: Snapshot) -> str:
    """Memory of the process and of it with its children over the run."""
    title, points = "Memory over time", snapshot.memory
    if not points:
        return _nothing(title, "No memory was sampled.")
    bins = _binned(points)  # of several samples the highest: a peak must not vanish
    own = [max(point.rss_bytes for point in each) for each in bins]
    tree = [max(point.tree_pss_bytes for point in each) for each in bins]
    has_tree = any(tree)
    limit, most = memory_limit_bytes(snapshot), max(*own, *tree)
    shows_limit = bool(limit) and limit < 2.5 * most
    top = max(limit, most) * 1.06 if shows_limit else most * 1.12
    begin_ns = points[0].time_ns
    tips = [
        f"after {format_duration_ns(each[0].time_ns - begin_ns)}\nprocess {format_bytes(rss)}"
        + (f"\nwith children {format_bytes(pss)}" if has_tree else "")
        for each, rss, pss in zip(bins, own, tree, strict=True)
    ]
    curves, keys = [Curve(own, "c1", None if has_tree else "line-soft")], [(_paint("c1"), "this process (RSS)")]
    if has_tree:
        curves.insert(0, Curve(tree, "line", "line-soft"))
        keys.append((_paint("line"), "with its children (PSS)"))
    if shows_limit:
        curves.append(Curve([limit] * len(bins), "limit", dashed=True))
        keys.append(('class="dash"', f"{format_bytes(limit)} granted"))
    length_ns = points[-1].time_ns - begin_ns
    parts = (0.0, 0.5, 1.0) if length_ns else (0.0,)
    ticks = [(part, format_duration_ns(round(length_ns * part)) if part else "0") for part in parts]
    drawn = chart(
        title, _places([each[0].time_ns for each in bins]), curves, tips=tips, x_ticks=ticks, top=top,
        unit=float(2**10 if top < 2**21 else 2**20 if top < 2**31 else 2**30),
        y_text=lambda size: format_bytes(round(size)) if size else "0",
    )  # fmt: skip
    return _section(title, "What the training process and its workers held.", drawn + _keys(*keys))


def _binned(points: Sequence[Any]) -> list[list[Any]]:
    size = -(-len(points) // _MOST_POINTS)
    return [list(points[at : at + size]) for at in range(0, len(points), size)]


def _places(values: Sequence[int]) -> list[float]:
    span = max(values[-1] - values[0], 1)
    return [min(max((value - values[0]) / span, 0.0), 1.0) for value in values]


def _cut_top(values: Sequence[float]) -> float:
    """Where the axis ends: above all values, but for a few spikes that would flatten the rest."""
    ordered = sorted(values)
    usual = ordered[int(0.98 * (len(ordered) - 1))]
    return (ordered[-1] if ordered[-1] <= 1.6 * usual else usual * 1.25) * 1.06


# Words and numbers


def table_section(snapshot: Snapshot) -> str:
    """All stages with all their numbers."""
    rows = stage_rows(snapshot)
    if not rows:
        return ""
    stages = _looks(rows)
    heads = ("Stage", "Total", "Self", "Calls", "Mean", "p50", "p95", "p99", "Longest", "Share")
    head = "".join(f"<th{' aria-sort=descending' if name == 'Total' else ''}>{name}</th>" for name in heads)
    body = "".join(_table_row(row, stages[row.name]) for row in rows[:_MOST_ROWS])
    left = f" {len(rows) - _MOST_ROWS:,} shorter stages are left out." if len(rows) > _MOST_ROWS else ""
    lead = "Share is of the time of all steps; it may be above 100 % where several threads work at once."
    if any(row.nested_ns for row in rows):
        lead += " A call inside a call of the same name is in the total once, and in the mean as any other."
    drawn = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return _section("Table", lead + left, drawn)


def _table_row(row: StageRow, stage: StageStyle) -> str:
    def time(ns: float, is_bold: bool = False) -> str:
        text = format_duration_ns(round(ns))
        return f'<td data-value="{round(ns)}">{f"<b>{text}</b>" if is_bold else text}</td>'

    where = f"<small>{html(row.where)}</small>" if row.where else ""
    share = "–" if row.share is None else f"{100 * row.share:.1f} %"
    return (
        f'<tr><td><i style="{stage.paint}"></i>{html(row.name)}{where}</td>'
        f'{time(row.total_ns, True)}{time(row.self_ns)}<td data-value="{row.count}">{row.count:,}</td>'
        f"{''.join(map(time, (row.mean_ns, row.p50_ns, row.p95_ns, row.p99_ns, row.max_ns)))}"
        f'<td data-value="{row.share or 0:.6f}">{share}</td></tr>'
    )


def notes_section(snapshot: Snapshot) -> str:
    """Epochs, counters, the machine, the loaders; and what could not be recorded."""
    facts: list[tuple[str, str]] = []
    for each in snapshot.epochs[-10:]:
        share = 100 * each.wait_ns / max(1, each.duration_ns)
        took = f"{format_duration_ns(each.duration_ns)} · {each.steps:,} steps · data wait {share:.1f} %"
        facts.append((f"epoch {each.epoch}", took))
    for name, count in snapshot.counters.items():
        size = f" ({format_bytes(count)})" if "bytes" in name and count >= 1024 else ""
        facts.append((name, f"{count:,}{size}"))
    for name, gauge in snapshot.gauges.items():
        facts.append((name, f"last {gauge.last:g} · mean {gauge.mean:.3g} · from {gauge.min:g} to {gauge.max:g}"))
    for name, value in snapshot.machine.items():
        is_size = name.endswith("_bytes") and isinstance(value, int)
        facts.append((f"machine: {name}", format_bytes(value) if is_size else _json(value)))
    facts += [(f"loader {number}", _json(each.to_json())) for number, each in enumerate(snapshot.loaders)]
    facts += [(f"not recorded: {name}", f"{count:,}") for name, count in snapshot.lost.items() if count]
    if not facts:
        return ""
    body = "".join(f"<dt>{html(name)}</dt><dd>{html(text, MOST_LETTERS)}</dd>" for name, text in facts[:_MOST_NOTES])
    return f"<section><h2>What else is known</h2><dl>{body}</dl></section>"


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(encode(value), ensure_ascii=False)
