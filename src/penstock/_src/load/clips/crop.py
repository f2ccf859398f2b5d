"""One crop and one symmetry for the blurred images, the sharp images and the spike plane of a clip.

The spike plane shows the same field of view at its own scale. The rule, for each axis by itself:

- A crop of n image pixels is n × plane / image spike pixels, rounded, at least one.
- The position is chosen in whole pixels of the coarser plane; it is exact there.
- On the finer plane the crop has the same centre, rounded to whole pixels and held within the plane.

Where the scale and the crop divide evenly (720 → 360, crop 256), both crops show exactly the same field. Elsewhere
(720 → 396) their centres differ by at most half a pixel of the finer plane, and at the border by a quarter of a pixel
of the coarser one more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from penstock._src.load.sampling.permutation import key_of
from penstock._src.media.spike.layout import PlaneRegion
from penstock.errors import ConfigError

Augment = bool | Literal["crop"]
"""True: random crop, flips and rotations. "crop": random crop alone. False: the centre, as it is."""

CropSize = int | tuple[int, int] | None

FLIP_WIDTH, FLIP_HEIGHT, TRANSPOSE = 1, 2, 4
"""The bits of a symmetry. The eight numbers 0…7 are the flips and rotations of a square."""


@dataclass(frozen=True)
class Crop:
    """What of a clip is taken, and how it is turned: first cropped, then transposed, then flipped."""

    image: PlaneRegion
    plane: PlaneRegion
    symmetry: int = 0


@dataclass(frozen=True)
class Planes:
    """The sizes of the images and of the spike plane of a sequence, and of the crops of both: (height, width) each."""

    image: tuple[int, int]
    plane: tuple[int, int]
    image_crop: tuple[int, int]
    plane_crop: tuple[int, int]

    @property
    def may_transpose(self) -> bool:
        """A rotation by 90° keeps both shapes only where both crops are square."""
        return self.image_crop[0] == self.image_crop[1] and self.plane_crop[0] == self.plane_crop[1]

    def crop(self, key: int, augment: Augment) -> Crop:
        """The crop that `key` decides; equal keys give equal crops."""
        axes = []
        for axis in (0, 1):
            sides = self.image[axis], self.image_crop[axis], self.plane[axis], self.plane_crop[axis]
            count = positions(*sides)
            chosen = key_of(key, axis) % count if augment else (count - 1) // 2
            axes.append(starts(*sides, chosen))
        (image_top, plane_top), (image_left, plane_left) = axes
        return Crop(
            PlaneRegion(image_top, image_left, *self.image_crop),
            PlaneRegion(plane_top, plane_left, *self.plane_crop),
            key_of(key, 2) % (8 if self.may_transpose else 4) if augment is True else 0,
        )


def planes_for(image: tuple[int, int], plane: tuple[int, int], crop_size: CropSize, where: str) -> Planes:
    """The crops of a sequence; None takes the whole. `where` names the sequence in errors."""
    if crop_size is None:
        return Planes(image, plane, image, plane)
    crop = (crop_size, crop_size) if isinstance(crop_size, int) else crop_size
    if crop[0] > image[0] or crop[1] > image[1]:
        raise ConfigError(
            f"{where}: a crop of {crop[0]}×{crop[1]} does not fit into images of {image[0]}×{image[1]} pixels",
            hint=f"DATA.CROP_SIZE: {min(image)} or less, or null for whole images",
        )
    plane_crop = tuple(crop_length(image[axis], plane[axis], crop[axis]) for axis in (0, 1))
    return Planes(image, plane, crop, (plane_crop[0], plane_crop[1]))


def crop_length(image_px: int, plane_px: int, crop_px: int) -> int:
    """How many pixels of the spike plane a crop of the image covers: the nearest whole number, at least one."""
    return max(1, (2 * crop_px * plane_px + image_px) // (2 * image_px))


def positions(image_px: int, image_crop_px: int, plane_px: int, plane_crop_px: int) -> int:
    """How many crops there are along an axis: whole pixels of the coarser plane."""
    return image_px - image_crop_px + 1 if image_px <= plane_px else plane_px - plane_crop_px + 1


def starts(image_px: int, image_crop_px: int, plane_px: int, plane_crop_px: int, chosen: int) -> tuple[int, int]:
    """(first image pixel, first pixel of the spike plane) of the crop number `chosen` along an axis."""
    if image_px <= plane_px:
        return chosen, _same_centre(chosen, image_px, image_crop_px, plane_px, plane_crop_px)
    return _same_centre(chosen, plane_px, plane_crop_px, image_px, image_crop_px), chosen


def _same_centre(start: int, coarse_px: int, coarse_crop_px: int, fine_px: int, fine_crop_px: int) -> int:
    """Where a crop of the finer plane starts that has the centre of one of the coarser plane, rounded."""
    doubled = (2 * start + coarse_crop_px) * fine_px - fine_crop_px * coarse_px  # 2 × coarse_px × the start
    return min(max((doubled + coarse_px) // (2 * coarse_px), 0), fine_px - fine_crop_px)


def turned(values: Any, symmetry: int) -> Any:
    """A numpy array or torch tensor (…, height, width) under a symmetry; numpy gives a view."""
    if symmetry & TRANSPOSE:
        values = values.swapaxes(-1, -2)
    if not isinstance(values, np.ndarray):
        axes = [axis for bit, axis in ((FLIP_HEIGHT, -2), (FLIP_WIDTH, -1)) if symmetry & bit]
        return values.flip(axes) if axes else values
    rows = slice(None, None, -1 if symmetry & FLIP_HEIGHT else 1)
    columns = slice(None, None, -1 if symmetry & FLIP_WIDTH else 1)
    return values[..., rows, columns]
