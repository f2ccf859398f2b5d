"""How the bytes of a spike file are laid out: packing, plane, frames, and whether rows lie upside down."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.errors import SpikeError

Packing = Literal["packed", "uint8"]
"""packed: one bit per pixel, the least significant first. uint8: one byte per pixel."""


@dataclass(frozen=True)
class SpikeLayout:
    """What a file holds: `frames` planes of `height` × `width`, row by row, the first frame first.

    >>> SpikeLayout("packed", 360, 640, 88).n_bytes
    2534400
    """

    packing: Packing
    height: int
    width: int
    frames: int
    flip: bool = False
    """Whether the lowest row of the scene is stored first."""

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.frames) < 1:
            raise SpikeError(f"{self.frames} frames of {self.height}×{self.width}: each is at least 1")
        if self.packing == "packed" and self.height * self.width % 8:
            raise SpikeError(
                f"a packed frame of {self.height}×{self.width} has {self.height * self.width:,} bits: no whole bytes",
                hint="layout=uint8 is for one byte per pixel",
            )

    @property
    def frame_bytes(self) -> int:
        pixels = self.height * self.width
        return pixels // 8 if self.packing == "packed" else pixels

    @property
    def n_bytes(self) -> int:
        return self.frame_bytes * self.frames

    @property
    def has_byte_rows(self) -> bool:
        """Whether every row begins with a byte of its own, so that rows and columns can be cut out of the bytes."""
        return self.packing == "uint8" or self.width % 8 == 0

    @property
    def row_bytes(self) -> int:
        """Of one row, where `has_byte_rows`."""
        return self.width // 8 if self.packing == "packed" else self.width

    def __str__(self) -> str:
        turned = ", upside down" if self.flip else ""
        return f"{self.frames}×{self.height}×{self.width} {self.packing}{turned}"


@dataclass(frozen=True)
class SpikeSettings:
    """What a user declares. `"auto"` and None are found from the size and the values of the file."""

    layout: Literal["auto", "packed", "uint8"] = "auto"
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    flip: bool | None = None

    def __post_init__(self) -> None:
        if self.layout not in ("auto", "packed", "uint8"):
            raise SpikeError(f"layout={self.layout!r} is not a layout", hint="layout=auto, packed or uint8")
        for name in ("height", "width", "frames"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise SpikeError(f"{name}={value!r} is not a whole number, 1 or more", hint=f"e.g. {name}=360")
        if self.flip not in (None, True, False):
            raise SpikeError(f"flip={self.flip!r} is neither true nor false")


@dataclass(frozen=True)
class PlaneRegion:
    """A part of the upright plane, in pixels."""

    top: int
    left: int
    height: int
    width: int

    def check_inside(self, layout: SpikeLayout) -> None:
        """Refuse a box that reaches beyond the plane."""
        inside = self.top >= 0 and self.left >= 0 and self.height > 0 and self.width > 0
        if not inside or self.top + self.height > layout.height or self.left + self.width > layout.width:
            raise SpikeError(f"{self} does not lie in a plane of {layout.height}×{layout.width}")


def bin_starts(frames: int, num_bins: int) -> list[int]:
    """The first frame of every bin, and at the end the number of frames: frame f is in bin f * num_bins // frames.

    >>> bin_starts(88, 5)                              # bins of 18, 18, 17, 18 and 17 frames
    [0, 18, 36, 53, 71, 88]
    """
    if num_bins < 1 or num_bins > frames:
        raise SpikeError(
            f"{num_bins} bins of {frames} frames: every bin needs a frame",
            hint=f"num_bins is a whole number from 1 to {frames}",
        )
    return [-(-bin_ * frames // num_bins) for bin_ in range(num_bins + 1)]
