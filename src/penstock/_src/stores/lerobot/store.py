"""LeRobot data sets as a store: v3.0, v2.1 and v2.0, whole or some episodes of them.

    store = penstock.open("datasets/run", episodes=[1, 2])
    store.numbers("action", np.array([0, 17]))            # (2, 16)
    store.texts("task", np.array([0]))                    # ["lift the cup"]

A feature of shape (1,) is a plain number per row, as LeRobot hands it out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import layout
from penstock._src.lerobot.features import ROW_KEYS, Feature
from penstock._src.lerobot.read import version21
from penstock._src.lerobot.read.frames import FrameFinder
from penstock._src.lerobot.read.reader import DataSet, open_data_set
from penstock._src.stores.caches import Lru
from penstock._src.stores.lerobot.columns import TASK, OpenPart, column_of, open_part
from penstock._src.stores.lerobot.episode_table import PLACE_KEYS, EpisodeTable, RowStream
from penstock._src.stores.lerobot.images import ImageFileSource
from penstock._src.stores.lerobot.packets import EpisodePackets
from penstock._src.stores.lerobot.part import EpisodeFileTable, row_spans
from penstock._src.stores.lerobot.rows import EPISODE, FRAME, RowPlaces, RowTable
from penstock._src.stores.lerobot.survey import DataSetSurvey
from penstock._src.stores.lerobot.videos import CameraFiles, VideoSource
from penstock._src.stores.roles import LEROBOT
from penstock._src.stores.store import Column, ImageSource, Packets, Store, row_numbers
from penstock._src.system.files import ByteSource, as_path, open_source
from penstock.errors import DataSetCorrupt, StoreError, os_errors

OPEN_FILES = 128
INDEX_BYTES = 64 << 20
"""What the indexes of videos and of plain images may hold together: eight million frames."""
_TASK_ROWS = 65_536
_LIBRARY_BYTES = 8 << 20  # the part of Arrow that reads rows


class LeRobotStore(Store):
    """An open LeRobot data set. `episodes` are the numbers that the data set gives them, in the order wanted, or
    "whole": those whose files are all there."""

    has_doctor = declares_index = True
    episode_numbers: NDArray[np.int64]

    def __init__(
        self, path: str | os.PathLike[str], *, episodes: Sequence[int] | str | None = None,
        columns: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        # The working directory may be another one when rows are read.
        data = open_data_set(as_path(path).absolute())
        self._columns_asked = None if columns is None else list(columns)
        self._open(as_path(path), data, open_part(data, episodes, columns))

    @classmethod
    def in_order(cls, data: DataSet, survey: DataSetSurvey) -> LeRobotStore:
        """The usable episodes of a data set that was surveyed, for `begin` and `packets` alone: nothing more is opened,
        and what is wrong with other episodes is no matter."""
        store = cls.__new__(cls)
        numbers = np.array(survey.usable, np.int64)
        starts = np.concatenate([[0], np.cumsum(data.episodes.length[numbers])]).astype(np.int64)
        names = tuple(key for key in data.info.features if key not in ROW_KEYS)
        codecs = {key: camera.codec for key, camera in survey.cameras.items()}
        store._columns_asked = list(names)
        store._open(data.root, data, OpenPart(numbers, starts, names, None, {}, {}, codecs, False, ()))
        store.reading_bytes = _LIBRARY_BYTES
        return store

    def _open(self, path: Path, data: DataSet, part: OpenPart) -> None:
        self.path, self.data, self._part = path, data, part
        self.notes = part.notes
        self.robot_type = data.info.robot_type
        self._sequence: RowStream | None = None
        self._finder = FrameFinder(data)
        self.kind = f"LeRobot {self.data.info.version}"
        self.fps = float(self.data.info.fps)
        self.episode_starts = self._part.starts
        self.episode_numbers = self.data.episodes.index[self._part.numbers]
        self._files: Lru[ByteSource] = Lru(OPEN_FILES)
        self._indexes: Lru[Any] = Lru(INDEX_BYTES, lambda index: int(index.n_bytes))
        self._table = RowTable(self.data, self._part.spans) if self._part.spans is not None else None
        self._sources: dict[str, ImageSource] = {}
        self._is_closed = False
        self.columns: Mapping[str, Column] = {name: self._column(name) for name in self._part.names}
        self.roles = {role: name for role, names in LEROBOT.items() for name in names[::-1] if name in self.columns}

    @property
    def tasks(self) -> list[str]:
        """The texts of all tasks; the position is the `task_index`."""
        return self.data.tasks

    @property
    def stats(self) -> dict[str, Any] | None:
        """meta/stats.json, by which LeRobot normalises; v2.1 has none."""
        return self.data.stats

    @cached_property
    def ends_terminal(self) -> NDArray[np.bool_] | None:  # type: ignore[override]
        """As in every store, by the terminal column, also where `columns` left it out: which rows are samples does not
        depend on that. Read when it is first asked for, at the last row of each episode."""
        features = self.data.info.features
        name = next((name for name in LEROBOT["terminal"] if name in features), None)
        if name is None or not features[name].is_numeric or not features[name].is_scalar:
            return None
        table = self._rows() if self._table is not None else self._table_of_ends()
        if table is None:
            return None
        values = table.values(name, self._part.starts[1:] - 1, ())
        return np.asarray((values != 0) & (values == values), np.bool_)  # a NaN says nothing

    def _table_of_ends(self) -> RowTable | None:
        """Of a store that has images alone, and perhaps was fetched without its tables."""
        files = EpisodeFileTable(self.data, (), with_rows=True)
        if not files.whole[self._part.numbers].all():
            return None
        return RowTable(self.data, row_spans(self.data, self._part.numbers, files.of(None)))

    def place_in_table(self, position: int) -> int:
        """Where the episode stands in the episodes table."""
        return int(self._part.numbers[position])

    def packets(self, name: str, position: int) -> Packets | None:
        if self.data.info.features[name].dtype != "video":
            return None
        return EpisodePackets(self._finder.find(self.place_in_table(position), name))

    def begin(self, position: int, batch_rows: int) -> EpisodeTable:
        """The rows of an episode in order; those of episodes that follow each other are read in one pass."""
        if self._sequence is None:
            own = [name for name in self._part.names if name not in self._part.codecs and name not in ROW_KEYS]
            self._sequence = RowStream(self.data, [*own, *PLACE_KEYS], batch_rows)
        return EpisodeTable(self.data, self.place_in_table(position), self._sequence)

    @property
    def index_bytes(self) -> int:
        """What the indexes hold in memory now."""
        return self._indexes.total

    def images(self, name: str) -> ImageSource:
        column = self.column(name)
        if not column.is_image:
            known = ", ".join(name for name, each in self.columns.items() if each.is_image) or "none"
            raise StoreError(f"{self.path}: {name!r} is not an image but {column.kind}", hint=f"images: {known}")
        return self._source(name, column.encoding, column.dtype, column.stored_bytes)

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        column = self._numbers_column(name)
        wanted = row_numbers(rows, str(self.path), self.rows)
        return self._declared(column, self._rows().values(name, wanted, column.shape))

    def number_blocks(self, names: Sequence[str], block_bytes: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        columns = [self._numbers_column(name) for name in names]
        if not columns:
            return
        row_bytes = max(sum(column.row_bytes for column in columns), 1)
        placing = [name for name in (EPISODE, FRAME) if name in self.data.info.features and name not in names]
        check = RowPlaces(self.path, self.episode_starts, self.episode_numbers)
        for first, values in self._rows().batches([*names, *placing], max(block_bytes // row_bytes, 1)):
            check(first, values)
            yield first, {column.name: self._declared(column, values[column.name]) for column in columns}

    def texts(self, name: str, rows: NDArray[np.int64]) -> list[str]:
        column = self.column(name)
        if column.kind != "text":
            return super().texts(name, rows)
        wanted = row_numbers(rows, str(self.path), self.rows)
        if name != TASK or TASK in self.data.info.features:
            return [_text(value) for value in self._rows().objects(name, wanted)]
        tasks = self.tasks
        return [tasks[number] for number in self._task_numbers[wanted].tolist()]

    def fingerprint(self, name: str) -> str:
        column = self.column(name)
        digest = hashlib.sha256(f"{self.kind} {name} {column.kind} {column.shape} {column.dtype}".encode())
        part = self._part
        if name in part.cameras:
            relatives, file_of = part.cameras[name]
            digest.update(file_of.tobytes())
            if self.data.is_v30:
                digest.update(self.data.episodes.videos[name].from_s[part.numbers].tobytes())
        else:
            spans = self._rows().spans
            relatives = [file.relative for file in spans.files]
            for places in (spans.starts, spans.file, spans.first):
                digest.update(places.tobytes())
        if name == TASK:
            tasks = self.data.metadata_root.relative_to(self.data.root) / layout.TASKS_PATH
            relatives = [*relatives, tasks.as_posix() if self.data.is_v30 else version21.TASKS_PATH]
        digest.update(self.episode_starts.tobytes())
        for relative in relatives:
            with os_errors(DataSetCorrupt, f"{self.path / relative}"), open_source(self.data.root / relative) as source:
                identity, sample = source.identity(), source.sample()
            digest.update(f"{relative}\0{identity.size_bytes}\0{identity.mtime_ns}\0".encode())
            digest.update(sample)
        return digest.hexdigest()

    def close(self) -> None:
        self._is_closed = True
        for source in self._sources.values():
            if isinstance(source, VideoSource):
                source.close()
        self._sources.clear()
        for rows in (self._table, self._sequence):
            if rows is not None:
                rows.close()
        self._indexes.clear()
        self._files.clear()

    def __reduce__(self) -> tuple[Any, ...]:
        root, words = self.reopening()
        return _opened, (str(root), words["episodes"], words["columns"])

    def reopening(self) -> tuple[Path, dict[str, Any]]:
        episodes = None if self._part.is_whole else self.episode_numbers.tolist()
        return self.data.root, {"episodes": episodes, "columns": self._columns_asked}

    @cached_property
    def _task_numbers(self) -> NDArray[Any]:
        """The task of every row in one or two bytes, from one pass over that column: texts are asked for at random."""
        count = len(self.tasks)
        numbers = np.empty(self.rows, np.min_scalar_type(max(count - 1, 0)))
        for first, block in self._rows().batches(["task_index"], _TASK_ROWS):
            task_numbers = np.asarray(block["task_index"])
            bad = np.flatnonzero((task_numbers < 0) | (task_numbers >= count))
            if len(bad):
                raise DataSetCorrupt(
                    f"{self.path}: row {first + int(bad[0]):,} has task_index {int(task_numbers[bad[0]])}, there are "
                    f"{count} tasks"
                )
            numbers[first : first + len(task_numbers)] = task_numbers
        return numbers

    def _column(self, name: str) -> Column:
        feature = self.data.info.features.get(name)
        stored = self._part.stored_bytes(name)
        column = column_of(self.data, name, feature, self._part, stored)
        if column.encoding == "png" and feature is not None and feature.dtype == "image" and self.rows and self._table:
            return self._image_column(column, feature)
        return column

    def _image_column(self, column: Column, feature: Feature) -> Column:
        """Images in the table: one footer and a few bytes tell what they are, and whether each lies by itself."""
        source = self._source(feature.key, column.encoding, column.dtype, column.stored_bytes)
        if not isinstance(source, ImageFileSource):
            return column
        encoding, way, why = source.probe()
        return Column(column.name, column.kind, column.shape, column.dtype, encoding, way, why, column.stored_bytes)

    def _source(self, name: str, encoding: str, dtype: str, stored_bytes: int) -> ImageSource:
        if self._is_closed:
            raise StoreError(f"{self.path} is closed")
        source = self._sources.get(name)
        if source is not None:
            return source
        feature = self.data.info.features[name]
        mean_bytes = stored_bytes // max(self.rows, 1)
        made: ImageSource
        if feature.dtype == "video":
            relatives, file_of = self._part.cameras[name]
            camera = CameraFiles(
                self.data, name, self._part.numbers, self.episode_starts, relatives, file_of, self._indexes
            )
            made = VideoSource(camera, feature, encoding, self._files, mean_bytes)
            made.scratch_bytes += self._part.decoder_bytes_beside(self.data, name)
        else:
            made = ImageFileSource(self._rows(), feature, dtype, self._indexes, self._files, mean_bytes)
        return self._sources.setdefault(name, made)

    def _rows(self) -> RowTable:
        if self._is_closed:
            raise StoreError(f"{self.path} is closed")
        if self._table is None:
            raise StoreError(f"{self.path}: opened without a column of the table", hint="name one in columns=[…]")
        return self._table

    def _numbers_column(self, name: str) -> Column:
        column = self.column(name)
        if column.kind != "numbers":
            raise StoreError(f"{self.path}: {name!r} does not hold numbers but {column.kind}")
        return column

    def _declared(self, column: Column, values: NDArray[Any]) -> NDArray[Any]:
        """In the dtype of info.json, as LeRobot casts them."""
        if not np.can_cast(values.dtype, column.dtype, "same_kind"):
            raise DataSetCorrupt(
                f"{self.path}: {column.name!r} is {values.dtype} in the data files, info.json says {column.dtype}",
                hint="correct the dtype in meta/info.json",
            )
        if values.dtype == column.dtype:
            return values
        with np.errstate(over="ignore"):
            made = values.astype(column.dtype)
        is_lost = made != values if made.dtype.kind in "iu" else np.isinf(made) & ~np.isinf(values)
        if is_lost.any():
            raise DataSetCorrupt(
                f"{self.path}: {column.name!r} holds {values[is_lost][0]}, which {column.dtype} cannot hold, as "
                "info.json says it does",
                hint="correct the dtype in meta/info.json",
            )
        return made


def _opened(path: str, episodes: Sequence[int] | None, columns: Sequence[str] | None) -> LeRobotStore:
    return LeRobotStore(path, episodes=episodes, columns=columns)


def _text(value: object) -> str:
    """A string column as it is; the entries of a language column as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
