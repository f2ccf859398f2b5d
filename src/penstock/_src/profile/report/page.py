"""The page: one HTML file that explains a run by itself, from a disk, without a network, with scripts or without."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from penstock._src.profile.record import session
from penstock._src.profile.report import page_charts as charts
from penstock._src.profile.report.figures import HIGH_WAIT, loader_cost, memory_limit_bytes, peak_bytes, stage_rows
from penstock._src.profile.report.page_charts import MOST_LETTERS, html, tag
from penstock._src.profile.schema import encode, replacing
from penstock._src.profile.stats import LoaderInfo, Snapshot
from penstock._src.system.units import format_bytes, format_duration_ns

_MOST_FIXES = 6
_MOST_ROWS = 200
_MOST_NOTES = 40


def export_html(
    path: str | os.PathLike[str], snapshot: Snapshot | None = None, *, verdict: object = None, title: str | None = None
) -> Path:
    """Write one HTML page that needs nothing else: timeline of the step, stages, data wait and memory over time.

    `verdict` is a `Verdict`, or a sentence.
    """
    page = render_page(session.snapshot() if snapshot is None else snapshot, verdict=verdict, title=title)
    with replacing(path, "the page") as scratch:
        scratch.write_text(page, encoding="utf-8", errors="replace")  # a name may hold half a letter
    return Path(path)


def render_page(snapshot: Snapshot, *, verdict: object = None, title: str | None = None) -> str:
    """The text of the page."""
    script, style = (Path(__file__).with_name(each).read_text(encoding="utf-8") for each in ("page.js", "page.css"))
    name = html(title or "Where the time went")
    body = _header(snapshot, name) + _verdict(verdict) + _figures(snapshot)
    body += charts.step_section(snapshot) + charts.stages_section(snapshot)
    body += tag("div", charts.wait_section(snapshot) + charts.memory_section(snapshot), kind="pair")
    body += _table(snapshot) + _notes(snapshot)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name} · penstock</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}"
        f"<footer>Made by penstock. Times of nested stages hold their children, self times do not.</footer>\n"
        f"</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _header(snapshot: Snapshot, name: str) -> str:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(snapshot.taken_at))
    parts = [when, f"{format_duration_ns(snapshot.duration_ns)} recorded", f"{snapshot.steps.count:,} steps"]
    if snapshot.epochs:
        parts.append(f"{len(snapshot.epochs):,} epochs")
    processes = len({each.process for each in snapshot.spans} | {snapshot.process})
    threads = len({(each.process, each.thread) for each in snapshot.spans})
    parts.append(f"{threads} threads in {processes} process{'es' if processes > 1 else ''}")
    about = tag("p", html(" · ".join(parts)), kind="about")
    return (
        f'<header><div><div class="maker">penstock profile</div><h1>{name}</h1>{about}</div>'
        '<button id="theme" type="button" hidden>Dark</button></header>'
    )


def _verdict(verdict: Any) -> str:
    """A verdict with its changes and its trial, or a sentence alone."""
    sentence = "" if verdict is None else str(getattr(verdict, "sentence", None) or verdict).strip()
    if not sentence:
        return ""
    bound = str(getattr(verdict, "bound", sentence)).lower()[:40]
    body = tag("p", html(sentence[0].upper() + sentence[1:], MOST_LETTERS), kind="first")
    fixes = ""
    for fix in list(getattr(verdict, "fixes", ()))[:_MOST_FIXES]:
        ms = "–" if fix.predicted_step_ms is None else f"{fix.predicted_step_ms:.1f} ms"
        fixes += tag("li", tag("b", ms) + tag("span", html(f"{fix.name} — {fix.why}", MOST_LETTERS)))
    if fixes:
        body += tag("p", "What the step is predicted to be with a change", kind="cap") + tag("ul", fixes)
    if trial := getattr(verdict, "trial_text", ""):
        body += tag("p", html(trial, MOST_LETTERS), kind="tried")
    return tag("div", body, kind="verdict input" if "input" in bound or "loader" in bound else "verdict")


def _figures(snapshot: Snapshot) -> str:
    steps, cards = snapshot.steps, ""
    if steps.total_ns:
        of_step = f"{format_duration_ns(steps.wait_mean_ns)} of {format_duration_ns(steps.mean_ns)}"
        cards += _figure(
            "Data wait", f"{100 * steps.wait_share:.1f} % of the step", of_step, steps.wait_share > HIGH_WAIT
        )
        more = f"p95 {format_duration_ns(steps.p95_ns)} · p99 {format_duration_ns(steps.p99_ns)}"
        cards += _figure("Median step", format_duration_ns(steps.p50_ns), more)
        if (cost := loader_cost(snapshot)) is not None:
            times = f"{cost.beside_ms:.1f} ms while it works, {cost.alone_ms:.1f} ms while it rests"
            cards += _figure("Step with the loader", f"{cost.ratio:.2f} × alone", times, cost.is_high)
        cards += _figure("Pace", f"{1e9 / steps.mean_ns:,.2f} steps/s", f"{steps.count:,} steps in all")
    if snapshot.memory:
        peak, limit = peak_bytes(snapshot), memory_limit_bytes(snapshot)
        share = f"{100 * peak / limit:.1f} % of the {format_bytes(limit)} granted" if limit else "with all children"
        cards += _figure("Peak memory", format_bytes(peak), share)
    return tag("div", cards, kind="figures") if cards else ""


def _figure(label: str, text: str, more: str, is_high: bool = False) -> str:
    value, unit = text.split(" ", 1)
    number = tag("div", f"{html(value)} {tag('small', html(unit))}", kind="value")
    texts = tag("div", label, kind="label") + number + tag("div", html(more), kind="more")
    return tag("div", texts, kind="figure wait" if is_high else "figure")


def _table(snapshot: Snapshot) -> str:
    """All stages with all their numbers; a click on a heading sorts by it."""
    rows = stage_rows(snapshot)
    if not rows:
        return ""
    stages = charts.looks_of(rows)
    heads = ("Stage", "Total", "Self", "Calls", "Mean", "p50", "p95", "p99", "Longest", "Share")
    head = "".join(tag("th", name, aria_sort="descending" if name == "Total" else "") for name in heads)
    body = ""
    for row in rows[:_MOST_ROWS]:
        where = tag("small", html(row.where)) if row.where else ""
        body += "<tr>" + tag("td", tag("i", style=stages[row.name].paint) + html(row.name) + where)
        times = [row.total_ns, row.self_ns, row.mean_ns, row.p50_ns, row.p95_ns, row.p99_ns, row.max_ns]
        cells = [(format_duration_ns(ns), str(round(ns))) for ns in times]
        cells.insert(2, (f"{row.count:,}", str(row.count)))
        cells.append(("–" if row.share is None else f"{100 * row.share:.1f} %", f"{row.share or 0:.6f}"))
        body += "".join(tag("td", text, data_value=value) for text, value in cells) + "</tr>"
    lead = "Share is of the time of all steps; it may be above 100 % where several threads work at once."
    if any(row.nested_ns for row in rows):
        lead += " A call inside a call of the same name is in the total once, and in the mean as any other."
    if len(rows) > _MOST_ROWS:
        lead += f" {len(rows) - _MOST_ROWS:,} shorter stages are left out."
    drawn = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return charts.section("Table", lead, tag("div", drawn, kind="scroll"))


def _notes(snapshot: Snapshot) -> str:
    """Epochs, counters, the machine, the loaders; and what could not be recorded."""
    facts: list[tuple[str, Any]] = []
    for each in snapshot.epochs[-10:]:
        share = 100 * each.wait_ns / max(1, each.duration_ns)
        took = f"{format_duration_ns(each.duration_ns)} · {each.steps:,} steps · data wait {share:.1f} %"
        facts.append((f"epoch {each.epoch}", took))
    for name, count in snapshot.counters.items():
        facts.append((name, f"{count:,} ({format_bytes(count)})" if "bytes" in name else f"{count:,}"))
    for name, gauge in snapshot.gauges.items():
        facts.append((name, f"last {gauge.last:g} · mean {gauge.mean:.3g} · from {gauge.min:g} to {gauge.max:g}"))
    for name, value in snapshot.machine.items():
        is_size = name.endswith("_bytes") and isinstance(value, int)
        facts.append((f"machine: {name}", format_bytes(value) if is_size else value))
    facts += [(f"loader {number}", _loader_text(each)) for number, each in enumerate(snapshot.loaders)]
    facts += [(f"not recorded: {name}", f"{count:,}") for name, count in snapshot.lost.items() if count]
    items = ""
    for name, fact in facts[:_MOST_NOTES]:
        text = fact if isinstance(fact, str) else json.dumps(encode(fact), ensure_ascii=False)
        items += tag("dt", html(name)) + tag("dd", html(text, MOST_LETTERS))
    return tag("section", "<h2>What else is known</h2>" + tag("dl", items)) if items else ""


def _loader_text(info: LoaderInfo) -> str:
    """What a loader says of itself, and how it works; the JSON of the run has all of it."""
    parts = [
        info.text or info.kind,
        *(f"{store.kind} {store.path}" for store in info.stores),
        info.engine and f"engine {info.engine}",
        info.threads and f"{info.threads} threads",
        info.workers and f"{info.workers} workers",
        info.memory_bytes and f"memory {format_bytes(info.memory_bytes)}",
        info.hit_share and f"{info.hit_share:.0%} of the images from views",
    ]
    return " · ".join(each for each in parts if each)
