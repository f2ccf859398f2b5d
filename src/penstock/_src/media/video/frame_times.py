"""When the frames of a video file are shown, and which of those that a decoder shows are whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INTRA = 1  # FFmpeg's number of images that need no other


@dataclass(frozen=True)
class FrameTimes:
    """The presentation times of a file's frames: a line where they are one, else an array of 8 bytes per frame."""

    count: int
    first: int
    step: int
    ticks: NDArray[np.int64] | None
    keys: NDArray[np.int32]
    """The numbers of the key frames, rising."""

    @staticmethod
    def of(ticks: NDArray[np.int64], is_key: NDArray[np.bool_]) -> FrameTimes:
        """From the times of all frames in the order in which they are shown."""
        keys = np.flatnonzero(is_key).astype(np.int32)
        steps = np.diff(ticks)
        first, step = (int(ticks[0]) if len(ticks) else 0), (int(steps[0]) if len(steps) else 1)
        is_line = step > 0 and bool((steps == step).all())
        return FrameTimes(len(ticks), first, step, None if is_line else ticks, keys)

    def of_frame(self, number: int) -> int:
        return self.first + number * self.step if self.ticks is None else int(self.ticks[number])

    def number(self, ticks: int | None) -> int:
        """The frame that is shown at a time; -1 where there is none."""
        if ticks is None:
            return -1
        if self.ticks is None:
            number, rest = divmod(ticks - self.first, self.step)
            return number if rest == 0 and 0 <= number < self.count else -1
        number = int(np.searchsorted(self.ticks, ticks))
        return number if number < self.count and int(self.ticks[number]) == ticks else -1

    def key_before(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """The key frame at or before each frame; 0 where the file has none."""
        place = np.searchsorted(self.keys, numbers, side="right") - 1
        if not len(self.keys):
            return np.zeros(len(numbers), np.int64)
        return np.where(place >= 0, self.keys[np.maximum(place, 0)], 0).astype(np.int64)

    def key_of(self, number: int) -> int:
        """The key frame at or before a frame; 0 where the file has none."""
        place = int(self.keys.searchsorted(number, side="right")) - 1
        return int(self.keys[place]) if place >= 0 else 0

    @property
    def n_bytes(self) -> int:
        return self.keys.nbytes + (0 if self.ticks is None else self.ticks.nbytes)


class WholeFrames:
    """Follows what a decoder shows, from a seek (or the start of the file) on, and says which frames are whole.

    FFmpeg hides damage: it fills gaps of an image from its neighbours, leaves images out, and shows what refers to
    them all the same. Behind any of that, nothing is whole up to the next key frame; nor is anything behind a seek that
    did not lead to a key frame (files that refresh their images piece by piece name others so).
    """

    __slots__ = ("_is_whole", "_last", "_times")

    def __init__(self, times: FrameTimes, *, from_start: bool) -> None:
        self._times = times
        self._is_whole = from_start
        self._last = -1

    def follow(self, number: int, frame: Any) -> bool:
        """Whether a frame is whole; call it for every frame in the order in which they come (-1: none of the file)."""
        if frame.is_corrupt:
            self._is_whole = False
        elif not self._is_whole:
            self._is_whole = self._is_key(number, frame)
        elif number > self._last + 1 and self._has_gap(number) and not self._is_key(number, frame):
            self._is_whole = False
        if number >= 0:
            self._last = number
        return self._is_whole

    def _has_gap(self, number: int) -> bool:
        """Whether a frame is missing before this one; frames of one time have one number."""
        return self._last >= 0 and self._times.of_frame(number - 1) != self._times.of_frame(self._last)

    def _is_key(self, number: int, frame: Any) -> bool:
        if frame.key_frame:
            return True
        return number >= 0 and self._times.key_of(number) == number and int(frame.pict_type) == _INTRA
