"""What an HDF5 file of a robot holds: ALOHA/ACT episodes, robomimic demonstrations or replay steps."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.split import natural_key
from penstock._src.stores.hdf5.array import Hdf5Array
from penstock._src.stores.hdf5.file import Hdf5File, library_errors
from penstock._src.stores.roles import ACTIONS, ENDS, REWARDS, SUCCESSES, ChannelOrder
from penstock.errors import StoreCorrupt, StoreError

LayoutKind = Literal["aloha", "robomimic", "replay"]
Content = Literal["pixels", "jpeg", "png", "depth", "numbers", "other"]
Channels = Literal["first", "last", "none"]

UNKNOWN = "no layout that is known"
NO_TIMEOUTS = "no 'timeouts' column: an episode cut off by a time limit is joined to the next"

RATE_NAMES = ("fps", "hz", "control_freq", "control_frequency", "frequency")
"""Attributes that say how many rows a second has."""

_DEMO = re.compile(r"demo_?\d+\Z")
_NUMBER = re.compile(r"\d+\Z")
_CHANNEL_COUNTS = (1, 3, 4)
_IMAGE_WORDS = ("image", "images", "rgb", "camera", "cam")
_MOST_MEMBERS = 4096
_DEEPEST = 8
_SCAN_ROWS = 1 << 16
_FIRST_ROWS = 16  # looked at for one that shows what encoded rows are
_MOST_NAMED = 3
_NAME_GROUPS = "name the groups demo_0, demo_1, …, as robomimic does, or write one file for each"


@dataclass(frozen=True)
class Member:
    """One data set of an episode, by its name within the episode's group."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    content: Content
    channels: Channels = "none"
    ragged: bool = False
    why: str = ""

    @property
    def rows(self) -> int:
        return self.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self.shape[1:]

    @property
    def values(self) -> int:
        """Numbers of one row."""
        return math.prod(self.row_shape)

    @property
    def is_image(self) -> bool:
        return self.content in ("pixels", "jpeg", "png", "depth")

    @property
    def base(self) -> str:
        return self.name.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class EpisodeRows:
    """One episode: rows of the data sets in a group."""

    group: str
    start: int
    stop: int
    label: str


@dataclass(frozen=True)
class Hdf5Layout:
    """What was recognised, and by what."""

    kind: LayoutKind
    why: str
    groups: tuple[str, ...]  # in the order of their episodes; "" is the file itself
    members: tuple[Member, ...]  # of the first group that has rows
    masks: tuple[str, ...] = ()
    singles: tuple[str, ...] = ()  # data sets beside the members: one value each, no rows
    without_actions: tuple[str, ...] = ()  # groups beside the demonstrations, which are none
    group: str = ""  # whose members they are

    @property
    def is_known(self) -> bool:
        return not self.why.startswith(UNKNOWN)

    def member(self, name: str) -> Member | None:
        return next((member for member in self.members if member.name == name.strip("/")), None)

    def first_of(self, names: tuple[str, ...]) -> Member | None:
        return next((member for name in names if (member := self.member(name)) is not None), None)


def recognise(file: Hdf5File, channels: ChannelOrder = "auto") -> Hdf5Layout:
    """Look at names, shapes and the first rows of images."""
    demos, without = demonstrations(file)
    if demos:
        filled = next((group for group in demos if row_count(file, group)), demos[0])
        members, singles = list_members(file, filled, channels)
        why = _why_demonstrations(demos, any(member.name in ACTIONS for member in members))
        return Hdf5Layout("robomimic", why, demos, members, tuple(file.names("mask")), singles, without, filled)
    members, singles = list_members(file, "", channels)
    names = {member.name for member in members}
    ends = [name for name in ENDS if name in names]
    action = next((name for name in ACTIONS if name in names), None)
    if ends or any(name in names for name in REWARDS):
        text = f"{', '.join(ends)} say where episodes end" if ends else "rewards, but nothing says where episodes end"
        return Hdf5Layout("replay", f"flat steps: {text}", ("",), members, singles=singles)
    if action is not None:
        beside = " beside observations" if any(name.startswith("observations") for name in names) else ""
        why = f"{action}{beside}, and no ends of episodes: the file is one episode"
        return Hdf5Layout("aloha", why, ("",), members, singles=singles)
    groups = list(dict.fromkeys(name.split("/")[0] for name in names if name.rpartition("/")[2] in ACTIONS))
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
    return Hdf5Layout("aloha", f"{UNKNOWN}: the file is taken as one episode", ("",), members, singles=singles)


def _why_demonstrations(demos: Sequence[str], with_actions: bool) -> str:
    place = "data/" if "/" in demos[0] else "the file"
    groups = f"{len(demos):,} group{'s' if len(demos) != 1 else ''}"
    if with_actions:
        return f"{place} holds {groups} with actions, each an episode"
    return f"{place} holds {groups} demo_… without actions, as old robosuite files do: each an episode"


def _refuse_repeated(file: Hdf5File, members: Sequence[Member]) -> None:
    """Groups that hold the same data sets with other numbers of rows are episodes, and no single one."""
    rows: dict[tuple[str, str], dict[str, int]] = {}
    for member in members:
        parts = member.name.split("/")
        for at in range(len(parts) - 1):
            above, below = "/".join(parts[:at]), "/".join(parts[at + 1 :])
            rows.setdefault((above, below), {})[join(above, parts[at])] = member.rows
    for (_, below), groups in rows.items():
        if len(set(groups.values())) > 1:
            (one, few), (other, more) = list(groups.items())[:2]
            raise StoreError(
                f"{file.path}: {len(groups):,} groups hold {below}, with different numbers of rows ({one} {few:,}, "
                f"{other} {more:,}): a layout that is not known",
                hint=_NAME_GROUPS,
            )


def list_members(
    file: Hdf5File, group: str, channels: ChannelOrder = "auto"
) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    """Every data set with rows under a group, in natural order, and the names of those that are a single value."""
    members: list[Member] = []
    singles: list[str] = []
    for name in data_sets(file, group):
        if len(members) + len(singles) >= _MOST_MEMBERS:
            raise StoreError(f"{file.path}: more than {_MOST_MEMBERS:,} data sets under {group or '/'}")
        if file.dataset(join(group, name)).shape:
            members.append(classify(Hdf5Array(file, join(group, name)), name, channels))
        else:
            singles.append(name)
    return tuple(members), tuple(singles)


def classify(array: Hdf5Array, name: str, channels: ChannelOrder = "auto") -> Member:
    """What the rows of a data set are."""
    shape, kind, size = array.shape, array.dtype.kind, array.dtype.itemsize

    def as_member(content: Content, order: Channels = "none", why: str = "") -> Member:
        return Member(name, shape, str(array.dtype), content, order, array.is_ragged, why)

    if array.is_ragged or (kind in "SV" and len(shape) == 1) or (kind == "u" and size == 1 and len(shape) == 2):
        encoded = _encoded_as(array)
        if encoded is not None:
            return as_member(encoded)
        if array.is_ragged or kind in "SV":
            return as_member("other", why="neither JPEG nor PNG")
        return as_member("numbers")
    if kind not in "biuf":
        return as_member("other", why=f"elements of {array.dtype}")
    if kind == "u" and size == 1 and len(shape) == 4:
        return as_member(*_pixels(shape, channels))
    looks = any(word in _words(name) for word in _IMAGE_WORDS)
    if kind == "u" and size == 1 and len(shape) == 3 and looks:
        return as_member("pixels", "none", "one channel")
    if kind == "u" and size == 2 and "depth" in name.lower() and (len(shape) == 3 or shape[3:] == (1,)):
        return as_member("depth")
    return as_member("numbers")


def _pixels(shape: tuple[int, ...], order: ChannelOrder) -> tuple[Content, Channels, str]:
    """(N, H, W, C) and (N, C, H, W) distinguished by the axis that has a number of channels."""
    last, first = shape[3] in _CHANNEL_COUNTS, shape[1] in _CHANNEL_COUNTS
    if (order == "last" and last) or (order == "first" and first):
        return "pixels", order, f"channels {order}, as asked"
    if last and first:
        return "other", "none", "channels may be first or last: set hdf5.channels=last"
    if last:
        return "pixels", "last", f"{shape[3]} channels, last"
    return ("pixels", "first", f"{shape[1]} channels, first") if first else ("numbers", "none", "")


def episode_spans(
    file: Hdf5File, layout: Hdf5Layout, mask: str | None = None, notes: list[str] | None = None
) -> list[EpisodeRows]:
    """All episodes, also those without rows, in order; flat steps are cut after every row that one of `ENDS` ends.

    A NaN there says nothing; how many there are is added to `notes`, and which groups are no demonstrations.
    """
    notes = [] if notes is None else notes
    notes += without_actions_note(layout)
    if mask is not None:
        return [_whole_group(file, group) for group in masked_groups(file, layout, mask)]
    if layout.kind == "robomimic":
        return [_whole_group(file, group) for group in layout.groups]
    rows = row_count(file, "")
    if layout.kind != "replay" or not rows:
        return [EpisodeRows("", 0, rows, "the file")]
    stops = _stops(file, layout, rows, notes)
    starts = [0, *stops[:-1]]
    return [
        EpisodeRows("", start, stop, f"rows {start:,}–{stop - 1:,}") for start, stop in zip(starts, stops, strict=True)
    ]


def join(group: str, name: str) -> str:
    return f"{group}/{name.strip('/')}" if group else name.strip("/")


def _stops(file: Hdf5File, layout: Hdf5Layout, rows: int, notes: list[str]) -> list[int]:
    stops: set[int] = {rows}
    for member in (member for name in ENDS if (member := layout.member(name)) is not None):
        array = Hdf5Array(file, member.name)
        if member.content != "numbers" or member.values != 1 or array.count != rows:
            raise StoreError(
                f"{file.path}: {member.name} is {member.shape}, one value for each of {rows:,} rows expected"
            )
        stops.update(end_rows(member.name, array.rows, rows, notes).tolist())
    return sorted(stops)


def end_rows(name: str, read: Callable[[int, int], NDArray[Any]], count: int, notes: list[str]) -> NDArray[np.int64]:
    """The rows after which a column says that an episode ends, each plus one; a NaN says nothing, and is noted."""
    rows, unknown = [np.empty(0, np.int64)], 0
    for start in range(0, count, _SCAN_ROWS):
        values = read(start, min(start + _SCAN_ROWS, count)).reshape(-1)
        unknown += int(np.count_nonzero(values != values))
        rows.append(np.flatnonzero((values != 0) & (values == values)) + start + 1)
    if unknown:
        notes.append(f"{name} is NaN in {unknown:,} of {count:,} rows: taken as no end of an episode")
    return np.concatenate(rows)


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


def _whole_group(file: Hdf5File, group: str) -> EpisodeRows:
    return EpisodeRows(group, 0, row_count(file, group), group)


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
    import h5py

    node = file.find(group or "/")
    for name in SUCCESSES:
        value, path = None, join(group, name)
        with library_errors(file.path, f"{path} cannot be read"):
            if h5py.h5a.exists(node, name.encode()):
                value = file.attribute(group or "/", name)
            elif node.links.exists(name.encode()) and file.kind(path) == "dataset" and file.dataset(path).size == 1:
                value = file.dataset(path)[()]
        numbers = np.asarray(value).reshape(-1)
        if numbers.size == 1 and numbers.dtype.kind in "biuf" and numbers[0] == numbers[0]:
            return bool(numbers[0])
    return None


def row_count(file: Hdf5File, group: str) -> int:
    """Rows of an episode: those of its actions, or of its first data set."""
    for name in ACTIONS:
        if file.kind(join(group, name)) == "dataset":
            return int((file.opened(join(group, name)).shape or (0,))[0])
    for name in data_sets(file, group):
        shape = file.opened(join(group, name)).shape
        if shape:
            return int(shape[0])
    return 0


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


def _encoded_as(array: Hdf5Array) -> Literal["jpeg", "png"] | None:
    """By the first bytes of the first rows; a row may be broken."""
    for row in range(min(array.count, _FIRST_ROWS)):
        try:
            head = first_bytes(array, row)
        except StoreCorrupt:
            continue
        if head[:2] == b"\xff\xd8":
            return "jpeg"
        if head == b"\x89PNG\r\n\x1a\n":
            return "png"
    return None


def first_bytes(array: Hdf5Array, row: int, count: int = 8) -> bytes:
    if array.is_ragged:
        data = next(array.ragged(row, row + 1, array.file.size_bytes), np.empty(0, np.uint8))
        return data[:count].tobytes()
    return array.rows(row, row + 1).tobytes()[:count]


def _words(name: str) -> set[str]:
    return set(name.lower().replace("/", "_").split("_"))
