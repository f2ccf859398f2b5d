"""Columns of next observations: left out where every one is the observation of the row after, else kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.conversion.inputs.input import OpenOptions
from penstock._src.conversion.mapping.columns_by_name import (
    camera_keys,
    feature_of,
    listed,
    observation_key,
    problem_of,
)
from penstock._src.conversion.report import left_out
from penstock._src.conversion.settings import FeatureSettings, Settings
from penstock._src.plan.conversion_memory import LIBRARIES_BYTES
from penstock._src.stores.roles import is_next_observation
from penstock._src.stores.store import Column, Store, aligned
from penstock._src.system import units
from penstock.errors import BudgetExceeded, ImageError, StoreError

BLOCK_BYTES = 4 << 20
_COPIES = 4  # rows of both columns, those of the block before, and what comparing them makes

CHILD_BYTES = 26 << 20  # the child process that looks at the next file first: measured, rounded up
_KEEP = "hdf5.next_observations=keep keeps the columns"


@dataclass(frozen=True)
class NextRows:
    """What comparing next observations with the rows after them gave."""

    compared: int  # rows with a row after them in their episode
    equal: int  # of those: rows whose next observation is the observation of the row after
    open_ends: int  # last rows of episodes that do not end terminal, whose next observation is not their own
    terminal_ends: int  # the same of episodes that end terminal
    is_whole: bool = field(default=True, kw_only=True)  # whether all rows were compared, not only the first ones

    @property
    def is_row_after(self) -> bool:
        """Whether transitions can be made without the column: no row differs, and no last row needs it."""
        return self.equal == self.compared and not self.open_ends


def is_comparable(now: Column, after: Column) -> bool:
    """Whether rows of the two could be the same."""
    is_encoded = now.encoding in ("jpeg", "png")
    return (now.kind, now.encoding) == (after.kind, after.encoding) and (is_encoded or now.shape == after.shape)


def comparing_bytes(store: Store, now: str, after: str) -> int:
    """What comparing two columns holds at most."""
    row_bytes = max(_row_bytes(store, name) for name in (now, after))
    return _COPIES * max(min(BLOCK_BYTES, store.rows * row_bytes), row_bytes) + store.scratch_bytes((now, after))


def compare_next(
    store: Store, now: str, after: str, most_bytes: int | None = None, on_block: Callable[[], None] | None = None
) -> NextRows:
    """Compare the second of two comparable columns with the rows of the first that follow, in all episodes.

    `most_bytes` ends it after so many bytes of both; `on_block` is called after every block, and may raise.
    """
    terminal = store.roles.get("terminal")
    if terminal is not None and (terminal in store.problems or math.prod(store.columns[terminal].shape) != 1):
        terminal = None
    lasts = store.episode_starts[1:] - 1
    row_bytes = max(_row_bytes(store, name) for name in (now, after))
    step = max(1, BLOCK_BYTES // row_bytes)
    counts = np.zeros(4, np.int64)
    left = most_bytes
    for start in range(0, store.rows, step):
        rows = np.arange(start, min(start + step, store.rows), dtype=np.int64)
        own = _read(store, now, np.arange(start, min(start + step + 1, store.rows), dtype=np.int64))
        next_values = _read(store, after, rows)
        is_last = np.isin(rows, lasts)
        is_terminal = np.zeros(len(rows), np.bool_)
        if terminal is not None:
            flags = store.numbers(terminal, rows).reshape(-1)
            is_terminal = (flags != 0) & (flags == flags)  # a NaN says nothing
        inside = ~is_last[: len(own) - 1]
        new = is_last & ~_equal(next_values, own[: len(rows)])
        follows = _equal(next_values[: len(own) - 1], own[1:]) & inside
        counts += [np.count_nonzero(each) for each in (inside, follows, new & ~is_terminal, new & is_terminal)]
        if on_block is not None:
            on_block()
        if left is not None:
            left -= 2 * row_bytes * len(rows)
            if left <= 0 and rows[-1] + 1 < store.rows:
                return NextRows(*counts.tolist(), is_whole=False)
    return NextRows(*counts.tolist())


def _row_bytes(store: Store, name: str) -> int:
    column = store.column(name)
    return max(aligned(store.images(name).largest_bytes) if column.is_image else column.row_bytes, 1)


def _read(store: Store, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
    """Numbers as they are; images as objects of bytes, of which one that cannot be read equals nothing."""
    if not store.column(name).is_image:
        return store.numbers(name, rows)
    memory = np.empty(len(rows) * _row_bytes(store, name), np.uint8)
    values = np.empty(len(rows), object)
    for place, image in enumerate(store.images(name).read_block(rows.tolist(), memory)):
        values[place] = object() if isinstance(image, ImageError) else image.tobytes()
    return values


def _equal(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """By row whether all values are the same; NaN is NaN, and of two precisions the lower counts."""
    if one.dtype != other.dtype and one.dtype.kind == other.dtype.kind == "f":
        lower = min(one.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
        with np.errstate(over="ignore"):
            one, other = one.astype(lower), other.astype(lower)
    same = np.asarray(one == other, np.bool_)
    if one.dtype.kind == "f" and not same.all():
        same |= (one != one) & (other != other)
    return np.asarray(same.reshape(len(same), math.prod(same.shape[1:])).all(axis=1), np.bool_)


@dataclass(frozen=True)
class NextColumns:
    """The features that hold next rows, and why others do not."""

    features: dict[str, FeatureSettings] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def next_features(store: Store, settings: Settings, options: OpenOptions) -> NextColumns:
    """Decide on every column of next observations that no feature takes yet.

    A column is left out only where `Transition` gives the same without it: every row equals the one after it in its
    episode, and no episode ends open. The row after the last of a terminal episode is masked by its terminal flag.
    """
    used = {source.topic for feature in settings.features.values() for source in feature.sources}
    columns, notes = _columns(store, settings, used)
    if columns and settings.hdf5.next_observations == "drop":
        notes.append(f"left out, as asked for: {listed(list(columns))}")
        columns = {}
    compared: dict[str, NextRows] = {}
    if settings.hdf5.next_observations == "auto":
        for name, column in columns.items():
            now = store.columns.get(_now(name))
            is_readable = now is not None and not store.problems.keys() & {now.name, name}
            if now is not None and is_readable and is_comparable(now, column):
                compared[name] = _compared(store, now.name, name, options)
    needed = [name for name in columns if name not in compared or not compared[name].is_row_after]
    # Next columns of numbers stand for the state in a transition: one of them alone would leave the others without.
    with_numbers = any(not columns[name].is_image for name in needed)
    kept = [name for name, each in columns.items() if name in needed or (with_numbers and not each.is_image)]
    features = _features(settings.features, columns, kept)
    by_name = {source.topic: key for key, feature in features.items() for source in feature.sources}
    notes += _left_out_notes({name: each for name, each in compared.items() if name not in by_name})
    notes += [_kept_note(name, key, compared.get(name), settings) for name, key in by_name.items()]
    return NextColumns(features, tuple(notes))


def refuse_new(path: Path, columns: NextColumns, settings: Settings, first: str) -> None:
    """A data set that an earlier file started without a next observation cannot take it from a later one."""
    for key in (key for key in columns.features if key.removeprefix("next.") in settings.features):
        raise StoreError(
            f"{path}: the data set was started with {first}, without {key}, which this file needs: "
            f"{'; '.join(columns.notes)}",
            hint=f"{_KEEP} of all files, hdf5.next_observations=drop leaves them out; or convert the file on its own",
        )


def _now(name: str) -> str:
    """next_obs/object → obs/object."""
    return name.removeprefix("next_")


def _columns(store: Store, settings: Settings, used: Set[str]) -> tuple[dict[str, Column], list[str]]:
    columns: dict[str, Column] = {}
    notes: list[str] = []
    for name, column in store.columns.items():
        if not is_next_observation(name) or name in used:
            continue
        problem = problem_of(column)
        if problem is not None:
            notes.append(left_out(name, problem))
        elif column.kind == "depth" and settings.depth == "off":
            notes.append(f"depth left out: {name}")
        else:
            columns[name] = column
    return columns, notes


def _compared(store: Store, now: str, after: str, options: OpenOptions) -> NextRows:
    needed = store.reading_bytes + LIBRARIES_BYTES + comparing_bytes(store, now, after)
    if needed > options.budget_bytes:
        raise BudgetExceeded(
            f"comparing {after} with the rows after needs {units.format_bytes(needed)} and the budget is "
            f"{units.format_bytes(options.budget_bytes)}",
            size=needed,
            limit=options.budget_bytes,
            hint="give a larger --memory; hdf5.next_observations=keep compares nothing",
        )
    return compare_next(store, now, after, options.compared_bytes, options.check_stop)


def _features(
    features: Mapping[str, FeatureSettings], columns: Mapping[str, Column], kept: Sequence[str]
) -> dict[str, FeatureSettings]:
    """A next feature for every feature of which a part is kept, where the file has all its parts; else part by part."""
    settings_of: dict[str, FeatureSettings] = {}
    used: set[str] = set()
    for key, feature in features.items():
        names = [f"next_{source.topic}" for source in feature.sources]
        if any(name in kept for name in names) and all(name in columns for name in names):
            sources = tuple(replace(source, topic=name) for source, name in zip(feature.sources, names, strict=True))
            settings_of[f"next.{key}"] = replace(feature, sources=sources)
            used.update(names)
    alone = [columns[name] for name in kept if name not in used]
    keys = {f"next.{key}": each for key, each in camera_keys(each for each in alone if each.is_image).items()}
    keys |= {f"next.{observation_key(_now(each.name))}": each for each in alone if not each.is_image}
    return settings_of | {key: feature_of(column) for key, column in keys.items() if key not in settings_of}


def _left_out_notes(compared: Mapping[str, NextRows]) -> list[str]:
    """One note for all that were compared alike."""
    alike: dict[str, list[str]] = {}
    for name, rows in compared.items():
        some = f"all {rows.compared:,} rows that have one were compared"
        if not rows.is_whole:
            some = f"the first {rows.compared:,} rows were compared, converting compares all"
        alike.setdefault(some, []).append(name)
    notes = [
        f"left out, as each is the observation of the row after ({some}): {listed(names)}"
        for some, names in alike.items()
    ]
    if ends := max((rows.terminal_ends for rows in compared.values()), default=0):
        some = f"{ends:,} terminal episode{'s' if ends > 1 else ''}"
        notes.append(f"left out with them: what was observed after the last row of {some}; {_KEEP}")
    return notes


def _kept_note(name: str, key: str, rows: NextRows | None, settings: Settings) -> str:
    if key in settings.leave_out:
        return f"left out, as asked for: {name} ({key})"
    if rows is None:
        is_requested = settings.hdf5.next_observations == "keep"
        why = "as asked for" if is_requested else f"there is no {_now(name)} of its kind and shape to compare it with"
        return f"{name} is kept as {key}: {why}"
    if rows.equal < rows.compared:
        share = 100 * rows.equal / rows.compared
        why = f"it is the observation of the row after in {rows.equal:,} of {rows.compared:,} rows ({share:.1f} %)"
    elif rows.open_ends:
        ends = "1 episode that does" if rows.open_ends == 1 else f"{rows.open_ends:,} episodes that do"
        why = f"nothing else says what follows the last row of {ends} not end terminal"
    else:
        why = f"it is the observation of the row after in all {rows.compared:,} rows, other numbers are not"
    first = "" if rows.is_whole else ", of the first rows; converting compares all"
    return f"{name} is kept as {key}: {why}{first}"
