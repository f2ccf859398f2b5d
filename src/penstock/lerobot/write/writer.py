"""Writes a LeRobot v3.0 data set, episode by episode, in memory that does not grow with its length.

    with DataSetWriter(root, fps=30, features=features, robot_type="kuavo") as writer:
        with writer.episode(rows=1800) as episode:
            episode.video("observation.images.cam_h").append(jpegs)
            episode.write_rows({"observation.state": state, "action": action})
            episode.commit("pour the tea")

The directory is a data set once `close` has written meta/info.json, the last of its files. Until then, and again after
it, penstock/journal.jsonl says what was committed: `DataSetWriter.resume` goes on from there, wherever a process was
killed, to the same bytes that an undisturbed one writes.

What a commit does, in this order: the rows (a part of their own), the frames and the state reach the disk; then the
line of the journal; then rows move into their data file, if it is full. What has no line is removed by `resume`.
Small episodes may share these steps (`commit(grouped=True)`): none of the group counts until all of it is on the disk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

from penstock.errors import DataSetCorrupt, DataSetError, PenstockError
from penstock.lerobot import layout, tables
from penstock.lerobot.features import Feature, check_features
from penstock.lerobot.stats import Stats
from penstock.lerobot.tasks import TABLES, TaskTable
from penstock.lerobot.write import packing, snapshot
from penstock.lerobot.write.episode import EpisodeSummary, EpisodeWriter, FeatureStats, bad_values, new_stats
from penstock.lerobot.write.groups import Group, Waiting
from penstock.lerobot.write.journal import Header, Journal
from penstock.lerobot.write.spool import DataFiles, Part, PartWriter
from penstock.lerobot.write.videos import VideoSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.lerobot.episodes import EpisodeRecord
    from penstock.lerobot.layout import FilePosition
    from penstock.lerobot.write.resume import Survey

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
    files reach the disk. `identity`, plain JSON, comes back from the journal of a data set that is resumed. A `parcel`
    is never closed: its episodes are joined into another data set (join.py).
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
        identity: Mapping[str, Any] | None = None,
        parcel: bool = False,
    ) -> None:
        if isinstance(fps, bool) or not isinstance(fps, int) or fps < 1:
            raise DataSetError(f"fps must be a whole number >= 1, got {fps!r}", hint="LeRobot reads whole rates only")
        if min(data_file_bytes, video_file_bytes, chunks_size) < 1:
            raise DataSetError(f"file limits must be >= 1: {data_file_bytes=}, {video_file_bytes=}, {chunks_size=}")
        check_features(features)
        if not features:
            raise DataSetError("a data set needs at least one feature")
        folder = Path(root)
        header = Header(
            fps,
            tuple(features),
            robot_type,
            data_file_bytes,
            video_file_bytes,
            chunks_size,
            parcel=parcel,
            identity=dict(identity or {}),
        )
        layout.make_empty(folder)
        self._begin(folder, Journal.create(folder, header, fsync=fsync), fsync)

    @classmethod
    def resume(cls, root: Path | str, fsync: bool = True) -> DataSetWriter:
        """Go on with a data set: all committed episodes are there, and nothing of one that was not committed.

        A finished data set is opened again, too, so that episodes can be appended; until the next `close` it is not a
        data set any more.
        """
        from penstock.lerobot.write import resume

        folder = Path(root)
        journal = Journal.read(folder)
        found = resume.survey(folder, journal)
        state = None
        if found.last is not None and found.last.state is not None:
            state = snapshot.read(folder / layout.OWN_DIR, found.last.state)
        journal.go_on(fsync=fsync)
        writer = cls.__new__(cls)
        writer._begin(folder, journal, fsync)
        try:
            if found.closed:
                packing.keep_statistics(folder, writer._names)
                journal.append({"type": "reopened", "episodes": found.episodes})
            resume.clear(folder, journal, found, writer._names)
            for name, texts in found.tables.items():
                writer.tables[name].add(texts)
            if found.last is not None:
                writer._restore(found, state or {})
        except BaseException:
            writer.stop()
            raise
        return writer

    def _begin(self, root: Path, journal: Journal, fsync: bool) -> None:
        header = journal.header
        self.root = root
        self.journal = journal
        self.fps = header.fps
        self.features = tuple(header.features)
        self.is_parcel = header.parcel
        self.fsync = fsync
        self.episodes = 0
        self.frames = 0
        self.tables = {name: TaskTable(name, journal) for name in TABLES}
        self.tasks = self.tables["tasks"]
        # Made when the first rows come: loading Arrow then falls into the time that the video files take.
        self.schema: tables.SchemaMaker = cache(lambda: tables.data_schema(self.features))
        self._stats = new_stats(self.features)
        self._names = layout.FreshNames(root, fsync=fsync)
        self._names.add(journal.path)
        shared: dict[str, Any] = {"chunks_size": header.chunks_size, "fsync": fsync, "names": self._names}
        most_parts = tables.most_row_groups(len(tables.data_features(self.features)))
        self._data = DataFiles(root, self.schema, limit_bytes=header.data_file_bytes, most_parts=most_parts, **shared)
        self.sinks = {
            feature.key: VideoSink(root, feature, fps=self.fps, limit_bytes=header.video_file_bytes, **shared)
            for feature in self.features
            if feature.dtype == "video"
        }
        self._episode: EpisodeWriter | None = None
        self._group = Group()
        self._state: snapshot.Saved | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"DataSetWriter({str(self.root)!r}, episodes={self.episodes}, frames={self.frames:,})"

    def episode(self, *, rows: int | None = None, task: str | None = None) -> EpisodeWriter:
        """Begin the next episode; one at a time.

        `rows`, where known, keeps long episodes exact: LeRobot adds times as float32, so an episode that would reach
        beyond 1,000 s of a shared video file gets a file of its own. `task` is what `commit` will say, where known.
        """
        self._check_free()
        if self._group.was_to_be_last:
            self.settle()
        self._group.begin_episode()
        for sink in self.sinks.values():
            sink.begin_episode(rows)
        path = layout.part_path(self.root, self.episodes)
        part = PartWriter(path, tables.data_features(self.features), self.schema)
        self._episode = EpisodeWriter(self, part, new_stats(self.features), task, rows)
        return self._episode

    def place(self, part: Part) -> FilePosition:
        """Called by an episode that commits: the data file in which its rows will lie."""
        return layout.FIRST_FILE if self.is_parcel else self._data.place(part)

    def accept(
        self,
        record: EpisodeRecord,
        stats: Mapping[str, FeatureStats],
        kept: Mapping[str, Any] | None,
        size_bytes: int,
        *,
        last: bool,
        grouped: bool,
    ) -> None:
        """Called by an episode that commits: its files are whole, now they belong to the data set.

        `kept` is what a parcel keeps about the episode. With `last`, the line of the journal is left to `close`; with
        `grouped`, to the commit that fills its group.
        """
        self.tasks.add([task for task in record.tasks if self.tasks.number(task) is None])
        for key, entry in stats.items():
            self._stats[key].merge(cast(Any, entry))
        self.episodes += 1
        self.frames += record.rows
        self._group.add(Waiting(record, kept, last), size_bytes)
        if not (last or (grouped and not self._group.is_full)):
            self._make_durable()

    def note(self, note: Mapping[str, Any]) -> None:
        """Write a durable line into the journal that belongs to no episode; plain JSON."""
        self._check_writable()
        if self._group:
            self.settle()
        self.journal.append({"type": "note", "note": dict(note)})

    def settle(self) -> None:
        """Bring grouped episodes to the disk now, and write their lines."""
        self._check_free()
        try:
            self._make_durable()
        except BaseException:
            self.stop()
            raise

    def close(self) -> DataSetSummary:
        """Put the last files into place and write the metadata, info.json last."""
        from penstock.lerobot.write import closing

        self._check_free()
        if self.is_parcel:
            raise DataSetError(f"{self.root}: a parcel is joined into a data set, never closed", hint="call leave()")
        if self.episodes == 0:
            raise DataSetError(f"{self.root}: no episode was committed", hint="an empty data set cannot be read")
        try:
            self._make_durable(closing=True)
            self._data.finish()
            closing.write_metadata(
                self.root,
                self.journal,
                texts={name: table.texts for name, table in self.tables.items()},
                stats=self.stats(),
                info=self.info(),
                fsync=self.fsync,
                names=self._names,
            )
            self.journal.pack({"type": "closed", "episodes": self.episodes, "frames": self.frames})
            self._names.add(self.journal.path)
            self._names.sync()
            packing.drop_statistics(self.root)
        finally:
            self.stop()
        sizes = closing.bytes_below(self.root)
        return DataSetSummary(self.root, self.episodes, self.frames, len(self.tasks.texts), *sizes)

    def leave(self) -> None:
        """Stop without closing: the open episode is dropped, and everything committed can be resumed."""
        if not self._closed:
            try:
                self._drop_open_episode()
                self.settle()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Stop at once, whatever is wrong: as `leave`, but it never fails. What was committed can be resumed."""
        if self._closed:
            return
        # The error that made the caller give up counts, not the ones that follow from it; `resume` needs no help.
        with contextlib.suppress(PenstockError):
            self._drop_open_episode()
            self.settle()
        self.stop()

    def stop(self) -> None:
        """Close all files as they are: nothing is deleted, nothing more can be written."""
        self._closed = True
        if self._episode is not None:
            self._episode.leave()
        for sink in self.sinks.values():
            sink.leave()
        self.journal.close()

    def stats(self) -> dict[str, Stats]:
        """Statistics of everything committed so far; cameras without a sampled picture have none."""
        whole = {key: entry.to_json() for key, entry in self._stats.items()}
        return {key: entry for key, entry in whole.items() if entry is not None}

    def bad_values(self) -> dict[str, dict[str, dict[str, int]]]:
        """NaN, Inf and overflows committed so far: {feature: {dimension: {"nan": …, "inf": …, "overflow": …}}}."""
        return bad_values(self.features, self._stats)

    def info(self) -> dict[str, Any]:
        """What info.json says, in LeRobot 0.6.1's order."""
        from penstock.lerobot.write.closing import info

        described = [self._described(feature) for feature in self.features]
        tasks = len(self.tasks.texts)
        return info(self.journal.header, described, episodes=self.episodes, frames=self.frames, tasks=tasks)

    def __enter__(self) -> DataSetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abandon()
        elif self.is_parcel:
            self.leave()
        elif not self._closed:
            self.close()

    def _drop_open_episode(self) -> None:
        if self._episode is not None:
            self._episode.abort()

    def _make_durable(self, *, closing: bool = False) -> None:
        """Bring the accepted episodes to the disk, then write their lines; `closing` finishes the videos on the way."""
        waiting = self._group.take()
        # The state first: the tables of the videos would else be held while their index is made of them once more.
        state = self._save(layout.state_name(self.episodes), self._state_tree()) if waiting else None
        for sink in self.sinks.values():
            if closing:
                sink.close()
            elif waiting:
                sink.sync()
        if not waiting:
            return
        records = [replace(each.record, parcel=self._save_for_joining(each)) for each in waiting]
        parts = [layout.part_path(self.root, record.episode_index) for record in records]
        if self.fsync:
            layout.fsync_files(parts)
        # An episode that was aborted may have taken the directory of the parts with it.
        self._names.forget(parts[0].parent)
        self._names.add(parts[0])
        self._names.sync()
        # A line without a state counts only together with the one behind it that has one.
        records[-1] = replace(records[-1], state=state)
        self.journal.append(*(record.to_json() for record in records))
        before, self._state = self._state, state
        self._data.settle()
        if before is not None:
            layout.remove(self.root / layout.OWN_DIR / before.name)

    def _save_for_joining(self, waiting: Waiting) -> snapshot.Saved | None:
        if waiting.kept is None:
            return None
        return self._save(layout.episode_state_name(waiting.record.episode_index), waiting.kept)

    def _save(self, name: str, tree: Mapping[str, Any]) -> snapshot.Saved:
        path = self.root / layout.OWN_DIR / name
        self._names.add(path)
        return snapshot.write(path, tree, fsync=self.fsync)

    def _state_tree(self) -> dict[str, Any]:
        return {
            "stats": {key: entry.to_state() for key, entry in self._stats.items()},
            "videos": {key: sink.state() for key, sink in self.sinks.items()},
        }

    def _restore(self, found: Survey, state: Mapping[str, Any]) -> None:
        """Be as the writer was that committed the last episode."""
        if found.last is None:
            return
        self.episodes, self.frames, self._state = found.episodes, found.frames, found.last.state
        try:
            self._stats = {key: type(entry).from_state(state["stats"][key]) for key, entry in self._stats.items()}
            for key, sink in self.sinks.items():
                sink.restore(state["videos"][key], found.last.videos[key])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise DataSetCorrupt(f"{self.root}: the state of the data set cannot be used: {error!r}") from error
        if not self.is_parcel:
            self._data.restore(found.parts)

    def _described(self, feature: Feature) -> Feature:
        sink = self.sinks.get(feature.key)
        if sink is None or sink.info is None:
            return feature
        return replace(feature, info={**(feature.info or {}), **sink.info})

    def _check_writable(self) -> None:
        if self._closed:
            raise DataSetError(f"{self.root}: the data set is closed already")

    def _check_free(self) -> None:
        self._check_writable()
        if self._episode is not None and self._episode.is_open:
            raise DataSetError(f"{self.root}: episode {self.episodes} is still open", hint="commit or abort it first")
