"""What a person sees while data moves: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from penstock._src.system import memory, units

if TYPE_CHECKING:
    from penstock._src.conversion.report import MemoryStage, Report
    from penstock._src.conversion.shards.shard import ShardReport
    from penstock._src.formats.findings import Problem

_LINE_EVERY_S = 5.0
_BAR_EVERY_S = 0.1
_STAGE_EVERY_S = 0.5  # flushes may come faster than a person reads


class Lines:
    """Progress as plain lines on stderr, one every few seconds."""

    def __init__(self, *, results: bool, verbose: bool = False) -> None:
        self._results, self._verbose = results, verbose
        self._began = self._shown = time.monotonic()
        self._stage_shown = 0.0

    def plan(self, lines: Sequence[tuple[str, str]]) -> None:
        if self._results:
            for label, text in lines:
                print(row(label, text))
            sys.stdout.flush()

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if now - self._shown >= _LINE_EVERY_S:
            self._shown = now
            rate = done_bytes / max(now - self._began, 1e-9)
            left_s = (total_bytes - done_bytes) / max(rate, 1.0)
            done, total, speed = (units.format_size(int(n)) for n in (done_bytes, total_bytes, rate))
            self._print(
                f"{done} of {total} · {speed}/s · {left_s:.0f} s left · {units.format_bytes(memory.rss_bytes())}"
            )

    def stage(self, stage: MemoryStage) -> None:
        if stage.at.startswith("row"):  # everything is loaded by now
            memory.resume_collection()
        now = time.monotonic()
        if not stage.at.startswith("row") or now - self._stage_shown >= _STAGE_EVERY_S:
            self._stage_shown = now
            self._print(f"memory at {stage.at}: {units.format_bytes(stage.rss_bytes)}")

    def note(self, text: str) -> None:
        self._print(f"note: {text}")

    def notes(self, source: str, notes: Sequence[str]) -> None:
        """Of one input: like ones are grouped."""
        from penstock._src.conversion.report import group_left_out

        for note in notes if self._verbose else group_left_out(notes):
            self.note(f"{source}: {note}")

    def nodes(self, lines: Sequence[str]) -> None:
        """Of a conversion by several machines: what each of them does."""
        for line in lines:
            self._print(line)

    def close(self) -> None: ...

    def _print(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class ProgressBar(Lines):
    """Progress as one moving bar (rich), for terminals."""

    def __init__(self, *, results: bool, verbose: bool = False) -> None:
        super().__init__(results=results, verbose=verbose)
        self._progress: Any = None
        self._task: Any = None

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if now - self._shown < _BAR_EVERY_S:
            return
        self._shown = now
        if self._progress is None:
            self._open(total_bytes)
        self._progress.update(self._task, completed=done_bytes, rss=units.format_bytes(memory.rss_bytes()))

    def stage(self, stage: MemoryStage) -> None:
        if stage.at.startswith("row"):
            memory.resume_collection()
        if self._progress is not None:
            self._progress.update(self._task, rss=units.format_bytes(stage.rss_bytes))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _open(self, total_bytes: int) -> None:
        from rich import progress
        from rich.console import Console

        self._progress = progress.Progress(
            progress.BarColumn(30),
            progress.DownloadColumn(),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
            progress.TextColumn("{task.fields[rss]}"),
            console=Console(stderr=True),
        )
        self._progress.start()
        self._task = self._progress.add_task("convert", total=total_bytes, rss="")

    def _print(self, text: str) -> None:
        if self._progress is None:
            super()._print(text)
        else:
            self._progress.console.print(text, highlight=False, markup=False)


def display(*, results: bool, verbose: bool = False) -> Lines:
    """The display that fits where stderr goes."""
    return (ProgressBar if sys.stderr.isatty() else Lines)(results=results, verbose=verbose)


def print_text(text: str, file: TextIO | None = None) -> None:
    """Print lines that hold names from files: a terminal shows them and does not obey them."""
    print("\n".join(units.plain(line) for line in text.split("\n")), file=file)


def print_json(tree: Any) -> None:
    """The result of a command for programs."""
    sys.stdout.write(json.dumps(tree, indent=2, ensure_ascii=False) + "\n")


def row(label: str, text: str) -> str:
    return f"{label:<15}{text}"


def count(number: int, plural: str) -> str:
    """`1 episode`, `2 episodes`, `1 frame decoded`: the first word of `plural` loses its s for one."""
    first, space, rest = plural.partition(" ")
    return f"{number:,} {first.removesuffix('s') if number == 1 else first}{space}{rest}"


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Columns under one another, without borders; those in `right` end at one edge."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in rows
    ]


def problem_lines(problems: Sequence[Problem], path: str = "") -> list[str]:
    """Findings for people; `path` is where they were looked for, which a message may name itself."""
    lines = []
    for problem in problems:
        place = "" if not problem.where or (path and problem.message.startswith(path)) else f"{problem.where}: "
        lines.append(units.plain(f"{problem.severity:<6} {place}{problem.message}"))
        if problem.hint:
            lines.append(units.plain(f"       → {problem.hint}"))
    return lines


def shard_lines(report: ShardReport, out: str) -> list[str]:
    """What one shard did, and what comes next."""
    there = report.groups - report.converted
    return [
        row(
            "shard",
            f"{report.shard} · {count(report.groups, 'groups')}, {there:,} were there already · "
            f"{count(report.episodes, 'episodes')} · {count(report.frames, 'rows')} · "
            f"{units.format_size(report.bytes_in)} in {report.seconds:.2f} s · "
            f"peak {units.format_bytes(report.peak_rss_bytes)}",
        ),
        *(row("failed", f"{source}: {reason}") for source, reason in report.failed.items()),
        row("next", f"when all shards are through: penstock commit {shlex.quote(out)}"),
    ]


def report_lines(report: Report) -> list[str]:
    """What happened; where nothing had to be done, what is there."""
    from penstock._src.conversion.report import EarlierReport

    holds = (
        f"{report.out} · {count(report.episodes, 'episodes')} · {count(report.frames, 'rows')} · "
        f"{report.lost_count:,} lost"
    )
    if isinstance(report, EarlierReport):
        lines = [row("there", holds)]
    else:
        rate = report.bytes_in / max(report.seconds, 1e-9)
        moved = f"{units.format_size(report.bytes_in)} in {report.seconds:.2f} s · {units.format_size(int(rate))}/s"
        peak = units.format_bytes(report.peak_rss_bytes)
        predicted = units.format_bytes(report.predicted_peak_bytes)
        lines = [
            row("moved", f"{moved} · {units.format_size(report.bytes_out)} written"),
            row("wrote", f"{holds} · peak {peak} (predicted {predicted})"),
        ]
    lines += [row("lost", f"{count:,} · {cause}") for cause, count in report.lost.items()]
    return lines + [row("failed", f"{source}: {reason}") for source, reason in report.failed.items()]
