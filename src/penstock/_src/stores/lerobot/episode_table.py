"""The rows of one episode of a LeRobot data set in order, each checked to stand where it belongs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import tables
from penstock._src.lerobot.metadata import open_parquet
from penstock._src.lerobot.read.frames import TOLERANCE_S
from penstock._src.lerobot.read.reader import DataSet, ReadRows, RowSpan
from penstock.errors import DataSetCorrupt

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

PLACE_KEYS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
_DOCTOR = "`penstock doctor` lists what else disagrees"

_RESTORE = "fetch the file again, or bad_episodes=drop leaves its episodes out and counts them"


class EpisodeTable:
    """The rows of one episode, some after the others; `retimed` of them had another time than their frame, so far."""

    def __init__(self, data: DataSet, number: int, rows: RowStream) -> None:
        self._data, self._number, self._rows = data, number, rows
        rows.begin(data.row_spans(number))
        self._episode = int(data.episodes.index[number])
        self._at = 0
        self.retimed = 0
        self.apart_s = 0.0

    def take(self, rows: int) -> ReadRows:
        """The next rows: numbers as arrays, texts and images as lists; each stands where it belongs."""
        values = self._rows.take(rows)
        self._check_place(values)
        self._check_tasks(values)
        self._at += rows
        return values

    def _check_place(self, values: ReadRows) -> None:
        data, episode = self._data, self._episode
        frame, owner, index = (np.asarray(values[key]) for key in ("frame_index", "episode_index", "index"))
        expected = np.arange(self._at, self._at + len(frame))
        self._refuse("frame_index", frame, expected)
        self._refuse("episode_index", owner, np.full(len(owner), episode))
        if data.is_v30:
            self._refuse("index", index, expected + int(data.episodes.first_row[self._number]))
        should_s = (expected / data.info.fps).astype(np.float32)
        allowed_s = np.maximum(TOLERANCE_S, np.spacing(np.abs(should_s)))
        apart_s = np.abs(np.asarray(values["timestamp"], np.float64) - should_s)
        wrong = ~(apart_s <= allowed_s)
        self.retimed += int(np.count_nonzero(wrong))
        self.apart_s = max(self.apart_s, float(np.max(apart_s[wrong & np.isfinite(apart_s)], initial=0.0)))

    def _refuse(self, key: str, values: NDArray[Any], expected: NDArray[Any]) -> None:
        wrong = np.flatnonzero(values != expected)
        if len(wrong):
            at = int(wrong[0])
            raise DataSetCorrupt(
                f"{self._data.root}: episode {self._episode}, row {self._at + at:,}: {key} is {values[at]}, not "
                f"{expected[at]}",
                hint=f"its rows would be paired with the wrong frames; {_DOCTOR}",
            )

    def _check_tasks(self, values: ReadRows) -> None:
        used, count = np.unique(np.asarray(values["task_index"])), len(self._data.tasks)
        if int(used[0]) < 0 or int(used[-1]) >= count:
            raise DataSetCorrupt(
                f"{self._data.root}: episode {self._episode}: task_index {int(used[-1])}, there are {count} tasks",
                hint=_DOCTOR,
            )


class RowStream:
    """Reads forward and keeps its place, so that episodes which share a row group decode it once.

    >>> stream = RowStream(data, ["observation.state", "action"], batch_rows=1000)    # doctest: +SKIP
    >>> stream.begin(data.row_spans(0)); rows = stream.take(1000)                     # doctest: +SKIP
    """

    def __init__(self, data: DataSet, keys: Sequence[str], batch_rows: int) -> None:
        self._data = data
        self._keys = list(keys)
        self._batch_rows = max(batch_rows, 1)
        self._spans: list[RowSpan] = []
        self._file: pq.ParquetFile | None = None
        self._path: Path | None = None
        self._batches: Iterator[Any] = iter(())
        self._left: pa.RecordBatch | None = None
        self._at = 0  # the row of the open file that comes next

    def begin(self, spans: Sequence[RowSpan]) -> None:
        """Stand before the first row of an episode."""
        self._spans = list(spans)

    def take(self, rows: int) -> ReadRows:
        """The next rows of the episode, exactly as many as asked."""
        import pyarrow as pa

        parts: list[pa.RecordBatch] = []
        where = ""
        missing = rows
        while missing:
            if not self._spans:
                raise DataSetCorrupt(f"{self._path or self._data.root}: the episode has {missing:,} rows fewer")
            span = self._spans[0]
            self._seek(span)
            where = where or f"{span.path}: row {span.start:,}"
            with tables.arrow_errors(span.path, "cannot read rows", DataSetCorrupt):
                part = self._next(min(missing, span.stop - span.start))
            parts.append(self._data.completed(part, self._keys, span.first_row + span.start))
            missing -= part.num_rows
            after = RowSpan(span.path, span.start + part.num_rows, span.stop, span.first_row)
            self._spans[:1] = [after] if after.start < after.stop else []
        return self._data.columns_of(pa.Table.from_batches(parts), self._keys, where)

    def close(self) -> None:
        self._batches = iter(())
        self._left = None
        if self._file is not None:
            self._file.close()
        self._file = self._path = None

    def _seek(self, span: RowSpan) -> None:
        if self._path == span.path and self._at == span.start:
            return
        self.close()
        self._file = open_parquet(span.path)
        self._path = span.path
        stored = self._data.stored_columns(span.path, self._file, self._keys)
        groups, first, skipped = [], 0, 0
        for number in range(self._file.num_row_groups):
            count = self._file.metadata.row_group(number).num_rows
            if first + count > span.start:
                groups.append(number)
            else:
                skipped += count
            first += count
        if first < span.stop:
            raise DataSetCorrupt(f"{span.path}: {first:,} rows, {span.stop:,} are needed", hint=_RESTORE)
        self._at = skipped
        with tables.arrow_errors(span.path, "cannot read rows", DataSetCorrupt):
            self._batches = self._file.iter_batches(
                batch_size=self._batch_rows, row_groups=groups, columns=stored, use_threads=False
            )
            while self._at < span.start:
                self._next(span.start - self._at)

    def _next(self, rows: int) -> pa.RecordBatch:
        """At most `rows` of what comes next, at least one."""
        while self._left is None or self._left.num_rows == 0:
            left = next(self._batches, None)
            if left is None:
                raise DataSetCorrupt(f"{self._path}: ends after {self._at:,} rows", hint=_RESTORE)
            self._left = left
        part = self._left.slice(0, rows)
        rest = self._left.num_rows - part.num_rows
        self._left = self._left.slice(part.num_rows) if rest else None
        self._at += part.num_rows
        return part
