"""What a file beside a recording says of it: tasks, episodes and subtasks as YAML, JSON, CSV or plain text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock._src.conversion.episodes.events import LATEST_NS, EpisodeWindow, Sidecar, Subtask, overlapping
from penstock._src.conversion.settings import TABLES
from penstock._src.system import config, plain_yaml, units
from penstock.errors import ConfigError, UsageError

_LONGEST_TEXT = 2000  # characters of a .txt that is a task, and not a log or a read-me
_ABSOLUTE_S = 100_000_000  # a time in seconds from 1970, and not from the start of the recording
_KEYS = ("task", "episodes", "subtasks")
_COLUMNS = ("file", "task", "start", "end", "subtask")


@dataclass(frozen=True)
class _Subtask:
    start: Any
    subtask: str
    end: Any = None


@dataclass(frozen=True)
class _Episode:
    start: Any = None
    end: Any = None
    task: str | None = None
    subtasks: tuple[_Subtask, ...] = ()


@dataclass(frozen=True)
class _Contents:
    task: str | None = None
    episodes: tuple[_Episode, ...] = ()
    subtasks: tuple[_Subtask, ...] = ()


def read_contents(path: Path, recording: Path, start_ns: int, *, automatic: bool, notes: list[str]) -> Sidecar | None:
    """What a file says of one recording; None where it says nothing."""
    tree = _tree(path, recording, automatic=automatic, notes=notes)
    return None if tree is None else _interpreted(tree, str(path), start_ns)


def _tree(path: Path, recording: Path, *, automatic: bool, notes: list[str]) -> Mapping[str, Any] | None:
    """What a file says of one recording, as a mapping of `task`, `episodes` and `subtasks`."""
    if path.suffix.lower() == ".txt":
        text = " ".join(_text(path).split())
        if automatic and len(text) > _LONGEST_TEXT:
            notes.append(f"{path.name} has {len(text):,} characters and was not taken as a task")
            return None
        return {"task": text} if text else None
    if path.suffix.lower() == ".csv":
        return _from_table(path, recording)
    tree = _loaded(path)
    own = _entry(tree, recording)
    # Asked first: a recording may be called depth.bag, and its configuration say `depth: metric`.
    if automatic and "features" in tree and (own is None or isinstance(tree["features"], Mapping)):
        notes.append(f"{path.name} is a configuration and was not read as a sidecar: give it as --config")
        return None
    if own is not None:
        return {"task": own} if isinstance(own, str) else _mapping(own, f"{path}: {recording.name}")
    if path.name in TABLES and not set(_KEYS) & set(tree):
        return None
    return {key: value for key, value in tree.items() if key in _KEYS or _is_misspelt(key, path)}


def _is_misspelt(key: Any, path: Path) -> bool:
    """Other keys (operator, date) are the user's own, unless they look like one of ours."""
    if close := config.did_you_mean(str(key), _KEYS):
        raise ConfigError(f"{path}: unknown key {key!r}{close}", hint=f"known keys: {', '.join(_KEYS)}")
    return False


def _entry(tree: Mapping[str, Any], recording: Path) -> Any:
    """The entry of a recording in a mapping from file names, by name or without its ending."""
    for name in (recording.name, recording.name.removesuffix(recording.suffix)):
        if name in tree and name not in _KEYS:
            return tree[name]
    return None


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: expected a task, or a mapping of {', '.join(_KEYS)}, not {value!r}")
    return value


def _text(path: Path) -> str:
    hint = "episodes.sidecar=none leaves the files beside a recording alone"
    return config.read_text(path, "no file of tasks", hint, "utf-8-sig")


def _loaded(path: Path) -> dict[str, Any]:
    text = _text(path)
    if path.suffix.lower() == ".json":
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path}: is not JSON: {error}") from None
    else:
        tree = plain_yaml.parse(text, str(path))
    if isinstance(tree, str):
        return {"task": tree}
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected a mapping of {', '.join(_KEYS)}, or of file names")
    return tree


def _from_table(path: Path, recording: Path) -> Mapping[str, Any] | None:
    """Lines of a table that are about this recording: a task for all of it, or a line per episode or subtask."""
    lines = [line for line in csv.reader(io.StringIO(_text(path))) if any(cell.strip() for cell in line)]
    if not lines:
        return None
    heads = [cell.strip().lower() for cell in lines[0]]
    if "file" not in heads:
        raise ConfigError(f"{path}: the first line names no column `file`", hint=f"columns: {', '.join(_COLUMNS)}")
    for head in heads:
        if head not in _COLUMNS:
            raise ConfigError(f"{path}: unknown column {head!r}{config.did_you_mean(head, _COLUMNS)}")
    names = (recording.name, recording.name.removesuffix(recording.suffix))
    cells = (dict(zip(heads, (cell.strip() for cell in line), strict=False)) for line in lines[1:])
    own = [cell for cell in cells if cell.get("file") in names]
    return _table_contents(own) if own else None


def _table_contents(lines: Sequence[Mapping[str, str]]) -> Mapping[str, Any]:
    tree: dict[str, Any] = {"episodes": [], "subtasks": []}
    for line in lines:
        times = {key: line[key] for key in ("start", "end") if line.get(key)}
        if line.get("subtask"):
            tree["subtasks"].append({**times, "subtask": line["subtask"]})
        elif times:
            tree["episodes"].append({**times, "task": line.get("task") or None})
        else:
            tree["task"] = line.get("task") or None
    return tree


# ── times ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _interpreted(tree: Mapping[str, Any], where: str, start_ns: int) -> Sidecar:
    try:
        contents = config.build(_Contents, tree)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from None
    windows = [
        EpisodeWindow(
            _time_ns(each.start, start_ns, f"{where}: episodes[{n}].start", 0),
            _time_ns(each.end, start_ns, f"{where}: episodes[{n}].end", LATEST_NS - start_ns),
            each.task,
            tuple(_subtasks(each.subtasks, start_ns, f"{where}: episodes[{n}]")) or None,
        )
        for n, each in enumerate(contents.episodes)
    ]
    for n, window in enumerate(windows):
        if window.end_ns <= window.begin_ns:
            raise ConfigError(f"{where}: episodes[{n}] ends before it begins")
    windows.sort(key=lambda window: window.begin_ns)
    for first, second in overlapping(windows):
        times = [(ns - start_ns) / 1e9 for ns in (second.begin_ns, first.end_ns)]
        raise ConfigError(f"{where}: an episode begins at {times[0]:g} s, but the one before ends at {times[1]:g} s")
    return Sidecar(
        contents.task,
        tuple(windows),
        tuple(_subtasks(contents.subtasks, start_ns, where)) or None,
    )


def _subtasks(entries: Sequence[_Subtask], start_ns: int, where: str) -> Iterator[Subtask]:
    """Subtasks in order of time; where one ends before the next begins, rows between them have none."""
    spans = []
    for n, each in enumerate(entries):
        here = f"{where}: subtasks[{n}]"
        begin_ns = _time_ns(each.start, start_ns, f"{here}.start", 0)
        end_ns = _time_ns(each.end, start_ns, f"{here}.end", LATEST_NS - start_ns)
        if end_ns <= begin_ns:
            raise ConfigError(f"{here} ends before it begins")
        spans.append((begin_ns, end_ns, each.subtask))
    spans.sort(key=lambda span: span[0])
    next_ns = [begin_ns for begin_ns, _, _ in spans[1:]] + [LATEST_NS]
    for (begin_ns, end_ns, text), following_ns in zip(spans, next_ns, strict=False):
        yield Subtask(begin_ns, text)
        if end_ns < following_ns:
            yield Subtask(end_ns, "")


def _time_ns(value: Any, start_ns: int, where: str, default_ns: int) -> int:
    """A time as seconds from the start of the recording ("1 min 5 s" too), or as seconds from 1970."""
    if value is None:
        return start_ns + default_ns
    try:
        time_ns = units.parse_duration_ns(value)
    except UsageError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from None
    if time_ns < 0:
        raise ConfigError(f"{where}: {value!r} lies before the recording")
    return time_ns if time_ns >= _ABSOLUTE_S * 1_000_000_000 else start_ns + time_ns
