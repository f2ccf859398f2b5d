"""Precomputed voxels: one `.npy` of counts per spike file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import StoreError
from penstock.media.spike.layout import Box, SpikeLayout

_HINT = "`penstock prepare voxels` makes them, or leave voxel_dir out: counting takes less than a millisecond"


def voxel_facts(path: Path, num_bins: int) -> tuple[tuple[int, ...], str, str]:
    """Shape, dtype and way of the voxels, by the first of them."""
    found = _mapped(path)
    if found.ndim != 3 or found.shape[0] != num_bins:
        raise StoreError(f"{path}: {found.dtype} {found.shape}, {num_bins} bins were asked for", hint=_HINT)
    return found.shape, str(found.dtype), f"precomputed, {path.parent.name}/*.npy"


def read_voxel_file(path: Path, layout: SpikeLayout, num_bins: int, box: Box | None = None) -> NDArray[Any]:
    """A voxel, or a crop of it: of a crop only its rows are read."""
    found = _mapped(path)
    check_voxel(path, found, layout, num_bins)
    if box is None:
        return np.array(found)
    box.check_inside(layout)
    return np.array(found[:, box.top : box.top + box.height, box.left : box.left + box.width])


def check_voxel(path: Path, found: NDArray[Any], layout: SpikeLayout, num_bins: int) -> None:
    """Refuse voxels of other spikes or other bins."""
    expected = (num_bins, layout.height, layout.width)
    if found.shape != expected or found.dtype.kind not in "uif":
        raise StoreError(f"{path}: {found.dtype} {found.shape}, {expected} of {layout} were expected", hint=_HINT)


def _mapped(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise StoreError(f"{path}: no such voxel file", hint=_HINT) from error
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}: no voxel file: {error}", hint=_HINT) from error
    return found
