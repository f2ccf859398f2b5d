"""Closing a data set: the tables and the metadata, streamed from the journal; meta/info.json comes last."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import DataSetCorrupt
from penstock.lerobot import layout, tables
from penstock.lerobot.features import ROW_FEATURES, Description, Feature
from penstock.lerobot.layout import EpisodePlace, FreshNames
from penstock.lerobot.stats import STATISTICS, Stats
from penstock.lerobot.write import kept
from penstock.system.closing import on_error

if TYPE_CHECKING:
    import pyarrow.parquet as pq

METADATA_PATHS = (layout.INFO_PATH, layout.STATS_PATH, layout.TASKS_PATH, layout.SUBTASKS_PATH)  # beside the episodes

_BATCH_EPISODES = 128


def write_metadata(
    root: Path,
    description: Description,
    records: Iterable[Mapping[str, Any]],
    *,
    texts: Mapping[str, Sequence[str]],
    stats: Mapping[str, Any],
    info: Mapping[str, Any],
    names: FreshNames,
) -> None:
    """Write meta/ of a data set whose rows and frames are in place; with info.json it becomes one."""
    fsync = names.fsync
    _write_episodes(root, description, records, fsync=fsync)
    for _, path in layout.numbered_files(root / layout.EPISODES_DIR, ".parquet"):
        names.add(path)
    write_tasks(root / layout.TASKS_PATH, texts["tasks"], "task", fsync=fsync)
    if texts["subtasks"]:
        write_tasks(root / layout.SUBTASKS_PATH, texts["subtasks"], "subtask", fsync=fsync)
    write_json(root / layout.STATS_PATH, stats, fsync=fsync)
    names.add(root / layout.STATS_PATH)
    with layout.writing(root / layout.SPOOL_DIR, "cannot remove the directory"):
        if (root / layout.SPOOL_DIR).exists():
            shutil.rmtree(root / layout.SPOOL_DIR)
    names.sync()
    write_json(root / layout.INFO_PATH, info, fsync=fsync)
    names.add(root / layout.INFO_PATH)
    names.sync()


def described(description: Description, videos: Mapping[str, Mapping[str, Any] | None]) -> list[Feature]:
    """The features, each camera with what is known of its videos."""
    return [
        replace(feature, info={**(feature.info or {}), **known}) if (known := videos.get(feature.key)) else feature
        for feature in description.features
    ]


def info(
    description: Description, features: Sequence[Feature], *, episodes: int, frames: int, tasks: int
) -> dict[str, Any]:
    """What info.json says, in LeRobot 0.6.1's order; `features` are described with their videos."""
    return {
        "codebase_version": layout.CODEBASE_VERSION,
        "fps": description.fps,
        "features": {feature.key: feature.to_json() for feature in (*features, *ROW_FEATURES)},
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": description.chunks_size,
        "data_files_size_in_mb": max(1, description.data_file_bytes // layout.MIB),
        "video_files_size_in_mb": max(1, description.video_file_bytes // layout.MIB),
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if any(feature.dtype == "video" for feature in features) else None,
        "robot_type": description.robot_type,
        "splits": {"train": f"0:{episodes}"},
    }


def remove_metadata(root: Path, names: FreshNames) -> None:
    """Take meta/ away, info.json first: from then on the directory is no finished data set."""
    kept.remove_info(root, names)
    for relative in METADATA_PATHS:
        layout.remove(root / relative)
        layout.remove(root / f"{relative}.part")
    for _, path in layout.numbered_files(root / layout.EPISODES_DIR, ".parquet"):
        layout.remove(path)


def _write_episodes(root: Path, description: Description, records: Iterable[Mapping[str, Any]], *, fsync: bool) -> None:
    table = EpisodesTable(root, description, fsync)
    known = kept.kept_statistics(root)
    with on_error(table.discard):
        for record in records:
            stats = record.get("stats")
            if stats is None:
                stats = _kept_statistics(root, record["episode_index"], known)
            table.add(episode_row(root, record, stats, description.fps))
        table.finish()


def _kept_statistics(
    root: Path, episode_index: int, known: Iterator[tuple[int, dict[str, Stats | None]]]
) -> Mapping[str, Stats | None]:
    for number, stats in known:
        if number == episode_index:
            return stats
    raise DataSetCorrupt(
        f"{root / layout.JOURNAL_PATH}: the statistics of episode {episode_index} are missing; they belong into "
        f"{kept.KEPT_DIR}",
        hint="convert the recordings again into an empty directory",
    )


def episode_row(root: Path, record: Mapping[str, Any], stats: Mapping[str, Stats | None], fps: int) -> dict[str, Any]:
    """The row of the episodes table, without the place of the row itself."""
    place = EpisodePlace.from_json(record, root / layout.JOURNAL_PATH)
    row: dict[str, Any] = {
        "episode_index": record["episode_index"],
        "tasks": list(record["tasks"]),
        "length": record["rows"],
        "data/chunk_index": place.data.chunk,
        "data/file_index": place.data.file,
        "dataset_from_index": record["first_row"],
        "dataset_to_index": record["first_row"] + record["rows"],
    }
    for key, span in place.videos.items():
        row[f"videos/{key}/chunk_index"] = span.position.chunk
        row[f"videos/{key}/file_index"] = span.position.file
        # Frame numbers divided once: sums of durations would drift away from the frames.
        row[f"videos/{key}/from_timestamp"] = span.first_frame / fps
        row[f"videos/{key}/to_timestamp"] = (span.first_frame + span.frames) / fps
    for key, entry in stats.items():
        for name in STATISTICS:
            row[f"stats/{key}/{name}"] = None if entry is None else entry[name]
    return row


class EpisodesTable:
    """Writes meta/episodes/chunk-CCC/file-FFF.parquet."""

    def __init__(self, root: Path, description: Description, fsync: bool) -> None:
        self._root = root
        self._schema = cache(lambda: tables.episodes_schema(description.features))
        self._limit_bytes = description.data_file_bytes
        self._chunks_size = description.chunks_size
        self._fsync = fsync
        self._position = layout.FIRST_FILE
        self._waiting: list[dict[str, Any]] = []
        self._writer: pq.ParquetWriter | None = None
        self._row_groups = 0

    def add(self, row: dict[str, Any]) -> None:
        """Take the row of the next episode, as `episode_row` gives it."""
        self._waiting.append(row)
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
        tables.abandon_writer(self._writer)
        self._writer = None

    def _path(self) -> Path:
        relative = layout.fill_template(
            layout.EPISODES_PATH, chunk_index=self._position.chunk, file_index=self._position.file
        )
        return self._root / relative


def write_tasks(path: Path, texts: Sequence[str], name: str, *, fsync: bool) -> None:
    import pyarrow.parquet as pq

    table = tables.tasks_table(texts, name)
    with tables.write_errors(path, "cannot write the tasks"):
        writer = pq.ParquetWriter(str(path), table.schema, compression="snappy")
        try:
            writer.write_table(table)
        finally:
            tables.close_writer(writer)
    if fsync:
        layout.fsync_file(path)


def write_json(path: Path, tree: Mapping[str, Any], *, fsync: bool) -> None:
    text = json.dumps(tree, indent=4, ensure_ascii=False, allow_nan=False)
    layout.write_text_durably(path, text, fsync=fsync)
