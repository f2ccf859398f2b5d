"""The sinks of LeRobot data sets: what both versions share, and that of v3.0.

Rows wait in a part of their own until they fill a data file (spool.py); frames go straight into the video file of their
camera, behind those of earlier episodes (videos.py). `penstock._src.conversion.sink` says what is asked of a sink.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from numpy.typing import NDArray

from penstock._src.lerobot import layout, tables
from penstock._src.lerobot.features import ROW_FEATURES, Description, Feature
from penstock._src.lerobot.layout import EpisodePlace, UnsyncedNames
from penstock._src.lerobot.stats import Stats
from penstock._src.lerobot.write import closing
from penstock._src.lerobot.write.spool import DataFiles, PartWriter
from penstock._src.lerobot.write.videos import VideoFiles

if TYPE_CHECKING:
    from penstock._src.lerobot.write.resume import ResumeSurvey


class WrittenEpisode(NamedTuple):
    """An episode whose files are whole: where it lies, what it takes, and what a worker output keeps of its frames."""

    place: Mapping[str, Any]
    size_bytes: int
    kept: Mapping[str, Any] | None = None


class EpisodeFiles(ABC):
    """One episode on its way into the files of a sink: a part for its rows, a video for every camera."""

    def __init__(self, part: PartWriter, videos: Mapping[str, VideoFiles], rows: int | None) -> None:
        self._part, self._videos = part, videos
        for video in videos.values():
            video.begin_episode(rows)

    def write_rows(self, columns: Mapping[str, NDArray[Any] | list[Any]]) -> None:
        self._part.write(columns)

    def video(self, key: str) -> VideoFiles:
        return self._videos[key]

    @abstractmethod
    def finish(self) -> WrittenEpisode:
        """End the part, and decide into which files rows and frames go."""

    def discard(self) -> None:
        self._part.discard()
        for video in self._videos.values():
            video.abort_episode()

    def leave(self) -> None:
        self._part.leave()
        for video in self._videos.values():
            video.leave()


class DataSetFiles(ABC):
    """The files of a data set of either version."""

    holds_statistics = True  # the metadata has those of every episode
    lists: ClassVar[str]  # what `datasets` calls a vector
    metadata_paths: ClassVar[tuple[str, ...]]  # what `close` writes, but for the episodes of v3.0
    statistics_path: ClassVar[str]  # where `close` puts the statistics of the episodes,
    kept_path: ClassVar[str]  # and where they lie while the data set is continued

    def __init__(self, root: Path, description: Description, names: UnsyncedNames) -> None:
        self.root, self.description, self.names = root, description, names
        # Made when the first rows come: loading Arrow then falls into the time that the video files take.
        self.schema: tables.SchemaMaker = cache(lambda: tables.data_schema(description.features, lists=self.lists))
        self.stored = tables.data_features(description.features)
        self.unsynced: list[Path] = []  # files of episodes that are finished, but not on the disk

    def sync(self, *, closing: bool) -> None:
        paths, self.unsynced = self.unsynced, []
        if self.names.fsync:
            layout.fsync_files(paths)
        for path in paths:
            # An episode that was aborted may have taken the directory with it.
            self.names.forget(path.parent)
            self.names.add(path)

    def close(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        tables: Mapping[str, Sequence[str]],
        stats: Mapping[str, Stats],
        episodes: int,
        frames: int,
    ) -> None:
        """Write the metadata; with info.json, which comes last, the directory becomes a data set."""
        known = self.video_info
        features = [
            replace(feature, info={**(feature.info or {}), **info}) if (info := known.get(feature.key)) else feature
            for feature in self.description.features
        ]
        self.write_tables(records, features, tables["tasks"], stats)
        if tables["subtasks"]:
            closing.write_tasks(self.root / layout.SUBTASKS_PATH, tables["subtasks"], "subtask", fsync=self.names.fsync)
        self.names.sync()
        counts = {"total_episodes": episodes, "total_frames": frames, "total_tasks": len(tables["tasks"])}
        described = {feature.key: feature.to_json() for feature in (*features, *ROW_FEATURES)}
        self.write_json(layout.INFO_PATH, self.info(described, counts))
        self.names.sync()

    def write_json(self, relative: str, tree: Mapping[str, Any]) -> None:
        closing.write_json(self.root / relative, tree, fsync=self.names.fsync)
        self.names.add(self.root / relative)

    @property
    @abstractmethod
    def video_info(self) -> Mapping[str, Mapping[str, Any] | None]:
        """What info.json says of the videos of each camera, where there are some."""

    @abstractmethod
    def write_tables(
        self,
        records: Iterable[Mapping[str, Any]],
        features: Sequence[Feature],
        tasks: Sequence[str],
        stats: Mapping[str, Stats],
    ) -> None:
        """Write the tables of episodes and tasks, and the statistics."""

    @abstractmethod
    def info(self, features: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
        """What info.json says, in the order of the LeRobot that writes this version."""

    def closed(self) -> None:
        closing.drop_statistics(self.root)

    def reopen(self) -> None:
        closing.keep_statistics(self.root, self.names, self.statistics_path, self.kept_path)

    def remove_metadata(self) -> None:
        """Take meta/ away, info.json first: from then on the directory is no finished data set."""
        closing.remove_info(self.root, self.names)
        for relative in self.metadata_paths:
            layout.remove(self.root / relative)
            layout.remove(self.root / f"{relative}.part")


class LeRobotSink(DataSetFiles):
    """The files of a LeRobot v3.0 data set. Those of a worker output are never closed: their rows stay in parts."""

    label = "LeRobot v3.0"
    lists = "List"
    metadata_paths = (layout.INFO_PATH, layout.STATS_PATH, layout.TASKS_PATH, layout.SUBTASKS_PATH)
    statistics_path, kept_path = layout.EPISODES_DIR, closing.KEPT_DIR

    def __init__(
        self, root: Path, description: Description, names: UnsyncedNames, *, is_worker_output: bool = False
    ) -> None:
        super().__init__(root, description, names)
        self.is_worker_output = is_worker_output
        self.data = DataFiles(root, description, self.schema, tables.most_row_groups(len(self.stored)), names)
        self.videos = {
            feature.key: VideoFiles(feature, description, names, partial(layout.video_path, root, feature.key))
            for feature in description.cameras
        }
        self._survey: ResumeSurvey | None = None
        self._chunks = layout.ALL_CHUNKS

    def number_from(self, chunks: layout.FileChunks) -> None:
        """Files are numbered in these chunks; those of earlier episodes in chunks before them lie elsewhere."""
        self._chunks = chunks
        self.data.number_from(chunks)
        for video in self.videos.values():
            video.chunks = chunks

    def begin_episode(self, episode_index: int, rows: int | None) -> LeRobotEpisode:
        return LeRobotEpisode(self, episode_index, rows)

    def sync(self, *, closing: bool) -> None:
        for video in self.videos.values():
            if closing:
                video.close()
            else:
                video.sync()
        super().sync(closing=closing)

    def state(self) -> dict[str, Any]:
        """The tables of the open video files: nothing else of a data set lies in memory."""
        return {"videos": {key: video.state() for key, video in self.videos.items()}}

    def begin_group(self, number: int) -> None:
        """The videos of the episodes that follow lie in files of their own, in the chunk with this number."""
        for video in self.videos.values():
            video.group = number

    def settle(self) -> None:
        self.data.settle()

    @property
    def video_info(self) -> Mapping[str, Mapping[str, Any] | None]:
        return {key: video.info for key, video in self.videos.items()}

    def write_tables(
        self,
        records: Iterable[Mapping[str, Any]],
        features: Sequence[Feature],
        tasks: Sequence[str],
        stats: Mapping[str, Stats],
    ) -> None:
        self.data.finish()
        closing.write_episodes(self.root, self.description, records, fsync=self.names.fsync)
        for _, path in layout.numbered_files(self.root / layout.EPISODES_DIR, ".parquet"):
            self.names.add(path)
        closing.write_tasks(self.root / layout.TASKS_PATH, tasks, "task", fsync=self.names.fsync)
        self.write_json(layout.STATS_PATH, stats)
        with layout.writing(self.root / layout.SPOOL_DIR, "cannot remove the directory"):
            if (self.root / layout.SPOOL_DIR).exists():
                shutil.rmtree(self.root / layout.SPOOL_DIR)

    def info(self, features: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
        description = self.description
        return {
            "codebase_version": layout.CODEBASE_VERSION,
            "fps": description.fps,
            "features": features,
            **counts,
            "chunks_size": description.chunks_size,
            "data_files_size_in_mb": max(1, description.data_file_bytes // layout.MIB),
            "video_files_size_in_mb": max(1, description.video_file_bytes // layout.MIB),
            "data_path": layout.DATA_PATH,
            "video_path": layout.VIDEO_PATH if description.cameras else None,
            "robot_type": description.robot_type,
            "splits": {"train": f"0:{counts['total_episodes']}"},
        }

    def leave(self) -> None:
        for video in self.videos.values():
            video.leave()

    def survey(self, records: Iterable[Mapping[str, Any]]) -> None:
        from penstock._src.lerobot.write.resume import survey

        self._survey = survey(
            self.root, self.description, records, is_worker_output=self.is_worker_output, first_chunk=self._chunks.first
        )

    def restore(self, state: Mapping[str, Any] | None) -> None:
        from penstock._src.lerobot.write import resume

        survey = self._survey or resume.ResumeSurvey()
        self.remove_metadata()
        resume.remove_uncommitted(self.root, self.description, survey, is_worker_output=self.is_worker_output)
        if state is None or survey.last is None:
            return
        is_elsewhere = survey.last.data.chunk < self._chunks.first
        for key, video in self.videos.items():
            known = state["videos"][key]
            video.restore({"info": known["info"]} if is_elsewhere else known, survey.last.videos[key])
        if not self.is_worker_output:
            self.data.restore(survey.parts)

    def grows(self, last: Mapping[str, Any]) -> Iterable[str]:
        """The last video of every camera."""
        place = EpisodePlace.from_json(last, self.root / layout.JOURNAL_PATH)
        for key, span in place.videos.items():
            yield layout.video_path(self.root, key, span.position).relative_to(self.root).as_posix()

    def finished(self, last: Mapping[str, Any] | None) -> Iterator[str]:
        """The files that no episode after `last` changes; all where none follows (None)."""
        place = None if last is None else EpisodePlace.from_json(last, self.root / layout.JOURNAL_PATH)
        folders = {"data": None if place is None else place.data}
        for key in self.videos:
            folders[f"videos/{key}"] = None if place is None else place.videos[key].position
        for folder, end in folders.items():
            suffix = ".parquet" if folder == "data" else ".mp4"
            for position, path in layout.numbered_files(self.root / folder, suffix):
                if end is None or position < end:
                    yield path.relative_to(self.root).as_posix()

    def name_in_copy(self, relative: str) -> str | None:
        if relative.startswith(f"{layout.VERSIONS_DIR}/"):
            return None  # of the bucket that the data set was copied from
        if relative.startswith(f"{layout.EPISODES_DIR}/"):
            return closing.KEPT_DIR + relative.removeprefix(layout.EPISODES_DIR)
        if relative.startswith(f"{closing.KEPT_DIR}/") and (self.root / layout.EPISODES_DIR).is_dir():
            return None  # of an earlier continuation, which did not come to remove it
        return None if relative in self.metadata_paths else relative


class LeRobotEpisode(EpisodeFiles):
    """One episode on its way into the files of a `LeRobotSink`."""

    def __init__(self, owner: LeRobotSink, episode_index: int, rows: int | None) -> None:
        part = PartWriter(layout.part_path(owner.root, episode_index), owner.stored, owner.schema)
        super().__init__(part, owner.videos, rows)
        self._owner = owner

    def adopt_video(self, key: str, root: Path, place: Mapping[str, Any], kept: Mapping[str, Any]) -> bool:
        """The frames of a camera as the worker output `root` has them: in files that are finished and named as here."""
        span = EpisodePlace.from_json(place, root).videos[key]
        return self.video(key).adopt(layout.video_path(root, key, span.position), span, kept["videos"][key])

    def finish(self) -> WrittenEpisode:
        owner = self._owner
        part = self._part.finish()
        frames = None
        if owner.is_worker_output:
            frames = {"videos": {key: video.episode_state() for key, video in owner.videos.items()}}
        spans = {key: video.commit_episode() for key, video in owner.videos.items()}
        data = layout.FIRST_FILE if owner.is_worker_output else owner.data.place(part)
        owner.unsynced.append(part.path)
        size_bytes = part.size_bytes + sum(video.committed_bytes for video in owner.videos.values())
        return WrittenEpisode(EpisodePlace(data, part.size_bytes, spans).to_json(), size_bytes, frames)
