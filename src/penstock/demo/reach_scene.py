"""What four cameras see of two planar arms over a table with a red and a blue target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CAMERAS = ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")

TABLE_M = (-0.7, 0.7, -0.1, 0.7)
"""The part of the plane that is table: least and greatest x, least and greatest y."""
TARGET_RADIUS_M = 0.045

_TEXTURE_PX_PER_M = 256
_WRIST_SPAN_M = 0.55  # what a wrist camera sees across
_COLOURS = {"left": (205, 45, 40), "right": (35, 80, 210)}  # of targets, RGB
_ARM, _FOREARM, _HAND_OPEN, _HAND_CLOSED = (60, 62, 70), (110, 114, 124), (235, 235, 230), (245, 200, 60)

Points = NDArray[np.float64]
Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class ArmPose:
    """One arm on the table: its joints as points, which way the hand looks, how far it is open."""

    shoulder: Points
    elbow: Points
    hand: Points
    heading_rad: float
    opening: float


class Scene:
    """Pictures of one size; `draw(camera, arms, targets)` is RGB. The table is the same in all of them."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self._texture, self._to_texture = _table()
        self._fixed = {name: _fixed_camera(name, height, width) for name in ("cam_high", "cam_low")}
        self._backgrounds = {name: self._background(matrix) for name, matrix in self._fixed.items()}

    def draw(self, camera: str, arms: Mapping[str, ArmPose], targets: Mapping[str, Points]) -> NDArray[np.uint8]:
        """What a camera sees."""
        fixed = self._fixed.get(camera)
        if fixed is not None:
            matrix, picture = fixed, np.array(self._backgrounds[camera])
        else:
            arm = arms["left" if "left" in camera else "right"]
            matrix = _wrist_camera(arm, self.height, self.width)
            picture = self._background(matrix)
        for arm in arms.values():
            _fill(picture, matrix, _bar(arm.shoulder, arm.elbow, 0.035), _ARM)
            _fill(picture, matrix, _bar(arm.elbow, arm.hand, 0.026), _FOREARM)
            _fill(picture, matrix, _disc(arm.hand, 0.06), _HAND_OPEN if arm.opening > 0.5 else _HAND_CLOSED)
        for side, place in targets.items():  # on top of the hands: a target is never hidden
            _fill(picture, matrix, _disc(place, TARGET_RADIUS_M), _COLOURS[side])
        return picture

    def _background(self, matrix: Matrix) -> NDArray[np.uint8]:
        import cv2

        seen: Any = cv2.warpPerspective(
            self._texture, matrix @ np.linalg.inv(self._to_texture), (self.width, self.height),
            flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=(38, 40, 44),
        )  # fmt: skip
        pixels: NDArray[np.uint8] = seen
        return pixels


def _table() -> tuple[NDArray[np.uint8], Matrix]:
    """Something like wood, and the matrix from metres to its pixels."""
    import cv2

    low_x, high_x, low_y, high_y = TABLE_M
    width, height = round((high_x - low_x) * _TEXTURE_PX_PER_M), round((high_y - low_y) * _TEXTURE_PX_PER_M)
    rng = np.random.default_rng(20_240_101)
    texture = np.zeros((height, width), np.float32)
    for cells, strength in ((6, 16.0), (24, 10.0), (96, 7.0)):
        coarse = rng.normal(0, 1, (max(2, cells // 6), cells)).astype(np.float32)
        texture += strength * cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
    shaded = np.array([158, 128, 96], np.float32) + texture[..., np.newaxis] * np.array([1.0, 0.9, 0.8], np.float32)
    pixels: NDArray[np.uint8] = np.clip(shaded, 0, 255).astype(np.uint8)
    scale = float(_TEXTURE_PX_PER_M)
    return pixels, np.array([[scale, 0, -low_x * scale], [0, -scale, high_y * scale], [0, 0, 1]])


def _fixed_camera(name: str, height: int, width: int) -> Matrix:
    """From metres on the table to pixels: straight from above, or slanting from the front."""
    low_x, high_x, low_y, high_y = TABLE_M
    corners = np.array([[low_x, high_y], [high_x, high_y], [high_x, low_y], [low_x, low_y]])
    if name == "cam_high":
        seen = np.array([[0.02, 0.04], [0.98, 0.04], [0.98, 0.96], [0.02, 0.96]])
    else:
        seen = np.array([[0.20, 0.22], [0.80, 0.22], [1.02, 0.98], [-0.02, 0.98]])
    return _homography(corners, seen * [width, height])


def _wrist_camera(arm: ArmPose, height: int, width: int) -> Matrix:
    """The hand is in the lower middle, and up is where it looks."""
    cos, sin = np.cos(arm.heading_rad), np.sin(arm.heading_rad)
    scale = width / _WRIST_SPAN_M
    forward, right = np.array([cos, sin]), np.array([sin, -cos])
    turn = scale * np.stack([right, -forward])
    shift = np.array([width / 2, 0.7 * height]) - turn @ arm.hand
    return np.array([[*turn[0], shift[0]], [*turn[1], shift[1]], [0, 0, 1]])


def _homography(source: Points, target: Points) -> Matrix:
    """The projection that takes four points to four others."""
    rows: list[list[float]] = []
    for (x, y), (u, v) in zip(source.tolist(), target.tolist(), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    found = np.linalg.solve(np.array(rows), target.reshape(-1))
    return np.append(found, 1.0).reshape(3, 3)


def _fill(picture: NDArray[np.uint8], matrix: Matrix, outline: Points, colour: Sequence[int]) -> None:
    import cv2

    seen = np.column_stack([outline, np.ones(len(outline))]) @ matrix.T
    pixels = seen[:, :2] / seen[:, 2:]
    fine = np.round(pixels * 16).astype(np.int32)  # sixteenths of a pixel: small pictures stay exact
    cv2.fillConvexPoly(picture, fine, tuple(int(value) for value in colour), cv2.LINE_AA, 4)


def _bar(start: Points, end: Points, half_width_m: float) -> Points:
    along = end - start
    across = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-9) * half_width_m
    return np.stack([start + across, end + across, end - across, start - across])


def _disc(centre: Points, radius_m: float) -> Points:
    angles = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    return centre + radius_m * np.stack([np.cos(angles), np.sin(angles)], axis=1)
