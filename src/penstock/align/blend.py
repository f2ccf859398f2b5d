"""Blending: the value of a row between two messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.align.pairing import Pick
from penstock.align.streams import Policy
from penstock.errors import ConfigError

Quadruple = tuple[int, int, int, int]

# Below this angle sin(angle) loses its meaning and the chord is the arc.
_SMALLEST_ANGLE = 1e-9


def interpolate(
    pick: Pick,
    left_values: NDArray[Any],
    right_values: NDArray[Any] | None,
    policy: Policy,
    *,
    quaternions: Sequence[Quadruple] = (),
) -> NDArray[np.float64]:
    """The values of the rows of `pick`, one row of `left_values` and `right_values` (n, columns) for each.

    `quaternions` names, for slerp, the columns of each x, y, z, w; every other column is blended linearly.
    Where the weight is 0 the left values come back untouched (quaternions normalised), whatever the right ones hold.
    """
    left = _matrix("left_values", left_values, len(pick))
    if policy not in ("linear", "slerp") or pick.weight is None or right_values is None:
        return left
    right = _matrix("right_values", right_values, len(pick))
    if right.shape != left.shape:
        raise ConfigError(f"left values have shape {left.shape}, right values {right.shape}; expected the same")
    weight = pick.weight.astype(np.float64)[:, np.newaxis]
    blended = linear(left, right, weight)
    if policy == "slerp":
        for columns in _checked(quaternions, left.shape[1]):
            blended[:, columns] = slerp(left[:, columns], right[:, columns], weight)
    return blended


def linear(left: NDArray[np.float64], right: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """`left` at weight 0, `right` at 1; exact at both ends, and never outside of the two."""
    with np.errstate(invalid="ignore", over="ignore"):
        blended = (1.0 - weight) * left + weight * right
    # An infinity or a NaN of a message that has no weight must not come through, and rounding must not leave the range.
    np.clip(blended, np.minimum(left, right), np.maximum(left, right), out=blended)
    return np.where(weight == 0.0, left, np.where(weight == 1.0, right, blended))


def slerp(left: NDArray[np.float64], right: NDArray[np.float64], weight: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn from `left` to `right` (rows of x, y, z, w) along the shorter arc, at constant speed; unit length.

    A quaternion of length zero (or not finite) has no direction: such rows take the one with more weight as recorded.
    """
    left_unit, left_good = _unit(left)
    right_unit, right_good = _unit(right)
    # q and -q are the same rotation: turn the right one to the side of the left one.
    right_unit = np.where(np.sum(left_unit * right_unit, axis=1, keepdims=True) < 0.0, -right_unit, right_unit)
    # Half-angle form: accurate for tiny angles, where arccos of the dot product is not.
    angle = 2.0 * np.arctan2(_length(right_unit - left_unit), _length(right_unit + left_unit))
    tiny = angle < _SMALLEST_ANGLE
    sine = np.where(tiny, 1.0, np.sin(angle))
    from_left = np.where(tiny, 1.0 - weight, np.sin((1.0 - weight) * angle) / sine)
    from_right = np.where(tiny, weight, np.sin(weight * angle) / sine)
    turned, _ = _unit(from_left * left_unit + from_right * right_unit)
    turned = np.where(weight == 0.0, left_unit, turned)
    as_recorded = np.where(weight <= 0.5, left, right)
    return np.where((left_good & right_good) | (left_good & (weight == 0.0)), turned, as_recorded)


def _unit(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    length = _length(rows)
    good = np.isfinite(length) & (length > 0.0)
    with np.errstate(invalid="ignore"):
        unit = np.where(good, rows, 0.0) / np.where(good, length, 1.0)
    return unit, good


def _length(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        length: NDArray[np.float64] = np.sqrt(np.sum(rows * rows, axis=1, keepdims=True))
    return length


def _matrix(name: str, values: NDArray[Any], n_rows: int) -> NDArray[np.float64]:
    matrix = np.asarray(values, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != n_rows:
        raise ConfigError(f"{name} has shape {matrix.shape}; expected ({n_rows}, columns)")
    return matrix


def _checked(quaternions: Sequence[Quadruple], n_columns: int) -> list[list[int]]:
    if not quaternions:
        raise ConfigError("slerp needs to know which columns are quaternions", hint="quaternions: [[3, 4, 5, 6]]")
    for columns in quaternions:
        if len(columns) != 4 or len(set(columns)) != 4 or not all(0 <= column < n_columns for column in columns):
            raise ConfigError(
                f"{list(columns)} does not name the x, y, z and w of a quaternion among {n_columns} columns",
                hint="four different column numbers, the first column is 0",
            )
    return [list(columns) for columns in quaternions]
