"""Columns of Arrow as arrays: lists whose sizes differ are refused, whatever they add up to."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.lerobot.columns import to_numpy
from penstock.errors import DataSetCorrupt

NUMBERS = pa.float32()
KINDS = [pa.list_(NUMBERS), pa.large_list(NUMBERS)]


def column(rows: list[list[float]], kind: pa.DataType, before: int = 0) -> pa.ChunkedArray:
    """The rows as one chunk that begins inside of its buffers."""
    return pa.chunked_array([pa.array([[9.0] * 5] * before + rows, kind).slice(before)])


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_lists_that_only_add_up_are_refused(kind: pa.DataType, before: int) -> None:
    rows = [[1.0, 2.0], [3.0, 4.0, 5.0], [6.0], [7.0, 8.0]]
    with pytest.raises(DataSetCorrupt, match=r"here: lists of 2 and of 3 values, the first in row 1 of 4; expected"):
        to_numpy(column(rows, kind, before), (2,), "here")
    with pytest.raises(DataSetCorrupt, match="here"):
        to_numpy(column([[1.0, 2.0], [], [3.0]], kind, before), (1,), "here")


@pytest.mark.parametrize("before", [0, 3])
def test_inner_lists_too(before: int) -> None:
    kind = pa.list_(pa.list_(NUMBERS))
    rows = [[[1.0, 2.0], [3.0, 4.0]], [[5.0], [6.0, 7.0, 8.0]]]
    chunk = pa.array([[[9.0]]] * before + rows, kind).slice(before)
    with pytest.raises(DataSetCorrupt, match=r"lists of 2 and of 1 values, the first in row 1 of 2"):
        to_numpy(pa.chunked_array([chunk]), (2, 2), "here")


@given(st.lists(st.integers(0, 4), max_size=6), st.integers(0, 4), st.integers(0, 3), st.sampled_from(KINDS))
def test_rows_are_given_as_they_are_or_refused(sizes: list[int], size: int, before: int, kind: pa.DataType) -> None:
    rows = [[float(10 * row + value) for value in range(each)] for row, each in enumerate(sizes)]
    if all(each == size for each in sizes):
        assert to_numpy(column(rows, kind, before), (size,)).tolist() == rows
    else:
        with pytest.raises(DataSetCorrupt):
            to_numpy(column(rows, kind, before), (size,))


def test_lists_of_one_size_and_flat_numbers() -> None:
    fixed = pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(NUMBERS, 2)).slice(1)
    assert to_numpy(pa.chunked_array([fixed]), (2,)).tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert to_numpy(pa.chunked_array([pa.array([True, False])])).dtype == np.bool_
    assert to_numpy(pa.chunked_array([], pa.list_(NUMBERS)), (2,)).shape == (0, 2)
