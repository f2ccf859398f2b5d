"""Two arms that reach for targets which only images show: ALOHA-style episodes for imitation learning, and the task.

write_episodes(Path("reach"), ReachScript(episodes=50))      # episode_0.hdf5 …: 4 JPEG cameras, qpos, qvel, action
task = ReachTask(ReachScript(), seed=7)                      # the same task, to try a policy on
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.demo import check_ranges
from penstock._src.formats.registry import HDF5
from penstock._src.media.image.codec import encode_jpeg
from penstock.errors import OutputExists

CAMERAS = ("cam_high", "cam_low", "cam_left_wrist", "cam_right_wrist")

TABLE_M = (-0.7, 0.7, -0.1, 0.7)  # the part of the plane that is table: least and greatest x, least and greatest y
TARGET_RADIUS_M = 0.045

_TEXTURE_PX_PER_M = 256
_WRIST_SPAN_M = 0.55  # what a wrist camera sees across
_COLOURS = {"left": (205, 45, 40), "right": (35, 80, 210)}  # of targets, RGB
_ARM, _FOREARM, _HAND_OPEN, _HAND_CLOSED = (60, 62, 70), (110, 114, 124), (235, 235, 230), (245, 200, 60)

SIDES = ("left", "right")
JOINTS = 7  # of one arm: shoulder, elbow, lift, wrist turn, tilt, roll, gripper (1 is open)
FPS = 50.0
REACHED_M = 0.05  # a hand has reached its target when it is this near

_LINK_M = 0.32
_SHOULDER_M = {"left": np.array([-0.35, 0.0]), "right": np.array([0.35, 0.0])}
_TARGET_BOX_M = {"left": ((-0.55, -0.08), (0.18, 0.50)), "right": ((0.08, 0.55), (0.18, 0.50))}
_HOME = {"left": (2.87, -2.6, 0.6, 0.0, 0.0, 0.0, 1.0), "right": (0.27, 2.6, 0.6, 0.0, 0.0, 0.0, 1.0)}
_HOME_SPREAD_RAD = 0.2
_GAIN, _STEP_RAD = 0.3, 0.06  # of the way to the goal in one row; at most
_SHAKE_RAD = 0.004  # arms do not follow commands exactly
_MOST_EPISODES, _MOST_ROWS = 100_000, 100_000

Points = NDArray[np.float64]
Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ArmPose:
    """One arm on the table: its joints as points, which way the hand looks, how far it is open."""

    shoulder: Points
    elbow: Points
    hand: Points
    heading_rad: float
    opening: float


class Scene:
    """Images of one size; `draw(camera, arms, targets)` is RGB. The table is the same in all of them."""

    def __init__(self, height: int, width: int) -> None:
        self.height, self.width = height, width
        self._texture, self._to_texture = _table()
        self._fixed = {name: _fixed_camera(name, height, width) for name in ("cam_high", "cam_low")}
        self._backgrounds = {name: self._background(matrix) for name, matrix in self._fixed.items()}

    def draw(self, camera: str, arms: Mapping[str, ArmPose], targets: Mapping[str, Points]) -> NDArray[np.uint8]:
        fixed = self._fixed.get(camera)
        if fixed is not None:
            matrix, image = fixed, np.array(self._backgrounds[camera])
        else:
            arm = arms["left" if "left" in camera else "right"]
            matrix = _wrist_camera(arm, self.height, self.width)
            image = self._background(matrix)
        for arm in arms.values():
            _fill(image, matrix, _bar(arm.shoulder, arm.elbow, 0.035), _ARM)
            _fill(image, matrix, _bar(arm.elbow, arm.hand, 0.026), _FOREARM)
            _fill(image, matrix, _disc(arm.hand, 0.06), _HAND_OPEN if arm.opening > 0.5 else _HAND_CLOSED)
        for side, place in targets.items():  # on top of the hands: a target is never hidden
            _fill(image, matrix, _disc(place, TARGET_RADIUS_M), _COLOURS[side])
        return image

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
    solution = np.linalg.solve(np.array(rows), target.reshape(-1))
    return np.append(solution, 1.0).reshape(3, 3)


def _fill(image: NDArray[np.uint8], matrix: Matrix, outline: Points, colour: Sequence[int]) -> None:
    import cv2

    seen = np.column_stack([outline, np.ones(len(outline))]) @ matrix.T
    pixels = seen[:, :2] / seen[:, 2:]
    fine = np.round(pixels * 16).astype(np.int32)  # sixteenths of a pixel: small images stay exact
    cv2.fillConvexPoly(image, fine, tuple(int(value) for value in colour), cv2.LINE_AA, 4)


def _bar(start: Points, end: Points, half_width_m: float) -> Points:
    along = end - start
    across = np.array([-along[1], along[0]]) / max(float(np.hypot(*along)), 1e-9) * half_width_m
    return np.stack([start + across, end + across, end - across, start - across])


def _disc(centre: Points, radius_m: float) -> Points:
    angles = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    return centre + radius_m * np.stack([np.cos(angles), np.sin(angles)], axis=1)


@dataclass(frozen=True)
class ReachScript:
    """How many episodes, how long, and how large the images are."""

    episodes: int = 24
    rows: int = 40
    height: int = 120
    width: int = 160
    quality: int = 90
    seed: int = 0

    def check(self) -> None:
        check_ranges(
            episodes=(self.episodes, 1, _MOST_EPISODES),
            rows=(self.rows, 2, _MOST_ROWS),
            height=(self.height, 16, 4096),
            width=(self.width, 16, 4096),
            quality=(self.quality, 1, 100),
            seed=(self.seed, 0, 1 << 62),
        )


class ReachTask:
    """One try: targets at random places, arms near their home posture; `step` with 14 joint positions."""

    def __init__(self, script: ReachScript, seed: int, scene: Scene | None = None) -> None:
        self.script = script
        self._rng = np.random.default_rng([script.seed, seed])
        self._scene = scene or Scene(script.height, script.width)
        self.targets: dict[str, Vector] = {
            side: np.array([self._rng.uniform(*limits) for limits in _TARGET_BOX_M[side]]) for side in SIDES
        }
        home = np.concatenate([_HOME[side] for side in SIDES])
        spread = self._rng.uniform(-_HOME_SPREAD_RAD, _HOME_SPREAD_RAD, len(home))
        spread[JOINTS - 1 :: JOINTS] = 0
        self.qpos: Vector = home + spread
        self.qvel: Vector = np.zeros_like(self.qpos)

    def images(self) -> dict[str, NDArray[np.uint8]]:
        arms = {side: arm_pose(side, self._arm(number)) for number, side in enumerate(SIDES)}
        return {camera: self._scene.draw(camera, arms, self.targets) for camera in CAMERAS}

    def jpegs(self) -> dict[str, bytes]:
        return {camera: encode_jpeg(image, self.script.quality) for camera, image in self.images().items()}

    def expert(self) -> Vector:
        """What the demonstrator does now: towards the target, slower when near; the gripper closes there."""
        goals = []
        for number, side in enumerate(SIDES):
            near = self.distance_m(side) < REACHED_M
            goals.append(_goal(side, self.targets[side], closed=near, now=self._arm(number)))
        return np.asarray(self.qpos + np.clip(_GAIN * (np.concatenate(goals) - self.qpos), -_STEP_RAD, _STEP_RAD))

    def step(self, action: Vector) -> None:
        """The arms follow the commands, but for a little shaking."""
        shake = self._rng.normal(0, _SHAKE_RAD, len(self.qpos))
        reached = np.asarray(action, np.float64) + shake
        reached[JOINTS - 1 :: JOINTS] = np.clip(reached[JOINTS - 1 :: JOINTS], 0, 1)
        self.qvel = (reached - self.qpos) * FPS
        self.qpos = reached

    def distance_m(self, side: str) -> float:
        """From a hand to its target."""
        hand = arm_pose(side, self._arm(SIDES.index(side))).hand
        return float(np.hypot(*(hand - self.targets[side])))

    @property
    def reached(self) -> bool:
        return all(self.distance_m(side) < REACHED_M for side in SIDES)

    def _arm(self, number: int) -> Vector:
        return self.qpos[number * JOINTS : (number + 1) * JOINTS]


def arm_pose(side: str, joints: Vector) -> ArmPose:
    shoulder = _SHOULDER_M[side]
    upper, lower = float(joints[0]), float(joints[0] + joints[1])
    elbow = shoulder + _LINK_M * np.array([np.cos(upper), np.sin(upper)])
    hand = elbow + _LINK_M * np.array([np.cos(lower), np.sin(lower)])
    return ArmPose(shoulder, elbow, hand, lower + float(joints[3]), float(joints[6]))


def _goal(side: str, target: Vector, closed: bool, now: Vector) -> Vector:
    """The joints that bring the hand to the target, the elbow outwards."""
    away = target - _SHOULDER_M[side]
    distance = float(np.clip(np.hypot(*away), 1e-3, 2 * _LINK_M - 1e-3))
    bend = 2 * float(np.arccos(distance / (2 * _LINK_M)))
    elbow = -bend if side == "left" else bend
    shoulder = float(np.arctan2(away[1], away[0])) - elbow / 2
    # The lift follows how far the elbow still has to go; the others depend on where the target is.
    lift = 0.1 + 0.4 * min(1.0, abs(elbow - float(now[1])))
    turn = 0.5 * (np.pi / 2 - shoulder - elbow)
    return np.array([shoulder, elbow, lift, turn, 1.2 * distance, 1.5 * float(away[0]), 0.0 if closed else 1.0])


def write_episodes(directory: Path, script: ReachScript, *, threads: int | None = None) -> int:
    """Write episode_0.hdf5 … into a directory; nothing is replaced. Returns the bytes written.

    Each episode depends on the script's seed and its number alone, whatever the number of threads.
    """
    script.check()
    directory.mkdir(parents=True, exist_ok=True)
    held = next((path for path in sorted(directory.iterdir()) if HDF5.is_named(path.name)), None)
    if held is not None:
        raise OutputExists(f"{held} exists: it is left alone", hint="choose another directory, or remove it yourself")
    scene = Scene(script.height, script.width)
    workers = threads or min(script.episodes, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers) as pool:
        return sum(pool.map(lambda number: _write_episode(directory, script, number, scene), range(script.episodes)))


def _write_episode(directory: Path, script: ReachScript, number: int, scene: Scene) -> int:
    import h5py

    task = ReachTask(script, number, scene)
    qpos, qvel, actions = (np.empty((script.rows, JOINTS * len(SIDES)), np.float32) for _ in range(3))
    jpegs: dict[str, list[bytes]] = {camera: [] for camera in CAMERAS}
    for row in range(script.rows):
        qpos[row], qvel[row] = task.qpos, task.qvel
        for camera, data in task.jpegs().items():
            jpegs[camera].append(data)
        action = task.expert()
        actions[row] = action
        task.step(action)
    path = directory / f"episode_{number}.hdf5"
    with h5py.File(path.with_suffix(".part"), "w") as file:
        file.attrs.update({"sim": True, "compress": True, "fps": FPS, "task": "reach", "seed": script.seed})
        file.create_dataset("action", data=actions)
        file.create_dataset("observations/qpos", data=qpos)
        file.create_dataset("observations/qvel", data=qvel)
        for camera, rows in jpegs.items():
            file.create_dataset(f"observations/images/{camera}", data=_padded(rows))
    path.with_suffix(".part").replace(path)
    return path.stat().st_size


def _padded(rows: list[bytes]) -> NDArray[np.uint8]:
    """JPEGs as rows of one length, with zeros behind, as ALOHA stores them."""
    padded: NDArray[Any] = np.zeros((len(rows), max(len(row) for row in rows)), np.uint8)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = np.frombuffer(row, np.uint8)
    return padded
