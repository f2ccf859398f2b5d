"""One image: bytes to RGB pixels and back, through OpenCV, with the header checked first."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image import jpeg, png
from penstock.errors import ImageError

_SAMPLING_FACTOR = {"4:2:0": 0x221111, "4:2:2": 0x211111, "4:4:4": 0x111111}
JPEG_QUALITY = 95


def size_of(data: memoryview | bytes) -> tuple[int, int]:
    """(height, width) of a JPEG or PNG from its header, refused when hostile."""
    if png.is_png(data):
        header = png.read_header(data)
        png.check_shallow(header)
        width, height = header.width, header.height
    elif data[:2] == b"\xff\xd8":
        info = jpeg.probe(data)
        width, height = info.width, info.height
    else:
        start = bytes(data[:8]).hex(" ") or "nothing"
        raise ImageError(
            f"neither JPEG nor PNG: {len(data):,} bytes that start with {start}",
            hint="only JPEG and PNG images are decoded",
        )
    png.check_pixels(width, height)
    return height, width


def decode(data: memoryview | bytes) -> NDArray[np.uint8]:
    """A JPEG or PNG as RGB, shape (height, width, 3). Pixels stay where they are stored: Exif rotation is ignored,
    as video decoders ignore it."""
    height, width = size_of(data)
    import cv2

    flags = cv2.IMREAD_COLOR | cv2.IMREAD_IGNORE_ORIENTATION
    rgb_flag = getattr(cv2, "IMREAD_COLOR_RGB", None)  # OpenCV >= 4.11 swaps while it decodes
    if rgb_flag is not None:
        flags = rgb_flag | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        if pixels is not None and rgb_flag is None:
            pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB)
    except cv2.error as error:
        raise ImageError(f"image of {len(data):,} bytes ({width}×{height}) cannot be decoded: {error}") from error
    if pixels is None or pixels.shape != (height, width, 3) or pixels.dtype != np.uint8:
        actual = "nothing" if pixels is None else f"{pixels.dtype} {pixels.shape}"
        raise ImageError(f"image of {len(data):,} bytes ({width}×{height} by its header) decodes to {actual}")
    result: NDArray[np.uint8] = pixels
    return result


def resize(rgb: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Resize to (height, width): area averages when shrinking, so that nothing aliases, else linear."""
    height, width = size
    jpeg.check_size(width, height, "resize target")
    if rgb.shape[:2] == (height, width):
        return rgb
    import cv2

    shrinks = height <= rgb.shape[0] and width <= rgb.shape[1]
    method = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    resized: NDArray[np.uint8] = np.asarray(cv2.resize(rgb, (width, height), interpolation=method), np.uint8)
    return resized


def encode_jpeg(rgb: NDArray[np.uint8], quality: int = JPEG_QUALITY, subsampling: str = "4:2:0") -> bytes:
    """RGB as a baseline JPEG; `subsampling` "4:4:4" keeps colour edges, at about 1.3 times the bytes."""
    if rgb.ndim != 3 or rgb.shape[2] != 3 or rgb.dtype != np.uint8:
        raise ImageError(f"expected RGB uint8 of shape (height, width, 3), got {rgb.dtype} {rgb.shape}")
    jpeg.check_size(rgb.shape[1], rgb.shape[0], "image")
    if not 1 <= quality <= 100:
        raise ImageError(f"JPEG quality {quality} is outside 1…100")
    if subsampling not in _SAMPLING_FACTOR:
        raise ImageError(f"unknown JPEG subsampling {subsampling!r}; known: {', '.join(_SAMPLING_FACTOR)}")
    import cv2

    options = [
        cv2.IMWRITE_JPEG_QUALITY,
        quality,
        cv2.IMWRITE_JPEG_SAMPLING_FACTOR,
        _SAMPLING_FACTOR[subsampling],
    ]
    try:
        written, encoded = cv2.imencode(".jpg", cv2.cvtColor(rgb, cv2.COLOR_RGB2BGR), options)
    except cv2.error as error:
        raise ImageError(f"image {rgb.shape[1]}×{rgb.shape[0]} cannot be encoded as JPEG: {error}") from error
    if not written:
        raise ImageError(f"OpenCV refused to encode {rgb.shape[1]}×{rgb.shape[0]} as JPEG")
    return encoded.tobytes()
