"""Reads LeRobot data sets: metadata at once, rows and frames on demand, and never a file outside of the root."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import columns, layout, metadata, tables
from penstock._src.lerobot.features import ROW_KEYS
from penstock._src.lerobot.metadata import EpisodeArrays, Info, open_parquet
from penstock._src.lerobot.read import version21
from penstock._src.system.files import RemotePath, as_path, refresh, warm
from penstock.errors import DataSetCorrupt, RemoteChanged

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ReadRows = dict[str, "NDArray[Any] | list[Any]"]

_WARMED_FILES, _WARMED_BYTES = 64, 2 << 20


@dataclass(frozen=True)
class DataFile:
    """One file of rows."""

    path: Path
    first_row: int
    rows: int


@dataclass(frozen=True)
class RowSpan:
    """Rows of an episode that lie in one file, counted from the file's beginning."""

    path: Path
    start: int
    stop: int
    first_row: int = 0  # the number that the file's first row has in the data set


class DataSet:
    """An open data set. Only metadata is read until rows are asked for.

    >>> data = open_data_set("datasets/run")                                          # doctest: +SKIP
    >>> data.batches(data.data_files[0], ["observation.state"], 100)                  # doctest: +SKIP
    """

    def __init__(self, root: Path, info: Info) -> None:
        self.root = root
        self.info = info
        self._elsewhere: dict[str | None, str | None] = {}

    @property
    def is_v30(self) -> bool:
        return self.info.version == layout.CODEBASE_VERSION

    @cached_property
    def metadata_root(self) -> Path:
        """The directory below which meta/ lies, but for info.json: the root, or that of a version."""
        relative = self.info.metadata_dir
        return self.root if relative is None else layout.path_in(self.root, relative)

    @cached_property
    def tasks(self) -> list[str]:
        """Task texts; the position is the task_index."""
        return metadata.read_tasks(self.metadata_root) if self.is_v30 else version21.read_tasks(self.root)

    @cached_property
    def tables(self) -> dict[str, list[str]]:
        """By name: the texts into which columns of the data set point; subtasks only where it has some."""
        root = self.metadata_root
        path = layout.path_in(root, layout.SUBTASKS_PATH)
        if "subtask_index" not in self.info.features or not path.is_file():
            return {"tasks": self.tasks}
        return {"tasks": self.tasks, "subtasks": metadata.read_tasks(root, layout.SUBTASKS_PATH, "subtask")}

    @cached_property
    def episodes(self) -> EpisodeArrays:
        """The episodes table, without its statistics."""
        if self.is_v30:
            return metadata.read_episodes(self.metadata_root, self.info)
        return version21.read_episodes(self.root)

    @cached_property
    def stats(self) -> dict[str, Any] | None:
        """meta/stats.json, or None when there is none."""
        path = layout.path_in(self.metadata_root, layout.STATS_PATH)
        return metadata.read_json(path) if path.exists() else None

    @cached_property
    def table_names(self) -> list[str]:
        """The data files in their order, relative to the root: all that are there.

        Of a data set with versions, those that this one names: another may be on its way.
        """
        if self.info.metadata_dir is not None:
            return self.named_files(None)[0]
        return [path.relative_to(self.root).as_posix() for path in sorted((self.root / "data").glob("*/*.parquet"))]

    @cached_property
    def data_files(self) -> list[DataFile]:
        """The files of rows in the order in which LeRobot strings them together; reads their footers."""
        files: list[DataFile] = []
        first_row = 0
        for relative in self.table_names:
            path = layout.path_in(self.root, relative)
            with open_parquet(path) as file:
                files.append(DataFile(path, first_row, file.metadata.num_rows))
            first_row += files[-1].rows
        return files

    def batches(self, file: DataFile, keys: Sequence[str], batch_rows: int) -> Iterator[tuple[int, ReadRows]]:
        """The rows of one file in order, a bounded number at a time: (number of the first row, columns)."""
        import pyarrow as pa

        first_row = file.first_row
        with open_parquet(file.path) as parquet:
            stored = self.stored_columns(file.path, parquet, keys)
            with tables.arrow_errors(file.path, "cannot read rows", DataSetCorrupt):
                for batch in parquet.iter_batches(batch_size=batch_rows, columns=stored, use_threads=False):
                    table = pa.Table.from_batches([self.completed(batch, keys, first_row)])
                    yield first_row, self.columns_of(table, keys, f"{file.path}: row {first_row}")
                    first_row += batch.num_rows

    def row_spans(self, number: int) -> list[RowSpan]:
        """Where the rows of the episode at a place of the episodes table lie; the files are opened by the reader."""
        episodes = self.episodes
        if not self.is_v30:
            path = self._episode_path(self.info.data_path, number)
            return [RowSpan(path, 0, int(episodes.length[number]), int(episodes.first_row[number]))]
        start, stop = int(episodes.first_row[number]), int(episodes.end_row[number])
        spans = []
        for file in self.data_files[max(bisect_right(self._first_rows, start) - 1, 0) :]:
            if file.first_row >= stop:
                break
            low, high = max(start, file.first_row), min(stop, file.first_row + file.rows)
            if low < high:
                spans.append(RowSpan(file.path, low - file.first_row, high - file.first_row, file.first_row))
        return spans

    def video_file(self, number: int, key: str) -> Path:
        """The file with the frames of the episode at a place of the episodes table, in any version."""
        without = f"'leave_out=[{key}]' converts the data set without it"
        if self.info.video_path is None:
            raise DataSetCorrupt(
                f"{self.root}: camera {key!r} is a video, but info.json has no video_path",
                hint=self.elsewhere(key) or without,
            )
        if not self.is_v30:
            return self._episode_path(self.info.video_path, number, key)
        place = self.episodes.videos.get(key)
        if place is None or place.chunk[number] < 0:
            raise DataSetCorrupt(
                f"{self.root}: the episodes table names no video of {key!r} (episode {self.episodes.index[number]})",
                hint=without,
            )
        numbers = {"chunk_index": int(place.chunk[number]), "file_index": int(place.file[number])}
        return self._path(self.info.video_path, key, **numbers)

    def named_files(self, key: str | None, template: str | None = None) -> tuple[list[str], NDArray[np.int32]]:
        """The files of a camera, or of the rows (None), relative to the root; and the file of every episode.

        -1 stands for an episode whose file the episodes table does not name. `template` replaces that of info.json.
        """
        info, episodes = self.info, self.episodes
        template = template or (info.data_path if key is None else info.video_path)
        nothing: tuple[list[str], NDArray[np.int32]] = [], np.full(len(episodes), -1, np.int32)
        if template is None:
            return nothing
        if not self.is_v30:
            pattern = layout.path_pattern(template, ("episode_index", "episode_chunk"), key)
            numbers = episodes.index.tolist()
            size = info.chunks_size
            files = [pattern % {"episode_index": each, "episode_chunk": each // size} for each in numbers]
            return files, np.arange(len(files), dtype=np.int32)
        place = None if key is None else episodes.videos.get(key)
        if key is not None and place is None:
            return nothing
        chunk, file = (episodes.data_chunk, episodes.data_file) if place is None else (place.chunk, place.file)
        pairs, of_episode = np.unique(np.stack([chunk, file], axis=1), axis=0, return_inverse=True)
        pattern = layout.path_pattern(template, ("chunk_index", "file_index"), key)
        unnamed = int(np.count_nonzero(pairs[:, 0] < 0))  # they sort before the others
        files = [pattern % {"chunk_index": a, "file_index": b} for a, b in pairs[unnamed:].tolist()]
        return files, np.maximum(of_episode.reshape(-1) - unnamed, -1).astype(np.int32)

    def without(self, keys: Sequence[str]) -> DataSet:
        """The same data set as if info.json did not declare some features."""
        if not keys:
            return self
        features = {key: feature for key, feature in self.info.features.items() if key not in keys}
        return DataSet(self.root, replace(self.info, features=features))

    def elsewhere(self, key: str | None) -> str | None:
        """Where files lie that are not where info.json says, and what to change; looked for once per camera."""
        from penstock._src.lerobot.read.moved_files import find_elsewhere

        if key not in self._elsewhere:
            self._elsewhere[key] = find_elsewhere(self, key)
        return self._elsewhere[key]

    def check_paths(self) -> None:
        """Refuse path templates that lead out of the data set, before anything is opened through them."""
        info = self.info
        fields = ("chunk_index", "file_index", "episode_index", "episode_chunk")  # of any version
        patterns = [layout.path_pattern(info.data_path, fields)]
        if info.video_path is not None:
            patterns += [layout.path_pattern(info.video_path, fields, key) for key in info.video_keys]
        for pattern in patterns:
            layout.path_in(self.root, pattern % dict.fromkeys(fields, 0))

    @cached_property
    def _first_rows(self) -> list[int]:
        return [file.first_row for file in self.data_files]

    def _episode_path(self, template: str, number: int, key: str | None = None) -> Path:
        """The path of a file of one episode, as v2.x has it."""
        episode = int(self.episodes.index[number])
        return self._path(template, key, episode_index=episode, episode_chunk=episode // self.info.chunks_size)

    def _path(self, template: str, key: str | None = None, **numbers: int) -> Path:
        return layout.path_in(self.root, layout.fill_template(template, key=key, **numbers))

    def stored_columns(self, path: Path, parquet: pq.ParquetFile, keys: Sequence[str]) -> list[str]:
        """The columns to read for `keys`; a file that lacks others than `frame_index` and the like is refused."""
        names = parquet.schema_arrow.names
        present = set(names)
        missing = [key for key in keys if key not in present and key not in ROW_KEYS]
        if missing:
            raise DataSetCorrupt(
                f"{path}: columns {missing} of info.json are missing",
                hint=f"'leave_out=[{','.join(missing)}]' converts the data set without them",
            )
        return [key for key in keys if key in present] or names[:1]  # without any column the number of rows is unknown

    def completed(self, read: Any, keys: Sequence[str], first_row: int) -> Any:
        """A table or batch from `first_row` of the data set on; row columns that the file lacks are derived."""
        if set(keys) <= set(read.schema.names):
            return read
        rows = np.arange(first_row, first_row + read.num_rows)
        present = set(read.schema.names)
        values = [read.column(key) if key in present else columns.numbers(self.derived(key, rows)) for key in keys]
        return type(read).from_arrays(values, names=list(keys))

    def derived(self, key: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """`frame_index` and the like of rows of the data set, from the episodes table alone."""
        if key == "index":
            return rows
        episodes = self.episodes
        last = max(len(episodes) - 1, 0)
        place = np.minimum(np.searchsorted(episodes.end_row, rows, side="right"), last)
        if key == "episode_index":
            return episodes.index[place]
        if key == "task_index":
            return self._tasks_of_episodes[place]
        frame: NDArray[np.int64] = rows - episodes.first_row[place]
        return frame if key == "frame_index" else (frame / self.info.fps).astype(np.float32)

    @cached_property
    def _tasks_of_episodes(self) -> NDArray[np.int64]:
        """The one task of each episode, where the rows do not say theirs."""
        numbers = {text: number for number, text in enumerate(self.tasks)}
        task_numbers = np.zeros(len(self.episodes), np.int64)
        for place, named in enumerate(self.episodes.tasks):
            if len(named) > 1 or (len(self.tasks) > 1 and not named) or any(text not in numbers for text in named):
                raise DataSetCorrupt(
                    f"{self.root}: the rows have no task_index, and episode {int(self.episodes.index[place])} names "
                    f"{len(named)} tasks: {', '.join(named[:3]) or 'none'}",
                    hint="name one task of meta/tasks for each episode in meta/episodes",
                )
            task_numbers[place] = numbers[named[0]] if named else 0
        return task_numbers

    def columns_of(self, table: pa.Table, keys: Sequence[str], where: str) -> ReadRows:
        """Columns of a table that was read from one of the data files, as `rows` gives them."""
        return {key: self._column(table, key, f"{where}, {key!r}") for key in keys}

    def _column(self, table: pa.Table, key: str, where: str) -> NDArray[Any] | list[Any]:
        feature = self.info.features[key]
        if feature.dtype == "image":
            return [None if value is None else value.get("bytes") for value in table.column(key).to_pylist()]
        if feature.is_text:
            return list(table.column(key).to_pylist())
        return columns.to_numpy(table.column(key), () if feature.is_scalar else feature.shape, where)


def open_data_set(root: Path | str) -> DataSet:
    """Open a LeRobot data set: v3.0 in full, v2.x for what a conversion needs."""
    folder = as_path(root)
    try:
        return _open(folder)
    except (RemoteChanged, DataSetCorrupt):
        if not isinstance(folder, RemotePath):
            raise
        refresh(folder)  # a new version came in between: what was known of names and sizes is too old
        return _open(folder)


def _open(folder: Path) -> DataSet:
    _warm(folder)
    data = DataSet(folder, metadata.read_info(folder))
    data.check_paths()
    if data.info.metadata_dir is not None and isinstance(folder, RemotePath):
        _warm_version(data)
        len(data.episodes)  # read now: a later version may remove the metadata of this one
    return data


def _warm(root: Path) -> None:
    """Of a remote data set, ask at once for what opening it reads one after the other."""
    if not isinstance(root, RemotePath):
        return
    if (root / layout.VERSIONS_DIR).is_dir():  # info.json says which
        warm({root / layout.INFO_PATH: _WARMED_BYTES})
        return
    meta = [path for path in (root / "meta").rglob("*") if path.suffix in (".json", ".jsonl", ".parquet")]
    tables = sorted((root / "data").glob("*/*.parquet"))[:_WARMED_FILES]
    videos = [next(iter(sorted(camera.glob("*/*.mp4"))), None) for camera in (root / "videos").glob("*")]
    others: list[Path] = [*tables, *(path for path in videos if path is not None)]
    small: list[Path] = [*sorted(meta)[:_WARMED_FILES]]
    warm({**dict.fromkeys(others, 0), **dict.fromkeys(small, _WARMED_BYTES)})


def _warm_version(data: DataSet) -> None:
    """The same for the version that info.json names."""
    meta = [path for path in (data.metadata_root / "meta").rglob("*") if path.suffix in (".json", ".parquet")]
    warm(dict.fromkeys(sorted(meta)[:_WARMED_FILES], _WARMED_BYTES))
    others = data.table_names[:_WARMED_FILES]
    others += [names[0] for key in data.info.video_keys if (names := data.named_files(key)[0])]
    warm({data.root / name: 0 for name in others})
