"""What an HDF5 file of a robot holds: ALOHA/ACT episodes, robomimic demonstrations or replay steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from penstock._src.recordings.split import natural_key
from penstock._src.stores.hdf5.file import Hdf5File
from penstock._src.stores.roles import ACTIONS, ENDS, REWARDS, SUCCESSES
from penstock.errors import StoreError

LayoutKind = Literal["aloha", "robomimic", "replay"]

UNKNOWN = "no layout that is known"

_DEMO = re.compile(r"demo_?\d+\Z")
_NUMBER = re.compile(r"\d+\Z")
_MOST_MEMBERS = 4096
_DEEPEST = 8
_MOST_NAMED = 3
_NAME_GROUPS = "name the groups demo_0, demo_1, …, as robomimic does, or write one file for each"


@dataclass(frozen=True)
class Hdf5Layout:
    """What was recognised, and by what."""

    kind: LayoutKind
    why: str
    groups: tuple[str, ...]
    """In the order of their episodes; "" is the file itself."""
    group: str = ""
    """The first that has rows: what its data sets are, those of the others must be."""
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """The shapes of its data sets with rows, by their names within the group."""
    singles: tuple[str, ...] = ()
    """Its data sets without rows: one value each."""
    masks: tuple[str, ...] = ()
    without_actions: tuple[str, ...] = ()
    """Groups beside the demonstrations, which are none."""


def recognise(file: Hdf5File) -> Hdf5Layout:
    """By the names of groups and data sets."""
    demos, without = demonstrations(file)
    if demos:
        filled = next((group for group in demos if row_count(file, group)), demos[0])
        members, singles = list_members(file, filled)
        why = _why_demonstrations(demos, any(name in ACTIONS for name in members))
        masks = tuple(file.names("mask"))
        return Hdf5Layout("robomimic", why, demos, filled, members, singles, masks, without)
    names, singles = list_members(file, "")
    kind, why = _flat_layout(file, names)
    return Hdf5Layout(kind, why, ("",), "", names, singles)


def _flat_layout(file: Hdf5File, members: Mapping[str, tuple[int, ...]]) -> tuple[LayoutKind, str]:
    """What a file without groups of demonstrations is, and why."""
    ends = [name for name in ENDS if name in members]
    action = next((name for name in ACTIONS if name in members), None)
    if ends or any(name in members for name in REWARDS):
        text = f"{', '.join(ends)} say where episodes end" if ends else "rewards, but nothing says where episodes end"
        return "replay", f"flat steps: {text}"
    if action is not None:
        beside = " beside observations" if any(name.startswith("observations") for name in members) else ""
        return "aloha", f"{action}{beside}, and no ends of episodes: the file is one episode"
    groups = list(dict.fromkeys(name.split("/")[0] for name in members if name.rpartition("/")[2] in ACTIONS))
    if len(groups) > 1:
        raise StoreError(
            f"{file.path}: {len(groups):,} groups hold actions ({', '.join(sorted(groups, key=natural_key)[:3])}…): a "
            "layout that is not known",
            hint=_NAME_GROUPS,
        )
    if not members:
        hint = "rows lie in data sets such as actions and observations/…: docs/reference/stores.md"
        raise StoreError(f"{file.path} holds no data set with rows", hint=hint)
    _refuse_repeated(file, members)
    return "aloha", f"{UNKNOWN}: the file is taken as one episode"


def _why_demonstrations(demos: Sequence[str], with_actions: bool) -> str:
    place = "data/" if "/" in demos[0] else "the file"
    groups = f"{len(demos):,} group{'s' if len(demos) != 1 else ''}"
    if with_actions:
        return f"{place} holds {groups} with actions, each an episode"
    return f"{place} holds {groups} demo_… without actions, as old robosuite files do: each an episode"


def _refuse_repeated(file: Hdf5File, members: Mapping[str, tuple[int, ...]]) -> None:
    """Groups that hold the same data sets with other numbers of rows are episodes, and no single one."""
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for name, shape in members.items():
        parts = name.split("/")
        for at in range(len(parts) - 1):
            above, below = "/".join(parts[:at]), "/".join(parts[at + 1 :])
            rows.setdefault((above, below), {})[join(above, parts[at])] = shape[0]
    for (_, below), groups in rows.items():
        if len(set(groups.values())) > 1:
            (one, few), (other, more) = list(groups.items())[:2]
            raise StoreError(
                f"{file.path}: {len(groups):,} groups hold {below}, with different numbers of rows ({one} {few:,}, "
                f"{other} {more:,}): a layout that is not known",
                hint=_NAME_GROUPS,
            )


def list_members(file: Hdf5File, group: str) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Every data set with rows under a group, in natural order, and the names of those that are a single value."""
    members: dict[str, tuple[int, ...]] = {}
    singles: list[str] = []
    for name in data_sets(file, group):
        if len(members) + len(singles) >= _MOST_MEMBERS:
            raise StoreError(f"{file.path}: more than {_MOST_MEMBERS:,} data sets under {group or '/'}")
        shape = file.opened(join(group, name)).shape
        if shape:
            members[name] = shape
        else:
            singles.append(name)
    return members, tuple(singles)


def join(group: str, name: str) -> str:
    return f"{group}/{name.strip('/')}" if group else name.strip("/")


def masked_groups(file: Hdf5File, layout: Hdf5Layout, mask: str) -> list[str]:
    if mask not in layout.masks:
        known = ", ".join(layout.masks) or "none"
        raise StoreError(f"{file.path} has no mask/{mask}", hint=f"masks in this file: {known}")
    data = file.dataset(f"mask/{mask}")
    above = layout.groups[0].rpartition("/")[0]
    wanted = {join(above, _text(name)) for name in np.asarray(data[()]).reshape(-1).tolist()}
    missing = sorted(wanted - set(layout.groups))
    if missing:
        raise StoreError(f"{file.path}: mask/{mask} names {missing[0]}, which is not there, or has no actions")
    return sorted(wanted, key=natural_key)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def demonstrations(file: Hdf5File) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The groups that are demonstrations, in data/ or at the root, and the groups beside them that hold no actions.

    Where none holds actions, as in old robosuite files, those named demo_… that have rows are the demonstrations.
    """
    for above in ("data", ""):
        named = [name for name in file.names(above or "/") if above or _DEMO.match(name)]
        groups = [join(above, name) for name in named if file.kind(join(above, name)) == "group"]
        demos = [group for group in groups if any(file.kind(f"{group}/{name}") == "dataset" for name in ACTIONS)]
        if not demos:
            demos = [group for group in groups if _DEMO.match(group.rpartition("/")[2]) and row_count(file, group)]
        if demos:
            return tuple(demos), tuple(group for group in groups if group not in set(demos))
    return (), ()


def without_actions_note(layout: Hdf5Layout) -> list[str]:
    """One note about the groups beside the demonstrations, where there are any."""
    lacking = layout.without_actions
    if not lacking:
        return []
    more = f" and {len(lacking) - _MOST_NAMED:,} more" if len(lacking) > _MOST_NAMED else ""
    named = f"{', '.join(lacking[:_MOST_NAMED])}{more}"
    return [f"{len(lacking):,} group{'s' if len(lacking) > 1 else ''} without actions left out: {named}"]


def lost_demonstrations(file: Hdf5File, layout: Hdf5Layout) -> dict[str, int]:
    """Rows by group, of those that are named like the demonstrations and hold rows, but lack the actions."""
    stems = {_NUMBER.sub("", group) for group in layout.groups}
    named = [group for group in layout.without_actions if _NUMBER.sub("", group) in stems]
    return {group: rows for group in named if (rows := row_count(file, group))}


def episode_success(file: Hdf5File, group: str) -> bool | None:
    """What an attribute or a single value says of a whole episode; None where nothing does."""
    known = file.attributes(group or "/", SUCCESSES)
    for name in SUCCESSES:
        numbers = np.asarray(known[name] if name in known else file.single(join(group, name))).reshape(-1)
        if numbers.size == 1 and numbers.dtype.kind in "biuf" and numbers[0] == numbers[0]:
            return bool(numbers[0])
    return None


def row_count(file: Hdf5File, group: str) -> int:
    """Rows of an episode: those of its actions, or of most of its data sets."""
    for name in ACTIONS:
        if file.kind(join(group, name)) == "dataset":
            return int((file.opened(join(group, name)).shape or (0,))[0])
    shapes = (file.opened(join(group, name)).shape for name in data_sets(file, group))
    counts = Counter(int(shape[0]) for shape in shapes if shape)
    return counts.most_common(1)[0][0] if counts else 0


def data_sets(file: Hdf5File, group: str, under: str = "", depth: int = 0) -> Iterator[str]:
    """The data sets under a group, in natural order, by their names within it."""
    if depth > _DEEPEST:
        return  # a group that holds itself
    for name in file.names(join(group, under) or "/"):
        path = join(under, name)
        kind = file.kind(join(group, path))
        if kind == "dataset":
            yield path
        elif kind == "group":
            yield from data_sets(file, group, path, depth + 1)
