from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock._src.lerobot import stats as stats_module
from penstock._src.lerobot.stats import QUANTILES, STATISTICS, WIDEST_VALUES, ImageStats, NumericStats
from penstock.errors import ImageError


def of(rows: np.ndarray, batch: int = 7, shape: tuple[int, ...] | None = None) -> NumericStats:
    stats = NumericStats(rows.shape[1:] if shape is None else shape, rows.dtype)
    for start in range(0, len(rows), batch):
        stats.add(rows[start : start + batch])
    return stats


@settings(max_examples=60, deadline=None)
@given(
    rows=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=60),
        elements=st.floats(-1e6, 1e6, allow_nan=False),
    )
)
def test_one_pass_equals_two_passes(rows: np.ndarray) -> None:
    found = of(rows).to_json()
    assert found["count"] == [len(rows)]
    assert found["min"] == rows.min(axis=0).tolist()
    assert found["max"] == rows.max(axis=0).tolist()
    np.testing.assert_allclose(found["mean"], rows.mean(axis=0), rtol=1e-12, atol=1e-9)
    np.testing.assert_allclose(found["std"], rows.std(axis=0), rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(found["q50"], np.quantile(rows, 0.5, axis=0), rtol=1e-12, atol=1e-9)


def test_variance_survives_a_large_offset() -> None:
    rows = (1e9 + np.arange(10_000) % 2).reshape(-1, 1)
    np.testing.assert_allclose(of(rows, batch=100).to_json()["std"], [0.5], rtol=1e-9)


def test_merged_statistics_are_those_of_all_rows_and_not_an_average() -> None:
    quiet, loud = np.zeros((900, 1)), np.full((100, 1), 10.0)
    whole = of(quiet)
    whole.merge(of(loud))
    found = whole.to_json()
    assert found["q50"] == [0.0] and found["q99"] == [10.0] and found["mean"] == [1.0] and found["count"] == [1000]


def test_nan_inf_and_overflow_are_counted_per_dimension_and_left_out() -> None:
    rows = np.array([[1.0, np.nan, 1e200], [2.0, 5.0, 2.0], [3.0, np.inf, 4.0], [np.nan, 7.0, -1e300]])
    stats = of(rows, batch=2)
    assert [(bad.nan, bad.inf, bad.overflow) for bad in stats.bad] == [(1, 0, 0), (1, 1, 0), (0, 0, 2)]
    found = stats.to_json()
    assert found["min"] == [1.0, 5.0, 2.0] and found["max"] == [3.0, 7.0, 4.0] and found["mean"] == [2.0, 6.0, 3.0]
    assert found["q50"] == [2.0, 6.0, 3.0]
    assert found["count"] == [4]
    json.dumps(found, allow_nan=False)


def test_rows_with_a_nan_are_merged_like_all_others() -> None:
    rows = np.column_stack([np.arange(100.0), np.where(np.arange(100) % 2, np.nan, np.arange(100.0))])
    whole = of(rows[:50])
    whole.merge(of(rows[50:]))
    found = whole.to_json()
    assert found["q50"] == [49.5, 49.0] and found["mean"] == [49.5, 49.0] and whole.bad[1].nan == 50


def test_a_dimension_that_is_always_nan_gives_zeros_and_spoils_no_other() -> None:
    rows = np.column_stack([np.full(5000, np.nan), np.arange(5000.0)])
    found = of(rows, batch=999).to_json()
    assert [found[name][0] for name in STATISTICS if name != "count"] == [0.0] * 9
    np.testing.assert_allclose(found["q90"][1], 4499.1, atol=50)
    json.dumps(found, allow_nan=False)


@settings(max_examples=40, deadline=None)
@given(
    rows=hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=30),
        elements=st.floats(width=32, allow_nan=True, allow_infinity=True),
    ),
    cut=st.integers(0, 30),
)
def test_statistics_are_never_nan_whatever_comes(rows: np.ndarray, cut: int) -> None:
    whole = of(rows[:cut], shape=rows.shape[1:])
    whole.merge(of(rows[cut:], shape=rows.shape[1:]))
    found = whole.to_json()
    json.dumps(found, allow_nan=False)
    for dim in range(rows.shape[1]):
        column = rows[:, dim][np.isfinite(rows[:, dim])].astype(np.float64)
        if len(column):
            assert found["min"][dim] == column.min() and found["max"][dim] == column.max()
            np.testing.assert_allclose(found["q50"][dim], np.quantile(column, 0.5), rtol=1e-6)


def test_a_constant_dimension_has_no_spread() -> None:
    found = of(np.full((1000, 2), 0.1, dtype=np.float32)).to_json()
    assert found["std"] == [0.0, 0.0] and found["q01"] == found["q99"] == found["min"]


def test_matrices_and_booleans_keep_their_shape() -> None:
    assert np.array(of(np.ones((5, 2, 3))).to_json()["mean"]).shape == (2, 3)
    assert of(np.array([[True], [False]])).to_json()["mean"] == [0.5]


def test_image_statistics_are_those_of_the_pixels() -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 20, 30, 3), dtype=np.uint8)
    stats, rest = ImageStats(), ImageStats()
    stats.add(images[0])
    rest.add(images[1])
    rest.add(images[2])
    stats.merge(rest)
    found = stats.to_json()
    assert found is not None and list(found) == list(STATISTICS) and found["count"] == [3]
    pixels = images.reshape(-1, 3) / 255.0
    for name, expected in (
        ("min", pixels.min(0)),
        ("max", pixels.max(0)),
        ("mean", pixels.mean(0)),
        ("std", pixels.std(0)),
    ):
        np.testing.assert_allclose(np.array(found[name]), expected.reshape(3, 1, 1), atol=1e-12)
    np.testing.assert_allclose(np.array(found["q90"]).ravel(), np.quantile(pixels, 0.9, axis=0), atol=1 / 255)


def test_large_images_are_thinned_out() -> None:
    stats = ImageStats()
    stats.add(np.zeros((480, 640, 3), dtype=np.uint8))


def test_no_image_means_no_statistics() -> None:
    assert ImageStats().to_json() is None


@pytest.mark.parametrize("shape", [(4, 4), (4, 4, 1), (0, 4, 3)])
def test_other_arrays_are_no_images(shape: tuple[int, ...]) -> None:
    with pytest.raises(ImageError, match="uint8 images"):
        ImageStats().add(np.zeros(shape, dtype=np.uint8))


# ── wide features ────────────────────────────────────────────────────────────────────────────────────────────────────


def wide_rows(count: int = 40, width: int = WIDEST_VALUES + 500) -> np.ndarray:
    return np.random.default_rng(1).normal(5, 2, (count, width))


def test_a_wide_feature_has_one_statistic_for_all_values() -> None:
    rows = wide_rows()
    found = of(rows).to_json()
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(STATISTICS, 1)
    assert found["count"] == [len(rows)] and found["min"] == [rows.min()] and found["max"] == [rows.max()]
    np.testing.assert_allclose([found["mean"][0], found["std"][0]], [rows.mean(), rows.std()], rtol=1e-12)
    for name, fraction in QUANTILES.items():
        low, high = np.quantile(rows, [max(fraction - 0.02, 0), min(fraction + 0.02, 1)])
        assert low <= found[name][0] <= high


def test_a_wide_matrix_is_pooled_too() -> None:
    rows = wide_rows(6, 2500).reshape(6, 50, 50)
    assert of(rows).to_json()["mean"] == [pytest.approx(rows.mean())]


def test_the_size_of_statistics_does_not_grow_with_the_width() -> None:
    wide = of(wide_rows(30, 100_000))
    assert wide._sketch.nbytes < 100_000
    assert len(json.dumps(wide.to_json())) < 400


def test_unusable_values_of_a_wide_feature_are_counted_together() -> None:
    rows = wide_rows()
    rows[3, 7], rows[4, 2100], rows[5, 0] = np.nan, -np.inf, 1e200
    stats = of(rows)
    assert [(bad.nan, bad.inf, bad.overflow) for bad in stats.bad] == [(1, 1, 1)]
    usable = rows[np.isfinite(rows) & (np.abs(rows) < 1e150)]
    found = stats.to_json()
    assert found["min"] == [usable.min()] and found["max"] == [usable.max()]
    np.testing.assert_allclose(found["mean"], [usable.mean()], rtol=1e-12)
    assert stats.rows == len(rows)


def test_wide_statistics_survive_their_state_and_a_merge() -> None:
    rows = wide_rows()
    first, second = of(rows[:25]), of(rows[25:])
    again = NumericStats.from_state(first.to_state())
    assert again.to_json() == first.to_json()
    again.merge(second)
    found = again.to_json()
    assert found["count"] == [len(rows)] and found["max"] == [rows.max()]
    np.testing.assert_allclose(found["std"], [rows.std()], rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 50),
    width=st.integers(1, 40),
    block=st.integers(1, 400),
    bad=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_looking_at_some_columns_at_a_time_changes_no_digit(
    count: int, width: int, block: int, bad: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rows = rng.normal(0, 1e3, (count, width)).astype(np.float32)
    if bad:
        rows[rng.integers(count), rng.integers(width)] = np.nan
    whole = of(rows, batch=17).to_json()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stats_module, "_BLOCK_VALUES", block)
        assert of(rows, batch=17).to_json() == whole
