"""The statistics of all features of a data set: which each has, those of depth, and values that are no numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.lerobot.features import ROW_FEATURES, Feature
from penstock._src.lerobot.stats import IMAGE_SIDE_PX, STATISTICS, ImageStats, NumericStats, Stats
from penstock.errors import ImageError

FeatureStats = NumericStats | ImageStats

_SHAPE = (1, 1, 1)


class DepthStats(ImageStats):
    """Statistics of a bounded sample of depth images, in mm or m; pixels that are no number are left out.

    A pixel without a reading is 0 in 16-bit depth. It counts, as it does in LeRobot: it is what a policy will see.
    """

    def __init__(self) -> None:
        super().__init__()
        self._values = NumericStats(_SHAPE, np.float32)  # which holds every 16-bit number exactly

    def add(self, rgb: NDArray[Any]) -> None:
        """Take in one image, uint16 or float32 (height, width)."""
        if rgb.ndim != 2 or rgb.dtype not in (np.uint16, np.float32) or rgb.size == 0:
            raise ImageError(f"depth statistics need uint16 or float32 (height, width), got {rgb.dtype} {rgb.shape}")
        step = max(1, max(rgb.shape) // IMAGE_SIDE_PX)
        sample = rgb[::step, ::step].reshape(-1).astype(np.float32)
        self._values.add(sample[np.isfinite(sample)])
        self.count += 1

    def merge(self, other: ImageStats) -> None:
        if not isinstance(other, DepthStats):
            raise ValueError(f"cannot merge {other!r} into statistics of depth")
        self.count += other.count
        self._values.merge(other._values)

    def to_state(self) -> dict[str, Any]:
        return {"count": self.count, "values": self._values.to_state()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> DepthStats:
        stats = cls()
        stats.count = state["count"]
        stats._values = NumericStats.from_state(state["values"])
        return stats

    def to_json(self) -> Stats | None:
        """Shape (1, 1, 1) in the unit of the images, `count` as [images]; None when no image was sampled."""
        if self.count == 0:
            return None
        stats = {**self._values.to_json(), "count": [self.count]}
        return {name: stats[name] for name in STATISTICS}


def new_stats(features: Sequence[Feature]) -> dict[str, FeatureStats]:
    """Empty statistics of every feature that has some, in the order of the metadata."""
    stats: dict[str, FeatureStats] = {}
    for feature in (*features, *ROW_FEATURES):
        if feature.is_camera:
            stats[feature.key] = DepthStats() if feature.dtype == "image" and feature.is_depth else ImageStats()
        elif not feature.is_text:
            stats[feature.key] = NumericStats(feature.shape, feature.dtype)
    return stats


def bad_values(features: Sequence[Feature], stats: Mapping[str, FeatureStats]) -> dict[str, dict[str, dict[str, int]]]:
    """Unusable values by feature and dimension name; only what is there."""
    values: dict[str, dict[str, dict[str, int]]] = {}
    for feature in features:
        entry = stats.get(feature.key)
        if not isinstance(entry, NumericStats):
            continue
        for name, bad in zip(feature.dimension_names, entry.bad, strict=True):
            if bad.total:
                counts = {"nan": bad.nan, "inf": bad.inf, "overflow": bad.overflow}
                values.setdefault(feature.key, {})[name] = {kind: n for kind, n in counts.items() if n}
    return values
