"""What columns are for, by their names: one table for stores, replay buffers and conversion."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal

ChannelOrder = Literal["auto", "first", "last"]
"""Where raw images have their channels: (3, height, width) or (height, width, 3); auto: as the shape says."""

OBSERVATION_GROUPS = ("observations", "obs", "observation")
NEXT_GROUPS = tuple(f"next_{group}" for group in OBSERVATION_GROUPS)

ACTIONS = ("actions", "action")
REWARDS = ("rewards", "reward")
TERMINALS = ("terminals", "terminal", "terminations", "terminated", "dones", "done")
TIMEOUTS = ("timeouts", "timeout", "truncations", "truncated")
SUCCESSES = ("success", "successes", "is_success")
ENDS = (*TERMINALS, *TIMEOUTS)
NEXT_ACTIONS = ("next_actions", "next_action", "next.action")

LEROBOT: Mapping[str, tuple[str, ...]] = {
    "action": ("action",),
    "state": ("observation.state",),
    "environment_state": ("observation.environment_state",),
    "velocity": ("observation.velocity",),
    "effort": ("observation.effort",),
    "reward": ("next.reward", "reward"),
    "terminal": ("next.done", "done"),
    "timeout": ("next.truncated", "truncated"),
    "success": ("next.success", "success"),
}
"""By role: its names in LeRobot data sets; the first is what conversion writes."""

CENTRAL_ROLES = ("state", "action", "reward", "terminal", "timeout")
"""What an episode cannot be without: a wrong number of rows there is an error, not a reason to leave it out."""

BOOLEAN_ROLES = ("terminal", "timeout", "success")
"""What LeRobot's own data sets keep as bool."""

STATE_NAMES = (
    "qpos", "joint", "joints", "state", "joint_positions", "proprio", "joint_pos", "joint_states",
)  # fmt: skip
"""What a robot knows of itself in one column, the likeliest first."""

_STATE_PARTS = (("eef_pos", "eef_quat", "gripper_qpos"), ("joint_pos", "gripper_qpos"))
"""The same in several columns; robosuite names them by the robot: robot0_eef_pos."""

_ACTION_PARTS = ("joint_velocities", "gripper_actuations")
"""What old robosuite files have instead of actions: its playback steps the environment with the two joined."""

OBSERVATION_ROLES = {"velocity": "qvel", "effort": "effort", "environment_state": "object"}
"""What else lies among the observations, by the last part of its name."""

SIMULATOR = "states"
"""Of MuJoCo: everything that moves, not only the robot."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "action": ACTIONS, "state": STATE_NAMES, "reward": REWARDS, "terminal": TERMINALS, "timeout": TIMEOUTS,
    "success": SUCCESSES,
}  # fmt: skip
"""By role: the usual names of its column, the likeliest first."""

CAMERA_NAMES = ("left_image", "right_image", "global_image")
"""The cameras that a replay buffer takes where none are named."""

IMAGE_PREFIX = "observation.images."
"""Of cameras in LeRobot data sets."""

ASIDE_GROUPS = ("infos", "metadata", "mask", "env_infos")
"""Groups whose columns are kept where a configuration names them."""

BOOKKEEPING = ("compress_len",)
"""Of what wrote the file: a JPEG says itself where it ends."""

_ROBOT = re.compile(r"(robot\d+_)")


def find_roles(names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Role → the columns of numbers that have it, by their names within an episode; several are joined in order."""
    known = tuple(names)
    observed: dict[str, str] = {}
    for name in known:
        if is_observation(name):
            observed.setdefault(base_name(name), name)
    roles: dict[str, tuple[str, ...]] = {"action": _action(known), "state": _state(known, observed)}
    for role in ("reward", "terminal", "timeout", "success"):
        roles[role] = tuple(name for name in NAMES[role] if name in known)[:1]
    for role, base in OBSERVATION_ROLES.items():
        roles[role] = (observed[base],) if base in observed else ()
    if SIMULATOR in known and not observed:
        roles["environment_state"] = (SIMULATOR,)
    return {role: columns for role, columns in roles.items() if columns}


def is_observation(name: str) -> bool:
    """Whether a column lies among the observations of the row itself."""
    return name.split("/")[0] in OBSERVATION_GROUPS


def is_next_observation(name: str) -> bool:
    """Whether a column lies among the observations of the next row."""
    return name.split("/")[0] in NEXT_GROUPS


def base_name(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def next_columns(names: Iterable[str], action: str | None = None) -> dict[str, str]:
    """Columns whose next row is a column of its own: "obs/joint" → "next_obs/joint", "a.b" → "next.a.b"."""
    known = dict.fromkeys(names)
    columns: dict[str, str] = {}
    for name in known:
        places = [match.start() for match in re.finditer(r"(?:(?<=[/.])|^)(?=[^/.])", name)]
        candidates = [f"{name[:place]}next_{name[place:]}" for place in places]
        if name.startswith("observation"):
            candidates.append(f"next.{name}")  # as conversion calls it; next.reward belongs to the row itself
        if name == action:
            candidates += NEXT_ACTIONS
        stored = next((each for each in candidates if each in known), None)
        if stored is not None:
            columns[name] = stored
    return columns


def _action(known: tuple[str, ...]) -> tuple[str, ...]:
    single = tuple(name for name in ACTIONS if name in known)[:1]
    return single or (_ACTION_PARTS if all(part in known for part in _ACTION_PARTS) else ())


def _state(known: tuple[str, ...], observed: Mapping[str, str]) -> tuple[str, ...]:
    flat = [name for name in OBSERVATION_GROUPS if name in known]  # D4RL: the observation itself
    if flat:
        return (flat[0],)
    for name in STATE_NAMES:
        if name in observed:
            return (observed[name],)
    robots = sorted({match[1] for name in observed if (match := _ROBOT.match(name))}) or [""]
    for parts in _STATE_PARTS:
        parts_found = tuple(observed[robot + part] for robot in robots for part in parts if robot + part in observed)
        if parts_found:
            return parts_found
    return next(((name,) for name in STATE_NAMES if name in known), ())
