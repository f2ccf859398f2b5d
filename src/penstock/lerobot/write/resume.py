"""What a run left, killed or finished, brought back to its last commit: nothing is missing, nothing is too much."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import DataSetCorrupt, DataSetError
from penstock.lerobot import layout
from penstock.lerobot.episodes import EpisodeRecord
from penstock.lerobot.layout import FilePosition, FreshNames
from penstock.lerobot.metadata import open_parquet
from penstock.lerobot.tasks import TABLES
from penstock.lerobot.write import snapshot
from penstock.lerobot.write.closing import remove_metadata
from penstock.lerobot.write.journal import Journal
from penstock.lerobot.write.spool import Part
from penstock.lerobot.write.videos import VideoSpan

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
    """What the journal of a data set names; every file of it was seen, in the length that was committed."""

    episodes: int = 0
    frames: int = 0
    tables: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in TABLES})
    last: EpisodeRecord | None = None
    data_files: list[DataFileOf] = field(default_factory=list)
    parts: list[tuple[FilePosition, Part]] = field(default_factory=list)
    closed: bool = False


def survey(root: Path, journal: Journal) -> Survey:
    """Go through the journal and look at every file that it names; changes nothing."""
    _check_directories(root, journal)
    found = Survey()
    faults: list[str] = []
    seen_tasks: set[str] = set()
    videos: dict[str, VideoSpan] = {}
    for entry in journal.records():
        kind = entry.get("type")
        if kind in ("closed", "reopened"):
            found.closed = kind == "closed"
        if kind == "texts":
            found.tables[entry["table"]] += entry["texts"]
            seen_tasks.update(entry["texts"] if entry["table"] == "tasks" else ())
        if kind != "episode":
            continue
        record = EpisodeRecord.from_json(entry, str(journal.path))
        _check_order(found, record, journal)
        for task in record.tasks:
            if task not in seen_tasks:
                seen_tasks.add(task)
                found.tables["tasks"].append(task)
        faults += _take_videos(root, videos, record)
        if journal.header.parcel:
            _part(root, _rows_of(record), faults)
        else:
            faults += _take_rows(root, found.data_files, record)
        found.episodes += 1
        found.frames += record.rows
        found.last = record
    for key, span in videos.items():
        faults += _video_faults(layout.video_path(root, key, span.position), span.end_bytes)
    for file in found.data_files:
        found.parts += [(file.position, part) for part in _parts(root, file, faults)]
    if faults:
        more = f"\n  and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise DataSetError(
            f"{root}: {len(faults)} files are not as they were committed:\n  "
            + "\n  ".join(faults[:_SHOWN_FAULTS])
            + more,
            hint="put the files back, or convert the recordings again into an empty directory",
        )
    return found


def _check_directories(root: Path, journal: Journal) -> None:
    """Files are removed and changed in these: no link may lead to the files of others."""
    videos = [f"videos/{feature.key}" for feature in journal.header.features if feature.dtype == "video"]
    for relative in ("data", "meta", layout.EPISODES_DIR, layout.OWN_DIR, layout.SPOOL_DIR, *videos):
        path = layout.path_in(root, relative)
        if path.is_symlink():
            raise DataSetCorrupt(
                f"{path}: a symbolic link instead of a directory", hint="put the directory itself in its place"
            )


def _check_order(found: Survey, record: EpisodeRecord, journal: Journal) -> None:
    keys = {feature.key for feature in journal.header.features if feature.dtype == "video"}
    in_order = (record.episode_index, record.first_row) == (found.episodes, found.frames) and record.rows > 0
    if not in_order or set(record.videos) != keys:
        raise DataSetCorrupt(
            f"{journal.path}: episode {record.episode_index} (row {record.first_row:,}, {record.rows:,} rows, cameras "
            f"{sorted(record.videos)}) follows episode {found.episodes - 1}, which ends at row {found.frames:,}"
        )


def _rows_of(record: EpisodeRecord) -> Rows:
    return Rows(record.episode_index, record.rows, record.part_bytes)


def _take_videos(root: Path, videos: dict[str, VideoSpan], record: EpisodeRecord) -> Iterator[str]:
    for key, span in record.videos.items():
        before = videos.get(key)
        if before is not None and before.position != span.position:
            # One byte more: a file that has a successor has its index, too.
            yield from _video_faults(layout.video_path(root, key, before.position), before.end_bytes + 1)
        videos[key] = span


def _video_faults(path: Path, least_bytes: int) -> Iterator[str]:
    size_bytes = _size(path)
    if size_bytes is None:
        yield f"{path}: missing"
    elif size_bytes < least_bytes:
        yield f"{path}: {size_bytes:,} bytes, at least {least_bytes:,} were committed"


def _take_rows(root: Path, files: list[DataFileOf], record: EpisodeRecord) -> Iterator[str]:
    if not files or files[-1].position != record.data:
        files.append(DataFileOf(record.data))
        if len(files) > _UNSETTLED_FILES:
            done = files.pop(0)
            path = layout.data_path(root, done.position)
            committed = sum(episode.rows for episode in done.episodes)
            rows = sum(_group_rows(path))
            if rows != committed:
                yield f"{path}: {rows:,} rows, {committed:,} were committed" if rows else f"{path}: missing"
    files[-1].episodes.append(_rows_of(record))


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
    size_bytes = _size(path)
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


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def clear(root: Path, journal: Journal, found: Survey, names: FreshNames) -> None:
    """Remove what belongs to no committed episode, and the metadata, which `close` writes anew."""
    remove_metadata(root, names)
    last = found.last
    kept_data = FilePosition(-1, -1) if last is None or journal.header.parcel else last.data
    _remove_beyond(root / "data", ".parquet", kept_data)
    for feature in journal.header.features:
        if feature.dtype == "video":
            kept_video = FilePosition(-1, -1) if last is None else last.videos[feature.key].position
            _remove_beyond(root / "videos" / feature.key, ".mp4", kept_video)
    _clear_spool(root, journal, found)
    own = root / layout.OWN_DIR
    for path in snapshot.state_files(own):
        of_episode = journal.header.parcel and path.name < layout.episode_state_name(found.episodes)
        if not of_episode and (last is None or last.state is None or path.name != last.state.name):
            layout.remove(path)


def _clear_spool(root: Path, journal: Journal, found: Survey) -> None:
    if journal.header.parcel:
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
            _remove_empty(path.parent, above=directory.parent)


def _remove_empty(directory: Path, *, above: Path) -> None:
    while directory != above and directory.is_dir() and not any(directory.iterdir()):
        with layout.writing(directory, "cannot remove the directory"):
            directory.rmdir()
        directory = directory.parent
