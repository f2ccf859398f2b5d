"""What HDF5 files are to a store: their episodes, their columns, and where the rows lie; as plain data.

Made in a child (see `guard`), since a damaged file can crash or hang the library. Rows that lie in one piece are then
read without ever opening the file through the library.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.stores.hdf5.columns import (
    ENDS_DIFFER,
    FirstFile,
    Hdf5Options,
    Placement,
    StoredColumn,
    column_from,
    find_columns,
    place_column,
)
from penstock._src.stores.hdf5.facts import Hdf5FileFacts, episode_task, file_facts
from penstock._src.stores.hdf5.file import Hdf5File
from penstock._src.stores.hdf5.guard import Line, run_guarded
from penstock._src.stores.hdf5.layout import (
    Hdf5Layout,
    data_sets,
    episode_success,
    list_members,
    lost_demonstrations,
    masked_groups,
    recognise,
    row_count,
    without_actions_note,
)
from penstock._src.stores.roles import BOOKKEEPING, ENDS
from penstock._src.system.files import as_path
from penstock.errors import ExternalRefused, StoreError, os_errors


@dataclass(frozen=True)
class Hdf5Survey:
    """The files of a store, and its parts: the groups that are or hold episodes, in order."""

    kind: str
    why: str
    facts: Hdf5FileFacts
    notes: tuple[str, ...]
    masks: tuple[str, ...]
    left_out: dict[str, str]
    """Data sets that are no columns, and why."""
    lost: dict[str, int]
    """Demonstrations that cannot be read → rows of each."""
    followed: tuple[str, ...]
    """Other files that are read."""
    columns: tuple[StoredColumn, ...]
    ways: tuple[Any, ...]
    """By column: how often which (way, why) was met."""
    paths: tuple[Path, ...]
    stamps: Any
    """(size, time of change in ns) by file: int64 (files, 2)."""
    part_file: Any
    part_group: tuple[str, ...]
    part_rows: Any
    part_task: tuple[str | None, ...]
    part_success: tuple[bool | None, ...]
    problems: dict[str, str]
    """Columns that do not fit, where that is no error yet, and why."""
    placements: Any
    """int64 (parts, columns, 5): offset, row bytes (the longest), chunk rows, chunk bytes, stored bytes."""

    def packed(self) -> Line:
        """For another process: what `unpacked` takes."""
        held = (self.placements.shape, zlib.compress(self.placements.tobytes(), 1))
        return {**vars(self), "paths": [str(path.absolute()) for path in self.paths], "placements": held}


def unpacked(packed: Line) -> Hdf5Survey:
    """The survey of another process."""
    shape, held = packed["placements"]
    placements = np.frombuffer(zlib.decompress(held), np.int64).reshape(shape)
    return Hdf5Survey(**{**packed, "paths": tuple(as_path(path) for path in packed["paths"]), "placements": placements})


def survey_files(paths: Sequence[Path], options: Hdf5Options, *, check: bool = True) -> Hdf5Survey:
    """Survey files in children, so that none can hurt this process; `check=False` trusts them, and does it here."""
    stamps = [_stamp(path) for path in paths]
    numbered = list(enumerate(paths))
    if not check:
        lines = [line for line in _survey(numbered, Surveyor(options)) if "at" not in line]
    else:
        lines = _in_child(numbered, options)
    return _assembled(paths, stamps, lines)


def _in_child(files: list[tuple[int, Path]], options: Hdf5Options) -> list[Line]:
    arguments = [[(number, str(path.absolute())) for number, path in files], asdict(options)]
    hint = "the file is damaged" + ("; episodes=[…] opens the others" if len(files) > 1 else "")
    return run_guarded(f"{__name__}:survey_in_child", arguments, dict(files), hint)


def survey_in_child(arguments: Any) -> Iterator[Line]:
    """What a child does: the lines of some files, from plain data."""
    files, plain = arguments
    tuples = {key: None if plain[key] is None else tuple(plain[key]) for key in ("columns", "only")}
    return _survey(files, Surveyor(Hdf5Options(**{**plain, **tuples})))


def _survey(files: Sequence[tuple[int, Path | str]], surveyor: Surveyor) -> Iterator[Line]:
    for number, path in files:
        yield {"at": number}
        with Hdf5File(path, allow_external=surveyor.options.allow_external) as file:
            for line in surveyor.survey(file):
                yield {"file": number, **line}


class Surveyor:
    """Surveys one file after the other; the first with rows is what the others are compared with."""

    def __init__(self, options: Hdf5Options) -> None:
        self.options = options
        self._like: FirstFile | None = None

    def survey(self, file: Hdf5File) -> Iterator[Line]:
        """One line about the file, then one for each group that is or holds episodes."""
        options, like = self.options, self._like
        layout = _layout(file, like)
        groups = masked_groups(file, layout, options.mask) if options.mask is not None else list(layout.groups)
        wanted = _wanted(file, layout, groups, options)
        facts = file_facts(file, layout)
        line: Line = {"kind": layout.kind, "why": layout.why, "masks": layout.masks, "facts": asdict(facts)}
        line["beside"] = without_actions_note(layout)
        line["lost"] = {} if options.mask else lost_demonstrations(file, layout)
        if like is None:
            first = next((group for group in groups if row_count(file, group)), layout.group)
            if first != layout.group:  # the first of a mask need not be the first of the file
                members, singles = list_members(file, first)
                layout = replace(layout, group=first, members=members, singles=singles)
            columns, left_out = find_columns(file, layout, options)
            like = FirstFile(str(file.path), layout.kind, tuple(columns), {*layout.members, *layout.singles})
            line |= {"columns": [asdict(each) for each in columns], "group": first}
            line["left_out"] = left_out
        yield line
        for group in groups:
            rows = row_count(file, group) if group in wanted else 0
            if rows:
                self._like = like
            part = self._part(file, layout, group, rows, like)
            if like.kind != "replay":  # flat steps have no place for what is known of an episode
                part |= {"task": episode_task(file, group) or facts.task, "success": episode_success(file, group)}
            yield part
        yield {"followed": list(file.followed)}

    def _part(self, file: Hdf5File, layout: Hdf5Layout, group: str, rows: int, like: FirstFile) -> Line:
        """A group: its rows, where those of each column lie, and what it has besides the columns of the first one."""
        if not rows:
            return {"group": group, "rows": 0, "placements": []}
        names = [*layout.members, *layout.singles] if group == layout.group else data_sets(file, group)
        more = [name for name in names if name not in like.names]
        ends = [name for name in ENDS if name in more]
        if ends and like.kind == "replay":
            raise StoreError(f"{file.path}: {ends[0]} says where episodes end, {like.path} has none", hint=ENDS_DIFFER)
        placements: list[Placement | None] = []
        problems: dict[str, str] = {}
        for facts in like.columns:
            try:
                placements.append(place_column(file, group, facts, rows, like))
            except StoreError as error:
                cuts = like.kind == "replay" and facts.name in ENDS
                if not self.options.defers or cuts or isinstance(error, ExternalRefused):
                    raise
                placements.append(None)
                problems[facts.name] = error.message
        line: Line = {"group": group, "rows": rows, "placements": placements, "problems": problems}
        if self.options.columns is None:
            line["besides"] = [name for name in more if name.rpartition("/")[2] not in BOOKKEEPING]
        return line


def _wanted(file: Hdf5File, layout: Hdf5Layout, groups: list[str], options: Hdf5Options) -> set[str]:
    if options.only is None or layout.kind != "robomimic":
        return set(groups)
    beyond = [number for number in options.only if not 0 <= number < len(groups)]
    if beyond:
        hint = f"its episodes are 0 to {len(groups) - 1:,}"
        raise StoreError(f"{file.path}: there is no episode {beyond[0]:,}, it has {len(groups):,}", hint=hint)
    return {groups[number] for number in options.only}


def _layout(file: Hdf5File, like: FirstFile | None) -> Hdf5Layout:
    """What the file is, as far as its kind must be that of the first one."""
    layout = recognise(file)
    if like is None:
        return layout
    if layout.kind != like.kind:
        raise StoreError(
            f"{file.path} is laid out as {layout.kind}, {like.path} as {like.kind}",
            hint="one store has one layout: open the files one by one",
        )
    return layout


def _stamp(path: Path) -> tuple[int, int]:
    with os_errors(StoreError, f"{path} cannot be read"):
        stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


def _assembled(paths: Sequence[Path], stamps: list[tuple[int, int]], lines: list[Line]) -> Hdf5Survey:
    """Lines as arrays; the columns are those of the first file that has rows."""
    heads = [line for line in lines if "kind" in line]
    filled = {line["file"] for line in lines if line.get("rows")}
    models = [head for head in heads if "columns" in head]
    model = next((head for head in models if head["file"] in filled), models[0])
    columns = tuple(column_from(plain) for plain in model["columns"])
    parts = [line for line in lines if "rows" in line]
    notes = _extra_notes(paths, parts, place_of(paths, paths[model["file"]], model["group"]))
    lost: dict[str, int] = {}
    for head in heads:
        name = paths[head["file"]].name
        # Groups that are no episodes.
        notes += [note if len(paths) == 1 else f"{name}: {note}" for note in head["beside"]]
        lost |= {group if len(paths) == 1 else f"{group} of {name}": rows for group, rows in head["lost"].items()}
    ways: list[Counter[tuple[str, str]]] = [Counter() for _ in columns]
    placements = np.full((len(parts), len(columns), 5), -1, np.int64)
    for number, part in enumerate(parts):
        for column, placement in enumerate(part["placements"]):
            if placement is not None:
                *placements[number, column], way, why = placement
                ways[column][way, why] += 1
    tasks = (part.get("task") for part in parts)
    return Hdf5Survey(
        kind=model["kind"],
        why=model["why"],
        facts=Hdf5FileFacts(**model["facts"]),
        notes=tuple(notes),
        masks=tuple(model["masks"]),
        left_out=model["left_out"],
        lost=lost,
        followed=tuple(dict.fromkeys(path for line in lines for path in line.get("followed", ()))),
        columns=columns,
        ways=tuple(ways),
        paths=tuple(paths),
        stamps=np.array(stamps, np.int64).reshape(-1, 2),
        part_file=np.array([part["file"] for part in parts], np.int32),
        part_group=tuple(sys.intern(part["group"]) for part in parts),
        part_rows=np.array([part["rows"] for part in parts], np.int64),
        part_task=tuple(None if task is None else sys.intern(task) for task in tasks),
        part_success=tuple(part.get("success") for part in parts),
        problems={name: why for part in reversed(parts) for name, why in part.get("problems", {}).items()},
        placements=placements,
    )


def _extra_notes(paths: Sequence[Path], parts: Sequence[Line], lacking: str) -> list[str]:
    """A note for each data set that some parts have and the first one lacks."""
    having: dict[str, list[Line]] = {}
    for part in parts:
        for name in part.get("besides", ()):
            having.setdefault(name, []).append(part)
    notes = []
    for name, (first, *more) in having.items():
        having_it = place_of(paths, paths[first["file"]], first["group"])
        has = f"{having_it} and {len(more):,} more have" if more else f"{having_it} has"
        notes.append(f"{name} is left out: {lacking} has none, {has}")
    return notes


def place_of(paths: Sequence[Path], path: Path, group: str) -> str:
    """An episode in words, as short as is distinct."""
    if not group:
        return path.name
    return group if len(paths) == 1 else f"{group} of {path.name}"
