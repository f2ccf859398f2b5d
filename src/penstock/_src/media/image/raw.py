"""Raw pixels of `sensor_msgs/Image` in every encoding that ROS names for cameras, as RGB.

Each encoding has one fixed rule, never one per frame: 16 bits become 8 by their high byte (÷ 256), YUV is BT.601 with
16…235 for black…white as cv_bridge takes it, 8UC3 and 16UC3 are in OpenCV's order (BGR).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image import jpeg
from penstock.errors import ImageError


class RawImage(NamedTuple):
    """Pixels as `sensor_msgs/Image` carries them: `height` rows of `step` bytes each."""

    height: int
    width: int
    encoding: str
    big_endian: bool
    step: int
    data: memoryview

    def __repr__(self) -> str:
        return f"RawImage({self.width}×{self.height} {self.encoding!r}, step {self.step}, {len(self.data):,} bytes)"


class _Layout(NamedTuple):
    """How the samples of an encoding lie in a row, and what they mean."""

    order: str
    samples: int  # per pixel of a row
    bits: int = 8
    even: tuple[int, int] = (1, 1)  # height and width are multiples of these
    has_chroma_rows: bool = False  # half as many rows follow the image's own


def _layouts() -> dict[str, _Layout]:
    table = {
        "nv12": _Layout("nv12", 1, even=(2, 2), has_chroma_rows=True),
        "nv21": _Layout("nv21", 1, even=(2, 2), has_chroma_rows=True),
    }
    for name in ("yuv422", "uyvy"):
        table[name] = _Layout("uyvy", 2, even=(1, 2))
    for name in ("yuv422_yuy2", "yuyv"):
        table[name] = _Layout("yuyv", 2, even=(1, 2))
    for bits in (8, 16):
        for order, samples in (("rgb", 3), ("bgr", 3), ("rgba", 4), ("bgra", 4)):
            table[f"{order}{bits}"] = _Layout(order, samples, bits)
        for order, samples in (("gray", 1), ("bgr", 3), ("bgra", 4)):
            table[f"{bits}UC{samples}"] = _Layout(order, samples, bits)
        table[f"mono{bits}"] = _Layout("gray", 1, bits)
        for pattern in ("rggb", "bggr", "gbrg", "grbg"):
            table[f"bayer_{pattern}{bits}"] = _Layout(pattern, 1, bits)
    return table


_LAYOUTS = _layouts()
ENCODINGS: tuple[str, ...] = tuple(sorted(_LAYOUTS))
"""What `to_rgb` takes."""

_SMALLEST_BAYER_PX = 4


def check_encoding(encoding: str) -> None:
    """Refuse an encoding that no camera of a data set can be made of."""
    if encoding in _LAYOUTS:
        return
    hint = "convert the topic to one of the known encodings, or leave it out of the mapping"
    if encoding.startswith("32FC1"):
        hint = "distances as 32FC1 are mapped as depth: set depth: metric or 8bit"
    raise ImageError(f"unknown image encoding {encoding!r}; known: {', '.join(ENCODINGS)}", hint=hint)


def to_rgb(image: RawImage) -> NDArray[np.uint8]:
    """Raw pixels of a message as RGB, shape (height, width, 3); a view of the message where the layout is the same."""
    check_encoding(image.encoding)
    layout = _LAYOUTS[image.encoding]
    height, width = image.height, image.width
    if height % layout.even[0] or width % layout.even[1]:
        raise ImageError(
            f"{image.encoding} shares its colours between neighbours and cannot be {width}×{height} pixels: "
            f"the width is a multiple of {layout.even[1]}, the height of {layout.even[0]}"
        )
    lines = height + (height // 2 if layout.has_chroma_rows else 0)
    if layout.bits == 16 and layout.order in _BAYER:
        colours = _demosaic(rows(image, "u2", 1).astype(np.uint16), layout.order)
        return np.asarray(colours >> 8, np.uint8)
    pixels = rows(image, "u1", layout.samples * layout.bits // 8, lines=lines)
    if layout.bits == 16:
        pixels = pixels.reshape(height, -1, 2)[:, :, 0 if image.big_endian else 1]
    return _as_rgb(np.ascontiguousarray(pixels), layout, height, width)


def rows(image: RawImage, kind: str, samples: int, *, lines: int | None = None) -> NDArray[Any]:
    """The samples of each row without its padding, in the byte order of the message; a view where there is none.

    `lines` counts the rows of chroma that some encodings append to the image's own.
    """
    height, width, step = image.height, image.width, image.step
    jpeg.check_size(width, height, "image message")
    dtype = np.dtype(kind).newbyteorder(">" if image.big_endian else "<")
    row_bytes = width * samples * dtype.itemsize
    if step < row_bytes:
        raise ImageError(f"image step is {step} bytes, {width} pixels of {image.encoding} need {row_bytes}")
    held = height if lines is None else lines
    needed_bytes, held_bytes = held * step, len(image.data)
    if not needed_bytes <= held_bytes < needed_bytes + step:
        raise ImageError(f"image data has {held_bytes:,} bytes, {held} rows of {step} bytes need {needed_bytes:,}")
    whole = np.frombuffer(image.data, np.uint8, needed_bytes).reshape(held, step)
    return np.ascontiguousarray(whole[:, :row_bytes]).view(dtype)


def _as_rgb(pixels: NDArray[np.uint8], layout: _Layout, height: int, width: int) -> NDArray[np.uint8]:
    order = layout.order
    if order == "rgb":
        return pixels.reshape(height, width, 3)
    if order in _BAYER:
        return np.asarray(_demosaic(pixels.reshape(height, width), order), np.uint8)
    import cv2

    codes = {
        "bgr": cv2.COLOR_BGR2RGB,
        "rgba": cv2.COLOR_RGBA2RGB,
        "bgra": cv2.COLOR_BGRA2RGB,
        "gray": cv2.COLOR_GRAY2RGB,
        "uyvy": cv2.COLOR_YUV2RGB_UYVY,
        "yuyv": cv2.COLOR_YUV2RGB_YUYV,
        "nv12": cv2.COLOR_YUV2RGB_NV12,
        "nv21": cv2.COLOR_YUV2RGB_NV21,
    }
    shaped = pixels.reshape(-1, width) if layout.samples == 1 else pixels.reshape(height, width, layout.samples)
    return np.asarray(cv2.cvtColor(shaped, codes[order]), np.uint8)


# OpenCV names a pattern by its second row's second and third pixel, ROS by its first four.
_BAYER = {"rggb": "COLOR_BayerBG2RGB", "bggr": "COLOR_BayerRG2RGB", "gbrg": "COLOR_BayerGR2RGB",
          "grbg": "COLOR_BayerGB2RGB"}  # fmt: skip


def _demosaic(mosaic: NDArray[Any], pattern: str) -> NDArray[Any]:
    """Bilinear, as OpenCV and cv_bridge do it; the outermost pixels repeat their neighbours."""
    height, width = mosaic.shape
    if min(height, width) < _SMALLEST_BAYER_PX:
        raise ImageError(
            f"a Bayer image of {width}×{height} pixels is too small to have colours: "
            f"{_SMALLEST_BAYER_PX} per side are needed"
        )
    import cv2

    return np.asarray(cv2.cvtColor(mosaic, getattr(cv2, _BAYER[pattern])))


__all__ = ["ENCODINGS", "RawImage", "check_encoding", "rows", "to_rgb"]
