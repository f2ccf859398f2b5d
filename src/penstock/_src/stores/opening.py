"""`penstock.open`: the store at a path, whatever its format."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src import formats
from penstock._src.formats.content import foreign_content
from penstock._src.formats.format import Format
from penstock._src.formats.registry import HDF5
from penstock._src.stores.store import Store
from penstock._src.system.files import as_path, refresh
from penstock.errors import StoreError, UsageError, os_errors


def open_store(
    path: str | os.PathLike[str],
    *,
    episodes: Sequence[int] | str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> Store:
    """A store for a LeRobot data set, an HDF5 file, a directory of ALOHA episodes, a spike data set, VQA data (JSONL,
    VQAv2, LLaVA, chat messages, tar shards, images), or data of a registered format.

    `episodes` opens a part, by the numbers that the data set gives its episodes; `episodes="whole"` opens those of a
    LeRobot data set whose files are all there. `columns` leaves the other columns out.
    Options of HDF5: `channels="first"|"last"`, `mask="train"` (robomimic), `allow_external=True`.
    Options of spike data sets: `split="train"`, `num_bins=5`, `layout="packed"|"uint8"`, `height`, `width`, `frames`,
    `flip`, `spike_dir`, `voxel_dir`, `on_missing="raise"|"skip"` (docs/reference/spike-files.md).
    Options of VQA data: `image_root`, `annotations`, `fields`, `on_error="raise"|"skip"`, `allow_external`
    (docs/train/vqa.md).

    >>> penstock.open("datasets/run", episodes=[0, 3])                                # doctest: +SKIP
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise UsageError(f"{reprlib.repr(path)} is not a path", hint='penstock.open("datasets/run")')
    place = as_path(path)
    with os_errors(StoreError, f"{place} cannot be read"):
        refresh(place)
        _refuse_absent(place)
        _check_words(episodes, options)
        columns = _names(columns, place)
        if isinstance(episodes, str):
            _check_whole(episodes, place)
        store_format = _format_by_options(place, options) or format_of(place)
    if wrong := [name for name in options if name not in store_format.options]:
        others = [each.label for each in formats.all_formats("store") if wrong[0] in each.options]
        raise StoreError(f"{place} is a {store_format.label}: {wrong[0]}= is an option of {', '.join(others)}")
    chosen = episodes if isinstance(episodes, str) else whole_numbers(episodes, place)
    store: Store = store_format.load("open")(place, episodes=chosen, columns=columns, **options)
    return store


def _format_by_options(place: Path, options: Mapping[str, Any]) -> Format | None:
    """Of a directory that has no marker, the format that alone has an option of the call: `spike_dir="events"`."""
    if not options or not place.is_dir() or formats.by_directory(place, "store") is not None:
        return None
    named = {each.kind: each for name in options for each in formats.all_formats("store") if name in each.options}
    formats_named = list(named.values())
    return formats_named[0] if len(formats_named) == 1 and formats_named[0].markers else None


def format_of(place: Path) -> Format:
    """The format of a store; an error that says what lies there instead."""
    if not place.is_dir():
        return _format_of_file(place)
    if (store_format := formats.by_directory(place, "store")) is not None:
        return store_format
    names = [each.name for each in place.iterdir()]
    for each in formats.all_formats("store"):
        if each.is_directory_of_files and any(map(each.is_named, names)):
            return each
    _refuse_recording(place, names)
    raise StoreError(
        f"{place} is a directory without meta/info.json, without HDF5 files and without SEQUENCE/spike/*.dat",
        hint="give the root of a LeRobot or spike data set, or a directory of episode_0.hdf5, episode_1.hdf5, …",
    )


def _format_of_file(place: Path) -> Format:
    """By its content, else by its name; the reader of HDF5 says what is wrong with an unknown file."""
    try:
        store_format = formats.by_content(place, "store")
    except OSError:
        return HDF5  # opening it says why it cannot be opened
    promised = formats.by_name(place.name, "store")
    if store_format is None and promised is not None and not promised.magics:
        store_format = promised
    if store_format is not None:
        return store_format
    wanted = "recording" if formats.by_name(place.name, "recording") is not None else HDF5.kind
    if (foreign := foreign_content(place, wanted)) is not None:
        raise StoreError(f"{place} is {foreign.what}, not a data set or an HDF5 file", hint=foreign.hint)
    _refuse_recording(place, [place.name])
    return promised or HDF5


def _names(columns: Sequence[str] | None, place: Path) -> Sequence[str] | None:
    """Names of columns, at least one; None stands for all."""
    if columns is None or isinstance(columns, str):
        return columns  # a text is refused by the store, with what to write instead
    names = list(columns)
    wrong = [each for each in names if not isinstance(each, str)]
    if wrong:
        raise StoreError(f"columns: {wrong[0]!r} is not the name of a column", hint="e.g. columns=['action']")
    if not names:
        raise StoreError(f"{place}: columns=[] opens nothing", hint="leave it out to open all of them")
    return names


def _check_words(episodes: Any, options: Mapping[str, Any]) -> None:
    known = [option for each in formats.all_formats("store") for option in each.options] if options else []
    if unknown := [name for name in options if name not in known]:
        words = ", ".join(("episodes", "columns", *known))
        raise UsageError(f"penstock.open has no option {unknown[0]!r}", hint=f"there are {words}")
    if episodes is None or episodes == "whole":
        return
    if isinstance(episodes, Iterable) and not isinstance(episodes, (str, bytes)):
        return
    wanted = f"episodes=[{episodes!r}]" if isinstance(episodes, int) else 'episodes=[0, 3], range(10) or "whole"'
    raise UsageError(f"episodes={episodes!r} is not a list of numbers", hint=wanted)


def _check_whole(episodes: str, place: Path) -> None:
    store_format = formats.identify(place, "store")
    if store_format is None or not store_format.opens_whole:
        others = [each.label for each in formats.all_formats("store") if each.opens_whole]
        what = f"{place} is no {' and no '.join(others)}: episodes={episodes!r} is for those"
        raise StoreError(what, hint="episodes=[0, 3]")


def whole_numbers(episodes: Iterable[object] | None, path: Path) -> list[int] | None:
    """Numbers of episodes as plain ones, at least one; None stands for all."""
    if episodes is None:
        return None
    numbers: list[int] = []
    for number in episodes:
        if isinstance(number, (bool, np.bool_)) or not isinstance(number, (int, np.integer)):
            raise StoreError(f"episodes: {number!r} is not the number of an episode", hint="e.g. episodes=[0, 3]")
        numbers.append(int(number))
    if not numbers:
        raise StoreError(f"{path}: episodes=[] opens nothing", hint="leave it out to open all of them")
    return numbers


def _refuse_absent(place: Path) -> None:
    if not place.exists():
        home = "~ is not expanded: use os.path.expanduser(path); " if place.parts[:1] == ("~",) else ""
        hint = f"{home}penstock.open takes a LeRobot data set, an HDF5 file or a directory of HDF5 episodes"
        raise StoreError(f"{place} does not exist", hint=hint)


def _refuse_recording(place: Path, names: Sequence[str]) -> None:
    if any(formats.by_name(name, "recording") is not None for name in names):
        raise StoreError(
            f"{place} is a recording, not a store: messages are not rows",
            hint=f"`penstock convert {place} OUT` makes a data set of it",
        )
