"""A verdict in words: one sentence with numbers, the changes as a list, what was tried; English or Chinese."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock._src.profile.messages import BilingualText, Language, in_language, message, ms_text, name_of
from penstock._src.profile.report.table import columns
from penstock._src.system.units import format_bytes

if TYPE_CHECKING:
    from penstock._src.profile.verdict.model import Fix
    from penstock._src.profile.verdict.trial import FixTrial
    from penstock._src.profile.verdict.verdict import Verdict

WORKER_START = "worker_start"
"""The stage of a verdict where the loop waits for worker processes to start, more than for what they do."""

_ARTICLES = {
    "view in RAM": "a view in RAM",
    "view on disk": "a view on disk",
    "larger batch": "a larger batch",
    "wait for the view": "the view, once it is filled,",
}


def _text(key: str, lang: Language, **values: Any) -> str:
    return in_language(message(f"verdict: {key}", **values), lang)


def note_text(note: str, lang: Language = "en") -> str:
    return _text("note", lang, note=note)


def _stage_text(name: str) -> BilingualText:
    """A stage in words, with the name under which the table has it."""
    found = name_of("stage", name)
    return found if found == name else found + f" ({name})"


def _fix_text(fix: Fix) -> BilingualText:
    """A change in words: "a view in RAM", "threads=4"."""
    named = ("threads", "num_workers", "persistent_workers")
    options = ", ".join(f"{word}={fix.change[word]}" for word in named if word in fix.change)
    return BilingualText(options or _ARTICLES.get(fix.name, fix.name), name_of("fix", fix.name).zh)


def _change_text(fix: Fix) -> str:
    """The options as a call would have them."""

    def value(name: str, given: Any) -> str:
        return f'"{format_bytes(given).replace(" ", "")}"' if name == "memory" else repr(given).replace("'", '"')

    return ", ".join(f"{name}={value(name, given)}" for name, given in fix.change.items()) or "–"


def sentence_of(found: Verdict, lang: Language = "en") -> str:
    """Bound by what, in numbers, and what would help most."""
    figures = {"step": ms_text(found.step_ms), "wait": ms_text(found.wait_ms)}
    if found.cost is not None:
        figures |= {"alone": ms_text(found.cost.alone_ms), "beside": ms_text(found.cost.beside_ms)}
        figures["ratio"] = f"{found.cost.ratio:.2f}"
    parts = [_text(found.bound, lang, **figures)]
    if found.stage is not None:
        kind = "loader stage" if found.bound == "input" else "step stage"
        kind = "start stage" if found.stage == WORKER_START else kind
        parts.append(_text(kind, lang, stage=_stage_text(found.stage), share=f"{found.stage_share:.0%}"))
    if found.bound != "input" and found.now.service_ms:
        alone = replace(found.now, compute_cpu_ms=0.0, unexplained=1.0)  # if it has the CPUs for itself
        parts.append(_text("spare", lang, batch=ms_text(min(alone.batch_ms, found.step_ms))))
    fix = _first_fix(found)
    if fix is None:
        parts += [_text("nothing", lang)] if found.bound == "compute" and not found.fixes else []
    elif fix.predicted_step_ms is None:
        parts.append(_text("gives some", lang, fix=_fix_text(fix)))
    else:
        is_refuted = found.trial is not None and found.trial.fix == fix and not found.trial.is_gain
        kind = "refuted" if is_refuted else "gives" if fix.batch_factor == 1 else "gives batch"
        ms, factor = ms_text(fix.predicted_step_ms), f"{fix.batch_factor:g}×"
        parts.append(_text(kind, lang, fix=_fix_text(fix), ms=ms, factor=factor))
    return ("；" if lang == "zh" else "; ").join(parts)


def _first_fix(found: Verdict) -> Fix | None:
    """The change that the sentence names: one that alters the training only where no other is known."""
    if found.best is not None:
        return found.best
    leaving = [fix for fix in found.fixes if not fix.alters_training]
    numbered = [fix for fix in leaving or found.fixes if fix.predicted_step_ms is not None]
    return next(iter([*numbered, *leaving]), None)


def lines_of(found: Verdict, lang: Language = "en") -> list[str]:
    """The sentence, then a line for each change, the trial and the notes."""
    lines = [sentence_of(found, lang)]
    if found.fixes:
        lines.append(_text("changes", lang, step=ms_text(found.step_ms)))
        names = [in_language(name_of("fix", fix.name), lang) for fix in found.fixes]
        width = max(columns(name) for name in names)
        for name, fix in zip(names, found.fixes, strict=True):
            ms = "?" if fix.predicted_step_ms is None else ms_text(fix.predicted_step_ms)
            change = f"{_change_text(fix)}: " if fix.change else ""
            lines.append(f"  {name}{' ' * (width - columns(name))}  {ms:>8}  {change}{in_language(fix.why, lang)}")
    if found.trial is not None:
        lines.append(trial_text(found.trial, lang))
    return lines + [note_text(note, lang) for note in found.notes]


def trial_text(trial: FixTrial, lang: Language = "en") -> str:
    """Predicted against measured."""
    beside_ms = trial.control_ms
    text = _text(
        "tried",
        lang,
        fix=name_of("fix", trial.fix.name),
        change=_change_text(trial.fix),
        predicted=ms_text(trial.predicted_ms),
        measured=ms_text(trial.measured_ms),
        error=f"{trial.error:+.0%}",
        control="" if beside_ms is None else message("verdict: control", ms=ms_text(beside_ms)),
    )
    return text if trial.is_gain else text + _text("no gain", lang)
