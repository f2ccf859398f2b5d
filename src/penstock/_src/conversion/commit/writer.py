"""Writes a data set, episode by episode, in memory that does not grow with its length; killed anywhere, it goes on.

    with DataSetWriter(root, fps=30, features=features, robot_type="kuavo") as writer:
        with writer.episode(rows=1800, task="pour the tea") as episode:
            episode.video("observation.images.cam_h").append(jpegs)
            episode.write_rows({"observation.state": state, "action": action})
            episode.commit()

The files are the sink's (`conversion/sink.py`); this is what all outputs have in common. The directory is a data set
once `close` has let the sink write its metadata. Until then, and again after it, penstock/journal.jsonl says what was
committed: `DataSetWriter.resume` goes on from there, wherever a process was killed, to the same bytes that an
undisturbed one writes.

What a commit does, in this order: the rows, the frames and the state reach the disk; then the line of the journal; then
the sink moves files into place. What has no line is removed by `resume`.
Small episodes may share these steps (`commit(grouped=True)`): none of the group counts until all of it is on the disk.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from penstock._src.conversion.commit import snapshot
from penstock._src.conversion.commit.episode import EpisodeWriter
from penstock._src.conversion.commit.journal import OWN_DIR, EpisodeRecord, Header, Journal
from penstock._src.conversion.sink import DEFAULT_OUTPUT, Sink, sink_factory
from penstock._src.lerobot import layout
from penstock._src.lerobot.feature_stats import FeatureStats, bad_values, new_stats
from penstock._src.lerobot.features import Description, Feature
from penstock._src.lerobot.stats import Stats
from penstock._src.lerobot.tasks import TABLES, TaskTable
from penstock._src.system.closing import on_error
from penstock.errors import DataSetCorrupt, DataSetError, PenstockError

__all__ = ["DataSetWriter", "EpisodeWriter"]

# A group shares one round of waiting for the disk, as long as a kill costs no more than a moment's work.
GROUP_EPISODES = 8
GROUP_BYTES = 16 * layout.MIB
GROUP_S = 1.0


@dataclass(eq=False)
class _Group:
    """Episodes that were accepted, in order, and have no line in the journal until all of them are on the disk."""

    records: list[tuple[EpisodeRecord, Mapping[str, Any] | None]] = field(default_factory=list)
    size_bytes: int = 0
    began_s: float = field(default_factory=time.monotonic)
    close_follows: bool = False  # the last one waits for `close`

    @property
    def is_full(self) -> bool:
        """Whether a kill would cost more than a moment's work."""
        return (
            len(self.records) >= GROUP_EPISODES
            or self.size_bytes >= GROUP_BYTES
            or time.monotonic() - self.began_s >= GROUP_S
        )


@dataclass(eq=False)
class _Committed:
    """What the journal of a data set says, gathered while the sink looks at the files."""

    episodes: int = 0
    frames: int = 0
    tables: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in TABLES})
    last: EpisodeRecord | None = None
    is_closed: bool = False

    def read(self, journal: Journal) -> Iterator[Mapping[str, Any]]:
        """The records of all episodes, checked."""
        seen_tasks: set[str] = set()
        for entry in journal.records():
            kind = entry.get("type")
            if kind in ("closed", "reopened"):
                self.is_closed = kind == "closed"
            if kind == "texts":
                self.tables[entry["table"]] += entry["texts"]
                seen_tasks.update(entry["texts"] if entry["table"] == "tasks" else ())
            if kind != "episode":
                continue
            record = EpisodeRecord.from_json(entry)
            if (record.episode_index, record.first_row) != (self.episodes, self.frames) or record.rows < 1:
                raise DataSetCorrupt(
                    f"{journal.path}: episode {record.episode_index} (row {record.first_row:,}, {record.rows:,} rows) "
                    f"follows episode {self.episodes - 1}, which ends at row {self.frames:,}"
                )
            for task in record.tasks:
                if task not in seen_tasks:
                    seen_tasks.add(task)
                    self.tables["tasks"].append(task)
            self.episodes += 1
            self.frames += record.rows
            self.last = record
            yield entry


class DataSetWriter:
    """A data set being written into the directory `root`, which must be empty or absent.

    `output` names the sink; `limits` are the sizes that a `Description` has. `fsync=False` leaves it to the system when
    files reach the disk. `identity`, plain JSON, comes back from the journal of a data set that is resumed. A worker
    output is never closed: its episodes are joined into another data set (join.py). `chunks`: where files are numbered,
    by sinks that can (`conversion/sink.py`).
    """

    def __init__(
        self,
        root: Path | str,
        *,
        fps: int,
        features: Sequence[Feature],
        robot_type: str | None = None,
        output: str = DEFAULT_OUTPUT,
        fsync: bool = True,
        identity: Mapping[str, Any] | None = None,
        is_worker_output: bool = False,
        chunks: layout.FileChunks | None = None,
        **limits: int,
    ) -> None:
        folder = Path(root)
        description = Description(fps, tuple(features), robot_type, **limits)
        header = Header(description, dict(identity or {}), output, is_worker_output)
        names = layout.UnsyncedNames(folder, fsync=fsync)
        sink = _open_sink(folder, header, names, chunks)
        layout.make_empty(folder)
        self._begin(folder, Journal.create(folder, header, fsync=fsync), sink, names)

    @classmethod
    def resume(cls, root: Path | str, fsync: bool = True, chunks: layout.FileChunks | None = None) -> DataSetWriter:
        """Go on with a data set: all committed episodes are there, and nothing of one that was not committed.

        A finished data set is opened again, too, so that episodes can be appended; until the next `close` it is not a
        data set any more.
        """
        folder = Path(root)
        journal = Journal.read(folder)
        names = layout.UnsyncedNames(folder, fsync=fsync)
        sink = _open_sink(folder, journal.header, names, chunks)
        layout.check_directory(folder, OWN_DIR)
        committed = _Committed()
        sink.survey(committed.read(journal))
        state: Mapping[str, Any] | None = None
        if committed.last is not None:
            state = {} if committed.last.state is None else snapshot.read(folder / OWN_DIR, committed.last.state)
        journal.open_for_append(fsync=fsync)
        writer = cls.__new__(cls)
        writer._begin(folder, journal, sink, names)
        with on_error(writer.stop):
            writer._restore_state(committed, state)
        return writer

    def _begin(self, root: Path, journal: Journal, sink: Sink, names: layout.UnsyncedNames) -> None:
        self.root = root
        self.journal = journal
        self.sink = sink
        self.description = journal.header.description
        self.fps = self.description.fps
        self.features = self.description.features
        self.is_worker_output = journal.header.is_worker_output
        self.episodes = 0
        self.frames = 0
        self.tables = {name: TaskTable(name, self._add_texts) for name in TABLES}
        self.tasks = self.tables["tasks"]
        self._stats = new_stats(self.features)
        self._names = names
        self._names.add(journal.path)
        self._episode: EpisodeWriter | None = None
        self._group = _Group()
        self._state: snapshot.SavedState | None = None
        self._closed = False
        self.on_committed: Callable[[Mapping[str, Any]], None] | None = None  # takes the record of the last episode

    def _restore_state(self, committed: _Committed, state: Mapping[str, Any] | None) -> None:
        """Be as the writer was that committed the last episode."""
        if committed.is_closed:
            self.sink.reopen()
            self.journal.append({"type": "reopened", "episodes": committed.episodes})
        self._state = None if committed.last is None else committed.last.state
        for path in snapshot.state_files(self.root / OWN_DIR):
            of_episode = self.is_worker_output and path.name < snapshot.episode_state_name(committed.episodes)
            if not of_episode and (self._state is None or path.name != self._state.name):
                layout.remove(path)
        for name, texts in committed.tables.items():
            self.tables[name].add(texts)
        self.episodes, self.frames = committed.episodes, committed.frames
        if state is not None:
            self._stats = {key: type(entry).from_state(state["stats"][key]) for key, entry in self._stats.items()}
        self.sink.restore(state)

    def episode(self, *, rows: int | None = None, task: str | None = None) -> EpisodeWriter:
        """Begin the next episode; one at a time. `task` is left out where the rows name theirs.

        `rows`, where known, keeps long episodes exact: LeRobot adds times as float32, so an episode that would reach
        beyond 1,000 s of a shared video file gets a file of its own.
        """
        self._check_free()
        if self._group.close_follows:
            self.settle()
        if not self._group.records:
            self._group = _Group()
        self._episode = EpisodeWriter(self, self.sink.begin_episode(self.episodes, rows), task, rows)
        return self._episode

    def begin_group(self, number: int | None) -> None:
        """The episodes that follow belong to this group of inputs: a sink whose files hold several begins new ones."""
        if number is not None and hasattr(self.sink, "begin_group"):
            self.sink.begin_group(number)

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

        `kept` is what a worker output keeps about the episode. With `last`, the line of the journal is left to `close`;
        with `grouped`, to the commit that fills its group.
        """
        self.tasks.add([task for task in record.tasks if self.tasks.number(task) is None])
        for key, entry in stats.items():
            self._stats[key].merge(cast(Any, entry))
        self.episodes += 1
        self.frames += record.rows
        self._group.records.append((record, kept))
        self._group.size_bytes += size_bytes
        self._group.close_follows = last
        if not (last or (grouped and not self._group.is_full)):
            self._make_durable()

    def note(self, note: Mapping[str, Any]) -> None:
        """Write a durable line into the journal that belongs to no episode; plain JSON."""
        self._check_writable()
        if self._group.records:
            self.settle()
        self.journal.append({"type": "note", "note": dict(note)})

    def settle(self) -> None:
        """Bring grouped episodes to the disk now, and write their lines."""
        self._check_free()
        with on_error(self.stop):
            self._make_durable()

    def close(self) -> None:
        """Put the last files into place, and let the sink write the metadata."""
        self._check_free()
        if self.is_worker_output:
            raise DataSetError(f"{self.root}: a worker output is joined, never closed", hint="call leave()")
        if self.episodes == 0:
            raise DataSetError(f"{self.root}: no episode was committed", hint="an empty data set cannot be read")
        try:
            self._make_durable(closing=True)
            self.sink.close(
                self.journal.records("episode"),
                tables={name: table.texts for name, table in self.tables.items()},
                stats=self.stats(),
                episodes=self.episodes,
                frames=self.frames,
            )
            closed = {"type": "closed", "episodes": self.episodes, "frames": self.frames}
            self.journal.pack(closed, with_statistics=not self.sink.holds_statistics)
            self._names.add(self.journal.path)
            self._names.sync()
            self.sink.closed()
        finally:
            self.stop()

    def finish_files(self) -> None:
        """End a worker output whose files others take as they are: all of them are whole and on the disk."""
        self._check_free()
        try:
            self._make_durable(closing=True)
            self._names.sync()
        finally:
            self.stop()

    def leave(self) -> None:
        """Stop without closing: the open episode is dropped, and everything committed can be resumed."""
        if self._closed:
            return
        try:
            if self._episode is not None:
                self._episode.abort()
            self.settle()
        finally:
            self.stop()

    def abandon(self) -> None:
        """As `leave`, after an error: the ones that follow from it do not count, and `resume` needs no help."""
        with contextlib.suppress(PenstockError):
            self.leave()

    def stop(self) -> None:
        """Close all files as they are: nothing is deleted, nothing more can be written."""
        self._closed = True
        if self._episode is not None:
            self._episode.leave()
        self.sink.leave()
        self.journal.close()

    def stats(self) -> dict[str, Stats]:
        """Statistics of everything committed so far; cameras without a sampled image have none."""
        whole = {key: entry.to_json() for key, entry in self._stats.items()}
        return {key: entry for key, entry in whole.items() if entry is not None}

    def bad_values(self) -> dict[str, dict[str, dict[str, int]]]:
        """NaN, Inf and overflows committed so far: {feature: {dimension: {"nan": …, "inf": …, "overflow": …}}}."""
        return bad_values(self.features, self._stats)

    def __enter__(self) -> DataSetWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abandon()
        elif self.is_worker_output:
            self.leave()
        elif not self._closed:
            self.close()

    def _add_texts(self, table: str, texts: Sequence[str]) -> None:
        """A table that is taken whole is in the journal before the rows that use it."""
        self.journal.append({"type": "texts", "table": table, "texts": list(texts)})

    def _make_durable(self, *, closing: bool = False) -> None:
        """Bring the accepted episodes to the disk, then write their lines; `closing` ends all files on the way."""
        waiting, self._group = self._group.records, _Group()
        state: snapshot.SavedState | None = None
        if waiting:
            # The state first: the tables of the videos would else be held while their index is made of them once more.
            stats = {key: entry.to_state() for key, entry in self._stats.items()}
            state = self._save(snapshot.state_name(self.episodes), {"stats": stats, **self.sink.state()})
        if waiting or closing:
            self.sink.sync(closing=closing)
        if waiting:
            records = [record._replace(kept=self._save_kept(record, kept)) for record, kept in waiting]
            self._names.sync()
            # A line without a state counts only together with the one behind it that has one.
            records[-1] = records[-1]._replace(state=state)
            self.journal.append(*(record.to_json() for record in records))
            before, self._state = self._state, state
            self.sink.settle()
            if before is not None:
                layout.remove(self.root / OWN_DIR / before.name)
            if self.on_committed is not None:
                self.on_committed(records[-1].to_json())

    def _save_kept(self, record: EpisodeRecord, kept: Mapping[str, Any] | None) -> snapshot.SavedState | None:
        return None if kept is None else self._save(snapshot.episode_state_name(record.episode_index), kept)

    def _save(self, name: str, tree: Mapping[str, Any]) -> snapshot.SavedState:
        path = self.root / OWN_DIR / name
        self._names.add(path)
        return snapshot.write(path, tree, fsync=self._names.fsync)

    def _check_writable(self) -> None:
        if self._closed:
            raise DataSetError(f"{self.root}: the data set is closed already")

    def _check_free(self) -> None:
        self._check_writable()
        if self._episode is not None and self._episode.is_open:
            raise DataSetError(f"{self.root}: episode {self.episodes} is still open", hint="commit or abort it first")


def _open_sink(root: Path, header: Header, names: layout.UnsyncedNames, chunks: layout.FileChunks | None) -> Sink:
    if header.is_worker_output:  # whatever the output, workers write what a join can replay
        from penstock._src.lerobot.write.sink import LeRobotSink

        return LeRobotSink(root, header.description, names, is_worker_output=True)
    sink = sink_factory(header.output)(root, header.description, names)
    if chunks is not None:
        cast(Any, sink).number_from(chunks)
    return sink
