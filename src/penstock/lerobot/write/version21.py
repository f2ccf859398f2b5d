"""The sink of LeRobot v2.1, which GR00T, openpi and lerobot up to 0.3 read: every episode has files of its own.

    data/chunk-000/episode_000000.parquet
    videos/chunk-000/observation.images.cam_h/episode_000000.mp4
    meta/{info.json, episodes.jsonl, episodes_stats.jsonl, tasks.jsonl, stats.json, modality.json}

Files are whole when their episode is finished, and are never changed again: to go on means to remove those of episodes
that were not committed. `penstock.conversion.sink` says what is asked of a sink.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from penstock.errors import DataSetCorrupt, DataSetError
from penstock.lerobot import layout, tables
from penstock.lerobot.features import Description, Feature
from penstock.lerobot.layout import FreshNames
from penstock.lerobot.stats import Stats
from penstock.lerobot.write import kept
from penstock.lerobot.write import version21_metadata as metadata
from penstock.lerobot.write.closing import described
from penstock.lerobot.write.resume import refuse_faults, remove_empty, size_of
from penstock.lerobot.write.sink import FinishedEpisode
from penstock.lerobot.write.spool import PartWriter
from penstock.lerobot.write.videos import VideoFiles

_CHUNK_NAME = re.compile(r"chunk-\d{3,9}\Z")
_EPISODE_NAME = re.compile(r"episode_(\d{6,12})\.(?:parquet|mp4)\Z")


class Version21Sink:
    """The files of a LeRobot v2.1 data set."""

    holds_statistics = True  # meta/episodes_stats.jsonl has those of every episode, as far as v2.1 knows them
    label = "LeRobot v2.1"
    default_video = "h264"  # which all its readers and browsers show; copied JPEG is for those who ask for it

    def __init__(self, root: Path, description: Description, names: FreshNames) -> None:
        if language := [feature.key for feature in description.features if feature.dtype == "language"]:
            raise DataSetError(
                f"LeRobot v2.1 has no columns like {', '.join(language)}: its readers fail on them",
                hint=f"'leave_out=[{','.join(language)}]' converts a data set without them, episodes.language=false "
                "recordings; output=v3.0 keeps them",
            )
        self.root = root
        self.description = description
        self.names = names
        # Made when the first rows come: loading Arrow then falls into the time that the video files take.
        self.schema: tables.SchemaMaker = cache(lambda: tables.data_schema(description.features, lists="Sequence"))
        self.stored = tables.data_features(description.features)
        self.video_info: dict[str, dict[str, Any] | None] = {feature.key: None for feature in description.cameras}
        self.unsynced: list[Path] = []  # files of episodes that are finished, but not on the disk
        self._episode: Version21Episode | None = None
        self._committed = 0

    def begin_episode(self, episode_index: int, rows: int | None) -> Version21Episode:
        """Begin the next episode: a file for its rows, and one for the frames of every camera."""
        self._episode = Version21Episode(self, episode_index, rows)
        return self._episode

    def sync(self, *, closing: bool) -> None:
        """Bring the files of the finished episodes to the disk."""
        paths, self.unsynced = self.unsynced, []
        if self.names.fsync:
            layout.fsync_files(paths)
        for path in paths:
            self.names.add(path)

    def state(self) -> dict[str, Any]:
        """What info.json will say of the videos: everything else lies in the files."""
        return {"videos": self.video_info}

    def settle(self) -> None:
        """Nothing moves: the files lie where they belong."""

    def close(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        tables: Mapping[str, Sequence[str]],
        stats: Mapping[str, Stats],
        episodes: int,
        frames: int,
    ) -> None:
        """Write the metadata, info.json last."""
        features = described(self.description, self.video_info)
        counts = {"total_episodes": episodes, "total_frames": frames, "total_tasks": len(tables["tasks"])}
        metadata.write_metadata(
            self.root,
            records,
            texts=tables,
            stats=stats,
            features=features,
            info=metadata.info(self.description, features, counts),
            names=self.names,
        )

    def closed(self) -> None:
        """The statistics that were kept aside may go."""
        kept.drop_statistics(self.root)

    def leave(self) -> None:
        """Close the files of an open episode as they are."""
        if self._episode is not None:
            self._episode.leave()

    def survey(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Look at every file that the records name: each has the size that it was committed with."""
        for relative in ("data", "meta", "videos"):
            layout.check_directory(self.root, relative)
        faults: list[str] = []
        for record in records:
            for path, size_bytes in self._files(record):
                if (found := size_of(path)) is None:
                    faults.append(f"{path}: missing")
                elif found != size_bytes:
                    faults.append(f"{path}: {found:,} bytes, {size_bytes:,} were committed")
            self._committed += 1
        refuse_faults(self.root, faults)

    def _files(self, record: Mapping[str, Any]) -> Iterator[tuple[Path, int]]:
        episode = record["episode_index"]
        try:
            videos = {key: int(record["video_bytes"][key]) for key in self.video_info}
            yield self.data_path(episode), int(record["data_bytes"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataSetCorrupt(
                f"{self.root / layout.JOURNAL_PATH}: the record of episode {episode} cannot be used: {error!r}"
            ) from error
        for key, size_bytes in videos.items():
            yield self.video_path(episode, key), size_bytes

    def reopen(self) -> None:
        """Keep the statistics of the episodes aside."""
        metadata.keep_statistics(self.root, self.names)

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Remove the metadata and the files of episodes that were not committed."""
        metadata.remove_metadata(self.root, self.names)
        for episode, path in self._episode_files():
            if episode >= self._committed:
                layout.remove(path)
                remove_empty(path.parent, above=self.root)
        if state is not None:
            self.video_info = {key: state["videos"][key] for key in self.video_info}

    def _episode_files(self) -> list[tuple[int, Path]]:
        """All files that are named as those of an episode, with its number."""
        folders = list(_chunks(self.root / "data"))
        folders += [chunk / key for chunk in _chunks(self.root / "videos") for key in self.video_info]
        return [
            (int(match.group(1)), folder / name)
            for folder in folders
            if folder.is_dir() and not folder.is_symlink()
            for name in sorted(os.listdir(folder))
            if (match := _EPISODE_NAME.match(name)) is not None
        ]

    def grows(self, last: Mapping[str, Any]) -> Iterable[str]:
        """No file is changed when the data set goes on."""
        return ()

    def name_in_copy(self, relative: str) -> str | None:
        """Rows and videos as they are, the statistics of episodes where they are kept, no other metadata."""
        if relative == metadata.EPISODES_STATS_PATH:
            return metadata.KEPT_STATS_PATH
        return None if relative in (*metadata.REWRITTEN_PATHS, metadata.KEPT_STATS_PATH) else relative

    def data_path(self, episode: int) -> Path:
        return self.root / self._filled(metadata.DATA_PATH, episode)

    def video_path(self, episode: int, key: str) -> Path:
        return self.root / self._filled(metadata.VIDEO_PATH, episode, key)

    def _filled(self, template: str, episode: int, key: str | None = None) -> str:
        chunk = episode // self.description.chunks_size
        return layout.fill_template(template, key=key, episode_index=episode, episode_chunk=chunk)


class Version21Episode:
    """One episode on its way into files of its own."""

    def __init__(self, owner: Version21Sink, episode_index: int, rows: int | None) -> None:
        self._owner = owner
        self._part = PartWriter(owner.data_path(episode_index), owner.stored, owner.schema)
        self._paths = {key: owner.video_path(episode_index, key) for key in owner.video_info}
        self._videos = {feature.key: self._video(feature) for feature in owner.description.cameras}
        for video in self._videos.values():
            video.begin_episode(rows)

    def _video(self, feature: Feature) -> VideoFiles:
        """One file of a camera; several episodes reach the disk together, so it does not sync by itself."""
        path = self._paths[feature.key]
        names = FreshNames(self._owner.root, fsync=False)
        video = VideoFiles(feature, self._owner.description, names, lambda position: path)
        video.info = self._owner.video_info[feature.key]
        return video

    def write_rows(self, columns: Mapping[str, NDArray[Any] | list[Any]]) -> None:
        """One row group."""
        self._part.write(columns)

    def video(self, key: str) -> VideoFiles:
        return self._videos[key]

    def finish(self) -> FinishedEpisode:
        """End all files."""
        owner = self._owner
        part = self._part.finish()
        video_bytes: dict[str, int] = {}
        for key, video in self._videos.items():
            video.commit_episode()
            video.close()
            owner.video_info[key] = video.info
            with layout.writing(self._paths[key], "cannot finish the video"):
                video_bytes[key] = self._paths[key].stat().st_size
        owner.unsynced += [part.path, *self._paths.values()]
        place = {"data_bytes": part.size_bytes, "video_bytes": video_bytes}
        return FinishedEpisode(place, part.size_bytes + sum(video_bytes.values()))

    def discard(self) -> None:
        """Delete the files."""
        self._part.discard()
        for video in self._videos.values():
            video.abort_episode()

    def leave(self) -> None:
        """Close the files as they are."""
        self._part.leave()
        for video in self._videos.values():
            video.leave()


def _chunks(directory: Path) -> Iterator[Path]:
    for name in sorted(os.listdir(directory)) if directory.is_dir() else []:
        if _CHUNK_NAME.match(name) and not (directory / name).is_symlink():
            yield directory / name
