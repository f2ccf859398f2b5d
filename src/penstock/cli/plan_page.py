"""A plan as one HTML page: what it is, the budget as a bar, the ways and their figures, what to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from penstock.system.units import format_bytes, format_size

if TYPE_CHECKING:
    from penstock.plan.conversion_plan import ConversionPlan
    from penstock.plan.load_plan import LoadPlan

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2733; --soft: #5d6b7a; --line: #dde3ea; --back: #fff; --panel: #f5f7fa; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e5eaf0; --soft: #9aa7b5; --line: #33404d; --back: #14191f; --panel: #1d242c; }
}
body { margin: 0; background: var(--back); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 32px 20px; }
h1 { font-size: 22px; overflow-wrap: anywhere; } h2 { font-size: 16px; margin-top: 32px; }
dl { display: grid; grid-template-columns: 9em 1fr; gap: 4px 16px; } dt { color: var(--soft); } dd { margin: 0; }
table { border-collapse: collapse; width: 100%; } th { color: var(--soft); font-weight: normal; }
th, td { text-align: right; padding: 6px 10px; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left; }
tr.chosen td { font-weight: 600; }
.bar { display: flex; height: 28px; border-radius: 6px; overflow: hidden; background: var(--panel); }
.bar div { min-width: 1px; } .parts { list-style: none; padding: 0; columns: 2; }
.parts i { display: inline-block; width: 12px; height: 12px; border-radius: 3px; margin-right: 8px; }
pre { background: var(--panel); padding: 12px; border-radius: 6px; overflow-x: auto; }
"""
_COLOURS = ("#2f6fde", "#20a39e", "#e08e2b", "#8d5bd1", "#d1495b", "#6b8f3c", "#4a90a4", "#b56576")


def loading_page(plan: LoadPlan) -> str:
    """How a store is loaded."""
    rows = [
        (
            each.name,
            format_bytes(each.peak_bytes),
            format_size(each.disk_bytes),
            f"{each.fill_s:,.0f} s",
            f"{each.samples_per_s:,.0f}",
            "chosen" if each is plan.chosen else each.why_not,
        )
        for each in plan.options
    ]
    head = ("way", "memory", "disk", "fills in", "samples/s", "")
    code = f"import penstock\n\nstore = penstock.open({plan.path!r})\nloader = {plan.code}"
    body = [
        _facts(plan.lines()),
        _budget(plan.chosen.memory_bytes, plan.budget_bytes),
        "<h2>Ways to load it (predicted)</h2>",
        _table(head, rows, plan.options.index(plan.chosen)),
        f"<h2>Run</h2><pre>{escape(code)}</pre>",
    ]
    return _page(plan.path, body)


def conversion_page(plan: ConversionPlan) -> str:
    """How an input is converted."""
    rows = [
        (each.video, "–" if each.why_not else format_bytes(each.peak_bytes), each.why_not) for each in plan.options
    ]
    body = [_facts([("size", format_size(plan.size_bytes)), *plan.lines])]
    for each in plan.usable[:1]:
        body.append(_budget(each.memory_bytes, plan.budget_bytes))
    body += ["<h2>Ways to store its cameras (predicted)</h2>", _table(("video", "peak memory", ""), rows, None)]
    return _page(plan.path, body)


def _page(title: str, body: Sequence[str]) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)} · penstock plan</title><style>{_STYLE}</style></head>"
        f"<body><main><h1>{escape(title)}</h1>{''.join(body)}</main></body></html>\n"
    )


def _facts(lines: Sequence[tuple[str, str]]) -> str:
    return "<dl>" + "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in lines) + "</dl>"


def _budget(parts: Mapping[str, int], budget_bytes: int) -> str:
    total = max(budget_bytes, sum(parts.values()), 1)
    bars, items = [], []
    for number, (name, size) in enumerate(parts.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        bars.append(f'<div style="width:{100 * size / total:.2f}%;background:{colour}" title="{escape(name)}"></div>')
        items.append(f'<li><i style="background:{colour}"></i>{escape(name)}: {format_bytes(size)}</li>')
    left = max(0, budget_bytes - sum(parts.values()))
    items.append(f"<li><i></i>left of the budget: {format_bytes(left)}</li>")
    head = f"<h2>The budget of {format_bytes(budget_bytes)}</h2>"
    return f'{head}<div class="bar">{"".join(bars)}</div><ul class="parts">{"".join(items)}</ul>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], chosen: int | None) -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = [
        f'<tr{" class=chosen" if number == chosen else ""}>' + "".join(f"<td>{escape(c)}</td>" for c in line) + "</tr>"
        for number, line in enumerate(rows)
    ]
    return f"<table><tr>{cells}</tr>{''.join(lines)}</table>"
