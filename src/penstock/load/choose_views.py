"""Which columns get a view, where, and how much of the memory each may take."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.errors import LimitExceeded, UsageError
from penstock.load import cache, view_file, view_opening
from penstock.load.source import PictureColumn, Source
from penstock.load.view import View, ViewSpec
from penstock.system.cache_directory import has_directory
from penstock.system.units import MIB, format_bytes

_ENOUGH = 0.9  # of the rows that memory would hold: a view on disk is filled, that in memory is not yet
_LEAST_SHARE = 0.02  # of the rows: below, a view in memory is not worth its bookkeeping
_OVERHEAD_BYTES = 16 << 10  # header and alignment of one view

_Wanted = tuple[Source, PictureColumn]


def spec_for(source: Source, column: PictureColumn) -> ViewSpec:
    """The view of a column at the size that the source asks for."""
    fit = column.fit
    fingerprint = source.store.fingerprint(column.name)
    return ViewSpec(column.name, fingerprint, fit.size, fit.channels, exact=fit.exact, resize=fit.resize)


def attach_views(
    sources: Sequence[Source], choice: str | Mapping[str, View], left_bytes: int
) -> tuple[list[View], list[str]]:
    """Give the sources their views; the views that were made here (to be closed by the loader), and notes."""
    wanted = [(source, column) for source in sources for column in source.pictures if column.view_row_bytes]
    if not isinstance(choice, str):
        return [], _attach_given(sources, wanted, choice)
    if choice == "off" or not wanted:
        return [], ["view: none, pictures are decoded each time"] if wanted else []
    if choice == "disk":
        return _on_disk(wanted)
    made, notes = _found_on_disk(wanted, left_bytes) if choice == "auto" else ([], [])
    wanted = [(source, column) for source, column in wanted if column.name not in source.views]
    more, said = _in_ram(wanted, left_bytes, choice == "ram")
    return made + more, notes + said


def _found_on_disk(wanted: Sequence[_Wanted], left_bytes: int) -> tuple[list[View], list[str]]:
    """Views that are there already, where they hold about as many rows as one in memory would."""
    made: list[View] = []
    notes: list[str] = []
    if not has_directory():
        return made, notes
    share = _share(wanted, left_bytes)
    for source, column in wanted:
        found = View.find_on_disk(spec_for(source, column), source.store.rows)
        if found is None:
            continue
        in_memory = int(share * source.store.rows) if share >= _LEAST_SHARE else 0
        if found.n_possible < _ENOUGH * in_memory:
            notes.append(f"{_told(found)}; it is not used, for memory holds {in_memory:,}")
            found.close()
            continue
        source.views[column.name] = found
        made.append(found)
        notes.append(_told(found))
    return made, notes


def stats_of_views(sources: Sequence[Source]) -> dict[str, dict[str, Any]]:
    """What the views hold, by store and column; those that their maker closed are left out."""
    told = {}
    for source in sources:
        for name, view in source.views.items():
            try:
                found = {
                    "rows": view.n_filled,
                    "capacity": view.capacity,
                    "bytes": view.n_bytes,
                    "refused": view.n_refused,
                    "damaged": view.n_damaged,
                    "notes": list(view.notes),
                }
            except UsageError:
                continue  # closed
            told[f"{source.store.path}:{name}"] = found
    return told


def _attach_given(sources: Sequence[Source], wanted: Sequence[_Wanted], given: Mapping[str, View]) -> list[str]:
    _check_given(sources, given)
    notes = []
    for source, column in wanted:
        view = given.get(column.name)
        if view is None:
            notes.append(f"view: {column.name} has none, its pictures are decoded each time")
            continue
        expected = spec_for(source, column)
        if _pixels_of(view.spec) != _pixels_of(expected) or view.rows != source.store.rows:
            notes.append(f"view: the one given for {column.name} is of other data or another size, and is not used")
            continue
        source.views[column.name] = view
        notes.append(f"{_told(view)}, as given")
    return notes


def _check_given(sources: Sequence[Source], given: Mapping[str, View]) -> None:
    """A name that is no column, or what is no view: a slip would go unseen, and every picture be decoded again."""
    for name, view in given.items():
        if not any(name in source.store.columns for source in sources):
            names = ", ".join(column.name for column in sources[0].pictures) or "none"
            hint = f"pictures there: {names}; build_view returns what goes here"
            raise UsageError(f"{sources[0].store.path}: view= names {name!r}, which is no column", hint=hint)
        if not isinstance(view, View):
            hint = "view=penstock.build_view(store, image_size=…)"
            raise UsageError(f"view={{{name!r}: …}}: {type(view).__name__} is no view", hint=hint)


def _pixels_of(spec: ViewSpec) -> tuple[object, ...]:
    """What a view must agree in, however it keeps its rows."""
    return spec.column, spec.fingerprint, spec.size, spec.channels, spec.exact, spec.resize


def _on_disk(wanted: Sequence[_Wanted]) -> tuple[list[View], list[str]]:
    made = views_on_disk([(spec_for(source, column), source.store.rows, None) for source, column in wanted])
    notes: list[str] = []
    for (source, column), view in zip(wanted, made, strict=True):
        source.views[column.name] = view
        notes += [_told(view), *(f"view: {note}" for note in view.notes)]
    return made, notes


def _told(view: View) -> str:
    where = "in memory" if view.path is None else "on disk"
    return f"view: {view.spec.column} {where}, {view.n_filled:,} of {view.rows:,} rows are there"


def views_on_disk(
    wanted: Sequence[tuple[ViewSpec, int, int | None]], directory: str | os.PathLike[str] | None = None
) -> list[View]:
    """The views of (spec, rows, limit in bytes): those that are there, and new ones for the others. Where the new ones
    do not fit all together, none is made, and nothing is removed for them."""
    plans = [(spec, view_file.layout_within(spec, rows, limit, checked=True), limit) for spec, rows, limit in wanted]
    found: dict[Path, View] = {}
    made: list[View] = []
    fresh: list[Path] = []
    with cache.CacheDirectory(cache.views_directory(directory)) as held:
        try:
            missing: dict[Path, tuple[str, int]] = {}
            for plan in plans:  # first what is there: from now on it is held, and does not make room for the others
                path = view_opening.path_in(held.path, *plan[:2])
                there = None if path in found else View.opened(path, *plan)[0]
                if there is not None:
                    found[path] = there
                elif path not in found:
                    missing[path] = (plan[0].column, view_opening.file_bytes(*plan))
            if len(missing) > 1:
                names = ", ".join(repr(column) for column, _ in missing.values())
                held.check_room(sum(n_bytes for _, n_bytes in missing.values()), f"a view of each of {names}")
            for plan in plans:
                path = view_opening.path_in(held.path, *plan[:2])
                fresh += [path] if path in missing else []
                made.append(found.pop(path) if path in found else View.within(held, *plan))
        except BaseException:
            for view in (*made, *found.values()):
                view.close()
            for path in fresh if held.is_locked else ():  # locked: nobody else can have opened them meanwhile
                cache.remove_view(path)
            raise
    return made


def _full_bytes(source: Source, column: PictureColumn) -> int:
    """A view of all rows in memory; of every row one byte in the filled table."""
    return (column.view_row_bytes + 1) * source.store.rows + _OVERHEAD_BYTES


def _share(wanted: Sequence[_Wanted], left_bytes: int) -> float:
    """The part of all rows that views in memory may hold."""
    return min(1.0, left_bytes / sum(_full_bytes(source, column) for source, column in wanted))


def _in_ram(wanted: Sequence[_Wanted], left_bytes: int, asked: bool) -> tuple[list[View], list[str]]:
    if not wanted:
        return [], []
    share = _share(wanted, left_bytes)
    total = sum(_full_bytes(source, column) for source, column in wanted)
    more = f"with {-((left_bytes - total) // MIB):,} MiB more memory all rows have a place"
    if share < (_LEAST_SHARE if not asked else 1e-9):
        needed = f"{format_bytes(max(left_bytes, 0))} of memory are left for views of {format_bytes(total)}"
        return [], [f"view: none, {needed}; {more}"]
    made: list[View] = []
    notes: list[str] = [] if share == 1 else [f"view: {more}"]
    for source, column in wanted:
        spec, rows = spec_for(source, column), source.store.rows
        limit = int(_full_bytes(source, column) * share)
        try:
            view = View.in_ram(spec, rows, limit)
        except LimitExceeded as error:
            notes.append(f"view: none of {column.name}: {error.message}")
            continue
        made.append(view)
        source.views[column.name] = view
        notes.append(
            f"view: {column.name} in memory, {format_bytes(view.n_bytes)} for {view.capacity:,} of {rows:,} rows"
        )
    return made, notes
