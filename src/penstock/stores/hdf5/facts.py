"""What an HDF5 file tells of itself: its rate, its robot, and the task of the file and of single demonstrations."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.layout import Layout

_RATE_NAMES = ("fps", "hz", "control_freq", "control_frequency", "frequency")
_TASK_NAMES = ("task", "language_instruction", "task_description", "instruction", "language", "language_raw")
_ENVIRONMENT_NAMES = ("env_name", "env")
_ROBOT_NAMES = ("robot_type", "robots", "robot")
_JSON_NAMES = ("env_args", "env_info", "problem_info", "ep_meta")
TEXT_NAMES = (*_TASK_NAMES, *_ROBOT_NAMES, "env", *_JSON_NAMES)
"""What a file is asked for when it is opened: `Hdf5File(path, texts=TEXT_NAMES)`."""


@dataclass(frozen=True)
class Facts:
    """Rate, task and robot, where the file names them; tasks of single demonstrations by their group."""

    rate_hz: float | None = None
    rate_from: str = ""
    task: str | None = None
    robot: str | None = None
    tasks: Mapping[str, str] = field(default_factory=dict)


def read_facts(file: Hdf5File, layout: Layout) -> Facts:
    """From the attributes that recorders write, and from the JSON that robomimic and robosuite keep in some."""
    nodes = ["/", "data"] if layout.groups[0].startswith("data/") else ["/", "observations"]
    groups = [group for group in layout.groups if group]
    known = _known(file, nodes, groups)
    rate_hz, rate_from = None, ""
    for node in nodes:
        for name in _RATE_NAMES:
            value = known[node].get(name)
            if rate_hz is None and isinstance(value, (int, float)) and 0 < value < 100_000:
                rate_hz, rate_from = float(value), f"{name} of {node}"
    task = next((text for node in nodes if (text := _task(known[node])) is not None), None)
    environment = next(
        (known[node][name] for node in nodes for name in _ENVIRONMENT_NAMES if known[node].get(name)), None
    )
    robot = next((known[node][name] for node in nodes for name in _ROBOT_NAMES if known[node].get(name)), None)
    if isinstance(robot, list):
        robot = "_".join(str(each) for each in robot)
    tasks = {group: text for group in groups if (text := _task(known[group])) is not None}
    if task is None and isinstance(environment, str):
        task = environment
    return Facts(rate_hz, rate_from, task, str(robot) if robot else None, tasks)


def _task(known: Mapping[str, Any]) -> str | None:
    for name in (*_TASK_NAMES, "lang"):
        value = known.get(name)
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _known(file: Hdf5File, nodes: list[str], groups: list[str]) -> dict[str, dict[str, Any]]:
    """By node: attributes, what their JSON holds, and data sets of one text."""
    known: dict[str, dict[str, Any]] = {}
    for node in (*nodes, *groups):
        wanted = (*_TASK_NAMES, "ep_meta") if node in groups else (*_RATE_NAMES, *TEXT_NAMES)
        held = known.setdefault(node, {})
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
    return known


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def _flatten(tree: Any, known: dict[str, Any], depth: int) -> None:
    if not isinstance(tree, Mapping) or depth > 4:
        return
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _flatten(value, known, depth + 1)
        else:
            known.setdefault(str(name), value)
