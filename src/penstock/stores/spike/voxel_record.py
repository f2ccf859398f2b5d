"""What precomputed voxels were made from: whether they still belong to their spike files.

A voxel file of penstock has the time of its spike file. `penstock.json` beside it says with which bins and which layout
it was made. Voxels of others have no such record; of them only a time before that of the spike file shows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from penstock.errors import StoreError
from penstock.media.spike.layout import SpikeLayout
from penstock.system.files import replacing

RECORD = "penstock.json"


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
        found = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return True
    except ValueError:
        return False
    return bool(found == _record(layout, num_bins))


def check_voxels(root: Path, files: Iterable[tuple[Path, Path, SpikeLayout]], num_bins: int) -> None:
    """Refuse a set of (voxel file, spike file, layout) where some voxels are absent or belong to other spikes."""
    fits: dict[Path, bool] = {}
    wrong: Counter[str] = Counter()
    first: Path | None = None
    count = 0
    for voxel, spike, layout in files:
        count += 1
        folder = voxel.parent
        if folder not in fits:
            fits[folder] = fits_record(folder, layout, num_bins)
        reason = _wrong(voxel, spike) if fits[folder] else "made with other bins or another layout"
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


def _wrong(voxel: Path, spike: Path) -> str | None:
    try:
        made_ns = voxel.stat().st_mtime_ns
    except FileNotFoundError:
        return "not there"
    return "older than the spike file" if made_ns < spike.stat().st_mtime_ns else None


def _record(layout: SpikeLayout, num_bins: int) -> dict[str, Any]:
    return {"num_bins": num_bins, **asdict(layout)}
