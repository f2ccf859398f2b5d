"""One image straight to the training size and into its place: scaled decode, resize, channels first, float tables.

The resize is OpenCV's linear one. A JPEG is decoded at ½, ¼ or ⅛ of its size where that is still at least the size
asked for (the codec leaves out coefficients, which also keeps fine detail from aliasing); `exact` decodes it whole.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image import codec
from penstock._src.media.image.jpeg import JpegProbe
from penstock._src.stores.store import Column, ImageArray
from penstock.errors import ImageError, UsageError

RESIZES = ("linear", "area", "nearest")
_MOST_SHIFT = 0.1  # of an output pixel, at the far edge of an image that is decoded at a fraction of its size


@dataclass(frozen=True)
class ImageFit:
    """How the images of one column become rows of a batch."""

    name: str
    stored: tuple[int, int]
    """(height, width) as it lies in the store; where that varies, the largest that is known."""
    size: tuple[int, int]
    channels: int
    exact: bool = False
    resize: str = "linear"
    is_depth: bool = False
    varies: bool = False
    """Whether each image has a size of its own."""

    @property
    def reduction(self) -> int:
        """By how much a JPEG is scaled while it is decoded.

        A side that the factor does not divide ends with a pixel that is only partly of the image, and the resize
        takes it for a whole one: everything moves, at the far edge by that part.
        """
        if self.exact:
            return 1
        sides = tuple(zip(self.stored, self.size, strict=True))
        for factor in (8, 4, 2):
            if all(
                -(-have_px // factor) >= wanted_px and -have_px % factor * wanted_px <= _MOST_SHIFT * have_px
                for have_px, wanted_px in sides
            ):
                return factor
        return 1

    @property
    def scratch_bytes(self) -> int:
        """What one image needs beside its place: decoded pixels and the resized ones before they are split."""
        height, width = self.stored
        return 2 * height * width * max(self.channels, 3) + self.size[0] * self.size[1] * max(self.channels, 3)


def fit_for(column: Column, size: tuple[int, int] | None, exact: bool = False, resize: str = "linear") -> ImageFit:
    """The fit of a column; `size` None keeps the size it has."""
    if resize not in RESIZES:
        raise UsageError(f"unknown resize {resize!r}", hint=f"one of {', '.join(RESIZES)}")
    height, width = column.shape[:2]
    channels = column.shape[2] if len(column.shape) > 2 else 1
    is_depth = column.kind == "depth"
    if column.varies and size is None:
        raise UsageError(
            f"{column.name!r}: images have sizes of their own, up to {height}×{width}", hint="image_size=(224, 224)"
        )
    # Between two depths there is no depth: the nearest is taken.
    chosen = "nearest" if is_depth else resize
    return ImageFit(
        column.name, (height, width), size or (height, width), channels, exact, chosen, is_depth, column.varies
    )


class Fitter:
    """Fits images, one thread at a time; keeps the small arrays in between.

    `fit(image, fit, out)` writes (channels, height, width) uint8 (depth: its own dtype) into `out`.
    """

    def __init__(self) -> None:
        self._resized: dict[tuple[int, ...], NDArray[Any]] = {}
        self._probes: dict[str, JpegProbe] = {}

    def fit(self, image: ImageArray, fit: ImageFit, out: NDArray[Any]) -> None:
        """Decode where it is encoded, resize where the size differs, and write it with channels first."""
        if fit.is_depth:
            self._fit_depth(image, fit, out)
            return
        if image.ndim == 1:
            size = self.check(image, fit)
            if size != fit.stored:
                fit = replace(fit, stored=size)
            pixels, is_bgr = _decoded(image, fit), fit.channels >= 3
        else:
            pixels, is_bgr = image, False
            if pixels.shape != (*fit.stored, fit.channels):
                raise _wrong_size(fit, pixels.shape)
        self._place(pixels, fit, out, is_bgr)

    def check(self, data: NDArray[np.uint8], fit: ImageFit) -> tuple[int, int]:
        """(height, width) by the header, before a pixel is decoded; cameras repeat theirs, and an equal one is known by
        its bytes."""
        if data[:2].tobytes() == b"\xff\xd8":
            probe = self._probes.get(fit.name)
            if probe is None:
                probe = self._probes[fit.name] = JpegProbe()
            info = probe.probe(data.data)
            size = info.height, info.width
        else:
            size = codec.size_of(data.data)
        if size != fit.stored and not fit.varies:
            raise _wrong_size(fit, size)
        return size

    def _place(self, pixels: NDArray[np.uint8], fit: ImageFit, out: NDArray[np.uint8], is_bgr: bool) -> None:
        import cv2

        if pixels.shape[:2] != fit.size:
            if not pixels.flags.c_contiguous and pixels.transpose(2, 0, 1).flags.c_contiguous:
                method = _method(fit.resize)
                for channel in range(fit.channels):  # channels lie apart already: each is resized into its place
                    cv2.resize(pixels[:, :, channel], fit.size[::-1], dst=out[channel], interpolation=method)
                return
            small = self._small((*fit.size, fit.channels))
            cv2.resize(pixels, fit.size[::-1], dst=small, interpolation=_method(fit.resize))
            pixels = small
        if fit.channels == 1:
            out[0] = pixels.reshape(fit.size)
        elif pixels.flags.c_contiguous and out.flags.c_contiguous:
            planes = [out[2], out[1], out[0], *out[3:]] if is_bgr else list(out)
            cv2.split(pixels, planes)  # into these planes: sizes and types are equal
        else:
            out[...] = pixels.transpose(2, 0, 1)

    def _fit_depth(self, image: ImageArray, fit: ImageFit, out: NDArray[Any]) -> None:
        if image.ndim == 1:
            from penstock._src.media.image import depth

            image = depth.decode(image.tobytes())
        pixels: NDArray[Any] = image.reshape(image.shape[:2])
        if tuple(pixels.shape) != tuple(fit.stored):
            raise _wrong_size(fit, pixels.shape)
        if fit.stored == fit.size:
            out[0] = pixels
            return
        import cv2

        out[0] = cv2.resize(np.ascontiguousarray(pixels), fit.size[::-1], interpolation=_method(fit.resize))

    def _small(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        held = self._resized.get(shape)
        if held is None:
            held = self._resized[shape] = np.empty(shape, np.uint8)
        return held


def _decoded(data: NDArray[np.uint8], fit: ImageFit) -> NDArray[np.uint8]:
    """Encoded bytes as BGR (or gray) pixels, at a fraction of the size where that is enough."""
    import cv2

    # Other codecs cannot leave anything out: OpenCV would resize what they give, and once more is once too often.
    reduction = fit.reduction if data[:2].tobytes() == b"\xff\xd8" else 1
    if fit.channels == 4:
        flags = cv2.IMREAD_UNCHANGED  # with its alpha
    elif fit.channels == 1:
        flags = {1: cv2.IMREAD_GRAYSCALE, 2: cv2.IMREAD_REDUCED_GRAYSCALE_2, 4: cv2.IMREAD_REDUCED_GRAYSCALE_4,
                 8: cv2.IMREAD_REDUCED_GRAYSCALE_8}[reduction]  # fmt: skip
    else:
        flags = {1: cv2.IMREAD_COLOR, 2: cv2.IMREAD_REDUCED_COLOR_2, 4: cv2.IMREAD_REDUCED_COLOR_4,
                 8: cv2.IMREAD_REDUCED_COLOR_8}[reduction]  # fmt: skip
    try:
        pixels: Any = cv2.imdecode(data, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ImageError(f"{fit.name}: an image of {len(data):,} bytes cannot be decoded: {error}") from error
    if pixels is None:
        raise ImageError(f"{fit.name}: an image of {len(data):,} bytes cannot be decoded")
    if fit.channels == 4 and (pixels.dtype != np.uint8 or pixels.shape[2:] != (4,)):
        layout = f"{pixels.dtype} with {pixels.shape[2] if pixels.ndim > 2 else 1} channels"
        raise ImageError(f"{fit.name}: an image is {layout}, the column's are uint8 with 4")
    result: NDArray[np.uint8] = pixels
    return result


def _wrong_size(fit: ImageFit, size: Sequence[int]) -> ImageError:
    return ImageError(f"{fit.name}: an image of {tuple(size)}, the column's are {fit.stored}")


def _method(resize: str) -> int:
    import cv2

    return {"linear": int(cv2.INTER_LINEAR), "area": int(cv2.INTER_AREA), "nearest": int(cv2.INTER_NEAREST)}[resize]


def fit_image(image: NDArray[np.uint8] | bytes, size: tuple[int, int], *, resize: str = "linear") -> NDArray[np.uint8]:
    """One image as a loader gives it, for a policy that acts: (channels, height, width), decoded and resized alike.

    `image` is encoded (JPEG, PNG), or pixels of shape (height, width, channels).
    """
    array = np.frombuffer(image, np.uint8) if isinstance(image, bytes) else image
    stored, channels = (codec.size_of(array.data), 3) if array.ndim == 1 else (array.shape[:2], array.shape[2])
    out = np.empty((channels, *size), np.uint8)
    Fitter().fit(array, ImageFit("image", stored, size, channels, resize=resize), out)
    return out


class FloatTable:
    """uint8 → float32 by a table of 256 values per channel: ÷255, then (x - mean) / std where asked."""

    def __init__(self, channels: int, mean: Sequence[float] | None = None, std: Sequence[float] | None = None) -> None:
        means = np.asarray([0.0] * channels if mean is None else mean, np.float32).reshape(-1)
        stds = np.asarray([1.0] * channels if std is None else std, np.float32).reshape(-1)
        if len(means) != channels or len(stds) != channels or not (stds > 0).all():
            raise UsageError(
                f"normalize needs {channels} means and {channels} standard deviations above 0, "
                f"got {means.tolist()} and {stds.tolist()}"
            )
        values = np.arange(256, dtype=np.float32) / np.float32(255)
        self._tables = [((values - m) / s).reshape(1, 256) for m, s in zip(means, stds, strict=True)]

    def write(self, pixels: NDArray[np.uint8], out: NDArray[np.float32]) -> None:
        """(channels, height, width) uint8 into float32 of the same shape."""
        import cv2

        for channel, table in enumerate(self._tables):
            cv2.LUT(pixels[channel], table, dst=out[channel])


_quiet = threading.RLock()  # a forgotten thread pool may end while another begins
_quiet_count = 0
_threads_before = 0
_IN_SEQUENCE = 0


def begin_quiet() -> None:
    """From here on OpenCV splits no image among threads of its own: several threads work on images already."""
    global _quiet_count, _threads_before
    import cv2

    with _quiet:
        if _quiet_count == 0:
            _threads_before = cv2.getNumThreads()
            # Not 1: that ends OpenCV's own threads, for which a child of a fork, which has none, would wait for ever.
            cv2.setNumThreads(_IN_SEQUENCE)
        _quiet_count += 1


def end_quiet() -> None:
    """Restore the value from before, once it is not needed any more."""
    global _quiet_count
    import cv2

    with _quiet:
        _quiet_count -= 1
        if _quiet_count == 0:
            cv2.setNumThreads(_threads_before if _threads_before > 1 else _IN_SEQUENCE)
