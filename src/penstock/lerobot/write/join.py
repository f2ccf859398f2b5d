"""Joining: episodes of a parcel, written by another process, go into a data set as if they had been written there.

A parcel is a data set that is never closed (`DataSetWriter(…, parcel=True)`). Its rows are replayed flush by flush with
new numbers, its frames are copied sample by sample, and the statistics of its pictures, which were sampled and cannot
be had from the files, are taken from what the parcel kept. The parcel may still be growing: what it has committed does
not change any more.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DataSetCorrupt, DataSetError
from penstock.lerobot import columns, layout, tables
from penstock.lerobot.episodes import EpisodeRecord
from penstock.lerobot.features import Feature
from penstock.lerobot.metadata import open_parquet
from penstock.lerobot.stats import ImageStats
from penstock.lerobot.tasks import renumber, renumbered
from penstock.lerobot.write import snapshot
from penstock.lerobot.write.episode import new_stats
from penstock.lerobot.write.journal import Header, Journal
from penstock.lerobot.write.videos import VideoSink, VideoSpan, table_from
from penstock.media.mp4.writer import SampleTable

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.lerobot.write.writer import DataSetWriter, EpisodeWriter

PIECE_BYTES = 8 * layout.MIB


@dataclass(frozen=True)
class JoinedEpisode:
    """A committed episode of a parcel."""

    root: Path
    header: Header
    record: EpisodeRecord
    # The numbers that the parcel gave to the tasks of this episode.
    task_texts: Mapping[int, str]
    # The tables that its input has, by the numbers of the parcel; none where the rows name texts.
    tables: Mapping[str, Sequence[str]]

    @property
    def rows(self) -> int:
        return self.record.rows

    @property
    def tasks(self) -> tuple[str, ...]:
        return self.record.tasks

    @property
    def note(self) -> Mapping[str, Any] | None:
        """What was given to `commit`."""
        return self.record.note


def episodes_of(parcel_root: Path | str) -> Iterator[JoinedEpisode]:
    """The episodes that a parcel has committed by now, in order."""
    root = Path(parcel_root)
    journal = Journal.read(root)
    if not journal.header.parcel:
        raise DataSetError(f"{root}: this data set was not written as a parcel", hint="DataSetWriter(…, parcel=True)")
    numbers: dict[str, int] = {}
    tables: dict[str, list[str]] = {}
    for entry in journal.records("texts"):
        tables.setdefault(entry["table"], []).extend(entry["texts"])
    for record in journal.episodes():
        texts = {numbers.setdefault(task, len(numbers)): task for task in record.tasks}
        yield JoinedEpisode(root, journal.header, record, texts, tables)


def join_episode(joined: JoinedEpisode, writer: DataSetWriter) -> EpisodeWriter:
    """Replay an episode of a parcel; what comes back is ready to be committed, and gives the same bytes."""
    _check_fits(joined, writer)
    record = joined.record
    if record.parcel is None:
        raise DataSetCorrupt(f"{joined.root}: episode {record.episode_index} lacks what a parcel keeps")
    kept = snapshot.read(joined.root / layout.OWN_DIR, record.parcel)
    task = None if record.names_tasks else record.tasks[0]
    episode = writer.episode(rows=record.announced_rows, task=task)
    try:
        for key, span in record.videos.items():
            _copy_frames(joined.root, key, span, kept["videos"][key], episode.video(key))
        _copy_rows(joined, episode)
        for key, empty in new_stats(joined.header.features).items():
            if isinstance(empty, ImageStats):
                episode.add_image_stats(key, type(empty).from_state(kept["stats"][key]))
        if episode.rows != record.rows:
            raise DataSetCorrupt(f"{joined.root}: episode {record.episode_index}: {episode.rows} of {record.rows} rows")
    except (KeyError, TypeError, ValueError) as error:
        episode.abort()
        raise DataSetCorrupt(
            f"{joined.root}: what the parcel keeps about episode {record.episode_index} cannot be used: {error!r}"
        ) from error
    except BaseException:
        episode.abort()
        raise
    return episode


def _check_fits(joined: JoinedEpisode, writer: DataSetWriter) -> None:
    def shape_of(features: Sequence[Feature]) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(feature.key, feature.dtype, feature.shape) for feature in features]

    mine, theirs = shape_of(writer.features), shape_of(joined.header.features)
    if (writer.fps, mine) != (joined.header.fps, theirs):
        raise DataSetError(
            f"{joined.root}: {joined.header.fps} fps, {theirs} cannot be joined into {writer.root}: "
            f"{writer.fps} fps, {mine}"
        )


def _copy_rows(joined: JoinedEpisode, episode: EpisodeWriter) -> None:
    """Each row group was one flush, and becomes one again."""
    path = layout.part_path(joined.root, joined.record.episode_index)
    stored = [feature for feature in joined.header.features if feature.dtype != "video"]
    numbers = episode.take_tables(joined.tables)
    with open_parquet(path) as file:
        for number in range(file.num_row_groups):
            with tables.arrow_errors(path, f"cannot read row group {number}", DataSetCorrupt):
                table = file.read_row_group(number, use_threads=False)
            where = f"{path}: row group {number}"
            tasks: list[str] | NDArray[np.int64] | None = None
            values = {feature.key: _values(feature, table, where) for feature in stored}
            renumber(stored, values, numbers, where)
            if joined.record.names_tasks:
                of_parcel = columns.to_numpy(table.column("task_index"), (), where)
                if "tasks" in numbers:
                    tasks = renumbered(of_parcel, numbers["tasks"], where)
                else:
                    tasks = [joined.task_texts[index] for index in of_parcel.tolist()]
            episode.write_rows(values, rows=table.num_rows, task=tasks)


def _values(feature: Feature, table: pa.Table, where: str) -> Any:
    column = table.column(feature.key)
    if feature.dtype == "image":
        pictures = (chunk.field("bytes") for chunk in column.chunks)
        return [memoryview(value.as_buffer()) for chunk in pictures for value in chunk]
    if feature.is_text:
        return column.to_pylist()
    return columns.to_numpy(column, feature.shape, f"{where}, {feature.key!r}")


def _copy_frames(root: Path, key: str, span: VideoSpan, kept: Mapping[str, Any], sink: VideoSink) -> None:
    """Copy samples a few MiB at a time; one that several rows show is stored once here, too."""
    path = layout.video_path(root, key, span.position)
    table = table_from(kept, span.end_bytes)
    encoded = kept["pix_fmt"] == ""
    if encoded:
        sink.set_codec(kept["stsd"], kept["info"])
    # Used again for every run: fresh memory costs more than the copy itself.
    buffer = bytearray(max(min(PIECE_BYTES, int(table.sizes.sum())), int(table.sizes.max())))
    with _opened(path) as stream:
        for start, stop, repeated in _runs(table):
            if repeated:
                sink.repeat(stop - start)
                continue
            offsets, sizes = table.offsets[start:stop].tolist(), table.sizes[start:stop].tolist()
            data = memoryview(buffer)[: sum(sizes)]
            _read_into(stream.fileno(), data, offsets[0], path)
            pieces = [data[offset - offsets[0] :][:size] for offset, size in zip(offsets, sizes, strict=True)]
            keys = [bool(flag) for flag in table.keys[start:stop]] if encoded else None
            shifts = table.shifts[start:stop].tolist() if len(table.shifts) else None
            sink.append(pieces, keys, shifts=shifts, checked=True)


def _runs(table: SampleTable) -> Iterator[tuple[int, int, bool]]:
    """Samples that lie side by side and are copied together, or that repeat the one before: (first, end, repeated)."""
    steps = np.diff(table.offsets)
    repeated = [False, *(steps == 0).tolist()]
    neighbours = [True, *(steps == table.sizes[:-1]).tolist()]
    start, held_bytes = 0, 0
    for number, size in enumerate(table.sizes.tolist()):
        apart = repeated[number] != repeated[start] or not (repeated[number] or neighbours[number])
        if number > start and (apart or held_bytes + size > PIECE_BYTES):
            yield start, number, repeated[start]
            start, held_bytes = number, 0
        held_bytes += 0 if repeated[number] else size
    yield start, len(table.sizes), repeated[start]


def _opened(path: Path) -> FileIO:
    try:
        return FileIO(path)
    except OSError as error:
        raise DataSetCorrupt(f"{path}: the frames of the parcel cannot be read: {error.strerror}") from error


def _read_into(descriptor: int, data: memoryview, offset: int, path: Path) -> None:
    done = 0
    while done < len(data):
        count = os.preadv(descriptor, [data[done:]], offset + done)
        if count == 0:
            raise DataSetCorrupt(f"{path}: ends at byte {offset + done:,}, samples up to {offset + len(data):,}")
        done += count
