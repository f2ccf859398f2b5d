"""`prepare_gopro_spike`: one folder OUT/{train,test}/SEQ/{blur,sharp,spike} by links or copies.

Links are relative to where they lie. What is there already and right is kept: a second run changes nothing.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import OutputExists, OutputFailed, StoreError
from penstock.formats.findings import Findings, Report
from penstock.prepare.disk_space import check_space
from penstock.prepare.spike_folders import PARTS, SequenceFolders, find_sequences
from penstock.system.files import replacing

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _Copy:
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
) -> Report:
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
            f"{link} is a directory of its own: no link takes its place",
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


def _copies(sequence: SequenceFolders, out: Path, counted: Counter[str]) -> Iterator[_Copy]:
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
                yield _Copy(source, target, wanted.st_size)
