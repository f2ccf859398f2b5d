"""Orders: each sample once per epoch, any place computed, and what the local one costs."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.sampling.order import Local, Order, Sequential, Shuffled
from penstock._src.load.sampling.permutation import key_of, permute
from penstock.errors import UsageError

SHUFFLED = [47, 683, 96, 315, 244, 903, 626, 268]  # never to be edited: resumed runs go on in these orders
LOCAL = [746, 761, 765, 122, 585, 121, 183, 749]

_ORDERS = st.one_of(
    st.builds(Shuffled, st.integers(1, 3000), st.integers(-5, 2**64)),
    st.builds(Sequential, st.integers(1, 300)),
    st.builds(Local, st.integers(1, 300), st.integers(0, 99), st.integers(1, 20), st.integers(1, 9)),
    st.builds(Local, st.integers(2000, 9000), st.integers(0, 99), st.integers(100, 900), st.integers(1, 9)),
)


@settings(max_examples=150, deadline=None)
@given(order=_ORDERS, epoch=st.integers(0, 2**40), data=st.data())
def test_each_sample_comes_once_per_epoch_and_any_place_is_computed(
    order: Order, epoch: int, data: st.DataObject
) -> None:
    whole = order.at(epoch, np.arange(order.count))
    assert whole.dtype == np.int64 and np.array_equal(np.sort(whole), np.arange(order.count))
    places = data.draw(st.lists(st.integers(0, order.count - 1), max_size=8))
    assert order.at(epoch, places).tolist() == whole[np.array(places, int)].tolist()
    again = pickle.loads(pickle.dumps(order))
    assert again == order and hash(again) == hash(order) and np.array_equal(again.at(epoch, places), whole[places])
    assert json.loads(json.dumps(order.describe())) == order.describe()


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(1, 600),
    block=st.integers(1, 40),
    pool=st.integers(1, 9),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 9),
)
def test_a_local_order_reads_a_few_blocks_at_a_time(count: int, block: int, pool: int, seed: int, epoch: int) -> None:
    order = Local(count, seed, block, pool)
    blocks = (order.at(epoch, np.arange(count)) // order.block).tolist()
    open_blocks: set[int] = set()
    left = {each: blocks.count(each) for each in blocks}
    for each in blocks:  # a pool ends where all its blocks do: never more than `pool` are begun and not ended
        open_blocks.add(each)
        left[each] -= 1
        assert len(open_blocks) <= pool
        if all(left[started] == 0 for started in open_blocks):
            open_blocks.clear()


def test_blocks_of_a_local_order_are_shuffled_and_mixed() -> None:
    order = Local(64 * 1000, seed=3, block=64, pool=50)
    blocks = order.at(0, np.arange(order.count)) // 64
    first_pool = np.unique(blocks[: 64 * 50])
    assert len(first_pool) == 50 and np.diff(first_pool).max() > 30  # from all over the store
    assert len(np.unique(blocks[:256])) > 40
    assert not np.array_equal(order.at(0, np.arange(100)), order.at(1, np.arange(100)))


def test_no_epoch_of_a_local_order_ends_in_a_small_pool() -> None:
    order = Local(65 * 10, block=10, pool=64)
    assert order.pool_blocks == 33  # 33 and 32, not 64 and 1
    assert len(np.unique(order.at(0, np.arange(600, 650)) // 10)) > 15


@pytest.mark.parametrize(
    ("count", "block", "pool"), [(100_000, 64, 8), (60_000, 16, 100), (50_000, 1, 4), (100, 100, 1)]
)
def test_randomness_says_how_often_neighbours_share_a_block(count: int, block: int, pool: int) -> None:
    order = Local(count, seed=1, block=block, pool=pool)
    number, words = order.randomness()
    found = order.at(0, np.arange(count)) // block
    seen = float((found[1:] == found[:-1]).mean())
    assert seen == pytest.approx(number, rel=0.15, abs=1e-4)
    assert f"{number:.2%}" in words and f"{order.pool_samples:,}" in words
    assert order.describe()["same_block"] == pytest.approx(number, abs=1e-6)


def test_a_local_order_of_one_pool_is_as_random_as_a_shuffled_one() -> None:
    order = Local(6400, block=64, pool=100)
    assert order.randomness()[0] == pytest.approx(63 / 6399)
    assert "100.0% of all" in order.randomness()[1]


def test_epochs_differ_and_the_order_of_a_seed_never_changes() -> None:
    shuffled, local = Shuffled(1000, 0), Local(1000, 0, block=10, pool=5)
    assert shuffled.at(2, [0, 1, 999]).tolist() == permute([0, 1, 999], 1000, key_of(0, 2)).tolist()
    assert shuffled.at(0, range(8)).tolist() == SHUFFLED
    assert local.at(0, range(8)).tolist() == LOCAL
    for order in (shuffled, local):
        epochs = {tuple(order.at(epoch, range(50)).tolist()) for epoch in range(20)}
        assert len(epochs) == 20


def test_words_that_make_no_order_are_refused_with_the_numbers() -> None:
    for make in (Shuffled, Sequential, Local):
        with pytest.raises(UsageError, match="not of 0"):
            make(0)
        with pytest.raises(UsageError, match="s 0 to 7 do not"):
            make(7).at(0, [0, 7])
    with pytest.raises(UsageError, match="block must be 1 or more, not 0"):
        Local(5, block=0)
    with pytest.raises(UsageError, match="pool must be 1 or more, not -1"):
        Local(5, pool=-1)


def test_numbers_of_numpy_and_single_positions_are_taken() -> None:
    for make in (Shuffled, Local):
        order = make(np.int64(5000), np.uint64(2**64 - 1))
        assert order == make(5000, 2**64 - 1)
        json.dumps(order.describe())
        assert order.at(np.int64(3), 7).shape == () and order.at(3, 7) == order.at(3, [7])[0]
        assert np.array_equal(order.at(3, [[1, 2], [3, 4]]).reshape(-1), order.at(3, [1, 2, 3, 4]))
    with pytest.raises(UsageError, match="seed must be a whole number, not None"):
        Shuffled(5, None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"count must be a whole number, not 2\.5"):
        Sequential(2.5)  # type: ignore[arg-type]


def test_a_sequence_does_not_hand_out_the_callers_array() -> None:
    positions = np.arange(3)
    Sequential(3).at(0, positions)[0] = 2
    assert positions.tolist() == [0, 1, 2]
