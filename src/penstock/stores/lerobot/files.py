"""Which files the episodes of a LeRobot data set need, and which episodes have all of theirs: one `stat` per file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import DataSetCorrupt
from penstock.formats.content import foreign_content
from penstock.lerobot.read.reader import DataSet
from penstock.system.files import file_sizes

WHOLE = "whole"
"""`episodes="whole"`: those whose files are all there."""
SMALLEST_FILE_BYTES = 200  # no parquet file and no video is smaller; a Git LFS pointer is, and an empty file
_MOST_SHOWN = 12


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


class EpisodeFiles:
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
        what, remedy = _what_is_wrong(self._data.root, column, number, key)
        return f"{self._data.root}: {what} (episode {int(self._data.episodes.index[number])})", remedy

    def note(self, numbers: NDArray[np.int64]) -> str:
        """Which episodes `episodes="whole"` left out, and why."""
        left = np.setdiff1d(np.arange(len(self._data.episodes)), numbers)
        names = listed(self._data.episodes.index[left].tolist())
        every = len(self._data.episodes)
        verb = "is" if len(left) == 1 else "are"
        return f"{len(left):,} of {every:,} episodes {verb} left out: {names}; {self._message(int(left[0]))[0]}"


def _what_is_wrong(root: Path, column: ColumnFiles, number: int, key: str | None) -> tuple[str, str | None]:
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
