"""Mixtures: exact proportions in every block, every source in its own order, any place computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from itertools import count
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.load.sampling import mixture as module
from penstock._src.load.sampling import position_map
from penstock._src.load.sampling.mixture import Mixture
from penstock._src.load.sampling.order import Local, Order, Sequential, Shuffled
from penstock._src.load.sampling.permutation import key_of, permute
from penstock.errors import UsageError

GOLDEN = ([1, 0, 1, 0, 0, 0, 1, 0, 0, 0], [47, 47, 96, 683, 96, 315, 27, 244, 626, 268])  # never to be edited


def _shares(mixture: Mixture) -> tuple[float, ...]:
    return tuple(part / sum(mixture.parts) for part in mixture.parts)


@st.composite
def _mixtures(draw: st.DrawFn) -> Mixture:
    counts = draw(st.lists(st.integers(1, 60), min_size=1, max_size=6))
    makers = [draw(st.sampled_from((Shuffled, Sequential, Local))) for _ in counts]
    weight = st.one_of(st.integers(0, 9), st.floats(0, 1), st.just(1 / 3), st.just(0.1))
    weights = [draw(weight) for _ in counts]
    if not sum(weights):
        weights[0] = 1
    orders = [make(count) for make, count in zip(makers, counts, strict=True)]
    return Mixture(orders, weights, draw(st.integers(0, 99)), draw(st.none() | st.integers(1, 400)))


@settings(max_examples=80, deadline=None)
@given(mixture=_mixtures(), data=st.data())
def test_every_source_goes_through_its_passes_in_its_share(mixture: Mixture, data: st.DataObject) -> None:
    n_epochs, n_sources = 3, len(mixture.orders)
    seen: list[list[int]] = [[] for _ in range(n_sources)]
    for epoch in range(n_epochs):
        sources, samples = mixture.at(epoch, np.arange(mixture.length))
        assert sources.dtype == samples.dtype == np.int64
        for source, sample in zip(sources.tolist(), samples.tolist(), strict=True):
            seen[source].append(sample)
        places = data.draw(st.lists(st.integers(0, mixture.length - 1), max_size=6))
        some = mixture.at(epoch, places)
        assert some[0].tolist() == sources[np.array(places, int)].tolist()
        assert some[1].tolist() == samples[np.array(places, int)].tolist()
        for number, share in enumerate(_shares(mixture)):
            wanted = share * mixture.length * (epoch + 1)
            assert abs(len(seen[number]) - wanted) <= 1.5  # rounded by a half at each of three halvings
    for number, order in enumerate(mixture.orders):
        taken, passes = seen[number], -(-len(seen[number]) // order.count)
        expected = np.concatenate([order.at(each, np.arange(order.count)) for each in range(passes)] or [[]])
        assert taken == expected[: len(taken)].tolist()


def _brute_counts(have: int, parts: tuple[int, ...]) -> list[int]:
    """What each source has of the first `have` positions: halves of the sources, each with its share, rounded."""
    if len(parts) == 1:
        return [have]
    left, right = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    whole = max(1, sum(parts))
    mine = (have * sum(left) + whole // 2) // whole
    return _brute_counts(mine, left) + _brute_counts(have - mine, right)


def _brute_walk(order: Order) -> Iterator[int]:
    for number in count():
        yield from order.at(number, np.arange(order.count)).tolist()


def _brute_mixture(mixture: Mixture, n_epochs: int) -> list[list[tuple[int, int]]]:
    """Every position from the first on: a block's sources are put into a bag and drawn, each gives what it has next."""
    walks, found, had = [_brute_walk(order) for order in mixture.orders], [], 0
    for epoch in range(n_epochs):
        pairs: list[tuple[int, int]] = []
        for number, first in enumerate(range(0, mixture.length, mixture.block)):
            size = min(mixture.block, mixture.length - first)
            before, behind = (_brute_counts(have, mixture.parts) for have in (had, had + size))
            bag = [source for source, n in enumerate(before) for _ in range(behind[source] - n)]
            drawn = permute(range(size), size, key_of(mixture.seed, epoch, number)).tolist()
            pairs += [(bag[slot], next(walks[bag[slot]])) for slot in drawn]
            had += size
        found.append(pairs)
    return found


@settings(max_examples=80, deadline=None)
@given(mixture=_mixtures(), at_a_time=st.sampled_from((1, 2, 256)), data=st.data())
def test_any_places_are_those_of_a_mixture_that_is_walked(
    mixture: Mixture, at_a_time: int, data: st.DataObject
) -> None:
    walked = _brute_mixture(mixture, 3)
    epoch = data.draw(st.integers(0, 2))
    places = data.draw(st.lists(st.integers(0, mixture.length - 1), max_size=40) | st.just(range(mixture.length)))
    with patch.object(module, "_AT_A_TIME", at_a_time):
        sources, samples = mixture.at(epoch, np.array(places, int))
    found = list(zip(sources.tolist(), samples.tolist(), strict=True))
    assert found == [walked[epoch][place] for place in places]


def test_no_sample_comes_twice_before_all_have_come_once() -> None:
    mixture = Mixture([Shuffled(900), Shuffled(100)], [0.7, 0.3], seed=0)
    seen: list[int] = []
    for epoch in range(9):
        sources, samples = mixture.at(epoch, range(1000))
        seen += samples[sources == 0].tolist()
    assert len(seen) == 7 * 900
    for first in range(0, len(seen), 900):
        assert len(set(seen[first : first + 900])) == 900


@pytest.mark.parametrize("weights", [[1], [0, 1], [1, 0, 0]])
def test_a_source_by_itself_is_in_its_own_order(weights: list[int]) -> None:
    mixture = Mixture([Sequential(200)] * len(weights), weights, seed=3, length=150)
    seen = np.concatenate([mixture.at(epoch, range(150))[1] for epoch in range(4)])
    assert seen.tolist() == [number % 200 for number in range(600)]


@settings(max_examples=60, deadline=None)
@given(mixture=_mixtures(), epoch=st.integers(0, 5))
def test_every_block_has_its_shares(mixture: Mixture, epoch: int) -> None:
    sources, _ = mixture.at(epoch, np.arange(mixture.length))
    whole = sum(mixture.parts)
    for first in range(0, mixture.length, mixture.block):
        block = sources[first : first + mixture.block]
        for number, part in enumerate(mixture.parts):
            n = int((block == number).sum())
            if len(block) % whole == 0:
                assert n * whole == part * len(block)
            assert abs(n - part * len(block) / whole) <= 3


@pytest.mark.parametrize(
    ("weights", "parts"),
    [
        ([0.7, 0.3], (7, 3)),
        ([1 / 3, 1 / 3, 1 / 3], (1, 1, 1)),
        ([1 / 3, 2 / 3], (1, 2)),
        ([2, 6], (1, 3)),
        ([Fraction(1, 7), Fraction(6, 7)], (1, 6)),
        ([0.2, 0.2, 0.6], (1, 1, 3)),
        ([0, 5], (0, 1)),
        ([1e-3, 1], (1, 1000)),
        ([np.float32(0.25), np.int64(1)], (1, 4)),
    ],
)
def test_weights_are_what_people_meant(weights: list[float], parts: tuple[int, ...]) -> None:
    mixture = Mixture([Shuffled(10)] * len(weights), weights, length=100_000)
    assert mixture.parts == parts
    assert mixture.block % sum(parts) == 0
    sources, _ = mixture.at(0, np.arange(mixture.block * 5))
    times = mixture.block * 5 // sum(parts)
    assert np.bincount(sources, minlength=len(parts)).tolist() == [part * times for part in parts]


def test_odd_weights_are_met_to_a_billionth() -> None:
    mixture = Mixture([Shuffled(10), Shuffled(10), Shuffled(3)], [0.123456789, np.pi, np.e])
    total = 0.123456789 + np.pi + np.e
    assert _shares(mixture) == pytest.approx((0.123456789 / total, np.pi / total, np.e / total), abs=1e-9)
    assert sum(mixture.parts) == 2**31


def test_the_order_within_a_block_is_random_and_differs_by_epoch_and_seed() -> None:
    made = [Mixture([Sequential(500), Sequential(500)], [1, 1], seed) for seed in (0, 1)]
    runs = [mixture.at(epoch, np.arange(1000))[0] for mixture in made for epoch in (0, 1)]
    blocks = [tuple(run[first : first + 64].tolist()) for run in runs for first in range(0, 960, 64)]
    assert made[0].block == 64 and len(set(blocks)) == len(blocks)
    same = np.mean([runs[a] == runs[b] for a in range(4) for b in range(a)])
    assert 0.4 < same < 0.6


def test_without_weights_an_epoch_has_every_sample_once() -> None:
    sizes = (900, 77, 1)
    mixture = Mixture([Shuffled(size, seed) for seed, size in enumerate(sizes)])
    assert mixture.length == mixture.count == 978
    for epoch in range(3):
        sources, samples = mixture.at(epoch, np.arange(978))
        for number, size in enumerate(sizes):
            assert np.array_equal(np.sort(samples[sources == number]), np.arange(size))


def test_a_source_goes_on_where_the_epoch_before_left_it() -> None:
    mixture = Mixture([Shuffled(1000), Shuffled(10)], [0.5, 0.5], length=500)
    seen = np.concatenate(
        [samples[sources == 0] for sources, samples in (mixture.at(e, np.arange(500)) for e in range(4))]
    )
    assert np.array_equal(np.sort(seen), np.arange(1000))  # a pass of 1,000 in four epochs of 250


def test_the_mixture_of_seed_0_is_what_it_always_was() -> None:
    sources, samples = Mixture([Shuffled(900, 0), Shuffled(100, 0)], [0.7, 0.3], seed=0).at(0, range(10))
    assert (sources.tolist(), samples.tolist()) == GOLDEN


def test_far_epochs_are_computed_and_too_far_ones_refused() -> None:
    mixture = Mixture([Shuffled(2**40), Shuffled(2**39)], [0.9, 0.1])
    sources, samples = mixture.at(10**6, [0, mixture.length - 1])
    assert samples.min() >= 0 and set(sources.tolist()) <= {0, 1}
    with pytest.raises(UsageError, match="epoch 10,000,000"):
        mixture.at(10**7, [0])
    with pytest.raises(UsageError, match="epoch -1"):
        mixture.at(-1, [0])


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], "2 sources, but 1 weights"),
        ([1, -1], "0 or more"),
        ([0, 0.0], "not all of them 0"),
        ([1, float("nan")], "finite"),
        ([1, float("inf")], "finite"),
        ([1, "a"], "finite numbers"),
    ],
)
def test_weights_that_mean_nothing_are_refused(weights: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Mixture([Shuffled(5), Shuffled(6)], weights)


def test_mixtures_are_values() -> None:
    mixture = Mixture([Shuffled(900), Local(100)], [0.7, 0.3], seed=4)
    assert json.loads(json.dumps(mixture.describe())) == mixture.describe()
    with pytest.raises(UsageError, match="one source"):
        Mixture([], [])
    with pytest.raises(UsageError, match="1 or more, not 0"):
        Mixture([Shuffled(5)], [1], length=0)
    with pytest.raises(UsageError, match="positions 1,000 to 1,000"):
        mixture.at(0, [1000])


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from((0, 0, 0, 1)), st.integers(-4, 8), st.integers(0, 12)), min_size=1, max_size=20),
)
def test_batches_in_any_order_are_those_of_the_order(counts: list[int], asked: list[tuple[int, int, int]]) -> None:
    with patch.object(position_map, "_MIXED_AT_A_TIME", 8):
        _check_batches(counts, asked)


def _check_batches(counts: list[int], asked: list[tuple[int, int, int]]) -> None:
    order = Mixture([Shuffled(count, seed=number) for number, count in enumerate(counts)], seed=7)
    sources: list[Any] = [f"source {number}" for number in range(len(counts))]
    positions_of = position_map.PositionMap(order, sources)
    first = 0
    for epoch, step, size in asked:
        first = (first + step) % order.count
        positions = np.arange(first, min(first + size, order.count))
        numbers, samples = order.at(epoch, positions)
        found = np.full((2, len(positions)), -1)
        for part in positions_of(epoch, positions):
            found[:, part.places] = [[sources.index(part.source)] * len(part.places), part.samples]
        assert found.tolist() == [numbers.tolist(), samples.tolist()]
