"""H.264 and H.265 byte streams: NAL units out of Annex B, bits out of NAL units, samples and sample descriptions.

Nothing here trusts its input: every length is bounded, every read beyond the end is a VideoError.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from penstock._src.media.mp4 import boxes as mp4_boxes
from penstock.errors import VideoError

StreamCodec = Literal["h264", "h265"]

MAX_SET_BYTES = 4096
"""Of one parameter set: the largest that encoders write, with all scaling lists, take about 700."""
MAX_SIDE_PX = 16_384
MAX_PIXELS = 1 << 26
_MAX_GOLOMB_ZEROS = 32
_START = b"\0\0\1"


class MissingSet(VideoError):
    """A picture comes before the parameter sets that it needs."""

    def __init__(self, number: int) -> None:
        super().__init__(f"its picture parameter set {number} has not come before it")


class Bits:
    """Reads the bits of a NAL unit from its first byte on, without the bytes that keep start codes out."""

    __slots__ = ("_value", "left")

    def __init__(self, unit: bytes | memoryview, skip_bytes: int = 0) -> None:
        plain = unescaped(bytes(unit))[skip_bytes:]
        self._value = int.from_bytes(plain, "big")
        self.left = 8 * len(plain)  # bits that were not read yet

    def u(self, count: int) -> int:
        """An unsigned number of `count` bits."""
        if count > self.left:
            raise VideoError(f"a header ends {count - self.left} bits too early")
        self.left -= count
        return (self._value >> self.left) & ((1 << count) - 1)

    def flag(self) -> bool:
        return self.u(1) == 1

    def skip(self, count: int) -> None:
        self.u(count)

    def ue(self, highest: int = 2**32 - 2, what: str = "a number") -> int:
        """An unsigned Exp-Golomb number, refused above `highest`."""
        zeros = 0
        while not self.u(1):
            zeros += 1
            if zeros > _MAX_GOLOMB_ZEROS:
                raise VideoError(f"{what} has more than {_MAX_GOLOMB_ZEROS} bits")
        value = (1 << zeros) - 1 + self.u(zeros)
        if value > highest:
            raise VideoError(f"{what} is {value:,}, at most {highest:,} is allowed")
        return value

    def se(self) -> int:
        """A signed Exp-Golomb number."""
        value = self.ue()
        return (value + 1) // 2 if value & 1 else -(value // 2)

    def video_signal(self) -> bool:
        """Whether luma uses all values, from the beginning of the video usability information."""
        if self.flag() and self.u(8) == 255:
            self.skip(32)
        if self.flag():
            self.flag()
        if not self.flag():
            return False
        self.skip(3)
        full_range = self.flag()
        if self.flag():
            self.skip(24)
        return full_range


def unescaped(unit: bytes) -> bytes:
    """The unit without the 03 that stands between 00 00 and a byte below 04."""
    if b"\0\0\3" not in unit:
        return unit
    parts: list[bytes] = []
    start = 0
    at = unit.find(b"\0\0\3")
    while at >= 0:
        parts.append(unit[start : at + 2])
        start = at + 3
        at = unit.find(b"\0\0\3", start)
    parts.append(unit[start:])
    return b"".join(parts)


def nal_units(data: bytes) -> list[bytes]:
    """The NAL units of one message in Annex B: what lies between start codes, without the zeros around it."""
    start = data.find(_START)
    if start < 0 or data[:start].strip(b"\0"):
        shown = data[:8].hex(" ") or "nothing"
        raise VideoError(f"{len(data):,} bytes that begin with {shown}: not Annex B, which begins with 00 00 01")
    units: list[bytes] = []
    while start >= 0:
        begin = start + 3
        start = data.find(_START, begin)
        # A unit never ends in zero: zeros before a start code belong to it, or are padding.
        unit = data[begin : start if start >= 0 else len(data)].rstrip(b"\0")
        if unit:
            units.append(unit)
    return units


def length_prefixed(units: Iterable[bytes]) -> bytes:
    """Units as an MP4 sample stores them: each behind its length in four bytes."""
    return b"".join(with_lengths(units, 4))


def with_lengths(units: Iterable[bytes], length_bytes: int = 2) -> list[bytes]:
    """Each unit behind its length."""
    return [part for unit in units for part in (len(unit).to_bytes(length_bytes, "big"), unit)]


def annex_b(units: Iterable[bytes]) -> bytes:
    """Units as a stream carries them: each behind a start code."""
    return b"".join(part for unit in units for part in (b"\0\0\0\1", unit))


class PictureFormat(NamedTuple):
    """What a sequence parameter set says of the pictures, the same for both codecs."""

    width: int
    height: int
    chroma: int  # chroma_format_idc: 0 grey, 1 4:2:0, 2 4:2:2, 3 4:4:4
    bit_depth: int
    full_range: bool
    reorder: int  # pictures that a decoder may have to hold back
    progressive: bool = True

    @property
    def size_px(self) -> tuple[int, int]:
        """(height, width)."""
        return self.height, self.width

    @property
    def pix_fmt(self) -> str:
        """FFmpeg's name for the pixels."""
        if self.chroma == 0:
            return "gray" if self.bit_depth == 8 else f"gray{self.bit_depth}le"
        layout = {1: "420p", 2: "422p", 3: "444p"}[self.chroma]
        full = "j" if self.full_range and self.bit_depth == 8 else ""
        return f"yuv{full}{layout}" + ("" if self.bit_depth == 8 else f"{self.bit_depth}le")


def checked_size(width: int, height: int, crop: Sequence[int], step: tuple[int, int]) -> tuple[int, int]:
    """(width, height) after cropping left, right, top, bottom, each counted in steps of pixels."""
    left, right, top, bottom = crop
    if not (0 < width <= MAX_SIDE_PX and 0 < height <= MAX_SIDE_PX) or width * height > MAX_PIXELS:
        limits = f"{MAX_SIDE_PX:,} a side and {MAX_PIXELS:,} in all"
        raise VideoError(f"images of {width:,}×{height:,} pixels; the limits are {limits}")
    shown_width, shown_height = width - (left + right) * step[0], height - (top + bottom) * step[1]
    if shown_width < 1 or shown_height < 1:
        raise VideoError(f"images of {width}×{height} pixels are cropped to nothing")
    return shown_width, shown_height


def sample_description(name: bytes, record_name: bytes, record: bytes, size_px: tuple[int, int]) -> bytes:
    """The stsd box of a stream whose parameter sets all lie in it."""
    height, width = size_px
    box = struct.pack(">I4s", 8 + len(record), record_name) + record
    return mp4_boxes.visual_stsd(name, width, height, box)
