"""Spike files: sizes are checked, and of large planes only the rows of a crop are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.spike.detect import find_layout, size_error
from penstock._src.media.spike.frames import ThreadMemory, crop_packed, stored_rows, unpack, voxel_counts
from penstock._src.media.spike.layout import Packing, PlaneRegion, SpikeLayout, SpikeSettings
from penstock._src.system.files import ByteSource, ReadErrors, open_source
from penstock.errors import SpikeError

ERRORS = ReadErrors(SpikeError)
_memory = ThreadMemory()
_SKIPPED_BYTES = 32 << 10  # one read more per frame pays where it leaves out so many bytes


def read_spikes(
    path: str | os.PathLike[str],
    *,
    layout: Packing | str = "auto",
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    flip: bool | None = None,
    box: PlaneRegion | None = None,
) -> NDArray[np.uint8]:
    """The frames of a spike file, upright: (frames, height, width).

    What is not declared is found, and an error lists the readings where more than one fits. No file says whether its
    rows lie upside down: `flip=None` leaves them as they are unless an image shows it (`NAME.png` or `NAME_gt.png`
    beside the file, or `NAME.png` in a folder `blur` or `sharp` beside its own).

    >>> penstock.read_spikes("00001.dat", height=250, width=400, flip=True)           # doctest: +SKIP
    """
    settings = SpikeSettings(layout, height, width, frames, flip)  # type: ignore[arg-type]  # it checks the word
    sequence = os.path.basename(os.path.dirname(os.path.dirname(os.path.abspath(path))))
    found_layout, _ = find_layout(path, settings, sequence, image_beside(path))
    return unpack(read_rows(path, found_layout, box), found_layout, box)


def image_beside(path: str | os.PathLike[str]) -> str | None:
    """An image of the same scene, by its name: beside the file, or in the folder of images beside its own."""
    folder, name = os.path.split(os.path.splitext(os.path.abspath(path))[0])
    others = [os.path.join(os.path.dirname(folder), each, name) for each in ("blur", "blur_gamma", "sharp")]
    stems = [os.path.join(folder, f"{name}_gt"), os.path.join(folder, name), *others]
    names = (f"{stem}{suffix}" for stem in stems for suffix in (".png", ".jpg", ".jpeg"))
    return next((each for each in names if os.path.isfile(each)), None)


def read_voxel(
    path: str | os.PathLike[str],
    layout: SpikeLayout,
    num_bins: int = 5,
    box: PlaneRegion | None = None,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """`voxel_counts` of a file."""
    return voxel_counts(read_rows(path, layout, box, _memory.take), layout, num_bins, box, out)


def read_packed(
    path: str | os.PathLike[str], layout: SpikeLayout, box: PlaneRegion | None = None
) -> tuple[NDArray[np.uint8], int]:
    """`crop_packed` of a file."""
    return crop_packed(read_rows(path, layout, box), layout, box)


def _allocate(n_bytes: int) -> NDArray[np.uint8]:
    return np.empty(n_bytes, np.uint8)


def read_rows(
    path: str | os.PathLike[str],
    layout: SpikeLayout,
    box: PlaneRegion | None = None,
    allocate: Callable[[int], NDArray[np.uint8]] = _allocate,
) -> NDArray[np.uint8]:
    """What `unpack`, `crop_packed` and `voxel_counts` take: the whole file, or the rows of a box in a large plane."""
    with open_source(path, ERRORS) as source:
        if source.size_bytes != layout.n_bytes:
            raise size_error(path, source.size_bytes, layout)
        if box is not None and layout.has_byte_rows:
            box.check_inside(layout)
            if (layout.height - box.height) * layout.row_bytes >= _SKIPPED_BYTES:
                rows = allocate(layout.frames * box.height * layout.row_bytes)
                return _read_part(source, layout, box, rows.reshape(layout.frames, box.height, -1))
        data = allocate(layout.n_bytes)
        source.read_into(data.data, 0)
        return data


def _read_part(source: ByteSource, layout: SpikeLayout, box: PlaneRegion, rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    first = stored_rows(layout, box).start * layout.row_bytes
    each = rows.reshape(layout.frames, -1)
    source.read_many((frame * layout.frame_bytes + first, each[frame].data) for frame in range(layout.frames))
    return rows
