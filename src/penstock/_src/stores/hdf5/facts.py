"""What recorders say of a file beside its rows: rate, robot and task, as attributes, data sets of one text, or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock._src.stores.hdf5.file import Hdf5File
from penstock._src.stores.hdf5.layout import Hdf5Layout, join

_RATE_NAMES = ("fps", "hz", "control_freq", "control_frequency", "frequency")
_TASK_NAMES = ("task", "language_instruction", "task_description", "instruction", "language", "language_raw")
_ENVIRONMENT_NAMES = ("env_name", "env")
_ROBOT_NAMES = ("robot_type", "robots", "robot")
_JSON_NAMES = ("env_args", "env_info", "problem_info", "ep_meta")
_FILE_NAMES = (*_RATE_NAMES, *_TASK_NAMES, *_ROBOT_NAMES, "env", *_JSON_NAMES)
_MOST_DEPTH = 4  # of JSON


@dataclass(frozen=True)
class Hdf5FileFacts:
    """Of a whole file; its tasks are those of episodes that name none."""

    fps: float | None
    fps_from: str
    robot: str | None
    task: str | None


def file_facts(file: Hdf5File, layout: Hdf5Layout) -> Hdf5FileFacts:
    """From the attributes that recorders write, and from the JSON that robomimic and robosuite keep in some."""
    nodes = ["/", "data"] if layout.groups[0].startswith("data/") else ["/", "observations"]
    known = {node: _known(file, node, _FILE_NAMES) for node in nodes}
    fps, fps_from = None, ""
    for node in nodes:
        for name in _RATE_NAMES:
            value = known[node].get(name)
            if fps is None and isinstance(value, (int, float)) and 0 < value < 100_000:
                fps, fps_from = float(value), f"{name} of {node}"
    robot = _first(known, _ROBOT_NAMES)
    if isinstance(robot, list):
        robot = "_".join(str(each) for each in robot)
    task = next((text for node in nodes if (text := _task(known[node])) is not None), None)
    environment = _first(known, _ENVIRONMENT_NAMES)
    if task is None and isinstance(environment, str):
        task = environment
    return Hdf5FileFacts(fps, fps_from, str(robot) if robot else None, task)


def episode_task(file: Hdf5File, group: str) -> str | None:
    """What a group says of its own task."""
    return _task(_known(file, group, (*_TASK_NAMES, "ep_meta"))) if group else None


def _first(known: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> Any:
    return next((held[name] for held in known.values() for name in names if held.get(name)), None)


def _task(known: Mapping[str, Any]) -> str | None:
    for name in (*_TASK_NAMES, "lang"):
        value = known.get(name)
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def _known(file: Hdf5File, node: str, names: Sequence[str]) -> dict[str, Any]:
    """The attributes of a node by name, what their JSON holds, and data sets of one text."""
    known: dict[str, Any] = {}
    attributes, beside = file.attributes(node, names), set(file.names(node))
    for name in names:
        value = attributes.get(name)
        if value is None and name in _TASK_NAMES and name in beside:
            value = file.single(join(node.strip("/"), name))
        if value is not None and name in _JSON_NAMES:
            _flatten(_json(value), known, 0)
        elif value is not None:
            known.setdefault(name, value)
    return known


def _json(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError):
        return None


def _flatten(tree: Any, known: dict[str, Any], depth: int) -> None:
    if not isinstance(tree, Mapping) or depth > _MOST_DEPTH:
        return
    for name, value in tree.items():
        if isinstance(value, Mapping):
            _flatten(value, known, depth + 1)
        else:
            known.setdefault(str(name), value)
