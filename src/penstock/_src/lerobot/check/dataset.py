"""The doctor of a data set: rows ↔ frames ↔ index ↔ statistics ↔ metadata.

Everything is read once, a row group or a video index at a time; a sample of the images is decoded, or all of them.
Nothing is trusted and nothing is changed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.findings import CheckReport, Findings, Problem
from penstock._src.lerobot import layout
from penstock._src.lerobot.check.rows import check_footers, check_places, check_row_columns, check_rows
from penstock._src.lerobot.check.videos import WARMED_FILES, check_videos, decode_all, warm_episodes
from penstock._src.lerobot.features import ROW_FEATURES
from penstock._src.lerobot.layout import FilePosition
from penstock._src.lerobot.metadata import open_parquet
from penstock._src.lerobot.read.frames import FrameFinder
from penstock._src.lerobot.read.reader import DataFile, DataSet, open_data_set
from penstock._src.system.files import RemotePath, as_path
from penstock.errors import DataSetCorrupt, PenstockError, RemoteError

__all__ = ["CheckReport", "Problem", "check"]

_KNOWN_IN_META = (layout.INFO_PATH, layout.STATS_PATH, layout.TASKS_PATH, layout.SUBTASKS_PATH)
_SAMPLES = 8  # images of a video file that are decoded
# Names beside data/, meta/ and videos/ that belong there: the Hub's, Git's and ours.
_KNOWN_AT_ROOT = {"README.md", ".gitattributes", ".gitignore", ".git", ".cache", "penstock", "LICENSE"}


def check(root: Path | str, *, full: bool = False, samples: int = _SAMPLES) -> CheckReport:
    """Check a LeRobot data set end to end; of v2.x no statistics.

    `samples` images per video file (and per image column) are decoded; `full` decodes all of them. Of v2.x, which
    has a file per episode, only `full` decodes.

    >>> check("datasets/run").is_clean                                                # doctest: +SKIP
    True
    """
    findings = Findings()
    _check(as_path(root), findings, full=full, samples=samples)
    return findings.report()


def doctor(path: Path, findings: Findings, *, full: bool, skew_ns: int) -> None:
    """What `penstock doctor` finds of a data set, whose rows have no clock of their own that could be askew."""
    _check(path, findings, full=full, samples=_SAMPLES)


def _check(folder: Path, findings: Findings, *, full: bool, samples: int) -> None:
    try:
        data = open_data_set(folder)
    except RemoteError:
        raise  # the network or the rights, not the data set
    except PenstockError as error:
        findings.error("info.json", folder / layout.INFO_PATH, error.message, error.hint)
        return
    if data.info.version != layout.CODEBASE_VERSION:
        findings.add(
            "info",
            "version",
            folder / layout.INFO_PATH,
            f"this is a LeRobot {data.info.version} data set ({data.info.total_episodes:,} episodes, "
            f"{data.info.total_frames:,} frames): files, places of rows and numbers of frames are checked"
            f"{', all frames are decoded' if full else ' (--full decodes the frames)'}; statistics are not",
            f"penstock convert {folder} OUT makes {layout.CODEBASE_VERSION} of it, without touching its frames",
        )
        _check_version21(data, findings, full=full)
        return
    _check_version30(data, findings, full=full, samples=samples)


def _reads_all(data: DataSet, full: bool) -> bool:
    """Whether rows and frames are read, too: of a remote data set only where it is asked for."""
    return full or not isinstance(data.root, RemotePath)


def _tell_part(data: DataSet, findings: Findings) -> None:
    message = "a remote data set: metadata, footers of tables and indexes of videos are checked, no row and no frame"
    findings.add("info", "part", data.root, message, "--full reads all rows and decodes all frames")


def _check_version30(data: DataSet, findings: Findings, *, full: bool, samples: int) -> None:
    if not _check_metadata(data, findings):
        return
    _check_info(data, findings)
    _check_episodes(data, findings)
    named = _check_files(data, findings)
    if _reads_all(data, full):
        check_rows(data, findings, full=full, samples=samples)
    else:
        _tell_part(data, findings)
        check_footers(data, findings)
        samples = 0
    check_videos(data, findings, full=full, samples=samples)
    _check_orphans(data, findings, named)
    findings.counted["episodes"] = len(data.episodes)


def _check_metadata(data: DataSet, findings: Findings) -> bool:
    """Read the tables that everything else needs; without them there is nothing to compare."""
    readable = True
    for name in ("episodes", "tasks", "stats", "data_files"):
        try:
            getattr(data, name)
        except RemoteError:
            raise
        except PenstockError as error:
            findings.error(name, data.root, error.message, error.hint)
            readable = False
    return readable


def _check_info(data: DataSet, findings: Findings) -> None:
    info = data.info
    where = data.root / layout.INFO_PATH
    for feature in ROW_FEATURES:
        feature_entry = info.features[feature.key]
        if (feature_entry.dtype, feature_entry.shape) != (feature.dtype, feature.shape):
            findings.error("features", where, f"{feature.key!r} is not declared as {feature.dtype} (1,)")
    _check_totals(data, findings)


def _check_episodes(data: DataSet, findings: Findings) -> None:
    episodes = data.episodes
    where = data.root / "meta/episodes"
    expected_first = np.concatenate(([0], np.cumsum(episodes.length)[:-1])) if len(episodes) else np.empty(0)
    for number in range(len(episodes)):
        if episodes.index[number] != number:
            message = f"row {number} of the table is episode {episodes.index[number]}"
            findings.error("episode order", where, message)
        first, end, length = (int(a[number]) for a in (episodes.first_row, episodes.end_row, episodes.length))
        if length < 1:
            findings.error("empty episode", where, f"episode {number} has {length} rows")
        if end - first != length:
            message = f"episode {number}: length {length}, but rows {first}…{end} are {end - first}"
            findings.error("episode length", where, message)
        if first != int(expected_first[number]):
            findings.error(
                "index gap",
                where,
                f"episode {number} starts at row {first}, the one before ends at {int(expected_first[number])}",
                "LeRobot would pair the rows after it with the wrong frames",
            )
        unknown = [task for task in episodes.tasks[number] if task not in data.tasks]
        if unknown:
            findings.error("tasks", where, f"episode {number} names the unknown task {unknown[0]!r}")


def _check_files(data: DataSet, findings: Findings) -> set[Path]:
    """Every file that the metadata names must be there; returns their paths."""
    episodes = data.episodes
    named: set[Path] = set()
    videos: dict[str, set[Path]] = {}
    try:
        named |= {data.data_path(position) for position in _positions(episodes.data_chunk, episodes.data_file)}
        for key, place in episodes.videos.items():
            videos[key] = {data.video_path(key, position) for position in _positions(place.chunk, place.file)}
            named |= videos[key]
    except PenstockError as error:
        findings.error("paths", data.root, error.message, error.hint)
    for path in sorted(named):
        if path.is_file():
            findings.counted["files"] += 1
            findings.counted["bytes"] += path.stat().st_size
        else:
            camera = next((key for key, paths in videos.items() if path in paths), None)
            hint = data.elsewhere(camera) or "fetch it again"
            findings.error("missing file", path, "named by the episodes table, but not there", hint)
    for key in sorted(set(data.info.video_keys) - set(episodes.videos)):
        findings.error(
            "missing file", data.root, f"info.json declares camera {key!r}, the episodes table names no video of it"
        )
    return named


def _check_orphans(data: DataSet, findings: Findings, named: set[Path]) -> None:
    """Files that no episode names: LeRobot reads stray rows as if they belonged, and stray videos cost space."""
    root, is_versioned = data.root, data.info.metadata_dir is not None
    rows_line_up = sum(file.rows for file in data.data_files) == data.info.total_frames
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        if path.is_dir() or path in named or relative.parts[0] in _KNOWN_AT_ROOT:
            continue
        if relative.parts[0] == "meta":
            if relative.parts[:2] == ("meta", "episodes") and path.suffix == ".parquet":
                continue
            if relative.as_posix() not in _KNOWN_IN_META:
                findings.add("info", "unknown file", path, "not a file of the format; readers ignore it")
        elif relative.parts[0] == "data" and path.suffix == ".parquet" and rows_line_up and not is_versioned:
            message = "no episode starts in this file; LeRobot's aggregation would lose its rows"
            findings.add("info", "continued data file", path, message)
        elif relative.parts[0] in ("data", "videos") and is_versioned and isinstance(root, RemotePath):
            message = "of no version that can be read: it is being written, or its conversion was ended"
            findings.add("info", "unused file", path, message, "the next conversion to this output removes it")
        elif relative.parts[0] in ("data", "videos"):
            message = "an orphan: no episode names this file"
            findings.error("orphan file", path, message, "remove it, or convert again")
        else:
            hint = "left by a writer that was stopped" if relative.parts[0] in ("images", layout.SPOOL_DIR) else None
            findings.add("info", "unknown file", path, "not a file of the format; readers ignore it", hint)


def _positions(chunk: NDArray[np.int64], file: NDArray[np.int64]) -> list[FilePosition]:
    """The different file numbers of a column, in order."""
    pairs = set(zip(chunk.tolist(), file.tolist(), strict=True))
    return [FilePosition(*pair) for pair in sorted(pairs) if pair[0] >= 0]  # -1: the table names none


def _check_totals(data: DataSet, findings: Findings) -> None:
    for name, declared, actual in (
        ("total_episodes", data.info.total_episodes, len(data.episodes)),
        ("total_frames", data.info.total_frames, int(data.episodes.length.sum())),
        ("total_tasks", data.info.total_tasks, len(data.tasks)),
    ):
        if declared != actual:
            findings.error("totals", data.root / layout.INFO_PATH, f"{name} is {declared:,}, meta/ has {actual:,}")


def _check_version21(data: DataSet, findings: Findings, *, full: bool) -> None:
    """Hold every episode's files against the metadata: the places of rows, and frames by the indexes of the videos."""
    try:
        episodes, _ = data.episodes, data.tasks
    except RemoteError:
        raise
    except PenstockError as error:
        findings.error("metadata", data.root, error.message, error.hint)
        return
    _check_totals(data, findings)
    finder = FrameFinder(data)
    columns = [key for key, feature in data.info.features.items() if feature.dtype != "video"]
    reads_all = _reads_all(data, full)
    if not reads_all:
        _tell_part(data, findings)
    for number in range(len(episodes)):
        findings.counted["episodes"] += 1
        if not number % WARMED_FILES:
            warm_episodes(data, range(number, min(number + WARMED_FILES, len(episodes))))
        try:
            _check_episode_rows(data, number, columns, findings, reads_all=reads_all)
        except RemoteError:
            raise
        except PenstockError as error:
            findings.error("data file", f"{data.root}: episode {episodes.index[number]}", error.message, error.hint)
        for key in data.info.video_keys:
            try:
                frames = finder.find(number, key)
                findings.counted["frames"] += frames.count
                if full:
                    decode_all(frames.index, data.info.features[key], findings)
            except RemoteError:
                raise
            except PenstockError as error:
                findings.error("video", f"{data.root}: episode {episodes.index[number]}", error.message, error.hint)


def _check_episode_rows(data: DataSet, number: int, columns: list[str], findings: Findings, *, reads_all: bool) -> None:
    expected = int(data.episodes.length[number])
    for span in data.row_spans(number):
        if not span.path.is_file():
            raise DataSetCorrupt(f"{span.path}: the file is missing", hint=data.elsewhere(None) or "fetch it again")
        with open_parquet(span.path) as parquet:
            data.stored_columns(span.path, parquet, columns)
            check_row_columns(data, span.path, parquet.schema_arrow.names, findings)
            rows = parquet.metadata.num_rows
        findings.counted["rows"] += rows
        if rows != expected:
            message = f"{rows:,} rows, meta/episodes.jsonl says {expected:,}"
            findings.error("episode length", span.path, message, "fetch the episode again")
        elif reads_all:
            check_places(data, DataFile(span.path, span.first_row, rows), findings)
