"""TIFF files of one gray channel: written plainly, so that floats stay bit for bit; headers read without trust."""

from __future__ import annotations

import struct
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image import jpeg, png
from penstock.errors import ImageError

_ByteOrder = Literal["<", ">"]
_MAGICS: dict[bytes, _ByteOrder] = {b"II*\x00": "<", b"MM\x00*": ">"}
_SHORT, _LONG = 3, 4
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _SAMPLES, _ROWS_PER_STRIP, _STRIP_SIZES, _SAMPLE_FORMAT = 273, 277, 278, 279, 339
_UNCOMPRESSED, _BLACK_IS_ZERO = 1, 1
_UNSIGNED, _FLOAT = 1, 3
_MOST_ENTRIES = 256


class TiffInfo(NamedTuple):
    """The facts of a TIFF's first image."""

    width: int
    height: int
    bits: int
    samples: int
    is_float: bool
    plain: tuple[_ByteOrder, int] | None = None  # byte order and offset, where the pixels lie uncompressed in one piece


def is_tiff(data: memoryview | bytes) -> bool:
    return bytes(data[:4]) in _MAGICS


def encode(pixels: NDArray[np.float32] | NDArray[np.uint16]) -> bytes:
    """One gray channel of float32 or uint16 as an uncompressed TIFF; NaN and Inf stay as they are."""
    if pixels.ndim != 2 or pixels.dtype not in (np.float32, np.uint16):
        raise ImageError(f"expected float32 or uint16 of shape (height, width), got {pixels.dtype} {pixels.shape}")
    height, width = pixels.shape
    jpeg.check_size(width, height, "image")
    size = pixels.dtype.itemsize
    entries = (
        (_WIDTH, _LONG, width),
        (_HEIGHT, _LONG, height),
        (_BITS, _SHORT, 8 * size),
        (_COMPRESSION, _SHORT, _UNCOMPRESSED),
        (_PHOTOMETRIC, _SHORT, _BLACK_IS_ZERO),
        (_STRIP_OFFSETS, _LONG, 0),
        (_SAMPLES, _SHORT, 1),
        (_ROWS_PER_STRIP, _LONG, height),
        (_STRIP_SIZES, _LONG, pixels.size * size),
        (_SAMPLE_FORMAT, _SHORT, _FLOAT if pixels.dtype == np.float32 else _UNSIGNED),
    )
    start = 8 + 2 + 12 * len(entries) + 4
    start += -start % 8
    head = struct.pack("<4sIH", b"II*\x00", 8, len(entries))
    for tag, kind, value in entries:
        head += struct.pack("<HHII", tag, kind, 1, start if tag == _STRIP_OFFSETS else value)
    head += struct.pack("<I", 0)
    return head.ljust(start, b"\0") + np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder("<"))).tobytes()


def read_header(data: memoryview | bytes) -> TiffInfo:
    """The facts of the first image, refused when hostile."""
    order = _MAGICS.get(bytes(data[:4]))
    if order is None or len(data) < 8:
        raise ImageError(f"not a TIFF: {len(data):,} bytes that start with {bytes(data[:8]).hex(' ') or 'nothing'}")
    (at,) = struct.unpack_from(f"{order}I", data, 4)
    if at + 2 > len(data):
        raise ImageError(f"TIFF of {len(data):,} bytes is cut: its directory would begin at byte {at:,}")
    (count,) = struct.unpack_from(f"{order}H", data, at)
    if count > _MOST_ENTRIES or at + 2 + 12 * count > len(data):
        raise ImageError(f"TIFF of {len(data):,} bytes is cut: {count} directory entries at byte {at:,}")
    fields = {}
    for number in range(count):
        tag, kind, values = struct.unpack_from(f"{order}HHI", data, at + 2 + 12 * number)
        if kind in (_SHORT, _LONG) and values == 1:
            (fields[tag],) = struct.unpack_from(f"{order}{'H' if kind == _SHORT else 'I'}", data, at + 10 + 12 * number)
    width, height = fields.get(_WIDTH, 0), fields.get(_HEIGHT, 0)
    jpeg.check_size(width, height, "TIFF")
    png.check_pixels(width, height)
    bits, samples = fields.get(_BITS, 1), fields.get(_SAMPLES, 1)
    offset, size = fields.get(_STRIP_OFFSETS), fields.get(_STRIP_SIZES)
    plain = None
    if fields.get(_COMPRESSION) == _UNCOMPRESSED and offset is not None and size is not None:
        if size != width * height * samples * bits // 8 or offset + size > len(data):
            raise ImageError(
                f"TIFF of {len(data):,} bytes is cut: {width}×{height} pixels of {bits} bits are {size:,} bytes at "
                f"byte {offset:,} by its header"
            )
        plain = order, offset
    return TiffInfo(width, height, bits, samples, fields.get(_SAMPLE_FORMAT, _UNSIGNED) == _FLOAT, plain)


def decode(data: memoryview | bytes) -> NDArray[np.float32] | NDArray[np.uint16]:
    """One gray channel of float32 or uint16 as it was written, by penstock or by anyone else."""
    info = read_header(data)
    wanted = np.dtype(np.float32 if info.is_float else np.uint16)
    if info.samples != 1 or info.bits != 8 * wanted.itemsize:
        raise ImageError(
            f"TIFF has {info.samples} channels of {info.bits} bits, "
            f"{'floats' if info.is_float else 'whole numbers'}; depth is one channel of 16 bits or of float32"
        )
    if info.plain is not None:
        order, offset = info.plain
        flat = np.frombuffer(data, wanted.newbyteorder(order), info.width * info.height, offset)
        exact: Any = flat.astype(wanted).reshape(info.height, info.width)
        return exact  # type: ignore[no-any-return]
    what = f"TIFF of {len(data):,} bytes"
    claimed = f"{what} ({info.width}×{info.height} by its header)"
    decoded: Any = png.decode_gray(data, (info.height, info.width), wanted, what, claimed)
    return decoded  # type: ignore[no-any-return]
