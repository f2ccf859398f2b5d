"""One episode being written: rows, frames and statistics that become part of the data set at commit, or vanish."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DataSetError
from penstock.lerobot import tables
from penstock.lerobot.depth_stats import DepthStats
from penstock.lerobot.episodes import EpisodeRecord
from penstock.lerobot.features import ROW_FEATURES, Feature
from penstock.lerobot.stats import ImageStats, NumericStats
from penstock.lerobot.write.journal import encode_line
from penstock.lerobot.write.spool import PartWriter, with_task_index
from penstock.lerobot.write.videos import VideoSink
from penstock.system.memory import give_back_freed

if TYPE_CHECKING:
    from penstock.lerobot.write.writer import DataSetWriter

FeatureStats = NumericStats | ImageStats

_FILL_ROWS = 4096
# After a flush of so much the heap has holes that the next one does not fit into.
_LARGE_FLUSH_BYTES = 2 << 20


@dataclass(frozen=True)
class EpisodeSummary:
    """What a committed episode holds; `bad_values` as `DataSetWriter.bad_values` gives them."""

    episode_index: int
    rows: int
    tasks: tuple[str, ...]
    bad_values: Mapping[str, Mapping[str, Mapping[str, int]]]


class EpisodeWriter:
    """Made by `DataSetWriter.episode`. A context manager: what was not committed is aborted."""

    def __init__(
        self,
        owner: DataSetWriter,
        part: PartWriter,
        stats: dict[str, FeatureStats],
        task: str | None,
        announced_rows: int | None,
    ) -> None:
        self.is_open = True
        self._owner = owner
        self._announced_rows = announced_rows
        self._part = part
        self._stats = stats
        self._task = task
        self._row_tasks: dict[str, int] = {}
        self._columns = [feature for feature in owner.features if feature.dtype != "video"]
        self._where = f"{owner.root}: episode {owner.episodes}"
        # The rows are written before `commit` names their task. Most data sets have one task, so the last one is
        # assumed; when commit says otherwise, the column is written again.
        self._assumed_task = self._number_of(task) if task is not None else max(len(owner.tasks.texts) - 1, 0)

    def __repr__(self) -> str:
        return f"EpisodeWriter(episode={self._owner.episodes}, rows={self.rows:,}, open={self.is_open})"

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self._part.rows

    def video(self, key: str) -> VideoSink:
        """Where the frames of a video feature go; at commit there must be one per row."""
        self._check_open()
        try:
            return self._owner.sinks[key]
        except KeyError:
            raise DataSetError(
                f"{self._where}: {key!r} is not a video feature; {sorted(self._owner.sinks)} are"
            ) from None

    def take_tables(self, tables: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
        """Make whole tables of tasks and subtasks part of the data set's; the numbers of their texts there."""
        self._check_open()
        return {name: self._owner.tables[name].take(table) for name, table in tables.items()}

    def write_rows(
        self,
        columns: Mapping[str, object],
        *,
        rows: int | None = None,
        task: str | Sequence[str] | NDArray[np.int64] | None = None,
    ) -> None:
        """Flush rows as one row group: for every feature but videos an array (n, *shape), or a list of n pictures.

        `rows` says how many they are; a data set of videos alone needs it. `task`, one text or one per row, is for
        episodes whose task changes; else `commit` names it. Numbers of tasks are those that `take_tables` gave.
        """
        self._check_open()
        expected = {feature.key for feature in self._columns}
        if set(columns) != expected:
            missing, extra = sorted(expected - set(columns)), sorted(set(columns) - expected)
            raise DataSetError(f"{self._where}: columns missing {missing}, unknown {extra}")
        values: dict[str, NDArray[Any] | list[Any]] = {
            feature.key: tables.checked_values(feature, columns[feature.key], self._where) for feature in self._columns
        }
        count = tables.rows_of(values) if values else rows
        if count is None or (rows is not None and rows != count):
            raise DataSetError(f"{self._where}: {rows} rows announced, {count} came")
        if count == 0:
            return
        place = row_columns(
            first_row=self._owner.frames,
            first_frame=self.rows,
            count=count,
            episode=self._owner.episodes,
            fps=self._owner.fps,
        )
        numbers = self._task_numbers(task, count)
        self._part.write({**values, **place, "task_index": numbers})
        # After the write: a failed flush must not be counted.
        for key, flushed in (*values.items(), *place.items()):
            entry = self._stats.get(key)
            if isinstance(entry, NumericStats) and isinstance(flushed, np.ndarray):
                entry.add(flushed)
        if self._row_tasks:
            self._numeric("task_index").add(numbers)
        if sum(flushed.nbytes for flushed in values.values() if isinstance(flushed, np.ndarray)) >= _LARGE_FLUSH_BYTES:
            give_back_freed()

    def add_image_sample(self, key: str, rgb: NDArray[Any]) -> None:
        """Let a decoded picture enter the statistics of a camera: RGB, or the values of a depth picture."""
        self._check_open()
        entry = self._stats.get(key)
        if not isinstance(entry, ImageStats):
            raise DataSetError(f"{self._where}: {key!r} is not a camera")
        entry.add(rgb)

    def add_image_stats(self, key: str, stats: ImageStats) -> None:
        """Let everything that other statistics have seen enter those of a camera."""
        self._check_open()
        entry = self._stats.get(key)
        if not isinstance(entry, ImageStats):
            raise DataSetError(f"{self._where}: {key!r} is not a camera")
        entry.merge(stats)

    def commit(
        self,
        task: str | None = None,
        note: Mapping[str, Any] | None = None,
        *,
        last: bool = False,
        grouped: bool = False,
    ) -> EpisodeSummary:
        """Make the episode part of the data set; its rows and frames are on the disk when this returns.

        `note`, plain JSON, comes back with the episode from the journal. `last` says that `close` follows at once: it
        brings the episode to the disk together with everything else. `grouped` lets a small episode wait for a few
        others that reach the disk with it; `settle` and `close` end the wait.
        """
        self._check_open()
        tasks = self._final_tasks(task)
        if self.rows == 0:
            raise DataSetError(f"{self._where} has no row", hint="abort it; LeRobot cannot read empty episodes")
        for key, sink in self._owner.sinks.items():
            if sink.frames != self.rows:
                raise DataSetError(
                    f"{self._where}: camera {key!r} has {sink.frames} frames for {self.rows} rows",
                    hint="every row needs exactly one frame; use repeat() for a row that shows the last one again",
                )
        if note is not None:
            encode_line({"type": "note", "note": dict(note)})
        try:
            return self._commit(tasks, note, last, grouped)
        except BaseException:
            # Its line may be in the journal already: nothing is deleted here. `resume` knows what belongs to what.
            self._owner.stop()
            raise

    def abort(self) -> None:
        """Leave no trace: rows are deleted, videos cut back, statistics forgotten."""
        if not self.is_open:
            return
        self.is_open = False
        self._part.discard()
        try:
            for sink in self._owner.sinks.values():
                sink.abort_episode()
        except BaseException:
            # Frames of this episode may be left in a file: only `resume` can go on.
            self._owner.stop()
            raise

    def leave(self) -> None:
        """Called by the data set's writer: close the file as it is, and take nothing more."""
        self.is_open = False
        self._part.leave()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_open:
            return
        self.abort()
        if kind is None:
            raise DataSetError(f"{self._where} was neither committed nor aborted", hint="it is aborted now")

    def _commit(
        self, tasks: Sequence[str], note: Mapping[str, Any] | None, last: bool, grouped: bool
    ) -> EpisodeSummary:
        part = self._part.finish()
        if not self._row_tasks:
            number = self._number_of(tasks[0])
            if number != self._assumed_task:
                part = with_task_index(part, self._owner.schema(), number)
            for start in range(0, part.rows, _FILL_ROWS):
                self._numeric("task_index").add(np.full((min(_FILL_ROWS, part.rows - start), 1), number))
        kept = self._kept_for_joining() if self._owner.is_parcel else None
        spans = {key: sink.commit_episode() for key, sink in self._owner.sinks.items()}
        record = EpisodeRecord(
            episode_index=self._owner.episodes,
            tasks=tuple(tasks),
            first_row=self._owner.frames,
            rows=part.rows,
            data=self._owner.place(part),
            part_bytes=part.size_bytes,
            videos=spans,
            stats={key: entry.to_json() for key, entry in self._stats.items()},
            announced_rows=self._announced_rows,
            names_tasks=bool(self._row_tasks),
            note=note,
        )
        size_bytes = part.size_bytes + sum(sink.committed_bytes for sink in self._owner.sinks.values())
        self._owner.accept(record, self._stats, kept, size_bytes, last=last, grouped=grouped)
        self.is_open = False
        bad = bad_values(self._owner.features, self._stats)
        return EpisodeSummary(record.episode_index, record.rows, record.tasks, bad)

    def _kept_for_joining(self) -> dict[str, Any]:
        """What cannot be had from the rows and frames alone: statistics of pictures, and where the frames lie."""
        cameras = [feature.key for feature in self._owner.features if feature.is_camera]
        return {
            "stats": {key: self._stats[key].to_state() for key in cameras},
            "videos": {key: sink.episode_state() for key, sink in self._owner.sinks.items()},
        }

    def _task_numbers(self, task: str | Sequence[str] | NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
        if task is None:
            if self._row_tasks:
                raise DataSetError(f"{self._where}: earlier rows name their task, so these must, too")
            return np.full(count, self._assumed_task, dtype=np.int64)
        if self.rows and not self._row_tasks:
            raise DataSetError(f"{self._where}: earlier rows name no task, so these cannot")
        if isinstance(task, np.ndarray):
            if len(task) != count:
                raise DataSetError(f"{self._where}: {len(task)} tasks for {count} rows")
            used, first = np.unique(task, return_index=True)
            for number in used[np.argsort(first)].tolist():
                self._row_tasks.setdefault(self._owner.tasks.texts[number], number)
            return task.astype(np.int64)
        texts = [task] * count if isinstance(task, str) else list(task)
        if len(texts) != count:
            raise DataSetError(f"{self._where}: {len(texts)} tasks for {count} rows")
        for text in dict.fromkeys(texts):
            if text not in self._row_tasks:
                self._row_tasks[text] = self._number_of(text)
        return np.array([self._row_tasks[text] for text in texts], dtype=np.int64)

    def _number_of(self, task: str) -> int:
        """The number that the task has, or will have when this episode is committed."""
        known = self._owner.tasks.number(task)
        if known is not None:
            return known
        try:
            task.encode()
        except (UnicodeEncodeError, AttributeError):
            raise DataSetError(f"{self._where}: the task {task!r} is not text that UTF-8 can hold") from None
        count = len(self._owner.tasks.texts)
        return count + sum(number >= count for number in self._row_tasks.values())

    def _final_tasks(self, task: str | None) -> list[str]:
        if self._row_tasks:
            if task is not None:
                raise DataSetError(f"{self._where}: its rows name their tasks, commit cannot name another")
            return list(self._row_tasks)
        final = task if task is not None else self._task
        if final is None:
            raise DataSetError(f"{self._where}: no task was named", hint="commit(task) takes a short description")
        self._number_of(final)
        return [final]

    def _numeric(self, key: str) -> NumericStats:
        entry = self._stats[key]
        if not isinstance(entry, NumericStats):
            raise DataSetError(f"{self._where}: {key!r} has no numeric statistics")
        return entry

    def _check_open(self) -> None:
        if not self.is_open:
            raise DataSetError(f"{self._where} is committed or aborted already")


def new_stats(features: Sequence[Feature]) -> dict[str, FeatureStats]:
    """Empty statistics of every feature that has some, in the order of the metadata."""
    return {feature.key: _empty_stats(feature) for feature in (*features, *ROW_FEATURES) if not feature.is_text}


def _empty_stats(feature: Feature) -> FeatureStats:
    if feature.dtype == "image" and feature.is_depth:
        return DepthStats()
    return ImageStats() if feature.is_camera else NumericStats(feature.shape, feature.dtype)


def row_columns(*, first_row: int, first_frame: int, count: int, episode: int, fps: int) -> dict[str, NDArray[Any]]:
    """The columns that follow from a row's place alone."""
    frames = np.arange(first_frame, first_frame + count, dtype=np.int64)
    return {
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(count, episode, dtype=np.int64),
        "index": frames + first_row,
    }


def bad_values(features: Sequence[Feature], stats: Mapping[str, FeatureStats]) -> dict[str, dict[str, dict[str, int]]]:
    """Unusable values by feature and dimension name; only what is there."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for feature in features:
        entry = stats.get(feature.key)
        if not isinstance(entry, NumericStats):
            continue
        for name, bad in zip(feature.dimension_names, entry.bad, strict=True):
            if bad.total:
                counts = {"nan": bad.nan, "inf": bad.inf, "overflow": bad.overflow}
                found.setdefault(feature.key, {})[name] = {kind: n for kind, n in counts.items() if n}
    return found
