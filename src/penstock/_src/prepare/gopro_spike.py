"""`prepare_gopro_spike`: one folder OUT/{train,test}/SEQ/{blur,sharp,spike} by links or copies.

The parts of each sequence are found in any of the public layouts:

ROOT/{train,test}/SEQ/{blur or blur_gamma, sharp, spike}        GoPro and Spk-GoPro; the parts may lie in two roots
ROOT/{train,test}/{blur_data, sharp_data, spike_data}/SEQ       S-SDM

Links are relative to where they lie. What is there already and right is kept: a second run changes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock._src.formats.findings import CheckReport, Findings
from penstock._src.prepare.disk_space import check_space
from penstock._src.stores.spike.folders import IMAGE_SUFFIXES, SPIKE_SUFFIX, Folders, list_files
from penstock._src.stores.spike.sequence import SkippedRows, pair_files
from penstock._src.system.files import replacing
from penstock.errors import OutputExists, OutputFailed, StoreError, UsageError

SPLITS = ("train", "test")
PARTS = ("blur", "sharp", "spike")
BLUR_NAMES = ("blur", "blur_gamma")

_DATA_SUFFIX = "_data"
_DEEPEST = 4  # directories between a source and its splits


@dataclass(frozen=True)
class SequenceFolders:
    """The three folders of one sequence, and the names of the files in each."""

    split: str
    name: str
    folders: dict[str, Path]
    files: dict[str, tuple[str, ...]]


def find_sequences(
    sources: Sequence[Path],
    findings: Findings,
    *,
    blur_names: Sequence[str] | None = None,
    exclude: Path | None = None,
) -> list[SequenceFolders]:
    """The complete sequences below `sources`, sorted; what others lack goes into `findings` as a loss.

    `blur_names`: folders of blurred images, the preferred one first. Without them it is `blur`, but `blur_gamma` where
    the spikes lie apart from the images: Spk-GoPro is made of those. `exclude`: nothing is looked for in there.
    """
    names = (*PARTS, *(blur_names or BLUR_NAMES))
    folders: dict[tuple[str, str], dict[str, Path]] = {}
    for source in sources:
        if not source.is_dir():
            raise UsageError(f"{source} is not a directory", hint="give the directory that holds train/ and test/")
        for split, directory in _split_directories(source, None if exclude is None else os.path.realpath(exclude)):
            for name, part, folder in _part_folders(directory, names):
                known = folders.setdefault((split, name), {}).setdefault(part, folder)
                if os.path.realpath(known) != os.path.realpath(folder):
                    raise UsageError(
                        f"{split}/{name} has two folders {part!r}: {known} and {folder}",
                        hint="give only the directories of one data set",
                    )
    if not folders:
        places = ", ".join(str(source) for source in sources)
        raise StoreError(
            f"{places}: no sequences were found",
            hint="expected {train,test}/SEQ/{blur,sharp,spike} or {train,test}/{blur_data,sharp_data,spike_data}/SEQ",
        )
    complete = [_complete(split, name, folders[split, name], blur_names, findings) for split, name in sorted(folders)]
    return [each for each in complete if each is not None]


def _split_directories(root: Path, exclude: str | None, depth: int = 0) -> Iterator[tuple[str, Path]]:
    """(split, directory) of every `train` and `test` below `root`, that one included; none below another."""
    if os.path.realpath(root) == exclude:
        return
    if root.name in SPLITS:
        yield root.name, root
        return
    if depth <= _DEEPEST:
        for child in _directories(root):
            yield from _split_directories(child, exclude, depth + 1)


def _part_folders(split: Path, names: Sequence[str]) -> Iterator[tuple[str, str, Path]]:
    """(sequence, part, folder) for every part that lies in a split, in either layout."""
    for child in _directories(split):
        part = child.name.removesuffix(_DATA_SUFFIX)
        if child.name.endswith(_DATA_SUFFIX) and part in PARTS:
            for folder in _directories(child):
                yield folder.name, part, folder
            continue
        for folder in _directories(child):
            if folder.name in names:
                yield child.name, folder.name, folder


def _directories(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        names = [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return [path / name for name in sorted(names)]


def _complete(
    split: str, name: str, parts: dict[str, Path], blur_names: Sequence[str] | None, findings: Findings
) -> SequenceFolders | None:
    """The sequence, unless a part of it is missing or empty."""
    label = f"{split}/{name}"
    if blur_names is None:
        homes = {part: parts[part].parent for part in ("sharp", "spike") if part in parts}
        blur_names = BLUR_NAMES[::-1] if len(set(homes.values())) == 2 else BLUR_NAMES
    blur = next((parts[each] for each in blur_names if each in parts), None)
    folders = {"blur": blur, "sharp": parts.get("sharp"), "spike": parts.get("spike")}
    there = {part: folder for part, folder in folders.items() if folder is not None}
    if missing := [part for part in PARTS if part not in there]:
        words = [" or ".join(blur_names) if part == "blur" else part for part in missing]
        beside = next(iter(parts.values()))
        findings.add("loss", f"no {missing[0]}", label, f"no folder {', '.join(words)} (there is {beside}): left out")
        return None
    listings = {
        part: list_files(folder, (SPIKE_SUFFIX,) if part == "spike" else IMAGE_SUFFIXES)
        for part, folder in there.items()
    }
    if empty := [part for part in PARTS if not listings[part]]:
        kind = SPIKE_SUFFIX if empty[0] == "spike" else "/".join(IMAGE_SUFFIXES)
        findings.add("loss", "empty", label, f"{there[empty[0]]} has no {kind} file: left out")
        return None
    skipped = SkippedRows("skip")
    pair_files(Folders(label, there["blur"], there["sharp"], there["spike"]), listings, skipped)
    for reason, rows in skipped.counts.items():
        findings.add("loss", reason, label, f"{rows:,} without a partner: {skipped.first[reason]}")
    files = {part: tuple(file for file, _ in listing.values()) for part, listing in listings.items()}
    return SequenceFolders(split, name, there, files)


Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _FileCopy:
    """One file to copy."""

    source: Path
    target: Path
    size_bytes: int


def prepare_gopro_spike(
    sources: Sequence[Path],
    out: Path,
    *,
    use_symlinks: bool,
    blur_names: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Make the folder; the report counts what is in it and what the sources lack.

    `blur_names`: see `find_sequences`. `progress` is called with the bytes copied so far and in all.
    """
    findings = Findings()
    sequences = find_sequences(sources, findings, blur_names=blur_names, exclude=out)
    if not sequences:
        problems = findings.report().problems
        raise StoreError(
            f"no sequence has all of {', '.join(PARTS)}: {problems[0].where}: {problems[0].message}",
            hint="give all directories that the parts lie in: penstock prepare gopro-spike IMAGES SPIKES",
        )
    counted = findings.counted
    for each in sequences:
        counted[f"{each.split}_sequences"] += 1
        counted[f"{each.split}_blurred_images"] += len(each.files["blur"])
    try:
        if use_symlinks:
            _link_all(sequences, out, counted)
        else:
            _copy_all(sequences, out, counted, progress)
    except OSError as error:
        raise OutputFailed(error.filename or out, "cannot be made", error) from error
    return findings.report()


def _link_all(sequences: Sequence[SequenceFolders], out: Path, counted: Counter[str]) -> None:
    for each in sequences:
        directory = out / each.split / each.name
        directory.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            counted["links_made" if _link(directory / part, each.folders[part]) else "links_kept"] += 1


def _link(link: Path, folder: Path) -> bool:
    """Whether the link was made: one that leads there already is kept, one that leads nowhere is replaced."""
    if link.is_symlink():
        if os.path.realpath(link) == os.path.realpath(folder):
            return False
        if link.exists():
            raise OutputExists(f"{link} leads to {os.path.realpath(link)}, not to {folder}", hint=f"rm {link}")
    elif link.exists():
        raise OutputExists(
            f"{link} is a directory, and is not replaced by a link",
            hint=f"choose another --out, or remove it yourself: rm -r {link}",
        )
    with replacing(link) as fresh:
        fresh.symlink_to(os.path.relpath(os.path.realpath(folder), os.path.realpath(link.parent)))
    return True


def _copy_all(
    sequences: Sequence[SequenceFolders], out: Path, counted: Counter[str], progress: Progress | None
) -> None:
    copies = [each for sequence in sequences for each in _copies(sequence, out, counted)]
    total_bytes = sum(each.size_bytes for each in copies)
    check_space(out, total_bytes, "--use_symlinks links to the images and spikes instead, which takes no room")
    done_bytes = 0
    for each in copies:
        each.target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(each.target) as fresh:
            shutil.copy2(each.source, fresh)  # its time as well: by size and time a second run finds it whole
        done_bytes += each.size_bytes
        counted["files_copied"] += 1
        if progress is not None:
            progress(done_bytes, total_bytes)
    counted["bytes"] += done_bytes


def _copies(sequence: SequenceFolders, out: Path, counted: Counter[str]) -> Iterator[_FileCopy]:
    """The files of a sequence that are not there yet."""
    for part in PARTS:
        folder = out / sequence.split / sequence.name / part
        if folder.is_symlink():
            raise OutputExists(
                f"{folder} is a link to {os.path.realpath(folder)}: files would be copied into that",
                hint=f"--use_symlinks keeps it; rm {folder} makes room for copies",
            )
        for name in sequence.files[part]:
            source, target = sequence.folders[part] / name, folder / name
            wanted = source.stat()
            there = target.stat() if target.exists() else None
            if there and (there.st_size, there.st_mtime_ns) == (wanted.st_size, wanted.st_mtime_ns):
                counted["files_kept"] += 1
            else:
                yield _FileCopy(source, target, wanted.st_size)
