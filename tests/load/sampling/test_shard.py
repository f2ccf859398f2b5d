"""Batches and shards: every position once, whatever the number of processes."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.sampling.shard import Batches
from penstock.errors import UsageError


def _brute_batches(total: int, size: int, drop_last: bool, start: int) -> list[list[int]]:
    found, left = [], list(range(start, total))
    while left:
        batch, left = left[:size], left[size:]
        if len(batch) == size or not drop_last:
            found.append(batch)
    return found


@settings(max_examples=150, deadline=None)
@given(
    total=st.integers(0, 200),
    per_rank=st.integers(1, 9),
    world=st.integers(1, 8),
    drop_last=st.booleans(),
    start=st.integers(0, 200),
)
def test_the_ranks_together_are_the_global_order(
    total: int, per_rank: int, world: int, drop_last: bool, start: int
) -> None:
    start = min(start, total)
    size = per_rank * world
    ranks = [Batches(total, size, drop_last, rank, world, start) for rank in range(world)]
    expected = _brute_batches(total, size, drop_last, start)
    alone = Batches(total, size, drop_last, start=start)
    assert {each.n_batches for each in ranks} == {len(expected)} == {len(alone)}
    for number, batch in enumerate(expected):
        slices = [each.positions(number) for each in ranks]
        assert np.concatenate(slices).tolist() == batch == alone.positions(number).tolist()
        sizes = [len(each) for each in slices]
        assert max(sizes) - min(sizes) <= 1
        if len(batch) == size:
            assert sizes == [per_rank] * world
        assert alone.span(number) == (batch[0], batch[-1] + 1)
        assert all(each.dtype == np.int64 for each in slices)


def test_a_run_goes_on_in_the_middle_with_another_batch_size() -> None:
    before = [Batches(100, 12).positions(number) for number in range(3)]
    after = Batches(100, 16, start=36, world=1)
    behind = [after.positions(number) for number in range(after.n_batches)]
    assert np.concatenate([*before, *behind]).tolist() == list(range(100))


def test_a_batch_that_cannot_be_split_names_sizes_that_can() -> None:
    with pytest.raises(UsageError, match=r"global batch of 10 .* 4 processes\n.*batch_size=8 or 12"):
        Batches(100, 10, world=4)
    with pytest.raises(UsageError, match="batch_size=4 "):
        Batches(100, 3, world=4)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"batch_size": 0}, "batch_size must be 1 or more, not 0"),
        ({"batch_size": 10.0}, r"batch_size must be a whole number, not 10\.0"),
        ({"batch_size": "10"}, "batch_size must be a whole number, not '10'"),
        ({"batch_size": True}, "batch_size must be a whole number, not True"),
        ({"rank": 2, "world": 2}, r"shard \(2, 2\)"),
        ({"rank": -1, "world": 2}, r"shard \(-1, 2\)"),
        ({"world": 0}, r"shard \(0, 0\)"),
        ({"start": 101}, "position 101 of 100"),
        ({"start": -1}, "position -1 of 100"),
    ],
)
def test_words_that_make_no_batches_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Batches(**{"total": 100, "batch_size": 10, **words})


def test_numbers_of_numpy_become_plain_ones() -> None:
    given = (np.int64(100), np.int64(10), False, np.int32(1), np.uint8(2), np.int64(5))
    batches = Batches(*given)  # type: ignore[arg-type]
    assert batches == Batches(100, 10, False, 1, 2, 5)
    plain = [len(batches), batches.batch_size, *batches.span(9), *batches.own_span(9)]
    assert json.loads(json.dumps(plain)) == [10, 10, 95, 100, 97, 100]


def test_batches_are_values() -> None:
    batches = Batches(100, 10, True, 1, 2, 5)
    assert pickle.loads(pickle.dumps(batches)) == batches and hash(batches) == hash(Batches(100, 10, True, 1, 2, 5))
    with pytest.raises(UsageError, match=r"batch 9 of 9"):
        batches.positions(9)
    with pytest.raises(UsageError, match=r"batch -1 of 9"):
        batches.positions(-1)
