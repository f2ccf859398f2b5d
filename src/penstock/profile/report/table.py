"""The timing table and the lines of each epoch, for a terminal or a log; in English or, as scripts grep, Chinese."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Literal

from penstock.errors import UsageError
from penstock.profile.record.spans import is_enabled
from penstock.profile.report.figures import StageRow, stage_rows, wait_figures
from penstock.system.units import format_duration_ns, plain

if TYPE_CHECKING:
    from penstock.profile.snapshot import Snapshot

Language = Literal["en", "zh"]

_RULE = 60
_NAME_COLUMNS = 40
_MOST_NESTED = 5

_WORDS: dict[str, dict[str, str]] = {
    "en": {
        "title": "⏱️  Timing statistics",
        "name": "Stage",
        "total": "total",
        "calls": "calls",
        "mean": "mean",
        "self": "self",
        "share": "share",
        "times": "×",
        "none": "(no span was recorded)",
        "off": "(no span was recorded: profiling is off, by PENSTOCK_PROFILE=0 or profile.disable())",
        "of": "share: of the time of all {steps} steps ({time}); above 100 % where several threads work at once, or "
        "beside the steps (a validation)",
        "no steps": "share: unknown, no step was marked",
        "nested": "total: a call inside a call of the same name is in it once; mean: of all calls ({names})",
        "wait": "data wait: {share} of the step ({wait} of {step})",
        "lost": "not recorded: {what}",
        "left out": "… and {count} stages more, {time} in all",
        "epoch": "Epoch {number} took",
        "validation": "validation took",
        "training": "training took",
        "epoch wait": "data wait",
        "steps": "steps",
    },
    "zh": {
        "title": "⏱️  性能分析统计",
        "name": "环节名称",
        "total": "总计",
        "calls": "调用",
        "mean": "平均",
        "self": "自身",
        "share": "占比",
        "times": "次",
        "none": "（没有记录任何环节）",
        "off": "（没有记录任何环节: 性能分析已关闭，PENSTOCK_PROFILE=0 或 profile.disable()）",
        "of": "占比: 相对全部 {steps} 步的时间 ({time})；多线程同时工作，或在训练步之外（如验证）也工作时可超过 100 %",
        "no steps": "占比: 未知，没有标记训练步",
        "nested": "总计: 同名嵌套的调用只计一次；平均: 针对所有调用 ({names})",
        "wait": "数据等待: 占训练步的 {share}（{step} 中的 {wait}）",
        "lost": "未记录: {what}",
        "left out": "… 另有 {count} 个环节，共 {time}",
        "epoch": "Epoch {number} 总耗时",
        "validation": "验证耗时",
        "training": "训练耗时",
        "epoch wait": "数据等待",
        "steps": "步数",
    },
}


def table(
    snapshot: Snapshot, *, lang: Language = "en", detail: bool = True, limit: int = 200, title: str | None = None
) -> str:
    """The stages, the longest total first; `detail=False` gives name, total, calls and mean alone."""
    words = _words(lang)
    rows = stage_rows(snapshot)
    lines = ["=" * _RULE, plain(title) if title else words["title"], "=" * _RULE]
    if not rows:
        is_off = not is_enabled() and not snapshot.steps.count
        return "\n".join([*lines, words["off" if is_off else "none"], "=" * _RULE])
    lines += [_heading(words, detail), "-" * _RULE]
    lines += [_line(row, words, detail) for row in rows[:limit]]
    if left := rows[limit:]:
        time = _seconds(sum(row.total_ns for row in left)).strip()
        lines.append(words["left out"].format(count=len(left), time=time))
    lines.append("=" * _RULE)
    if detail:
        lines += _below(snapshot, rows[:limit], words)
    return "\n".join(lines)


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
    words = _words(lang)
    parts = [f"{words['epoch'].format(number=number)}: {_seconds(total_ns).strip()}"]
    for word, part_ns in (("validation", validation_ns), ("training", training_ns)):
        if part_ns is not None:
            parts.append(f"{words[word]}: {_seconds(part_ns).strip()}")
    if wait_ns is not None:
        share = f" ({100 * wait_ns / total_ns:.1f}%)" if total_ns > 0 else ""
        parts.append(f"{words['epoch wait']}: {_seconds(wait_ns).strip()}{share}")
    if steps is not None:
        parts.append(f"{words['steps']}: {steps}")
    return " | ".join(parts)


def columns(text: str) -> int:
    """How many columns of a terminal a text takes: Chinese letters take two, accents of their own none."""
    wide = sum(unicodedata.east_asian_width(letter) in "WF" for letter in text)
    return len(text) + wide - sum(unicodedata.combining(letter) != 0 for letter in text)


def _words(lang: str) -> dict[str, str]:
    if lang not in _WORDS:
        raise UsageError(f"the table speaks {' and '.join(_WORDS)}, not {lang!r}", hint='use lang="en" or lang="zh"')
    return _WORDS[lang]


def _padded(text: str, width: int) -> str:
    return text + " " * max(0, width - columns(text))


def _before(text: str, width: int) -> str:
    return " " * max(0, width - columns(text)) + text


def _seconds(duration_ns: int) -> str:
    return f"{duration_ns / 1e9:8.2f}s"


def _ms(duration_ns: float) -> str:
    ms = duration_ns / 1e6
    return f"{ms:6.2f}ms" if ms >= 0.1 or ms == 0 else f"{ms:6.4f}ms"  # a microsecond is not nothing


def _heading(words: dict[str, str], detail: bool) -> str:
    cells = [
        _padded(words["name"], _NAME_COLUMNS),
        _before(words["total"], columns(words["total"]) + 11),
        _before(words["calls"], columns(words["calls"]) + 8 + columns(words["times"])),
        _before(words["mean"], columns(words["mean"]) + 10),
    ]
    if detail:
        cells += [
            _before(words["self"], columns(words["self"]) + 11),
            *(_before(name, 13) for name in ("p50", "p95", "p99")),
            _before(words["share"], columns(words["share"]) + 9),
        ]
    return " | ".join(cells)


def _line(row: StageRow, words: dict[str, str], detail: bool) -> str:
    cells = [
        _padded(plain(row.label), _NAME_COLUMNS),
        f"{words['total']}: {_seconds(row.total_ns)}",
        f"{words['calls']}: {row.calls:6d}{words['times']}",
        f"{words['mean']}: {_ms(row.mean_ns)}",
    ]
    if detail:
        share = f"{100 * row.share:6.1f}%" if row.share is not None else f"{'–':>7}"
        cells += [
            f"{words['self']}: {_seconds(row.self_ns)}",
            *(f"{name}: {_ms(ns)}" for name, ns in (("p50", row.p50_ns), ("p95", row.p95_ns), ("p99", row.p99_ns))),
            f"{words['share']}: {share}",
        ]
    return " | ".join(cells)


def _below(snapshot: Snapshot, rows: list[StageRow], words: dict[str, str]) -> list[str]:
    lines = []
    if nested := [plain(row.label) for row in rows if row.nested_ns]:
        more = ", …" if len(nested) > _MOST_NESTED else ""
        lines.append(words["nested"].format(names=", ".join(nested[:_MOST_NESTED]) + more))
    wait = wait_figures(snapshot)
    if wait is None:
        lines.append(words["no steps"])
    else:
        step, waited = format_duration_ns(round(wait.step_ns)), format_duration_ns(round(wait.wait_ns))
        lines.append(words["wait"].format(share=f"{100 * wait.share:.1f} %", wait=waited, step=step))
        lines.append(words["of"].format(steps=f"{wait.steps:,}", time=format_duration_ns(snapshot.steps.total_ns)))
    if lost := [f"{plain(name)} {count:,}" for name, count in snapshot.lost.items() if count]:
        lines.append(words["lost"].format(what=", ".join(lost)))
    return lines
