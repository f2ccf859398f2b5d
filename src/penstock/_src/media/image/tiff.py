"""TIFF files of one gray channel, written plainly, so that floats stay bit for bit."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image import jpeg
from penstock.errors import ImageError

_MAGICS = (b"II*\x00", b"MM\x00*")
_SHORT, _LONG = 3, 4
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _SAMPLES, _ROWS_PER_STRIP, _STRIP_SIZES, _SAMPLE_FORMAT = 273, 277, 278, 279, 339
_UNCOMPRESSED, _BLACK_IS_ZERO = 1, 1
_UNSIGNED, _FLOAT = 1, 3


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
