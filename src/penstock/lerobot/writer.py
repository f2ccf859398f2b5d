"""Writes a LeRobot v3.0 data set, episode by episode, in memory that does not grow with its length.

    with DataSetWriter(root, fps=30, features=features, robot_type="kuavo") as writer:
        with writer.episode(rows=1800) as episode:
            episode.video("observation.images.cam_h").append(jpegs)
            episode.write_rows({"observation.state": state, "action": action})
            episode.commit("pour the tea")

The directory is a data set once `close` has written meta/info.json, the last of its files.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from penstock.errors import DataSetError, OutputExists
from penstock.lerobot import layout, tables
from penstock.lerobot.episode import EpisodeSummary, EpisodeWriter, FeatureStats, bad_values, new_stats
from penstock.lerobot.episodes import EpisodeRecord, EpisodesTable
from penstock.lerobot.features import ROW_FEATURES, Feature, check_features
from penstock.lerobot.spool import DataFiles, Part, PartWriter
from penstock.lerobot.stats import ImageStats, NumericStats, Stats
from penstock.lerobot.videos import VideoSink, VideoSpan

__all__ = ["DataSetSummary", "DataSetWriter", "EpisodeSummary", "EpisodeWriter"]


@dataclass(frozen=True)
class DataSetSummary:
    """What `DataSetWriter.close` has written."""

    root: Path
    episodes: int
    frames: int
    tasks: int
    data_bytes: int
    video_bytes: int


class DataSetWriter:
    """A LeRobot data set being written into the directory `root`, which must be empty or absent.

    Sizes are in bytes; a file that reaches its limit is followed by another. `fsync=False` leaves it to the system when
    files reach the disk.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        fps: int,
        features: Sequence[Feature],
        robot_type: str | None = None,
        data_file_bytes: int = layout.DATA_FILE_BYTES,
        video_file_bytes: int = layout.VIDEO_FILE_BYTES,
        chunks_size: int = layout.CHUNKS_SIZE,
        fsync: bool = True,
    ) -> None:
        if isinstance(fps, bool) or not isinstance(fps, int) or fps < 1:
            raise DataSetError(f"fps must be a whole number >= 1, got {fps!r}", hint="LeRobot reads whole rates only")
        if min(data_file_bytes, video_file_bytes, chunks_size) < 1:
            raise DataSetError(f"file limits must be >= 1: {data_file_bytes=}, {video_file_bytes=}, {chunks_size=}")
        check_features(features)
        if not features:
            raise DataSetError("a data set needs at least one feature")
        self.root = Path(root)
        self.fps = fps
        self.features = tuple(features)
        self.fsync = fsync
        self.episodes = 0
        self.frames = 0
        self.tasks: list[str] = []
        self.task_numbers: dict[str, int] = {}
        # Made when the first rows come: loading Arrow then falls into the time that the video files take.
        self.schema: tables.SchemaMaker = cache(lambda: tables.data_schema(self.features))
        self._robot_type = robot_type
        self._limits = (data_file_bytes, video_file_bytes, chunks_size)
        self._stats = new_stats(self.features)
        self._prepare_root()
        self._data = DataFiles(
            self.root, self.schema, limit_bytes=data_file_bytes, chunks_size=chunks_size, fsync=fsync
        )
        self._table = EpisodesTable(
            self.root,
            cache(lambda: tables.episodes_schema(self.features)),
            fps=fps,
            limit_bytes=data_file_bytes,
            chunks_size=chunks_size,
            fsync=fsync,
        )
        self.sinks = {
            feature.key: VideoSink(
                self.root, feature, fps=fps, limit_bytes=video_file_bytes, chunks_size=chunks_size, fsync=fsync
            )
            for feature in self.features
            if feature.dtype == "video"
        }
        self._episode: EpisodeWriter | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"DataSetWriter({str(self.root)!r}, episodes={self.episodes}, frames={self.frames:,})"

    def episode(self, *, rows: int | None = None, task: str | None = None) -> EpisodeWriter:
        """Begin the next episode; one at a time.

        `rows`, where known, keeps long episodes exact: LeRobot adds times as float32, so an episode that would reach
        beyond 1,000 s of a shared video file gets a file of its own. `task` is what `commit` will say, where known.
        """
        if self._closed:
            raise DataSetError(f"{self.root}: the data set is closed already")
        if self._episode is not None and self._episode.is_open:
            raise DataSetError(f"{self.root}: episode {self.episodes} is still open", hint="commit or abort it first")
        for sink in self.sinks.values():
            sink.begin_episode(rows)
        part = PartWriter(
            self.root / layout.SPOOL_DIR / f"episode-{self.episodes:06d}.parquet",
            tables.data_features(self.features),
            self.schema,
        )
        self._episode = EpisodeWriter(self, part, new_stats(self.features), task)
        return self._episode

    def accept(
        self,
        part: Part,
        tasks: Sequence[str],
        videos: Mapping[str, VideoSpan],
        stats: Mapping[str, FeatureStats],
    ) -> EpisodeRecord:
        """Called by an episode that commits: its files are whole, now they belong to the data set."""
        record = EpisodeRecord(
            episode_index=self.episodes,
            tasks=tuple(tasks),
            first_row=self.frames,
            rows=part.rows,
            data=self._data.take(part),
            videos=dict(videos),
            stats={key: entry.to_json() for key, entry in stats.items()},
        )
        self._table.add(record)
        for task in tasks:
            if task not in self.task_numbers:
                self.task_numbers[task] = len(self.tasks)
                self.tasks.append(task)
        for key, entry in stats.items():
            whole = self._stats[key]
            if isinstance(whole, ImageStats):
                whole.merge(cast(ImageStats, entry))
            else:
                whole.merge(cast(NumericStats, entry))
        self.episodes += 1
        self.frames += part.rows
        return record

    def close(self) -> DataSetSummary:
        """Put the last files into place and write the metadata, info.json last."""
        if self._closed:
            raise DataSetError(f"{self.root}: the data set is closed already")
        if self._episode is not None and self._episode.is_open:
            raise DataSetError(f"{self.root}: episode {self.episodes} is still open", hint="commit or abort it first")
        if self.episodes == 0:
            raise DataSetError(f"{self.root}: no episode was committed", hint="an empty data set cannot be read")
        self._data.finish()
        for sink in self.sinks.values():
            sink.close()
        self._table.finish()
        self._write_tasks()
        self._write_json(layout.STATS_PATH, self.stats())
        self._remove_spool()
        if self.fsync:
            for directory in sorted({path.parent for path in self.root.rglob("*") if path.is_file()}):
                layout.fsync_directory(directory)
        self._write_json(layout.INFO_PATH, self.info())
        if self.fsync:
            layout.fsync_directory(self.root)
        self._closed = True
        video_bytes = sum(sink.size_bytes for sink in self.sinks.values())
        return DataSetSummary(
            self.root, self.episodes, self.frames, len(self.tasks), self._data.size_bytes, video_bytes
        )

    def abandon(self) -> None:
        """Stop without a data set: files are closed, the open episode is dropped. What lies in `root` stays there."""
        if self._closed:
            return
        self._closed = True
        if self._episode is not None:
            self._episode.abort()
        for sink in self.sinks.values():
            sink.discard()
        self._table.discard()

    def stats(self) -> dict[str, Stats]:
        """Statistics of everything committed so far; cameras without a sampled picture have none."""
        whole = {key: entry.to_json() for key, entry in self._stats.items()}
        return {key: entry for key, entry in whole.items() if entry is not None}

    def bad_values(self) -> dict[str, dict[str, dict[str, int]]]:
        """NaN, Inf and overflows committed so far: {feature: {dimension: {"nan": …, "inf": …, "overflow": …}}}."""
        return bad_values(self.features, self._stats)

    def info(self) -> dict[str, Any]:
        """What info.json says, in LeRobot 0.6.1's order."""
        data_file_bytes, video_file_bytes, chunks_size = self._limits
        described = [self._described(feature) for feature in self.features]
        return {
            "codebase_version": layout.CODEBASE_VERSION,
            "fps": self.fps,
            "features": {feature.key: feature.to_json() for feature in (*described, *ROW_FEATURES)},
            "total_episodes": self.episodes,
            "total_frames": self.frames,
            "total_tasks": len(self.tasks),
            "chunks_size": chunks_size,
            "data_files_size_in_mb": max(1, data_file_bytes // layout.MIB),
            "video_files_size_in_mb": max(1, video_file_bytes // layout.MIB),
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if self.sinks else None,
            "robot_type": self._robot_type,
            "splits": {"train": f"0:{self.episodes}"},
        }

    def __enter__(self) -> DataSetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
        elif not self._closed:
            self.close()

    def _described(self, feature: Feature) -> Feature:
        sink = self.sinks.get(feature.key)
        if sink is None or sink.info is None:
            return feature
        return replace(feature, info={**(feature.info or {}), **sink.info})

    def _prepare_root(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            occupied = any(self.root.iterdir())
        except OSError as error:
            raise DataSetError(f"{self.root}: cannot make the directory: {error.strerror}") from error
        if occupied:
            raise OutputExists(f"{self.root}: the directory is not empty", hint="choose another directory")

    def _write_tasks(self) -> None:
        import pyarrow.parquet as pq

        path = self.root / layout.TASKS_PATH
        with tables.arrow_errors(path, "cannot write the tasks"):
            pq.write_table(tables.tasks_table(self.tasks), str(path), compression="snappy")
            if self.fsync:
                layout.fsync_file(path)

    def _write_json(self, relative: str, tree: Mapping[str, Any]) -> None:
        text = json.dumps(tree, indent=4, ensure_ascii=False, allow_nan=False)
        layout.write_text_durably(self.root / relative, text, fsync=self.fsync)

    def _remove_spool(self) -> None:
        with contextlib.suppress(OSError):
            shutil.rmtree(self.root / layout.SPOOL_DIR)
