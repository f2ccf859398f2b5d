"""Values that are made from others: relative to the first row, to another feature, or to a threshold; whole numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.settings import FeatureSettings
from penstock.errors import ConfigError, DataSetError

if TYPE_CHECKING:
    from penstock.conversion.inputs.columns import VectorColumn, VectorPart

Values = NDArray[np.float64]


def check_relations(features: Mapping[str, FeatureSettings], vectors: Sequence[VectorColumn]) -> None:
    """Refuse before anything is read what could not be subtracted."""
    sizes = {vector.key: vector.size for vector in vectors}
    moving = {vector.key: _moving(vector) for vector in vectors}
    for key, feature in features.items():
        if key not in sizes and (feature.relative_to is not None or feature.relative_start):
            raise ConfigError(f"features.{key} is a camera: only numbers can be relative to others")
        other = feature.relative_to
        if other is None:
            continue
        where = f"features.{key}.relative_to"
        if other not in sizes or other == key:
            known = [each for each in sizes if each != key]
            raise ConfigError(
                f"{where}: {other!r} is not another feature of numbers", hint=f"there are: {', '.join(known) or 'none'}"
            )
        if sizes[other] > sizes[key] or moving[key][sizes[other] :].any():
            raise ConfigError(
                f"{where}: {key} has {sizes[key]} values and {other} has {sizes[other]}",
                hint="both need the same values in the same order; what comes after them must be absolute: true",
            )
        if features[other].relative_to is not None:
            raise ConfigError(f"{where}: {other} is itself relative to {features[other].relative_to}")


def thresholded(part: VectorPart, values: Values) -> Values:
    """1 where a value is above the threshold of its source, else 0; what is no number stays none."""
    threshold = part.source.threshold
    if threshold is None:
        return values
    return np.where(np.isnan(values), values, (values > threshold).astype(np.float64))


def check_whole_numbers(key: str, values: Values) -> None:
    """Refuse what cannot be int64. The values came as float64: beyond 2^53 it rounds whole numbers."""
    wrong = ~(np.abs(values) <= 2.0**53) | (values != np.rint(values))
    if wrong.any():
        raise DataSetError(
            f"{key} is int64, but {int(np.count_nonzero(wrong)):,} values are no whole numbers within ±2^53, "
            f"the first is {float(values[wrong][0])}",
            hint=f"set features.{key}.dtype: float64",
        )


class Relations:
    """What is subtracted from the rows of one episode: it begins with the episode, and remembers its first row."""

    def __init__(self, features: Mapping[str, FeatureSettings], vectors: Sequence[VectorColumn]) -> None:
        self._features = {vector.key: features[vector.key] for vector in vectors if vector.key in features}
        self._moving = {vector.key: _moving(vector) for vector in vectors}
        self._first: dict[str, Values] = {}

    def apply(self, values: Mapping[str, Values]) -> None:
        """Change the next rows of all features in place; `relative_to` takes what the other feature stores."""
        for key, feature in self._features.items():
            if feature.relative_start:
                first = self._first.setdefault(key, values[key][0].copy())
                moving = self._moving[key]
                values[key][:, moving] -= first[moving]
        for key, feature in self._features.items():
            if feature.relative_to is not None:
                other = values[feature.relative_to]
                moving = self._moving[key][: other.shape[1]]
                values[key][:, : other.shape[1]][:, moving] -= other[:, moving]


def _moving(vector: VectorColumn) -> NDArray[np.bool_]:
    """Which values of a vector are made relative: all but those of absolute sources."""
    if vector.inverse is not None:
        return np.full(vector.size, not vector.parts[0].source.absolute)
    return np.concatenate([np.full(part.size, not part.source.absolute) for part in vector.parts])
