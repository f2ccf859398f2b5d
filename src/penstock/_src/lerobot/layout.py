"""Where the files of a data set lie, how they are numbered, where an episode lies in them; no path leaves the set."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from penstock._src.system.files import begin_write_back, fsync_path, replacing, write_file
from penstock.errors import DataSetCorrupt, OutputExists, OutputFailed

CODEBASE_VERSION = "v3.0"
INFO_PATH = "meta/info.json"
STATS_PATH = "meta/stats.json"
TASKS_PATH = "meta/tasks.parquet"
SUBTASKS_PATH = "meta/subtasks.parquet"
EPISODES_DIR = "meta/episodes"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
SPOOL_DIR = ".spool"
OWN_DIR = "penstock"  # what penstock keeps beside the data set: the journal, the state, the report
JOURNAL_PATH = f"{OWN_DIR}/journal.jsonl"
METADATA_KEY = "penstock_metadata"  # in info.json of a bucket: the directory with the metadata of this version
VERSIONS_DIR = f"{OWN_DIR}/versions"  # in a bucket: the metadata of each version of a data set
PARTIAL_SUFFIX, OLD_SUFFIX = ".penstock-partial", ".penstock-old"  # beside a data set: being built, being replaced
SHARDS_SUFFIX = ".penstock-shards"  # beside a data set: what other machines converted for it

MIB = 1024 * 1024

# LeRobot adds times as float32 and accepts 1e-4 s of difference. Up to here the three roundings stay below that;
# beyond, only an episode that starts its file is exact. See docs of `DataSetWriter.episode`.
LONGEST_SHARED_VIDEO_S = 1000.0

_CHUNK_NAME = re.compile(r"chunk-(\d{3,9})\Z")
_FILE_NAME = re.compile(r"file-(\d{3,9})\Z")
_FIELD = re.compile(r"\{([^{}]*)\}")
_NUMBER_FIELD = re.compile(r"(chunk_index|file_index|episode_index|episode_chunk)(?::0(\d{1,2})d)?\Z")


def _following(chunk: int) -> int:
    return chunk + 1


@dataclass(frozen=True)
class FileChunks:
    """The chunks in which a writer numbers its files: the first, and the one after a full one.

    Files in chunks before `first` were written by others: they may lie elsewhere, and never change.
    """

    first: int = 0
    after: Callable[[int], int] = _following


ALL_CHUNKS = FileChunks()


class FilePosition(NamedTuple):
    """The number of a file: LeRobot puts `chunks_size` files into each chunk directory."""

    chunk: int
    file: int

    def next(self, chunks_size: int, chunks: FileChunks = ALL_CHUNKS) -> FilePosition:
        if self.file + 1 < chunks_size:
            return FilePosition(self.chunk, self.file + 1)
        return FilePosition(chunks.after(self.chunk), 0)


FIRST_FILE = FilePosition(0, 0)


def data_path(root: Path, position: FilePosition) -> Path:
    """Where a data file lies in a data set that penstock writes."""
    return root / fill_template(DATA_PATH, chunk_index=position.chunk, file_index=position.file)


def video_path(root: Path, key: str, position: FilePosition) -> Path:
    """Where a video of one camera lies in a data set that penstock writes."""
    return root / fill_template(VIDEO_PATH, key=key, chunk_index=position.chunk, file_index=position.file)


def part_path(root: Path, episode_index: int) -> Path:
    """Where the rows of one episode wait for their data file."""
    return root / SPOOL_DIR / f"episode-{episode_index:06d}.parquet"


def numbered_files(directory: Path, suffix: str) -> Iterator[tuple[FilePosition, Path]]:
    """The files chunk-CCC/file-FFF below a directory, in order; other names are ignored."""
    for path in sorted(directory.glob(f"chunk-*/file-*{suffix}")):
        chunk, file = _CHUNK_NAME.match(path.parent.name), _FILE_NAME.match(path.stem)
        if chunk is not None and file is not None and not path.parent.is_symlink():
            yield FilePosition(int(chunk[1]), int(file[1])), path


@lru_cache(maxsize=4096)
def fill_template(template: str, *, key: str | None = None, **numbers: int) -> str:
    """A path template of info.json with its fields filled in.

    Thousands of episodes lie in one file, so the last answers are kept.
    """
    return path_pattern(template, tuple(numbers), key) % numbers


def path_pattern(template: str, fields: Sequence[str], key: str | None = None) -> str:
    """A path template of info.json as a pattern for `%` and a mapping of numbers: made once, filled for many files.

    `str.format` is not used, it can reach into objects.
    """

    def replace(match: re.Match[str]) -> str:
        field = match.group(1)
        if field == "video_key" and key is not None:
            return key.replace("%", "%%")
        number = _NUMBER_FIELD.match(field)
        if number is None or number.group(1) not in fields:
            raise DataSetCorrupt(
                f"path template {template!r}: unknown field {{{field}}}", hint=f"LeRobot writes {DATA_PATH!r}"
            )
        return f"%({number.group(1)})0{int(number.group(2) or 0)}d"

    left = _FIELD.sub("", template)
    if "{" in left or "}" in left:
        raise DataSetCorrupt(f"path template {template!r}: unbalanced braces")
    return _FIELD.sub(replace, template.replace("%", "%%"))


def path_in(root: Path, relative: str) -> Path:
    """`root/relative`, refused when it is absolute, climbs out with '..', or leaves through a symbolic link."""
    posix = PurePosixPath(relative)
    if posix.is_absolute() or ".." in posix.parts or "\x00" in relative or "\\" in relative or not posix.parts:
        raise DataSetCorrupt(
            f"{root}: the path {relative!r} would leave the data set",
            hint="refused: files are read from the data set's own folder only; correct data_path or video_path in "
            "meta/info.json",
        )
    path = root.joinpath(*posix.parts)
    real, real_root = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    # The Hub's cache keeps every file of repo/snapshots/<revision>/ as a link into repo/blobs/.
    snapshots = [each.parent for each in (real_root, root.absolute()) if each.parent.name == "snapshots"]
    blobs = [Path(os.path.realpath(each.parent / "blobs")) for each in snapshots]
    if not any(real.is_relative_to(allowed) for allowed in (real_root, *blobs)):
        raise DataSetCorrupt(
            f"{path}: a symbolic link leads out of the data set, to {real}", hint="refused; copy the file"
        )
    return path


def check_directory(root: Path, relative: str) -> None:
    """Refuse a link where files will be removed and changed: it could lead to the files of others."""
    path = path_in(root, relative)
    if path.is_symlink():
        raise DataSetCorrupt(
            f"{path}: a symbolic link instead of a directory", hint="put the directory itself in its place"
        )


@contextlib.contextmanager
def writing(path: Path | str, doing: str) -> Iterator[None]:
    """Turn what the system raises while a file is written into our error, with the file's name."""
    try:
        yield
    except OSError as error:
        raise OutputFailed(path, doing, error) from error


def make_empty(root: Path) -> None:
    """Make a directory; refused where it is there already and holds something."""
    with writing(root, "cannot make the directory"):
        root.mkdir(parents=True, exist_ok=True)
        is_occupied = any(root.iterdir())
    if is_occupied:
        raise OutputExists(f"{root}: the directory is not empty", hint="choose another directory")


def fsync_file(path: Path) -> None:
    with writing(path, "cannot sync the file"):
        fsync_path(path)


def fsync_files(paths: Sequence[Path]) -> None:
    """Make the bytes of several files durable: all begin to be written before any is waited for."""
    with contextlib.ExitStack() as held:
        descriptors = []
        for path in paths:
            with writing(path, "cannot sync the file"):
                descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            held.callback(os.close, descriptors[-1])
            begin_write_back(descriptors[-1])
        for path, descriptor in zip(paths, descriptors, strict=True):
            with writing(path, "cannot sync the file"):
                os.fsync(descriptor)


class UnsyncedNames:
    """The directories below a data set in which names are new since the last `sync`: each is synced once.

    A new directory is itself a name in the one above it. Where nothing is to be synced, nothing is kept.
    """

    def __init__(self, root: Path, *, fsync: bool) -> None:
        self.fsync = fsync
        self._root = root
        self._known: set[Path] = set()
        self._unsynced: set[Path] = set()

    def add(self, path: Path) -> None:
        """A file was made, renamed or replaced at this path."""
        if not self.fsync:
            return
        directory = path.parent
        self._unsynced.add(directory)
        while directory not in self._known and directory != self._root:
            self._known.add(directory)
            directory = directory.parent
            self._unsynced.add(directory)

    def forget(self, directory: Path) -> None:
        """A directory was removed."""
        self._known.discard(directory)
        self._unsynced.discard(directory)

    def sync(self) -> None:
        for directory in sorted(self._unsynced):
            with writing(directory, "cannot sync the directory"):
                fsync_path(directory)
        self._unsynced.clear()


def own_copy(path: Path) -> None:
    """Make a file that is about to be changed in place ours alone: other names of it keep what they have."""
    with writing(path, "cannot copy a file that has other names, too"):
        if os.stat(path).st_nlink == 1 and not path.is_symlink():
            return
        with replacing(path, path.with_name(path.name + ".part"), fsync=True) as temporary:
            shutil.copyfile(path, temporary)


def take_over(source: Path, target: Path) -> None:
    """Give a finished file a second name, so that no byte is copied; where the system has no such names, move it."""
    with writing(target, "cannot take over the file"):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not source.exists() and target.exists():
            return  # moved before the process ended
        target.unlink(missing_ok=True)
        try:
            os.link(source, target)
        except OSError:
            os.replace(source, target)


def remove(path: Path) -> None:
    with writing(path, "cannot remove the file"), contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def write_text_durably(path: Path, text: str, *, fsync: bool) -> None:
    """Write a small file so that a crash leaves the old one or the new one, never a part; its name is not synced."""
    with writing(path, "cannot write"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, path.with_name(path.name + ".part")) as temporary:
            write_file(temporary, [text.encode()], fsync=fsync)


class VideoSpan(NamedTuple):
    """Where the frames of one episode lie in the files of one camera; the last of them ends at `end_bytes`."""

    position: FilePosition
    first_frame: int
    frames: int
    end_bytes: int

    def to_json(self) -> dict[str, int]:
        plain = {name: value for name, value in self._asdict().items() if name != "position"}
        return {**self.position._asdict(), **plain}

    @classmethod
    def from_json(cls, entry: Mapping[str, int]) -> VideoSpan:
        return cls(
            FilePosition(entry["chunk"], entry["file"]), entry["first_frame"], entry["frames"], entry["end_bytes"]
        )


class EpisodePlace(NamedTuple):
    """The data file in which the rows of an episode lie or will lie, the size of their part, and their frames."""

    data: FilePosition
    part_bytes: int
    videos: Mapping[str, VideoSpan]

    def to_json(self) -> dict[str, Any]:
        return {
            "data": [self.data.chunk, self.data.file],
            "part_bytes": self.part_bytes,
            "videos": {key: span.to_json() for key, span in self.videos.items()},
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any], where: object) -> EpisodePlace:
        try:
            videos = {key: VideoSpan.from_json(span) for key, span in record["videos"].items()}
            return cls(FilePosition(*record["data"]), record["part_bytes"], videos)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataSetCorrupt(f"{where}: a record of an episode cannot be used: {error!r}") from error
