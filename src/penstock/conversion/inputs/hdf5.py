"""An HDF5 file as input: its layout recognised, its features settled, then episode by episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.conversion.cameras.encoding_anew import video_lines
from penstock.conversion.inputs.hdf5_columns import FileColumns, NumberColumn, PictureColumn, open_columns
from penstock.conversion.inputs.hdf5_episode import (
    BadPicture,
    BadPictures,
    EpisodeRows,
    Pass,
    buffer_bytes,
    open_arrays,
    stream_episode,
)
from penstock.conversion.inputs.hdf5_facts import label_of, length_of, notes_on, rate_of, robot_of
from penstock.conversion.inputs.hdf5_mapping import SUCCESS, TEXT_NAMES, map_members, read_facts
from penstock.conversion.inputs.hdf5_next import CHILD_BYTES, LIBRARY_BYTES, next_features, refuse_new
from penstock.conversion.inputs.input import Again, Begun, EpisodePlan, Input, Means, Outcome, Run, State
from penstock.conversion.settings import FeatureSettings, Settings, Source, without_left_out
from penstock.errors import StoreError
from penstock.media.video.hardware import device_notes
from penstock.plan.conversion_memory import (
    FETCH_MIN_BYTES,
    CameraLoad,
    Load,
    MemoryPlan,
    VectorLoad,
    plan_memory,
)
from penstock.recordings.recording import LargestReads
from penstock.stores.hdf5.array import Hdf5Array
from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.layout import (
    Layout,
    Span,
    episode_spans,
    episode_success,
    join,
    list_members,
    lost_demonstrations,
    recognise,
)
from penstock.stores.roles import ACTIONS
from penstock.system import memory as process_memory
from penstock.system import units

if TYPE_CHECKING:
    from penstock.conversion.commit.episode import EpisodeWriter

_SPAN_BYTES = 400  # one episode in the list of them
_RETRIES = 8  # a picture that only decoding shows to be broken is found when it is sampled
_MOST_NOTES = 20
_UNKNOWN_TASK = Settings().task


def open_hdf5(path: Path, means: Means, begun: Begun | None) -> Hdf5Input:
    """Open and plan an HDF5 file; after the first of a data set, with what that one settled."""
    settings = means.settings if begun is None else begun.settings
    file = Hdf5File(path, allow_external=settings.hdf5.allow_external, texts=TEXT_NAMES)
    try:
        return Hdf5Input(file, means, begun)
    except BaseException:
        file.close()
        raise


class Hdf5Input(Input):
    """The state after an episode: the number of the next one, its pictures known to be unusable, and what was lost."""

    kind = "hdf5"

    def __init__(self, file: Hdf5File, means: Means, begun: Begun | None) -> None:
        settings = means.settings if begun is None else begun.settings
        self.path, self.size_bytes = file.path, file.size_bytes
        self._file, self._means = file, means
        self.layout = recognise(file, settings.hdf5.channels)
        unknown: list[str] = []
        self.spans = episode_spans(file, self.layout, settings.hdf5.mask, unknown)
        self._facts = read_facts(file, self.layout)
        first = next((span for span in self.spans if length_of(span, settings)), None)
        if first is None:
            raise StoreError(f"{self.path} has no rows", hint="it was recorded empty; leave it out")
        if self.layout.group != first.group:  # the first that is converted need not be the first of the file
            self.layout = replace(self.layout, members=list_members(file, first.group, settings.hdf5.channels)[0])
        self.fps = rate_of(self.path, self.layout, self._facts, settings, means)
        asked = settings if begun is None else Settings()
        notes = [*unknown, *notes_on(self.layout, self._facts, settings, asked, self.spans, self.fps)]
        is_flat = self.layout.kind == "replay"  # flat steps have no place for what is known of an episode
        self._successes = [None if is_flat else episode_success(file, span.group) for span in self.spans]
        self._lost = {} if settings.hdf5.mask else lost_demonstrations(file, self.layout)
        notes += self._lost_notes()
        self.by_name = not settings.features if begun is None else begun.by_name
        rows = Hdf5Array(file, join(first.group, _central(self.layout))).count
        if self.by_name and begun is None:
            settings, found_notes = self._by_name(rows, settings)
            notes += found_notes
        features = without_left_out(settings.features, settings, self.path, strict=begun is None)
        settings = replace(settings, features=features)
        self.columns = self._open_columns(first, settings, begun)
        if self.by_name and begun is not None:
            notes += self._like_first(rows, settings, begun)
        notes += self._success_notes(settings)
        self.settings = replace(settings, fps=self.fps, robot_type=robot_of(settings, self._facts))
        self.robot_type = self.settings.robot_type
        self.features = self.columns.features()
        self.codecs = {each.key: each.camera.stored_as for each in self.columns.cameras}
        self.encodes = any(not each.camera.copied for each in self.columns.cameras)
        for each in self.columns.cameras:
            each.camera.refuse_encoding(self.path)
        self.memory = self._plan_memory(first)
        notes += device_notes(self.codecs.values(), settings.encoding.device)
        self.notes = (*notes, *(f"reads {target} as well" for target in file.followed))
        process_memory.give_back_freed()

    def _by_name(self, rows: int, settings: Settings) -> tuple[Settings, Sequence[str]]:
        """The settings with the features that names tell of, and notes."""
        found = map_members(self.layout, rows, with_depth=settings.depth != "off")
        features = dict(found.features)
        if SUCCESS not in features and any(success is not None for success in self._successes):
            features[SUCCESS] = FeatureSettings((Source("success"),))
        settings = replace(settings, features=features)
        after = next_features(self._file, self.layout, self.spans, rows, settings, self._means)
        return replace(settings, features=features | after.features), (*found.notes, *after.notes)

    def _like_first(self, rows: int, settings: Settings, begun: Begun) -> Sequence[str]:
        """Notes on what the first input of the data set left out; refused where this file needs it."""
        after = next_features(self._file, self.layout, self.spans, rows, settings, self._means)
        refuse_new(self.path, after, settings, begun.source)
        if after.features:
            return [f"left out, as {begun.source} has none: {', '.join(after.features)}"]
        return after.notes

    def _open_columns(self, first: Span, settings: Settings, begun: Begun | None) -> FileColumns:
        try:
            return open_columns(self._file, first.group, settings)
        except StoreError as error:
            if begun is None or begun.kind != self.kind:
                raise
            # What a file of another layout lacks says less than that it is one.
            with Hdf5File(begun.source, allow_external=settings.hdf5.allow_external) as file:
                before = recognise(file, settings.hdf5.channels)
            if label_of(before) == label_of(self.layout):
                raise
            raise StoreError(
                f"{self.path} holds {label_of(self.layout)}, {begun.source} holds {label_of(before)}: files of "
                f"different layouts do not make one data set ({error.message.removeprefix(f'{self.path}: ')})",
                hint=f"convert each layout on its own, this file with: penstock convert {self.path} OUT",
            ) from error

    def _lost_notes(self) -> list[str]:
        if not self._lost:
            return []
        group, count = next(iter(self._lost.items()))[0], len(self._lost)
        some = f"{sum(self._lost.values()):,} rows of {count:,} demonstration{'s' if count > 1 else ''} without actions"
        if self._means.strict:
            raise StoreError(
                f"{self.path}: {some}, the first is {group}",
                hint="without --strict they are left out and counted (exit code 3)",
            )
        return [f"lost: {some}, the first is {group}"]

    def _success_notes(self, settings: Settings) -> list[str]:
        known = [success for success in self._successes if success is not None]
        count, unknown = len(self._successes), len(self._successes) - len(known)
        if self.columns.has_success:
            text = f"{SUCCESS} is true in the last row of {sum(known):,} of {count:,} episodes"
            return [text + (f"; nothing is known of {unknown:,}, which count as failed" if unknown else "")]
        if known and self.by_name and SUCCESS not in settings.features:
            return [f"success of {len(known):,} episodes left out: the data set was started without {SUCCESS}"]
        return []

    def close(self) -> None:
        self._file.close()

    def next_episode(self, state: State | None) -> EpisodePlan | None:
        state = self._past_empty(state or _first_state())
        if state["next"] >= len(self.spans):
            return None
        span = self.spans[state["next"]]
        rows = self._rows(span, state)
        return EpisodePlan(len(rows.picks), self._task(span), span.label, (rows, state))

    def write(self, plan: EpisodePlan, episode: EpisodeWriter, run: Run) -> State:
        rows: EpisodeRows
        rows, state = plan.detail
        self._check_rows(rows)
        number, count = state["next"], len(self.spans)
        before = self.size_bytes * number // count
        share = self.size_bytes * (number + 1) // count - before
        going = Pass(self.settings, self.memory, self.fps, before, share, run)
        try:
            stream_episode(self._file, self.columns, rows, episode, going)
        except BadPictures as problem:
            raise Again(self._without(state, problem.found)) from None
        return {**state, "next": number + 1, "bad": {}, "attempts": 0}

    def finish(self, state: State | None) -> Outcome:
        state = self._past_empty(state or _first_state())
        lost = {"demonstration without actions": len(self._lost)} if self._lost else {}
        return Outcome({**lost, **state["lost"]}, tuple(state["notes"]))

    def describe(self) -> dict[str, Any]:
        return self.columns.describe()

    def lines(self) -> list[tuple[str, str]]:
        rows = sum(length_of(span, self.settings) for span in self.spans)
        episodes = f"{len(self.spans):,} episode{'s' if len(self.spans) != 1 else ''}"
        lines = [
            (self.path.name + " ", f"{units.format_size(self.size_bytes)} · HDF5 · {label_of(self.layout)}"),
            ("rows", f"{rows:,} at {self.fps} fps · {episodes} · {self.layout.why}"),
        ]
        cameras = [each.camera for each in self.columns.cameras]
        fates = [(camera.key, camera.fate, camera.to_encode(rows)) for camera in cameras]
        lines += video_lines(fates, self.settings.encoding, self.memory.threads)
        for column in self.columns.numbers:
            names = " + ".join(part.name for part in column.parts)
            lines.append(("numbers", f"{column.key} {column.size} ← {names}"))
        return lines

    def _rows(self, span: Span, state: State) -> EpisodeRows:
        """The rows that are left when those with unusable pictures are gone, or show the picture before."""
        drop, stride = self.settings.sample_drop, self.settings.stride or 1
        picks = np.arange(span.start + drop, max(span.stop - drop, span.start + drop), stride, dtype=np.int64)
        bad = {key: frozenset(rows) for key, rows in state["bad"].items()}
        success = self.columns.has_success and bool(self._successes[state["next"]])
        if self.settings.missing == "hold":
            # Nothing comes before the first rows: they are left out until every camera shows something.
            while len(picks) and any(int(picks[0]) in rows for rows in bad.values()):
                picks = picks[1:]
            return EpisodeRows(span.group, picks, bad, success)
        gone = np.array(sorted(set().union(*bad.values())), dtype=np.int64)
        return EpisodeRows(span.group, picks[~np.isin(picks, gone)], success=success)

    def _past_empty(self, state: State) -> State:
        """Beyond episodes without a usable row, which are counted."""
        while state["next"] < len(self.spans):
            span = self.spans[state["next"]]
            if len(self._rows(span, state).picks):
                break
            lost = dict(state["lost"])
            lost["episode without a usable row"] = lost.get("episode without a usable row", 0) + 1
            note = f"{span.label} has no usable row: it is no episode of the data set"
            state = {**state, "next": state["next"] + 1, "bad": {}, "attempts": 0, "lost": lost}
            state["notes"] = _with_note(state["notes"], note)
        return state

    def _check_rows(self, rows: EpisodeRows) -> None:
        """Every data set of the episode has its rows; a shorter one is an error, not an episode that ends early."""
        central = Hdf5Array(self._file, join(rows.group, _central(self.layout))).count
        for array in open_arrays(self._file, self.columns, rows.group).values():
            if array.count != central:
                raise StoreError(
                    f"{self.path}: {array.name} has {array.count:,} rows, {_central(self.layout)} has {central:,}",
                    hint="the recording is incomplete; leave the data set out under features:, or the file",
                )

    def _without(self, state: State, found: Sequence[BadPicture]) -> State:
        """The state in which broken pictures are left out, and counted."""
        text = f"{found[0].name}: row {found[0].row:,}: {found[0].reason}"
        last = state["attempts"] >= _RETRIES
        reject = self.settings.bad_messages == "reject" or self.settings.missing == "reject"
        if reject or self._means.strict or last:
            raise StoreError(
                f"{self.path}: {len(found)} unusable pictures, the first: {text}",
                hint=None
                if last
                else f"{'without --strict penstock' if self._means.strict else 'bad_messages=drop'} leaves their rows "
                "out and counts them (exit code 3), missing=hold shows the picture before",
            )
        bad = {key: set(rows) for key, rows in state["bad"].items()}
        lost = dict(state["lost"])
        fresh = 0
        for each in found:
            if each.row not in bad.setdefault(each.camera, set()):
                bad[each.camera].add(each.row)
                fresh += 1
                lost[f"unusable picture: {each.name}"] = lost.get(f"unusable picture: {each.name}", 0) + 1
        label = self.spans[state["next"]].label
        what = "show the one before" if self.settings.missing == "hold" else "are left out with their rows"
        note = f"{label}: {fresh} unusable pictures {what}, the first: {text}"
        return {
            **state,
            "attempts": state["attempts"] + 1,
            "bad": {key: sorted(rows) for key, rows in bad.items()},
            "lost": lost,
            "notes": _with_note(state["notes"], note),
        }

    def _task(self, span: Span) -> str:
        if self.settings.task != _UNKNOWN_TASK:
            return self.settings.task
        return self._facts.tasks.get(span.group) or self._facts.task or self.settings.task

    def _plan_memory(self, first: Span) -> MemoryPlan:
        arrays = open_arrays(self._file, self.columns, first.group)
        scratch = max((array.scratch_bytes for array in arrays.values()), default=0)
        # Each column keeps the chunk that it unpacked last, where the next rows lie in it, too.
        scratch += sum(array.chunk_bytes for array in arrays.values() if array.path_taken.way == "unpacked chunks")
        two_rows = 2 * buffer_bytes(self.columns.cameras)
        largest = max((each.longest_bytes for each in self.columns.cameras), default=0)
        widest = max((array.row_bytes for array in arrays.values() if not array.is_ragged), default=0)
        load = Load(
            cameras=tuple(_load(each) for each in self.columns.cameras),
            vectors=tuple(VectorLoad(each.key, each.size, each.dtype) for each in self.columns.numbers),
            rows=max(length_of(span, self.settings) for span in self.spans),
            index_bytes=LIBRARY_BYTES + (CHILD_BYTES if self._means.inputs > 1 else 0) + _SPAN_BYTES * len(self.spans),
            reads=LargestReads(largest, 0, scratch + widest + max(0, two_rows - max(FETCH_MIN_BYTES, 2 * largest))),
            chunk_size=self.settings.rosbag.chunk_size,
            threads=self._means.threads,
            # The rows of a flush are read at once: as they lie in the file, and joined to one column.
            row_copy_bytes=max((_passing_bytes(each, arrays) for each in self.columns.numbers), default=0),
            rows_before=self._means.rows_before,
            input_bytes=self.size_bytes if self.columns.cameras else 0,  # numbers need no buffers
            rows_after=self._means.rows_before + sum(length_of(span, self.settings) for span in self.spans),
            episodes=self._means.inputs * len(self.spans),
            field_part="[0:1000]",
        )
        return plan_memory(load, self._means.budget_bytes)


def _passing_bytes(column: NumberColumn, arrays: Mapping[str, Hdf5Array]) -> int:
    """A row of a column besides its numbers as they are stored: whole rows of its data sets, and 8 bytes a number."""
    (part, *others) = column.parts
    if not others and part.is_plain and arrays[part.name].dtype == column.dtype and part.size == part.values:
        return 0
    return sum(arrays[part.name].row_bytes for part in column.parts) + 8 * column.size


def _first_state() -> State:
    return {"next": 0, "bad": {}, "attempts": 0, "lost": {}, "notes": []}


def _with_note(notes: list[str], note: str) -> list[str]:
    """Bounded, since the state lies beside every episode of the journal."""
    if len(notes) > _MOST_NOTES:
        return notes
    return [*notes, note if len(notes) < _MOST_NOTES else "and further ones, which are counted above"]


def _central(layout: Layout) -> str:
    """The data set that says how many rows an episode has."""
    member = layout.first_of(ACTIONS) or layout.members[0]
    return member.name


def _load(column: PictureColumn) -> CameraLoad:
    camera = column.camera
    height, width = max(camera.recorded_px, camera.size_px, key=lambda size_px: size_px[0] * size_px[1])
    encoded = column.longest_bytes if camera.copied else width * height // 3
    return CameraLoad(width, height, camera.stored_as, max(encoded, width * height // 3))
