"""The rows of one episode after the other, a bounded number at a time, whatever row groups the files have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import DataSetCorrupt
from penstock.lerobot import tables
from penstock.lerobot.metadata import open_parquet
from penstock.lerobot.read.reader import DataSet, ReadRows, RowSpan

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_RESTORE = "fetch the file again, or bad_episodes=drop leaves its episodes out and counts them"


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
            self._stand_at(span)
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

    def _stand_at(self, span: RowSpan) -> None:
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
