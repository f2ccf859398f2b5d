"""What one HDF5 file is to a store: its episodes, its columns, and where their rows lie; as plain data.

Made in a child of its own (`hdf5_survey_child`), since a damaged file can crash or hang the library, and sent to the
parent line by line. Contiguous rows are then read without ever opening the file through the library.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from penstock.errors import ExternalRefused, LimitExceeded, StoreCorrupt, StoreError
from penstock.recordings.split import natural_key
from penstock.stores.hdf5.array import Hdf5Array
from penstock.stores.hdf5.file import Hdf5File
from penstock.stores.hdf5.layout import (
    Layout,
    Member,
    data_sets,
    demonstrations,
    join,
    masked_groups,
    recognise,
    row_count,
    without_actions_note,
)
from penstock.stores.hdf5.spots import (
    ENDS_DIFFER,
    LONGEST_TEXT_BYTES,
    Asked,
    Facts,
    Like,
    Line,
    SpotFinder,
    picture_size,
)
from penstock.stores.hdf5.trial_child import quietly, text_attribute
from penstock.stores.roles import ACTIONS, BOOKKEEPING, ENDS

_SMALLEST_DEPTH_PX = 8
_SMALLEST_SIDE_PX = 16
_MOST_STACKED = 12  # channels: four colour pictures
_FIRST_ROWS = 16  # looked at for whether strings are text
_DOUBT = "{} looks like pictures, taken as numbers: {} {}; uint8 (H, W, 1|3|4) is a picture"
_DEEPEST = 8
_MOST_GROUPS = 4096
_WORDS = re.compile("[/_.]")
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
        line["lost"] = without_actions_note(layout)
        if like is None:
            first = _first_filled(file, layout)
            columns, notes = _columns(file, layout, first, asked)
            like = Like(str(file.path), layout.kind, tuple(columns), first, _tree(file, first))
            line |= {"like": like.as_plain(), "notes": notes, "fps": _rate(file, layout)}
        yield line
        for group in groups:
            rows = self._spots.rows(file, group) if group in wanted else 0
            if rows:
                self.like = like
            yield self._part(file, group, rows, like)

    def _part(self, file: Hdf5File, group: str, rows: int, like: Like) -> Line:
        """A group: its rows, where those of each column lie, and what it has besides the columns of the first one."""
        if not rows:
            return {"group": group, "rows": 0, "spots": []}
        more = self._besides(file, group, like.tree)
        ends = [name for name in ENDS if name in more]
        if ends and like.kind == "replay":
            raise StoreError(f"{file.path}: {ends[0]} says where episodes end, {like.path} has none", hint=ENDS_DIFFER)
        found: Line = {"group": group, "rows": rows, "spots": self._spots.of_group(file, group, rows, like)}
        if self._asked.columns is None:
            found["besides"] = [name for name in more if name.rpartition("/")[2] not in BOOKKEEPING]
        return found

    def _besides(self, file: Hdf5File, group: str, tree: dict[str, list[str]]) -> list[str]:
        """The data sets under a group that a tree has not; of those that it has, the names alone are listed."""
        found: list[str] = []
        for under, known in tree.items():
            names = self._spots.names(file, join(group, under).rstrip("/"))
            for name in sorted(names.difference(known), key=natural_key):
                found += _below(file, group, join(under, name))
        return found


def _wanted(file: Hdf5File, layout: Layout, groups: list[str], asked: Asked) -> set[str]:
    if asked.only is None or layout.kind != "robomimic":
        return set(groups)
    beyond = [number for number in asked.only if not 0 <= number < len(groups)]
    if beyond:
        hint = f"its episodes are 0 to {len(groups) - 1:,}"
        raise StoreError(f"{file.path}: there is no episode {beyond[0]:,}, it has {len(groups):,}", hint=hint)
    return {groups[number] for number in asked.only}


def _layout(file: Hdf5File, asked: Asked, like: Like | None) -> Layout:
    """Of files that look like the first, only the groups are looked up."""
    if like is None:
        return recognise(file, asked.channels)
    demos, without = demonstrations(file)
    masks = tuple(file.names("mask"))
    found = Layout("robomimic", "", demos, (), masks, without_actions=without) if demos else None
    if (
        found is None
        and like.kind != "robomimic"
        and all(file.names(group or "/") == names for group, names in like.tree.items())
    ):
        found = Layout(like.kind, "", ("",), ())  # type: ignore[arg-type]  # checked where it was made
    found = found or recognise(file, asked.channels)
    if found.kind != like.kind:
        raise StoreError(
            f"{file.path} is laid out as {found.kind}, {like.path} as {like.kind}",
            hint="one store has one layout: open the files one by one",
        )
    return found


def _tree(file: Hdf5File, group: str) -> dict[str, list[str]]:
    """The names in a group and in all groups under it, by their paths from there."""
    tree: dict[str, list[str]] = {}
    waiting = [("", 0)]
    while waiting and len(tree) < _MOST_GROUPS:
        under, depth = waiting.pop()
        names = tree[under] = file.names(join(group, under) or "/")
        inner = [join(under, name) for name in names if depth < _DEEPEST]
        waiting += [(path, depth + 1) for path in inner if file.kind(join(group, path)) == "group"]
    return tree


def _below(file: Hdf5File, group: str, name: str) -> list[str]:
    try:
        kind = file.kind(join(group, name))
        return list(data_sets(file, group, name)) if kind == "group" else [name] if kind == "dataset" else []
    except (ExternalRefused, StoreCorrupt):
        return [name]  # it is not read, so what it leads to is nobody's business


def _first_filled(file: Hdf5File, layout: Layout) -> str:
    return next((group for group in layout.groups if row_count(file, group)), layout.groups[0])


def _columns(file: Hdf5File, layout: Layout, group: str, asked: Asked) -> tuple[list[Facts], list[str]]:
    """The columns that can be used, by the first group with rows; and why the others cannot."""
    rows = row_count(file, group)
    central = next((name for name in ACTIONS if layout.member(name)), None)
    wanted = {member.name for member in layout.members if member.base not in BOOKKEEPING}
    columns: list[Facts] = []
    notes: list[str] = []
    for member in layout.members:
        is_end = member.name in ENDS  # needed to know where episodes end, whatever was asked for
        if not is_end and member.name not in (asked.columns if asked.columns is not None else wanted):
            continue
        facts: Facts | str
        if member.rows != rows:
            facts = f"{member.rows:,} rows, {central or 'the first data set'} has {rows:,}"
        else:
            facts = _facts(Hdf5Array(file, join(group, member.name)), member)
        is_one = isinstance(facts, Facts) and facts.kind == "numbers" and member.values == 1
        if is_end and layout.kind == "replay" and not is_one:
            text = f"{member.name} is {member.shape}, one value for each of {rows:,} rows expected"
            raise StoreError(f"{file.path}: {text}")
        if isinstance(facts, str):
            notes.append(f"{member.name} is left out: {facts}")
        else:
            columns.append(facts)
    singles = [name for name in layout.singles if asked.columns is None or name in asked.columns]
    if singles:
        notes.append(f"left out, as each is a single value without rows: {', '.join(singles)}")
    if asked.columns is not None:
        lacking = [name for name in asked.columns if name not in {each.name for each in columns}]
        if lacking:
            raise StoreError(
                f"{file.path} has no column {lacking[0]!r}",
                hint="; ".join(notes) or f"columns: {', '.join(member.name for member in layout.members)}",
            )
    return columns, [*notes, *(_DOUBT.format(each.name, each.dtype, _by(each)) for each in columns if _is_odd(each))]


def _facts(array: Hdf5Array, member: Member) -> Facts | str:
    """A column, or why it cannot be one."""
    stored = member.row_shape
    dtype = array.dtype

    def found(kind: str, shape: tuple[int, ...], name: str, encoding: str, turned: bool = False) -> Facts:
        return Facts(member.name, kind, shape, name, encoding, stored, dtype.str, turned, array.is_ragged)

    if member.content == "other":
        text = _text_facts(array, member)
        if text is not None:
            return text
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


def _text_facts(array: Hdf5Array, member: Member) -> Facts | str | None:
    """A column of texts, or why it cannot be one; None where the rows are no strings at all."""
    import h5py

    if h5py.check_string_dtype(array.dtype) is None:
        return None
    if member.row_shape:
        return f"text, {'×'.join(map(str, member.row_shape))} of them a row; one is read"
    rows = Hdf5Array(array.file, array.name, texts=True)
    looked_at = range(min(rows.count, _FIRST_ROWS))
    try:
        if rows.is_ragged:
            first = [each.tobytes() for row in looked_at for each in rows.ragged(row, row + 1, LONGEST_TEXT_BYTES)]
        else:
            first = rows.rows(0, len(looked_at)).tolist()
        for each in first:
            each.decode("utf-8")
    except (UnicodeDecodeError, LimitExceeded, StoreCorrupt) as error:
        return f"strings that are neither JPEG, PNG nor UTF-8 text ({error})"
    return Facts(member.name, "text", (), "str", "text", (), array.dtype.str, False, rows.is_ragged)


def _is_odd(facts: Facts) -> bool:
    """Numbers in the shape of pictures: sizes and views do not apply to them."""
    shape = facts.stored_shape
    if facts.kind != "numbers" or not shape or min(shape) < 1:
        return False
    if len(shape) == 2:
        named = {"image", "images", "rgb"} & set(_WORDS.split(facts.name.lower()))
        return bool(named) and min(shape) >= _SMALLEST_SIDE_PX
    frame = shape[-3:]  # of (K, H, W, C), which is several pictures in a row
    sides = ((frame[:2], frame[-1]), (frame[-2:], frame[0]))
    return len(shape) in (3, 4) and any(min(side) >= _SMALLEST_SIDE_PX and n <= _MOST_STACKED for side, n in sides)


def _by(facts: Facts) -> str:
    return "×".join(str(size) for size in facts.stored_shape)


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
