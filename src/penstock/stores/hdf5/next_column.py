"""Whether columns of next observations say more than the observations: compared with the row after, block by block."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LimitExceeded, StoreCorrupt, StoreError
from penstock.stores.hdf5.array import LARGEST_IMAGE_BYTES, Hdf5Array
from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.layout import Layout, Member, Span, join
from penstock.stores.hdf5.read import picture_bytes
from penstock.stores.roles import TERMINALS
from penstock.stores.store import NextRows

BLOCK_BYTES = 4 << 20
_COPIES = 4  # rows of both columns, those of the block before, and what comparing them makes
_ENCODED = ("jpeg", "png")


def is_comparable(member: Member, after: Member) -> bool:
    """Whether rows of the two could be the same."""
    return member.content == after.content and (member.content in _ENCODED or member.row_shape == after.row_shape)


def comparing_bytes(file: Hdf5File, spans: Sequence[Span], names: Sequence[str]) -> int:
    """What comparing two data sets holds at most; rows with their own lengths are looked at in all groups."""
    groups = list(dict.fromkeys(span.group for span in spans if span.stop > span.start))
    arrays = [Hdf5Array(file, join(groups[0], name)) for name in names]
    if any(array.is_ragged for array in arrays):
        every = (Hdf5Array(file, join(group, name)) for group in groups for name in names)
        return _COPIES * max(array.longest_bytes(LARGEST_IMAGE_BYTES) for array in every)
    chunks = sum(array.chunk_bytes for array in arrays) + max(array.scratch_bytes for array in arrays)
    row_bytes = max(array.row_bytes for array in arrays)
    rows = max(span.stop for span in spans)
    return _COPIES * max(min(BLOCK_BYTES, rows * row_bytes), row_bytes) + chunks


def compare_next(
    file: Hdf5File,
    layout: Layout,
    spans: Sequence[Span],
    names: tuple[str, str],
    most_bytes: int | None = None,
    on_block: Callable[[], None] | None = None,
) -> NextRows:
    """Compare the second of two comparable data sets with the rows of the first that follow, in all episodes.

    `most_bytes` ends it after so many bytes of both; `on_block` is called after every block, and may raise.
    """
    terminal = layout.first_of(TERMINALS)
    counts = np.zeros(4, np.int64)
    left = most_bytes
    for group, found in itertools.groupby(spans, key=lambda span: span.group):
        episodes = [span for span in found if span.stop > span.start]
        if not episodes:
            continue
        ends = None if terminal is None or terminal.values != 1 else Hdf5Array(file, join(group, terminal.name))
        lasts = np.array([span.stop - 1 for span in episodes], np.int64)
        pair = _Pair(file, group, names, int(lasts[-1]) + 1)
        for start, follows, stays in pair.blocks(episodes[0].start, episodes[-1].stop):
            rows = np.arange(start, start + len(stays))
            is_last = lasts[np.searchsorted(lasts, rows)] == rows
            is_terminal = np.zeros(len(rows), np.bool_) if ends is None else _flags(ends, start, start + len(rows))
            inside = ~is_last[: len(follows)]
            new = is_last & ~stays
            found_now = (inside, follows & inside, new & ~is_terminal, new & is_terminal)
            counts += [np.count_nonzero(each) for each in found_now]
            if on_block is not None:
                on_block()
            if left is not None:
                left -= 2 * pair.row_bytes * len(rows)
                if left <= 0:
                    return _next_rows(counts, is_whole=False)
    return _next_rows(counts, is_whole=True)


def _next_rows(counts: NDArray[np.int64], is_whole: bool) -> NextRows:
    compared, equal, open_ends, terminal_ends = counts.tolist()
    return NextRows(compared, equal, open_ends, terminal_ends, is_whole)


def _flags(ends: Hdf5Array, start: int, stop: int) -> NDArray[np.bool_]:
    values = ends.rows(start, stop).reshape(-1)
    return np.asarray((values != 0) & (values == values), np.bool_)  # a NaN says nothing


class _Pair:
    """A data set of observations, and one of next observations."""

    def __init__(self, file: Hdf5File, group: str, names: tuple[str, str], rows: int) -> None:
        self._now, self._next = (Hdf5Array(file, join(group, name)) for name in names)
        for array in (self._now, self._next):
            if array.count < rows:
                raise StoreError(
                    f"{file.path}: {array.name} has {array.count:,} rows, the episode {rows:,}",
                    hint="the recording is incomplete; hdf5.next_observations=drop leaves out what tells of next rows",
                )
        self.row_bytes = max(self._now.row_bytes, self._next.row_bytes, 1)
        self._is_ragged = self._now.is_ragged or self._next.is_ragged
        self._is_same = self._is_ragged or self._now.row_shape == self._next.row_shape

    def blocks(self, start: int, stop: int) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.bool_]]]:
        """First row; of each row whether its next observation is the row after; and whether it is the row itself.

        Nothing comes after the last row of all: the first answer has one entry less there.
        """
        step = 1 if self._is_ragged else max(1, BLOCK_BYTES // self.row_bytes)
        own = self._read(self._now, start, start + 1)
        for low in range(start, stop, step):
            high = min(low + step, stop)
            following = self._read(self._now, low + 1, min(high + 1, stop))
            after = self._read(self._next, low, high)
            own = np.concatenate([own, following])[: high - low]
            yield low, self._equal(after[: len(following)], following), self._equal(after, own)
            own = following[-1:].copy()

    def _read(self, array: Hdf5Array, start: int, stop: int) -> NDArray[Any]:
        """Numbers and pixels as they are; encoded images as objects of bytes, without what pads them."""
        if not self._is_encoded(array):
            return array.rows(start, stop)
        found = np.empty(stop - start, object)
        for row in range(start, stop):
            found[row - start] = _image(array, row)
        return found

    def _is_encoded(self, array: Hdf5Array) -> bool:
        return array.is_ragged or array.dtype.kind in "SV" or not self._is_same

    def _equal(self, one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
        """By row whether all values are the same; NaN is NaN, and of two precisions the lower counts."""
        if one.dtype != other.dtype and one.dtype.kind == other.dtype.kind == "f":
            lower = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
            with np.errstate(over="ignore"):
                one, other = one.astype(lower), other.astype(lower)
        same = np.asarray(one == other, np.bool_)
        if one.dtype.kind == "f" and not same.all():
            same |= (one != one) & (other != other)
        return np.asarray(same.reshape(len(same), math.prod(same.shape[1:])).all(axis=1), np.bool_)


def _image(array: Hdf5Array, row: int) -> object:
    """The bytes of an encoded image; one that cannot be read equals nothing."""
    try:
        if array.is_ragged:
            data = next(iter(array.ragged(row, row + 1, LARGEST_IMAGE_BYTES)))
        else:
            data = array.rows(row, row + 1).reshape(-1).view(np.uint8)
        return data[: picture_bytes(data.data)].tobytes()
    except (LimitExceeded, StoreCorrupt):
        return object()
