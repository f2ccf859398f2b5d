"""A textured background with objects in front of it, all of them on smooth paths that are known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_OBJECTS = 2
_CELLS_PX = (96, 48, 24)  # of the coarse noise that makes light and shade
_SHAPE_EVERY_PX = 900  # of the area: one drawn shape


@dataclass(frozen=True)
class Path:
    """x and y as sines of time; one unit of time is one blurred image."""

    amplitude_px: tuple[float, float]
    cycles: tuple[float, float]  # per image
    phase: tuple[float, float]

    def at(self, time: float) -> tuple[float, float]:
        """(x, y) in pixels around the middle of the path."""
        turns = 2 * np.pi * np.multiply(self.cycles, time) + self.phase
        x, y = np.multiply(self.amplitude_px, np.sin(turns))
        return float(x), float(y)


def random_path(rng: np.random.Generator, reach_px: float, travel_px: float) -> Path:
    """Within `reach_px` of its middle, at a mean speed of `travel_px` per image in each direction."""
    amplitude = rng.uniform(0.6, 1.0, 2) * reach_px
    cycles = rng.uniform(0.7, 1.3, 2) * travel_px / (4 * amplitude)  # a sine goes four amplitudes in a cycle
    phase = rng.uniform(0, 2 * np.pi, 2)
    return Path(*((float(a), float(b)) for a, b in (amplitude, cycles, phase)))


class MovingScene:
    """Views of a background that moves, and of objects that move in front of it."""

    def __init__(self, height: int, width: int, travel_px: float, rng: np.random.Generator) -> None:
        self.height, self.width = height, width
        self._margin_px = max(min(height, width) // 3, 8)
        margin = 2 * self._margin_px
        self._background = _texture(rng, height + margin, width + margin)
        self._path = random_path(rng, self._margin_px - 2, travel_px)
        self._objects = [_Object(rng, height, width, travel_px) for _ in range(_OBJECTS)]

    @property
    def columns(self) -> list[str]:
        """The names of `positions_px`."""
        names = ["background", *(f"object{number}" for number in range(_OBJECTS))]
        return [f"{name}_{axis}_px" for name in names for axis in "xy"]

    def positions_px(self, time: float) -> list[float]:
        """x and y of the background and of each object in the view: how far each lies from the middle of its path."""
        paths = [self._path, *(each.path for each in self._objects)]
        return [value for path in paths for value in path.at(time)]

    def view(self, time: float) -> NDArray[np.uint8]:
        """What is seen at a moment, BGR."""
        x, y = self._path.at(time)
        seen = _shifted(self._background, x - self._margin_px, y - self._margin_px, self.height, self.width)
        for each in self._objects:
            each.draw(seen, time)
        return seen


class _Object:
    """A textured disc in front of the background."""

    def __init__(self, rng: np.random.Generator, height: int, width: int, travel_px: float) -> None:
        import cv2

        size = max(min(height, width) // 4, 12)
        self._pixels = _texture(rng, size, size).astype(np.float32)
        self._mask = np.zeros((size, size, 1), np.float32)
        cv2.circle(self._mask, (size // 2, size // 2), size // 2 - 2, (1.0,), -1, cv2.LINE_AA)
        self._place = rng.uniform(0.1, 0.9, 2) * (width - size, height - size)
        self.path = random_path(rng, size, 1.5 * travel_px)

    def draw(self, seen: NDArray[np.uint8], time: float) -> None:
        """Into a view, at the place of that moment."""
        height, width = seen.shape[:2]
        size = len(self._mask)
        x, y = np.add(self._place, self.path.at(time))
        left, top = int(np.floor(x)), int(np.floor(y))
        right, below = min(left + size + 1, width), min(top + size + 1, height)
        first_x, first_y = max(left, 0), max(top, 0)
        if first_x >= right or first_y >= below:
            return
        mask = _shifted(self._mask, x - left, y - top, size + 1, size + 1).reshape(size + 1, size + 1, 1)
        pixels = _shifted(self._pixels, x - left, y - top, size + 1, size + 1)
        part = np.s_[first_y - top : below - top, first_x - left : right - left]
        under = seen[first_y:below, first_x:right]
        under[:] = np.round(under + mask[part] * (pixels[part] - under)).astype(np.uint8)


def _shifted(pixels: NDArray[Any], x: float, y: float, height: int, width: int) -> NDArray[Any]:
    """A view of `height` × `width` on pixels that lie `x` to the right and `y` below its corner."""
    import cv2

    matrix = np.array([[1, 0, x], [0, 1, y]], np.float32)
    shifted: NDArray[Any] = cv2.warpAffine(pixels, matrix, (width, height), flags=cv2.INTER_LINEAR)
    return shifted


def _texture(rng: np.random.Generator, height: int, width: int) -> NDArray[np.uint8]:
    """Light and shade at several scales, and shapes with sharp edges."""
    import cv2

    shade = np.full((height, width, 3), 110, np.float32)
    for cell in _CELLS_PX:
        cells = (height // cell + 2, width // cell + 2)
        coarse = (rng.normal(0, 22, (*cells, 1)) + rng.normal(0, 7, (*cells, 3))).astype(np.float32)
        shade += cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    canvas: NDArray[np.uint8] = np.clip(shade, 5, 250).astype(np.uint8)
    longest = max(min(height, width) // 6, 4)
    for _ in range(height * width // _SHAPE_EVERY_PX):
        colour = np.clip(rng.uniform(20, 235) + rng.normal(0, 25, 3), 5, 250).tolist()
        place = rng.uniform(0, 1, 2) * (width, height)
        ends = (place + rng.uniform(-longest, longest, (3, 2))).astype(np.int32)
        if rng.random() < 0.5:
            cv2.fillConvexPoly(canvas, ends, colour, cv2.LINE_AA)
        else:
            cv2.line(canvas, ends[0].tolist(), ends[1].tolist(), colour, int(rng.integers(1, 4)), cv2.LINE_AA)
    return canvas
