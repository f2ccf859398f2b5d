"""The rows of a data set: do they stand where the metadata says, and do the statistics describe them?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.findings import Findings, Severity
from penstock._src.lerobot import layout
from penstock._src.lerobot.feature_stats import bad_values
from penstock._src.lerobot.features import ROW_KEYS, Feature
from penstock._src.lerobot.metadata import open_parquet
from penstock._src.lerobot.read.frames import TOLERANCE_S
from penstock._src.lerobot.read.reader import DataFile, DataSet, ReadRows
from penstock._src.lerobot.stats import QUANTILES, NumericStats
from penstock._src.media.image import codec, depth
from penstock.errors import DataSetCorrupt, PenstockError, RemoteError

_PLACE_KEYS = ("index", "episode_index", "frame_index", "timestamp", "task_index")

# LeRobot 0.6.1 accumulates in float32; what it writes about the data is right to about this share of their range.
_STATS_TOLERANCE = 1e-3
_COMPARED = ("min", "max", "mean", "std")
_BATCH_ROWS = 4096
_BATCH_IMAGES = 64


@contextmanager
def as_findings(findings: Findings, kind: str, where: object) -> Iterator[None]:
    """What is found wrong within is an error of the data set; what fails at the network or the rights is none."""
    try:
        yield
    except RemoteError:
        raise
    except PenstockError as error:
        findings.error(kind, where, error.message, error.hint)


@dataclass
class _RowSurvey:
    """What one pass over the rows gathers."""

    stats: dict[str, NumericStats]
    rows_per_episode: NDArray[np.int64]
    rows: int = 0
    images: Counter[str] = field(default_factory=Counter)


def check_rows(data: DataSet, findings: Findings, *, reads_all: bool, samples: int | None) -> None:
    """Hold the footers of all tables, and every row once, against the metadata; `samples` images are decoded."""
    numeric = [feature for feature in data.info.features.values() if feature.is_numeric]
    seen = _RowSurvey(
        stats={feature.key: NumericStats(feature.shape, feature.dtype) for feature in numeric},
        rows_per_episode=np.zeros(len(data.episodes), dtype=np.int64),
    )
    for episode, file in _files(data):
        with as_findings(findings, "data file", file.path), open_parquet(file.path) as parquet:
            keys = _keys(data)
            data.stored_columns(file.path, parquet, keys)
            _check_row_columns(data, file.path, parquet.schema_arrow.names, findings)
            seen.rows += parquet.metadata.num_rows
            if episode is not None:
                seen.rows_per_episode[episode] = parquet.metadata.num_rows
            if reads_all:
                _check_file(data, file, keys, seen, findings, samples)
    findings.counted["rows"] = seen.rows
    where = data.root / "data"
    if seen.rows != data.info.total_frames:
        message = f"total_frames is {data.info.total_frames:,}, the files have {seen.rows:,} rows"
        findings.error("totals", where, message)
    if not reads_all:
        return
    for number in np.flatnonzero(seen.rows_per_episode != data.episodes.length):
        message = f"episode {number}: length {data.episodes.length[number]}, but {seen.rows_per_episode[number]} rows"
        findings.error("episode length", where, message)
    _check_bad_values(data, seen, findings)
    if data.is_v30:
        _check_stats(data, seen, findings)


def _files(data: DataSet) -> Iterator[tuple[int | None, DataFile]]:
    """The files of rows that are there; of v2.x each has one episode."""
    if data.is_v30:
        yield from ((None, file) for file in data.data_files)
        return
    for number in range(len(data.episodes)):
        for span in data.row_spans(number):
            if span.path.is_file():
                yield number, DataFile(span.path, span.first_row, span.stop)


def _keys(data: DataSet) -> list[str]:
    return [key for key, feature in data.info.features.items() if feature.dtype != "video" and not feature.is_text]


def _check_file(
    data: DataSet, file: DataFile, keys: Sequence[str], seen: _RowSurvey, findings: Findings, samples: int | None
) -> None:
    images = [key for key in keys if data.info.features[key].dtype == "image"]
    for first_row, group in data.batches(file, keys, _BATCH_IMAGES if images else _BATCH_ROWS):
        _check_place(data, file.path, first_row, group, findings)
        if data.is_v30:
            episode = np.asarray(group["episode_index"])
            known = (episode >= 0) & (episode < len(data.episodes))
            np.add.at(seen.rows_per_episode, episode[known], 1)
        for key, stats in seen.stats.items():
            stats.add(np.asarray(group[key]))
        for key in images:
            _check_images(data.info.features[key], file.path, first_row, list(group[key]), seen, findings, samples)


def _check_row_columns(data: DataSet, path: Path, stored: Sequence[str], findings: Findings) -> None:
    """`frame_index` and the like that a file or info.json lacks: penstock derives them, LeRobot v3.0 needs most."""
    convert = f"penstock convert {data.root} OUT writes it"
    for key in _PLACE_KEYS:
        is_declared = key not in data.info.undeclared_row_keys
        if key in stored and is_declared:
            continue
        what = f"no column {key!r}, which is derived from the episodes table"
        if key in stored:
            what = f"column {key!r} is not declared in info.json"
        # LeRobot 0.6.1 reads a data set without frame_index, and fails on all else (tried).
        needed = data.is_v30 and (key in stored or key != "frame_index")
        findings.add(
            "error" if needed else "info", "row columns", path, what,
            f"LeRobot cannot read the data set like that; {convert}" if needed else convert,
        )  # fmt: skip


def _check_place(data: DataSet, path: Path, first_row: int, group: ReadRows, findings: Findings) -> None:
    """One finding per batch and column: the first wrong row, and how many there are."""
    index, episode, frame, time_s, task = (np.asarray(group[key]) for key in _PLACE_KEYS)
    expected = np.arange(first_row, first_row + len(index))
    ends = data.episodes.end_row
    number = np.searchsorted(ends, expected, side="right")
    place = np.minimum(number, max(len(ends) - 1, 0))
    owner = number if data.is_v30 or not len(ends) else data.episodes.index[place]
    frames = expected - (data.episodes.first_row[place] if len(ends) else 0)
    fps = data.info.fps
    should_s = (frame / fps).astype(np.float32)
    # A float32 does not resolve times finer than this, in long episodes more coarsely than LeRobot's tolerance.
    allowed_s = np.maximum(TOLERANCE_S, np.spacing(np.abs(should_s)))
    checks: dict[str, tuple[NDArray[np.bool_], Callable[[int], str]]] = {
        "index": (index != expected, lambda i: f"is {index[i]}, expected {expected[i]}"),
        "episode_index": (episode != owner, lambda i: f"is {episode[i]}, not {owner[i]}"),
        "frame_index": (frame != frames, lambda i: f"is {frame[i]}, expected {frames[i]}"),
        "timestamp": (
            ~(np.abs(time_s - should_s) <= allowed_s),
            lambda i: f"is {time_s[i]:.6f} s, but frame {frame[i]} at {fps} fps is {should_s[i]:.6f} s",
        ),
        "task_index": (
            (task < 0) | (task >= len(data.tasks)),
            lambda i: f"{task[i]} is out of range; there are {len(data.tasks)} tasks",
        ),
    }
    for key, (wrong, say) in checks.items():
        if wrong.any():
            first = int(np.argmax(wrong))
            message = f"row {first_row + first}: {key} {say(first)} ({np.count_nonzero(wrong)} of {len(wrong)} rows)"
            # Readers of v2.x go by the files alone.
            findings.add("info" if key == "index" and not data.is_v30 else "error", key, path, message)


def _check_images(
    feature: Feature,
    path: Path,
    first_row: int,
    images: list[Any],
    seen: _RowSurvey,
    findings: Findings,
    samples: int | None,
) -> None:
    for row, image in enumerate(images, first_row):
        where = f"{path}: row {row}, {feature.key!r}"
        if image is None:
            findings.error("frame", where, "the frame is not in the file")
            continue
        if samples is not None and seen.images[feature.key] >= samples:
            continue
        seen.images[feature.key] += 1
        with as_findings(findings, "frame", where):
            findings.counted["images decoded"] += 1
            height, width = (depth.decode if feature.is_depth else codec.decode)(image).shape[:2]
            if (height, width) != feature.shape[:2]:
                raise DataSetCorrupt(f"{width}×{height} px, but the feature is {feature.shape}")


def _check_bad_values(data: DataSet, seen: _RowSurvey, findings: Findings) -> None:
    features = list(data.info.features.values())
    for key, dimensions in bad_values(features, dict(seen.stats)).items():
        shown = ", ".join(
            f"{name}: " + " ".join(f"{count:,} {kind}" for kind, count in counts.items())
            for name, counts in list(dimensions.items())[:8]
        )
        findings.add("loss", "values", data.root / "data", f"{key!r} holds unusable values: {shown}")


def _check_stats(data: DataSet, seen: _RowSurvey, findings: Findings) -> None:
    where = data.root / layout.STATS_PATH
    stored = data.stats
    if stored is None:
        findings.add("loss", "stats", where, "no statistics: LeRobot cannot normalise with this data set")
        return
    for key, stats in seen.stats.items():
        entry = stored.get(key)
        if entry is None:
            findings.add("info", "stats", where, f"no statistics of {key!r}")
        elif stats.rows:
            _compare(key, entry, stats, where, findings)
    for key, feature in data.info.features.items():
        if feature.is_camera and key in stored:
            _check_image_stats(key, stored[key], where, findings)


def _compare(key: str, entry: Any, stats: NumericStats, where: Path, findings: Findings) -> None:
    real = {name: np.array(values, dtype=np.float64).reshape(-1) for name, values in stats.to_json().items()}
    stored = _read_stats(key, entry, (*_COMPARED, "count"), where, findings)
    if stored is None:
        return
    # LeRobot's aggregation leaves these as they were; they are not used for normalisation.
    severity: Severity = "info" if key in ROW_KEYS else "error"
    count = stored["count"].reshape(-1).tolist()
    if count != [stats.rows]:
        message = f"{key!r}: count is {count}, the data have {stats.rows:,} rows"
        findings.add(severity, "stats", where, message)
    # LeRobot reduces matrices to their last dimension; there only the shape can be compared with nothing.
    if stored["min"].size != real["min"].size:
        message = f"{key!r}: statistics of {stored['min'].size} numbers, not {real['min'].size}"
        findings.add("info", "stats", where, message)
        return
    size = np.maximum(np.abs(real["min"]), np.abs(real["max"]))
    allowed = _STATS_TOLERANCE * (real["max"] - real["min"]) + 1e-5 * size + 1e-9
    for name in _COMPARED:
        values = stored[name].reshape(-1)
        wrong = np.flatnonzero(np.abs(values - real[name]) > allowed)
        if len(wrong):
            d = int(wrong[0])
            message = f"{key!r}[{d}]: {name} is {values[d]:.6g}, the data have {real[name][d]:.6g}"
            findings.add(severity, "stats", where, message, "the statistics do not belong to these data")
            return


def _check_image_stats(key: str, entry: Any, where: Path, findings: Findings) -> None:
    stored = _read_stats(key, entry, _COMPARED, where, findings)
    if stored is not None and any(values.shape not in ((3, 1, 1), (1, 1, 1)) for values in stored.values()):
        findings.error("stats", where, f"{key!r}: shape {stored['mean'].shape}, LeRobot expects (3, 1, 1)")


def _read_stats(
    key: str, entry: Any, names: Sequence[str], where: Path, findings: Findings
) -> dict[str, NDArray[np.float64]] | None:
    """Statistics as numbers, all of them usable; None, and an error, where they are not."""
    try:
        stored = {name: np.array(entry[name], dtype=np.float64) for name in names}
        quantiles = [np.array(entry[name], dtype=np.float64) for name in QUANTILES if name in entry]
    except (KeyError, TypeError, ValueError):
        findings.error("stats", where, f"{key!r}: {', '.join(names)} are not all there")
        return None
    if any(not np.isfinite(values).all() for values in (*stored.values(), *quantiles)):
        findings.error("stats", where, f"{key!r}: NaN or Inf in the statistics")
        return None
    return stored
