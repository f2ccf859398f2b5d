"""Which episodes of a LeRobot data set are opened and which files they need; where the rows lie.

The metadata must agree with itself, and one `stat` per file tells which episodes have all of theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.content import foreign_content
from penstock._src.lerobot import layout
from penstock._src.lerobot.read.reader import DataSet
from penstock._src.stores.opening import whole_numbers
from penstock._src.system.files import file_sizes
from penstock.errors import DataSetCorrupt, StoreError

WHOLE = "whole"
"""`episodes="whole"`: those whose files are all there."""
SMALLEST_FILE_BYTES = 200  # no parquet file and no video is smaller; a Git LFS pointer is, and an empty file
_MOST_SHOWN = 12

_DOCTOR = "`penstock doctor` lists what else disagrees"


@dataclass(frozen=True, eq=False)
class ColumnFiles:
    """The files of the rows, or of one camera, in the order in which the episodes table names them."""

    relatives: Sequence[str]
    of_episode: NDArray[np.int32]
    """The file of every episode of the table; -1 where the table names none."""
    sizes: NDArray[np.int64]
    """In bytes; -1 where the file is absent."""

    @property
    def is_there(self) -> NDArray[np.bool_]:
        """Of every episode: whether its file is there."""
        present = np.append(self.sizes >= SMALLEST_FILE_BYTES, False)
        return np.asarray(present[self.of_episode], np.bool_)


class EpisodeFileTable:
    """The files of the episodes, of some cameras (`keys`) and of the rows."""

    def __init__(self, data: DataSet, keys: Sequence[str], with_rows: bool) -> None:
        self._data = data
        self._columns = {key: _column_files(data, key) for key in ([None] if with_rows else []) + [*keys]}

    def of(self, key: str | None) -> ColumnFiles:
        """Of a camera, or of the rows (None)."""
        return self._columns[key]

    def without_camera(self, key: str) -> None:
        del self._columns[key]

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Of every episode: whether all of its files are there."""
        mask = np.ones(len(self._data.episodes), np.bool_)
        for column in self._columns.values():
            mask &= column.is_there
        return mask

    def require(self, numbers: NDArray[np.int64]) -> None:
        """Refuse where a file of these episodes is absent; says which episodes are whole."""
        absent = numbers[~self.whole[numbers]]
        if len(absent):
            raise self.problem(int(absent[0]))

    def problem(self, number: int) -> DataSetCorrupt:
        """What the episode at a place of the table lacks, and what to do."""
        data, index = self._data, self._data.episodes.index
        key, _ = self._first_absent(number)
        whole = index[self.whole].tolist()
        elsewhere = data.elsewhere(key)
        message, remedy = self._message(number)
        hints = [each for each in (remedy, elsewhere) if each]
        if whole:
            some = f"episodes={listed(whole)} ({len(whole)} of {len(index)})"
            hints.append(f'episodes="{WHOLE}" opens those that are whole: {some}')
        elif not hints:
            hints.append("fetch the data set again")
        if key is not None and len(self._columns) > 1:
            hints.append(f"columns=[…] without {key!r} opens the others")
        return DataSetCorrupt(message, hint="; ".join(hints))

    def _first_absent(self, number: int) -> tuple[str | None, ColumnFiles]:
        return next((key, each) for key, each in self._columns.items() if not each.is_there[number])

    def _message(self, number: int) -> tuple[str, str | None]:
        key, column = self._first_absent(number)
        what, remedy = _file_problem(self._data.root, column, number, key)
        return f"{self._data.root}: {what} (episode {int(self._data.episodes.index[number])})", remedy

    def note(self, numbers: NDArray[np.int64]) -> str:
        """Which episodes `episodes="whole"` left out, and why."""
        left = np.setdiff1d(np.arange(len(self._data.episodes)), numbers)
        names = listed(self._data.episodes.index[left].tolist())
        every = len(self._data.episodes)
        verb = "is" if len(left) == 1 else "are"
        return f"{len(left):,} of {every:,} episodes {verb} left out: {names}; {self._message(int(left[0]))[0]}"


def _file_problem(root: Path, column: ColumnFiles, number: int, key: str | None) -> tuple[str, str | None]:
    """Of the file of an episode; and what to do about it, where its content shows that."""
    place = int(column.of_episode[number])
    if place < 0:
        return f"the metadata names no video of {key!r}", None
    size = int(column.sizes[place])
    if size < 0:
        return f"{column.relatives[place]} is absent", None
    foreign = foreign_content(f"{root}/{column.relatives[place]}", "parquet" if key is None else "mp4")
    if foreign is None:
        return f"{column.relatives[place]} has {size} bytes: too few for rows or frames", None
    return f"{column.relatives[place]} is {foreign.what}", foreign.hint


def _column_files(data: DataSet, key: str | None) -> ColumnFiles:
    relatives, of_episode = data.named_files(key)
    sizes = np.array(file_sizes(data.root, relatives), np.int64)
    return ColumnFiles(relatives, of_episode, sizes)


def listed(values: Sequence[int]) -> str:
    """Numbers for a message, cut where there are many."""
    shown = ", ".join(str(value) for value in values[:_MOST_SHOWN])
    return f"[{shown}, …]" if len(values) > _MOST_SHOWN else f"[{shown}]"


@dataclass(frozen=True)
class TableFile:
    """A file of rows: relative to the root, with the rows that the metadata says it has."""

    relative: str
    rows: int
    n_bytes: int
    first_row: int
    """The number that its first row has in the data set."""


@dataclass(frozen=True)
class Spans:
    """Rows of a store that follow each other in one file: where each run begins, its file, and its first row there."""

    files: Sequence[TableFile]
    starts: NDArray[np.int64]
    """One more than there are runs."""
    file: NDArray[np.int32]
    first: NDArray[np.int64]

    def locate(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(file, row in the file) of rows."""
        span = np.searchsorted(self.starts, rows, side="right") - 1
        return self.file[span].astype(np.int64), rows - self.starts[span] + self.first[span]


def check_totals(data: DataSet, hint: str = _DOCTOR) -> None:
    """Refuse an info.json that counts other episodes or rows than the episodes table has."""
    info, episodes = data.info, data.episodes
    where, rows = data.root / layout.INFO_PATH, int(episodes.length.sum())
    if info.total_episodes != len(episodes):
        text = f"total_episodes is {info.total_episodes:,}, the episodes table has {len(episodes):,}"
        raise DataSetCorrupt(f"{where}: {text}", hint=hint)
    if info.total_frames != rows:
        text = f"total_frames is {info.total_frames:,}, the episodes together have {rows:,} rows"
        raise DataSetCorrupt(f"{where}: {text}", hint=hint)


def check_metadata(data: DataSet) -> None:
    """Refuse metadata that contradicts itself: rows would be paired with wrong frames."""
    check_totals(data)
    episodes = data.episodes
    empty = np.flatnonzero(episodes.length < 1)
    if len(empty):
        number = int(empty[0])
        raise DataSetCorrupt(
            f"{data.root}: episode {int(episodes.index[number])} has {int(episodes.length[number])} rows", hint=_DOCTOR
        )
    numbers, counts = np.unique(episodes.index, return_counts=True)
    if (counts > 1).any():
        twice = int(numbers[int(np.argmax(counts > 1))])
        raise DataSetCorrupt(f"{data.root}: episode {twice} stands in the episodes table more than once", hint=_DOCTOR)
    if data.is_v30:
        check_places(data)


def check_places(data: DataSet) -> None:
    """v3.0 says of every episode which rows it has; together they are all rows, in order."""
    episodes = data.episodes
    wrong = np.flatnonzero(episodes.end_row - episodes.first_row != episodes.length)
    if len(wrong):
        at = int(wrong[0])
        first, end = int(episodes.first_row[at]), int(episodes.end_row[at])
        raise DataSetCorrupt(
            f"{data.root}: episode {int(episodes.index[at])}: length {int(episodes.length[at]):,}, but rows "
            f"{first:,}…{end:,} are {end - first:,}",
            hint=_DOCTOR,
        )
    expected = np.cumsum(episodes.length) - episodes.length
    gaps = np.flatnonzero(episodes.first_row != expected)
    if len(gaps):
        at = int(gaps[0])
        raise DataSetCorrupt(
            f"{data.root}: episode {int(episodes.index[at])} starts at row {int(episodes.first_row[at]):,}, the one "
            f"before ends at {int(expected[at]):,}: an index gap",
            hint="the rows after it would be paired with the wrong frames; " + _DOCTOR,
        )


def choose(data: DataSet, episodes: Iterable[int] | None) -> NDArray[np.int64]:
    """The places in the episodes table of the episodes asked for, in that order."""
    known = data.episodes.index
    if episodes is None:
        return np.arange(len(known), dtype=np.int64)
    requested = whole_numbers(episodes, data.root) or []
    places = {int(number): place for place, number in enumerate(known.tolist())}
    seen: set[int] = set()
    for number in requested:
        if number not in places:
            raise StoreError(f"{data.root}: no episode {number}", hint=f"there are {_numbers(known.tolist())}")
        if number in seen:
            raise StoreError(f"{data.root}: episode {number} is asked for twice", hint="each episode once")
        seen.add(number)
    return np.array([places[number] for number in requested], np.int64)


def _numbers(values: Sequence[int]) -> str:
    if len(values) and list(values) == list(range(values[0], values[0] + len(values))):
        return f"{values[0]}…{values[-1]}"
    return listed(values)


def row_spans(data: DataSet, numbers: NDArray[np.int64], files: ColumnFiles) -> Spans:
    """Where the rows of the opened episodes lie, by the episodes table: each lies in one file, behind those before it.

    `RowTable` compares a file with this before it reads from it.
    """
    episodes, count = data.episodes, len(files.relatives)
    first_rows, ends = np.full(count, np.iinfo(np.int64).max), np.zeros(count, np.int64)
    named = np.flatnonzero(files.of_episode >= 0)
    of_episode = files.of_episode[named]
    np.minimum.at(first_rows, of_episode, episodes.first_row[named])
    np.maximum.at(ends, of_episode, episodes.first_row[named] + episodes.length[named])
    apart = np.flatnonzero(ends - first_rows != np.bincount(of_episode, episodes.length[named], count))
    if len(apart):
        raise DataSetCorrupt(
            f"{data.root}: the episodes of {files.relatives[int(apart[0])]} do not follow one another: an index gap",
            hint="its rows would be paired with the wrong frames; " + _DOCTOR,
        )
    used, file = np.unique(files.of_episode[numbers], return_inverse=True)
    facts = (ends[used] - first_rows[used], files.sizes[used], first_rows[used])
    tables = [TableFile(files.relatives[place], *each) for place, *each in zip(used, *facts, strict=True)]
    lengths, places = episodes.length[numbers], episodes.first_row[numbers] - first_rows[files.of_episode[numbers]]
    goes_on = np.zeros(len(numbers), np.bool_)  # behind the episode before, in its file: one run
    goes_on[1:] = (file[1:] == file[:-1]) & (places[1:] == places[:-1] + lengths[:-1])
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    runs = np.flatnonzero(~goes_on)
    return Spans(tables, np.append(starts[runs], starts[-1]), file[runs].astype(np.int32), places[runs])
