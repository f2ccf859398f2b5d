"""Images that look like a robot's: a textured table, a moving two-link arm, sensor noise."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_MARGIN = 1.5  # the table is larger than the image, so that the camera can sway


class SceneCamera:
    """One camera's view of the scene; `frame(t)` is its RGB image at a time."""

    def __init__(self, width: int, height: int, seed: int) -> None:
        self.width, self.height = width, height
        rng = np.random.default_rng(seed)
        self._phase = float(rng.uniform(0, 6))
        self._table = _table(int(width * _MARGIN), int(height * _MARGIN), rng)
        self._noise = rng.normal(0, 3, (height * 2, width * 2, 3)).astype(np.int16)
        self._rng = rng

    def frame(self, time_s: float) -> NDArray[np.uint8]:
        import cv2

        rows, columns = self._table.shape[:2]
        x = int((columns - self.width) * (0.5 + 0.5 * np.sin(0.7 * time_s + self._phase)))
        y = int((rows - self.height) * (0.5 + 0.5 * np.sin(0.5 * time_s + 2 * self._phase)))
        image = self._table[y : y + self.height, x : x + self.width].copy()
        scale = min(self.width, self.height) / 480
        base = np.array([self.width / 2, self.height * 0.95])
        first = joint_angles(time_s)[0] - np.pi / 2
        second = first + joint_angles(time_s)[1]
        elbow = base + 200 * scale * np.array([np.cos(first), np.sin(first)])
        hand = elbow + 160 * scale * np.array([np.cos(second), np.sin(second)])
        for start, end, colour, thickness in ((base, elbow, (60, 62, 70), 34), (elbow, hand, (200, 120, 40), 24)):
            ends = [tuple(int(v) for v in point) for point in (start, end)]
            cv2.line(image, ends[0], ends[1], colour, max(int(thickness * scale), 1), cv2.LINE_AA)
        cv2.circle(image, (int(hand[0]), int(hand[1])), max(int(20 * scale), 1), (230, 230, 225), -1, cv2.LINE_AA)
        a, b = (int(self._rng.integers(0, n)) for n in (self.height, self.width))
        noisy = image.astype(np.int16) + self._noise[a : a + self.height, b : b + self.width]
        clipped: NDArray[np.uint8] = np.clip(noisy, 0, 255).astype(np.uint8)
        return clipped

    def jpegs(self, count: int, fps: float, quality: int) -> Iterator[bytes]:
        from penstock._src.media.image.codec import encode_jpeg

        for i in range(count):
            yield encode_jpeg(self.frame(i / fps), quality)


class Jpegs:
    """A camera's JPEGs by number, asked for in order; after `distinct` of them they are repeated."""

    def __init__(self, width: int, height: int, fps: float, quality: int, seed: int, distinct: int | None) -> None:
        self._camera, self._fps, self._quality, self._distinct = (
            SceneCamera(width, height, seed),
            fps,
            quality,
            distinct,
        )
        self._kept: dict[int, bytes] = {}

    def at(self, number: int) -> bytes:
        from penstock._src.media.image.codec import encode_jpeg

        if self._distinct is None:
            return encode_jpeg(self._camera.frame(number / self._fps), self._quality)
        number %= self._distinct
        if number not in self._kept:
            self._kept[number] = encode_jpeg(self._camera.frame(number / self._fps), self._quality)
        return self._kept[number]


def joint_angles(time_s: float, joints: int = 16) -> NDArray[np.float64]:
    """Where the joints are at a time: slow, smooth, each with its own rhythm."""
    k = np.arange(joints)
    return 0.8 * np.sin(0.9 * time_s * (1 + 0.07 * k) + 0.5 * k)


def _table(width: int, height: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Wood, more or less: octaves of smooth noise, tinted, with a few coloured boxes on it."""
    import cv2

    texture = np.zeros((height, width), np.float32)
    for octave, strength in ((4, 60.0), (16, 40.0), (64, 28.0), (256, 16.0)):
        coarse = rng.normal(0, 1, (max(octave * height // width, 2), octave)).astype(np.float32)
        texture += strength * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    tint = np.array([150, 120, 90], np.float32)
    shaded = tint + texture[..., np.newaxis] * np.array([0.5, 0.45, 0.4], np.float32)
    table: NDArray[np.uint8] = np.clip(shaded, 0, 255).astype(np.uint8)
    for _ in range(6):
        x, y = int(rng.integers(0, width - 60)), int(rng.integers(0, height - 60))
        colour = tuple(int(v) for v in rng.integers(30, 230, 3))
        cv2.rectangle(table, (x, y), (x + 40, y + 40), colour, -1)
    return table
