"""What precomputed voxels were made from: whether they still belong to their spike files.

A voxel file of penstock has the time of its spike file. `penstock.json` beside it says with which bins and which layout
it was made. A later time is that of a copy, or the spike file was replaced by an older one: the first such voxels of a
folder are counted again and compared. Voxels of others have no such record; of them only a time before that of the
spike file shows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.media.spike.files import read_voxel
from penstock._src.media.spike.layout import SpikeLayout
from penstock._src.stores.spike.voxel_files import read_voxel_file
from penstock._src.system.files import replacing
from penstock.errors import SpikeError, StoreError

RECORD = "penstock.json"
_COMPARED = 8  # voxels of a folder: one takes a millisecond, and a copied data set has thousands of another time


def write_record(folder: Path, layout: SpikeLayout, num_bins: int) -> None:
    """Say of a folder with which bins and which layout its voxels are made."""
    with replacing(folder / RECORD) as fresh:
        fresh.write_text(json.dumps(_record(layout, num_bins)) + "\n", encoding="utf-8")


def has_record(folder: Path) -> bool:
    """Whether penstock made the voxels of a folder."""
    return (folder / RECORD).exists()


def fits_record(folder: Path, layout: SpikeLayout, num_bins: int) -> bool:
    """Whether the voxels of a folder were made with these bins and this layout; those of others count as such."""
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return bool(record == _record(layout, num_bins))


def check_voxels(root: Path, files: Iterable[tuple[Path, Path, SpikeLayout]], num_bins: int) -> None:
    """Refuse a set of (voxel file, spike file, layout) where some voxels are absent or belong to other spikes."""
    fits: dict[Path, bool] = {}
    to_compare: dict[Path, int] = {}
    wrong: Counter[str] = Counter()
    first: Path | None = None
    count = 0
    for voxel, spike, layout in files:
        count += 1
        folder = voxel.parent
        if folder not in fits:
            fits[folder] = fits_record(folder, layout, num_bins)
            to_compare[folder] = _COMPARED if has_record(folder) else 0
        reason, is_of_then = _wrong(voxel, spike) if fits[folder] else ("made with other bins or another layout", True)
        if not is_of_then and to_compare[folder]:
            to_compare[folder] -= 1
            reason = None if _is_count(voxel, spike, layout, num_bins) else "not the counts of the spike file"
        if reason:
            wrong[reason] += 1
            first = first or voxel
    if wrong:
        reasons = ", ".join(f"{number:,} {reason}" for reason, number in wrong.items())
        raise StoreError(
            f"{root}: of {count:,} voxel files {reasons}; first: {first}",
            hint=f"penstock prepare voxels {root} makes them; without voxel_dir (USE_PRECOMPUTED_VOXELS: false) "
            "voxels are counted while loading",
        )


def _wrong(voxel: Path, spike: Path) -> tuple[str | None, bool]:
    """What is wrong with a voxel file by its time, and whether that is the time of the spike file."""
    try:
        made_ns = voxel.stat().st_mtime_ns
    except FileNotFoundError:
        return "not there", True
    spike_ns = spike.stat().st_mtime_ns
    return ("older than the spike file", True) if made_ns < spike_ns else (None, made_ns == spike_ns)


def _is_count(voxel: Path, spike: Path, layout: SpikeLayout, num_bins: int) -> bool:
    try:
        return np.array_equal(read_voxel_file(voxel, layout, num_bins), read_voxel(spike, layout, num_bins))
    except (SpikeError, StoreError):
        return False


def _record(layout: SpikeLayout, num_bins: int) -> dict[str, Any]:
    return {"num_bins": num_bins, **asdict(layout)}
