"""The statistics of all features of a data set, empty to begin with, and the values in them that are no numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.lerobot.depth_stats import DepthStats
from penstock.lerobot.features import ROW_FEATURES, Feature
from penstock.lerobot.stats import ImageStats, NumericStats

FeatureStats = NumericStats | ImageStats


def new_stats(features: Sequence[Feature]) -> dict[str, FeatureStats]:
    """Empty statistics of every feature that has some, in the order of the metadata."""
    return {feature.key: _empty_stats(feature) for feature in (*features, *ROW_FEATURES) if not feature.is_text}


def _empty_stats(feature: Feature) -> FeatureStats:
    if feature.dtype == "image" and feature.is_depth:
        return DepthStats()
    return ImageStats() if feature.is_camera else NumericStats(feature.shape, feature.dtype)


def bad_values(features: Sequence[Feature], stats: Mapping[str, FeatureStats]) -> dict[str, dict[str, dict[str, int]]]:
    """Unusable values by feature and dimension name; only what is there."""
    found: dict[str, dict[str, dict[str, int]]] = {}
    for feature in features:
        entry = stats.get(feature.key)
        if not isinstance(entry, NumericStats):
            continue
        for name, bad in zip(feature.dimension_names, entry.bad, strict=True):
            if bad.total:
                counts = {"nan": bad.nan, "inf": bad.inf, "overflow": bad.overflow}
                found.setdefault(feature.key, {})[name] = {kind: n for kind, n in counts.items() if n}
    return found
