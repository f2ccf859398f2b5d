"""What a PNG says about itself, read from its header without decoding a pixel."""

from __future__ import annotations

from typing import NamedTuple

from penstock._src.media.image import jpeg
from penstock.errors import ImageError, LimitExceeded

MAGIC = b"\x89PNG\r\n\x1a\n"
MAX_PIXELS = 1 << 26
"""67 megapixels: 200 MB decoded. A small PNG can claim far more than it is worth."""

_TAIL_BYTES = 256  # some cameras pad behind the end
_GRAY = 0


class PngInfo(NamedTuple):
    """The facts of a PNG header that images of one camera share."""

    width: int
    height: int
    bit_depth: int
    colour_type: int

    @property
    def is_depth(self) -> bool:
        """One channel of 16 bits, which is how depth is kept."""
        return self.bit_depth == 16 and self.colour_type == _GRAY


def is_png(data: memoryview | bytes) -> bool:
    return data[:8] == MAGIC


def probe(data: memoryview | bytes) -> PngInfo:
    """Read the header of one PNG and check that the image is whole, as far as its markers tell.

    >>> probe(png_bytes)                                                             # doctest: +SKIP
    PngInfo(width=640, height=480, bit_depth=16, colour_type=0)
    """
    info = read_header(data)
    if b"IEND" not in bytes(data[-_TAIL_BYTES:]):
        raise ImageError(f"PNG of {len(data):,} bytes is cut: it has no IEND")
    return info


def read_header(data: memoryview | bytes) -> PngInfo:
    """The facts of the header alone, refused when hostile."""
    header = bytes(data[8:33])
    if not is_png(data) or len(header) < 25 or header[4:8] != b"IHDR":
        raise ImageError(f"PNG of {len(data):,} bytes has no whole IHDR header")
    width, height = int.from_bytes(header[8:12], "big"), int.from_bytes(header[12:16], "big")
    jpeg.check_size(width, height, "PNG")
    check_pixels(width, height)
    return PngInfo(width, height, header[16], header[17])


def check_pixels(width: int, height: int) -> None:
    """Refuse a claimed number of pixels before they are allocated."""
    if width * height > MAX_PIXELS:
        raise LimitExceeded(
            f"image header claims {width}×{height} = {width * height:,} pixels, the limit is {MAX_PIXELS:,}",
            size=width * height,
            limit=MAX_PIXELS,
        )


def check_shallow(info: PngInfo) -> None:
    """Refuse 16 bits where an ordinary camera is expected."""
    if info.is_depth:
        raise ImageError(
            f"PNG {info.width}×{info.height} has one channel of 16 bits: as a colour camera it would lose half of them",
            hint="map it as depth: depth: metric keeps the values, depth: 8bit maps one range: docs/convert/depth.md",
        )
    if info.bit_depth > 8:
        raise ImageError(
            f"PNG {info.width}×{info.height} has {info.bit_depth} bits per colour, and LeRobot's cameras have 8: "
            "it is not known which 8 of them matter",
            hint="record 8-bit PNG or JPEG, or raw rgb16 (of which the high byte is taken)",
        )
