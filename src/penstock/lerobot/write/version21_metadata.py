"""meta/ of a LeRobot v2.1 data set: lines of JSON, streamed from the journal; meta/info.json comes last.

v2.1 knows min, max, mean, standard deviation and count of every episode, and no quantiles. `stats.json` is GR00T's, not
LeRobot's: statistics of all rows, with the two quantiles that it normalises by. A conversion to v3.0 computes all of
them again from the same rows and frames.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from penstock.errors import DataSetCorrupt
from penstock.lerobot import layout
from penstock.lerobot.features import ROW_FEATURES, Description, Feature
from penstock.lerobot.layout import FreshNames
from penstock.lerobot.read.version21 import EPISODES_PATH, TASKS_PATH
from penstock.lerobot.stats import Stats
from penstock.lerobot.write import kept
from penstock.lerobot.write.closing import write_json, write_tasks
from penstock.lerobot.write.modality import modality

CODEBASE_VERSION = "v2.1"
DATA_PATH = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
VIDEO_PATH = "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
EPISODES_STATS_PATH = "meta/episodes_stats.jsonl"
MODALITY_PATH = "meta/modality.json"
KEPT_STATS_PATH = f"{kept.KEPT_DIR}/stats.jsonl"
# A modality.json that is there stays as it is: people split their vectors by hand.
REWRITTEN_PATHS = (
    layout.INFO_PATH,
    TASKS_PATH,
    EPISODES_PATH,
    EPISODES_STATS_PATH,
    layout.STATS_PATH,
    layout.SUBTASKS_PATH,
)

EPISODE_STATISTICS = ("min", "max", "mean", "std", "count")
GROOT_STATISTICS = ("mean", "std", "min", "max", "q01", "q99")
_IMAGE_SHAPE = [3, 1, 1]


def info(description: Description, features: Sequence[Feature], counts: Mapping[str, int]) -> dict[str, Any]:
    """What info.json says, in LeRobot 0.3's order; `features` are described with their videos."""
    episodes, chunks_size = counts["total_episodes"], description.chunks_size
    cameras = len(description.cameras)
    return {
        "codebase_version": CODEBASE_VERSION,
        "robot_type": description.robot_type,
        **counts,
        "total_videos": episodes * cameras,
        "total_chunks": -(-episodes // chunks_size),
        "chunks_size": chunks_size,
        "fps": description.fps,
        "splits": {"train": f"0:{episodes}"},
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if cameras else None,
        "features": {feature.key: feature.to_json() for feature in (*features, *ROW_FEATURES)},
    }


def write_metadata(
    root: Path,
    records: Iterable[Mapping[str, Any]],
    *,
    texts: Mapping[str, Sequence[str]],
    stats: Mapping[str, Stats],
    features: Sequence[Feature],
    info: Mapping[str, Any],
    names: FreshNames,
) -> None:
    """Write meta/ of a data set whose rows and frames are in place; with info.json it becomes one."""
    with layout.writing(root / "meta", "cannot make the directory"):
        (root / "meta").mkdir(exist_ok=True)
    _write_episodes(root, records, names)
    with _LineFile(root / TASKS_PATH, names) as tasks:
        for number, text in enumerate(texts["tasks"]):
            tasks.add({"task_index": number, "task": text})
    if texts["subtasks"]:
        write_tasks(root / layout.SUBTASKS_PATH, texts["subtasks"], "subtask", fsync=names.fsync)
        names.add(root / layout.SUBTASKS_PATH)
    write_json(root / layout.STATS_PATH, groot_statistics(features, stats), fsync=names.fsync)
    names.add(root / layout.STATS_PATH)
    if not (root / MODALITY_PATH).exists():
        write_json(root / MODALITY_PATH, modality(features), fsync=names.fsync)
        names.add(root / MODALITY_PATH)
    names.sync()
    write_json(root / layout.INFO_PATH, info, fsync=names.fsync)
    names.add(root / layout.INFO_PATH)
    names.sync()


def groot_statistics(features: Sequence[Feature], stats: Mapping[str, Stats]) -> dict[str, Any]:
    """Statistics of all rows as GR00T slices them: only what has one entry per number of the column."""
    numeric = [feature.key for feature in (*features, *ROW_FEATURES) if feature.is_numeric and not feature.is_wide]
    return {key: {name: stats[key][name] for name in GROOT_STATISTICS} for key in numeric if key in stats}


def episode_statistics(stats: Mapping[str, Stats | None]) -> dict[str, Any]:
    """The statistics of an episode that LeRobot 0.3 takes.

    It refuses a data set in which a key with "image" in it has others than three colours have, so those of depth stay
    out.
    """
    return {
        key: {name: entry[name] for name in EPISODE_STATISTICS}
        for key, entry in stats.items()
        if entry is not None and ("image" not in key or _shape(entry["mean"]) == _IMAGE_SHAPE)
    }


def _shape(values: Any) -> list[int]:
    return [len(values), *_shape(values[0])] if isinstance(values, list) else []


def _write_episodes(root: Path, records: Iterable[Mapping[str, Any]], names: FreshNames) -> None:
    known = _kept_statistics(root / KEPT_STATS_PATH)
    with _LineFile(root / EPISODES_PATH, names) as episodes, _LineFile(root / EPISODES_STATS_PATH, names) as statistics:
        for record in records:
            number, stats = record["episode_index"], record.get("stats")
            found = _kept(root, number, known) if stats is None else episode_statistics(stats)
            episodes.add({"episode_index": number, "tasks": list(record["tasks"]), "length": record["rows"]})
            statistics.add({"episode_index": number, "stats": found})


def _kept(root: Path, episode: int, known: Iterator[dict[str, Any]]) -> Any:
    for entry in known:
        if entry.get("episode_index") == episode and "stats" in entry:
            return entry["stats"]
    raise DataSetCorrupt(
        f"{root / KEPT_STATS_PATH}: the statistics of episode {episode} are missing",
        hint="convert the recordings again into an empty directory",
    )


def _kept_statistics(path: Path) -> Iterator[dict[str, Any]]:
    """Lines of the statistics that `keep_statistics` kept, one at a time."""
    if not path.is_file():
        return
    try:
        with open(path, "rb") as stream:
            for line in stream:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise DataSetCorrupt(f"{path}: cannot be read: {error}") from error


class _LineFile:
    """A .jsonl file that is written line by line beside its place, and moved there when it is whole."""

    def __init__(self, path: Path, names: FreshNames) -> None:
        self._path = path
        self._names = names
        self._stream: IO[bytes]

    def __enter__(self) -> _LineFile:
        with layout.writing(self._path, "cannot write"):
            self._stream = open(f"{self._path}.part", "wb")
        return self

    def add(self, entry: Mapping[str, Any]) -> None:
        """One line; escaped, since some readers open it in the encoding of their system."""
        with layout.writing(self._path, "cannot write"):
            self._stream.write(json.dumps(entry, allow_nan=False).encode() + b"\n")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with layout.writing(self._path, "cannot write"), self._stream:
            if kind is None:
                self._stream.flush()
                if self._names.fsync:
                    os.fsync(self._stream.fileno())
        if kind is None:
            with layout.writing(self._path, "cannot write"):
                os.replace(f"{self._path}.part", self._path)
            self._names.add(self._path)


def keep_statistics(root: Path, names: FreshNames) -> None:
    """Before a closed data set is continued: its statistics move to where `write_metadata` finds them.

    Killed within, this is done again: the journal says that the data set is closed until it is through.
    """
    kept.remove_info(root, names)
    if (root / EPISODES_STATS_PATH).exists():
        with layout.writing(root / KEPT_STATS_PATH, "cannot keep the statistics of the episodes"):
            (root / kept.KEPT_DIR).mkdir(exist_ok=True)
            os.replace(root / EPISODES_STATS_PATH, root / KEPT_STATS_PATH)
        names.add(root / EPISODES_STATS_PATH)
        names.add(root / KEPT_STATS_PATH)
        names.sync()


def remove_metadata(root: Path, names: FreshNames) -> None:
    """Take meta/ away, info.json first: from then on the directory is no finished data set."""
    kept.remove_info(root, names)
    for relative in (*REWRITTEN_PATHS, MODALITY_PATH):
        layout.remove(root / f"{relative}.part")
    for relative in REWRITTEN_PATHS:
        layout.remove(root / relative)
