"""One sequence: its images and spike files in pairs, the size of its images, and the layout of its spike files."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from penstock._src.media.spike.detect import find_layout, image_size, size_error
from penstock._src.media.spike.layout import SpikeLayout, SpikeSettings
from penstock._src.stores.spike.folders import IMAGE_SUFFIXES, SPIKE_SUFFIX, Folders, FrameFiles, list_files
from penstock.errors import MediaError, SpikeError, StoreError

OnMissing = Literal["raise", "skip"]
Listing = dict[str, tuple[str, int]]
_SAMPLES = 4  # files of a sequence that are asked for its layout


@dataclass(frozen=True)
class SpikeSequence:
    """Rows that belong together in time: a blurred image, a sharp one and a spike file each."""

    name: str
    blur: FrameFiles
    sharp: FrameFiles | None
    spike: FrameFiles
    image_height: int
    image_width: int
    layout: SpikeLayout
    why: str
    """How the layout was found, in words."""
    stored_bytes: Mapping[str, int] = field(default_factory=dict)
    """Of blur, sharp and spike."""

    @property
    def frames(self) -> int:
        """How many rows there are."""
        return len(self.blur)


@dataclass
class SkippedRows:
    """Rows that cannot be used: raised at once, or counted by reason."""

    on_missing: OnMissing
    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def add(self, reason: str, error: Exception, rows: int = 1) -> None:
        if self.on_missing == "raise":
            raise error
        self.counts[reason] += rows
        self.first.setdefault(reason, str(getattr(error, "message", error)))

    def notes(self) -> list[str]:
        """For people: one line for each reason."""
        return [
            f"{count:,} rows left out: {reason}; first: {self.first[reason]}" for reason, count in self.counts.items()
        ]


def open_sequence(
    folders: Folders, settings: SpikeSettings, needs_sharp: bool, skipped: SkippedRows
) -> SpikeSequence | None:
    """The rows of a sequence that are whole; None where there are none. `settings.flip` None stays undecided here."""
    listings = {
        "blur": list_files(folders.blur, IMAGE_SUFFIXES),
        "sharp": list_files(folders.sharp, IMAGE_SUFFIXES) if needs_sharp else {},
        "spike": list_files(folders.spike, (SPIKE_SUFFIX,)),
    }
    if not needs_sharp:
        del listings["sharp"]
    paired = pair_files(folders, listings, skipped)
    if not paired:
        return None
    try:
        sizes = Counter(listing["spike"][1] for listing in paired)
        usual = max(sizes, key=lambda size: (sizes[size], size))
        samples = [listing for listing in paired if listing["spike"][1] == usual][:_SAMPLES]
        height, width = image_size(folders.blur / samples[0]["blur"][0])
        layout, why = _find_layout(folders, settings, samples)
    except MediaError as error:
        skipped.add("the sequence cannot be read", error, len(paired))
        return None
    whole = [each for each in paired if _has_size(folders.spike, each["spike"], layout, skipped)]
    if not whole:
        return None
    files = {kind: tuple(each[kind][0] for each in whole) for kind in listings}
    return SpikeSequence(
        folders.name,
        FrameFiles(folders.blur, files["blur"]),
        FrameFiles(folders.sharp, files["sharp"]) if needs_sharp and folders.sharp is not None else None,
        FrameFiles(folders.spike, files["spike"]),
        height,
        width,
        layout,
        why,
        {kind: sum(each[kind][1] for each in whole) for kind in listings},
    )


def _find_layout(
    folders: Folders, settings: SpikeSettings, samples: list[dict[str, tuple[str, int]]]
) -> tuple[SpikeLayout, str]:
    """By the first file that tells; one without a spike does not."""
    declared = replace(settings, flip=bool(settings.flip))  # which row comes first is asked of the whole set
    first: SpikeError | None = None
    for sample in samples:
        try:
            blur, spike = folders.blur / sample["blur"][0], folders.spike / sample["spike"][0]
            return find_layout(spike, declared, os.path.basename(folders.name), blur)
        except SpikeError as error:
            first = first or error
    raise first or SpikeError(f"{folders.name}: no spike files")


def pair_files(
    folders: Folders, listings: Mapping[str, Listing], skipped: SkippedRows
) -> list[dict[str, tuple[str, int]]]:
    """Rows as {kind: (name, bytes)}: files of one stem belong together; where no stem is shared, those in one place."""
    stems = {kind: list(listing) for kind, listing in listings.items()}
    shared = set(stems["blur"]).intersection(*map(set, stems.values()))
    counts = ", ".join(f"{len(each):,} in {_folder(folders, kind)}" for kind, each in stems.items())
    if not shared and len({len(each) for each in stems.values()}) == 1 and stems["blur"]:
        return [
            {kind: listings[kind][stem] for kind, stem in zip(stems, row, strict=True)}
            for row in zip(*stems.values(), strict=True)
        ]
    everything = dict.fromkeys(stem for each in stems.values() for stem in each)
    for stem in everything:
        if stem not in shared:
            absent = [kind for kind, each in listings.items() if stem not in each]
            where = ", ".join(_folder(folders, kind) for kind in absent)
            error = StoreError(
                f"{folders.name}: {stem} is missing in {where} ({counts})",
                hint='on_missing="skip" leaves such rows out and counts them',
            )
            skipped.add(f"no {' and no '.join(absent)} file of that name", error)
    if not everything:
        skipped.add("an empty sequence", StoreError(f"{folders.name}: no files ({counts})"), 0)
    return [{kind: listing[stem] for kind, listing in listings.items()} for stem in stems["blur"] if stem in shared]


def _has_size(folder: Path, file: tuple[str, int], layout: SpikeLayout, skipped: SkippedRows) -> bool:
    name, n_bytes = file
    if n_bytes == layout.n_bytes:
        return True
    skipped.add("a spike file of another size", size_error(folder / name, n_bytes, layout))
    return False


def _folder(folders: Folders, kind: str) -> str:
    folder: Path | None = getattr(folders, kind)
    return f"{kind}/, which is not there" if folder is None else str(folder)
