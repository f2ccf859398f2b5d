"""The job: sources → plan → stream → commit → report."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import __version__, recordings
from penstock import memory as process_memory
from penstock.budget import Budget
from penstock.conversion import output
from penstock.conversion.columns import CameraColumn, Columns, describe_features, open_columns
from penstock.conversion.episode import DAMAGED, Bad, BadMessages, Pass, stream_episode
from penstock.conversion.mapping import map_topics
from penstock.conversion.outage import whole_outages
from penstock.conversion.pairing import Paired, pair
from penstock.conversion.progress import MovedBytes, Progress, Silence
from penstock.conversion.report import REPORT_PATH, Report, Stage
from penstock.conversion.settings import Settings, read_settings
from penstock.errors import AlignError, DataSetError, RecordingError
from penstock.limits import read_cpu_limit
from penstock.plan.conversion_memory import CameraLoad, MemoryPlan, plan_memory
from penstock.recordings.recording import Recording, Topic

if TYPE_CHECKING:
    from penstock.lerobot.writer import DataSetWriter

_STAGES_KEPT = 400
_RETRIES = 8  # a run of broken pictures may be met in several passes: neighbours step in and are broken too
# LeRobot keeps times as float32 and compares them within 0.1 ms, which fails from here on.
_EXACT_SECONDS = 2048
_TOO_LONG = (
    "an episode of {seconds:,} s is longer than the 2,048 s that LeRobot's float32 times resolve to its 0.1 ms: "
    "read it with LeRobotDataset(..., tolerance_s=1e-3), or cut it with split_episodes=true"
)


@dataclass(frozen=True)
class RecordingPlan:
    """What will be done with one recording, known before its payloads are read."""

    recording: Recording
    settings: Settings
    columns: Columns
    paired: Paired
    memory: MemoryPlan
    budget_bytes: int


def convert(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    config: str | Path | None = None,
    memory: str | int = "auto",
    overwrite: bool = False,
    strict: bool = False,
    overrides: Iterable[str] = (),
    progress: Progress | None = None,
    **values: Any,
) -> Report:
    """Convert recordings to one LeRobot v3.0 data set and say what happened.

    >>> penstock.convert("run.bag", "datasets/run", memory="512MiB", video="copy", task="stack the cups")
    """
    settings = read_settings(config, [*overrides, *(["bad_messages=reject"] if strict else [])], values)
    wanted = [sources] if isinstance(sources, (str, Path)) else list(sources)
    job = _Job(recordings.find(wanted), Path(out), settings, Budget.parse(memory), progress or Silence(), strict=strict)
    return job.run(overwrite=overwrite)


def plan_recording(
    recording: Recording, settings: Settings, budget_bytes: int
) -> tuple[RecordingPlan, tuple[str, ...]]:
    """Map, probe and align one recording, and share out the budget; reads no payload but the first of each topic."""
    mapped = map_topics(recording, settings)
    columns = open_columns(recording, mapped.settings)
    paired = pair(recording, columns, mapped.settings, {})
    return _with_memory(recording, mapped.settings, columns, paired, budget_bytes), mapped.notes


def _with_memory(
    recording: Recording, settings: Settings, columns: Columns, paired: Paired, budget_bytes: int
) -> RecordingPlan:
    memory_plan = plan_memory(
        budget_bytes=budget_bytes,
        cameras=tuple(_load(camera, recording) for camera in columns.cameras),
        vector_values=sum(vector.size for vector in columns.vectors),
        rows=paired.rows,
        index_bytes=recording.index_bytes,
        reads=recording.largest_reads(_used_topics(columns)),
        chunk_size=settings.rosbag.chunk_size,
        threads=read_cpu_limit().count,
    )
    return RecordingPlan(recording, settings, columns, paired, memory_plan, budget_bytes)


def _used_topics(columns: Columns) -> list[Topic]:
    return [camera.topic for camera in columns.cameras] + [
        part.topic for vector in columns.vectors for part in vector.parts
    ]


def _load(camera: CameraColumn, recording: Recording) -> CameraLoad:
    height, width = max(camera.recorded_px, camera.size_px, key=lambda size_px: size_px[0] * size_px[1])
    typical = recording.size_bytes // max(sum(topic.count for topic in recording.topics), 1)
    return CameraLoad(width, height, camera.stored_as, max(typical, width * height // 3))


@dataclass
class _Job:
    sources: list[Path]
    out: Path
    settings: Settings
    budget: Budget
    progress: Progress
    strict: bool = False
    notes: list[str] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    stages: list[Stage] = field(default_factory=list)
    alignment: list[Mapping[str, Any]] = field(default_factory=list)
    bytes_in: int = 0
    predicted: int = 0

    def run(self, *, overwrite: bool) -> Report:
        if not self.sources:
            raise RecordingError(
                "no recording was found", hint="give .bag, .db3 or .mcap files, or directories with them"
            )
        began = time.perf_counter()
        with process_memory.PeakMeter() as meter, output.building(self.out, overwrite=overwrite) as partial:
            self._stage("start")
            moved = MovedBytes(self.progress, sum(_size(path) for path in self.sources))
            writer: DataSetWriter | None = None
            first: RecordingPlan | None = None
            try:
                for path in self.sources:
                    with recordings.open(path, on_corrupt="raise" if self.strict else "count") as recording:
                        plan = self._plan(recording, first)
                        if writer is None or first is None:
                            first, writer = plan, _open_writer(partial, plan)
                        self.progress.plan(plan)
                        self._convert_one(plan, writer, moved)
                        self.bytes_in += recording.size_bytes
                if writer is None or first is None:
                    raise RecordingError("no recording could be converted")
                self._note_bad_values(writer)
                summary = writer.close()
            except BaseException:
                if writer is not None:
                    writer.abandon()
                raise
            self._stage("end")
            report = self._report(writer_summary=summary, first=first, meter=meter, partial=partial, began=began)
            _write_report(partial, report)
        return report

    def _plan(self, recording: Recording, first: RecordingPlan | None) -> RecordingPlan:
        settings = self.settings if first is None else _settled(first)
        try:
            plan, notes = plan_recording(recording, settings, self.budget.limit_bytes)
        except AlignError as error:
            if first is None:
                raise
            begun = f"; the data set was begun with {first.recording.path} at {first.paired.fps} fps"
            raise AlignError(error.message + begun, hint=error.hint) from error
        if first is not None and _joints_are_permuted(first, plan):
            plan, notes = plan_recording(recording, _in_the_order_of(first, settings), self.budget.limit_bytes)
        if first is not None and (
            plan.columns.signature() != first.columns.signature() or plan.paired.fps != first.paired.fps
        ):
            raise DataSetError(
                f"{recording.path} does not fit the data set begun with {first.recording.path}: "
                + _difference(first, plan),
                hint="convert it on its own, or settle fps, resize and fields in a configuration",
            )
        if self.strict and plan.paired.alignment.report.lost:
            found = plan.paired.alignment.report
            causes = ", ".join(f"{name} {n:,}" for name, n in found.lost_by_cause.items())
            raise AlignError(
                f"{recording.path}: {found.lost:,} rows find no message of some stream: {causes}",
                hint="without --strict they are left out and counted; a larger tolerance or missing=hold keeps them",
            )
        if plan.paired.rows > _EXACT_SECONDS * plan.paired.fps and not plan.settings.split_episodes:
            notes = (*notes, _TOO_LONG.format(seconds=plan.paired.rows // plan.paired.fps))
        for note in (*notes, *recording.notes, *plan.paired.alignment.report.notes):
            self._note(f"{recording.path.name}: {note}")
        self.predicted = max(self.predicted, plan.memory.peak_bytes)
        process_memory.give_back_freed()
        return plan

    def _convert_one(self, plan: RecordingPlan, writer: DataSetWriter, moved: MovedBytes) -> None:
        """One recording → its episodes; unusable messages are counted, and the rows paired again without them."""
        unusable: dict[int, frozenset[int]] = {}
        start = attempts = 0
        while start < plan.paired.rows:
            rows = range(start, min(start + self._episode_rows(plan), plan.paired.rows))
            try:
                self._episode(plan, rows, writer, moved)
                start, attempts = rows.stop, 0
            except BadMessages as problem:
                # Rows that are committed keep their messages: what is removed lies in this episode or after it.
                attempts += 1
                found = whole_outages(plan.recording, plan.columns, problem.found, unusable)
                self._reject_or_count(plan, found, last=attempts > _RETRIES)
                for bad in found:
                    unusable[bad.topic_id] = unusable.get(bad.topic_id, frozenset()) | {bad.number}
                paired = pair(plan.recording, plan.columns, plan.settings, unusable)
                plan = _with_memory(plan.recording, plan.settings, plan.columns, paired, plan.budget_bytes)
        for name, count in plan.paired.alignment.report.lost_by_cause.items():
            self.lost[name] += count
        for loss in plan.recording.losses:
            self.lost[loss.cause] += loss.count
            self._note(f"{plan.recording.path.name}: lost {loss.count:,}: {loss.cause} ({loss.where})")
        self.alignment.append({"source": str(plan.recording.path), **plan.paired.alignment.report.to_json()})

    def _episode_rows(self, plan: RecordingPlan) -> int:
        """One recording is one episode, unless the seed's splitting into flushes is asked for."""
        if not plan.settings.split_episodes:
            return plan.paired.rows
        chunk_size = plan.settings.rosbag.chunk_size
        if not chunk_size:
            self._note("split_episodes has no effect without rosbag.chunk_size")
            return plan.paired.rows
        # A number is kept whatever the budget, so that the episodes do not depend on the machine.
        return plan.memory.rows_per_flush if chunk_size == "auto" else chunk_size

    def _reject_or_count(self, plan: RecordingPlan, found: Sequence[Bad], *, last: bool) -> None:
        example = found[0]
        text = f"{example.topic}: message {example.number:,}: {example.reason}"
        if plan.settings.bad_messages == "reject" or last:
            raise RecordingError(
                f"{plan.recording.path}: {len(found)} unusable messages, the first: {text}",
                hint=None if last else "bad_messages=drop leaves them out and counts them (exit code 3)",
            )
        for bad in found:
            if bad.reason != DAMAGED:
                self.lost[f"unusable message: {bad.topic}"] += 1
        self._note(f"{plan.recording.path.name}: {len(found)} unusable messages left out, the first: {text}")

    def _episode(self, plan: RecordingPlan, rows: range, writer: DataSetWriter, moved: MovedBytes) -> None:
        size_bytes, all_rows = plan.recording.size_bytes, plan.paired.rows
        run = Pass(
            settings=plan.settings,
            rows_per_flush=plan.memory.rows_per_flush,
            fetch_bytes=plan.memory.fetch_bytes,
            threads=plan.memory.threads,
            on_block=lambda done_bytes: moved(self.bytes_in, size_bytes, rows.start, all_rows, done_bytes),
            on_flush=lambda row: self._stage(f"row {rows.start + row:,}"),
        )
        with contextlib.ExitStack() as held:
            for name, size in plan.memory.parts().items():
                held.enter_context(self.budget.reserve(name, size))
            episode = writer.episode(rows=len(rows), task=plan.settings.task)
            try:
                stream_episode(plan.recording, plan.columns, plan.paired, rows, episode, run)
                episode.commit(task=plan.settings.task)
            except BaseException:
                episode.abort()
                raise

    def _note_bad_values(self, writer: DataSetWriter) -> None:
        """NaN and Inf are kept as recorded, left out of the statistics, and named."""
        for key, dimensions in writer.bad_values().items():
            for dimension, counts in dimensions.items():
                found = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
                self._note(f"{key} {dimension}: {found} (kept as recorded, left out of the statistics)")

    def _stage(self, at: str) -> None:
        stage = Stage(at, process_memory.rss_bytes())
        if len(self.stages) >= _STAGES_KEPT:
            del self.stages[1:-1:2]  # a long run keeps its shape, not every point
        self.stages.append(stage)
        self.progress.stage(stage)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
            self.progress.note(text)

    def _report(
        self, *, writer_summary: Any, first: RecordingPlan, meter: process_memory.PeakMeter, partial: Path, began: float
    ) -> Report:
        return Report(
            out=str(self.out),
            sources=tuple(str(path) for path in self.sources),
            episodes=writer_summary.episodes,
            frames=writer_summary.frames,
            lost=dict(self.lost),
            seconds=round(time.perf_counter() - began, 4),
            bytes_in=self.bytes_in,
            bytes_out=sum(entry.stat().st_size for entry in partial.rglob("*") if entry.is_file()),
            peak_rss_bytes=meter.tree_peak_bytes,
            predicted_peak_bytes=self.predicted,
            budget_bytes=self.budget.limit_bytes,
            fps=first.paired.fps,
            features=describe_features(first.columns),
            alignment=tuple(self.alignment),
            notes=tuple(self.notes),
            memory=tuple(self.stages),
            penstock=__version__,
        )


def _settled(first: RecordingPlan) -> Settings:
    """The settings for the recordings after the first: its rate stands, though theirs may round to another one."""
    if first.settings.fps is None and first.settings.stride is None:
        return replace(first.settings, fps=first.paired.fps)
    return first.settings


def _joints_are_permuted(first: RecordingPlan, other: RecordingPlan) -> bool:
    pairs = list(zip(first.columns.vectors, other.columns.vectors, strict=True))
    same = all(sorted(mine.names) == sorted(theirs.names) for mine, theirs in pairs)
    return same and any(mine.names != theirs.names for mine, theirs in pairs)


def _in_the_order_of(first: RecordingPlan, settings: Settings) -> Settings:
    """Joints that are recorded by name come in the order of the first recording in all of them."""
    features = dict(settings.features)
    for vector in first.columns.vectors:
        sources = tuple(
            replace(part.source, names=part.reader.dimension_names) if part.reader.recorded_names else part.source
            for part in vector.parts
        )
        features[vector.key] = replace(features[vector.key], sources=sources)
    return replace(settings, features=features)


def _difference(first: RecordingPlan, other: RecordingPlan) -> str:
    if first.paired.fps != other.paired.fps:
        return f"{other.paired.fps} fps against {first.paired.fps}"
    mine, theirs = describe_features(first.columns), describe_features(other.columns)
    for key, value in mine.items():
        if value != theirs.get(key):
            return f"{key} is {theirs.get(key)} against {value}"
    return "other features"


def _open_writer(root: Path, plan: RecordingPlan) -> DataSetWriter:
    from penstock.lerobot.features import Feature
    from penstock.lerobot.writer import DataSetWriter

    features = [
        Feature(
            camera.key,
            "image" if camera.stored_as == "images" else "video",
            (*camera.size_px, 3),
            ("height", "width", "channels"),
        )
        for camera in plan.columns.cameras
    ]
    features += [Feature(vector.key, vector.dtype, (vector.size,), vector.names) for vector in plan.columns.vectors]
    files = plan.settings.files
    return DataSetWriter(
        root,
        fps=plan.paired.fps,
        features=features,
        robot_type=plan.settings.robot_type,
        data_file_bytes=(files.data_mb or 100) * 2**20,
        video_file_bytes=(files.video_mb or 200) * 2**20,
    )


def _write_report(root: Path, report: Report) -> None:
    path = root / REPORT_PATH
    path.parent.mkdir(exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        file.write(report.dumps())
        file.flush()
        os.fsync(file.fileno())
    output.sync_directory(path.parent)


def _size(path: Path) -> int:
    return (
        sum(entry.stat().st_size for entry in path.rglob("*") if entry.is_file())
        if path.is_dir()
        else path.stat().st_size
    )


__all__ = ["Progress", "RecordingPlan", "Silence", "convert", "plan_recording"]
