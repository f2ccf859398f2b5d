"""Small images and JPEGs for the tests of the media room."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from penstock._src.media.image import codec


def rgb_image(number: int = 0, height: int = 48, width: int = 64) -> NDArray[np.uint8]:
    """Smooth colours that differ from number to number, so that no two frames are alike even after a lossy codec."""
    y, x = np.mgrid[0:height, 0:width]
    phase = 0.7 * number
    channels = [128 + 100 * np.sin(x / (9 + k) + phase) * np.cos(y / (7 + k) + phase * (k + 1)) for k in range(3)]
    return np.stack(channels, axis=-1).clip(0, 255).astype(np.uint8)


def jpegs(count: int, height: int = 48, width: int = 64, first: int = 0) -> list[bytes]:
    return [codec.encode_jpeg(rgb_image(first + k, height, width)) for k in range(count)]


def gray_jpeg(number: int = 0, height: int = 48, width: int = 64) -> bytes:
    return encode(".jpg", rgb_image(number, height, width)[:, :, 0])


def encode(suffix: str, pixels: NDArray[Any], *options: int) -> bytes:
    written, data = cv2.imencode(suffix, pixels, list(options))
    assert written
    return bytes(data.tobytes())


def decoded_alone(jpeg: bytes) -> NDArray[np.uint8]:
    """One JPEG through FFmpeg's decoder, without any file: what every frame of a copied video must be."""
    import av

    context: Any = av.CodecContext.create("mjpeg", "r")
    frames = [*context.decode(av.Packet(jpeg)), *context.decode(None)]
    assert len(frames) == 1
    pixels: NDArray[np.uint8] = frames[0].to_ndarray(format="rgb24")
    return pixels


def psnr_db(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> float:
    return float(cv2.PSNR(left, right))
