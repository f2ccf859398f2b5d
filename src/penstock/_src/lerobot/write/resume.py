"""What a run left, killed or finished, brought back to its last commit: nothing is missing, nothing is too much."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock._src.lerobot import layout
from penstock._src.lerobot.features import Description
from penstock._src.lerobot.layout import EpisodePlace, FilePosition, VideoSpan
from penstock._src.lerobot.write.spool import EpisodePart
from penstock._src.system.files import replacing
from penstock.errors import DataSetCorrupt, DataSetError

_HINT = "put the file back, or convert the recordings again into an empty directory"
# An episode that is committed fills at most two files: the one before it, and its own when it is large.
_UNSETTLED_FILES = 2


@dataclass
class ResumeSurvey:
    """What the records of a data set name; every file of it was seen, in the length that was committed."""

    episodes: int = 0
    last: EpisodePlace | None = None
    parts: list[tuple[FilePosition, EpisodePart]] = field(
        default_factory=list
    )  # of the files that may not be in place yet


def survey(
    root: Path,
    description: Description,
    records: Iterable[Mapping[str, Any]],
    *,
    is_worker_output: bool,
    first_chunk: int = 0,
) -> ResumeSurvey:
    """Go through the records and look at every file that they name; changes nothing.

    Files in chunks before `first_chunk` lie elsewhere.
    """
    cameras = {feature.key for feature in description.cameras}
    for relative in ("data", "meta", layout.EPISODES_DIR, layout.SPOOL_DIR, *(f"videos/{key}" for key in cameras)):
        layout.check_directory(root, relative)
    result = ResumeSurvey()
    videos: dict[str, VideoSpan] = {}
    files: deque[tuple[FilePosition, list[EpisodePart]]] = deque()
    for record in records:
        place = EpisodePlace.from_json(record, root / layout.JOURNAL_PATH)
        if set(place.videos) != cameras:
            raise DataSetCorrupt(
                f"{root / layout.JOURNAL_PATH}: episode {record['episode_index']} has the cameras "
                f"{sorted(place.videos)}, the data set has {sorted(cameras)}"
            )
        result.episodes += 1
        result.last = place
        if place.data.chunk < first_chunk:
            continue
        for key, span in place.videos.items():
            before = videos.get(key)
            if before is not None and before.position != span.position:
                # One byte more: a file that has a successor has its index, too.
                require(layout.video_path(root, key, before.position), before.end_bytes + 1)
            videos[key] = span
        part = EpisodePart(layout.part_path(root, record["episode_index"]), record["rows"], place.part_bytes)
        if is_worker_output:
            _require_part(part)
        else:
            if not files or files[-1][0] != place.data:
                files.append((place.data, []))
                if len(files) > _UNSETTLED_FILES:
                    position, parts = files.popleft()
                    path = layout.data_path(root, position)
                    _require_rows(path, sum(_group_rows(path)), sum(each.rows for each in parts))
            files[-1][1].append(part)
    for key, span in videos.items():
        require(layout.video_path(root, key, span.position), span.end_bytes)
    for position, parts in files:
        result.parts += [(position, part) for part in _located(layout.data_path(root, position), parts)]
    return result


def require(path: Path, least_bytes: int, most_bytes: int | None = None) -> None:
    """A file is there as it was committed; nothing is changed where one is not."""
    try:
        size_bytes = path.stat().st_size
    except OSError as error:
        raise DataSetError(f"{path}: missing, {least_bytes:,} bytes were committed", hint=_HINT) from error
    if size_bytes < least_bytes or (most_bytes is not None and size_bytes > most_bytes):
        raise DataSetError(f"{path}: {size_bytes:,} bytes, {least_bytes:,} were committed", hint=_HINT)


def _require_part(part: EpisodePart) -> None:
    require(part.path, part.size_bytes, part.size_bytes)


def _located(path: Path, parts: Sequence[EpisodePart]) -> Iterator[EpisodePart]:
    """Where the rows of a file's episodes lie: the first in the file itself, where it exists, the others in parts."""
    group_rows = _group_rows(path)
    number = 0
    for part in parts:
        first, rows = number, 0
        while number < len(group_rows) and rows < part.rows:
            rows += group_rows[number]
            number += 1
        if rows:
            _require_rows(path, rows, part.rows)
            yield part._replace(path=path, groups=range(first, number))
        else:
            _require_part(part)
            yield part
    _require_rows(path, sum(group_rows), sum(group_rows[:number]))


def _require_rows(path: Path, rows: int, committed: int) -> None:
    if rows != committed:
        raise DataSetError(f"{path}: {rows:,} rows, {committed:,} were committed", hint=_HINT)


def _group_rows(path: Path) -> list[int]:
    if not path.is_file():
        return []
    from penstock._src.lerobot.metadata import open_parquet

    with open_parquet(path) as file:
        return [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]


def free_local_bytes(path: Path) -> None:
    """Give back the disk space of a finished file that lies elsewhere, too; what `survey` looks at stays."""
    with layout.writing(path, "cannot give back its space"), path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        tail_bytes = 0
        if path.suffix == ".parquet":  # the footer, its length and a magic number
            file.seek(size_bytes - 8)
            tail_bytes = min(size_bytes, int.from_bytes(file.read(4), "little") + 8)
        file.seek(size_bytes - tail_bytes)
        with replacing(path, path.with_name(path.name + ".part"), fsync=True) as fresh, fresh.open("wb") as target:
            target.seek(size_bytes - tail_bytes)
            target.write(file.read())
            target.truncate(size_bytes)


def remove_uncommitted(root: Path, description: Description, survey: ResumeSurvey, *, is_worker_output: bool) -> None:
    """Remove what belongs to no committed episode."""
    for _, path in layout.numbered_files(root / layout.EPISODES_DIR, ".parquet"):
        layout.remove(path)
    last, none = survey.last, FilePosition(-1, -1)
    _remove_beyond(root / "data", ".parquet", none if last is None or is_worker_output else last.data)
    for feature in description.cameras:
        kept_video = none if last is None else last.videos[feature.key].position
        _remove_beyond(root / "videos" / feature.key, ".mp4", kept_video)
    if is_worker_output:
        kept = {layout.part_path(root, number).name for number in range(survey.episodes)}
    else:
        kept = {part.path.name for _, part in survey.parts if part.groups is None}
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
