"""The metadata of a data set as it lies on disk, checked before it is believed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.content import foreign_content
from penstock._src.lerobot import columns, layout, tables
from penstock._src.lerobot.features import ROW_FEATURES, Feature, parse_feature
from penstock._src.system.files import for_library
from penstock.errors import DataSetCorrupt, DataSetError, LimitExceeded

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

LARGEST_JSON_BYTES = 256 * layout.MIB
_EPISODES_AT_ONCE = 4096
_VIDEO_COLUMNS = ("chunk_index", "file_index", "from_timestamp", "to_timestamp")


@dataclass(frozen=True)
class Info:
    """meta/info.json, checked; `raw` holds it as it stands."""

    version: str
    fps: int
    robot_type: str | None
    total_episodes: int
    total_frames: int
    total_tasks: int
    chunks_size: int
    data_path: str
    video_path: str | None
    features: Mapping[str, Feature]
    raw: Mapping[str, Any] = field(repr=False)

    @property
    def video_keys(self) -> list[str]:
        return [key for key, feature in self.features.items() if feature.dtype == "video"]

    @property
    def metadata_dir(self) -> str | None:
        """Where the rest of the metadata lies, for a data set in a bucket that is replaced version by version."""
        value = self.raw.get(layout.METADATA_KEY)
        return None if value is None else str(value)

    @property
    def undeclared_row_keys(self) -> list[str]:
        """`frame_index` and the like that info.json lacks; `features` has them all the same."""
        return [feature.key for feature in ROW_FEATURES if feature.key not in self.raw["features"]]


@dataclass(frozen=True)
class VideoColumns:
    """Where the episodes lie in the files of one camera; one entry per episode, chunk -1 where the table has none."""

    chunk: NDArray[np.int64]
    file: NDArray[np.int64]
    from_s: NDArray[np.float64]
    to_s: NDArray[np.float64]

    @cached_property
    def next_from_s(self) -> NDArray[np.float64]:
        """Where the next episode in the same file begins; infinity for the last one."""
        order = np.lexsort((self.from_s, self.file, self.chunk))
        before, after = order[:-1], order[1:]
        same = (self.chunk[before] == self.chunk[after]) & (self.file[before] == self.file[after])
        next_s = np.full(len(order), np.inf)
        next_s[before[same]] = self.from_s[after[same]]
        return next_s


@dataclass(frozen=True)
class EpisodeArrays:
    """The episodes table as arrays; one entry per episode, in the order of the table."""

    index: NDArray[np.int64]
    length: NDArray[np.int64]
    first_row: NDArray[np.int64]
    end_row: NDArray[np.int64]
    data_chunk: NDArray[np.int64]
    data_file: NDArray[np.int64]
    tasks: Sequence[Sequence[str]] = field(repr=False)
    videos: Mapping[str, VideoColumns] = field(repr=False)

    def __len__(self) -> int:
        return len(self.index)


def tasks_of_episodes(column: pa.ChunkedArray) -> list[tuple[str, ...]]:
    """The tasks of every episode; those of a million episodes are a few texts, and each is kept once."""
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    tasks: list[tuple[str, ...]] = []
    for chunk in column.chunks:
        for start in range(0, len(chunk), _EPISODES_AT_ONCE):
            lists = chunk.slice(start, _EPISODES_AT_ONCE).to_pylist()
            texts = (tuple(text or "" for text in each or ()) for each in lists)
            tasks += [known.setdefault(each, each) for each in texts]
    return tasks


def read_info(root: Path) -> Info:
    path = root / layout.INFO_PATH
    if not path.is_file():
        raise DataSetError(f"{root}: no {layout.INFO_PATH}, so this is not a LeRobot data set")
    layout.path_in(root, layout.INFO_PATH)
    raw = read_json(path)
    version = raw.get("codebase_version")
    if version not in ("v2.0", "v2.1", layout.CODEBASE_VERSION):
        raise DataSetError(f"{path}: codebase_version {version!r}; penstock knows v2.0, v2.1 and v3.0")
    declared = raw.get("features")
    if not isinstance(declared, dict):
        raise DataSetCorrupt(f"{path}: 'features' is not an object")
    features = {key: parse_feature(key, entry, str(path)) for key, entry in declared.items()}
    for feature in ROW_FEATURES:
        features.setdefault(feature.key, feature)
    return Info(
        version=version,
        fps=_whole_number(raw, "fps", path, least=1),
        robot_type=raw.get("robot_type"),
        total_episodes=_whole_number(raw, "total_episodes", path),
        total_frames=_whole_number(raw, "total_frames", path),
        total_tasks=_whole_number(raw, "total_tasks", path),
        chunks_size=_whole_number(raw, "chunks_size", path, least=1),
        data_path=_text(raw, "data_path", path),
        video_path=None if raw.get("video_path") is None else _text(raw, "video_path", path),
        features=features,
        raw=raw,
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; NaN and broken text are refused with their place."""
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON_BYTES:
            raise LimitExceeded(f"{path}: {size:,} bytes of JSON", size=size, limit=LARGEST_JSON_BYTES)
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataSetCorrupt(f"{path}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        if (foreign := foreign_content(path, "json")) is not None:
            raise DataSetCorrupt(f"{path} is {foreign.what}, not JSON", hint=foreign.hint) from None
        raise DataSetCorrupt(f"{path}: not JSON: {error}") from error
    if not isinstance(tree, dict):
        raise DataSetCorrupt(f"{path}: holds a {type(tree).__name__} instead of an object")
    return tree


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a parquet file; a missing footer is named as what it is."""
    import pyarrow.parquet as pq

    if not path.is_file():
        raise DataSetCorrupt(f"{path}: the file is missing")
    hint = "its writer was stopped before the end: convert again what it was made from, or fetch the file again"
    try:
        with tables.arrow_errors(path, "not a whole parquet file", DataSetCorrupt):
            # Buffered: a row group of a foreign file may be larger than the memory.
            file = for_library(path, buffered=False)
            return pq.ParquetFile(file, memory_map=False, buffer_size=layout.MIB, pre_buffer=False)
    except DataSetCorrupt as error:
        if (foreign := foreign_content(path, "parquet")) is not None:
            raise DataSetCorrupt(f"{path} is {foreign.what}, not a parquet file", hint=foreign.hint) from None
        raise DataSetCorrupt(error.message, hint=hint) from error


def read_parquet(path: Path, keys: Sequence[str] | None = None) -> pa.Table:
    with open_parquet(path) as file, tables.arrow_errors(path, "cannot be read", DataSetCorrupt):
        present = None if keys is None else [key for key in keys if key in file.schema_arrow.names]
        return file.read(columns=present, use_threads=False)


def read_tasks(root: Path, relative: str = layout.TASKS_PATH, name: str = "task") -> list[str]:
    """The texts of meta/tasks.parquet (or of subtasks); the position is the task_index."""
    path = layout.path_in(root, relative)
    table = read_parquet(path)
    number = f"{name}_index"
    names = [each for each in (name, "__index_level_0__") if each in table.column_names]
    if not names or number not in table.column_names:
        raise DataSetCorrupt(f"{path}: columns {table.column_names}, expected {name!r} and {number!r}")
    numbers = columns.to_numpy(table.column(number), where=str(path)).tolist()
    texts = table.column(names[0]).to_pylist()
    if sorted(numbers) != list(range(len(numbers))):
        raise DataSetCorrupt(f"{path}: {number} is not 0…{len(numbers) - 1} but {numbers[:10]}")
    return [str(text) for _, text in sorted(zip(numbers, texts, strict=True))]


def read_episodes(root: Path, info: Info) -> EpisodeArrays:
    import pyarrow as pa

    whole = ("episode_index", "length", "dataset_from_index", "dataset_to_index", "data/chunk_index", "data/file_index")
    paths = sorted((root / "meta/episodes").glob("*/*.parquet"))
    if not paths:
        raise DataSetCorrupt(f"{root}: meta/episodes holds no parquet file")
    layout.path_in(root, paths[0].relative_to(root).as_posix())
    with open_parquet(paths[0]) as first:
        known = set(first.schema_arrow.names)
    # A camera of which the table has no column has no videos; `DataSet.video_file` refuses to name one.
    video_columns = {
        key: names
        for key in info.video_keys
        for names in ([f"videos/{key}/{name}" for name in _VIDEO_COLUMNS],)
        if known.intersection(names)
    }
    wanted = [*whole, "tasks", *(name for names in video_columns.values() for name in names)]
    parts = []
    for path in paths:
        layout.path_in(root, path.relative_to(root).as_posix())
        part = read_parquet(path, wanted)
        missing = sorted(set(wanted) - set(part.column_names))
        if missing:
            raise DataSetCorrupt(f"{path}: columns {missing} are missing")
        parts.append(part.select(wanted))
    with tables.arrow_errors(root, "the files of meta/episodes do not fit together", DataSetCorrupt):
        table = pa.concat_tables([part.replace_schema_metadata(None) for part in parts])
    read = {name: columns.to_numpy(table.column(name), where=f"{root}: {name}") for name in whole}
    index, length, first_row, end_row, data_chunk, data_file = (read[name].astype(np.int64) for name in whole)
    return EpisodeArrays(
        index,
        length,
        first_row,
        end_row,
        data_chunk,
        data_file,
        tasks=tasks_of_episodes(table.column("tasks")),
        videos={key: _video_columns(table, names, root) for key, names in video_columns.items()},
    )


def _video_columns(table: pa.Table, names: Sequence[str], root: Path) -> VideoColumns:
    """The columns of one camera; an episode without a video has empty values, or NaN where pandas wrote the table."""

    def read(name: str) -> NDArray[np.float64]:
        column = table.column(name)
        if column.null_count:
            return np.array([np.nan if value is None else value for value in column.to_pylist()], np.float64)
        return columns.to_numpy(column, where=f"{root}: {name}").astype(np.float64)

    chunk, file, from_s, to_s = (read(name) for name in names)
    unnamed = np.isnan(chunk) | np.isnan(file)
    chunk_index, file_index = (np.where(unnamed, -1, each).astype(np.int64) for each in (chunk, file))
    return VideoColumns(chunk_index, file_index, from_s, to_s)


def _whole_number(raw: Mapping[str, Any], name: str, path: Path, least: int = 0) -> int:
    value = raw.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise DataSetCorrupt(f"{path}: {name} is {value!r}, not a whole number >= {least}")
    return value


def _text(raw: Mapping[str, Any], name: str, path: Path) -> str:
    value = raw.get(name)
    if not isinstance(value, str):
        raise DataSetCorrupt(f"{path}: {name} is {value!r}, not a text")
    return value
