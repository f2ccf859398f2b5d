"""An HDF5 file as input: its layout recognised, its features settled, then episode by episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock import memory as process_memory
from penstock import units
from penstock.conversion.hdf5_columns import NumberColumn, PictureColumn, open_columns
from penstock.conversion.hdf5_episode import (
    BadPicture,
    BadPictures,
    EpisodeRows,
    Pass,
    buffer_bytes,
    open_arrays,
    stream_episode,
)
from penstock.conversion.hdf5_mapping import TEXT_NAMES, Facts, map_members, read_facts
from penstock.conversion.inputs import Again, Begun, EpisodePlan, Input, Means, Outcome, Run, State
from penstock.conversion.settings import Settings, without_effect
from penstock.errors import ConfigError, StoreError
from penstock.media.hardware import device_notes
from penstock.plan.conversion_memory import (
    FETCH_MIN_BYTES,
    CameraLoad,
    Load,
    MemoryPlan,
    VectorLoad,
    plan_memory,
)
from penstock.recordings.recording import LargestReads
from penstock.stores.hdf5_array import Hdf5Array
from penstock.stores.hdf5_file import Hdf5File
from penstock.stores.hdf5_layout import ACTIONS, TERMINALS, TIMEOUTS, Layout, Span, episode_spans, join, recognise

if TYPE_CHECKING:
    from penstock.lerobot.writer import EpisodeWriter

# What h5py with its metadata cache holds, and the child that looks at the next file first: measured, rounded up.
LIBRARY_BYTES = 14 << 20
CHILD_BYTES = 26 << 20
_SPAN_BYTES = 400  # one episode in the list of them
_RETRIES = 8  # a picture that only decoding shows to be broken is found when it is sampled
_MOST_NOTES = 20
_EXACT_SECONDS = 2048
_UNKNOWN_TASK = Settings().task
_NOT_ASKED = ("timeline", "time", "tolerance", "episodes", "split_episodes")  # the file has its rows and episodes
_KINDS = {"aloha": "one episode (ALOHA / ACT)", "robomimic": "demonstrations (robomimic)", "replay": "replay steps"}


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
        first = next((span for span in self.spans if _length(span, settings)), None)
        if first is None:
            raise StoreError(f"{self.path} has no rows", hint="it was recorded empty; leave it out")
        self.fps = _rate(self.path, self.layout, self._facts, settings, means)
        asked = settings if begun is None else Settings()
        notes = [*unknown, *_notes(self.layout, self._facts, settings, asked, self.spans, self.fps)]
        if not settings.features:
            rows = Hdf5Array(file, join(first.group, _central(self.layout))).count
            found = map_members(self.layout, rows, with_depth=settings.depth != "off")
            settings = replace(settings, features=found.features)
            notes += found.notes
        self.columns = open_columns(file, first.group, settings)
        self.settings = replace(settings, fps=self.fps, robot_type=_robot(settings, self._facts))
        self.robot_type = self.settings.robot_type
        self.features = self.columns.features()
        self.codecs = {each.key: each.camera.stored_as for each in self.columns.cameras}
        self.encodes = any(not each.camera.copied for each in self.columns.cameras)
        self.memory = self._plan_memory(first)
        notes += device_notes(self.codecs.values(), settings.encoding.device)
        self.notes = (*notes, *(f"reads {target} as well" for target in file.followed))
        process_memory.give_back_freed()

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
        return Outcome(dict(state["lost"]), tuple(state["notes"]))

    def describe(self) -> dict[str, Any]:
        return self.columns.describe()

    def lines(self) -> list[tuple[str, str]]:
        rows = sum(_length(span, self.settings) for span in self.spans)
        episodes = f"{len(self.spans):,} episode{'s' if len(self.spans) != 1 else ''}"
        lines = [
            (self.path.name + " ", f"{units.format_size(self.size_bytes)} · HDF5 · {_KINDS[self.layout.kind]}"),
            ("rows", f"{rows:,} at {self.fps} fps · {episodes} · {self.layout.why}"),
        ]
        by_fate: dict[str, list[str]] = {}
        for each in self.columns.cameras:
            by_fate.setdefault(each.camera.fate, []).append(each.key.removeprefix("observation.images."))
        lines += [("video", f"{fate}: {', '.join(names)}") for fate, names in by_fate.items()]
        for column in self.columns.numbers:
            names = " + ".join(part.name for part in column.parts)
            lines.append(("numbers", f"{column.key} {column.size} ← {names}"))
        return lines

    def _rows(self, span: Span, state: State) -> EpisodeRows:
        """The rows that are left when those with unusable pictures are gone, or show the picture before."""
        drop, stride = self.settings.sample_drop, self.settings.stride or 1
        picks = np.arange(span.start + drop, max(span.stop - drop, span.start + drop), stride, dtype=np.int64)
        bad = {key: frozenset(rows) for key, rows in state["bad"].items()}
        if self.settings.missing == "hold":
            # Nothing comes before the first rows: they are left out until every camera shows something.
            while len(picks) and any(int(picks[0]) in rows for rows in bad.values()):
                picks = picks[1:]
            return EpisodeRows(span.group, picks, bad)
        gone = np.array(sorted(set().union(*bad.values())), dtype=np.int64)
        return EpisodeRows(span.group, picks[~np.isin(picks, gone)])

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
            rows=max(_length(span, self.settings) for span in self.spans),
            index_bytes=LIBRARY_BYTES + (CHILD_BYTES if self._means.inputs > 1 else 0) + _SPAN_BYTES * len(self.spans),
            reads=LargestReads(largest, 0, scratch + widest + max(0, two_rows - max(FETCH_MIN_BYTES, 2 * largest))),
            chunk_size=self.settings.rosbag.chunk_size,
            threads=self._means.threads,
            # The rows of a flush are read at once: as they lie in the file, and joined to one column.
            row_copy_bytes=max((_passing_bytes(each, arrays) for each in self.columns.numbers), default=0),
            rows_before=self._means.rows_before,
            input_bytes=self.size_bytes if self.columns.cameras else 0,  # numbers need no buffers
            rows_after=self._means.rows_before + sum(_length(span, self.settings) for span in self.spans),
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


def _length(span: Span, settings: Settings) -> int:
    rows = max(span.stop - span.start - 2 * settings.sample_drop, 0)
    return -(-rows // (settings.stride or 1))


def _central(layout: Layout) -> str:
    """The data set that says how many rows an episode has."""
    member = layout.first_of(ACTIONS) or layout.members[0]
    return member.name


def _rate(path: Path, layout: Layout, facts: Facts, settings: Settings, means: Means) -> int:
    """Rows per second, as given or as the file says; HDF5 files have no times to measure it by."""
    stride = settings.stride or 1
    if means.settings.fps is not None:
        return means.settings.fps
    if facts.rate_hz is not None:
        rate = facts.rate_hz / stride
        if rate < 1 or abs(rate - round(rate)) > 1e-6:
            raise ConfigError(
                f"{path}: {facts.rate_from} says {facts.rate_hz:g} rows a second, which makes {rate:g} with stride "
                f"{stride}: LeRobot takes whole rates",
                hint="give fps=30 (or what is meant)",
            )
        return round(rate)
    if settings.fps is not None:
        return settings.fps
    usual = "fps=50 (ALOHA records at 50 Hz)" if layout.kind == "aloha" else "fps=20, or what it was recorded at"
    raise ConfigError(f"{path} does not say how many rows a second has", hint=f"give {usual}")


def _notes(
    layout: Layout, facts: Facts, settings: Settings, asked: Settings, spans: Sequence[Span], fps: int
) -> Sequence[str]:
    """`asked`: the user's own settings, or the usual ones where the first input has settled them."""
    notes: list[str] = []
    if facts.rate_hz is not None:
        same = abs(facts.rate_hz / (settings.stride or 1) - fps) < 1e-6
        notes.append(
            f"{facts.rate_from}: {facts.rate_hz:g} rows a second"
            + ("" if same else f", taken as {fps} fps as asked: no row is left out or added for that")
        )
    ends = [name for name in TERMINALS if layout.member(name) is not None]
    if layout.kind == "replay" and layout.first_of(TIMEOUTS) is None and len(ends) == 1:
        notes.append("no timeouts: an episode that ran out of time is not told from the next one")
    if layout.masks and settings.hdf5.mask is None:
        notes.append(f"masks: {', '.join(layout.masks[:8])} (hdf5.mask=NAME takes the demonstrations of one)")
    notes += without_effect(asked, _NOT_ASKED, "HDF5 files")
    longest_s = max(_length(span, settings) for span in spans) // fps
    if longest_s > _EXACT_SECONDS:
        notes.append(
            f"an episode of {longest_s:,} s is longer than the 2,048 s that LeRobot's float32 times resolve to its "
            "0.1 ms: read it with LeRobotDataset(..., tolerance_s=1e-3)"
        )
    empty = sum(_length(span, settings) == 0 for span in spans)
    if empty:
        notes.append(f"{empty:,} of {len(spans):,} episodes have no rows")
    return notes


def _robot(settings: Settings, facts: Facts) -> str:
    unknown = settings.robot_type == Settings().robot_type
    return facts.robot if unknown and facts.robot else settings.robot_type


def _load(column: PictureColumn) -> CameraLoad:
    camera = column.camera
    height, width = max(camera.recorded_px, camera.size_px, key=lambda size_px: size_px[0] * size_px[1])
    encoded = column.longest_bytes if camera.copied else width * height // 3
    return CameraLoad(width, height, camera.stored_as, max(encoded, width * height // 3))
