"""What a conversion reports: how far it is, what it leaves out, and what it did (--json and penstock/report.json)."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from penstock._src.lerobot import layout
from penstock._src.system.files import replacing, write_file
from penstock.errors import DataSetCorrupt

REPORT_PATH = "penstock/report.json"
SHOWN_SOURCES = 1000


@dataclass(frozen=True)
class MemoryStage:
    """Memory at one moment of the run."""

    at: str
    rss_bytes: int


class Progress(Protocol):
    """Who wants to know how far the job is; every method may do nothing."""

    def plan(self, lines: Sequence[tuple[str, str]]) -> None: ...
    def moved(self, done_bytes: int, total_bytes: int) -> None: ...
    def stage(self, stage: MemoryStage) -> None: ...
    def note(self, text: str) -> None: ...
    def notes(self, source: str, notes: Sequence[str]) -> None: ...
    def nodes(self, lines: Sequence[str]) -> None: ...


class NoProgress:
    """Nobody wants to know."""

    def plan(self, lines: Sequence[tuple[str, str]]) -> None: ...
    def moved(self, done_bytes: int, total_bytes: int) -> None: ...
    def stage(self, stage: MemoryStage) -> None: ...
    def note(self, text: str) -> None: ...
    def notes(self, source: str, notes: Sequence[str]) -> None: ...
    def nodes(self, lines: Sequence[str]) -> None: ...


class MovedBytes:
    """Bytes of all inputs so far; a second pass, or a chunk that is unpacked twice, does not count again."""

    def __init__(self, progress: Progress, sizes_bytes: Sequence[int]) -> None:
        self._progress = progress
        self._sizes_bytes = array("q", sizes_bytes)
        self._done_bytes = array("q", bytes(8 * len(sizes_bytes)))
        self._total_bytes = sum(sizes_bytes)
        self._moved_bytes = 0

    def __call__(self, number: int, done_bytes: int) -> None:
        """Of input `number`, `done_bytes` have been read."""
        more = min(done_bytes, self._sizes_bytes[number]) - self._done_bytes[number]
        if more > 0:
            self._done_bytes[number] += more
            self._moved_bytes += more
            self._progress.moved(self._moved_bytes, self._total_bytes)

    def done(self, number: int) -> None:
        self(number, self._sizes_bytes[number])


@dataclass(frozen=True)
class Report:
    """The result of a conversion; `lost` counts by cause what was in the sources and is not in the output.

    Of a job with very many inputs it shows some: the first `SHOWN_SOURCES` as `sources`, notes of as many, and the
    `alignment` of a hundred, rather of those that lost something. `inputs` and all sums count every one of them.
    """

    out: str
    sources: tuple[str, ...]
    episodes: int
    frames: int
    lost: Mapping[str, int]
    seconds: float
    bytes_in: int
    bytes_out: int
    peak_rss_bytes: int
    predicted_peak_bytes: int
    budget_bytes: int
    fps: int
    features: Mapping[str, Any]
    alignment: tuple[Mapping[str, Any], ...]
    notes: tuple[str, ...] = ()
    memory: tuple[MemoryStage, ...] = ()
    penstock: str = ""
    lost_before: int = 0  # of those, in inputs that were in the data set before this call appended to it
    failed: Mapping[str, str] = field(default_factory=dict)  # inputs that --keep-going left out, and why
    failed_before: int = 0  # of those, before this call appended to the data set
    processes: int = 1
    over_budget_bytes: int = 0  # how far the peak was above the budget
    inputs: int = 0  # how many; `sources` names the first of them
    nodes: tuple[Mapping[str, Any], ...] = ()  # of a conversion by several machines: what each of them did

    @property
    def lost_count(self) -> int:
        return sum(self.lost.values())

    @property
    def exit_code(self) -> int:
        """0, or 3 when something was lost."""
        return 3 if self.lost_count > self.lost_before or len(self.failed) > self.failed_before else 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def dumps(self) -> str:
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False) + "\n"

    def __repr__(self) -> str:
        return (
            f"Report({self.out!r}: {self.episodes} episodes, {self.frames} frames, {self.lost_count} lost, "
            f"{self.seconds:.2f} s, peak {self.peak_rss_bytes / 2**20:.0f} MiB)"
        )


class EarlierReport(Report):
    """What an earlier call did: the one that returns it found that nothing was left to do."""


def write_report(root: Path, report: Report) -> None:
    """Into the data set, where it says that penstock wrote it; under its name only when it is whole."""
    path = root / REPORT_PATH
    with layout.writing(path, "cannot be written"):
        path.parent.mkdir(exist_ok=True)
        with replacing(path, path.with_name(path.name + ".new"), fsync_name=True) as fresh:
            write_file(fresh, [report.dumps().encode()], fsync=True)


def read_report(root: Path) -> EarlierReport:
    path = root / REPORT_PATH
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        known = {each.name for each in fields(Report)}
        stages = tuple(MemoryStage(**stage) for stage in tree.pop("memory", ()))
        lists = {name: tuple(tree.get(name, ())) for name in ("sources", "alignment", "notes", "nodes")}
        return EarlierReport(**{**{name: tree[name] for name in tree if name in known}, **lists, "memory": stages})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataSetCorrupt(f"{path}: the report cannot be read: {error}") from error


LEFT_OUT = " left out: "
_NAMES_SHOWN = 4
_LEFT_OUT = re.compile(r"(\S+) (?:is )?left out: (.+)", re.DOTALL)


def left_out(name: str, reason: str) -> str:
    """The note about one topic or column."""
    return f"{name}{LEFT_OUT}{reason}"


def group_left_out(notes: Iterable[str]) -> list[str]:
    """The same notes, with one line for all topics that are left out for the same reason.

    >>> group_left_out(["/a left out: no messages", "a note", "/b left out: no messages"])
    ['2 topics left out: no messages: /a, /b', 'a note']
    """
    names: dict[str, list[str]] = {}
    lines: dict[str, None] = {}  # a reason or a whole note, in the order of their first appearance
    for note in notes:
        match = _LEFT_OUT.fullmatch(note)
        if match is None:
            lines[note] = None
        else:
            names.setdefault(match[2], []).append(match[1])
            lines[match[2]] = None
    return [_line(line, names[line]) if line in names else line for line in lines]


def _line(reason: str, names: list[str]) -> str:
    if len(names) == 1:
        return left_out(names[0], reason)
    what = " topics" if names[0].startswith("/") else ""
    more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
    return f"{len(names):,}{what} left out: {reason}: {', '.join(names[:_NAMES_SHOWN])}{more}"
