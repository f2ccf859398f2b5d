"""Columns of a store → features when none are configured: by name and shape, explained in notes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from penstock._src.conversion.report import left_out
from penstock._src.conversion.settings import FeatureSettings, TopicSource
from penstock._src.lerobot.features import safe_key
from penstock._src.stores.roles import (
    ASIDE_GROUPS,
    BOOKKEEPING,
    BOOLEAN_ROLES,
    CENTRAL_ROLES,
    IMAGE_PREFIX,
    LEROBOT,
    OBSERVATION_ROLES,
    SIMULATOR,
    base_name,
    find_roles,
    is_next_observation,
    is_observation,
)
from penstock._src.stores.store import Column, Store

SUCCESS = LEROBOT["success"][0]
BOOLEAN_KEYS = frozenset(LEROBOT[role][0] for role in BOOLEAN_ROLES)

_WIDEST = 4096  # numbers of one row that still are a feature of their own
_CAMERA_TAIL = re.compile(r"_(?:images?|rgb|img)\Z")


@dataclass(frozen=True)
class MappedColumns:
    """The features, and what was left out and why."""

    features: dict[str, FeatureSettings]
    notes: tuple[str, ...]


def map_columns(store: Store, *, with_depth: bool = True) -> MappedColumns:
    """Images, state, action and the rest, under the names that LeRobot uses.

    Columns of next observations are not among them: `next_columns` decides on those.
    """
    notes: list[str] = []
    columns = _usable(store, notes)
    if not with_depth and any(column.kind == "depth" for column in columns):
        notes.append(f"depth left out: {listed([column.name for column in columns if column.kind == 'depth'])}")
        columns = [column for column in columns if column.kind != "depth"]
    features: dict[str, FeatureSettings] = {}
    for key, column in camera_keys(column for column in columns if column.is_image).items():
        features[key] = feature_of(column)
    numbers = {column.name: column for column in columns if column.kind == "numbers"}
    roles = find_roles(numbers)
    for role in (*CENTRAL_ROLES, "success"):
        if role in roles:
            features[LEROBOT[role][0]] = FeatureSettings(tuple(TopicSource(name) for name in roles[role]))
    used = {source.topic for feature in features.values() for source in feature.sources}
    for column in numbers.values():
        if column.name not in used:
            _add_other(features, column, any(is_observation(name) for name in numbers), notes)
    return MappedColumns(features, tuple(notes))


def _usable(store: Store, notes: list[str]) -> list[Column]:
    kept: list[Column] = []
    aside = [name for name in store.columns if name.split("/")[0] in ASIDE_GROUPS]
    if aside:
        notes.append(f"left out (name them under features: to keep them): {listed(aside)}")
    for name, column in store.columns.items():
        if name in aside or base_name(name) in BOOKKEEPING or is_next_observation(name):
            continue
        problem = problem_of(column)
        if problem is None:
            kept.append(column)
        else:
            notes.append(left_out(name, problem))
    return kept


def problem_of(column: Column) -> str | None:
    """Why a column is no feature unless a user names it."""
    if column.kind == "text":
        return "text"
    values = int(np.prod(column.shape, dtype=np.int64))
    if not column.is_image and not 0 < values <= _WIDEST:
        return f"{values:,} numbers a row (features: may still name it)"
    return None


def _add_other(features: dict[str, FeatureSettings], column: Column, observed: bool, notes: list[str]) -> None:
    key = whole = safe_key(column.name.replace("/", "_"))
    if column.name == SIMULATOR:
        if observed:
            notes.append("states (of the simulator) left out: name it under features: to keep it")
            return
        key = LEROBOT["environment_state"][0]
    elif is_observation(column.name):
        base = base_name(column.name)
        role = next((role for role, known in OBSERVATION_ROLES.items() if known == base), None)
        key = LEROBOT[role][0] if role else observation_key(column.name)
    features[whole if key in features else key] = feature_of(column)


def observation_key(name: str) -> str:
    """obs/robot0_eef_pos → observation.robot0_eef_pos."""
    return "observation." + safe_key(name.split("/", 1)[-1].replace("/", "_"))


def feature_of(column: Column) -> FeatureSettings:
    source = (TopicSource(column.name),)
    is_whole = column.kind == "numbers" and np.dtype(column.dtype).kind in "iub"
    return FeatureSettings(source, dtype="int64") if is_whole else FeatureSettings(source)


def camera_keys(images: Iterable[Column]) -> dict[str, Column]:
    """left_image → left; the whole name where two would be the same."""
    short: dict[str, list[Column]] = {}
    for column in images:
        base = base_name(column.name)
        short.setdefault(_CAMERA_TAIL.sub("", base) or base, []).append(column)
    keys: dict[str, Column] = {}
    for name, sharing in short.items():
        if len(sharing) == 1:
            keys[IMAGE_PREFIX + safe_key(name.removeprefix(IMAGE_PREFIX))] = sharing[0]
        else:
            keys.update({IMAGE_PREFIX + safe_key(each.name.replace("/", "_")): each for each in sharing})
    return keys


def listed(names: list[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8:,} more" if len(names) > 8 else "")
