"""The sink of LeRobot v2.1, which GR00T, openpi and lerobot up to 0.3 read: every episode has files of its own.

    data/chunk-000/episode_000000.parquet
    videos/chunk-000/observation.images.cam_h/episode_000000.mp4
    meta/{info.json, episodes.jsonl, episodes_stats.jsonl, tasks.jsonl, stats.json, modality.json}

Files are whole when their episode is finished, and are never changed again: to go on means to remove those of episodes
that were not committed. v2.1 knows min, max, mean, standard deviation and count of every episode, and no quantiles.
`stats.json` is GR00T's, not LeRobot's: statistics of all rows, with the two quantiles that it normalises by.
`penstock._src.conversion.sink` says what is asked of a sink.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock._src.lerobot import layout
from penstock._src.lerobot.features import ROW_FEATURES, Description, Feature
from penstock._src.lerobot.layout import UnsyncedNames
from penstock._src.lerobot.read.version21 import EPISODES_PATH, TASKS_PATH
from penstock._src.lerobot.stats import Stats
from penstock._src.lerobot.write import closing
from penstock._src.lerobot.write.modality import modality
from penstock._src.lerobot.write.resume import remove_empty, require
from penstock._src.lerobot.write.sink import DataSetFiles, EpisodeFiles, WrittenEpisode
from penstock._src.lerobot.write.spool import PartWriter
from penstock._src.lerobot.write.videos import VideoFiles
from penstock._src.system.files import replacing
from penstock.errors import DataSetCorrupt, DataSetError

DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
EPISODES_STATS_PATH = "meta/episodes_stats.jsonl"
MODALITY_PATH = "meta/modality.json"

EPISODE_STATISTICS = ("min", "max", "mean", "std", "count")
GROOT_STATISTICS = ("mean", "std", "min", "max", "q01", "q99")
_IMAGE_SHAPE = [3, 1, 1]


class Version21Sink(DataSetFiles):
    """The files of a LeRobot v2.1 data set."""

    label = "LeRobot v2.1"
    default_video = "h264"  # which all its readers and browsers show; copied JPEG is for those who ask for it
    lists = "Sequence"
    # A modality.json that is there stays as it is: people split their vectors by hand.
    metadata_paths = (
        layout.INFO_PATH,
        TASKS_PATH,
        EPISODES_PATH,
        EPISODES_STATS_PATH,
        layout.STATS_PATH,
        layout.SUBTASKS_PATH,
    )
    statistics_path, kept_path = EPISODES_STATS_PATH, f"{closing.KEPT_DIR}/stats.jsonl"

    def __init__(self, root: Path, description: Description, names: UnsyncedNames) -> None:
        if language := [feature.key for feature in description.features if feature.dtype == "language"]:
            raise DataSetError(
                f"LeRobot v2.1 has no columns like {', '.join(language)}: its readers fail on them",
                hint=f"'leave_out=[{','.join(language)}]' converts a data set without them, episodes.language=false "
                "recordings; output=v3.0 keeps them",
            )
        super().__init__(root, description, names)
        self._video_info: dict[str, dict[str, Any] | None] = {feature.key: None for feature in description.cameras}
        self._episode: Version21Episode | None = None
        self._committed = 0

    @property
    def video_info(self) -> dict[str, dict[str, Any] | None]:
        return self._video_info

    def begin_episode(self, episode_index: int, rows: int | None) -> Version21Episode:
        self._episode = Version21Episode(self, episode_index, rows)
        return self._episode

    def state(self) -> dict[str, Any]:
        """What info.json will say of the videos: everything else lies in the files."""
        return {"videos": self.video_info}

    def settle(self) -> None:
        """Nothing moves: the files lie where they belong."""

    def write_tables(
        self,
        records: Iterable[Mapping[str, Any]],
        features: Sequence[Feature],
        tasks: Sequence[str],
        stats: Mapping[str, Stats],
    ) -> None:
        with layout.writing(self.root / "meta", "cannot make the directory"):
            (self.root / "meta").mkdir(exist_ok=True)
        known = _read_kept(self.root / self.kept_path)
        with self._lines(EPISODES_PATH) as add_episode, self._lines(EPISODES_STATS_PATH) as add_statistics:
            for record in records:
                number, episode_stats = record["episode_index"], record.get("stats")
                if episode_stats is None:
                    episode_stats = closing.kept_statistics(self.root, number, known)
                add_episode({"episode_index": number, "tasks": list(record["tasks"]), "length": record["rows"]})
                add_statistics({"episode_index": number, "stats": episode_statistics(episode_stats)})
        with self._lines(TASKS_PATH) as add_task:
            for number, text in enumerate(tasks):
                add_task({"task_index": number, "task": text})
        self.write_json(layout.STATS_PATH, groot_statistics(features, stats))
        if not (self.root / MODALITY_PATH).exists():
            self.write_json(MODALITY_PATH, modality(features))

    @contextmanager
    def _lines(self, relative: str) -> Iterator[Callable[[Mapping[str, Any]], object]]:
        """A .jsonl file that is written line by line beside its place, and moved there when it is whole."""
        path = self.root / relative
        with (
            layout.writing(path, "cannot write"),
            replacing(path, path.with_name(f"{path.name}.part"), fsync=self.names.fsync) as fresh,
            open(fresh, "wb") as stream,
        ):
            # Escaped, since some readers open it in the encoding of their system.
            yield lambda entry: stream.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
        self.names.add(path)

    def info(self, features: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
        description = self.description
        episodes, cameras = counts["total_episodes"], len(description.cameras)
        return {
            "codebase_version": "v2.1",
            "robot_type": description.robot_type,
            **counts,
            "total_videos": episodes * cameras,
            "total_chunks": -(-episodes // description.chunks_size),
            "chunks_size": description.chunks_size,
            "fps": description.fps,
            "splits": {"train": f"0:{episodes}"},
            "data_path": DATA_PATH,
            "video_path": VIDEO_PATH if cameras else None,
            "features": features,
        }

    def leave(self) -> None:
        if self._episode is not None:
            self._episode.leave()

    def survey(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Look at every file that the records name: each has the size that it was committed with."""
        for relative in ("data", "meta", "videos"):
            layout.check_directory(self.root, relative)
        for record in records:
            for path, size_bytes in self._files(record):
                require(path, size_bytes, size_bytes)
            self._committed += 1

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

    def restore(self, state: Mapping[str, Any] | None) -> None:
        self.remove_metadata()
        layout.remove(self.root / f"{MODALITY_PATH}.part")
        for episode in itertools.count(self._committed):
            paths = [self.data_path(episode), *(self.video_path(episode, key) for key in self.video_info)]
            if not any(path.exists() for path in paths):
                break
            for path in paths:
                layout.remove(path)
                remove_empty(path.parent, above=self.root)
        if state is not None:
            self._video_info = {key: state["videos"][key] for key in self.video_info}

    def grows(self, last: Mapping[str, Any]) -> Iterable[str]:
        """No file is changed when the data set goes on."""
        return ()

    def name_in_copy(self, relative: str) -> str | None:
        if relative == EPISODES_STATS_PATH:
            return self.kept_path
        return None if relative in (*self.metadata_paths, self.kept_path) else relative

    def data_path(self, episode: int) -> Path:
        return self.root / self._filled(DATA_PATH, episode)

    def video_path(self, episode: int, key: str) -> Path:
        return self.root / self._filled(VIDEO_PATH, episode, key)

    def _filled(self, template: str, episode: int, key: str | None = None) -> str:
        chunk = episode // self.description.chunks_size
        return layout.fill_template(template, key=key, episode_index=episode, episode_chunk=chunk)


class Version21Episode(EpisodeFiles):
    """One episode on its way into files of its own."""

    def __init__(self, owner: Version21Sink, episode_index: int, rows: int | None) -> None:
        self._owner = owner
        self._paths = {key: owner.video_path(episode_index, key) for key in owner.video_info}
        part = PartWriter(owner.data_path(episode_index), owner.stored, owner.schema)
        super().__init__(part, {feature.key: self._file(feature) for feature in owner.description.cameras}, rows)

    def _file(self, feature: Feature) -> VideoFiles:
        """One file of a camera; several episodes reach the disk together, so it does not sync by itself."""
        path = self._paths[feature.key]
        names = UnsyncedNames(self._owner.root, fsync=False)
        video = VideoFiles(feature, self._owner.description, names, lambda position: path)
        video.info = self._owner.video_info[feature.key]
        return video

    def finish(self) -> WrittenEpisode:
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
        return WrittenEpisode(place, part.size_bytes + sum(video_bytes.values()))


def groot_statistics(features: Sequence[Feature], stats: Mapping[str, Stats]) -> dict[str, Any]:
    """Statistics of all rows as GR00T slices them: only what has one entry per number of the column."""
    numeric = [feature.key for feature in (*features, *ROW_FEATURES) if feature.is_numeric and not feature.is_wide]
    return {key: {name: stats[key][name] for name in GROOT_STATISTICS} for key in numeric if key in stats}


def episode_statistics(stats: Mapping[str, Stats | None]) -> dict[str, Any]:
    """The statistics of an episode that LeRobot 0.3 takes.

    It refuses a data set in which a key with "image" in it has others than three colours have, so those of depth stay
    out.
    """
    return {
        key: {name: entry[name] for name in EPISODE_STATISTICS}
        for key, entry in stats.items()
        if entry is not None and ("image" not in key or _shape(entry["mean"]) == _IMAGE_SHAPE)
    }


def _shape(values: Any) -> list[int]:
    return [len(values), *_shape(values[0])] if isinstance(values, list) else []


def _read_kept(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(episode, statistics) of the lines that `keep_statistics` kept, one at a time."""
    if not path.is_file():
        return
    try:
        with open(path, "rb") as stream:
            for line in stream:
                entry = json.loads(line)
                yield entry["episode_index"], entry["stats"]
    except (OSError, ValueError, KeyError) as error:
        raise DataSetCorrupt(f"{path}: cannot be read: {error}") from error
