"""Where the files of a data set lie, how they are numbered, and that no path leaves the data set."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from penstock.errors import DataSetCorrupt, DataSetError

CODEBASE_VERSION = "v3.0"
INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
SPOOL_DIR = ".spool"

MIB = 1024 * 1024
DATA_FILE_BYTES = 100 * MIB
VIDEO_FILE_BYTES = 200 * MIB
CHUNKS_SIZE = 1000

# LeRobot adds times as float32 and accepts 1e-4 s of difference. Up to here the three roundings stay below that;
# beyond, only an episode that starts its file is exact. See docs of `DataSetWriter.episode`.
LONGEST_SHARED_VIDEO_S = 1000.0

_FIELD = re.compile(r"\{([^{}]*)\}")
_NUMBER_FIELD = re.compile(r"(chunk_index|file_index|episode_index|episode_chunk)(?::0(\d{1,2})d)?\Z")


@dataclass(frozen=True, order=True)
class FilePosition:
    """The number of a file: LeRobot puts `chunks_size` files into each chunk directory."""

    chunk: int
    file: int

    def next(self, chunks_size: int) -> FilePosition:
        if self.file + 1 < chunks_size:
            return FilePosition(self.chunk, self.file + 1)
        return FilePosition(self.chunk + 1, 0)


FIRST_FILE = FilePosition(0, 0)


def fill_template(template: str, *, key: str | None = None, **numbers: int) -> str:
    """A path template of info.json with its fields filled in; `str.format` is not used, it can reach into objects."""

    def replace(match: re.Match[str]) -> str:
        field = match.group(1)
        if field == "video_key" and key is not None:
            return key
        number = _NUMBER_FIELD.match(field)
        if number is None or number.group(1) not in numbers:
            raise DataSetCorrupt(
                f"path template {template!r}: unknown field {{{field}}}", hint=f"LeRobot writes {DATA_PATH!r}"
            )
        return f"{numbers[number.group(1)]:0{int(number.group(2) or 0)}d}"

    filled = _FIELD.sub(replace, template)
    if "{" in filled.replace(key or "", "") or "}" in filled.replace(key or "", ""):
        raise DataSetCorrupt(f"path template {template!r}: unbalanced braces")
    return filled


def path_in(root: Path, relative: str) -> Path:
    """`root/relative`, refused when it is absolute, climbs out with '..', or leaves through a symbolic link."""
    posix = PurePosixPath(relative)
    if posix.is_absolute() or ".." in posix.parts or "\x00" in relative or "\\" in relative or not posix.parts:
        raise DataSetCorrupt(
            f"{root}: the path {relative!r} would leave the data set", hint="refused; see meta/info.json"
        )
    path = root.joinpath(*posix.parts)
    real_root = Path(os.path.realpath(root))
    real = Path(os.path.realpath(path))
    if not any(real.is_relative_to(allowed) for allowed in _allowed_roots(real_root, root)):
        raise DataSetCorrupt(
            f"{path}: a symbolic link leads out of the data set, to {real}", hint="refused; copy the file"
        )
    return path


def _allowed_roots(real_root: Path, root: Path) -> Iterator[Path]:
    yield real_root
    # The Hub's cache keeps every file of repo/snapshots/<revision>/ as a link into repo/blobs/.
    for candidate in (real_root, root.absolute()):
        if candidate.parent.name == "snapshots":
            yield Path(os.path.realpath(candidate.parent.parent / "blobs"))


def fsync_directory(path: Path) -> None:
    """Make the names inside a directory durable."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise DataSetError(f"{path}: cannot open the directory to sync it: {error.strerror}") from error
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise DataSetError(f"{path}: cannot sync the directory: {error.strerror}") from error
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Make the bytes of a file durable."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataSetError(f"{path}: cannot sync the file: {error.strerror}") from error


def write_text_durably(path: Path, text: str, *, fsync: bool) -> None:
    """Write a small file so that a crash leaves the old one or the new one, never a part."""
    temporary = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "w", encoding="utf-8", newline="\n") as stream:
            stream.write(text)
            stream.flush()
            if fsync:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise DataSetError(f"{path}: cannot write: {error.strerror}") from error
    if fsync:
        fsync_directory(path.parent)
