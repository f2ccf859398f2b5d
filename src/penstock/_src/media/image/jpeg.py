"""What a JPEG says about itself, read from its header without decoding a pixel.

Cameras send thousands of JPEGs with one and the same header. `JpegProbe` remembers the last header and answers the
next equal one by a comparison of bytes, which is what lets a conversion check every frame at the speed of a copy.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.errors import ImageError, LimitExceeded

MAX_SIDE_PX = 16_384
"""No camera of a robot is wider; a header that claims more is damaged or hostile."""

_HEADER_LIMIT_BYTES = 4 * 1024 * 1024  # APPn segments (Exif, ICC, thumbnails) end far before this
_TAIL_STEP_BYTES = 4096

_SOF_READABLE = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended, progressive: what every reader decodes alike
_SOF_OTHER = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_STANDALONE = frozenset({0x01, *range(0xD0, 0xD8)})  # TEM and RSTn carry no length
_SOI, _EOI, _SOS, _APP14, _COM = 0xD8, 0xD9, 0xDA, 0xEE, 0xFE
_LIMITED_RANGE = b"CS=ITU601"
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # in image data, ff stands before 00, RSTn or a fill byte

# (horizontal, vertical) sampling of luma, over chroma sampled (1, 1)
_SUBSAMPLING = {(1, 1): "4:4:4", (2, 1): "4:2:2", (2, 2): "4:2:0", (1, 2): "4:4:0", (4, 1): "4:1:1", (4, 2): "4:1:0"}


class JpegInfo(NamedTuple):
    """The facts of a JPEG header. Frames of one video must agree in all of them."""

    width: int
    height: int
    components: int
    subsampling: str
    """"4:2:0" and its like; "gray" for one component, "rgb" for colour that was not transformed."""

    @property
    def pix_fmt(self) -> str:
        """The name FFmpeg gives to the decoded pixels ("yuvj420p", "gray", "gbrp")."""
        if self.subsampling == "gray":
            return "gray"
        if self.subsampling == "rgb":
            return "gbrp"
        return "yuvj" + self.subsampling.replace(":", "") + "p"


def probe(data: memoryview | bytes) -> JpegInfo:
    """Read the header of one JPEG and check that the image is whole.

    >>> probe(jpeg_bytes)                                                            # doctest: +SKIP
    JpegInfo(width=640, height=480, components=3, subsampling='4:2:0')
    """
    info, _ = _parse(data)
    _check_end(data)
    return info


def end_of(data: memoryview | bytes) -> int | None:
    """Where the JPEG ends that begins here, whatever follows it: just behind its end marker; None where it has none."""
    held = bytes(data)
    try:
        for marker, begin, end in _segments(held, len(held)):
            if marker == _EOI:
                return begin
            if marker in (0x00, _SOI) or end - begin < 2:
                return None
    except ImageError:
        pass
    return None


def is_limited_range(head: bytes) -> bool:
    """Whether brightness goes from 16 to 235, as FFmpeg says in a comment before the tables; JPEG itself knows no such
    thing, and other decoders show such images pale. The first kilobytes of a JPEG are enough."""
    try:
        for marker, begin, end in _segments(head, len(head)):
            if marker in (0x00, _SOI, _EOI, _SOS) or end - begin < 2:
                return False
            if marker == _COM and head[begin + 2 : end].rstrip(b"\0") == _LIMITED_RANGE:
                return True
    except ImageError:
        pass
    return False


class JpegProbe:
    """`probe` for a stream of frames: a header equal to the last one is recognised, not parsed again."""

    def __init__(self) -> None:
        self._header = b""
        self._info: JpegInfo | None = None

    def probe(self, data: memoryview | bytes) -> JpegInfo:
        header = self._header
        info = self._info
        if info is None or bytes(data[: len(header)]) != header:
            info, header_bytes = _parse(data)
            self._info = info
            self._header = bytes(data[:header_bytes])
        if bytes(data[-2:]) != b"\xff\xd9":
            _check_end(data)
        return info


def _parse(data: memoryview | bytes) -> tuple[JpegInfo, int]:
    """The facts, and how many bytes from the start they depend on."""
    size = len(data)
    head = bytes(data[: min(size, _HEADER_LIMIT_BYTES)])
    if size < 4 or head[:2] != b"\xff\xd8":
        raise ImageError(
            f"not a JPEG: {size:,} bytes that start with {head[:4].hex(' ') or 'nothing'}, a JPEG starts with ff d8",
            hint="it may be of another format (PNG, H.264); the `format` field of a topic says which",
        )
    adobe_transform: int | None = None
    info: JpegInfo | None = None
    for marker, begin, end in _segments(head, size):
        if marker == _SOS and info is not None:
            return info, begin
        if marker in (_SOI, _EOI, _SOS):
            what = "frame header (SOF)" if info is None else "image data (SOS)"
            raise ImageError(f"JPEG of {size:,} bytes has no {what} before ff {marker:02x} at byte {begin - 2:,}")
        if not begin + 2 <= end <= len(head):
            raise _cut(size, begin)
        body = head[begin + 2 : end]
        if marker in _SOF_READABLE:
            info = _frame_header(body, begin - 2, adobe_transform)
        if marker in _SOF_OTHER:
            raise ImageError(
                f"JPEG frame header ff {marker:02x} at byte {begin - 2:,} is lossless, arithmetic or hierarchical, "
                "not baseline or progressive",
                hint="record baseline JPEG",
            )
        if marker == _APP14 and body[:5] == b"Adobe" and len(body) >= 12:
            adobe_transform = body[11]
    raise _cut(size, len(head))


def _segments(head: bytes, size: int) -> Iterator[tuple[int, int, int]]:
    """(marker, begin, end) of what a JPEG of `size` bytes is made of, from its length field on; image data are stepped
    over. What a length claims is not checked. Ends behind the end marker."""
    position = 2
    while True:
        marker, begin = _next_marker(head, position, size)
        if marker in _STANDALONE:
            position = begin
            continue
        position = begin + int.from_bytes(head[begin : begin + 2], "big")
        yield marker, begin, position
        if marker == _EOI:
            return
        if marker == _SOS:
            match = _AFTER_SCAN.search(head, position)
            if match is None:
                return
            position = match.start()


def _next_marker(head: bytes, position: int, size: int) -> tuple[int, int]:
    if position + 2 > len(head):
        raise _cut(size, position)
    if head[position] != 0xFF:
        raise ImageError(f"JPEG has {head[position]:02x} at byte {position:,} where a marker (ff) must be")
    while position < len(head) and head[position] == 0xFF:  # any number of fill bytes may precede a marker
        position += 1
    if position >= len(head):
        raise _cut(size, position)
    return head[position], position + 1


def _frame_header(body: bytes, offset: int, adobe_transform: int | None) -> JpegInfo:
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        raise ImageError(f"JPEG frame header at byte {offset:,} has {len(body)} bytes: it is cut")
    precision, height, width, components = struct.unpack_from(">BHHB", body)
    if precision != 8:
        raise ImageError(f"JPEG has {precision} bits per sample, only 8 can be read everywhere")
    if components not in (1, 3):
        raise ImageError(f"JPEG has {components} components, expected 1 (gray) or 3 (colour)")
    check_size(width, height, "JPEG")
    ids = bytes(body[6 + 3 * k] for k in range(components))
    sampling = [(body[7 + 3 * k] >> 4, body[7 + 3 * k] & 15) for k in range(components)]
    if components == 1:
        return JpegInfo(width, height, 1, "gray")
    chroma = sampling[1]
    ratios = [(across * chroma[0], down * chroma[1]) for across, down in _SUBSAMPLING]
    if sampling[2] != chroma or sampling[0] not in ratios or 0 in chroma:
        raise ImageError(f"JPEG samples its components as {sampling}, which no reader takes")
    ratio = (sampling[0][0] // chroma[0], sampling[0][1] // chroma[1])
    if ratio == (1, 1) and (adobe_transform == 0 or (adobe_transform is None and ids == b"RGB")):
        return JpegInfo(width, height, 3, "rgb")
    return JpegInfo(width, height, 3, _SUBSAMPLING[ratio])


def check_size(width: int, height: int, kind: str) -> None:
    """Refuse a claimed image size before anything of that size is allocated."""
    if width < 1 or height < 1:
        raise ImageError(f"{kind} header gives a size of {width}×{height} pixels")
    if max(width, height) > MAX_SIDE_PX:
        raise LimitExceeded(
            f"{kind} header claims {width}×{height} pixels, the limit is {MAX_SIDE_PX} per side",
            size=max(width, height),
            limit=MAX_SIDE_PX,
        )


def without_padding(data: memoryview | bytes) -> int:
    """How many bytes are left without the zeros at the end: drivers that send fixed-size buffers pad with them."""
    end = len(data)
    while end > 0:
        start = max(0, end - _TAIL_STEP_BYTES)
        if kept := bytes(data[start:end]).rstrip(b"\0"):
            return start + len(kept)
        end = start
    return 0


def _check_end(data: memoryview | bytes) -> None:
    """A whole JPEG ends with ff d9."""
    end = without_padding(data)
    if end < 2 or bytes(data[end - 2 : end]) != b"\xff\xd9":
        raise ImageError(
            f"JPEG is cut: {len(data):,} bytes without an end marker (ff d9)",
            hint="the camera driver or the network lost the rest of this frame",
        )


def _cut(size: int, position: int) -> ImageError:
    return ImageError(f"JPEG is cut: its {size:,} bytes end inside the header (byte {position:,})")
