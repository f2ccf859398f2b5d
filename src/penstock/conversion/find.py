"""What the words of a call mean: recordings, HDF5 files and data sets, each once, in an order that does not change."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from penstock import recordings
from penstock.conversion.commit.output import OLD_SUFFIX, PARTIAL_SUFFIX
from penstock.conversion.inputs.input import Found
from penstock.errors import NotARecording, RecordingError, StoreError, UsageError
from penstock.formats.content import HDF5_MAGIC, foreign_content
from penstock.lerobot.layout import INFO_PATH
from penstock.recordings.split import natural_key
from penstock.stores.opening import HDF5_SUFFIXES

_NOTHING = "give .bag, .db3 or .mcap files, HDF5 files, LeRobot data sets, or directories with them"
_PASSING = (PARTIAL_SUFFIX, OLD_SUFFIX)
_ELSEWHERE = "choose another output"


def find_inputs(sources: Sequence[str | Path], out: Path | None = None) -> list[Found]:
    """The inputs among files, directories (searched recursively) and glob patterns; the output is none of them."""
    # Nothing but recordings is the usual case, and their own search says best what is wrong.
    found: list[Found] = []
    plain: list[str | Path] = []
    for given in sources:
        others = list(_others(Path(given)))
        found += others
        if not others or _has_recordings(Path(given)):
            plain.append(given)
    found += [Found("recording", path) for path in recordings.find(plain)] if plain else []
    if out is not None:
        within = os.path.realpath(out)
        _refuse_inside(found, out, within)
        others = [each for each in found if not _is_within(os.path.realpath(each.path), within)]
        if found and not others:
            raise UsageError(f"{out} is the input itself: a conversion writes a new data set", hint=_ELSEWHERE)
        found = others
    once = {os.path.realpath(each.path): each for each in reversed(found)}
    if not once:
        raise RecordingError("no recording was found", hint=_NOTHING)
    return sorted(once.values(), key=lambda each: natural_key(str(each.path)))


def is_data_set(path: Path) -> bool:
    return (path / INFO_PATH).is_file()


def is_hdf5(path: Path) -> bool:
    """By the signature with which HDF5 files begin; by the name where the file begins as no recording does."""
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            if file.read(len(HDF5_MAGIC)) == HDF5_MAGIC:
                return True
    except OSError as error:
        raise NotARecording(f"{path}: cannot be read: {error.strerror or error}") from error
    return path.suffix.lower() in HDF5_SUFFIXES and not recordings.is_recording_file(path)


def what_is(path: Path) -> str:
    """What a path is for doctor, inspect and convert: "recording", "hdf5" or "lerobot"; an error where it is none."""
    found = find_inputs([path])
    kinds = {each.kind for each in found}
    if path.is_file() and kinds == {"hdf5"} and (foreign := foreign_content(path, "hdf5")) is not None:
        raise StoreError(f"{path} is {foreign.what}, not an HDF5 file", hint=foreign.hint)
    return found[0].kind


def _others(given: Path) -> Iterable[Found]:
    """Data sets and HDF5 files that a word names."""
    paths = [given]
    if not given.exists() and glob.has_magic(str(given)):
        paths = [Path(match) for match in sorted(glob.glob(str(given), recursive=True), key=natural_key)]
    for path in paths:
        if path.is_dir():
            yield from _within(path)
        elif is_hdf5(path):
            yield Found("hdf5", path)


def _within(directory: Path) -> Iterable[Found]:
    for here, subdirectories, names in os.walk(directory):
        if is_data_set(Path(here)):
            subdirectories.clear()
            yield Found("lerobot", Path(here))
            continue
        # A data set that is being built, or about to be removed, is nobody's input.
        subdirectories[:] = sorted((n for n in subdirectories if not n.endswith(_PASSING)), key=natural_key)
        for name in sorted(names, key=natural_key):
            if name.lower().endswith(HDF5_SUFFIXES):
                yield Found("hdf5", Path(here) / name)


def _has_recordings(given: Path) -> bool:
    """Whether a word that names other inputs names recordings as well."""
    if is_data_set(given) or is_hdf5(given):
        return False
    try:
        return bool(recordings.find([given]))
    except RecordingError:
        return False


def _refuse_inside(found: Iterable[Found], out: Path, real: str) -> None:
    """An input is only read: a directory that grows meanwhile would be another input when the job is resumed."""
    for each in found:
        if _is_within(os.path.dirname(real), os.path.realpath(each.path)):
            raise UsageError(f"{out} lies in the input {each.path}, which is only read", hint=_ELSEWHERE)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + os.sep)
