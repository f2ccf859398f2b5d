"""What a run left, killed or finished, brought back to its last commit: nothing is missing, nothing is too much."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import DataSetCorrupt, DataSetError
from penstock.lerobot import layout
from penstock.lerobot.features import Description
from penstock.lerobot.layout import EpisodePlace, FilePosition, FreshNames, VideoSpan
from penstock.lerobot.metadata import open_parquet
from penstock.lerobot.write.closing import remove_metadata
from penstock.lerobot.write.spool import Part

_SHOWN_FAULTS = 12
# An episode that is committed fills at most two files: the one before it, and its own when it is large.
_UNSETTLED_FILES = 2


@dataclass(frozen=True)
class Rows:
    """What the journal says about the rows of one episode."""

    episode_index: int
    rows: int
    part_bytes: int


@dataclass
class DataFileOf:
    """A data file, and the episodes that were committed to it."""

    position: FilePosition
    episodes: list[Rows] = field(default_factory=list)


@dataclass
class Survey:
    """What the records of a data set name; every file of it was seen, in the length that was committed."""

    episodes: int = 0
    last: EpisodePlace | None = None
    data_files: list[DataFileOf] = field(default_factory=list)
    parts: list[tuple[FilePosition, Part]] = field(default_factory=list)


def survey(
    root: Path, description: Description, records: Iterable[Mapping[str, Any]], *, is_worker_output: bool
) -> Survey:
    """Go through the records and look at every file that they name; changes nothing."""
    videos_of = [f"videos/{feature.key}" for feature in description.cameras]
    for relative in ("data", "meta", layout.EPISODES_DIR, layout.SPOOL_DIR, *videos_of):
        layout.check_directory(root, relative)
    found = Survey()
    faults: list[str] = []
    videos: dict[str, VideoSpan] = {}
    cameras = {feature.key for feature in description.cameras}
    for record in records:
        place = EpisodePlace.from_json(record, root / layout.JOURNAL_PATH)
        if set(place.videos) != cameras:
            raise DataSetCorrupt(
                f"{root / layout.JOURNAL_PATH}: episode {record['episode_index']} has the cameras "
                f"{sorted(place.videos)}, the data set has {sorted(cameras)}"
            )
        rows = Rows(record["episode_index"], record["rows"], place.part_bytes)
        faults += _take_videos(root, videos, place)
        if is_worker_output:
            _part(root, rows, faults)
        else:
            faults += _take_rows(root, found.data_files, place.data, rows)
        found.episodes += 1
        found.last = place
    for key, span in videos.items():
        faults += _video_faults(layout.video_path(root, key, span.position), span.end_bytes)
    for file in found.data_files:
        found.parts += [(file.position, part) for part in _parts(root, file, faults)]
    refuse_faults(root, faults)
    return found


def refuse_faults(root: Path, faults: Sequence[str]) -> None:
    """Name the files that are not as the journal says; nothing is changed where there is one."""
    if faults:
        more = f"\n  and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise DataSetError(
            f"{root}: {len(faults)} files are not as they were committed:\n  "
            + "\n  ".join(faults[:_SHOWN_FAULTS])
            + more,
            hint="put the files back, or convert the recordings again into an empty directory",
        )


def _take_videos(root: Path, videos: dict[str, VideoSpan], place: EpisodePlace) -> Iterator[str]:
    for key, span in place.videos.items():
        before = videos.get(key)
        if before is not None and before.position != span.position:
            # One byte more: a file that has a successor has its index, too.
            yield from _video_faults(layout.video_path(root, key, before.position), before.end_bytes + 1)
        videos[key] = span


def _video_faults(path: Path, least_bytes: int) -> Iterator[str]:
    size_bytes = size_of(path)
    if size_bytes is None:
        yield f"{path}: missing"
    elif size_bytes < least_bytes:
        yield f"{path}: {size_bytes:,} bytes, at least {least_bytes:,} were committed"


def _take_rows(root: Path, files: list[DataFileOf], position: FilePosition, rows_of: Rows) -> Iterator[str]:
    if not files or files[-1].position != position:
        files.append(DataFileOf(position))
        if len(files) > _UNSETTLED_FILES:
            done = files.pop(0)
            path = layout.data_path(root, done.position)
            committed = sum(episode.rows for episode in done.episodes)
            rows = sum(_group_rows(path))
            if rows != committed:
                yield f"{path}: {rows:,} rows, {committed:,} were committed" if rows else f"{path}: missing"
    files[-1].episodes.append(rows_of)


def _parts(root: Path, file: DataFileOf, faults: list[str]) -> list[Part]:
    """Where the rows of a file's episodes lie: the first in the file itself, where it exists, the others in parts."""
    path = layout.data_path(root, file.position)
    group_rows = _group_rows(path)
    parts: list[Part] = []
    number = 0
    for episode in file.episodes:
        first, rows = number, 0
        while number < len(group_rows) and rows < episode.rows:
            rows += group_rows[number]
            number += 1
        if rows == 0:
            part = _part(root, episode, faults)
            parts += [] if part is None else [part]
        elif rows == episode.rows:
            parts.append(Part(path, rows, episode.part_bytes, range(first, number)))
        else:
            faults.append(f"{path}: {rows:,} rows of episode {episode.episode_index} instead of {episode.rows:,}")
            return parts
    if number != len(group_rows):
        faults.append(f"{path}: {sum(group_rows[number:]):,} rows more than were committed")
    return parts


def _part(root: Path, episode: Rows, faults: list[str]) -> Part | None:
    path = layout.part_path(root, episode.episode_index)
    size_bytes = size_of(path)
    if size_bytes == episode.part_bytes:
        return Part(path, episode.rows, episode.part_bytes)
    faults.append(
        f"{path}: missing"
        if size_bytes is None
        else f"{path}: {size_bytes:,} bytes, {episode.part_bytes:,} were committed"
    )
    return None


def _group_rows(path: Path) -> list[int]:
    if not path.is_file():
        return []
    with open_parquet(path) as file:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


def size_of(path: Path) -> int | None:
    """The bytes of a file; None where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def clear(root: Path, description: Description, found: Survey, names: FreshNames, *, is_worker_output: bool) -> None:
    """Remove what belongs to no committed episode, and the metadata, which `close` writes anew."""
    remove_metadata(root, names)
    last, none = found.last, FilePosition(-1, -1)
    _remove_beyond(root / "data", ".parquet", none if last is None or is_worker_output else last.data)
    for feature in description.cameras:
        kept_video = none if last is None else last.videos[feature.key].position
        _remove_beyond(root / "videos" / feature.key, ".mp4", kept_video)
    if is_worker_output:
        kept = {layout.part_path(root, number).name for number in range(found.episodes)}
    else:
        kept = {part.path.name for _, part in found.parts if part.groups is None}
    spool = root / layout.SPOOL_DIR
    if spool.is_dir():
        for name in os.listdir(spool):
            if name not in kept:
                layout.remove(spool / name)


def _remove_beyond(directory: Path, suffix: str, last: FilePosition) -> None:
    for position, path in layout.numbered_files(directory, suffix):
        if position > last:
            layout.remove(path)
            remove_empty(path.parent, above=directory.parent)


def remove_empty(directory: Path, *, above: Path) -> None:
    """Remove a directory, and those around it up to `above`, as far as they are empty."""
    while directory != above and directory.is_dir() and not any(directory.iterdir()):
        with layout.writing(directory, "cannot remove the directory"):
            directory.rmdir()
        directory = directory.parent
