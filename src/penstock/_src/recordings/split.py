"""Which files are one recording: bag directories, numbered series of files, single files; and finding them."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock._src import formats
from penstock._src.formats.content import ZSTD_MAGIC, foreign_content
from penstock._src.formats.format import HEAD_BYTES, Format
from penstock._src.recordings import metadata as bag_metadata
from penstock._src.recordings.file_window import ERRORS, plain_name, recover_hint
from penstock._src.recordings.metadata import Metadata
from penstock._src.recordings.unpack import is_packed, unpacked_head
from penstock._src.system.files import as_path, matches, open_source, walk
from penstock._src.system.units import name_hint
from penstock.errors import NotARecording, RecordingError

_SHOWN_BYTES = 16  # of a file that is no recording
_NUMBERED = re.compile(r"(?P<stem>.+)_(?P<number>[0-9]+)")
_KNOWN = (
    "recordings are ROS 1 .bag, ROS 2 .db3 and .mcap; convert and inspect also take HDF5 files and LeRobot data sets"
)


class SplitFiles(NamedTuple):
    """The files of one recording, in their order; `missing` are (file, messages) that metadata.yaml names in vain."""

    path: Path
    kind: str
    files: tuple[Path, ...]
    metadata: Metadata
    notes: tuple[str, ...] = ()
    missing: tuple[tuple[str, int], ...] = ()


def source_of(path: Path) -> SplitFiles:
    """The recording at a path: a file, the first file of a series (then all of it), or a directory."""
    if path.is_dir():
        return _directory_source(path)
    if not path.exists():
        raise RecordingError(f"{path}: no such file or directory", hint=_near(path))
    file_format = _format_of_file(path)
    series = _series(path)
    beside = path.parent / bag_metadata.FILE_NAME
    metadata, notes = Metadata(), [f"read as one recording: {', '.join(f.name for f in series)}"][: len(series) > 1]
    if file_format.is_series and beside.is_file():
        described, found_notes = bag_metadata.read_metadata(beside)
        if path.name in described.files or plain_name(path.name) in described.files:
            # Counts speak of all files together; only the compression is of use for one of them.
            whole = set(described.files) <= {file.name for file in series}
            metadata = described if whole else Metadata((), described.compression_format, described.compression_mode)
            notes += found_notes
    return SplitFiles(path, file_format.kind, series, metadata, (*notes, *_packed_notes(series, metadata)))


def find(paths: Sequence[str | Path]) -> list[Path]:
    """The recordings among files, directories (searched recursively) and glob patterns, naturally sorted, each once."""
    recordings: list[Path] = []
    for root in paths:
        path = as_path(root)
        if path.is_dir():
            within = list(_search(path))
            if not within:
                raise NotARecording(f"{path}: no recording in this directory", hint=_KNOWN)
            recordings += within
        elif path.exists():
            recordings.append(path)
        else:
            matched = sorted(matches(root), key=lambda match: natural_key(str(match)))
            if not matched:
                what = "no file matches" if glob.has_magic(str(root)) else "no such file or directory"
                raise RecordingError(f"{path}: {what}", hint=_near(path))
            recordings += [match for match in matched if not match.is_dir() and _named(match.name)]
            for match in matched:
                if match.is_dir():
                    recordings += _search(match)
            if not recordings:
                raise NotARecording(f"{path}: {len(matched)} files match, none is a recording", hint=_KNOWN)
    return _one_per_recording(recordings)


def suffix_kind(name: str) -> str | None:
    """The kind that a file name promises."""
    name_format = _named(name)
    return None if name_format is None else name_format.kind


def _named(name: str) -> Format | None:
    return formats.by_name(name, "recording")


def _format_of_file(path: Path) -> Format:
    """By content, unpacked where it is packed as a whole; the name explains what is cut short."""
    with open_source(path, ERRORS) as source:
        head = source.read(0, HEAD_BYTES)
    promised = _named(path.name)
    packed = head.startswith(ZSTD_MAGIC)
    if packed:
        head = unpacked_head(path, HEAD_BYTES)
    if (file_format := formats.by_start(head, "recording")) is not None:
        return file_format
    if promised is not None and not promised.magics:
        return promised  # nothing but its name tells
    if packed and promised is not None and not head:
        return promised  # the stream is broken: reading it gives the error
    head = head[:_SHOWN_BYTES]
    if packed:
        what = f"compressed with zstd, and no recording inside: that begins with {head!r}"
        raise NotARecording(f"{path}: {what}", hint=_KNOWN)
    if (foreign := foreign_content(path, "recording")) is not None:
        raise NotARecording(f"{path} is {foreign.what}, not a recording", hint=foreign.hint)
    magics = (magic for each in formats.all_formats("recording") for magic in each.magics)
    if promised is not None and len(head) < _SHOWN_BYTES and any(magic.startswith(head) for magic in magics):
        return promised
    if promised is not None:
        what = f"not a recording as its name says: it begins with {head!r}"
        raise NotARecording(f"{path}: {what}", hint=f"where only its beginning is broken, {recover_hint(path)}")
    raise NotARecording(f"{path}: not a recording: it begins with {head!r}", hint=_KNOWN)


def _split_name(path: Path) -> tuple[str, int | None, str]:
    """Stem without the number, the number, and the full suffix (in lower case)."""
    name_format = _named(path.name)
    if name_format is None:
        return path.name, None, ""
    suffix = name_format.suffix_of(path.name)
    stem = path.name[: -len(suffix)]
    match = _NUMBERED.fullmatch(stem) if name_format.is_series else None
    return (stem, None, suffix) if match is None else (match["stem"], int(match["number"]), suffix)


def _series(path: Path) -> tuple[Path, ...]:
    """The files that continue this one, when it is number 0 of a series; else the file alone."""
    stem, number, suffix = _split_name(path)
    if number != 0:
        return (path,)
    siblings = [
        (other_number, sibling)
        for sibling in path.parent.iterdir()
        for other_stem, other_number, other_suffix in [_split_name(sibling)]
        if other_number is not None and (other_stem, other_suffix) == (stem, suffix) and sibling.is_file()
    ]
    return tuple(sibling for _, sibling in sorted(siblings)) or (path,)


def _directory_source(path: Path) -> SplitFiles:
    if (directory_format := formats.by_directory(path, "recording")) is not None:
        return SplitFiles(path, directory_format.kind, (path,), Metadata())
    described = path / bag_metadata.FILE_NAME
    if not described.is_file():
        within = list(_search(path))
        if len(within) == 1:
            return source_of(within[0])
        if not within:
            raise NotARecording(f"{path}: no recording in this directory", hint=_KNOWN)
        names = [str(directory_format.relative_to(path)) for directory_format in within[:5]] + ["…"] * (len(within) > 5)
        raise RecordingError(f"{path}: holds {len(within)} recordings: {', '.join(names)}", hint="name one of them")
    metadata, notes = bag_metadata.read_metadata(described)
    files, missing = _named_files(path, metadata, notes)
    others = [file for file in _ros2_files(path) if file not in files]
    stems = {_split_name(file)[0] for file in files}
    continued = [file for file in others if not files or _split_name(file)[0] in stems]
    if continued and files:
        notes.append(f"{bag_metadata.FILE_NAME} does not name {', '.join(f.name for f in continued)}; read as well")
    if left := [file.name for file in others if file not in continued]:
        notes.append(f"not named in {bag_metadata.FILE_NAME}, and left aside: {', '.join(left)}")
    files = [*files, *continued]
    if not files:
        raise NotARecording(f"{path}: none of the files that {bag_metadata.FILE_NAME} names is there", hint=_KNOWN)
    kinds = {_format_of_file(file).kind for file in files}
    if len(kinds) > 1:
        raise RecordingError(f"{path}: one bag of several storage kinds: {', '.join(file.name for file in files)}")
    notes += _packed_notes(files, metadata)
    return SplitFiles(path, kinds.pop(), tuple(files), metadata, tuple(notes), tuple(missing))


def _packed_notes(files: Sequence[Path], metadata: Metadata) -> list[str]:
    """Names files that are compressed though no metadata.yaml says so."""
    if metadata.compression_mode == "file":
        return []
    packed = [file.name for file in files if is_packed(file)]
    return [f"{', '.join(packed)}: compressed with zstd as a whole; decompressed to a temporary file"] if packed else []


def _named_files(path: Path, metadata: Metadata, notes: list[str]) -> tuple[list[Path], list[tuple[str, int]]]:
    """The files that metadata.yaml names, confined to the directory; and those that are not there."""
    files: list[Path] = []
    missing: list[tuple[str, int]] = []
    counts = dict(metadata.file_counts)
    for name in metadata.files:
        # Bags of the first ROS 2 releases name their files from the parent directory: "bag/bag_0.db3".
        candidates = [path / name, path / Path(name).name, path / f"{Path(name).name}.zstd"]
        inside = [file for file in candidates if file.parent.resolve() == path.resolve() and file.is_file()]
        unpacked = [path / plain_name(Path(name).name)] if plain_name(name) != name else []
        usable = inside or [file for file in unpacked if file.is_file()]
        if usable and usable[0] not in files:
            files.append(usable[0])
        elif not usable:
            missing.append((name, counts.get(name, 0)))
            notes.append(f"{bag_metadata.FILE_NAME} names {name}, which is not there")
    return files, missing


def _ros2_files(path: Path) -> list[Path]:
    files = (entry for entry in path.iterdir() if entry.is_file() and _is_of_series(entry.name))
    return sorted(files, key=lambda file: natural_key(file.name))


def _is_of_series(name: str) -> bool:
    name_format = _named(name)
    return name_format is not None and name_format.is_series


def _search(path: Path) -> Iterable[Path]:
    """Recordings below a directory; a ROS 2 bag directory is one."""
    for here, subdirectories, names in walk(path):
        subdirectories.sort(key=natural_key)
        if formats.by_directory(here, "recording") is not None:
            yield here
            subdirectories.clear()
        elif bag_metadata.FILE_NAME in names and any(map(_is_of_series, names)):
            yield here
            subdirectories.clear()
            others = (name for name in sorted(names, key=natural_key) if _named(name) and not _is_of_series(name))
            yield from (here / name for name in others)
        else:
            yield from _one_per_recording([here / name for name in names if _named(name)])


def _one_per_recording(paths: list[Path]) -> list[Path]:
    """Drop repetitions and the later files of a series whose first file is there too; sort naturally."""
    known = {path.resolve() for path in paths}
    continued = {later.resolve() for path in paths if not path.is_dir() for later in _series(path)[1:]}
    inside = {path for path in known if path.parent in known}
    kept: dict[Path, Path] = {}
    for path in paths:
        real = path.resolve()
        if real not in continued and real not in inside:
            kept.setdefault(real, path)
    return sorted(kept.values(), key=lambda path: natural_key(str(path)))


def natural_key(text: str) -> list[tuple[int, int, str]]:
    """run_2 before run_10."""
    parts = re.split(r"([0-9]+)", text)
    return [(1, int(part), "") if part.isdigit() and part.isascii() else (0, 0, part) for part in parts]


def _near(path: Path) -> str | None:
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"the directory {path.parent} is not there"
    return name_hint(path.name, sorted(names), "the directory has:")
