"""Whether columns of next observations say more than the observations: compared with the row after, block by block."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ImageError
from penstock.stores.store import Column, Store, aligned

BLOCK_BYTES = 4 << 20
_COPIES = 4  # rows of both columns, those of the block before, and what comparing them makes


@dataclass(frozen=True)
class NextRows:
    """What comparing next observations with the rows after them gave."""

    compared: int
    """Rows with a row after them in their episode."""
    equal: int
    """Of those: rows whose next observation is the observation of the row after."""
    open_ends: int
    """Last rows of episodes that do not end terminal, with a next observation that is not their own observation."""
    terminal_ends: int
    """The same of episodes that end terminal."""
    is_whole: bool = True
    """Whether all rows were compared, not only the first ones."""

    @property
    def is_row_after(self) -> bool:
        """Whether transitions can be made without the column: no row differs, and no last row needs it."""
        return self.equal == self.compared and not self.open_ends


def is_comparable(now: Column, after: Column) -> bool:
    """Whether rows of the two could be the same."""
    is_encoded = now.encoding in ("jpeg", "png")
    return (now.kind, now.encoding) == (after.kind, after.encoding) and (is_encoded or now.shape == after.shape)


def comparing_bytes(store: Store, now: str, after: str) -> int:
    """What comparing two columns holds at most."""
    row_bytes = max(_row_bytes(store, name) for name in (now, after))
    return _COPIES * max(min(BLOCK_BYTES, store.rows * row_bytes), row_bytes) + store.scratch_bytes((now, after))


def compare_next(
    store: Store, now: str, after: str, most_bytes: int | None = None, on_block: Callable[[], None] | None = None
) -> NextRows:
    """Compare the second of two comparable columns with the rows of the first that follow, in all episodes.

    `most_bytes` ends it after so many bytes of both; `on_block` is called after every block, and may raise.
    """
    for position in range(store.episodes):
        store.check_episode(position, (now, after))
    terminal = store.roles.get("terminal")
    if terminal is not None and math.prod(store.columns[terminal].shape) != 1:
        terminal = None
    lasts = store.episode_starts[1:] - 1
    row_bytes = max(_row_bytes(store, name) for name in (now, after))
    step = max(1, BLOCK_BYTES // row_bytes)
    counts = np.zeros(4, np.int64)
    left = most_bytes
    for start in range(0, store.rows, step):
        rows = np.arange(start, min(start + step, store.rows), dtype=np.int64)
        own = _read(store, now, np.arange(start, min(start + step + 1, store.rows), dtype=np.int64))
        told = _read(store, after, rows)
        is_last = np.isin(rows, lasts)
        is_terminal = np.zeros(len(rows), np.bool_) if terminal is None else _flags(store.numbers(terminal, rows))
        inside = ~is_last[: len(own) - 1]
        new = is_last & ~_equal(told, own[: len(rows)])
        follows = _equal(told[: len(own) - 1], own[1:]) & inside
        counts += [np.count_nonzero(each) for each in (inside, follows, new & ~is_terminal, new & is_terminal)]
        if on_block is not None:
            on_block()
        if left is not None:
            left -= 2 * row_bytes * len(rows)
            if left <= 0 and rows[-1] + 1 < store.rows:
                return _next_rows(counts, is_whole=False)
    return _next_rows(counts, is_whole=True)


def _next_rows(counts: NDArray[np.int64], is_whole: bool) -> NextRows:
    compared, equal, open_ends, terminal_ends = counts.tolist()
    return NextRows(compared, equal, open_ends, terminal_ends, is_whole)


def _row_bytes(store: Store, name: str) -> int:
    column = store.column(name)
    return max(aligned(store.images(name).largest_bytes) if column.is_picture else column.row_bytes, 1)


def _flags(values: NDArray[Any]) -> NDArray[np.bool_]:
    flat = values.reshape(-1)
    return np.asarray((flat != 0) & (flat == flat), np.bool_)  # a NaN says nothing


def _read(store: Store, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Numbers as they are; images as objects of bytes, of which one that cannot be read equals nothing."""
    if not store.column(name).is_picture:
        return store.numbers(name, rows)
    memory = np.empty(len(rows) * _row_bytes(store, name), np.uint8)
    found = np.empty(len(rows), object)
    for place, image in enumerate(store.images(name).read_block(rows.tolist(), memory)):
        found[place] = object() if isinstance(image, ImageError) else image.tobytes()
    return found


def _equal(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """By row whether all values are the same; NaN is NaN, and of two precisions the lower counts."""
    if one.dtype != other.dtype and one.dtype.kind == other.dtype.kind == "f":
        lower = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
        with np.errstate(over="ignore"):
            one, other = one.astype(lower), other.astype(lower)
    same = np.asarray(one == other, np.bool_)
    if one.dtype.kind == "f" and not same.all():
        same |= (one != one) & (other != other)
    return np.asarray(same.reshape(len(same), math.prod(same.shape[1:])).all(axis=1), np.bool_)
