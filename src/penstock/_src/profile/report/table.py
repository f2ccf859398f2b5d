"""The timing table and the lines of each epoch, for a terminal or a log; in English or, as scripts grep, Chinese."""

from __future__ import annotations

import unicodedata
from dataclasses import replace

from penstock._src.profile.messages import Language, in_language, message
from penstock._src.profile.record import session
from penstock._src.profile.record.spans import is_enabled
from penstock._src.profile.report.figures import StageRow, loader_cost, stage_rows
from penstock._src.profile.stats import Snapshot
from penstock._src.system.units import format_duration_ns, plain
from penstock.errors import UsageError

_RULE = 60
_NAME_COLUMNS = 40


def table(snapshot: Snapshot | None = None, *, lang: Language = "en", limit: int = 200) -> str:
    """The stages, the longest total first."""
    taken = session.snapshot(events=False) if snapshot is None else snapshot
    rows = stage_rows(taken)
    rule = "=" * _RULE
    lines = [rule, _text("title", lang), rule]
    if not rows:
        is_off = not is_enabled() and not taken.steps.count
        return "\n".join([*lines, _text("off" if is_off else "none", lang), rule])
    cells = [_cells(row, lang) for row in rows[:limit]]
    name = _text("name", lang)
    heading = [_blank(label, columns(text)) + label for label, text in cells[0][1:]]
    lines += [" | ".join([name + _blank(name, _NAME_COLUMNS), *heading]), "-" * _RULE]
    lines += [" | ".join(text for _, text in row) for row in cells]
    if left := rows[limit:]:
        lines.append(_text("left out", lang, count=len(left), time=_seconds(sum(row.total_ns for row in left))))
    return "\n".join([*lines, rule, *_below(taken, rows[:limit], lang)])


def print_timing_stats(epoch: int | None = None, *, lang: Language = "en", snapshot: Snapshot | None = None) -> None:
    """Print the table of all spans so far; with `epoch`, the line and the table of that epoch, which has ended.

    The tables of the last sixteen epochs are kept; of an earlier one, and of a snapshot, the line alone is known.
    """
    taken = session.snapshot(events=False) if snapshot is None else snapshot
    if epoch is None:
        print(table(taken, lang=lang))
        return
    ended = [each for each in taken.epochs if each.epoch == epoch]
    if not ended:
        known = ", ".join(str(each.epoch) for each in taken.epochs[-10:])
        hint = f"epochs that have ended: {known}" if known else "profile.mark_epoch() tells that an epoch has ended"
        raise UsageError(f"epoch {epoch!r} has not ended", hint=hint)
    print("\n".join(epoch_lines(replace(taken, epochs=tuple(ended)), lang=lang)))
    alone = session.of_epoch(epoch) if snapshot is None else None
    if alone is not None:
        print(table(alone, lang=lang))


def epoch_lines(snapshot: Snapshot, *, lang: Language = "en") -> list[str]:
    """One line for each epoch that ended: what it took, how much of it was data wait."""
    return [
        epoch_line(each.epoch, each.duration_ns, wait_ns=each.wait_ns, steps=each.steps, lang=lang)
        for each in snapshot.epochs
    ]


def epoch_line(
    number: int,
    total_ns: int,
    *,
    validation_ns: int | None = None,
    training_ns: int | None = None,
    wait_ns: int | None = None,
    steps: int | None = None,
    lang: Language = "en",
) -> str:
    """The line of one epoch: its time, and those of its parts that are known."""
    parts = [f"{_text('epoch', lang, number=number)}: {_seconds(total_ns)}"]
    for key, part_ns in (("validation", validation_ns), ("training", training_ns)):
        if part_ns is not None:
            parts.append(f"{_text(key, lang)}: {_seconds(part_ns)}")
    if wait_ns is not None:
        share = f" ({100 * wait_ns / total_ns:.1f}%)" if total_ns > 0 else ""
        parts.append(f"{_text('epoch wait', lang)}: {_seconds(wait_ns)}{share}")
    if steps is not None:
        parts.append(f"{_text('steps', lang)}: {steps}")
    return " | ".join(parts)


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese letters take two, accents of their own none."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) != 0 for letter in text)


def _text(key: str, lang: Language, **values: object) -> str:
    return in_language(message(f"table: {key}", **values), lang)


def _blank(text: str, width: int) -> str:
    """What a text lacks to that width."""
    return " " * max(0, width - columns(text))


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:.2f}s"


def _ms(duration_ns: float) -> str:
    ms = duration_ns / 1e6
    return f"{ms:6.2f}ms" if ms >= 0.1 or ms == 0 else f"{ms:6.4f}ms"  # a microsecond is not nothing


def _cells(row: StageRow, lang: Language) -> list[tuple[str, str]]:
    """What stands above a cell, and the cell."""
    found = [
        ("total", f"{_seconds(row.total_ns):>9}"),
        ("calls", f"{row.count:6d}{_text('times', lang)}"),
        ("mean", _ms(row.mean_ns)),
        ("self", f"{_seconds(row.self_ns):>9}"),
        ("p50", _ms(row.p50_ns)),
        ("p95", _ms(row.p95_ns)),
        ("p99", _ms(row.p99_ns)),
        ("share", f"{100 * row.share:6.1f}%" if row.share is not None else f"{'–':>7}"),
    ]
    labels = [key if key.startswith("p") else _text(key, lang) for key, _ in found]
    texts = [(label, f"{label}: {value}") for label, (_, value) in zip(labels, found, strict=True)]
    label = plain(row.label)
    return [("", label + _blank(label, _NAME_COLUMNS)), *texts]


def _below(snapshot: Snapshot, rows: list[StageRow], lang: Language) -> list[str]:
    lines = []
    if nested := [plain(row.label) for row in rows if row.nested_ns]:
        lines.append(_text("nested", lang, names=", ".join(nested)))
    steps = snapshot.steps
    if not steps.total_ns:
        lines.append(_text("no steps", lang))
    else:
        step, waited = format_duration_ns(steps.mean_ns), format_duration_ns(steps.wait_mean_ns)
        lines.append(_text("wait", lang, share=f"{100 * steps.wait_share:.1f} %", wait=waited, step=step))
        if (cost := loader_cost(snapshot)) is not None:
            times = {"alone": f"{cost.alone_ms:.1f} ms", "beside": f"{cost.beside_ms:.1f} ms"}
            lines.append(_text("cost", lang, ratio=f"{cost.ratio:.2f}", **times))
        lines.append(_text("of", lang, steps=f"{steps.count:,}", time=format_duration_ns(steps.total_ns)))
    if lost := [f"{plain(name)} {count:,}" for name, count in snapshot.lost.items() if count]:
        lines.append(_text("lost", lang, what=", ".join(lost)))
    return lines
