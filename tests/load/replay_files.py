"""Small replay files made with h5py, and the transitions of seed 001's naive buffer done right: h5py and cv2 alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np

CAMERAS = ("left_image", "right_image", "global_image")
HEIGHT, WIDTH = 30, 40


def write_replay(
    path: Path,
    lengths: Sequence[int] = (5, 1, 7, 4),
    timeouts: Sequence[int] = (2,),
    *,
    first_reward: int = 0,
    cameras: Sequence[str] = CAMERAS,
    channels_first: bool = False,
    joint: str = "observations/joint",
    ends: str = "terminals",
    dtype: str = "float32",
    jpeg: bool = False,
    **options: Any,
) -> Path:
    """Episodes of these lengths; those in `timeouts` end by time, the others terminal. The reward counts rows."""
    rows = sum(lengths)
    stops = np.cumsum(lengths) - 1
    rng = np.random.default_rng(first_reward + rows)
    terminal, timeout = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
    terminal[[stop for number, stop in enumerate(stops) if number not in timeouts]] = True
    timeout[[stops[number] for number in timeouts]] = True
    with h5py.File(path, "w") as file:
        for number, name in enumerate(cameras):
            pixels = np.stack([_image(1000 * number + first_reward + row) for row in range(rows)])
            if jpeg:
                coded = [cv2.imencode(".jpg", each)[1].reshape(-1) for each in pixels]
                longest = max(len(each) for each in coded)
                pixels = np.stack([np.pad(each, (0, longest - len(each))) for each in coded])
            elif channels_first:
                pixels = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))
            file.create_dataset(f"observations/{name}", data=pixels, **options)
        file[joint] = rng.normal(size=(rows, 16)).astype(dtype)
        file["actions"] = rng.normal(3.0, 2.0, size=(rows, 4)).astype(dtype)
        file["rewards"] = (np.arange(rows) + first_reward).astype(dtype)
        file[ends] = terminal
        if timeouts:
            file["timeouts"] = timeout
    return path


def _image(seed: int) -> np.ndarray:
    small = np.random.default_rng(seed).integers(0, 256, (3, 4, 3), dtype=np.uint8)
    return cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)


class Naive:
    """All transitions of a file, by reward: what a buffer must give for the row with this reward."""

    def __init__(self, path: Path, size: tuple[int, int] = (224, 224), joint: str = "observations/joint") -> None:
        self._size = size
        with h5py.File(path, "r") as file:
            self._images = [file[f"observations/{name}"][:] for name in CAMERAS]
            self._joint, self._action = file[joint][:], file["actions"][:]
            self._reward = file["rewards"][:]
            self._terminal = file["terminals"][:] if "terminals" in file else file["finished"][:]
            timeout = file["timeouts"][:] if "timeouts" in file else np.zeros(len(self._terminal), np.bool_)
        last = len(self._reward) - 1
        self.rows = [row for row in range(last + 1) if self._terminal[row] or not (timeout[row] or row == last)]

    def rewards(self) -> set[int]:
        return {int(self._reward[row]) for row in self.rows}

    def actions(self, count: int | None = None) -> np.ndarray:
        return self._action[self.rows[:count]]

    def transition(self, reward: float) -> list[np.ndarray]:
        """The seed's eleven values of the row that has this reward."""
        (row,) = np.flatnonzero(self._reward == reward)
        following = row if self._terminal[row] else row + 1
        frames = [self._resized(images[row]) for images in self._images]
        after = [self._resized(images[following]) for images in self._images]
        end = [np.float32([self._reward[row]]), np.float32([1.0 - self._terminal[row]])]
        return [*frames, self._joint[row], self._action[row], *after, self._joint[following], *end]

    def _resized(self, stored: np.ndarray) -> np.ndarray:
        if stored.ndim == 1:
            stored = cv2.imdecode(stored, cv2.IMREAD_COLOR)[:, :, ::-1]
        if stored.shape[0] == 3:
            stored = stored.transpose(1, 2, 0)
        small = cv2.resize(np.ascontiguousarray(stored), self._size[::-1], interpolation=cv2.INTER_LINEAR)
        return small.transpose(2, 0, 1)
