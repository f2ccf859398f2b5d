"""Statistics of one pass over the data, in the shapes that LeRobot stores.

Min, max, mean, standard deviation and count are exact; quantiles come from a sketch (see quantiles.py). Statistics of a
whole data set are merged from the sketches and histograms of its episodes, never averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock._src.lerobot.quantiles import QuantileSketch
from penstock.errors import ImageError

QUANTILES: dict[str, float] = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
STATISTICS: tuple[str, ...] = ("min", "max", "mean", "std", "count", *QUANTILES)

# The square of a larger number, summed over a long recording, overflows a float64.
LARGEST_USABLE = 1e150

# A feature with more numbers in a row has one statistic for all of them: a sketch per number would take 4 KiB each.
WIDEST_VALUES = 2048
# Numbers of one row of such a feature that enter the sketch, evenly spread.
_SAMPLED_VALUES = 2048
# Numbers that are looked at together, as float64.
_BLOCK_VALUES = 1 << 17

# Pixels of one image that enter the histogram: enough for 1 % quantiles, cheap enough to forget.
IMAGE_SIDE_PX = 160

Stats = dict[str, list[Any]]

_NUMERIC_ARRAYS = ("usable", "min", "max", "mean", "squares", "bad")


class BadValues(NamedTuple):
    """Values of one dimension that no statistic can use."""

    nan: int
    inf: int
    overflow: int

    @property
    def total(self) -> int:
        return self.nan + self.inf + self.overflow


def are_pooled(shape: tuple[int, ...]) -> bool:
    """Whether a numeric feature has one statistic for all numbers of a row, not one for each."""
    return math.prod(shape) > WIDEST_VALUES


class NumericStats:
    """Statistics of a numeric feature whose rows have `shape`; NaN and Inf are counted and left out.

    A feature of more than WIDEST_VALUES numbers is `pooled`: all its numbers are one dimension, min, max, mean and
    standard deviation of all of them, and quantiles of some of each row.

    >>> stats = NumericStats((2,))
    >>> stats.add(np.array([[0.0, 1.0], [2.0, float("nan")]]))
    >>> stats.to_json()["mean"], stats.bad[1].nan
    ([1.0, 1.0], 1)
    """

    def __init__(self, shape: tuple[int, ...] = (1,), dtype: DTypeLike = np.float64) -> None:
        self.shape = shape
        self.rows = 0
        self._width = math.prod(shape)
        self.pooled = are_pooled(shape)
        self._dims = dims = 1 if self.pooled else self._width
        self._dtype = np.dtype(np.float32) if np.dtype(dtype) in (np.float16, np.float32) else np.dtype(np.float64)
        self._usable: NDArray[np.int64] = np.zeros(dims, dtype=np.int64)
        self._min: NDArray[np.float64] = np.full(dims, np.inf)
        self._max: NDArray[np.float64] = np.full(dims, -np.inf)
        self._mean: NDArray[np.float64] = np.zeros(dims)
        self._squares: NDArray[np.float64] = np.zeros(dims)
        self._bad: NDArray[np.int64] = np.zeros((3, dims), dtype=np.int64)
        self._sketch = QuantileSketch(dims, dtype=self._dtype)
        # Rows with an unusable value go to one sketch per dimension, so that no dimension waits for another.
        # The rank errors add up in proportion to the rows: the bound of the two together is the bound of one.
        self._ragged: dict[int, QuantileSketch] = {}

    @property
    def bad(self) -> list[BadValues]:
        """Unusable values per dimension, dimensions in row-major order."""
        return [BadValues(*(int(n) for n in column)) for column in self._bad.T]

    def add(self, rows: NDArray[Any]) -> None:
        """Take in rows of shape (n, *shape)."""
        if len(rows) == 0:
            return
        flat = np.asarray(rows).reshape(len(rows), self._width)
        if self.pooled:
            self._add_pooled(flat)
        else:
            self.rows += len(flat)
            self._add(flat)

    def _add_pooled(self, flat: NDArray[Any]) -> None:
        """All numbers of some rows as one column; the sketch takes every n-th, other ones of every row."""
        stride = -(-self._width // _SAMPLED_VALUES)
        step = max(1, _BLOCK_VALUES // self._width)
        for start in range(0, len(flat), step):
            block = flat[start : start + step]
            sampled = [row[(self.rows + number) % stride :: stride] for number, row in enumerate(block)]
            self.rows += len(block)
            self._add(block.reshape(-1, 1), np.concatenate(sampled).reshape(-1, 1))

    def _add(self, flat: NDArray[Any], sampled: NDArray[Any] | None = None) -> None:
        with np.errstate(invalid="ignore"):
            low, high = flat.min(axis=0).astype(np.float64), flat.max(axis=0).astype(np.float64)
        # NaN and Inf show up in the extremes, so clean data pays for no mask.
        if np.all(low >= -LARGEST_USABLE) and np.all(high <= LARGEST_USABLE):
            mean, squares = np.empty(self._dims), np.empty(self._dims)
            for part in _column_blocks(*flat.shape):
                values = flat[:, part].astype(np.float64)
                mean[part] = values.mean(axis=0)
                values -= mean[part]
                squares[part] = np.einsum("ij,ij->j", values, values)
            self._join(np.full(self._dims, len(flat), dtype=np.int64), low, high, mean, squares)
            self._sketch.add(flat if sampled is None else sampled)
        else:
            self._add_ragged(flat, sampled)

    def merge(self, other: NumericStats) -> None:
        if other.shape != self.shape:
            raise ValueError(f"cannot merge statistics of shape {other.shape} into {self.shape}")
        self.rows += other.rows
        self._bad += other._bad
        self._join(other._usable, other._min, other._max, other._mean, other._squares)
        self._sketch.merge(other._sketch)
        for dim, sketch in other._ragged.items():
            self._ragged_sketch(dim).merge(sketch)

    def to_json(self) -> Stats:
        """Lists in the feature's own shape, `count` as [rows]; a dimension without one usable value gets zeros.

        What is pooled has lists of one number, which a reader spreads over the row.
        """
        shape = (1,) if self.pooled else self.shape
        with np.errstate(invalid="ignore", divide="ignore"):
            std = np.sqrt(self._squares / self._usable)
        empty = self._usable == 0
        table = {"min": self._min, "max": self._max, "mean": self._mean, "std": std}
        result: Stats = {name: np.where(empty, 0.0, row).reshape(shape).tolist() for name, row in table.items()}
        result["count"] = [self.rows]
        for name, row in zip(QUANTILES, self._quantiles(list(QUANTILES.values())), strict=True):
            result[name] = row.reshape(shape).tolist()
        return result

    def to_state(self) -> dict[str, Any]:
        """Everything that is known, as plain values and arrays; `from_state` gives the same statistics again."""
        arrays = {name: getattr(self, f"_{name}").copy() for name in _NUMERIC_ARRAYS}
        ragged = {str(dim): sketch.to_state() for dim, sketch in self._ragged.items()}
        return {
            "shape": list(self.shape),
            "rows": self.rows,
            "dtype": self._dtype.name,
            **arrays,
            "sketch": self._sketch.to_state(),
            "ragged": ragged,
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> NumericStats:
        stats = cls(tuple(state["shape"]), state["dtype"])
        stats.rows = state["rows"]
        for name in _NUMERIC_ARRAYS:
            setattr(stats, f"_{name}", np.array(state[name]))
        stats._sketch = QuantileSketch.from_state(state["sketch"])
        stats._ragged = {int(dim): QuantileSketch.from_state(sketch) for dim, sketch in state["ragged"].items()}
        return stats

    def _quantiles(self, fractions: list[float]) -> NDArray[np.float64]:
        values = self._sketch.quantiles(fractions)
        for dim, sketch in self._ragged.items():
            whole = self._sketch.column(dim)
            whole.merge(sketch)
            values[:, dim] = whole.quantiles(fractions)[:, 0]
        return values

    def _add_ragged(self, flat: NDArray[Any], sampled: NDArray[Any] | None) -> None:
        counts, bad = np.empty(self._dims, dtype=np.int64), np.empty((3, self._dims), dtype=np.int64)
        low, high, mean, squares = (np.empty(self._dims) for _ in range(4))
        whole = np.ones(len(flat), dtype=bool)
        for part in _column_blocks(*flat.shape):
            values = flat[:, part].astype(np.float64)
            usable = np.abs(values) <= LARGEST_USABLE
            whole &= usable.all(axis=1)
            counts[part] = usable.sum(axis=0)
            bad[0, part] = np.isnan(values).sum(axis=0)
            bad[1, part] = np.isinf(values).sum(axis=0)
            bad[2, part] = len(values) - counts[part] - bad[0, part] - bad[1, part]
            kept = np.where(usable, values, 0.0)
            mean[part] = kept.sum(axis=0) / np.maximum(counts[part], 1)
            centred = np.where(usable, kept - mean[part], 0.0)
            low[part] = np.where(usable, values, np.inf).min(axis=0)
            high[part] = np.where(usable, values, -np.inf).max(axis=0)
            squares[part] = np.einsum("ij,ij->j", centred, centred)
        self._bad += bad
        self._join(counts, low, high, mean, squares)
        if sampled is not None:
            self._sketch.add(sampled[np.abs(sampled[:, 0].astype(np.float64)) <= LARGEST_USABLE])
            return
        self._sketch.add(flat[whole])
        broken = flat[~whole]
        for dim in range(self._dims):
            column = broken[:, dim : dim + 1]
            self._ragged_sketch(dim).add(column[np.abs(column[:, 0].astype(np.float64)) <= LARGEST_USABLE])

    def _ragged_sketch(self, dim: int) -> QuantileSketch:
        return self._ragged.setdefault(dim, QuantileSketch(1, dtype=self._dtype))

    def _join(
        self,
        counts: NDArray[np.int64],
        low: NDArray[np.float64],
        high: NDArray[np.float64],
        mean: NDArray[np.float64],
        squares: NDArray[np.float64],
    ) -> None:
        """Chan's parallel update: as exact as two passes over everything."""
        total = self._usable + counts
        share = counts / np.maximum(total, 1)
        delta = mean - self._mean
        self._squares += squares + delta * delta * (self._usable * share)
        self._mean += delta * share
        self._usable = total
        self._min = np.minimum(self._min, low)
        self._max = np.maximum(self._max, high)


def _column_blocks(rows: int, columns: int) -> Iterator[slice]:
    """Columns that are looked at together: few enough for bounded memory, and never one of several.

    Sums over the rows of two and more columns go row by row, and those of a single column pairwise: a block of one
    would give other last digits.
    """
    step = max(8, _BLOCK_VALUES // max(rows, 1) // 8 * 8)
    start = 0
    while start < columns:
        stop = columns if columns - start <= step + 1 else start + step
        yield slice(start, stop)
        start = stop


class ImageStats:
    """Statistics per colour of a bounded sample of images, from exact 256-bin histograms.

    Large images enter with every n-th pixel of every n-th line, as LeRobot's own statistics do.
    """

    def __init__(self) -> None:
        self.count = 0
        self._bins: NDArray[np.int64] = np.zeros((3, 256), dtype=np.int64)

    def add(self, rgb: NDArray[np.uint8]) -> None:
        """Take in one image, uint8 (height, width, 3)."""
        if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8 or rgb.size == 0:
            raise ImageError(f"image statistics need uint8 images (height, width, 3), got {rgb.dtype} {rgb.shape}")
        step = max(1, max(rgb.shape[:2]) // IMAGE_SIDE_PX)
        sample = rgb[::step, ::step]
        for channel in range(3):
            self._bins[channel] += np.bincount(sample[:, :, channel].reshape(-1), minlength=256)
        self.count += 1

    def merge(self, other: ImageStats) -> None:
        self.count += other.count
        self._bins += other._bins

    def to_state(self) -> dict[str, Any]:
        """Everything that is known, as plain values and arrays; `from_state` gives the same statistics again."""
        return {"count": self.count, "bins": self._bins.copy()}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> ImageStats:
        stats = cls()
        stats.count = state["count"]
        stats._bins = np.array(state["bins"])
        return stats

    def to_json(self) -> Stats | None:
        """Shape (3, 1, 1), values in [0, 1], `count` as [images]; None when no image was sampled."""
        if self.count == 0:
            return None
        levels = np.arange(256) / 255.0
        pixels = self._bins.sum(axis=1)
        mean = self._bins @ levels / pixels
        std = np.sqrt(np.maximum(self._bins @ (levels * levels) / pixels - mean * mean, 0.0))
        ends = np.cumsum(self._bins, axis=1)
        table = {
            "min": levels[np.argmax(self._bins > 0, axis=1)],
            "max": levels[255 - np.argmax(self._bins[:, ::-1] > 0, axis=1)],
            "mean": mean,
            "std": std,
        }
        for name, fraction in QUANTILES.items():
            rank = np.floor(fraction * (pixels - 1)).astype(np.int64)
            table[name] = levels[[int(np.searchsorted(ends[c], rank[c], side="right")) for c in range(3)]]
        result: Stats = {name: row.reshape(3, 1, 1).tolist() for name, row in table.items()}
        result["count"] = [self.count]
        return {name: result[name] for name in STATISTICS}
