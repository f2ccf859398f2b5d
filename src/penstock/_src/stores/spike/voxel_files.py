"""Precomputed voxels: one `.npy` of counts per spike file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.spike.layout import PlaneRegion, SpikeLayout
from penstock.errors import StoreError

_HINT = "`penstock prepare voxels` makes them, or leave voxel_dir out: counting takes less than a millisecond"


def voxel_facts(path: Path, num_bins: int) -> tuple[tuple[int, ...], str, str]:
    """Shape, dtype and way of the voxels, by the first of them."""
    voxel = _mapped(path)
    if voxel.ndim != 3 or voxel.shape[0] != num_bins:
        raise StoreError(f"{path}: {voxel.dtype} {voxel.shape}, {num_bins} bins were asked for", hint=_HINT)
    return voxel.shape, str(voxel.dtype), f"precomputed, {path.parent.name}/*.npy"


def read_voxel_file(path: Path, layout: SpikeLayout, num_bins: int, box: PlaneRegion | None = None) -> NDArray[Any]:
    """A voxel, or a crop of it: of a crop only its rows are read."""
    voxel = _mapped(path)
    check_voxel(path, voxel, layout, num_bins)
    if box is None:
        return np.array(voxel)
    box.check_inside(layout)
    return np.array(voxel[:, box.top : box.top + box.height, box.left : box.left + box.width])


def check_voxel(path: Path, voxel: NDArray[Any], layout: SpikeLayout, num_bins: int) -> None:
    """Refuse voxels of other spikes or other bins."""
    expected = (num_bins, layout.height, layout.width)
    if voxel.shape != expected or voxel.dtype.kind not in "uif":
        raise StoreError(f"{path}: {voxel.dtype} {voxel.shape}, {expected} of {layout} were expected", hint=_HINT)


def _mapped(path: Path) -> NDArray[Any]:
    try:
        voxel: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such voxel file", hint=_HINT) from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: not a voxel file: {error}", hint=_HINT) from error
    return voxel
