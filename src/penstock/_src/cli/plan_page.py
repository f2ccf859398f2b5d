"""A plan as one HTML page: what it is, what it costs, the budget as a bar, the ways and their figures, what to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from penstock._src.system.units import format_bytes, format_size

if TYPE_CHECKING:
    from penstock._src.plan.conversion_plan import ConversionPlan
    from penstock._src.plan.load_plan import LoadPlan

Facts = Sequence[tuple[str, str]]
Cells = Sequence[Sequence[str]]

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5d6b7a; --line: #dde3ea; --back: #fff; --panel: #f2f5f9;
  --mark: #2f6fde; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5eaf0; --soft: #9aa7b5; --line: #33404d; --back: #14191f; --panel: #1f2730; --mark: #6ea1ff; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 960px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 22px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 36px 0 12px; }
.kind, .note { color: var(--soft); margin: 4px 0 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px; margin-top: 24px; }
.cards div { background: var(--panel); border-radius: 8px; padding: 12px 16px; }
.cards span { color: var(--soft); display: block; font-size: 13px; } .cards b { font-size: 19px; }
dl { display: grid; grid-template-columns: 7em 1fr; gap: 4px 16px; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th { color: var(--soft); font-weight: normal; font-size: 13px; }
th, td { text-align: right; padding: 7px 10px; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
td:last-child { white-space: normal; color: var(--soft); }
tr.chosen td { font-weight: 600; background: var(--panel); } tr.chosen td:last-child { color: var(--mark); }
tr.refused td { color: var(--soft); }
.bar { display: flex; height: 30px; border-radius: 6px; overflow: hidden; background: var(--panel);
  border: 1px solid var(--line); }
.bar div { min-width: 2px; } .zoom { margin-top: 8px; height: 14px; }
.parts { list-style: none; padding: 0; margin: 12px 0 0; columns: 2 260px; }
.parts li { display: flex; align-items: center; gap: 8px; } .parts b { margin-left: auto; font-weight: normal; }
.parts i { width: 12px; height: 12px; border-radius: 3px; border: 1px solid var(--line); }
pre { background: var(--panel); padding: 12px 16px; border-radius: 6px; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""
_COLOURS = ("#2f6fde", "#20a39e", "#e08e2b", "#8d5bd1", "#d1495b", "#6b8f3c", "#4a90a4", "#b56576")
_LITTLE = 0.25  # of the budget: a bar that is mostly empty is drawn once more, for what is used


def loading_cells(plan: LoadPlan) -> list[tuple[str, ...]]:
    """The ways to load it, and their figures; the first line is the head."""
    cells: list[tuple[str, ...]] = [("way", "memory", "disk", "fills in", "samples/s", "")]
    for each in plan.options:
        sizes = format_bytes(each.peak_bytes), format_size(each.disk_bytes)
        mark = _mark(each is plan.chosen, each.why_not)
        cells.append((each.name, *sizes, each.fill_text, f"{each.samples_per_s:,.0f}", mark))
    return cells


def _mark(is_chosen: bool, why_not: str) -> str:
    return "← chosen" if is_chosen else f"not possible: {why_not}" if why_not else ""


def conversion_cells(plan: ConversionPlan) -> list[tuple[str, ...]]:
    """The ways to store its cameras, and what each takes; the first line is the head."""
    cells: list[tuple[str, ...]] = [("video", "peak memory", "")]
    for each in plan.options:
        size = "–" if each.why_not else format_bytes(each.peak_bytes)
        why_not = " → ".join(filter(None, (each.why_not, each.hint)))
        cells.append((each.video, size, _mark(each is plan.chosen, why_not)))
    return cells


def loading_page(plan: LoadPlan, facts: Facts = ()) -> str:
    """How a store is loaded."""
    codes = [f"import penstock\n\nstore = {plan.opening}\nloader = {plan.code}"]
    codes += [f"dataset = {each.code}" for each in plan.options if each.code]
    cards = [
        ("strategy", plan.strategy.replace("_", " ")),
        ("loaded with", plan.chosen.name),
        ("peak memory", format_bytes(plan.peak_bytes)),
        ("samples/s", f"{plan.samples_per_s:,.0f}"),
    ]
    body = [
        _cards(cards),
        "<h2>What it is</h2>",
        _facts([*plan.lines(), *facts]),
        _budget(plan.chosen.memory_bytes, plan.budget_bytes),
        "<h2>Ways to load it</h2>",
        _table(loading_cells(plan)),
        "<h2>Run</h2>",
        *(f"<pre>{escape(code)}</pre>" for code in codes),
    ]
    kind = f"{plan.kind} · {plan.samples:,} samples · {format_size(plan.stored_bytes)}"
    return _page(plan.path, f"Loading it: {kind}", body)


def conversion_page(plan: ConversionPlan, facts: Facts = (), commands: Sequence[str] = ()) -> str:
    """How an input is converted."""
    body = []
    if plan.chosen is not None:
        cards = [
            ("cameras stored as", plan.chosen.video),
            ("peak memory", format_bytes(plan.chosen.peak_bytes)),
            ("budget", format_bytes(plan.budget_bytes)),
            ("frames/s", "–" if plan.fps is None else f"{plan.fps:g}"),
        ]
        body.append(_cards(cards))
    if plan.lines or facts:
        body += ["<h2>What it is</h2>", _facts([*plan.lines, *facts])]
    if plan.chosen is not None:
        body.append(_budget(plan.chosen.memory_bytes, plan.budget_bytes))
    body += ["<h2>Ways to store its cameras</h2>", _table(conversion_cells(plan))]
    if commands:
        body.append(f"<h2>Run</h2><pre>{escape(chr(10).join(commands))}</pre>")
    return _page(plan.path, f"Converting it: {plan.kind} · {format_size(plan.size_bytes)}", body)


def _page(title: str, kind: str, body: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(title)} · penstock plan</title><style>{_STYLE}</style></head>"
        f'<body><main><h1>{escape(title)}</h1><p class="kind">{escape(kind)}</p>{"".join(body)}'
        '<p class="note">All figures are predictions for this machine. '
        "<code>penstock plan --history</code> shows how good they were.</p></main></body></html>\n"
    )


def _cards(cards: Facts) -> str:
    items = (f"<div><span>{escape(label)}</span><b>{escape(text)}</b></div>" for label, text in cards)
    return f'<div class="cards">{"".join(items)}</div>'


def _facts(lines: Facts) -> str:
    return "<dl>" + "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in lines) + "</dl>"


def _budget(parts: Mapping[str, int], budget_bytes: int) -> str:
    used_bytes = sum(parts.values())
    colours = {name: _COLOURS[number % len(_COLOURS)] for number, name in enumerate(parts)}
    bars = _bar(parts, colours, max(budget_bytes, used_bytes, 1), "bar")
    if used_bytes < _LITTLE * budget_bytes:
        bars += '<p class="note">The part that is used:</p>' + _bar(parts, colours, max(used_bytes, 1), "bar zoom")
    items = [
        f'<li><i style="background:{colours[name]}"></i>{escape(name)}<b>{format_bytes(size)}</b></li>'
        for name, size in parts.items()
    ]
    items.append(f"<li><i></i>left of the budget<b>{format_bytes(max(0, budget_bytes - used_bytes))}</b></li>")
    head = f"<h2>The budget of {format_bytes(budget_bytes)}, and what {format_bytes(used_bytes)} of it hold</h2>"
    return f'{head}{bars}<ul class="parts">{"".join(items)}</ul>'


def _bar(parts: Mapping[str, int], colours: Mapping[str, str], whole_bytes: int, kind: str) -> str:
    pieces = (
        f'<div style="width:{100 * size / whole_bytes:.2f}%;background:{colours[name]}" '
        f'title="{escape(name)}: {format_bytes(size)}"></div>'
        for name, size in parts.items()
    )
    return f'<div class="{kind}">{"".join(pieces)}</div>'


def _table(cells: Cells) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in cells[0])
    lines = []
    for line in cells[1:]:
        kind = "chosen" if line[-1].endswith("chosen") else "refused" if line[-1] else ""
        lines.append(f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>")
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>'
