"""A ROS recording as input: mapped, probed and aligned before a payload is read; then episode by episode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._src import formats, recordings
from penstock._src.conversion.cameras.camera import video_lines
from penstock._src.conversion.cameras.video_stream import conversion_of, refuse_encoding, stream_notes
from penstock._src.conversion.episodes.clock import check_clock, note_on_clock
from penstock._src.conversion.episodes.cuts import (
    Cuts,
    EpisodeCut,
    Marks,
    cut,
    read_marks,
    text_features,
    with_subtasks,
)
from penstock._src.conversion.inputs.columns import RecordingColumns, describe_features, open_columns
from penstock._src.conversion.inputs.input import (
    DatasetSpec,
    EpisodeCallbacks,
    EpisodePlan,
    Input,
    InputOutcome,
    OpenOptions,
    RetryEpisode,
    State,
)
from penstock._src.conversion.inputs.pairing import PairedRows, pair
from penstock._src.conversion.mapping.topics import map_topics
from penstock._src.conversion.settings import Settings
from penstock._src.lerobot.features import Feature
from penstock._src.media.video.hardware import device_notes
from penstock._src.plan.conversion_memory import MemoryDemand, MemoryPlan, Reads, plan_memory
from penstock._src.recordings.recording import Loss, Recording
from penstock._src.system import memory as process_memory
from penstock._src.system import units
from penstock._src.system.closing import on_error
from penstock.errors import AlignError, RecordingError

if TYPE_CHECKING:
    from penstock._src.conversion.cameras.image_pass import UnusableImage
    from penstock._src.conversion.commit.episode import EpisodeWriter

_RETRIES = 8  # a run of broken images may be met in several passes: neighbours step in and are broken too


class RecordingPlan(NamedTuple):
    """What will be done with one recording, known before its payloads are read."""

    recording: Recording
    settings: Settings
    columns: RecordingColumns
    paired: PairedRows
    marks: Marks
    cuts: Cuts
    memory: MemoryPlan

    @property
    def aligned_notes(self) -> tuple[str, ...]:
        """What the alignment says, without what concerns no episode."""
        return tuple(note for note in self.paired.alignment.report.notes if note not in self.cuts.quiet)


def plan_recording(
    recording: Recording,
    settings: Settings,
    budget_bytes: int,
    threads: int = 1,
    rows_before: int = 0,
    inputs: int = 1,
) -> tuple[RecordingPlan, tuple[str, ...]]:
    """Map, probe and align one recording, and share out the budget; reads no payload but the first of each topic."""
    mapped = map_topics(recording, settings)
    columns = open_columns(recording, mapped.settings)
    marks = read_marks(recording, mapped.settings)
    settled = with_subtasks(mapped.settings, marks)
    paired = pair(recording, columns, settled, {})
    demand = MemoryDemand(
        cameras=tuple(camera.demand(recording) for camera in columns.cameras),
        vectors=tuple(vector.demand for vector in columns.vectors),
        rows=paired.rows,
        index_bytes=recording.index_bytes + columns.index_bytes,
        reads=Reads(*recording.largest_reads(columns.topics())),
        chunk_size=settled.rosbag.chunk_size,
        threads=threads,
        streams=len(paired.picks),
        decoded=tuple(camera.decoder_demand for camera in columns.cameras if camera.stream is not None),
        image_bytes=recording.largest_reads([camera.topic for camera in columns.cameras]).message_bytes,
        rows_before=rows_before,
        episodes=inputs,
        input_bytes=recording.size_bytes,
    )
    memory = plan_memory(demand, budget_bytes)
    cuts = cut(marks, settled, paired, memory.rows_per_split)
    if len(cuts.spans) > 1:
        memory = plan_memory(demand._replace(episodes=inputs * len(cuts.spans)), budget_bytes)
    check_clock(str(recording.path), settled, paired, cuts.ranges)
    return RecordingPlan(recording, settled, columns, paired, marks, cuts, memory), mapped.notes


def open_recording(path: Path, options: OpenOptions, first_spec: DatasetSpec | None) -> RecordingInput:
    """Open and plan a recording; after the first of a data set, with what that one settled."""
    recording = recordings.open(path, on_corrupt="raise" if options.strict else "count")
    with on_error(recording.close):
        return RecordingInput(recording, options, first_spec)


class RecordingInput(Input):
    """The state after an episode: the next row, the messages that cannot be used, and what was counted so far."""

    def __init__(self, recording: Recording, options: OpenOptions, first_spec: DatasetSpec | None) -> None:
        self.path = recording.path
        self.size_bytes = recording.size_bytes
        self._recording = recording
        self._options = options
        settings = options.settings if first_spec is None else first_spec.settings
        plan, notes = self._plan(settings, first_spec)
        # What planning reads (stamps, the headers of streams) is read again by every process that opens the recording.
        self.is_whole = not recording.losses
        self._opening_losses = (*recording.losses, *_other_types(plan))
        self._planned = plan  # as planned at first; `_now` follows what turned out to be unusable
        self._now, self._now_unusable = plan, dict[int, frozenset[int]]()
        self.settings, self.fps = plan.settings, plan.paired.fps
        if plan.settings.fps is None and plan.settings.stride is None:
            # The rate stands for the recordings after this one, though theirs may round to another one.
            self.settings = replace(plan.settings, fps=self.fps)
        self.robot_type = plan.settings.robot_type
        columns = plan.columns
        vectors = [Feature(each.key, each.dtype, (each.size,), each.names or None) for each in columns.vectors]
        cameras = [camera.feature() for camera in columns.cameras]
        self.features = (*cameras, *vectors, *text_features(plan.settings.episodes))
        self.codecs = {camera.key: camera.stored_as for camera in plan.columns.cameras}
        self.memory = plan.memory
        self.encodes = any(not camera.copied for camera in plan.columns.cameras)
        for camera in plan.columns.cameras:
            refuse_encoding(camera, self.path, plan.paired, plan.cuts.ranges)
        self.notes = self._all_notes(plan, notes)
        self._refuse_losses_if_strict(plan)
        process_memory.give_back_freed()

    def close(self) -> None:
        self._recording.close()

    @property
    def plan(self) -> RecordingPlan:
        return self._planned

    def next_episode(self, state: State | None) -> EpisodePlan | None:
        plan = self._at(state)
        row = 0 if state is None else state["next_row"]
        for span in plan.cuts.spans:
            if span.rows.start >= row and len(span.rows):
                return EpisodePlan(len(span.rows), span.task, (span, state))
        return None

    def write(self, plan: EpisodePlan, episode: EpisodeWriter, callbacks: EpisodeCallbacks) -> State:
        from penstock._src.conversion.cameras.image_pass import UnusableImageFound
        from penstock._src.conversion.inputs.episode import stream_episode

        span: EpisodeCut
        span, state = plan.detail
        state = state or self._first_state()
        try:
            overflows = stream_episode(self._at(state), span, episode, callbacks)
        except UnusableImageFound as problem:
            raise RetryEpisode(self._without(state, problem.images)) from None
        state = _with_overflows(state, overflows)
        return {**state, "next_row": span.rows.stop, "attempts": 0, "losses": self._losses_since_opening(state)}

    def finish(self, state: State | None) -> InputOutcome:
        state = state or self._first_state()
        now = self._at(state)
        lost: Counter[str] = Counter(state["lost"])
        lost.update(now.cuts.lost)
        notes = list(state["notes"])
        if now is not self._planned:  # rows were left out since the plan was shown
            planned, left = (note_on_clock(plan.paired, plan.cuts.ranges) for plan in (self._planned, now))
            notes += [note for note in left if note not in planned]
        notes += stream_notes(now.columns, now.paired, now.cuts.ranges)
        seen = [Loss(*loss) for loss in self._losses_since_opening(state)]
        lost_messages: Counter[str] = Counter()
        for loss in (*self._opening_losses, *seen):
            lost_messages[loss.cause] += loss.count
            notes.append(f"lost {loss.count:,}: {loss.cause} ({loss.where})")
        lost.update(lost_messages)
        report = {**now.paired.alignment.report.to_json(), "episodes": now.cuts.to_json()}
        report |= {"notes": list(now.aligned_notes), "lost_messages": dict(lost_messages)}
        return InputOutcome(lost, tuple(notes), {"source": str(self.path), **report})

    def describe(self) -> dict[str, Any]:
        return describe_features(self._planned.columns)

    def lines(self) -> list[tuple[str, str]]:
        return plan_lines(self._planned)

    def _plan(self, settings: Settings, first_spec: DatasetSpec | None) -> tuple[RecordingPlan, tuple[str, ...]]:
        try:
            options = self._options
            job = options.budget_bytes, options.threads, options.rows_before, options.inputs
            return plan_recording(self._recording, settings, *job)
        except AlignError as error:
            if first_spec is None:
                raise
            text = f"{error.message}; the data set was begun with {first_spec.source} at {first_spec.fps} fps"
            raise AlignError(text, hint=error.hint) from error

    def _all_notes(self, plan: RecordingPlan, notes: Sequence[str]) -> tuple[str, ...]:
        longest = max((len(span.rows) for span in plan.cuts.spans), default=0)
        all_notes = [*notes, *plan.cuts.notes]
        all_notes += device_notes(self.codecs.values(), plan.settings.encoding.device)
        all_notes += self._too_long(longest / plan.paired.fps, ", or cut it with split_episodes=true")
        return (*all_notes, *plan.recording.notes, *plan.aligned_notes)

    def _refuse_losses_if_strict(self, plan: RecordingPlan) -> None:
        if self._options.strict and (others := _other_types(plan)):
            count, cause = others[0].count, others[0].cause
            hint = "name the type that is wanted, as NAME:TYPE; without --strict the others are left out and counted"
            raise AlignError(f"{self.path}: {count:,} {cause}", hint=hint)
        lost = plan.cuts.lost
        if self._options.strict and lost:
            causes = ", ".join(f"{name} {n:,}" for name, n in lost.items())
            raise AlignError(
                f"{self.path}: {sum(lost.values()):,} rows find no message of some stream: {causes}",
                hint="without --strict they are left out and counted; a larger tolerance or missing=hold keeps them",
            )

    def _first_state(self) -> State:
        return {"next_row": 0, "attempts": 0, "unusable": {}, "lost": {}, "notes": [], "losses": []}

    def _at(self, state: State | None) -> RecordingPlan:
        """The plan without the messages that `state` knows to be unusable."""
        listed = {} if state is None else state["unusable"]
        unusable = {int(topic): frozenset(numbers) for topic, numbers in listed.items()}
        if unusable != self._now_unusable:
            first = self._planned
            paired = pair(first.recording, first.columns, first.settings, unusable)
            cuts = cut(first.marks, first.settings, paired, first.memory.rows_per_split)
            self._now = first._replace(paired=paired, cuts=cuts)
            self._now_unusable = unusable
        return self._now

    def _without(self, state: State, problems: Sequence[UnusableImage]) -> State:
        """The state in which the broken messages and what lies broken beside them are left out, and counted."""
        from penstock._src.conversion.inputs.episode import DAMAGED, whole_outages

        plan = self._at(state)
        # Rows that are committed keep their messages: what is removed lies in this episode or after it.
        outages = whole_outages(plan.recording, plan.columns, problems, self._now_unusable)
        last = state["attempts"] >= _RETRIES
        text = f"{outages[0].name}: message {outages[0].number:,}: {outages[0].reason}"
        drop = "without --strict penstock" if self._options.strict else "bad_messages=drop"
        some = f"{len(outages)} unusable message{'s' if len(outages) != 1 else ''}"
        if plan.settings.bad_messages == "reject" or self._options.strict or last:
            raise RecordingError(
                f"{self.path}: {some}, the first: {text}",
                hint=None if last else f"{drop} leaves them out and counts them (exit code 3)",
            )
        lost: Counter[str] = Counter(state["lost"])
        unusable = {topic: set(numbers) for topic, numbers in state["unusable"].items()}
        for bad in outages:
            unusable.setdefault(str(bad.owner), set()).add(bad.number)
            if bad.reason != DAMAGED:
                lost[f"unusable message: {bad.name}"] += 1
        return {
            **state,
            "attempts": state["attempts"] + 1,
            "unusable": {topic: sorted(numbers) for topic, numbers in unusable.items()},
            "lost": dict(lost),
            "notes": [*state["notes"], f"{some} left out, the first: {text}"],
            "losses": self._losses_since_opening(state),
        }

    def _losses_since_opening(self, state: State) -> list[list[Any]]:
        """What reading has lost, in this process and in those before it: each message is asked for only once."""
        counted = Counter({(loss.cause, loss.where): -loss.count for loss in self._opening_losses})
        for loss in self._recording.losses:
            counted[loss.cause, loss.where] += loss.count
        for cause, count, where in state.get("earlier_losses", []):
            counted[cause, where] += count
        return [[cause, count, where] for (cause, where), count in counted.items() if count > 0]

    def resumed(self, state: State) -> State:
        """A state of a process that ended: what it had counted is kept beside what this one will count."""
        return {**state, "earlier_losses": state["losses"]}


def _other_types(plan: RecordingPlan) -> list[Loss]:
    """Messages that have the name of a topic in use, and another type; NAME:TYPE says that they are not wanted."""
    topics = {source.topic for feature in plan.settings.features.values() for source in feature.sources}
    topics |= {str(plan.settings.timeline)} | plan.settings.episodes.topics
    used = {topic.id for topic in plan.columns.topics()}
    return [
        Loss(f"messages of another type on {topic.shared_name}: {topic.type}", topic.count, topic.name)
        for topic in plan.recording.topics
        if topic.shared_name in topics and topic.name not in topics and topic.id not in used and topic.count
    ]


def _with_overflows(state: State, overflows: Mapping[tuple[str, str], int]) -> State:
    """Numbers that became Inf are counted as lost, with a note on how to keep them."""
    lost, notes = dict(state["lost"]), list(state["notes"])
    for (key, dimension), count in overflows.items():
        cause = f"too large for float32: {key} {dimension}"
        if cause not in lost:
            notes.append(f"{key} {dimension} has numbers too large for float32, stored as Inf: set its dtype: float64")
        lost[cause] = lost.get(cause, 0) + count
    return {**state, "lost": lost, "notes": notes}


def plan_lines(plan: RecordingPlan) -> list[tuple[str, str]]:
    """What will happen with a recording, before it happens."""
    recording, paired = plan.recording, plan.paired
    compression = "" if recording.compression == "none" else f", {recording.compression}"
    span = units.format_duration_ns(max(recording.end_ns - recording.start_ns, 0))
    topics = len(recording.topics)
    label = next((each.label for each in formats.all_formats() if each.kind == recording.kind), recording.kind)
    lines = [
        (
            recording.path.name + " ",
            f"{units.format_size(recording.size_bytes)} · {topics:,} topic{'s' if topics != 1 else ''} · {span} · "
            f"{label}{compression}",
        ),
        ("rows", f"{paired.rows:,} at {paired.fps} fps · timeline {plan.settings.timeline}"),
    ]
    if len(plan.cuts.spans) != 1:
        rows = sum(len(span.rows) for span in plan.cuts.spans)
        lines.append(("episodes", f"{len(plan.cuts.spans):,} with {rows:,} rows"))
    conversions = [conversion_of(camera, paired, plan.cuts.ranges) for camera in plan.columns.cameras]
    lines += video_lines(conversions, plan.settings.encoding, plan.memory.threads)
    streams = paired.alignment.report.streams
    for vector in plan.columns.vectors:
        parts = dict.fromkeys(f"{part.topic.name} ({streams[part.stream].facts()})" for part in vector.parts)
        lines.append(("numbers", f"{vector.key} {vector.size} ← {' + '.join(parts)}"))
    return lines
