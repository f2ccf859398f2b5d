from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock._src.lerobot.quantiles import QuantileSketch

FRACTIONS = [0.0, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0]


def rank_error(values: NDArray[np.float64], found: NDArray[np.float64]) -> float:
    """How far, as a fraction of all values, the ranks of what was found lie from the ranks asked for."""
    ordered = np.sort(values)
    worst = 0.0
    for fraction, value in zip(FRACTIONS, found, strict=True):
        low = np.searchsorted(ordered, value, side="left")
        high = np.searchsorted(ordered, value, side="right")
        asked = fraction * (len(values) - 1)
        worst = max(worst, low - 1 - asked, asked - high)
    return worst / len(values)


def fed(values: NDArray[np.float64], batch: int, k: int = 1024) -> QuantileSketch:
    sketch = QuantileSketch(1, k=k)
    for start in range(0, len(values), batch):
        sketch.add(values[start : start + batch].reshape(-1, 1))
    return sketch


def zigzag(count: int) -> NDArray[np.float64]:
    values = np.arange(count, dtype=np.float64)
    values[1::2] = values[1::2][::-1] + count
    return values


ORDERS = {
    "rising": lambda n: np.arange(n, dtype=np.float64),
    "falling": lambda n: np.arange(n, dtype=np.float64)[::-1].copy(),
    "zigzag": zigzag,
    "random": lambda n: np.random.default_rng(1).normal(size=n),
    "organ pipe": lambda n: np.abs(np.arange(n) - n // 2).astype(np.float64),
    "two values": lambda n: (np.arange(n) % 7 == 0).astype(np.float64),
    "outliers in blocks of the buffer": lambda n: np.where(np.arange(n) // 2048 % 2 == 0, np.arange(n), -np.arange(n)),
    "heavy tail": lambda n: np.exp(np.random.default_rng(2).normal(size=n) * 5),
}


@pytest.mark.parametrize("order", list(ORDERS))
def test_rank_error_stays_far_below_one_percent_in_any_order(order: str) -> None:
    values = np.asarray(ORDERS[order](300_000), dtype=np.float64)
    sketch = fed(values, batch=997)
    assert rank_error(values, sketch.quantiles(FRACTIONS)[:, 0]) <= sketch.rank_error_bound + 2 / len(values)
    assert sketch.rank_error_bound <= 0.0025


@pytest.mark.parametrize("order", list(ORDERS))
def test_a_small_buffer_keeps_the_proven_bound_where_it_bites(order: str) -> None:
    values = np.asarray(ORDERS[order](50_000), dtype=np.float64)
    sketch = fed(values, batch=333, k=32)
    levels = np.ceil(np.log2(len(values) / 32))
    assert 0.005 < sketch.rank_error_bound <= levels / (2 * 32)
    assert rank_error(values, sketch.quantiles(FRACTIONS)[:, 0]) <= sketch.rank_error_bound + 2 / len(values)


def test_bound_for_a_thousand_million_rows_is_below_one_percent() -> None:
    count, k = 10**9, 1024
    assert np.ceil(np.log2(count / k)) / (2 * k) < 0.01


def test_few_values_give_exactly_numpys_quantiles() -> None:
    values = np.random.default_rng(3).normal(size=(2000, 5))
    sketch = QuantileSketch(5)
    sketch.add(values)
    assert sketch.rank_error_bound == 0.0
    np.testing.assert_allclose(sketch.quantiles(FRACTIONS), np.quantile(values, FRACTIONS, axis=0), rtol=1e-14)


def test_a_constant_stays_that_constant() -> None:
    sketch = fed(np.full(10_000, 0.1), batch=100)
    assert (sketch.quantiles(FRACTIONS) == 0.1).all()


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 4000), min_size=1, max_size=8),
    kind=st.sampled_from(["rising", "random", "two values", "falling"]),
)
def test_merged_sketches_keep_the_bound(sizes: list[int], kind: str) -> None:
    values = np.asarray(ORDERS[kind](sum(sizes)), dtype=np.float64)
    whole = QuantileSketch(1, k=64)
    start = 0
    for size in sizes:
        whole.merge(fed(values[start : start + size], batch=501, k=64))
        start += size
    assert whole.count == len(values)
    if len(values):
        assert rank_error(values, whole.quantiles(FRACTIONS)[:, 0]) <= whole.rank_error_bound + 2 / len(values)


def test_many_tiny_merges_stay_below_the_bound_without_alternation() -> None:
    values = np.random.default_rng(4).permutation(np.arange(60_000, dtype=np.float64))
    whole = QuantileSketch(1, k=128)
    for start in range(0, len(values), 300):
        whole.merge(fed(values[start : start + 300], batch=300, k=128))
    assert whole.rank_error_bound <= np.ceil(np.log2(len(values) / 128)) / (2 * 128)
    assert rank_error(values, whole.quantiles(FRACTIONS)[:, 0]) <= whole.rank_error_bound + 2 / len(values)


def test_batches_do_not_change_the_result() -> None:
    values = np.random.default_rng(5).normal(size=20_000)
    assert np.array_equal(fed(values, 1000).quantiles(FRACTIONS), fed(values, 37).quantiles(FRACTIONS))


def test_memory_grows_with_the_logarithm() -> None:
    small, large = fed(np.arange(10_000.0), 5000), fed(np.arange(1_000_000.0), 50_000)
    assert large.nbytes < 4 * small.nbytes
    assert QuantileSketch(3).nbytes == 0


def test_one_column_of_many_is_the_same_sketch() -> None:
    values = np.random.default_rng(6).normal(size=(9000, 3))
    whole, one = QuantileSketch(3), QuantileSketch(1)
    whole.add(values)
    one.add(values[:, 1:2])
    assert np.array_equal(whole.column(1).quantiles(FRACTIONS), one.quantiles(FRACTIONS))
