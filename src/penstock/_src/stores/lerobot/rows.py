"""The rows of a LeRobot data set by number: blocks of parquet columns, found by footers and kept a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot import layout
from penstock._src.lerobot.metadata import open_parquet
from penstock._src.lerobot.read.reader import DataSet, RowSpan
from penstock._src.stores.caches import Lru, Pool
from penstock._src.stores.lerobot.episode_table import RowStream
from penstock._src.stores.lerobot.part import Spans, TableFile
from penstock._src.system.closing import Closing
from penstock.errors import DataSetCorrupt

EPISODE, FRAME = "episode_index", "frame_index"
BLOCK_BYTES = 2 << 20
"""Of one column, read and kept at a time."""
BLOCKS_KEPT = 8
_MOST_BLOCK_ROWS = 65_536
_FOOTER_BYTES = 8 << 20


@dataclass(frozen=True)
class Leaf:
    """One column of one row group, as the footer describes it."""

    start: int
    n_bytes: int
    is_plain: bool
    """Uncompressed, without a dictionary: values lie in the file as they are."""
    levels: int
    """The definition level of a value that is there."""


@dataclass(frozen=True)
class Footer:
    """Where the row groups of a file end, in rows, and what its columns take per row, unpacked."""

    path: Path
    ends: NDArray[np.int64]
    row_bytes: dict[str, float]
    leaves: dict[str, tuple[Leaf, ...]]
    """Of the image columns: one per row group."""

    def group_of(self, place: int) -> int:
        return int(np.searchsorted(self.ends, place, side="right"))

    def group_start(self, group: int) -> int:
        return int(self.ends[group - 1]) if group else 0

    @property
    def n_bytes(self) -> int:
        return 512 + self.ends.nbytes + 256 * sum(len(each) for each in self.leaves.values())


class RowPlaces:
    """Whether rows lie where the metadata says, block by block and in order: images are found by place alone."""

    def __init__(self, where: Path, starts: NDArray[np.int64], numbers: NDArray[np.int64]) -> None:
        self._where, self._starts, self._numbers = where, starts, numbers
        self._before: int | None = None

    def __call__(self, first: int, values: Mapping[str, NDArray[Any]]) -> None:
        count = len(next(iter(values.values())))
        rows = np.arange(first, first + count)
        places = np.searchsorted(self._starts, rows, side="right") - 1
        if EPISODE in values:
            wrong = np.flatnonzero(values[EPISODE].reshape(-1) != self._numbers[places])
            if len(wrong):
                at = int(wrong[0])
                actual, expected = values[EPISODE].reshape(-1)[at], int(self._numbers[places[at]])
                self._refuse(first + at, f"is of episode {actual}, the episodes table has {expected} there")
        if FRAME in values:
            frames = values[FRAME].reshape(-1)
            before = np.concatenate([[frames[0] - 1 if self._before is None else self._before], frames[:-1]])
            wrong = np.flatnonzero((frames != before + 1) & (rows != self._starts[places]))
            if len(wrong):
                at = int(wrong[0])
                self._refuse(first + at, f"has frame_index {frames[at]}, the one before it {before[at]}")
            self._before = int(frames[-1])

    def _refuse(self, row: int, what: str) -> NoReturn:
        raise DataSetCorrupt(
            f"{self._where}: row {row:,} {what}: rows are out of order, and would be paired with the wrong images",
            hint="`penstock doctor` lists what disagrees",
        )


class _ColumnStream(Closing):
    """A stream of one column, and the row of the file that it gives next."""

    def __init__(self, data: DataSet, key: str, batch_rows: int) -> None:
        self.stream = RowStream(data, [key], batch_rows)
        self.key = key
        self.batch_rows = batch_rows
        self.file = -1
        self.at = 0

    def close(self) -> None:
        self.stream.close()


class RowTable:
    """The data files of the opened episodes. Any thread may ask; nothing that was open before a fork is used after."""

    def __init__(self, data: DataSet, spans: Spans) -> None:
        self._data = data
        self.spans = spans
        self._images = [key for key, feature in data.info.features.items() if feature.dtype == "image"]
        self._footers: Lru[Footer] = Lru(_FOOTER_BYTES, lambda footer: footer.n_bytes)
        self._blocks: dict[str, Lru[Any]] = {}
        self._streams: Pool[_ColumnStream] = Pool(fewest=4)

    @property
    def files(self) -> Sequence[TableFile]:
        return self.spans.files

    def path(self, file: int) -> Path:
        """A data file, confined to the root."""
        return layout.path_in(self._data.root, self.files[file].relative)

    def footer(self, file: int) -> Footer:
        """What the footer of a file says; refused where it has other rows than the metadata says."""
        return self._footers.get(file, lambda: self._read_footer(file))

    def block(self, key: str, file: int, place: int) -> tuple[int, Any]:
        """(its first row in the file, values) of the block in which a row of a file lies; values as RowStream gives."""
        footer = self.footer(file)
        rows = int(min(max(BLOCK_BYTES / max(footer.row_bytes.get(key, 8.0), 1.0), 1), _MOST_BLOCK_ROWS))
        number = place // rows
        blocks = self._blocks.get(key)
        if blocks is None:
            blocks = self._blocks.setdefault(key, Lru(BLOCKS_KEPT))
        first = number * rows
        return first, blocks.get((file, number), lambda: self._read_block(key, file, first, rows))

    def peek(self, key: str, file: int, place: int) -> Any:
        """One value by itself, of which nothing is kept; `place` begins a row group: no other is passed over."""
        stream = RowStream(self._data, [key], 1)
        try:
            stream.begin([self._span(file, place, place + 1)])
            return stream.take(1)[key][0]
        finally:
            stream.close()

    def values(self, key: str, rows: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[Any]:
        """Rows of a numbers column in any order, (n, *shape)."""
        files, places = self.spans.locate(rows)
        order = np.lexsort((places, files))
        out: NDArray[Any] | None = None
        at = 0
        while at < len(order):
            file = int(files[order[at]])
            first, values = self.block(key, file, int(places[order[at]]))
            end = at
            while end < len(order) and files[order[end]] == file and places[order[end]] < first + len(values):
                end += 1
            part = order[at:end]
            if out is None:
                out = np.empty((len(rows), *shape), values.dtype)
            out[part] = values[places[part] - first]
            at = end
        return np.empty((0, *shape), self._data.info.features[key].dtype) if out is None else out

    def objects(self, key: str, rows: NDArray[np.int64]) -> list[Any]:
        """Rows of a column of texts."""
        objects: list[Any] = []
        files, places = self.spans.locate(rows)
        for file, place in zip(files.tolist(), places.tolist(), strict=True):
            first, values = self.block(key, file, place)
            objects.append(values[place - first])
        return objects

    def batches(self, keys: Sequence[str], batch_rows: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """All rows in order, at most `batch_rows` at a time."""
        stream = RowStream(self._data, keys, batch_rows)
        spans = self.spans
        try:
            for number, file in enumerate(spans.file.tolist()):
                row, end = int(spans.starts[number]), int(spans.starts[number + 1])
                first = int(spans.first[number])
                self.footer(file)
                stream.begin([self._span(file, first, first + end - row)])
                while row < end:
                    rows = min(batch_rows, end - row)
                    yield row, stream.take(rows)
                    row += rows
        finally:
            stream.close()

    def close(self) -> None:
        self._streams.close()
        self._footers.clear()
        self._blocks.clear()

    def _span(self, file: int, start: int, stop: int) -> RowSpan:
        return RowSpan(self.path(file), start, stop, self.files[file].first_row)

    def _read_block(self, key: str, file: int, first: int, rows: int) -> Any:
        end = min(first + rows, self.files[file].rows)
        footer = self.footer(file)

        def away(stand: _ColumnStream) -> float | None:
            """In rows, where going on is no longer than beginning the row group anew."""
            if stand.key != key or stand.file != file or stand.batch_rows != rows or stand.at > first:
                return None
            begin = footer.group_start(footer.group_of(first))
            return first - stand.at if stand.at >= begin or stand.at == first else None

        stand = self._streams.take(away, lambda: _ColumnStream(self._data, key, rows))
        whole = False
        try:
            if stand.file == file and stand.at < first:
                stand.stream.begin([self._span(file, stand.at, first)])
                while stand.at < first:
                    skipped = min(rows, first - stand.at)
                    stand.stream.take(skipped)
                    stand.at += skipped
            stand.stream.begin([self._span(file, first, end)])
            values = stand.stream.take(end - first)[key]
            stand.file, stand.at = file, end
            whole = True
            return values
        finally:
            self._streams.give(stand, whole=whole)

    def _read_footer(self, file: int) -> Footer:
        path, expected, first_row = self.path(file), self.files[file].rows, self.files[file].first_row
        with open_parquet(path) as parquet:
            rows = int(parquet.metadata.num_rows)
            if rows != expected:
                raise DataSetCorrupt(
                    f"{path}: {rows:,} rows, the metadata says {expected:,}",
                    hint="fetch the file again; `penstock doctor` lists what else disagrees",
                )
            ends = _index_ends(parquet) if self._data.is_v30 else None
            if ends is not None and ends != (first_row, first_row + rows - 1):
                raise DataSetCorrupt(
                    f"{path}: its index goes from {ends[0]:,} to {ends[1]:,}, the metadata says {first_row:,} to "
                    f"{first_row + rows - 1:,}: an index gap",
                    hint="its rows would be paired with the wrong frames; `penstock doctor` lists what else disagrees",
                )
            return _described(path, parquet, self._images)


def _index_ends(parquet: Any) -> tuple[int, int] | None:
    """The first and the last `index` of a file, where its footer says them."""
    names = [parquet.schema.column(number).path for number in range(len(parquet.schema))]
    if "index" not in names or not parquet.num_row_groups:
        return None
    groups = [parquet.metadata.row_group(number) for number in (0, parquet.num_row_groups - 1)]
    low, high = (group.column(names.index("index")).statistics for group in groups)
    if low is None or high is None or not (low.has_min_max and high.has_min_max):
        return None
    return int(low.min), int(high.max)


def _described(path: Path, parquet: Any, images: Sequence[str]) -> Footer:
    """The footer of an open file, as far as reading rows needs it."""
    meta = parquet.metadata
    leaf_paths = [parquet.schema.column(number).path for number in range(len(parquet.schema))]
    counts, sizes = [], dict.fromkeys(parquet.schema_arrow.names, 0)
    owner = {number: _owner(leaf, sizes) for number, leaf in enumerate(leaf_paths)}
    leaves: dict[str, list[Leaf]] = {key: [] for key in images}
    numbers = {key: leaf_paths.index(f"{key}.bytes") for key in images if f"{key}.bytes" in leaf_paths}
    for group_number in range(meta.num_row_groups):
        group = meta.row_group(group_number)
        counts.append(group.num_rows)
        if group_number == 0:  # the others are much alike
            for number, name in owner.items():
                if name is not None:
                    sizes[name] += group.column(number).total_uncompressed_size
        for key, number in numbers.items():
            leaves[key].append(_leaf(group.column(number), parquet.schema.column(number)))
    row_bytes = {name: size / max(counts[0], 1) for name, size in sizes.items()} if counts else {}
    ends = np.cumsum(np.array(counts, np.int64), dtype=np.int64)
    return Footer(path, ends, row_bytes, {key: tuple(places) for key, places in leaves.items() if places})


def _leaf(chunk: Any, column: Any) -> Leaf:
    plain = (
        chunk.compression == "UNCOMPRESSED"
        and not chunk.has_dictionary_page
        and set(chunk.encodings) <= {"PLAIN", "RLE", "BIT_PACKED"}
        and column.max_repetition_level == 0
    )
    return Leaf(chunk.data_page_offset, chunk.total_compressed_size, plain, column.max_definition_level)


def _owner(leaf: str, names: dict[str, int]) -> str | None:
    """The column that a leaf of parquet's schema belongs to: names have dots, too."""
    parts = leaf.split(".")
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in names:
            return name
    return None
