"""The doctor of a data set: rows ↔ frames ↔ index ↔ statistics ↔ metadata.

Everything is read once, a row group or a video index at a time; a sample of the images is decoded, or all of them.
Nothing is trusted and nothing is changed.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from penstock._src.formats.findings import CheckReport, Findings, Problem
from penstock._src.lerobot import layout
from penstock._src.lerobot.check.rows import as_findings, check_rows
from penstock._src.lerobot.check.videos import check_videos
from penstock._src.lerobot.features import ROW_FEATURES
from penstock._src.lerobot.read.reader import DataSet, open_data_set
from penstock._src.system.files import RemotePath, as_path

__all__ = ["CheckReport", "Problem", "check"]

_SAMPLES = 8  # images of a video file that are decoded


def check(root: Path | str, *, full: bool = False, samples: int = _SAMPLES) -> CheckReport:
    """Check a LeRobot data set end to end; of v2.x no statistics.

    `samples` images per image column, and per video file of v3.0, are decoded; `full` decodes all of them.

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
    data = None
    with as_findings(findings, "info.json", folder / layout.INFO_PATH):
        data = open_data_set(folder)
    if data is None:
        return
    if not data.is_v30:
        message = (
            f"this is a LeRobot {data.info.version} data set ({data.info.total_episodes:,} episodes, "
            f"{data.info.total_frames:,} frames): its statistics are not checked"
            f"{'' if full else ', and --full decodes its videos'}"
        )
        hint = f"penstock convert {folder} OUT makes {layout.CODEBASE_VERSION} of it, without touching its frames"
        findings.add("info", "version", folder / layout.INFO_PATH, message, hint)
    if not _has_metadata(data, findings):
        return
    _check_info(data, findings)
    if data.is_v30:
        _check_episodes(data, findings)
    named = _check_files(data, findings)
    reads_all = full or not isinstance(data.root, RemotePath)
    if not reads_all:
        message = "a remote data set: metadata, footers of tables and indexes of videos are checked, no row, no frame"
        findings.add("info", "part", data.root, message, "--full reads all rows and decodes all frames")
    check_rows(data, findings, reads_all=reads_all, samples=None if full else samples)
    decoded = samples if reads_all and data.is_v30 else 0  # v2.x has a file for each episode
    check_videos(data, findings, samples=None if full else decoded)
    if data.is_v30:
        _check_orphans(data, findings, named)
    findings.counted["episodes"] = len(data.episodes)


def _has_metadata(data: DataSet, findings: Findings) -> bool:
    """Read the tables that everything else needs; without them there is nothing to compare."""
    before = findings.problems.copy()
    for name in ("episodes", "tasks", *(("stats", "data_files") if data.is_v30 else ())):
        with as_findings(findings, name, data.root):
            getattr(data, name)
    return findings.problems == before


def _check_info(data: DataSet, findings: Findings) -> None:
    info, where = data.info, data.root / layout.INFO_PATH
    for feature in ROW_FEATURES:
        declared = info.features[feature.key]
        if data.is_v30 and (declared.dtype, declared.shape) != (feature.dtype, feature.shape):
            findings.error("features", where, f"{feature.key!r} is not declared as {feature.dtype} (1,)")
    for name, stated, actual in (
        ("total_episodes", info.total_episodes, len(data.episodes)),
        ("total_frames", info.total_frames, int(data.episodes.length.sum())),
        ("total_tasks", info.total_tasks, len(data.tasks)),
    ):
        if stated != actual:
            findings.error("totals", where, f"{name} is {stated:,}, meta/ has {actual:,}")


def _check_episodes(data: DataSet, findings: Findings) -> None:
    episodes, where = data.episodes, data.root / "meta/episodes"
    expected_first = np.cumsum(episodes.length) - episodes.length
    known = set(data.tasks)
    for number in range(len(episodes)):
        if episodes.index[number] != number:
            message = f"row {number} of the table is episode {episodes.index[number]}"
            findings.error("episode order", where, message)
        first, end, length = (int(a[number]) for a in (episodes.first_row, episodes.end_row, episodes.length))
        if length < 1 or end - first != length:
            message = f"episode {number}: length {length}, but rows {first}…{end} are {end - first}"
            findings.error("episode length", where, message)
        if first != expected_first[number]:
            findings.error(
                "index gap",
                where,
                f"episode {number} starts at row {first}, the one before ends at {expected_first[number]}",
                "LeRobot would pair the rows after it with the wrong frames",
            )
        if unknown := [task for task in episodes.tasks[number] if task not in known]:
            findings.error("tasks", where, f"episode {number} names the unknown task {unknown[0]!r}")


def _check_files(data: DataSet, findings: Findings) -> set[Path]:
    """Every file that the metadata names must be there; returns their paths."""
    named: set[Path] = set()
    for key in (None, *data.info.video_keys):
        with as_findings(findings, "paths", data.root):
            for relative in data.named_files(key)[0]:
                path = layout.path_in(data.root, relative)
                named.add(path)
                if path.is_file():
                    findings.counted["files"] += 1
                    findings.counted["bytes"] += path.stat().st_size
                else:
                    hint = data.elsewhere(key) or "fetch it again"
                    findings.error("missing file", path, "named by the metadata, but not there", hint)
    return named


def _check_orphans(data: DataSet, findings: Findings, named: set[Path]) -> None:
    """Files that no episode names: LeRobot reads stray rows as if they belonged, and stray videos cost space."""
    is_versioned = data.info.metadata_dir is not None
    rows_line_up = sum(file.rows for file in data.data_files) == data.info.total_frames
    for folder in ("data", "videos"):
        for path in sorted((data.root / folder).rglob("*")):
            if path in named or path.is_dir():
                continue
            if is_versioned and isinstance(data.root, RemotePath):
                message = "of no version that can be read: it is being written, or its conversion was ended"
                findings.add("info", "unused file", path, message, "the next conversion to this output removes it")
            elif path.suffix == ".parquet" and rows_line_up and not is_versioned:
                message = "no episode starts in this file; LeRobot's aggregation would lose its rows"
                findings.add("info", "continued data file", path, message)
            else:
                message = "an orphan: no episode names this file"
                findings.error("orphan file", path, message, "remove it, or convert again")
