"""What a person sees while data moves: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import gc
import sys
import time
from typing import TYPE_CHECKING, Any

from penstock import memory, units

if TYPE_CHECKING:
    from penstock.conversion.job import RecordingPlan
    from penstock.conversion.report import Report, Stage

_LINE_EVERY_S = 5.0
_BAR_EVERY_S = 0.1
_STAGE_EVERY_S = 0.5  # flushes may follow one another faster than anybody reads


class Lines:
    """Progress as plain lines on stderr, one every few seconds."""

    def __init__(self, *, results: bool) -> None:
        self._results = results
        self._began = self._shown = time.monotonic()
        self._stage_shown = 0.0

    def plan(self, plan: RecordingPlan) -> None:
        if self._results:
            for line in plan_lines(plan):
                print(line)
            sys.stdout.flush()

    def moved(self, done_bytes: int, total_bytes: int) -> None:
        now = time.monotonic()
        if now - self._shown >= _LINE_EVERY_S:
            self._shown = now
            rate = done_bytes / max(now - self._began, 1e-9)
            left_s = (total_bytes - done_bytes) / max(rate, 1.0)
            done, total, speed = (units.format_size(int(n)) for n in (done_bytes, total_bytes, rate))
            self._say(f"{done} of {total} · {speed}/s · {left_s:.0f} s left · {units.format_bytes(memory.rss_bytes())}")

    def stage(self, stage: Stage) -> None:
        if stage.at.startswith("row"):  # everything is loaded by now
            gc.enable()
        now = time.monotonic()
        if not stage.at.startswith("row") or now - self._stage_shown >= _STAGE_EVERY_S:
            self._stage_shown = now
            self._say(f"memory at {stage.at}: {units.format_bytes(stage.rss_bytes)}")

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def close(self) -> None: ...

    def _say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(Lines):
    """Progress as one moving bar (rich), for terminals."""

    def __init__(self, *, results: bool) -> None:
        super().__init__(results=results)
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

    def stage(self, stage: Stage) -> None:
        if stage.at.startswith("row"):
            gc.enable()
        if self._progress is not None:
            self._progress.update(self._task, rss=units.format_bytes(stage.rss_bytes))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _open(self, total_bytes: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        self._progress = Progress(
            BarColumn(30),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rss]}"),
            console=Console(stderr=True),
        )
        self._progress.start()
        self._task = self._progress.add_task("convert", total=total_bytes, rss="")

    def _say(self, text: str) -> None:
        if self._progress is None:
            super()._say(text)
        else:
            self._progress.console.print(text, highlight=False, markup=False)


def display(*, results: bool) -> Lines:
    """The display that fits where stderr goes."""
    return Bar(results=results) if sys.stderr.isatty() else Lines(results=results)


def row(label: str, text: str) -> str:
    return f"{label:<15}{text}"


def count(number: int, plural: str) -> str:
    """`1 episode`, `2 episodes`, `1 frame decoded`: the first word of `plural` loses its s for one."""
    first, space, rest = plural.partition(" ")
    return f"{number:,} {first.removesuffix('s') if number == 1 else first}{space}{rest}"


def plan_lines(plan: RecordingPlan) -> list[str]:
    """What will happen with a recording, before it happens."""
    recording, paired = plan.recording, plan.paired
    kinds = {"ros1": "ROS 1 bag", "db3": "ROS 2 db3", "mcap": "mcap"}
    compression = "" if recording.compression == "none" else f", {recording.compression}"
    span = units.format_duration_ns(max(recording.end_ns - recording.start_ns, 0))
    lines = [
        row(
            recording.path.name + " ",
            f"{units.format_size(recording.size_bytes)} · {count(len(recording.topics), 'topics')} · {span} · "
            f"{kinds.get(recording.kind, recording.kind)}{compression}",
        ),
        row("rows", f"{paired.rows:,} at {paired.fps} fps · timeline {plan.settings.timeline}"),
    ]
    by_fate: dict[str, list[str]] = {}
    for camera in plan.columns.cameras:
        in_table = camera.stored_as == "images"
        codec = "JPEG" if in_table else camera.stored_as
        fate = f"copied as {camera.kind.upper()}" if camera.copied else f"encoded as {codec}"
        fate += ", in the table" if in_table else ""
        by_fate.setdefault(fate, []).append(camera.key.removeprefix("observation.images."))
    lines += [row("video", f"{fate}: {', '.join(names)}") for fate, names in by_fate.items()]
    streams = paired.alignment.report.streams
    for vector in plan.columns.vectors:
        parts = []
        for part in vector.parts:
            parts.append(f"{part.topic.name} ({streams[part.stream].facts()})")
        lines.append(row("numbers", f"{vector.key} {vector.size} ← {' + '.join(parts)}"))
    budget, peak = units.format_bytes(plan.budget_bytes), units.format_bytes(plan.memory.peak_bytes)
    return [*lines, row("memory", f"budget {budget} · predicted peak {peak}")]


def report_lines(report: Report) -> list[str]:
    """What happened."""
    rate = report.bytes_in / max(report.seconds, 1e-9)
    lines = [
        row(
            "moved",
            f"{units.format_size(report.bytes_in)} in {report.seconds:.2f} s · {units.format_size(int(rate))}/s · "
            f"{units.format_size(report.bytes_out)} written",
        ),
        row(
            "wrote",
            f"{report.out} · {count(report.episodes, 'episodes')} · {count(report.frames, 'rows')} · "
            f"{report.lost_count:,} lost · peak {units.format_bytes(report.peak_rss_bytes)} "
            f"(predicted {units.format_bytes(report.predicted_peak_bytes)})",
        ),
    ]
    return lines + [row("lost", f"{count:,} · {cause}") for cause, count in report.lost.items()]
