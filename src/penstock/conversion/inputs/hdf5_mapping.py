"""Data sets of an HDF5 file → features when nobody said which: by name and shape, explained in notes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping as Tree
from dataclasses import dataclass, field
from typing import Any

from penstock.conversion.mapping.left_out import left_out
from penstock.conversion.settings import FeatureSettings, Source
from penstock.lerobot.features import safe_key
from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.layout import Layout, Member
from penstock.stores.roles import (
    ASIDE_GROUPS,
    BOOKKEEPING,
    BOOLEAN_ROLES,
    CENTRAL_ROLES,
    ENDS,
    IMAGE_PREFIX,
    LEROBOT,
    OBSERVATION_ROLES,
    SIMULATOR,
    SUCCESSES,
    find_roles,
    is_next_observation,
    is_observation,
)

SUCCESS = LEROBOT["success"][0]
BOOLEAN_KEYS = frozenset(LEROBOT[role][0] for role in BOOLEAN_ROLES)

_WIDEST = 4096  # numbers of one row that still are a feature of their own
_CAMERA_TAIL = re.compile(r"_(?:images?|rgb|img)\Z")

_RATE_NAMES = ("fps", "hz", "control_freq", "control_frequency", "frequency")
_TASK_NAMES = ("task", "language_instruction", "task_description", "instruction", "language", "language_raw")
_ENVIRONMENT_NAMES = ("env_name", "env")
_ROBOT_NAMES = ("robot_type", "robots", "robot")
_JSON_NAMES = ("env_args", "env_info", "problem_info", "ep_meta")
TEXT_NAMES = (*_TASK_NAMES, *_ROBOT_NAMES, "env", *_JSON_NAMES)
"""What a file is asked for when it is opened: `Hdf5File(path, texts=TEXT_NAMES)`."""


@dataclass(frozen=True)
class Found:
    """The features, and what was left out and why."""

    features: dict[str, FeatureSettings]
    notes: tuple[str, ...]


def map_members(layout: Layout, rows: int, *, with_depth: bool = True) -> Found:
    """Images, state, action and the rest, under the names that LeRobot uses; `rows` is the length of the episode.

    Columns of next observations are not among them: `hdf5_next` decides on those.
    """
    notes: list[str] = []
    roles = find_roles(member.name for member in layout.members if member.content == "numbers")
    members = _usable(layout, rows, roles, notes)
    if not with_depth and any(member.content == "depth" for member in members):
        notes.append(f"depth left out: {listed([member.name for member in members if member.content == 'depth'])}")
        members = [member for member in members if member.content != "depth"]
    features: dict[str, FeatureSettings] = {}
    for key, member in camera_keys([member for member in members if member.is_picture]).items():
        features[key] = feature_of(member)
    numbers = {member.name: member for member in members if member.content == "numbers"}
    roles = find_roles(numbers)
    for role in (*CENTRAL_ROLES, "success"):
        if role in roles:
            features[LEROBOT[role][0]] = FeatureSettings(tuple(Source(name) for name in roles[role]))
    taken = {source.topic for feature in features.values() for source in feature.sources}
    for member in numbers.values():
        if member.name not in taken:
            _add_other(features, member, any(is_observation(name) for name in numbers), notes)
    return Found(features, tuple(notes))


def _usable(layout: Layout, rows: int, roles: Tree[str, tuple[str, ...]], notes: list[str]) -> list[Member]:
    kept: list[Member] = []
    aside = [member.name for member in layout.members if member.name.split("/")[0] in ASIDE_GROUPS]
    if aside:
        notes.append(f"left out (name them under features: to keep them): {listed(aside)}")
    # What an episode cannot be without: a wrong number of rows is an error, not a reason to leave it out.
    central = {name for role in CENTRAL_ROLES for name in roles.get(role, ())} | set(ENDS)
    for member in layout.members:
        if member.name in aside or member.base in BOOKKEEPING or is_next_observation(member.name):
            continue
        is_central = member.is_picture or member.name in central
        problem = problem_of(member, member.rows if is_central else rows)
        if problem is None:
            kept.append(member)
        elif not _is_flag(member):
            notes.append(left_out(member.name, problem))
    return kept


def problem_of(member: Member, rows: int) -> str | None:
    """Why a data set cannot be a feature of an episode with so many rows."""
    if member.content == "other":
        return member.why
    if member.rows != rows:
        return f"it has {member.rows:,} rows, the episode {rows:,}"
    if not member.is_picture and not 0 < member.values <= _WIDEST:
        return f"{member.values:,} numbers a row (features: may still name it)"
    return None


def _is_flag(member: Member) -> bool:
    """One value that `episode_success` reads."""
    return member.name in SUCCESSES and member.rows == member.values == 1


def _add_other(features: dict[str, FeatureSettings], member: Member, observed: bool, notes: list[str]) -> None:
    key = whole = safe_key(member.name.replace("/", "_"))
    if member.name == SIMULATOR:
        if observed:
            notes.append("states (of the simulator) left out: name it under features: to keep it")
            return
        key = LEROBOT["environment_state"][0]
    elif is_observation(member.name):
        role = next((role for role, base in OBSERVATION_ROLES.items() if base == member.base), None)
        key = LEROBOT[role][0] if role else observation_key(member.name)
    features[whole if key in features else key] = feature_of(member)


def observation_key(name: str) -> str:
    """obs/robot0_eef_pos → observation.robot0_eef_pos."""
    return "observation." + safe_key(name.split("/", 1)[-1].replace("/", "_"))


def feature_of(member: Member) -> FeatureSettings:
    source = (Source(member.name),)
    is_whole = not member.is_picture and member.dtype.strip("<>|=").startswith(("int", "uint", "bool", "i", "u", "b"))
    return FeatureSettings(source, dtype="int64") if is_whole else FeatureSettings(source)


def camera_keys(images: list[Member]) -> dict[str, Member]:
    """left_image → left; the whole name where two would be the same."""
    short: dict[str, list[Member]] = {}
    for member in images:
        short.setdefault(_CAMERA_TAIL.sub("", member.base) or member.base, []).append(member)
    keys: dict[str, Member] = {}
    for name, sharing in short.items():
        if len(sharing) == 1:
            keys[IMAGE_PREFIX + safe_key(name)] = sharing[0]
        else:
            keys.update({IMAGE_PREFIX + safe_key(each.name.replace("/", "_")): each for each in sharing})
    return keys


def listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")


# What a file says of itself


@dataclass(frozen=True)
class Facts:
    """Rate, task and robot, where the file names them; tasks of single demonstrations by their group."""

    rate_hz: float | None = None
    rate_from: str = ""
    task: str | None = None
    robot: str | None = None
    tasks: Tree[str, str] = field(default_factory=dict)


def read_facts(file: Hdf5File, layout: Layout) -> Facts:
    """From the attributes that recorders write, and from the JSON that robomimic and robosuite keep in some."""
    nodes = ["/", "data"] if layout.groups[0].startswith("data/") else ["/", "observations"]
    groups = [group for group in layout.groups if group]
    said = _said(file, nodes, groups)
    rate_hz, rate_from = None, ""
    for node in nodes:
        for name in _RATE_NAMES:
            value = said[node].get(name)
            if rate_hz is None and isinstance(value, (int, float)) and 0 < value < 100_000:
                rate_hz, rate_from = float(value), f"{name} of {node}"
    task = next((text for node in nodes if (text := _task(said[node])) is not None), None)
    environment = next(
        (said[node][name] for node in nodes for name in _ENVIRONMENT_NAMES if said[node].get(name)), None
    )
    robot = next((said[node][name] for node in nodes for name in _ROBOT_NAMES if said[node].get(name)), None)
    if isinstance(robot, list):
        robot = "_".join(str(each) for each in robot)
    tasks = {group: text for group in groups if (text := _task(said[group])) is not None}
    if task is None and isinstance(environment, str):
        task = environment
    return Facts(rate_hz, rate_from, task, str(robot) if robot else None, tasks)


def _task(said: Tree[str, Any]) -> str | None:
    for name in (*_TASK_NAMES, "lang"):
        value = said.get(name)
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _said(file: Hdf5File, nodes: list[str], groups: list[str]) -> dict[str, dict[str, Any]]:
    """By node: attributes, what their JSON holds, and data sets of one text."""
    said: dict[str, dict[str, Any]] = {}
    for node in (*nodes, *groups):
        wanted = (*_TASK_NAMES, "ep_meta") if node in groups else (*_RATE_NAMES, *TEXT_NAMES)
        held = said.setdefault(node, {})
        for name in wanted:
            value = file.said(node, name)
            if value is None and name in _TASK_NAMES:
                value = file.text(f"{node.strip('/')}/{name}".strip("/"))
            if value is None:
                continue
            if name in _JSON_NAMES:
                _flatten(_json(value), held, 0)
            else:
                held.setdefault(name, value)
    return said


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def _flatten(tree: Any, said: dict[str, Any], depth: int) -> None:
    if not isinstance(tree, Tree) or depth > 4:
        return
    for name, value in tree.items():
        if isinstance(value, Tree):
            _flatten(value, said, depth + 1)
        else:
            said.setdefault(str(name), value)


__all__ = [
    "BOOLEAN_KEYS",
    "SUCCESS",
    "TEXT_NAMES",
    "Facts",
    "Found",
    "camera_keys",
    "feature_of",
    "listed",
    "map_members",
    "observation_key",
    "problem_of",
    "read_facts",
]
