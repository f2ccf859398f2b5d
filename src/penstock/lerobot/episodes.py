"""The episodes table: one row per committed episode, written in batches so that memory does not follow their number."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import DataSetCorrupt
from penstock.lerobot import layout, tables
from penstock.lerobot.layout import FilePosition
from penstock.lerobot.stats import STATISTICS, Stats
from penstock.lerobot.write.snapshot import Saved
from penstock.lerobot.write.videos import VideoSpan

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH_EPISODES = 128


@dataclass(frozen=True)
class EpisodeRecord:
    """Everything that is known about one committed episode; plain values only. The journal keeps one line of each.

    `announced_rows` and `names_tasks` (whether its rows name their tasks one by one) are how it was written: a copy
    that is written likewise has the same bytes. `state` is the state of the data set after the episode, in the last one
    of a group; `parcel` is what a parcel keeps about the episode alone. `stats` is None where they lie in the table of
    the data set that is continued.
    """

    episode_index: int
    tasks: tuple[str, ...]
    first_row: int
    rows: int
    data: FilePosition
    part_bytes: int
    videos: Mapping[str, VideoSpan]
    stats: Mapping[str, Stats | None] | None
    announced_rows: int | None = None
    names_tasks: bool = False
    note: Mapping[str, Any] | None = None
    state: Saved | None = None
    parcel: Saved | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the journal."""
        return {
            "type": "episode",
            "state": None if self.state is None else self.state.to_json(),
            "episode_index": self.episode_index,
            "tasks": list(self.tasks),
            "first_row": self.first_row,
            "rows": self.rows,
            "data": [self.data.chunk, self.data.file],
            "part_bytes": self.part_bytes,
            "videos": {key: span.to_json() for key, span in self.videos.items()},
            "announced_rows": self.announced_rows,
            "names_tasks": self.names_tasks,
            "note": None if self.note is None else dict(self.note),
            "parcel": None if self.parcel is None else self.parcel.to_json(),
            "stats": self.stats,
        }

    @classmethod
    def from_json(cls, entry: Mapping[str, Any], where: str) -> EpisodeRecord:
        """The record that `to_json` gave."""
        try:
            return cls(
                episode_index=int(entry["episode_index"]),
                tasks=tuple(str(task) for task in entry["tasks"]),
                first_row=int(entry["first_row"]),
                rows=int(entry["rows"]),
                data=FilePosition.checked(*entry["data"]),
                part_bytes=int(entry["part_bytes"]),
                videos={key: VideoSpan.from_json(span) for key, span in entry["videos"].items()},
                stats=entry.get("stats"),
                announced_rows=entry["announced_rows"],
                names_tasks=bool(entry["names_tasks"]),
                note=entry["note"],
                state=None if entry["state"] is None else Saved.from_json(entry["state"]),
                parcel=None if entry["parcel"] is None else Saved.from_json(entry["parcel"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataSetCorrupt(f"{where}: a record of an episode cannot be used: {error!r}") from error

    def to_row(self, fps: int) -> dict[str, Any]:
        """The row of the episodes table, without the place of the row itself."""
        row: dict[str, Any] = {
            "episode_index": self.episode_index,
            "tasks": list(self.tasks),
            "length": self.rows,
            "data/chunk_index": self.data.chunk,
            "data/file_index": self.data.file,
            "dataset_from_index": self.first_row,
            "dataset_to_index": self.first_row + self.rows,
        }
        for key, span in self.videos.items():
            row[f"videos/{key}/chunk_index"] = span.position.chunk
            row[f"videos/{key}/file_index"] = span.position.file
            # Frame numbers divided once: sums of durations would drift away from the frames.
            row[f"videos/{key}/from_timestamp"] = span.first_frame / fps
            row[f"videos/{key}/to_timestamp"] = (span.first_frame + span.frames) / fps
        for key, stats in (self.stats or {}).items():
            for name in STATISTICS:
                row[f"stats/{key}/{name}"] = None if stats is None else stats[name]
        return row


class EpisodesTable:
    """Writes meta/episodes/chunk-CCC/file-FFF.parquet."""

    def __init__(
        self, root: Path, schema: tables.SchemaMaker, *, fps: int, limit_bytes: int, chunks_size: int, fsync: bool
    ) -> None:
        self._root = root
        self._schema = schema
        self._fps = fps
        self._limit_bytes = limit_bytes
        self._chunks_size = chunks_size
        self._fsync = fsync
        self._position = layout.FIRST_FILE
        self._waiting: list[dict[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None
        self._row_groups = 0

    def add(self, record: EpisodeRecord) -> None:
        """Take the row of the next episode."""
        self._waiting.append(record.to_row(self._fps))
        if len(self._waiting) >= _BATCH_EPISODES:
            self._flush()

    def finish(self) -> None:
        """Write what waits, and the footer."""
        if self._waiting:
            self._flush()
        self._close()

    def _flush(self) -> None:
        import pyarrow.parquet as pq

        path = self._path()
        with tables.write_errors(path, "cannot write the episodes table"):
            if self._writer is not None and self._is_full(path):
                self._close()
                self._position = self._position.next(self._chunks_size)
                path = self._path()
            if self._writer is None:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._writer = pq.ParquetWriter(str(path), self._schema(), compression="snappy")
            place = {
                "meta/episodes/chunk_index": self._position.chunk,
                "meta/episodes/file_index": self._position.file,
            }
            rows = [row | place for row in self._waiting]
            self._writer.write_table(tables.episodes_table(rows, self._schema()))
            self._row_groups += 1
        self._waiting.clear()

    def _is_full(self, path: Path) -> bool:
        most = tables.most_row_groups(len(self._schema()))
        return self._row_groups >= most or path.stat().st_size >= self._limit_bytes

    def _close(self) -> None:
        if self._writer is None:
            return
        path = self._path()
        with tables.write_errors(path, "cannot finish the episodes table"):
            writer, self._writer = self._writer, None
            self._row_groups = 0
            tables.close_writer(writer)
            if self._fsync:
                layout.fsync_file(path)

    def discard(self) -> None:
        """Close the file without caring for its contents: the data set will not be finished."""
        if self._writer is not None:
            # On a full disk the footer fails to be written, too.
            with contextlib.suppress(Exception):
                tables.close_writer(self._writer)
            self._writer = None

    def _path(self) -> Path:
        relative = layout.fill_template(
            layout.EPISODES_PATH, chunk_index=self._position.chunk, file_index=self._position.file
        )
        return self._root / relative
