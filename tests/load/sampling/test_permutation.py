"""The permutation behind every shuffled order: one to one, even, and the same for ever."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.sampling.permutation import inverse, key_of, keys_of, permute
from penstock.errors import UsageError

_COUNTS = st.one_of(st.integers(1, 40), st.integers(1000, 1100), st.integers(1, 20_000))
_KEYS = st.integers(0, 2**64 - 1)


@settings(max_examples=60, deadline=None)
@given(count=_COUNTS, key=_KEYS)
def test_every_value_comes_exactly_once(count: int, key: int) -> None:
    found = permute(np.arange(count), count, key)
    assert np.array_equal(np.sort(found), np.arange(count))
    assert np.array_equal(inverse(found, count, key), np.arange(count))


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 2**62), key=_KEYS, data=st.data())
def test_any_place_of_a_huge_count_is_computed_forwards_and_backwards(
    count: int, key: int, data: st.DataObject
) -> None:
    values = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20)), np.int64)
    found = permute(values, count, key)
    assert found.dtype == np.int64 and found.min() >= 0 and found.max() < count
    assert np.array_equal(inverse(found, count, key), values)
    assert len(set(found.tolist())) == len(set(values.tolist()))
    assert np.array_equal(permute(values[::-1], count, key)[::-1], found)


@settings(max_examples=40, deadline=None)
@given(count=_COUNTS, seed=_KEYS, epochs=st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_one_key_per_value_is_as_one_call_per_key(count: int, seed: int, epochs: list[int]) -> None:
    values = np.arange(len(epochs)) % count
    keys = keys_of(key_of(seed), np.array(epochs))
    assert keys.tolist() == [key_of(seed, epoch) for epoch in epochs]
    alone = [int(permute(value, count, key_of(seed, epoch))) for value, epoch in zip(values, epochs, strict=True)]
    assert permute(values, count, keys).tolist() == alone
    assert inverse(alone, count, keys).tolist() == values.tolist()


def test_more_keys_than_tables_are_held_at_a_time() -> None:
    epochs = np.arange(700)
    found = permute(np.full(700, 3), 11, keys_of(key_of(1), epochs))
    assert found.tolist() == [int(permute(3, 11, key_of(1, int(epoch)))) for epoch in epochs]


# The order of a seed never changes between versions: a run that resumes goes on in it. Do not edit these numbers.

GOLDEN_KEY = 0x9ABABB68568302B9
GOLDEN = {
    1: [0],
    2: [0, 1],
    3: [0, 1, 2],
    5: [3, 0, 1, 4, 2],
    10: [3, 7, 0, 5, 6, 8, 1, 9, 4, 2],
    1024: [47, 683, 96, 315, 244, 903, 626, 268, 402, 441],
    1025: [573, 5, 1024, 917, 458, 718, 437, 172, 167, 539],
    1000000: [708284, 626176, 101245, 751774, 709400, 49700, 77734, 20256, 480503, 918112],
    1099511627776: [
        248150183499,
        355073675035,
        410002143127,
        224965973773,
        1021946269935,
        679112004797,
        868390857690,
        684463574348,
        1034507670507,
        109675415976,
    ],
    4611686018427387904: [
        2143838074018859284,
        4089167370148006453,
        2740694721663053780,
        1048044826060020675,
        4314609943574891334,
        2808141234401567168,
        762372972255288547,
        252417518048405661,
        680786224841300906,
        1683895243431540502,
    ],
}
GOLDEN_7_3 = [6646, 24, 3443, 4, 4559]


def test_the_order_of_seed_0_is_what_it_always_was() -> None:
    assert key_of(0, 0) == GOLDEN_KEY
    for count, expected in GOLDEN.items():
        assert permute(np.arange(min(count, 10)), count, key_of(0, 0)).tolist() == expected, count
    assert permute(np.arange(5), 10_000, key_of(7, 3)).tolist() == GOLDEN_7_3


# Statistics: bounds are five standard deviations of the chi-square, and the keys are fixed, so nothing here is chance.


def _is_even(counts: np.ndarray, expected: np.ndarray | float) -> bool:
    freedom = max(1, counts.size - 1)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    return abs(chi_square - freedom) < 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_every_permutation_of_few_elements_is_about_equally_likely(count: int) -> None:
    n_keys = 6000
    keys = keys_of(key_of(0), np.repeat(np.arange(n_keys), count))
    found = permute(np.tile(np.arange(count), n_keys), count, keys).reshape(n_keys, count)
    all_of_them = list(permutations(range(count)))
    numbers = {order: number for number, order in enumerate(all_of_them)}
    seen = np.bincount([numbers[tuple(row)] for row in found.tolist()], minlength=len(all_of_them))
    assert seen.min() > 0 and _is_even(seen, n_keys / len(all_of_them))


@pytest.mark.parametrize("count", [7, 100, 1024, 1025, 3000, 1_000_003])
def test_a_position_holds_every_value_equally_often(count: int) -> None:
    n_keys, bins = 20_000 if count != 1024 else 4000, min(count, 50)
    keys = keys_of(key_of(5), np.arange(n_keys))
    expected = np.diff([-(-edge * count // bins) for edge in range(bins + 1)]) / count * n_keys
    for position in (0, 1, count // 2, count - 1):
        found = permute(np.full(n_keys, position), count, keys)
        assert _is_even(np.bincount(found * bins // count, minlength=bins), expected), position


@pytest.mark.parametrize("count", [100, 1025, 5000])
def test_neighbours_in_order_are_strangers(count: int) -> None:
    steps = np.zeros(count)
    for epoch in range(60):
        found = permute(np.arange(count), count, key_of(11, epoch))
        steps += np.bincount((found[1:] - found[:-1]) % count, minlength=count)
    assert steps[0] == 0 and _is_even(steps[1:], steps[1:].mean())


@pytest.mark.parametrize("count", [50, 1025, 5000])
def test_epochs_and_seeds_have_nothing_in_common(count: int) -> None:
    orders = [permute(np.arange(count), count, key_of(*words)) for words in ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))]
    for number, order in enumerate(orders):
        for other in orders[number + 1 :]:
            assert (order == other).sum() < 10  # one on average
            assert abs(np.corrcoef(order, other)[0, 1]) < 5 / math.sqrt(count)


def test_what_lies_outside_is_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match=r"places -1 to 3 .* 0…9"):
        permute([3, -1], 10, 0)
    with pytest.raises(UsageError, match=r"places 10 to 10"):
        inverse(10, 10, 0)
    with pytest.raises(UsageError, match="of 1 to 2"):
        permute([0], 0, 0)
    with pytest.raises(UsageError, match="of 1 to 2"):
        permute([0], 2**62 + 1, 0)
    assert permute([], 5, 0).shape == (0,)
    assert permute(np.zeros((2, 3), int), 5, 0).shape == (2, 3)
