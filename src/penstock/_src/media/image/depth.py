"""Depth images: 16-bit millimetres or float metres out of every packing that ROS sends, and into exact files.

Kept are uint16 as PNG and float32 as TIFF, both without loss. `compressedDepth` is a header of 12 bytes (which
quantisation, and its two parameters), then a PNG, or width, height and RVL.
"""

from __future__ import annotations

import struct
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image import jpeg, png, rvl, tiff
from penstock._src.media.image import raw as raw_image
from penstock.errors import ImageError

Packing = Literal["raw", "png", "rvl"]
Values = Literal["16UC1", "32FC1"]
DepthPixels: TypeAlias = "NDArray[np.uint16] | NDArray[np.float32]"

UNITS: dict[Values, str] = {"16UC1": "mm", "32FC1": "m"}
MM_PER_M = 1000.0
_RAW_VALUES: dict[str, Values] = {"16UC1": "16UC1", "mono16": "16UC1", "32FC1": "32FC1"}
_CONFIG = struct.Struct("<iff")  # format, depthQuantA, depthQuantB
_RVL_SIZE = struct.Struct("<II")  # width, height
_PNG_LEVEL = 1  # of 9: depth of a real camera is noise in its low bits, and higher levels cost more than they save


class DepthInfo(NamedTuple):
    """What one depth image is, from its header alone; `start` is where its PNG or RVL begins."""

    height: int
    width: int
    values: Values
    packing: Packing
    start: int = 0
    quantisation: tuple[float, float] | None = None

    @property
    def unit(self) -> str:
        return UNITS[self.values]

    @property
    def is_stored_form(self) -> bool:
        """Its PNG is what the data set keeps: it can be copied."""
        return self.packing == "png" and self.values == "16UC1"

    def __str__(self) -> str:
        return f"{self.values} {self.packing} {self.width}×{self.height}"


def probe_raw(image: raw_image.RawImage) -> DepthInfo:
    values = _RAW_VALUES.get(image.encoding)
    if values is None:
        raise ImageError(
            f"encoding {image.encoding!r} is not depth; depth is {', '.join(_RAW_VALUES)}",
            hint="depth: off takes the topic as an ordinary camera",
        )
    jpeg.check_size(image.width, image.height, "image message")
    png.check_pixels(image.width, image.height)
    return DepthInfo(image.height, image.width, values, "raw")


def probe_compressed(format_text: str, data: memoryview | bytes) -> DepthInfo:
    """What a `compressedDepth` message (or a bare 16-bit PNG) holds; `format_text` is its `format` field."""
    values: Values = "32FC1" if format_text.strip().startswith("32FC1") else "16UC1"
    if png.is_png(data):
        return _png_info(data, 0, "16UC1", None)
    if len(data) < _CONFIG.size + 8:
        raise ImageError(
            f"compressedDepth message of {len(data):,} bytes is cut: its header and an image need more than "
            f"{_CONFIG.size + 8} (format {format_text!r})"
        )
    _, *parameters = _CONFIG.unpack_from(data)
    quantisation = _checked(parameters) if values == "32FC1" else None
    if png.is_png(data[_CONFIG.size :]):
        return _png_info(data, _CONFIG.size, values, quantisation)
    if "rvl" not in format_text.lower():
        start = bytes(data[_CONFIG.size : _CONFIG.size + 8]).hex(" ")
        raise ImageError(
            f"compressedDepth message of {len(data):,} bytes with format {format_text!r} holds neither PNG nor RVL: "
            f"{start} behind its header of {_CONFIG.size} bytes"
        )
    width, height = _RVL_SIZE.unpack_from(data, _CONFIG.size)
    jpeg.check_size(width, height, "RVL")
    png.check_pixels(width, height)
    return DepthInfo(height, width, values, "rvl", _CONFIG.size + _RVL_SIZE.size, quantisation)


def from_raw(image: raw_image.RawImage) -> DepthPixels:
    """The values of a raw message, native byte order, shape (height, width)."""
    info = probe_raw(image)
    if info.values == "32FC1":
        return raw_image.rows(image, "f4", 1).astype(np.float32)
    return raw_image.rows(image, "u2", 1).astype(np.uint16)


def from_compressed(info: DepthInfo, data: memoryview | bytes) -> DepthPixels:
    """The values of a message that `probe_compressed` described, shape (height, width)."""
    stored: Any
    if info.packing == "rvl":
        stored = rvl.decode(data[info.start :], info.height, info.width)
    else:
        stored = decode(data[info.start :])
    if info.values == "16UC1" or info.quantisation is None:
        return stored  # type: ignore[no-any-return]
    return _from_inverse(stored, info.quantisation)


def encode(pixels: DepthPixels) -> bytes:
    """The file that keeps the values exactly: PNG for uint16, TIFF for float32."""
    if pixels.dtype == np.float32:
        return tiff.encode(pixels)
    if pixels.ndim != 2 or pixels.dtype != np.uint16:
        raise ImageError(f"depth is uint16 or float32 of shape (height, width), not {pixels.dtype} {pixels.shape}")
    import cv2

    jpeg.check_size(pixels.shape[1], pixels.shape[0], "image")
    written, encoded = cv2.imencode(".png", pixels, [cv2.IMWRITE_PNG_COMPRESSION, _PNG_LEVEL])
    if not written:
        raise ImageError(f"OpenCV refused to encode {pixels.shape[1]}×{pixels.shape[0]} as 16-bit PNG")
    return bytes(encoded.tobytes())


def decode(data: memoryview | bytes) -> DepthPixels:
    """A stored depth image as uint16 (PNG, TIFF) or float32 (TIFF), shape (height, width), exactly as it was kept."""
    if png.is_png(data):
        _png_info(data, 0, "16UC1", None)  # refuses hostile sizes
    elif not tiff.is_tiff(data):
        start = bytes(data[:8]).hex(" ") or "nothing"
        raise ImageError(f"depth is kept as PNG or TIFF; these are {len(data):,} bytes that start with {start}")
    import cv2

    what = f"depth image of {len(data):,} bytes"
    try:
        pixels: Any = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise ImageError(f"{what} cannot be decoded: {error}") from error
    if pixels is None or pixels.ndim != 2 or pixels.dtype not in (np.uint16, np.float32):
        raise ImageError(f"{what} decodes to {'nothing' if pixels is None else f'{pixels.dtype} {pixels.shape}'}")
    return pixels  # type: ignore[no-any-return]


def resize(pixels: DepthPixels, size: tuple[int, int]) -> DepthPixels:
    """To (height, width) by the nearest pixel: between two distances nothing is invented."""
    height, width = size
    jpeg.check_size(width, height, "resize target")
    if pixels.shape == (height, width):
        return pixels
    rows = ((np.arange(height) + 0.5) * pixels.shape[0] / height).astype(np.intp)
    columns = ((np.arange(width) + 0.5) * pixels.shape[1] / width).astype(np.intp)
    picked: DepthPixels = pixels[rows[:, np.newaxis], columns]
    return picked


def to_gray(pixels: DepthPixels, range_mm: tuple[float, float]) -> NDArray[np.uint8]:
    """8 bits for one fixed range in mm: its low end (and no reading at all) is 0, its high end 255."""
    low, high = range_mm
    values = pixels.astype(np.float32)
    if pixels.dtype == np.float32:
        values *= np.float32(MM_PER_M)
        values[np.isnan(values)] = low
    values -= np.float32(low)
    values *= np.float32(255.0 / (high - low))
    np.clip(values, 0.0, 255.0, out=values)
    gray: NDArray[np.uint8] = np.rint(values).astype(np.uint8)
    return gray


def _png_info(
    data: memoryview | bytes, start: int, values: Values, quantisation: tuple[float, float] | None
) -> DepthInfo:
    info = png.probe(data[start:])
    if not info.is_depth:
        raise ImageError(
            f"depth PNG {info.width}×{info.height} has {info.bit_depth} bits and colour type {info.colour_type}; "
            "one gray channel of 16 bits is expected"
        )
    return DepthInfo(info.height, info.width, values, "png", start, quantisation)


def _checked(parameters: list[float]) -> tuple[float, float]:
    a, b = parameters
    if not np.isfinite([a, b]).all() or a <= 0:
        raise ImageError(
            f"compressedDepth header of a 32FC1 image gives the quantisation A = {a}, B = {b}: A must be above 0"
        )
    return a, b


def _from_inverse(stored: NDArray[np.uint16], quantisation: tuple[float, float]) -> NDArray[np.float32]:
    """Metres from inverse depth: A / (value − B), and NaN for 0, which stands for no reading."""
    a, b = (np.float32(parameter) for parameter in quantisation)
    with np.errstate(divide="ignore"):
        metres: NDArray[np.float32] = a / (stored.astype(np.float32) - b)
    metres[stored == 0] = np.nan
    return metres
