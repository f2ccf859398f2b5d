"""Where the episodes of a recording begin and end: the spans of rows that settings ask for."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.episodes.clock import note_on_clock
from penstock._src.conversion.episodes.events import (
    EARLIEST_NS,
    LATEST_NS,
    WHOLE,
    EpisodeWindow,
    Subtask,
    TopicTexts,
    read_texts,
    read_windows,
)
from penstock._src.conversion.episodes.sidecar import read_sidecar
from penstock._src.conversion.inputs.pairing import PairedRows
from penstock._src.conversion.settings import AUTO, EpisodeSettings, Settings
from penstock._src.lerobot.features import Feature
from penstock._src.recordings.recording import Recording
from penstock._src.system import units
from penstock.errors import AlignError, DataSetError

SUBTASK = "subtask"  # the feature that holds the subtask of each row
OUTSIDE, TOO_SHORT, DISCARDED = "outside", "too_short", "discarded"
PERSISTENT = "language_persistent"  # LeRobot's own column for them
_MOST_ENTRIES = 500


class Marks(NamedTuple):
    """What a recording and the files beside it say of its episodes: read once, whatever becomes of its rows."""

    path: str
    start_ns: int
    windows: tuple[EpisodeWindow, ...]
    task: str
    tasks: TopicTexts | None = None
    subtasks: TopicTexts | tuple[Subtask, ...] | None = None
    notes: tuple[str, ...] = ()
    lost: Mapping[str, int] = {}

    @property
    def has_subtasks(self) -> bool:
        return self.subtasks is not None or any(window.subtasks is not None for window in self.windows)


class EpisodeCut(NamedTuple):
    """One episode: its rows in the pairing of the whole recording, and what the robot was told to do.

    `subtasks` are pairs of a row and the subtask that holds from there on.
    """

    rows: range
    task: str
    subtasks: tuple[tuple[int, str], ...] = ()

    def texts(self, settings: EpisodeSettings, fps: int) -> dict[str, Callable[[int, int], list[Any]]]:
        """What the columns of `text_features` hold in given rows."""
        if not settings.subtasks:
            return {}
        made: dict[str, Callable[[int, int], list[Any]]] = {SUBTASK: self.subtasks_of}
        if settings.language:
            entries = self._language(fps)
            made[PERSISTENT] = lambda start, stop: [entries] * (stop - start)
        return made

    def _language(self, fps: int) -> list[dict[str, Any]]:
        """All subtasks of the episode with their times, as LeRobot wants them in every row."""
        from penstock._src.lerobot import language

        if len(self.subtasks) > _MOST_ENTRIES:
            raise DataSetError(
                f"an episode of {len(self.rows):,} rows has {len(self.subtasks):,} subtasks; LeRobot's language column "
                f"holds all of them in every row, and {_MOST_ENTRIES} are written",
                hint="leave out episodes.language: the column `subtask` has no such limit",
            )
        return [language.subtask(text or None, (row - self.rows.start) / fps) for row, text in self.subtasks]

    def subtasks_of(self, start: int, stop: int) -> list[str]:
        """The subtask of each row, '' where there is none."""
        begins, texts = [row for row, _ in self.subtasks], ["", *(text for _, text in self.subtasks)]
        return [texts[bisect_right(begins, row)] for row in range(start, stop)]


class Cuts(NamedTuple):
    """All episodes of a recording, in order; rows between them belong to none.

    `left_out` counts those rows by reason, `lost` counts by cause what is missing inside of episodes.
    """

    spans: tuple[EpisodeCut, ...]
    notes: tuple[str, ...]
    left_out: Mapping[str, int]
    lost: Mapping[str, int]
    quiet: frozenset[str]  # notes of the alignment on what no episode has

    @property
    def ranges(self) -> list[range]:
        return [span.rows for span in self.spans]

    def to_json(self) -> dict[str, Any]:
        """For the report, beside the alignment."""
        rows = sum(len(span.rows) for span in self.spans)
        return {"count": len(self.spans), "rows": rows, "left_out": dict(self.left_out), "lost": dict(self.lost)}


def text_features(settings: EpisodeSettings) -> list[Feature]:
    """The columns of words that settled settings ask for."""
    from penstock._src.lerobot.features import Feature

    if not settings.subtasks:
        return []
    return [Feature(SUBTASK, "string", (1,)), *([Feature(PERSISTENT, "language", (1,))] if settings.language else [])]


def read_marks(recording: Recording, settings: Settings) -> Marks:
    """Read the topics and files that say where episodes are and what they are called."""
    episodes, clock = settings.episodes, settings.time
    beside = read_sidecar(recording.path, episodes.sidecar, recording.start_ns)
    notes = list(beside.notes)
    unreadable: list[TopicTexts] = []
    windows = beside.windows or (WHOLE,)
    if episodes.topic is not None:
        windows, unreadable = read_windows(recording, episodes, clock)
        if beside.windows:
            notes.append(f"the episodes of {beside.files[0].name} are not used: episodes.topic marks them")
    tasks, spoken = (
        None if each is None else read_texts(recording, each.topic, each.field, clock)
        for each in (episodes.task, episodes.subtask)
    )
    unreadable = [each for each in (*unreadable, tasks, spoken) if each is not None and each.unreadable]
    task = settings.task
    if beside.task and (episodes.sidecar != AUTO or settings.task == Settings.task):
        task = beside.task
    elif beside.task and beside.task != settings.task:
        notes.append(f"{beside.files[0].name} names another task; the task of the configuration is used")
    if beside.files:
        notes.append(f"tasks and episodes from {', '.join(path.name for path in beside.files)}")
    for each in unreadable:
        notes.append(f"{each.topic}: {each.unreadable:,} messages cannot be read, the first: {each.reason}")
    marks = Marks(
        str(recording.path),
        recording.start_ns,
        windows,
        task,
        tasks,
        beside.subtasks if spoken is None else spoken,
        tuple(notes),
        {f"unusable message: {each.topic}": each.unreadable for each in unreadable},
    )
    if settings.episodes.subtasks is False and marks.has_subtasks:
        left_out = "subtasks are left out: the data set was started without them (episodes.subtasks=true keeps them)"
        return marks._replace(notes=(*marks.notes, left_out))
    return marks


def with_subtasks(settings: Settings, marks: Marks) -> Settings:
    """The settings with what the first recording of a data set decides for all: whether rows have a subtask."""
    if settings.episodes.subtasks is not None:
        return settings
    return replace(settings, episodes=replace(settings.episodes, subtasks=marks.has_subtasks))


class _WindowRows(NamedTuple):
    """Rows of a window without a gap, and the time in which a missing row is a loss."""

    rows: range
    from_ns: int
    to_ns: int
    since_ns: int  # earlier texts are about something else


def cut(marks: Marks, settings: Settings, paired: PairedRows, rows_per_flush: int) -> Cuts:
    """The episodes of a recording, by time: rows that vanish later in it do not move those before them."""
    times_ns = paired.alignment.row_times_ns
    episodes = settings.episodes
    notes = list(marks.notes)
    step = _longest(settings, paired, rows_per_flush, notes)
    fewest = 1 if episodes.min_length is None else -(-episodes.min_length * paired.fps // 1_000_000_000)
    spans: list[EpisodeCut] = []
    within: list[tuple[int, int]] = []
    left_out: Counter[str] = Counter()
    empty: list[EpisodeWindow] = []
    for window in marks.windows:
        first, stop = (int(at) for at in np.searchsorted(times_ns, (window.begin_ns, window.end_ns)))
        if window.discarded:
            left_out[DISCARDED] += stop - first
            continue
        if first == stop:
            empty.append(window)
            within.append((window.begin_ns, window.end_ns))
        for piece in _pieces(window, range(first, stop), times_ns, episodes.gap, step):
            if len(piece.rows) < fewest:
                left_out[TOO_SHORT] += len(piece.rows)
                continue
            spans.append(_span(marks, window, piece, times_ns))
            within.append((piece.from_ns, piece.to_ns))
    rest = paired.rows - sum(len(span.rows) for span in spans) - sum(left_out.values())
    left_out[OUTSIDE] += rest
    _check_some(spans, marks, paired, left_out)
    lost = _lost_within(paired, within)
    notes += _notes(marks, empty, left_out, episodes.min_length)
    on_clock = note_on_clock(paired, [span.rows for span in spans])
    of_whole = note_on_clock(paired, [range(paired.rows)])
    notes += [note for note in on_clock if note not in of_whole]
    quiet = {note for note in of_whole if note not in on_clock}  # the alignment knows no episodes
    quiet |= {note for name, note in paired.alignment.report.loss_notes.items() if f"gap:{name}" not in lost}
    counted = {reason: count for reason, count in left_out.items() if count}
    return Cuts(tuple(spans), tuple(notes), counted, {**marks.lost, **lost}, frozenset(quiet))


def _longest(settings: Settings, paired: PairedRows, rows_per_flush: int, notes: list[str]) -> int:
    """The most rows that an episode may have."""
    most = max(paired.rows, 1)
    if settings.episodes.max_length is not None:
        most = max(1, settings.episodes.max_length * paired.fps // 1_000_000_000)
    chunk_size = settings.rosbag.chunk_size
    if settings.split_episodes and not chunk_size:
        notes.append("split_episodes has no effect without rosbag.chunk_size")
    elif settings.split_episodes:
        # A number is kept whatever the memory, so that the episodes do not depend on the machine.
        most = min(most, rows_per_flush if chunk_size == "auto" else chunk_size)
    return most


def _pieces(
    window: EpisodeWindow, rows: range, times_ns: NDArray[np.int64], gap_ns: int | None, step: int
) -> Iterator[_WindowRows]:
    """A window cut at its gaps, and then wherever it has become too long."""
    if not rows:
        return
    own_ns = times_ns[rows.start : rows.stop]
    inner = [] if gap_ns is None else (np.flatnonzero(np.diff(own_ns) > gap_ns) + 1 + rows.start).tolist()
    edges = [rows.start, *inner, rows.stop]
    for place, (start, stop) in enumerate(pairwise(edges)):
        begin_ns, end_ns = int(times_ns[start]), int(times_ns[stop - 1]) + 1
        since_ns = window.begin_ns if place == 0 else int(times_ns[start - 1]) + 1
        if place == 0 and not (window.begin_ns == EARLIEST_NS or _is_gap(begin_ns - window.begin_ns, gap_ns)):
            begin_ns = window.begin_ns
        if place == len(edges) - 2 and not (window.end_ns == LATEST_NS or _is_gap(window.end_ns - end_ns, gap_ns)):
            end_ns = window.end_ns
        for first in range(start, stop, step):
            last = min(first + step, stop)
            from_ns = begin_ns if first == start else int(times_ns[first])
            yield _WindowRows(range(first, last), from_ns, end_ns if last == stop else int(times_ns[last]), since_ns)


def _is_gap(length_ns: int, gap_ns: int | None) -> bool:
    return gap_ns is not None and length_ns > gap_ns


def _span(marks: Marks, window: EpisodeWindow, piece: _WindowRows, times_ns: NDArray[np.int64]) -> EpisodeCut:
    rows = piece.rows
    first_ns, last_ns = int(times_ns[rows.start]), int(times_ns[rows.stop - 1])
    task = window.task or (marks.tasks and marks.tasks.at(first_ns, last_ns)) or marks.task
    subtasks = marks.subtasks if window.subtasks is None else window.subtasks
    if subtasks is None:
        return EpisodeCut(rows, task)
    if isinstance(subtasks, TopicTexts):
        begins, texts = subtasks.times_ns, [subtasks.texts[which] for which in subtasks.which.tolist()]
        begins, texts = begins[begins >= piece.since_ns], texts[int(np.searchsorted(begins, piece.since_ns)) :]
    else:
        begins, texts = np.array([each.start_ns for each in subtasks], np.int64), [each.text for each in subtasks]
    return EpisodeCut(rows, task, tuple(_changes(begins, texts, times_ns, rows)))


def _changes(
    begins_ns: NDArray[np.int64], texts: Sequence[str], times_ns: NDArray[np.int64], rows: range
) -> Iterator[tuple[int, str]]:
    """Rows at which another text begins to hold."""
    holding = np.searchsorted(begins_ns, times_ns[rows.start : rows.stop], side="right") - 1
    before = ""
    for place in np.flatnonzero(np.diff(holding, prepend=-1)).tolist():
        text = texts[int(holding[place])].strip()
        if text != before:
            yield rows.start + place, text
        before = text


def _lost_within(paired: PairedRows, within: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Rows without a message of some stream, inside of episodes; rows between episodes do not count."""
    if not within:
        return {}
    edges = np.array(within, np.int64).reshape(-1)
    counts: dict[str, int] = {}
    for cause, times_ns in paired.alignment.lost_times_ns.items():
        # Between the edges of a window the count of edges passed is odd.
        count = int(np.count_nonzero(np.searchsorted(edges, times_ns, side="right") % 2))
        if count:
            counts[cause] = count
    return counts


def _check_some(spans: Sequence[EpisodeCut], marks: Marks, paired: PairedRows, left_out: Mapping[str, int]) -> None:
    if spans:
        return
    counts = ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in left_out.items() if count)
    raise AlignError(
        f"{marks.path}: no episode has a row: {paired.rows:,} rows, {counts or 'none'}",
        hint="check the times of episodes.topic or the sidecar against `penstock inspect`, and episodes.min_length",
    )


def _notes(
    marks: Marks, empty: Sequence[EpisodeWindow], left_out: Mapping[str, int], min_length_ns: int | None
) -> Iterator[str]:
    if empty:
        first_s = max(empty[0].begin_ns - marks.start_ns, 0) / 1e9
        yield f"{len(empty):,} episodes have no row and are left out, the first at {first_s:.3f} s"
    if left_out.get(TOO_SHORT):
        yield f"{_rows(left_out[TOO_SHORT])} in episodes shorter than {units.duration_text(min_length_ns or 0)}"
    if left_out.get(DISCARDED):
        yield f"{_rows(left_out[DISCARDED])} in discarded episodes"
    if left_out.get(OUTSIDE):
        yield f"{_rows(left_out[OUTSIDE])} outside episodes"


def _rows(count: int) -> str:
    return "1 row is" if count == 1 else f"{count:,} rows are"
