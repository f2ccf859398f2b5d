"""The page: one HTML file that explains a run by itself, from a disk, without a network, with scripts or without."""

from __future__ import annotations

import os
import time
from html import escape
from pathlib import Path
from typing import Any

from penstock._src.profile.record import session
from penstock._src.profile.report.figures import HIGH_WAIT, loader_cost, memory_limit_bytes, peak_bytes
from penstock._src.profile.report.page_charts import MOST_LETTERS, html
from penstock._src.profile.report.page_sections import (
    memory_section,
    notes_section,
    stages_section,
    step_section,
    table_section,
    wait_section,
)
from penstock._src.profile.schema import replacing
from penstock._src.profile.stats import Snapshot
from penstock._src.system.units import format_bytes, format_duration_ns

_MOST_FIXES = 6


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
    script, style = _asset("page.js"), _asset("page.css")
    name = html(title or "Where the time went")
    body = "".join(
        (
            _header(snapshot, name),
            _verdict(verdict),
            _figures(snapshot),
            step_section(snapshot),
            stages_section(snapshot),
            f'<div class="pair">{wait_section(snapshot)}{memory_section(snapshot)}</div>',
            table_section(snapshot),
            notes_section(snapshot),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{name} · penstock</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n{body}"
        f"<footer>Made by penstock. Times of nested stages hold their children, self times do not.</footer>\n"
        f"</main>\n<script>{script}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _header(snapshot: Snapshot, name: str) -> str:
    parts = []
    if snapshot.taken_at:
        parts.append(time.strftime("%Y-%m-%d %H:%M", time.localtime(snapshot.taken_at)))
    if snapshot.duration_ns > 0:
        parts.append(f"{format_duration_ns(snapshot.duration_ns)} recorded")
    parts.append(f"{snapshot.steps.count:,} steps")
    if snapshot.epochs:
        parts.append(f"{len(snapshot.epochs):,} epochs")
    processes = len({each.process for each in snapshot.spans} | {snapshot.process})
    threads = len({(each.process, each.thread) for each in snapshot.spans})
    parts.append(f"{threads} threads in {processes} process{'es' if processes > 1 else ''}")
    about = escape(" · ".join(parts))
    return (
        f'<header><div><div class="maker">penstock profile</div><h1>{name}</h1><p class="about">{about}</p></div>'
        '<button id="theme" type="button" hidden>Dark</button></header>'
    )


def _verdict(verdict: Any) -> str:
    """A verdict with its changes and its trial, or a sentence alone."""
    sentence = "" if verdict is None else str(getattr(verdict, "sentence", None) or verdict).strip()
    if not sentence:
        return ""
    bound = str(getattr(verdict, "bound", sentence)).lower()[:40]
    kind = " input" if "input" in bound or "loader" in bound else ""
    fixes = "".join(
        f"<li><b>{'–' if fix.predicted_step_ms is None else f'{fix.predicted_step_ms:.1f} ms'}</b>"
        f"<span>{html(f'{fix.name} — {fix.why}', MOST_LETTERS)}</span></li>"
        for fix in list(getattr(verdict, "fixes", ()))[:_MOST_FIXES]
    )
    body = f'<p class="cap">What the step is predicted to be with a change</p><ul>{fixes}</ul>' if fixes else ""
    if trial := getattr(verdict, "trial_text", ""):
        body += f'<p class="tried">{html(trial, MOST_LETTERS)}</p>'
    first = html(sentence[0].upper() + sentence[1:], MOST_LETTERS)
    return f'<div class="verdict{kind}"><p class="first">{first}</p>{body}</div>'


def _figures(snapshot: Snapshot) -> str:
    steps, cards = snapshot.steps, []
    if steps.total_ns:
        of_step = f"{format_duration_ns(round(steps.wait_mean_ns))} of {format_duration_ns(round(steps.mean_ns))}"
        kind = "wait" if steps.wait_share > HIGH_WAIT else ""
        cards.append(_figure("Data wait", f"{100 * steps.wait_share:.1f} % of the step", of_step, kind))
        more = f"p95 {format_duration_ns(steps.p95_ns)} · p99 {format_duration_ns(steps.p99_ns)}"
        cards.append(_figure("Median step", format_duration_ns(steps.p50_ns), more))
        if (cost := loader_cost(snapshot)) is not None:
            times = f"{cost.beside_ms:.1f} ms while it works, {cost.alone_ms:.1f} ms while it rests"
            cards.append(_figure("Step with the loader", f"{cost.ratio:.2f} × alone", times, "wait" * cost.is_high))
        cards.append(_figure("Pace", f"{1e9 / steps.mean_ns:,.2f} steps/s", f"{steps.count:,} steps in all"))
    if snapshot.memory:
        peak, limit = peak_bytes(snapshot), memory_limit_bytes(snapshot)
        share = f"{100 * peak / limit:.1f} % of the {format_bytes(limit)} granted" if limit else "with all children"
        cards.append(_figure("Peak memory", format_bytes(peak), share))
    return f'<div class="figures">{"".join(cards)}</div>' if cards else ""


def _figure(label: str, text: str, more: str, kind: str = "") -> str:
    value, unit = text.split(" ", 1)
    number = f"{escape(value)} <small>{escape(unit)}</small>"
    return (
        f'<div class="figure {kind}"><div class="label">{escape(label)}</div><div class="value">{number}</div>'
        f'<div class="more">{escape(more)}</div></div>'
    )
