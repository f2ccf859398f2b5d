"""What the words of a call mean: recordings, HDF5 files and data sets, each once, in an order that does not change."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from penstock._src import formats, recordings
from penstock._src.conversion.inputs.input import RECORDING, InputRef
from penstock._src.formats.content import foreign_content
from penstock._src.formats.format import Format
from penstock._src.formats.registry import HDF5
from penstock._src.lerobot.layout import OLD_SUFFIX, PARTIAL_SUFFIX, SHARDS_SUFFIX
from penstock._src.recordings.split import natural_key
from penstock._src.system.files import RemotePath, as_path, call_all, matches, refresh, walk
from penstock.errors import NotARecording, RecordingError, StoreError, UsageError, os_errors

_NOTHING = "give .bag, .db3 or .mcap files, HDF5 files, LeRobot data sets, or directories with them"
_PASSING = (PARTIAL_SUFFIX, OLD_SUFFIX, SHARDS_SUFFIX)
_ELSEWHERE = "choose another output"


def find_inputs(sources: Sequence[str | Path], out: Path | None = None) -> list[InputRef]:
    """The inputs among files, directories (searched recursively) and glob patterns; the output is none of them."""
    # Nothing but recordings is the usual case, and their own search says best what is wrong.
    refs: list[InputRef] = []
    plain: list[str | Path] = []
    for source in sources:
        refresh(source)
        others = list(_stores(as_path(source)))
        refs += others
        if not others or _has_recordings(as_path(source)):
            plain.append(source)
    refs += [InputRef(RECORDING, path) for path in recordings.find(plain)] if plain else []
    if out is not None:
        within = os.path.realpath(out)
        _refuse_inside(refs, out, within)
        others = [each for each in refs if not _is_within(os.path.realpath(each.path), within)]
        if refs and not others:
            raise UsageError(f"{out} is the input itself: a conversion writes a new data set", hint=_ELSEWHERE)
        refs = others
    once = {os.path.realpath(each.path): each for each in reversed(refs)}
    if not once:
        raise RecordingError("no recording was found", hint=_NOTHING)
    return sorted(once.values(), key=lambda each: natural_key(str(each.path)))


def _store_at(path: Path) -> Format | None:
    """The format of a store at a path; None where there is none, or a recording."""
    if not path.exists():
        return None
    with os_errors(NotARecording, f"{path}: cannot be read"):
        store_format = formats.identify(path)
    return store_format if store_format is not None and store_format.family == "store" else None


def identify_input(path: Path) -> InputRef:
    """What a path is for doctor, inspect and convert, the first of it; an error where it is nothing of use."""
    refs = find_inputs([path])
    kinds = {each.kind for each in refs}
    if path.is_file() and kinds == {HDF5.kind} and (foreign := foreign_content(path, HDF5.kind)) is not None:
        raise StoreError(f"{path} is {foreign.what}, not an HDF5 file", hint=foreign.hint)
    return refs[0]


def _stores(root: Path) -> Iterable[InputRef]:
    """Data sets, HDF5 files and other stores that a word names."""
    paths = [root]
    if not root.exists() and glob.has_magic(str(root)):
        paths = sorted(matches(root), key=lambda path: natural_key(str(path)))
    calls = [partial(_stores_of, path, is_named=path == root) for path in paths]
    for found in call_all(calls, is_remote=isinstance(root, RemotePath)):
        yield from found


def _stores_of(path: Path, *, is_named: bool) -> list[InputRef]:
    if path.is_dir():
        return list(_within(path))
    store_format = _store_at(path)
    if store_format is None or not (store_format.is_searched or is_named):
        return []
    return [InputRef(store_format.kind, path)]


def _within(directory: Path) -> Iterable[InputRef]:
    for here, subdirectories, names in walk(directory):
        store_format = formats.by_directory(here, "store")
        if store_format is not None and (store_format.is_searched or here == directory):
            subdirectories.clear()
            yield InputRef(store_format.kind, here)
            continue
        # A data set that is being built, or about to be removed, is not an input.
        subdirectories[:] = sorted((n for n in subdirectories if not n.endswith(_PASSING)), key=natural_key)
        for name in sorted(names, key=natural_key):
            if (store_format := formats.by_name(name, "store")) is not None and store_format.is_searched:
                yield InputRef(store_format.kind, here / name)


def _has_recordings(root: Path) -> bool:
    """Whether a word that names other inputs names recordings as well."""
    if _store_at(root) is not None:
        return False
    try:
        return bool(recordings.find([root]))
    except RecordingError:
        return False


def _refuse_inside(refs: Iterable[InputRef], out: Path, real: str) -> None:
    """An input is only read: a directory that grows meanwhile would be another input when the job is resumed."""
    for each in refs:
        if _is_within(os.path.dirname(real), os.path.realpath(each.path)):
            raise UsageError(f"{out} lies in the input {each.path}, which is only read", hint=_ELSEWHERE)


def _is_within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory + os.sep)
