"""Which columns get a view, where, and how much of the memory each may take."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock._src.load.engine.source import ImageColumn, SampleSource
from penstock._src.load.views import cache, view_file, view_opening
from penstock._src.load.views.view import View, ViewSpec
from penstock._src.plan.view_choice import LEAST_SHARE, is_enough_on_disk, share_in_memory
from penstock._src.system.cache_directory import has_directory
from penstock._src.system.units import MIB, format_bytes
from penstock.errors import LimitExceeded, UsageError

_Wanted = tuple[SampleSource, ImageColumn]


def spec_for(source: SampleSource, column: ImageColumn) -> ViewSpec:
    """The view of a column at the size that the source asks for."""
    fit = column.fit
    fingerprint = source.store.fingerprint(column.name)
    return ViewSpec(column.name, fingerprint, fit.size, fit.channels, exact=fit.exact, resize=fit.resize)


def attach_views(
    sources: Sequence[SampleSource], choice: str | Mapping[str, View], left_bytes: int
) -> tuple[list[View], list[str]]:
    """Give the sources their views; the views that were made here (to be closed by the loader), and notes."""
    wanted = _viewable_columns(sources)
    if not isinstance(choice, str):
        return [], _attach_own(sources, wanted, choice)
    if choice == "off" or not wanted:
        return [], ["view: none, images are decoded each time"] if wanted else []
    if choice == "disk":
        return _on_disk(wanted)
    made, notes = _reuse_from_disk(wanted, left_bytes) if choice == "auto" else ([], [])
    wanted = [(source, column) for source, column in wanted if column.name not in source.views]
    more, more_notes = _in_ram(wanted, left_bytes, choice == "ram")
    return made + more, notes + more_notes


def _reuse_from_disk(wanted: Sequence[_Wanted], left_bytes: int) -> tuple[list[View], list[str]]:
    """Views that are there already, where they hold about as many rows as one in memory would."""
    made: list[View] = []
    notes: list[str] = []
    if not has_directory():
        return made, notes
    share = share_in_memory(_full_bytes(wanted), left_bytes)
    for source, column in wanted:
        rows = source.store.rows
        view = View.find_on_disk(spec_for(source, column), rows)
        if view is None:
            continue
        if not is_enough_on_disk(view.n_possible / rows, share):
            notes.append(f"{_describe(view)}; it is not used, because memory holds {int(share * rows):,}")
            view.close()
            continue
        source.views[column.name] = view
        made.append(view)
        notes.append(_describe(view))
    return made, notes


def share_on_disk(sources: Sequence[SampleSource]) -> float:
    """The part of all rows that views on disk hold already."""
    shares = []
    for source, column in _viewable_columns(sources) if has_directory() else ():
        view = View.find_on_disk(spec_for(source, column), source.store.rows)
        shares.append(0.0 if view is None else view.n_filled / source.store.rows)
        if view is not None:
            view.close()
    return min(shares, default=0.0)


def _viewable_columns(sources: Sequence[SampleSource]) -> list[_Wanted]:
    """The columns that a view would spare work."""
    return [(source, column) for source in sources for column in source.images if column.view_row_bytes]


def stats_of_views(
    sources: Sequence[SampleSource], counts: Mapping[tuple[int, str], tuple[int, int, tuple[str, ...]]]
) -> dict[str, dict[str, Any]]:
    """What the views hold, by store and column; those that their maker closed are left out. `counts`: what an engine
    process counted of them: rows refused, rows damaged, notes."""
    stats = {}
    for number, source in enumerate(sources):
        for name, view in source.views.items():
            refused, damaged, notes = counts.get((number, name), (0, 0, ()))
            if view.is_closed:
                continue
            stats[f"{source.store.path}:{name}"] = {
                "rows": view.n_filled,
                "capacity": view.capacity,
                "bytes": view.n_bytes,
                "shared": view.is_shared,
                "refused": view.n_refused + refused,
                "damaged": view.n_damaged + damaged,
                "notes": list(dict.fromkeys((*view.notes, *notes))),
            }
    return stats


def _attach_own(sources: Sequence[SampleSource], wanted: Sequence[_Wanted], views: Mapping[str, View]) -> list[str]:
    _check_own(sources, views)
    notes = []
    for source, column in wanted:
        view = views.get(column.name)
        if view is None:
            notes.append(f"view: {column.name} has none, its images are decoded each time")
            continue
        expected = spec_for(source, column)
        if _pixels_of(view.spec) != _pixels_of(expected) or view.rows != source.store.rows:
            notes.append(f"view: the view given for {column.name} has other data or another size, and is not used")
            continue
        source.views[column.name] = view
        notes.append(f"{_describe(view)}, as given")
    return notes


def _check_own(sources: Sequence[SampleSource], views: Mapping[str, View]) -> None:
    """A name that is no column, or what is not a view: a slip would go unseen, and every image be decoded again."""
    for name, view in views.items():
        if not any(name in source.store.columns for source in sources):
            names = ", ".join(column.name for column in sources[0].images) or "none"
            hint = f"images there: {names}; build_view returns what goes here"
            raise UsageError(f"{sources[0].store.path}: view= names {name!r}, which is not a column", hint=hint)
        if not isinstance(view, View):
            hint = "view=penstock.build_view(store, image_size=…)"
            raise UsageError(f"view={{{name!r}: …}}: {type(view).__name__} is not a view", hint=hint)


def _pixels_of(spec: ViewSpec) -> tuple[object, ...]:
    """What a view must agree in, however it keeps its rows."""
    return spec.column, spec.fingerprint, spec.size, spec.channels, spec.exact, spec.resize


def _on_disk(wanted: Sequence[_Wanted]) -> tuple[list[View], list[str]]:
    made = views_on_disk([(spec_for(source, column), source.store.rows, None) for source, column in wanted])
    notes: list[str] = []
    for (source, column), view in zip(wanted, made, strict=True):
        source.views[column.name] = view
        notes += [_describe(view), *(f"view: {note}" for note in view.notes)]
    return made, notes


def _describe(view: View) -> str:
    where = "in memory" if view.path is None else "on disk"
    return f"view: {view.spec.column} {where}, {view.n_filled:,} of {view.rows:,} rows are there"


def views_on_disk(
    wanted: Sequence[tuple[ViewSpec, int, int | None]], directory: str | os.PathLike[str] | None = None
) -> list[View]:
    """The views of (spec, rows, limit in bytes): those that are there, and new ones for the others. Where the new ones
    do not fit all together, none is made, and nothing is removed for them."""
    plans = [(spec, view_file.layout_within(spec, rows, limit, checked=True), limit) for spec, rows, limit in wanted]
    views: dict[Path, View] = {}
    made: list[View] = []
    fresh: list[Path] = []
    with cache.CacheDirectory(cache.views_directory(directory)) as held:
        try:
            missing: dict[Path, tuple[str, int]] = {}
            for plan in plans:  # first what is there: from now on it is held, and does not make room for the others
                path = view_opening.path_in(held.path, *plan[:2])
                there = None if path in views else View.opened(path, *plan)[0]
                if there is not None:
                    views[path] = there
                elif path not in views:
                    missing[path] = (plan[0].column, view_opening.file_bytes(*plan))
            if len(missing) > 1:
                names = ", ".join(repr(column) for column, _ in missing.values())
                held.check_room(sum(n_bytes for _, n_bytes in missing.values()), f"a view of each of {names}")
            for plan in plans:
                path = view_opening.path_in(held.path, *plan[:2])
                fresh += [path] if path in missing else []
                made.append(views.pop(path) if path in views else View.within(held, *plan))
        except BaseException:
            for view in (*made, *views.values()):
                view.close()
            for path in fresh if held.is_locked else ():  # locked: no other process can have opened them meanwhile
                cache.remove_view(path)
            raise
    return made


def held_bytes(views: Iterable[View]) -> int:
    """What views in memory count for: those that another process made count there."""
    return sum(view.n_bytes for view in views if view.path is None and not view.is_shared)


def full_bytes_of(sources: Sequence[SampleSource]) -> list[int]:
    """What a view of each column takes in memory."""
    return _full_bytes(_viewable_columns(sources))


def _full_bytes(wanted: Sequence[_Wanted]) -> list[int]:
    """What a view of all rows of each column takes in memory."""
    specs = [(ViewSpec(each.name, "", each.fit.size, each.fit.channels), source.store.rows) for source, each in wanted]
    return [view_file.layout_within(spec, rows, None, checked=False).n_bytes for spec, rows in specs]


def _in_ram(wanted: Sequence[_Wanted], left_bytes: int, is_required: bool) -> tuple[list[View], list[str]]:
    """Views that other processes of this user have in memory, and own ones where there is room."""
    if not wanted:
        return [], []
    full_bytes = _full_bytes(wanted)
    share = share_in_memory(full_bytes, left_bytes, 0.0 if is_required else LEAST_SHARE)
    total = sum(full_bytes)
    more = f"with {-((left_bytes - total) // MIB):,} MiB more memory all rows have a place"
    makes = share > 0
    made: list[View] = []
    notes: list[str] = []
    for (source, column), needed_bytes in zip(wanted, full_bytes, strict=True):
        limit = int(needed_bytes * share)
        try:
            view = shared_or_new(spec_for(source, column), source.store.rows, limit, makes=makes)
        except LimitExceeded as error:
            notes.append(f"view: none of {column.name}: {error.message}")
            continue
        if view is not None:
            made.append(view)
            source.views[column.name] = view
            size = f"{format_bytes(view.n_bytes)} for {view.capacity:,} of {view.rows:,} rows"
            by = f", shared: another process made it, {view.n_filled:,} rows are there" if view.is_shared else ""
            notes.append(f"view: {column.name} in memory, {size}{by}")
    if not makes and len(made) < len(wanted):
        needed = f"{format_bytes(max(left_bytes, 0))} of memory are left for views of {format_bytes(total)}"
        notes.append(f"view: none, {needed}; {more}")
    elif share < 1 and not all(view.is_shared for view in made):
        notes.insert(0, f"view: {more}")
    return made, notes


def shared_or_new(spec: ViewSpec, rows: int, limit_bytes: int | None, *, makes: bool = True) -> View | None:
    """A view in memory that another process of this user has, or, where it `makes` one, a new one."""
    if spec.encoding == "raw":
        try:
            return View.shared_in_ram(spec, rows, limit_bytes, makes=makes)
        except (OSError, UsageError):
            pass  # there is no directory in which processes of this user find each other
    return View.in_ram(spec, rows, limit_bytes) if makes else None
