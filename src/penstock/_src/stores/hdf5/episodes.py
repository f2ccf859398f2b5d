"""The episodes of HDF5 files: whole groups or files, or flat steps that are cut where a column says that one ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock._src.stores.hdf5.column import ColumnRows, OpenFiles, RowMap, as_native
from penstock._src.stores.hdf5.survey import Hdf5Survey
from penstock._src.stores.roles import TERMINALS, TIMEOUTS
from penstock.errors import StoreError

_NO_TIMEOUTS = "no 'timeouts' column: an episode cut off by a time limit is joined to the next"
_SCAN_ROWS = 1 << 16
_NONE: NDArray[np.int64] = np.empty(0, np.int64)


@dataclass(frozen=True)
class EpisodeSpans:
    """All episodes in order, as flat arrays: part, first row of the part, rows; 20 bytes each."""

    parts: NDArray[np.int32]
    firsts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    terminal: NDArray[np.bool_] | None
    notes: tuple[str, ...] = ()
    numbers: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Of those that were chosen."""
    empty: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Of those that were chosen and have no rows."""

    def chosen(self, numbers: Sequence[int] | None, path: Path) -> EpisodeSpans:
        """Those with these numbers, in this order; without the ones that have no rows."""
        picked = np.arange(len(self.parts)) if numbers is None else check_numbers(numbers, len(self.parts), path)
        empty = picked[self.lengths[picked] == 0]
        kept = picked[self.lengths[picked] > 0]
        terminal = None if self.terminal is None else self.terminal[kept]
        spans = self.parts[kept], self.firsts[kept], self.lengths[kept]
        return EpisodeSpans(*spans, terminal, self.notes, kept, empty)

    def starts(self) -> NDArray[np.int64]:
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths, dtype=np.int64)])


def check_numbers(numbers: Sequence[int], count: int, path: Path) -> NDArray[np.int64]:
    """Numbers of episodes, each there and named once."""
    checked = np.asarray(list(numbers), np.int64).reshape(-1)
    wrong = checked[(checked < 0) | (checked >= count)]
    if len(wrong):
        hint = f"its episodes are 0 to {count - 1:,}"
        raise StoreError(f"{path}: there is no episode {int(wrong[0]):,}, it has {count:,}", hint=hint)
    if len(np.unique(checked)) != len(checked):
        values, counts = np.unique(checked, return_counts=True)
        raise StoreError(f"{path}: episode {int(values[counts > 1][0]):,} is named more than once")
    return checked


def find_episodes(survey: Hdf5Survey, files: OpenFiles) -> EpisodeSpans:
    """Every episode of the parts that were surveyed."""
    terminals, timeouts = (_columns(survey, files, names) for names in (TERMINALS, TIMEOUTS))
    if survey.kind == "replay":
        return _cut_steps(survey.part_rows, terminals, timeouts)
    parts = np.arange(len(survey.part_rows), dtype=np.int32)
    rows = survey.part_rows
    flags: NDArray[np.bool_] | None = None
    known = [each for each in terminals if each.facts.name not in survey.problems]
    if survey.kind == "robomimic" and known and math.prod(known[0].facts.shape) == 1:
        flags = np.zeros(len(parts), np.bool_)
        filled = np.flatnonzero(rows)
        whole = RowMap(parts[filled], np.zeros(len(filled), np.int64), rows[filled])
        last = known[0].gather(whole, np.cumsum(rows[filled]) - 1).reshape(-1)
        flags[filled] = (last != 0) & (last == last)  # a NaN says nothing
    return EpisodeSpans(parts, np.zeros(len(parts), np.int64), rows, flags)


def _cut_steps(rows: NDArray[np.int64], terminals: list[ColumnRows], timeouts: list[ColumnRows]) -> EpisodeSpans:
    """Flat steps, cut after every row that a column of ends ends; the first of `terminals` says which are terminal."""
    notes: list[str] = []
    pieces: list[tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]] = []
    unconfirmed = 0
    for part, count in enumerate(rows.tolist()):
        ended, *others = [_ends(column, part, count, notes) for column in terminals] or [_NONE]
        claimed = np.concatenate([ended, *(_ends(column, part, count, notes) for column in timeouts)])
        stops = np.unique(np.concatenate([claimed, *others]))
        unconfirmed += len(stops) - len(np.unique(claimed))
        if count and (not len(stops) or stops[-1] != count):
            begin = int(stops[-1]) if len(stops) else 0
            if len(stops):
                notes.append(f"the last {count - begin:,} rows end with neither terminal nor timeout: an episode too")
            stops = np.append(stops, count)
        starts = np.concatenate([np.zeros(1, np.int64), stops])
        firsts = starts[:-1] if count else np.zeros(1, np.int64)
        lengths = np.diff(starts) if count else np.zeros(1, np.int64)
        ending = np.isin(firsts + lengths, ended) & (lengths > 0)
        pieces.append((np.full(len(firsts), part, np.int32), firsts, lengths, ending))
    columns = [np.concatenate(each) for each in zip(*pieces, strict=True)]
    notes += _ends_notes([each.facts.name for each in terminals], bool(timeouts), unconfirmed)
    return EpisodeSpans(columns[0], columns[1], columns[2], columns[3] if terminals else None, tuple(notes))


def _ends_notes(terminals: Sequence[str], timeouts: bool, unconfirmed: int) -> list[str]:
    """What the columns of ends leave open; `unconfirmed` ends are only in the further ones of `terminals`."""
    if not terminals:
        none = "no column says where episodes end: all rows of a file are one episode"
        return ["no 'terminals' column: every episode is taken as cut off by a time limit" if timeouts else none]
    if unconfirmed:
        others = ", ".join(terminals[1:])
        return [f"{unconfirmed:,} ends by {others} alone, not by {terminals[0]}: taken as cut off by a time limit"]
    return [] if timeouts else [_NO_TIMEOUTS]


def _columns(survey: Hdf5Survey, files: OpenFiles, names: tuple[str, ...]) -> list[ColumnRows]:
    """The columns of numbers under these names that are there, in the order of the names."""
    numbers = {facts.name: number for number, facts in enumerate(survey.columns) if facts.kind == "numbers"}
    return [ColumnRows(survey, files, numbers[name]) for name in names if name in numbers]


def _ends(column: ColumnRows, part: int, count: int, notes: list[str]) -> NDArray[np.int64]:
    """The rows after which a column says that an episode ends, each plus one; a NaN says nothing, and is noted."""
    rows, unknown = [_NONE], 0
    for start in range(0, count, _SCAN_ROWS):
        block = np.empty((min(_SCAN_ROWS, count - start), *column.facts.stored_shape), column.dtype)
        column.read(part, start, start + len(block), block)
        values = as_native(block, column.facts.dtype).reshape(-1)
        unknown += int(np.count_nonzero(values != values))
        rows.append(np.flatnonzero((values != 0) & (values == values)) + start + 1)
    if unknown:
        notes.append(f"{column.facts.name} is NaN in {unknown:,} of {count:,} rows: taken as no end of an episode")
    return np.concatenate(rows)
