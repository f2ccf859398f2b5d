"""One episode being written: rows, frames and statistics that become part of the data set at commit, or vanish."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.commit.journal import EpisodeRecord, encode_line
from penstock._src.conversion.sink import EpisodeSink, VideoSink
from penstock._src.lerobot import tables
from penstock._src.lerobot.feature_stats import new_stats
from penstock._src.lerobot.stats import ImageStats, NumericStats
from penstock._src.system.closing import on_error
from penstock._src.system.memory import give_back_freed
from penstock.errors import DataSetError

if TYPE_CHECKING:
    from penstock._src.conversion.commit.writer import DataSetWriter

_FILL_ROWS = 4096
# After a flush of so much the heap has holes that the next one does not fit into.
_LARGE_FLUSH_BYTES = 2 << 20


class EpisodeWriter:
    """Made by `DataSetWriter.episode`. A context manager: what was not committed is aborted."""

    def __init__(self, owner: DataSetWriter, sink: EpisodeSink, task: str | None, announced_rows: int | None) -> None:
        self.is_open = True
        self.rows = 0
        self._owner = owner
        self._sink = sink
        self._announced_rows = announced_rows
        self._stats = new_stats(owner.features)
        self._task = task
        self._row_tasks: dict[str, int] = {}
        self._columns = [feature for feature in owner.features if feature.dtype != "video"]
        self._cameras = [feature.key for feature in owner.features if feature.dtype == "video"]
        self._where = f"{owner.root}: episode {owner.episodes}"
        self._task_index = None if task is None else self._number_of(task)

    def video(self, key: str) -> VideoSink:
        """Where the frames of a video feature go; at commit there must be one per row."""
        self._check_open()
        return self._sink.video(key)

    def adopt_video(self, key: str, root: Path, place: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
        """Take the frames of a camera as the worker output `root` has them, not copied; False if that cannot be."""
        self._check_open()
        adopt: Callable[..., bool] | None = getattr(self._sink, "adopt_video", None)
        return adopt is not None and adopt(key, root, place, kept)

    def take_tables(self, tables: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
        """Make whole tables of tasks and subtasks part of the data set's; the numbers of their texts there."""
        self._check_open()
        return {name: self._owner.tables[name].take(table) for name, table in tables.items()}

    def write_rows(
        self,
        columns: Mapping[str, object],
        *,
        rows: int | None = None,
        task: NDArray[np.int64] | None = None,
    ) -> None:
        """Flush rows as one group: for every feature but videos an array (n, *shape), or a list of n images.

        `rows` says how many they are; a data set of videos alone needs it. `task`, a number of `take_tables` for each
        row, is for episodes whose task changes; else it is the episode's.
        """
        self._check_open()
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
        self._sink.write_rows({**values, **place, "task_index": numbers})
        self.rows += count
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
        """Let a decoded image enter the statistics of a camera: RGB, or the values of a depth image."""
        self._camera_stats(key).add(rgb)

    def add_image_stats(self, key: str, stats: ImageStats) -> None:
        """Let everything that other statistics have seen enter those of a camera."""
        self._camera_stats(key).merge(stats)

    def commit(
        self, note: Mapping[str, Any] | None = None, *, last: bool = False, grouped: bool = False
    ) -> EpisodeRecord:
        """Make the episode part of the data set; its rows and frames are on the disk when this returns.

        `note`, plain JSON, comes back with the episode from the journal. `last` says that `close` follows at once: it
        brings the episode to the disk together with everything else. `grouped` lets a small episode wait for a few
        others that reach the disk with it; `settle` and `close` end the wait.
        """
        self._check_open()
        if self.rows == 0:
            raise DataSetError(f"{self._where} has no row", hint="abort it; LeRobot cannot read empty episodes")
        for key in self._cameras:
            if (frames := self._sink.video(key).frames) != self.rows:
                raise DataSetError(
                    f"{self._where}: camera {key!r} has {frames} frames for {self.rows} rows",
                    hint="every row needs exactly one frame; use repeat() for a row that shows the last one again",
                )
        if note is not None:
            encode_line({"type": "note", "note": dict(note)})
        # Its line may be in the journal already: nothing is deleted here. `resume` knows what belongs to what.
        with on_error(self._owner.stop):
            return self._commit(note, last, grouped)

    def abort(self) -> None:
        """Leave no trace: rows are deleted, videos cut back, statistics forgotten."""
        if not self.is_open:
            return
        self.is_open = False
        # Frames of this episode may be left in a file: only `resume` can go on.
        with on_error(self._owner.stop):
            self._sink.discard()

    def leave(self) -> None:
        """Called by the data set's writer: close the file as it is, and take nothing more."""
        self.is_open = False
        self._sink.leave()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.is_open:
            return
        self.abort()
        if kind is None:
            raise DataSetError(f"{self._where} was neither committed nor aborted", hint="it is aborted now")

    def _commit(self, note: Mapping[str, Any] | None, last: bool, grouped: bool) -> EpisodeRecord:
        tasks = tuple(self._row_tasks)
        if not tasks and self._task is not None:
            tasks = (self._task,)
            for start in range(0, self.rows, _FILL_ROWS):
                self._numeric("task_index").add(np.full((min(_FILL_ROWS, self.rows - start), 1), self._task_index))
        finished = self._sink.finish()
        record = EpisodeRecord(
            episode_index=self._owner.episodes,
            tasks=tasks,
            first_row=self._owner.frames,
            rows=self.rows,
            place=finished.place,
            stats={key: entry.to_json() for key, entry in self._stats.items()},
            announced_rows=self._announced_rows,
            names_tasks=bool(self._row_tasks),
            note=note,
        )
        # Statistics of images were sampled: they cannot be had from the rows and frames again.
        images = {key: entry.to_state() for key, entry in self._stats.items() if isinstance(entry, ImageStats)}
        kept = None if finished.kept is None else {"stats": images, **finished.kept}
        self._owner.accept(record, self._stats, kept, finished.size_bytes, last=last, grouped=grouped)
        self.is_open = False
        return record

    def _task_numbers(self, task: NDArray[np.int64] | None, count: int) -> NDArray[np.int64]:
        if task is None:
            if self._task_index is None:
                raise DataSetError(
                    f"{self._where}: no task was named", hint="episode(task=…) takes a short description"
                )
            return np.full(count, self._task_index, dtype=np.int64)
        used, first = np.unique(task, return_index=True)
        for number in used[np.argsort(first)].tolist():
            self._row_tasks.setdefault(self._owner.tasks.texts[number], number)
        return task.astype(np.int64)

    def _number_of(self, task: str) -> int:
        """The number that the task has, or will have when this episode is committed."""
        try:
            task.encode()
        except (UnicodeEncodeError, AttributeError):
            raise DataSetError(f"{self._where}: the task {task!r} is not text that UTF-8 can hold") from None
        known = self._owner.tasks.number(task)
        return len(self._owner.tasks.texts) if known is None else known

    def _numeric(self, key: str) -> NumericStats:
        return cast(NumericStats, self._stats[key])

    def _camera_stats(self, key: str) -> ImageStats:
        self._check_open()
        return cast(ImageStats, self._stats[key])

    def _check_open(self) -> None:
        if not self.is_open:
            raise DataSetError(f"{self._where} is committed or aborted already")


def row_columns(*, first_row: int, first_frame: int, count: int, episode: int, fps: int) -> dict[str, NDArray[Any]]:
    """The columns that follow from a row's place alone."""
    frames = np.arange(first_frame, first_frame + count, dtype=np.int64)
    return {
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.full(count, episode, dtype=np.int64),
        "index": frames + first_row,
    }
