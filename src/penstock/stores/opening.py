"""`penstock.open`: which store a path is, told by what lies there."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import StoreError, UsageError
from penstock.formats.content import HDF5_MAGIC, foreign_content
from penstock.stores.store import Store

HDF5_SUFFIXES = (".hdf5", ".h5", ".hdf", ".he5")
_OPTIONS = ("channels", "mask", "allow_external", "check")  # of HDF5
_RECORDING_SUFFIXES = (".bag", ".active", ".db3", ".mcap")


def open_store(
    path: str | os.PathLike[str],
    *,
    episodes: Sequence[int] | str | None = None,
    columns: Sequence[str] | None = None,
    **options: Any,
) -> Store:
    """A store for a LeRobot data set, an HDF5 file, or a directory of ALOHA episodes.

    `episodes` opens a part, by the numbers that the data set gives its episodes; `episodes="whole"` opens those of a
    LeRobot data set whose files are all there. `columns` leaves the other columns out.
    Options of HDF5: `channels="first"|"last"`, `mask="train"` (robomimic), `allow_external=True`.

    >>> penstock.open("datasets/run", episodes=[0, 3])                                # doctest: +SKIP
    """
    if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
        raise UsageError(f"{reprlib.repr(path)} is no path", hint='penstock.open("datasets/run")')
    place = Path(path)
    try:
        kind, suffixes = _look_at(place)
    except OSError as error:
        raise StoreError(f"{place} cannot be read: {error.strerror}") from error
    if kind == "absent":
        home = "~ is not looked up: os.path.expanduser(path) does it; " if place.parts[:1] == ("~",) else ""
        hint = f"{home}penstock.open takes a LeRobot data set, an HDF5 file or a directory of HDF5 episodes"
        raise StoreError(f"{place} does not exist", hint=hint)
    _check_words(episodes, options)
    columns = _names(columns, place)
    if kind == "lerobot":
        from penstock.stores.lerobot.store import LeRobotStore

        if options:
            raise StoreError(f"{place} is a LeRobot data set: {next(iter(options))}= is an option of HDF5")
        chosen = episodes if isinstance(episodes, str) else whole_numbers(episodes, place)
        return LeRobotStore(place, episodes=chosen, columns=columns)
    if isinstance(episodes, str):
        raise StoreError(f"{place} is no LeRobot data set: episodes={episodes!r} is for those", hint="episodes=[0, 3]")
    numbers = whole_numbers(episodes, place)
    if kind == "file" and not _begins_as_hdf5(place):  # whatever its name is
        _refuse_foreign(place)
        _refuse_recording(place, suffixes)
    if kind == "file" or any(suffix.lower() in HDF5_SUFFIXES for suffix in suffixes):
        from penstock.stores.hdf5.store import open_hdf5

        return open_hdf5(place, episodes=numbers, columns=columns, **options)
    _refuse_recording(place, suffixes)
    raise StoreError(
        f"{place} is a directory without meta/info.json and without HDF5 files",
        hint="give the root of a LeRobot data set, or a directory of episode_0.hdf5, episode_1.hdf5, …",
    )


def _look_at(place: Path) -> tuple[str, list[str]]:
    """Whether it is absent, a data set of LeRobot, a file or another directory; and the suffixes of what is there."""
    from penstock.lerobot.read.reader import is_data_set

    if not place.exists():
        return "absent", []
    if not place.is_dir():
        return "file", [place.suffix]
    return ("lerobot", []) if is_data_set(place) else ("directory", [each.suffix for each in place.iterdir()])


def _names(columns: Sequence[str] | None, place: Path) -> Sequence[str] | None:
    """Names of columns, at least one; None stands for all."""
    if columns is None or isinstance(columns, str):
        return columns  # a text is refused by the store, with what to write instead
    found = list(columns)
    wrong = [each for each in found if not isinstance(each, str)]
    if wrong:
        raise StoreError(f"columns: {wrong[0]!r} is not the name of a column", hint="e.g. columns=['action']")
    if not found:
        raise StoreError(f"{place}: columns=[] opens nothing", hint="leave it out to open all of them")
    return found


def _check_words(episodes: Any, options: Mapping[str, Any]) -> None:
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        known = ", ".join(("episodes", "columns", *_OPTIONS))
        raise UsageError(f"penstock.open has no option {unknown[0]!r}", hint=f"there are {known}")
    if episodes is None or episodes == "whole":
        return
    if isinstance(episodes, Iterable) and not isinstance(episodes, (str, bytes)):
        return
    wanted = f"episodes=[{episodes!r}]" if isinstance(episodes, int) else 'episodes=[0, 3], range(10) or "whole"'
    raise UsageError(f"episodes={episodes!r} is no list of numbers", hint=wanted)


def whole_numbers(episodes: Iterable[object] | None, path: Path) -> list[int] | None:
    """Numbers of episodes as plain ones, at least one; None stands for all."""
    if episodes is None:
        return None
    found: list[int] = []
    for number in episodes:
        if isinstance(number, (bool, np.bool_)) or not isinstance(number, (int, np.integer)):
            raise StoreError(f"episodes: {number!r} is not the number of an episode", hint="e.g. episodes=[0, 3]")
        found.append(int(number))
    if not found:
        raise StoreError(f"{path}: episodes=[] opens nothing", hint="leave it out to open all of them")
    return found


def _begins_as_hdf5(place: Path) -> bool:
    try:
        with place.open("rb") as file:
            return file.read(len(HDF5_MAGIC)) == HDF5_MAGIC
    except OSError:
        return False  # whoever opens it says why it cannot be opened


def _refuse_foreign(place: Path) -> None:
    """Say what a file is that is none of those whose name it has."""
    wanted = "recording" if place.suffix.lower() in _RECORDING_SUFFIXES else "hdf5"
    if (foreign := foreign_content(place, wanted)) is not None:
        raise StoreError(f"{place} is {foreign.what}, not a data set or an HDF5 file", hint=foreign.hint)


def _refuse_recording(place: Path, suffixes: Sequence[str]) -> None:
    if any(suffix.lower() in _RECORDING_SUFFIXES for suffix in suffixes):
        raise StoreError(
            f"{place} is a recording: messages are not rows that a store could give",
            hint=f"`penstock convert {place} OUT` makes a data set of it",
        )
