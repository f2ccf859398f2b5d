"""The sink of LeRobot v3.0: which files an episode goes to, and the metadata that makes a directory a data set.

Rows wait in a part of their own until they fill a data file (spool.py); frames go straight into the video file of their
camera, behind those of earlier episodes (videos.py). `penstock.conversion.sink` says what is asked of a sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from penstock.lerobot import layout, tables
from penstock.lerobot.features import Description
from penstock.lerobot.layout import EpisodePlace, FreshNames
from penstock.lerobot.stats import Stats
from penstock.lerobot.write import closing, kept, resume
from penstock.lerobot.write.spool import DataFiles, PartWriter
from penstock.lerobot.write.videos import VideoFiles


@dataclass(frozen=True)
class FinishedEpisode:
    """An episode whose files are whole: where it lies, what it takes, and what a worker output keeps of its frames."""

    place: Mapping[str, Any]
    size_bytes: int
    kept: Mapping[str, Any] | None = None


class LeRobotSink:
    """The files of a LeRobot v3.0 data set. Those of a worker output are never closed: their rows stay in parts."""

    label = "LeRobot v3.0"
    holds_statistics = True  # meta/episodes has those of every episode

    def __init__(
        self, root: Path, description: Description, names: FreshNames, *, is_worker_output: bool = False
    ) -> None:
        self.root = root
        self.description = description
        self.is_worker_output = is_worker_output
        self.names = names
        # Made when the first rows come: loading Arrow then falls into the time that the video files take.
        self.schema: tables.SchemaMaker = cache(lambda: tables.data_schema(description.features))
        self.stored = tables.data_features(description.features)
        most_parts = tables.most_row_groups(len(self.stored))
        self.data = DataFiles(root, description, self.schema, most_parts, names)
        self.videos = {
            feature.key: VideoFiles(feature, description, names, partial(layout.video_path, root, feature.key))
            for feature in description.cameras
        }
        self.unsynced: list[Path] = []  # the parts of episodes that are finished, but not on the disk
        self._found = resume.Survey()

    def begin_episode(self, episode_index: int, rows: int | None) -> LeRobotEpisode:
        """Begin the next episode: its rows in a part, its frames behind those before."""
        for video in self.videos.values():
            video.begin_episode(rows)
        return LeRobotEpisode(self, PartWriter(layout.part_path(self.root, episode_index), self.stored, self.schema))

    def sync(self, *, closing: bool) -> None:
        """Bring the finished episodes to the disk; `closing` ends the video files."""
        for video in self.videos.values():
            if closing:
                video.close()
            else:
                video.sync()
        if self.unsynced:
            parts, self.unsynced = self.unsynced, []
            if self.names.fsync:
                layout.fsync_files(parts)
            # An episode that was aborted may have taken the directory of the parts with it.
            self.names.forget(parts[0].parent)
            self.names.add(parts[0])

    def state(self) -> dict[str, Any]:
        """The tables of the open video files: nothing else of a data set lies in memory."""
        return {"videos": {key: video.state() for key, video in self.videos.items()}}

    def settle(self) -> None:
        """Put the data files that are full into place."""
        self.data.settle()

    def close(
        self,
        records: Iterable[Mapping[str, Any]],
        *,
        tables: Mapping[str, Sequence[str]],
        stats: Mapping[str, Stats],
        episodes: int,
        frames: int,
    ) -> None:
        """Put the last data file into place and write the metadata, info.json last."""
        self.data.finish()
        closing.write_metadata(
            self.root,
            self.description,
            records,
            texts=tables,
            stats=stats,
            info=self.info(episodes=episodes, frames=frames, tasks=len(tables["tasks"])),
            names=self.names,
        )

    def info(self, *, episodes: int, frames: int, tasks: int) -> dict[str, Any]:
        """What info.json says, in LeRobot 0.6.1's order."""
        described = closing.described(self.description, {key: video.info for key, video in self.videos.items()})
        return closing.info(self.description, described, episodes=episodes, frames=frames, tasks=tasks)

    def closed(self) -> None:
        """The table of statistics that was kept aside may go."""
        kept.drop_statistics(self.root)

    def leave(self) -> None:
        """Close the video files as they are."""
        for video in self.videos.values():
            video.leave()

    def survey(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Look at every file that the records name."""
        self._found = resume.survey(self.root, self.description, records, is_worker_output=self.is_worker_output)

    def reopen(self) -> None:
        """Keep the table of episodes aside: it has their statistics."""
        kept.keep_statistics(self.root, self.names)

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Remove what belongs to no committed episode, and go on behind the last one."""
        found = self._found
        resume.clear(self.root, self.description, found, self.names, is_worker_output=self.is_worker_output)
        if state is None or found.last is None:
            return
        for key, video in self.videos.items():
            video.restore(state["videos"][key], found.last.videos[key])
        if not self.is_worker_output:
            self.data.restore(found.parts)

    def grows(self, last: Mapping[str, Any]) -> Iterable[str]:
        """The last video of every camera."""
        place = EpisodePlace.from_json(last, self.root / layout.JOURNAL_PATH)
        for key, span in place.videos.items():
            yield layout.video_path(self.root, key, span.position).relative_to(self.root).as_posix()

    def name_in_copy(self, relative: str) -> str | None:
        """Rows and videos as they are, the table of episodes where its statistics are kept, no other metadata."""
        if relative.startswith(f"{layout.EPISODES_DIR}/"):
            return kept.KEPT_DIR + relative.removeprefix(layout.EPISODES_DIR)
        if relative.startswith(f"{kept.KEPT_DIR}/") and (self.root / layout.EPISODES_DIR).is_dir():
            return None  # of an earlier continuation, which did not come to remove it
        return None if relative in closing.METADATA_PATHS else relative


class LeRobotEpisode:
    """One episode on its way into the files of a `LeRobotSink`."""

    def __init__(self, owner: LeRobotSink, part: PartWriter) -> None:
        self._owner = owner
        self._part = part

    def write_rows(self, columns: Mapping[str, NDArray[Any] | list[Any]]) -> None:
        """One row group of the part."""
        self._part.write(columns)

    def video(self, key: str) -> VideoFiles:
        return self._owner.videos[key]

    def finish(self) -> FinishedEpisode:
        """End the part, and decide into which files rows and frames go."""
        owner = self._owner
        part = self._part.finish()
        frames = None
        if owner.is_worker_output:
            frames = {"videos": {key: video.episode_state() for key, video in owner.videos.items()}}
        spans = {key: video.commit_episode() for key, video in owner.videos.items()}
        data = layout.FIRST_FILE if owner.is_worker_output else owner.data.place(part)
        owner.unsynced.append(part.path)
        size_bytes = part.size_bytes + sum(video.committed_bytes for video in owner.videos.values())
        return FinishedEpisode(EpisodePlace(data, part.size_bytes, spans).to_json(), size_bytes, frames)

    def discard(self) -> None:
        """Delete the rows and cut the videos back."""
        self._part.discard()
        for video in self._owner.videos.values():
            video.abort_episode()

    def leave(self) -> None:
        """Close the part as it is."""
        self._part.leave()
