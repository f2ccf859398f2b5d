"""Reads LeRobot data sets: metadata at once, rows and frames on demand, and never a file outside of the root."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DataSetCorrupt, DataSetError
from penstock.lerobot import columns, layout, metadata, tables
from penstock.lerobot.layout import FilePosition
from penstock.lerobot.metadata import Episodes, Info, open_parquet

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ReadRows = dict[str, "NDArray[Any] | list[Any]"]


@dataclass(frozen=True)
class VideoPlace:
    """Where the frames of one episode and camera are."""

    path: Path
    first_frame: int
    frames: int
    from_s: float


@dataclass(frozen=True)
class DataFile:
    """One file of rows."""

    path: Path
    first_row: int
    rows: int


class DataSet:
    """An open data set. Only metadata is read until rows are asked for.

    >>> data = open_data_set("datasets/run")                                          # doctest: +SKIP
    >>> data.rows(["observation.state"], 0, 100)["observation.state"].shape           # doctest: +SKIP
    (100, 16)
    """

    def __init__(self, root: Path, info: Info) -> None:
        self.root = root
        self.info = info

    def __repr__(self) -> str:
        shown = f"{self.info.version}, episodes={self.info.total_episodes:,}, frames={self.info.total_frames:,}"
        return f"DataSet({str(self.root)!r}, {shown}, fps={self.info.fps})"

    @cached_property
    def tasks(self) -> list[str]:
        """Task texts; the position is the task_index."""
        is_v30 = self.info.version == layout.CODEBASE_VERSION
        return metadata.read_tasks(self.root) if is_v30 else metadata.read_tasks_v21(self.root)

    @cached_property
    def episodes(self) -> Episodes:
        """The episodes table, without its statistics."""
        is_v30 = self.info.version == layout.CODEBASE_VERSION
        return metadata.read_episodes(self.root, self.info) if is_v30 else metadata.read_episodes_v21(self.root)

    @cached_property
    def stats(self) -> dict[str, Any] | None:
        """meta/stats.json, or None when there is none."""
        path = layout.path_in(self.root, layout.STATS_PATH)
        return metadata.read_json(path) if path.exists() else None

    @cached_property
    def data_files(self) -> list[DataFile]:
        """The files of rows in the order in which LeRobot strings them together; reads their footers."""
        self._needs_v30("reading rows")
        files: list[DataFile] = []
        first_row = 0
        for path in sorted((self.root / "data").glob("*/*.parquet")):
            layout.path_in(self.root, path.relative_to(self.root).as_posix())
            with open_parquet(path) as file:
                files.append(DataFile(path, first_row, file.metadata.num_rows))
            first_row += files[-1].rows
        return files

    def rows(self, keys: Sequence[str], start: int, stop: int) -> ReadRows:
        """Rows start…stop-1 of some columns: arrays (n, *shape), or lists for pictures (bytes) and strings."""
        self._needs_v30("reading rows")
        for key in keys:
            if key not in self.info.features or self.info.features[key].dtype == "video":
                raise DataSetError(f"{self.root}: no column {key!r}; there are {self._column_names()}")
        if not 0 <= start <= stop:
            raise DataSetError(f"{self.root}: rows {start}…{stop} are not a range")
        parts: list[ReadRows] = []
        for file in self.data_files:
            if file.first_row < stop and start < file.first_row + file.rows:
                parts += self._rows_of_file(file, keys, start, stop)
        found = sum(len(part[keys[0]]) for part in parts) if keys else 0
        if keys and found != stop - start:
            raise DataSetError(f"{self.root}: rows {start}…{stop} asked, {sum(f.rows for f in self.data_files)} exist")
        return {key: _join([part[key] for part in parts]) for key in keys}

    def batches(self, file: DataFile, keys: Sequence[str], batch_rows: int) -> Iterator[tuple[int, ReadRows]]:
        """The rows of one file in order, a bounded number at a time: (number of the first row, columns)."""
        import pyarrow as pa

        first_row = file.first_row
        with open_parquet(file.path) as parquet:
            self._check_columns(file.path, parquet, keys)
            with tables.arrow_errors(file.path, "cannot read rows", DataSetCorrupt):
                for batch in parquet.iter_batches(batch_size=batch_rows, columns=list(keys), use_threads=False):
                    yield (
                        first_row,
                        self._columns(pa.Table.from_batches([batch]), keys, f"{file.path}: row {first_row}"),
                    )
                    first_row += batch.num_rows

    def data_path(self, position: FilePosition) -> Path:
        """The path of a data file, confined to the root."""
        filled = layout.fill_template(self.info.data_path, chunk_index=position.chunk, file_index=position.file)
        return layout.path_in(self.root, filled)

    def video_path(self, key: str, position: FilePosition) -> Path:
        """The path of a video file, confined to the root."""
        if self.info.video_path is None:
            raise DataSetCorrupt(f"{self.root}: camera {key!r} is a video, but info.json has no video_path")
        filled = layout.fill_template(
            self.info.video_path, key=key, chunk_index=position.chunk, file_index=position.file
        )
        return layout.path_in(self.root, filled)

    def video(self, episode: int, key: str) -> VideoPlace:
        """Where the frames of an episode are."""
        self._needs_v30("finding frames")
        if not 0 <= episode < len(self.episodes):
            raise DataSetError(f"{self.root}: episode {episode} asked, there are {len(self.episodes)}")
        place = self.episodes.videos.get(key)
        if place is None:
            raise DataSetError(f"{self.root}: no video {key!r}; there are {self.info.video_keys}")
        path = self.video_path(key, FilePosition(int(place.chunk[episode]), int(place.file[episode])))
        from_s = float(place.from_s[episode])
        return VideoPlace(path, round(from_s * self.info.fps), int(self.episodes.length[episode]), from_s)

    def _rows_of_file(self, file: DataFile, keys: Sequence[str], start: int, stop: int) -> Iterator[ReadRows]:
        first_row = file.first_row
        with open_parquet(file.path) as parquet:
            for number in range(parquet.num_row_groups):
                count = parquet.metadata.row_group(number).num_rows
                low, high = max(start - first_row, 0), min(stop - first_row, count)
                if low < high:
                    group = self._read_group(file.path, parquet, number, keys)
                    yield {key: values[low:high] for key, values in group.items()}
                first_row += count

    def _read_group(self, path: Path, parquet: pq.ParquetFile, number: int, keys: Sequence[str]) -> ReadRows:
        self._check_columns(path, parquet, keys)
        with tables.arrow_errors(path, f"cannot read row group {number}", DataSetCorrupt):
            table = parquet.read_row_group(number, columns=list(keys), use_threads=False)
        return self._columns(table, keys, f"{path}: row group {number}")

    def _check_columns(self, path: Path, parquet: pq.ParquetFile, keys: Sequence[str]) -> None:
        missing = [key for key in keys if key not in parquet.schema_arrow.names]
        if missing:
            raise DataSetCorrupt(f"{path}: columns {missing} of info.json are missing")

    def _columns(self, table: pa.Table, keys: Sequence[str], where: str) -> ReadRows:
        return {key: self._column(table, key, f"{where}, {key!r}") for key in keys}

    def _column(self, table: pa.Table, key: str, where: str) -> NDArray[Any] | list[Any]:
        feature = self.info.features[key]
        if feature.dtype == "image":
            return [None if value is None else value.get("bytes") for value in table.column(key).to_pylist()]
        if feature.dtype == "string":
            return list(table.column(key).to_pylist())
        return columns.to_numpy(table.column(key), () if feature.is_scalar else feature.shape, where)

    def _column_names(self) -> list[str]:
        return [key for key, feature in self.info.features.items() if feature.dtype != "video"]

    def _needs_v30(self, doing: str) -> None:
        if self.info.version != layout.CODEBASE_VERSION:
            raise DataSetError(
                f"{self.root}: this is a LeRobot {self.info.version} data set; {doing} needs {layout.CODEBASE_VERSION}",
                hint="python -m lerobot.scripts.convert_dataset_v21_to_v30 makes one of it",
            )


def open_data_set(root: Path | str) -> DataSet:
    """Open a LeRobot data set: v3.0 in full, v2.1 for its metadata."""
    folder = Path(root)
    return DataSet(folder, metadata.read_info(folder))


def is_data_set(root: Path | str) -> bool:
    """Whether a directory looks like a LeRobot data set."""
    return (Path(root) / layout.INFO_PATH).is_file()


def _join(parts: Sequence[NDArray[Any] | list[Any]]) -> NDArray[Any] | list[Any]:
    if len(parts) == 1:
        return parts[0]
    if any(isinstance(part, list) for part in parts):
        return [value for part in parts for value in part]
    return np.concatenate(parts) if parts else []
