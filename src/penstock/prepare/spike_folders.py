"""Where the blurred images, sharp images and spike streams of each sequence lie, in any of the public layouts.

ROOT/{train,test}/SEQ/{blur or blur_gamma, sharp, spike}        GoPro and Spk-GoPro; the parts may lie in two roots
ROOT/{train,test}/{blur_data, sharp_data, spike_data}/SEQ       S-SDM
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import StoreError, UsageError
from penstock.formats.findings import Findings
from penstock.stores.spike.folders import IMAGE_SUFFIXES, SPIKE_SUFFIX, Folders, list_files
from penstock.stores.spike.sequence import Skipped, pair_files

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

    @property
    def label(self) -> str:
        """As people read it: "train/GOPR0372_07_00"."""
        return f"{self.split}/{self.name}"


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
    found: dict[tuple[str, str], dict[str, Path]] = {}
    for source in sources:
        if not source.is_dir():
            raise UsageError(f"{source} is no directory", hint="give the directory that holds train/ and test/")
        for split, directory in _split_directories(source, None if exclude is None else os.path.realpath(exclude)):
            for name, part, folder in _part_folders(directory, names):
                known = found.setdefault((split, name), {}).setdefault(part, folder)
                if os.path.realpath(known) != os.path.realpath(folder):
                    raise UsageError(
                        f"{split}/{name} has two folders {part!r}: {known} and {folder}",
                        hint="give only the directories of one data set",
                    )
    if not found:
        places = ", ".join(str(source) for source in sources)
        raise StoreError(
            f"{places}: no sequences were found",
            hint="expected {train,test}/SEQ/{blur,sharp,spike} or {train,test}/{blur_data,sharp_data,spike_data}/SEQ",
        )
    complete = [_complete(split, name, found[split, name], blur_names, findings) for split, name in sorted(found)]
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
    split: str, name: str, found: dict[str, Path], blur_names: Sequence[str] | None, findings: Findings
) -> SequenceFolders | None:
    """The sequence, unless a part of it is missing or empty."""
    label = f"{split}/{name}"
    if blur_names is None:
        homes = {part: found[part].parent for part in ("sharp", "spike") if part in found}
        blur_names = BLUR_NAMES[::-1] if len(set(homes.values())) == 2 else BLUR_NAMES
    blur = next((found[each] for each in blur_names if each in found), None)
    folders = {"blur": blur, "sharp": found.get("sharp"), "spike": found.get("spike")}
    there = {part: folder for part, folder in folders.items() if folder is not None}
    if missing := [part for part in PARTS if part not in there]:
        words = [" or ".join(blur_names) if part == "blur" else part for part in missing]
        beside = next(iter(found.values()))
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
    skipped = Skipped("skip")
    pair_files(Folders(label, there["blur"], there["sharp"], there["spike"]), listings, skipped)
    for reason, rows in skipped.counts.items():
        findings.add("loss", reason, label, f"{rows:,} without a partner: {skipped.first[reason]}")
    files = {part: tuple(file for file, _ in listing.values()) for part, listing in listings.items()}
    return SequenceFolders(split, name, there, files)
