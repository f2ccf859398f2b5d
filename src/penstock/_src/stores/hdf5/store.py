"""HDF5 files as a store: replay steps, D4RL, robomimic demonstrations, and ALOHA episodes in one file each.

store = penstock.open("replay.hdf5")                     # or a directory of episode_0.hdf5, episode_1.hdf5, …
store.roles["action"]                                    # "actions"
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.registry import HDF5
from penstock._src.recordings.split import natural_key
from penstock._src.stores.caches import content_sample
from penstock._src.stores.hdf5.column import ColumnRows, Hdf5Images, OpenFiles, RowMap, as_native
from penstock._src.stores.hdf5.columns import Hdf5Options
from penstock._src.stores.hdf5.episodes import EpisodeSpans, check_numbers, find_episodes
from penstock._src.stores.hdf5.layout import UNKNOWN
from penstock._src.stores.hdf5.survey import Hdf5Survey, place_of, survey_files, unpacked
from penstock._src.stores.opening import whole_numbers
from penstock._src.stores.roles import ACTIONS, ChannelOrder, find_roles
from penstock._src.stores.store import Column, ImageSource, Store, row_numbers
from penstock._src.system.files import as_path
from penstock.errors import StoreError

_KINDS = {"aloha": "ALOHA episodes", "robomimic": "robomimic HDF5", "replay": "replay HDF5"}
_MOST_NOTES = 20
_MOST_NAMED = 8  # episodes, in a note
_LIBRARY_BYTES = 14 << 20  # h5py with its metadata cache: measured, rounded up


def open_hdf5(
    path: str | os.PathLike[str],
    *,
    episodes: Sequence[int] | None = None,
    columns: Sequence[str] | None = None,
    channels: ChannelOrder = "auto",
    mask: str | None = None,
    allow_external: bool = False,
    pixels: str = "rgb",
    check: bool = True,
    defers: bool = False,
) -> Hdf5Store:
    """Open a file, or a directory of files in natural order; metadata only.

    `episodes` counts from 0 in the order of the files, or of the demonstrations (within `mask`, where one is given).
    `pixels="bgr"` says that raw images are: conversion asks for it, a loader does not.
    `defers=True`, as conversion asks for: columns that do not fit are `problems` of the store, and no error.
    `check=False` trusts the files: no child looks first, and one that is damaged can crash this process.
    """
    if channels not in ("auto", "first", "last"):
        raise StoreError(f"channels={channels!r}", hint='channels="first" or "last"')
    if isinstance(columns, str):
        raise StoreError(f"columns={columns!r} is a text", hint=f"columns=[{columns!r}]")
    place = as_path(path)
    files = _files(place.absolute())  # the working directory may be another one when they are read
    names = None if columns is None else tuple(dict.fromkeys(name.strip("/") for name in columns))
    numbers = whole_numbers(episodes, place)
    if numbers is not None and any(number < 0 for number in numbers):
        raise StoreError(f"{place}: episode {min(numbers)} does not exist; they are counted from 0")
    only = tuple(numbers) if numbers is not None and len(files) == 1 else None
    options = Hdf5Options(channels, mask, names, allow_external, only, pixels, defers)
    chosen = files
    if numbers is not None and len(files) > 1:
        # Where a file is an episode, the others are not even looked at.
        chosen = [files[number] for number in numbers if number < len(files)] or files
    survey = survey_files(chosen, options, check=check)
    by_file = survey.kind == "aloha" and numbers is not None and len(files) > 1
    if by_file and numbers is not None:
        check_numbers(numbers, len(files), place)
    elif chosen != files:  # fewer of them, or in another order, which is that of episodes and not of files
        survey = survey_files(files, options, check=check)
    words = {
        "episodes": numbers, "columns": None if columns is None else list(columns), "channels": channels, "mask": mask,
        "allow_external": allow_external,
    }  # fmt: skip
    return Hdf5Store(place, survey, options, None if by_file else numbers, words)


class Hdf5Store(Store):
    """One HDF5 file or a directory of them; see `open_hdf5`."""

    plural = "HDF5 files"
    reading_bytes = _LIBRARY_BYTES

    def __init__(
        self, path: Path, survey: Hdf5Survey, options: Hdf5Options, numbers: Sequence[int] | None, words: dict[str, Any]
    ) -> None:
        self.path, self._absolute = path, path.absolute()
        self._words, self._options, self._numbers_asked = words, options, numbers
        self._survey = survey
        self._files = OpenFiles(survey.paths, survey.stamps, options.allow_external)
        self.problems = survey.problems
        found = find_episodes(survey, self._files)
        episodes = found.chosen(numbers, path)
        self.empty = tuple(
            place_of(survey.paths, survey.paths[survey.part_file[part]], self._group(part))
            for part in found.parts[episodes.empty].tolist()
        )
        self._map = RowMap(episodes.parts, episodes.firsts, episodes.lengths)
        is_known = not survey.why.startswith(UNKNOWN)
        self.layout = survey.kind
        self.kind = _KINDS[survey.kind] if is_known else "HDF5 episodes"
        if survey.kind == "robomimic" and not any(each.name in ACTIONS for each in survey.columns):
            self.kind = "old robosuite HDF5"
        self.fps, self.fps_from = survey.facts.fps, survey.facts.fps_from
        self.robot_type = survey.facts.robot
        self.episodes_from = survey.why
        self.masks = survey.masks
        self.lost = survey.lost
        if survey.kind == "aloha" and is_known:
            self.fps_hint = "fps=50 (ALOHA records at 50 Hz)"
        self._episodes = episodes
        self.episode_starts = episodes.starts()
        self.ends_terminal = episodes.terminal
        asked_for = words["episodes"] if numbers is None else None  # where a file is an episode, others are not opened
        kept = episodes.numbers if asked_for is None else np.asarray(asked_for, np.int64)[episodes.numbers]
        self.episode_numbers = None if np.array_equal(kept, np.arange(len(kept))) else kept
        self._numbers = {
            facts.name: number
            for number, facts in enumerate(survey.columns)
            if options.columns is None or facts.name in options.columns
        }
        share = _shares(survey, episodes)
        self.columns: Mapping[str, Column] = {
            name: _column(survey, number, share) for name, number in self._numbers.items()
        }
        roles = find_roles(name for name, column in self.columns.items() if column.kind == "numbers")
        self.roles: Mapping[str, str] = {
            role: names[0] for role, names in roles.items() if len(names) == 1 and self._fits(role, names[0])
        }
        self.joined_roles = {role: names for role, names in roles.items() if len(names) > 1}
        self.notes = _notes(survey, episodes, self.empty)
        self._rows = {name: ColumnRows(survey, self._files, number) for name, number in self._numbers.items()}
        self._images = {
            name: Hdf5Images(self._rows[name], self._map, f"{path}: {name}", options.pixels)
            for name, column in self.columns.items()
            if column.is_image
        }

    def _fits(self, role: str, name: str) -> bool:
        return role in ("action", "state") or self.columns[name].row_bytes > 0

    @property
    def index_bytes(self) -> int:
        """What the store remembers of places and episodes, by now."""
        own = [self.episode_starts, self._map.starts, self._map.parts, self._map.shifts, self._survey.placements]
        if self.ends_terminal is not None:
            own.append(self.ends_terminal)
        return sum(int(each.nbytes) for each in own) + sum(rows.index_bytes for rows in self._rows.values())

    def images(self, name: str) -> ImageSource:
        if not self._readable(name).is_image:
            raise StoreError(f"{self.path}: {name!r} is not an image column", hint="store.numbers gives its rows")
        return self._images[name]

    def numbers(self, name: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        column = self._numbers_of(name)
        return column.gather(self._map, row_numbers(rows, f"{self.path}: {name}", self.rows))

    def number_blocks(self, names: Sequence[str], block_bytes: int) -> Iterator[tuple[int, dict[str, NDArray[Any]]]]:
        columns = {name: self._numbers_of(name) for name in names}
        row_bytes = sum(self.columns[name].row_bytes for name in names)
        step = max(1, block_bytes // max(row_bytes, 1))
        for start in range(0, self.rows, step):
            stop = min(start + step, self.rows)
            block: dict[str, NDArray[Any]] = {}
            for name, column in columns.items():
                values = np.empty((stop - start, *column.facts.stored_shape), column.dtype)
                at = 0
                for part, low, high in self._map.pieces(start, stop):
                    column.read(part, low, high, values[at : at + high - low])
                    at += high - low
                block[name] = as_native(values, column.facts.dtype)
            yield start, block

    def _numbers_of(self, name: str) -> ColumnRows:
        if self._readable(name).kind != "numbers":
            raise StoreError(f"{self.path}: {name!r} is not a numbers column", hint="store.images gives its rows")
        return self._rows[name]

    def column(self, name: str) -> Column:
        if name in self._survey.left_out:
            raise StoreError(f"{self.path}: {name} cannot be a column: {self._survey.left_out[name]}")
        return super().column(name)

    def _readable(self, name: str) -> Column:
        if name in self.problems:
            raise StoreError(self.problems[name])
        return self.column(name)

    def episode_label(self, position: int) -> str:
        part = int(self._episodes.parts[position])
        if self.layout == "replay":
            first = int(self._episodes.firsts[position])
            rows = f"rows {first:,}–{first + int(self._episodes.lengths[position]) - 1:,}"
            return rows if len(self._survey.paths) == 1 else f"{rows} of {self._survey.paths[part].name}"
        return place_of(self._survey.paths, self._survey.paths[self._survey.part_file[part]], self._group(part))

    def row_number(self, row: int) -> int:
        return int(self._map.locate(np.array([row], np.int64))[1][0])

    def task(self, position: int) -> str | None:
        part = int(self._episodes.parts[position])
        return self._survey.part_task[part] or self._survey.facts.task

    def success(self, position: int) -> bool | None:
        return self._survey.part_success[int(self._episodes.parts[position])]

    def scratch_bytes(self, names: Sequence[str]) -> int:
        """What one image takes besides itself; and the chunk that each column of numbers keeps for the next rows."""
        images = super().scratch_bytes(names)
        numbers = [self._rows[name].scratch_bytes for name in names if not self.columns[name].is_image]
        return max([images, *(4 * each for each in numbers)]) + sum(numbers)

    def _group(self, part: int) -> str:
        return self._survey.part_group[part]

    def file_of(self, row: int, name: str = "") -> Path:
        part = self._map.locate(np.array([row], np.int64))[0].item()
        return self._survey.paths[int(self._survey.part_file[part])]

    def fingerprint(self, name: str) -> str:
        self.column(name)
        survey = self._survey
        facts = ", ".join(f"{key}={value!r}" for key, value in vars(survey.columns[self._numbers[name]]).items())
        # This text is part of the name of every view that was ever built: it never changes.
        digest = hashlib.sha256(f"hdf5 {survey.kind} Facts({facts})".encode())
        for path, (size, time_ns) in zip(survey.paths, survey.stamps.tolist(), strict=True):
            digest.update(f"\n{path.name}\0{size} {time_ns}".encode("utf-8", "surrogateescape"))
        digest.update("\n".join(survey.part_group).encode("utf-8", "surrogateescape"))
        digest.update(self._contents)
        for values in (self._map.starts, self._map.parts, self._map.shifts, self.episode_starts):
            digest.update(values.tobytes())
        return digest.hexdigest()

    @cached_property
    def _contents(self) -> bytes:
        """A digest of a few KiB of every file: size and time of change alone are kept by some ways of replacing one."""
        digest = hashlib.sha256()
        for path, size in zip(self._survey.paths, self._survey.stamps[:, 0].tolist(), strict=True):
            try:
                digest.update(content_sample(path, size))
            except OSError as error:
                raise StoreError(
                    f"{path} cannot be read any more: {error.strerror or error}",
                    hint="it was there when the store was opened; open the store again",
                ) from error
        return digest.digest()

    def close(self) -> None:
        self._files.close()

    def __reduce__(self) -> tuple[Any, ...]:
        # To survey thousands of files again takes each process seconds; what was found is some 100 bytes a file.
        return _rebuilt, (str(self._absolute), self._survey.packed(), self._options, self._numbers_asked, self._words)

    def reopening(self) -> tuple[Path, dict[str, Any]]:
        return self._absolute, dict(self._words)


def _rebuilt(
    place: str, packed: dict[str, Any], options: Hdf5Options, numbers: Any, words: dict[str, Any]
) -> Hdf5Store:
    """In another process, from the survey of the first one; each file is compared with it when it is opened."""
    return Hdf5Store(as_path(place), unpacked(packed), options, numbers, words)


def _files(place: Path) -> list[Path]:
    if not place.is_dir():
        return [place]
    files = [each for each in place.iterdir() if HDF5.is_named(each.name) and each.name[0] != "."]
    if not files:
        raise StoreError(f"{place} holds no HDF5 files", hint=f"they end in {', '.join(HDF5.suffixes)}")
    return sorted(files, key=lambda each: natural_key(each.name))


def _shares(survey: Hdf5Survey, episodes: EpisodeSpans) -> NDArray[np.float64]:
    """Which share of its rows every part gives to the store."""
    opened = np.bincount(episodes.parts, weights=episodes.lengths, minlength=len(survey.part_rows))
    return np.asarray(opened / np.maximum(survey.part_rows, 1), np.float64)


def _column(survey: Hdf5Survey, number: int, share: NDArray[np.float64]) -> Column:
    facts = survey.columns[number]
    (way, why), count = survey.ways[number].most_common(1)[0] if survey.ways[number] else (("library", "no rows"), 0)
    others = sum(survey.ways[number].values()) - count
    if others:
        why += f" (so {count:,} of {count + others:,} parts)"
    if facts.turned:
        why += "; channels first on disk, given as a transposed view"
    stored_bytes = round(float((np.maximum(survey.placements[:, number, 4], 0) * share).sum()))
    return Column(facts.name, facts.kind, facts.shape, facts.dtype, facts.encoding, way, why, stored_bytes)


def _notes(survey: Hdf5Survey, episodes: EpisodeSpans, empty: Sequence[str]) -> tuple[str, ...]:
    notes = [f"{name} is left out: {why}" for name, why in survey.left_out.items()]
    notes += [*survey.notes, *episodes.notes, *(f"reads {target} as well" for target in survey.followed)]
    if survey.why.startswith(UNKNOWN):
        notes.insert(0, survey.why)
    if survey.masks:
        notes.append(
            f"masks: {', '.join(survey.masks[:8])} (mask=NAME, of a conversion hdf5.mask=NAME, takes those of one)"
        )
    if empty:
        more = f" and {len(empty) - _MOST_NAMED:,} more" if len(empty) > _MOST_NAMED else ""
        notes.append(f"without rows, and left out: {', '.join(empty[:_MOST_NAMED])}{more}")
    if not len(episodes.parts):
        notes.append("there are no rows")
    if len(notes) > _MOST_NOTES:
        notes = [*notes[:_MOST_NOTES], f"and {len(notes) - _MOST_NOTES:,} more of the kind"]
    return tuple(notes)
