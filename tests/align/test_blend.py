"""Values between two messages: straight lines for vectors, the shorter arc for rotations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock._src.align import RowPick, interpolate
from penstock._src.align.pairing import slerp


def pick(*weights: float) -> RowPick:
    numbers = np.arange(len(weights), dtype=np.int32)
    return RowPick(numbers, numbers + 1, np.array(weights, dtype=np.float32))


def about_z(degrees: float) -> list[float]:
    return [0.0, 0.0, math.sin(math.radians(degrees) / 2), math.cos(math.radians(degrees) / 2)]


def rows(*values: list[float]) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)


def test_linear_blends_each_row_with_its_own_weight() -> None:
    left, right = rows([0, 10], [0, 10], [0, 10]), rows([4, 20], [4, 20], [4, 20])
    assert interpolate(pick(0.0, 0.25, 1.0), left, right, "linear").tolist() == [[0, 10], [1, 12.5], [4, 20]]


def test_a_message_without_weight_does_not_spoil_the_row() -> None:
    left, right = rows([1.0], [float("nan")]), rows([float("nan")], [2.0])
    assert interpolate(pick(0.0, 1.0), left, right, "linear").tolist() == [[1.0], [2.0]]


def test_equal_neighbours_give_exactly_their_value() -> None:
    values = rows([0.1, 1e-300, -7.7])
    assert interpolate(pick(0.3), values, values, "linear").tolist() == values.tolist()


@pytest.mark.parametrize("policy", ["nearest", "hold"])
def test_other_policies_take_the_left_values(policy: str) -> None:
    left = rows([1.0, 2.0])
    assert interpolate(RowPick(np.zeros(1, dtype=np.int32)), left, None, policy).tolist() == left.tolist()  # type: ignore[arg-type]


def test_slerp_turns_at_constant_speed_and_blends_the_other_columns() -> None:
    left, right = rows([0.0, *about_z(0)], [0.0, *about_z(0)]), rows([9.0, *about_z(90)], [9.0, *about_z(90)])
    got = interpolate(pick(1 / 3, 2 / 3), left, right, "slerp", quaternions=[(1, 2, 3, 4)])
    assert got == pytest.approx(rows([3.0, *about_z(30)], [6.0, *about_z(60)]), abs=1e-6)


def test_slerp_finds_a_quaternion_in_any_columns_in_xyzw_order() -> None:
    left, right = rows([*about_z(0), 5.0]), rows([*about_z(60), 7.0])
    shuffle = [3, 4, 0, 2, 1]
    got = interpolate(pick(0.5), left[:, shuffle], right[:, shuffle], "slerp", quaternions=[(2, 4, 3, 0)])
    assert got[:, [2, 4, 3, 0, 1]] == pytest.approx(rows([*about_z(30), 6.0]))


def test_slerp_takes_the_shorter_way_round() -> None:
    to = rows([-part for part in about_z(40)])  # the same rotation with the other sign
    got = slerp(rows(about_z(0)), to, rows([0.5]))
    assert got == pytest.approx(rows(about_z(20)))


def test_slerp_returns_unit_quaternions_from_inputs_of_any_length() -> None:
    got = slerp(rows(about_z(0)) * 3, rows(about_z(90)) * 0.01, rows([0.5]))
    assert got == pytest.approx(rows(about_z(45)))


def test_slerp_between_equal_and_between_almost_equal_rotations_has_no_noise() -> None:
    for degrees in (0.0, 1e-12, 1e-7, 1e-3):
        got = slerp(rows(about_z(10)), rows(about_z(10 + degrees)), rows([0.5]))
        assert got == pytest.approx(rows(about_z(10 + degrees / 2)), abs=1e-15)


def test_slerp_is_exact_for_small_turns_where_the_chord_is_not() -> None:
    got = slerp(rows(about_z(0)), rows(about_z(6)), rows([0.25]))
    assert got == pytest.approx(rows(about_z(1.5)), abs=1e-14)


def test_a_quaternion_of_length_zero_comes_back_as_recorded() -> None:
    nothing, turned = [0.0, 0.0, 0.0, 0.0], about_z(90)
    got = slerp(rows(nothing, nothing, turned), rows(turned, turned, nothing), rows([0.2], [0.8], [0.0]))
    assert got == pytest.approx(rows(nothing, turned, turned))


angles = st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(lambda q: math.hypot(*q) > 0.1)


@given(st.lists(st.tuples(angles, angles, st.floats(0, 1)), min_size=1, max_size=8))
def test_slerp_equals_the_textbook_formula(cases: list[tuple[list[float], list[float], float]]) -> None:
    left, right = (np.array([case[i] for case in cases]) for i in (0, 1))
    weight = np.array([[case[2]] for case in cases])
    got = slerp(left, right, weight)
    assert np.linalg.norm(got, axis=1) == pytest.approx(1.0)
    for row, (a, b, w) in enumerate(cases):
        assert got[row] == pytest.approx(textbook_slerp(a, b, w), abs=1e-6)


def textbook_slerp(a: list[float], b: list[float], w: float) -> list[float]:
    a = [part / math.hypot(*a) for part in a]
    b = [part / math.hypot(*b) for part in b]
    dot = math.fsum(x * y for x, y in zip(a, b, strict=True))
    if dot < 0:
        b, dot = [-part for part in b], -dot
    if dot > 1 - 1e-13:
        return a
    angle = math.acos(dot)
    parts = [math.sin((1 - w) * angle) / math.sin(angle), math.sin(w * angle) / math.sin(angle)]
    return [parts[0] * x + parts[1] * y for x, y in zip(a, b, strict=True)]


def test_slerp_equals_scipy() -> None:
    rotation = pytest.importorskip("scipy.spatial.transform")
    random = np.random.default_rng(7)
    left, right = random.normal(size=(50, 4)), random.normal(size=(50, 4))
    weight = random.random((50, 1))
    got = slerp(left, right, weight)
    for row in range(50):
        both = rotation.Rotation.from_quat([left[row], right[row]])
        expected = rotation.Slerp([0.0, 1.0], both)(weight[row, 0]).as_quat()
        assert min(np.abs(got[row] - expected).max(), np.abs(got[row] + expected).max()) < 1e-12
