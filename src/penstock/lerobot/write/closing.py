"""Closing a data set: the tables and the metadata, streamed from the journal; meta/info.json comes last."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from penstock.errors import DataSetCorrupt
from penstock.lerobot import layout, tables
from penstock.lerobot.episodes import EpisodeRecord, EpisodesTable
from penstock.lerobot.features import ROW_FEATURES, Feature
from penstock.lerobot.layout import FreshNames
from penstock.lerobot.stats import Stats
from penstock.lerobot.write import packing
from penstock.lerobot.write.journal import Header, Journal


def write_metadata(
    root: Path,
    journal: Journal,
    *,
    texts: Mapping[str, Sequence[str]],
    stats: Mapping[str, Any],
    info: Mapping[str, Any],
    fsync: bool,
    names: FreshNames,
) -> None:
    """Write meta/ of a data set whose rows and frames are in place; with info.json it becomes one."""
    _write_episodes(root, journal, fsync=fsync)
    for _, path in layout.numbered_files(root / layout.EPISODES_DIR, ".parquet"):
        names.add(path)
    _write_tasks(root / layout.TASKS_PATH, texts["tasks"], "task", fsync=fsync)
    if texts["subtasks"]:
        _write_tasks(root / layout.SUBTASKS_PATH, texts["subtasks"], "subtask", fsync=fsync)
    _write_json(root / layout.STATS_PATH, stats, fsync=fsync)
    names.add(root / layout.STATS_PATH)
    with layout.writing(root / layout.SPOOL_DIR, "cannot remove the directory"):
        if (root / layout.SPOOL_DIR).exists():
            shutil.rmtree(root / layout.SPOOL_DIR)
    names.sync()
    _write_json(root / layout.INFO_PATH, info, fsync=fsync)
    names.add(root / layout.INFO_PATH)
    names.sync()


def info(header: Header, features: Sequence[Feature], *, episodes: int, frames: int, tasks: int) -> dict[str, Any]:
    """What info.json says, in LeRobot 0.6.1's order."""
    return {
        "codebase_version": layout.CODEBASE_VERSION,
        "fps": header.fps,
        "features": {feature.key: feature.to_json() for feature in (*features, *ROW_FEATURES)},
        "total_episodes": episodes,
        "total_frames": frames,
        "total_tasks": tasks,
        "chunks_size": header.chunks_size,
        "data_files_size_in_mb": max(1, header.data_file_bytes // layout.MIB),
        "video_files_size_in_mb": max(1, header.video_file_bytes // layout.MIB),
        "data_path": layout.DATA_PATH,
        "video_path": layout.VIDEO_PATH if any(feature.dtype == "video" for feature in features) else None,
        "robot_type": header.robot_type,
        "splits": {"train": f"0:{episodes}"},
    }


def remove_metadata(root: Path, names: FreshNames) -> None:
    """Take meta/ away, info.json first: from then on the directory is no finished data set."""
    if (root / layout.INFO_PATH).exists():
        layout.remove(root / layout.INFO_PATH)
        names.add(root / layout.INFO_PATH)
        names.sync()
    for relative in (layout.INFO_PATH, layout.STATS_PATH, layout.TASKS_PATH, layout.SUBTASKS_PATH):
        layout.remove(root / relative)
        layout.remove(root / f"{relative}.part")
    for _, path in layout.numbered_files(root / layout.EPISODES_DIR, ".parquet"):
        layout.remove(path)


def bytes_below(root: Path) -> tuple[int, int]:
    """What the data files and the videos of a data set measure."""
    return _bytes_in(root / "data"), _bytes_in(root / "videos")


def _bytes_in(directory: Path) -> int:
    return sum(os.stat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(directory) for name in names)


def _write_episodes(root: Path, journal: Journal, *, fsync: bool) -> None:
    header = journal.header
    table = EpisodesTable(
        root,
        cache(lambda: tables.episodes_schema(header.features)),
        fps=header.fps,
        limit_bytes=header.data_file_bytes,
        chunks_size=header.chunks_size,
        fsync=fsync,
    )
    known = packing.kept_statistics(root)
    try:
        for record in journal.episodes():
            table.add(record if record.stats is not None else _with_statistics(record, known, journal))
        table.finish()
    except BaseException:
        table.discard()
        raise


def _with_statistics(
    record: EpisodeRecord, known: Iterator[tuple[int, dict[str, Stats | None]]], journal: Journal
) -> EpisodeRecord:
    for number, stats in known:
        if number == record.episode_index:
            return replace(record, stats=stats)
    raise DataSetCorrupt(
        f"{journal.path}: the statistics of episode {record.episode_index} are missing; they belong into "
        f"{packing.KEPT_DIR}",
        hint="convert the recordings again into an empty directory",
    )


def _write_tasks(path: Path, texts: Sequence[str], name: str, *, fsync: bool) -> None:
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


def _write_json(path: Path, tree: Mapping[str, Any], *, fsync: bool) -> None:
    text = json.dumps(tree, indent=4, ensure_ascii=False, allow_nan=False)
    layout.write_text_durably(path, text, fsync=fsync)
