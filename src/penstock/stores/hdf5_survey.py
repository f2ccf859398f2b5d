"""What one HDF5 file is to a store: its episodes, its columns, and where their rows lie; as plain data.

Made in a child of its own (`hdf5_survey_child`), since a damaged file can crash or hang the library, and sent to the
parent line by line. Contiguous rows are then read without ever opening the file through the library.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from penstock.errors import StoreError
from penstock.stores.hdf5_array import Hdf5Array
from penstock.stores.hdf5_file import Hdf5File
from penstock.stores.hdf5_layout import (
    ACTIONS,
    TERMINALS,
    TIMEOUTS,
    Layout,
    Member,
    demonstrations,
    join,
    masked_groups,
    recognise,
    row_count,
)
from penstock.stores.hdf5_spots import Asked, Facts, Like, Line, SpotFinder, picture_size
from penstock.stores.hdf5_trial_child import quietly, text_attribute

ENDS = frozenset((*TERMINALS, *TIMEOUTS))

_SMALLEST_DEPTH_PX = 8
_RATE_NAMES = ("fps", "hz", "control_freq", "control_frequency", "frequency")


class Surveyor:
    """Surveys one file after the other; the first with rows is what the others are compared with."""

    def __init__(self, asked: Asked, like: Like | None = None) -> None:
        self._asked = asked
        self.like = like
        self._spots = SpotFinder()

    def survey(self, file: Hdf5File) -> Iterator[Line]:
        """One line about the file, then one for each group that is or holds episodes."""
        asked, like = self._asked, self.like
        layout = _layout(file, asked, like)
        groups = masked_groups(file, layout, asked.mask) if asked.mask is not None else list(layout.groups)
        wanted = _wanted(file, layout, groups, asked)
        line: Line = {"kind": layout.kind, "why": layout.why, "groups": len(groups), "masks": layout.masks}
        if like is None:
            columns, notes = _columns(file, layout, asked)
            like = Like(str(file.path), layout.kind, tuple(columns), _tree(file, layout))
            line |= {"like": like.as_plain(), "notes": notes, "fps": _rate(file, layout)}
        elif asked.columns is None:
            more = [member.name for member in layout.members if not _is_in(member.name, like)]
            line["notes"] = [f"{file.path.name}: {name} is left out: {like.path} has none" for name in more]
        yield line
        for group in groups:
            rows = self._spots.rows(file, group) if group in wanted else 0
            if rows:
                self.like = like
            yield {"group": group, "rows": rows, "spots": self._spots.of_group(file, group, rows, like) if rows else []}


def _wanted(file: Hdf5File, layout: Layout, groups: list[str], asked: Asked) -> set[str]:
    if asked.only is None or layout.kind != "robomimic":
        return set(groups)
    beyond = [number for number in asked.only if not 0 <= number < len(groups)]
    if beyond:
        raise StoreError(f"{file.path}: there is no episode {beyond[0]:,}, it has {len(groups):,}")
    return {groups[number] for number in asked.only}


def _layout(file: Hdf5File, asked: Asked, like: Like | None) -> Layout:
    """Of files that look like the first, only the groups are looked up."""
    if like is None:
        return recognise(file, asked.channels)
    demos = demonstrations(file)
    found = Layout("robomimic", "", tuple(demos), (), tuple(file.names("mask"))) if demos else None
    if found is None and like.kind != "robomimic" and all(
        file.names(group or "/") == names for group, names in like.tree.items()
    ):
        found = Layout(like.kind, "", ("",), ())  # type: ignore[arg-type]  # checked where it was made
    found = found or recognise(file, asked.channels)
    if found.kind != like.kind:
        raise StoreError(
            f"{file.path} is laid out as {found.kind}, {like.path} as {like.kind}",
            hint="one store has one layout: open the files one by one",
        )
    return found


def _tree(file: Hdf5File, layout: Layout) -> dict[str, list[str]]:
    """The names in every group that data sets with rows lie in, where one file is one group."""
    if layout.kind == "robomimic":
        return {}
    above = {"", *("/".join(parts[:i]) for each in layout.members for parts in [each.name.split("/")]
                   for i in range(1, len(parts)))}  # fmt: skip
    return {group: file.names(group or "/") for group in sorted(above)}


def _is_in(name: str, like: Like) -> bool:
    group, _, base = name.rpartition("/")
    return base in like.tree.get(group, ())


def _columns(file: Hdf5File, layout: Layout, asked: Asked) -> tuple[list[Facts], list[str]]:
    """The columns that can be used, and why the others cannot."""
    group = next((group for group in layout.groups if row_count(file, group)), layout.groups[0])
    rows = row_count(file, group)
    central = next((name for name in ACTIONS if layout.member(name)), None)
    columns: list[Facts] = []
    notes: list[str] = []
    for member in layout.members:
        is_end = member.name in ENDS  # needed to know where episodes end, whatever was asked for
        if asked.columns is not None and member.name not in asked.columns and not is_end:
            continue
        facts: Facts | str
        if member.rows != rows:
            facts = f"{member.rows:,} rows, {central or 'the first data set'} has {rows:,}"
        else:
            facts = _facts(Hdf5Array(file, join(group, member.name)), member)
        if is_end and layout.kind == "replay" and (isinstance(facts, str) or member.values != 1):
            text = f"{member.name} is {member.shape}, one value for each of {rows:,} rows expected"
            raise StoreError(f"{file.path}: {text}")
        if isinstance(facts, str):
            notes.append(f"{member.name} is left out: {facts}")
        else:
            columns.append(facts)
    if asked.columns is not None:
        lacking = [name for name in asked.columns if name not in {each.name for each in columns}]
        if lacking:
            raise StoreError(
                f"{file.path} has no column {lacking[0]!r}",
                hint="; ".join(notes) or f"columns: {', '.join(member.name for member in layout.members)}",
            )
    return columns, notes


def _facts(array: Hdf5Array, member: Member) -> Facts | str:
    """A column, or why it cannot be one."""
    stored = member.row_shape
    dtype = array.dtype

    def found(kind: str, shape: tuple[int, ...], name: str, encoding: str, turned: bool = False) -> Facts:
        return Facts(member.name, kind, shape, name, encoding, stored, dtype.str, turned, array.is_ragged)

    if member.content == "other":
        return member.why.replace("hdf5.channels=last", 'channels="last" or "first"')
    if member.content == "pixels":
        turned = member.channels == "first"
        shape = (*stored[1:], stored[0]) if turned else stored if len(stored) == 3 else (*stored, 1)
        return found("image", shape, "uint8", "raw", turned)
    native = dtype.newbyteorder("=").name
    if member.content == "depth" or (
        "depth" in member.name.lower()
        and native == "float32"
        and len(stored) >= 2
        and min(stored[:2]) >= _SMALLEST_DEPTH_PX
        and stored[2:] in ((), (1,))
    ):
        return found("depth", (*stored[:2], 1), native, "raw")
    if member.content in ("jpeg", "png"):
        size = picture_size(array)
        if isinstance(size, str):
            return size
        height, width, is_depth = size
        if is_depth:
            return found("depth", (height, width, 1), "uint16", "png")
        return found("image", (height, width, 3), "uint8", member.content)
    return found("numbers", stored, native, "numbers")


def _rate(file: Hdf5File, layout: Layout) -> float | None:
    """Rows a second, where an attribute says so; robomimic's lies in the arguments of its environment."""
    for node in ("/", "data") if layout.kind == "robomimic" else ("/", "observations"):
        for name in _RATE_NAMES:
            value = file.said(node, name)
            if isinstance(value, (int, float)) and 0 < value < 100_000:
                return float(value)
    if layout.kind != "robomimic":
        return None
    try:
        value = json.loads(quietly(text_attribute, file.find("data"), "env_args"))["env_kwargs"]["control_freq"]
    except (TypeError, ValueError, KeyError, RecursionError):
        return None
    return float(value) if isinstance(value, (int, float)) and 0 < value < 100_000 else None
