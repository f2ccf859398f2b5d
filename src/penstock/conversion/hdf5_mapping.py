"""Data sets of an HDF5 file → features when nobody said which: by name and shape, explained in notes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping as Tree
from dataclasses import field
from typing import Any

from penstock.conversion.settings import FeatureSettings, Source
from penstock.lazy import dataclass
from penstock.lerobot.features import safe_key
from penstock.stores.hdf5_file import Hdf5File
from penstock.stores.hdf5_layout import ACTIONS, REWARDS, TERMINALS, TIMEOUTS, Layout, Member

IMAGE_PREFIX, STATE, ACTION = "observation.images.", "observation.state", "action"
REWARD, DONE, TRUNCATED = "next.reward", "next.done", "next.truncated"
BOOLEAN_KEYS = frozenset((DONE, TRUNCATED, "next.success"))  # bool in LeRobot's own data sets
ENVIRONMENT_STATE = "observation.environment_state"

_OBSERVATION_GROUPS = ("observations", "obs", "observation")
_NEXT_GROUPS = ("next_observations", "next_obs", "next_observation")
_NAMED = {"qvel": "observation.velocity", "effort": "observation.effort", "object": ENVIRONMENT_STATE}
_STATE_NAMES = ("qpos", "joint", "joints", "state", "joint_positions", "proprio")
_ROBOT_PARTS = (("eef_pos", "eef_quat", "gripper_qpos"), ("joint_pos", "gripper_qpos"))
_LEFT_OUT = ("infos", "metadata", "mask", "env_infos")
_BOOKKEEPING = ("compress_len",)
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
    """Pictures, state, action and the rest, under the names that LeRobot uses; `rows` is the length of the episode."""
    notes: list[str] = []
    members = _usable(layout, rows, notes)
    if not with_depth and any(member.content == "depth" for member in members):
        notes.append(f"depth left out: {_listed([member.name for member in members if member.content == 'depth'])}")
        members = [member for member in members if member.content != "depth"]
    features: dict[str, FeatureSettings] = {}
    for key, member in _camera_keys([member for member in members if member.is_picture]).items():
        features[key] = _feature(member)
    numbers = [member for member in members if member.content == "numbers"]
    state = _state(numbers)
    if state:
        features[STATE] = FeatureSettings(tuple(Source(member.name) for member in state))
    for names, key in ((ACTIONS, ACTION), (REWARDS, REWARD), (TERMINALS, DONE), (TIMEOUTS, TRUNCATED)):
        named = [each for name in names for each in numbers if each.name == name]
        if named:
            features[key] = FeatureSettings((Source(named[0].name),))
    taken = {source.topic for feature in features.values() for source in feature.sources}
    for member in numbers:
        if member.name not in taken:
            _add_other(features, member, any(_is_observation(each) for each in numbers), notes)
    return Found(features, tuple(notes))


def _usable(layout: Layout, rows: int, notes: list[str]) -> list[Member]:
    kept: list[Member] = []
    following = [member.name for member in layout.members if member.name.split("/")[0] in _NEXT_GROUPS]
    if following:
        notes.append(f"left out, as each is the observation of the row after: {_listed(following)}")
    aside = [member.name for member in layout.members if member.name.split("/")[0] in _LEFT_OUT]
    if aside:
        notes.append(f"left out (name them under features: to keep them): {_listed(aside)}")
    for member in layout.members:
        if member.name in following or member.name in aside or member.base in _BOOKKEEPING:
            continue
        if member.content == "other":
            notes.append(f"{member.name} left out: {member.why}")
        elif member.rows != rows and not _is_central(member):
            notes.append(f"{member.name} left out: it has {member.rows:,} rows, the episode {rows:,}")
        elif not member.is_picture and not 0 < member.values <= _WIDEST:
            notes.append(f"{member.name} left out: {member.values:,} numbers a row (features: may still name it)")
        else:
            kept.append(member)
    return kept


def _is_central(member: Member) -> bool:
    """What an episode cannot be without: a wrong number of rows is an error, not a reason to leave it out."""
    return member.is_picture or member.base in (*_STATE_NAMES, *ACTIONS, *REWARDS, *TERMINALS, *TIMEOUTS)


def _is_observation(member: Member) -> bool:
    return member.name.split("/")[0] in _OBSERVATION_GROUPS


def _state(numbers: list[Member]) -> list[Member]:
    flat = [member for member in numbers if member.name in _OBSERVATION_GROUPS]  # D4RL: the observation itself
    if flat:
        return flat[:1]
    observed = {member.base: member for member in reversed(numbers) if _is_observation(member)}
    for name in _STATE_NAMES:
        if name in observed:
            return [observed[name]]
    robots = sorted({match[1] for name in observed if (match := re.match(r"(robot\d+_)", name))}) or [""]
    for parts in _ROBOT_PARTS:
        found = [observed[robot + part] for robot in robots for part in parts if robot + part in observed]
        if found:
            return found
    return []


def _add_other(features: dict[str, FeatureSettings], member: Member, observed: bool, notes: list[str]) -> None:
    if member.name == "states":
        if observed:
            notes.append("states (of the simulator) left out: name it under features: to keep it")
            return
        key = ENVIRONMENT_STATE
    elif _is_observation(member):
        key = _NAMED.get(member.base) or "observation." + safe_key(member.name.split("/", 1)[-1].replace("/", "_"))
    else:
        key = safe_key(member.name.replace("/", "_"))
    if key in features:
        key = safe_key(member.name.replace("/", "_"))
    features[key] = _feature(member)


def _feature(member: Member) -> FeatureSettings:
    source = (Source(member.name),)
    is_whole = not member.is_picture and member.dtype.strip("<>|=").startswith(("int", "uint", "bool", "i", "u", "b"))
    return FeatureSettings(source, dtype="int64") if is_whole else FeatureSettings(source)


def _camera_keys(pictures: list[Member]) -> dict[str, Member]:
    """left_image → left; the whole name where two would be the same."""
    short: dict[str, list[Member]] = {}
    for member in pictures:
        short.setdefault(_CAMERA_TAIL.sub("", member.base) or member.base, []).append(member)
    keys: dict[str, Member] = {}
    for name, sharing in short.items():
        if len(sharing) == 1:
            keys[IMAGE_PREFIX + safe_key(name)] = sharing[0]
        else:
            keys.update({IMAGE_PREFIX + safe_key(each.name.replace("/", "_")): each for each in sharing})
    return keys


def _listed(names: list[str]) -> str:
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
    nodes = ["/", "data"] if layout.kind == "robomimic" else ["/", "observations"]
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


__all__ = ["BOOLEAN_KEYS", "TEXT_NAMES", "Facts", "Found", "map_members", "read_facts"]
