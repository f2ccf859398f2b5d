"""JPEG rows of a view: pixels to bytes and back, and the end of the file as the place where the next row goes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.views.view_file import ViewLayout, ViewSpec, locked, write_all
from penstock._src.media.image import codec
from penstock.errors import ImageError, PenstockError

_OVERHEAD_BYTES = 1024  # of one JPEG: quantisation and Huffman tables, rounded up


def most_bytes(spec: ViewSpec, layout: ViewLayout) -> int:
    """What a view of JPEG rows never exceeds: as much as the pixels themselves, and the tables of every JPEG."""
    return layout.rows_at + layout.capacity * (spec.row_bytes + _OVERHEAD_BYTES)


def expected_bytes(spec: ViewSpec, layout: ViewLayout) -> int:
    """What it usually takes: camera images shrink to less than a fifth."""
    return layout.rows_at + layout.capacity * (spec.row_bytes // 5 + _OVERHEAD_BYTES)


def encode(spec: ViewSpec, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(channels, height, width) as a JPEG."""
    import cv2

    # OpenCV's order is BGR.
    image = pixels[0] if spec.channels == 1 else np.ascontiguousarray(pixels[::-1].transpose(1, 2, 0))
    # 4:4:4: after shrinking, colour is as fine as brightness. With it quality 90 beats 4:2:0 at 95, in fewer bytes.
    sampling = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444]
    written, data = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, spec.quality, *sampling])
    if not written:
        raise ImageError(f"{spec.column}: OpenCV refused to encode {spec.size[1]}×{spec.size[0]} px as JPEG")
    return np.asarray(data, np.uint8).reshape(-1)


def decode(spec: ViewSpec, data: NDArray[np.uint8], out: NDArray[np.uint8]) -> bool:
    """A JPEG that `encode` made into (channels, height, width); False where it is none."""
    import cv2

    flags = cv2.IMREAD_GRAYSCALE if spec.channels == 1 else cv2.IMREAD_COLOR
    try:
        # The file is not trusted: no memory for pixels before the header is checked.
        if codec.size_of(data.data) != spec.shape[1:]:
            return False
        pixels: Any = cv2.imdecode(data, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except (cv2.error, PenstockError):
        return False
    if pixels is None or pixels.shape[:2] != spec.shape[1:]:
        return False
    if spec.channels == 1:
        out[0] = pixels
    elif out.flags.c_contiguous:
        cv2.split(pixels, [out[2], out[1], out[0]])
    else:
        out[...] = pixels[:, :, ::-1].transpose(2, 0, 1)
    return True


def append(fd: int, data: NDArray[np.uint8], limit_bytes: int) -> int | None:
    """Write at the end of the file, unless it would exceed `limit_bytes`; the offset, or None where it is full.

    The end itself is the cursor: there is none that could be damaged. Only one thread of all processes appends at a
    time.
    """
    own = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)  # so that the lock excludes threads, too
    try:
        with locked(own):
            offset = os.fstat(own).st_size
            if offset + len(data) > limit_bytes:
                return None
            write_all(own, data.data, offset)
            return offset
    finally:
        os.close(own)
