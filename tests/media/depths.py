"""Depth images as drivers send them, packed by code that shares nothing with penstock's."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.media.images import encode

INVERSE = (100.0 * 101.0, 1.0 - 100.0 * 101.0 / 10.0)  # compressed_depth_image_transport: quantisation 100, 10 m


def millimetres(number: int = 0, height: int = 48, width: int = 64) -> NDArray[np.uint16]:
    """A slanted floor with a box that moves, holes without a reading, and a far pixel of 65,535."""
    y, x = np.mgrid[0:height, 0:width]
    depth = 600 + 40 * y + 3 * x + number
    depth[(x // 8) == (number % max(width // 8, 1))] = 431 + number
    depth[(x * 7 + y * 13 + number) % 29 == 0] = 0
    depth[0, 0] = 65_535
    return depth.astype(np.uint16)


def metres(number: int = 0, height: int = 48, width: int = 64) -> NDArray[np.float32]:
    """As floats: NaN without a reading, infinity beyond the range."""
    depth = (millimetres(number, height, width) / 1000.0).astype(np.float32)
    depth[depth == 0] = np.nan
    depth[0, 0] = np.inf
    return depth


def png16(pixels: NDArray[Any]) -> bytes:
    return encode(".png", pixels)


def header(parameters: tuple[float, float] = (0.0, 0.0)) -> bytes:
    return struct.pack("<iff", 0, *parameters)


def packed_png(pixels: NDArray[np.uint16]) -> bytes:
    """As "16UC1; compressedDepth png"."""
    return header() + png16(pixels)


def inverse(depth_m: NDArray[np.float32], parameters: tuple[float, float] = INVERSE) -> NDArray[np.uint16]:
    """Metres as 16-bit inverse depth, one pixel at a time, as the ROS transport does."""
    a, b = parameters
    flat = [int(a / z + b) if np.isfinite(z) and z < 10.0 else 0 for z in depth_m.reshape(-1).tolist()]
    return np.array(flat, np.uint16).reshape(depth_m.shape)


def packed_inverse(depth_m: NDArray[np.float32]) -> bytes:
    """As "32FC1; compressedDepth png"."""
    return header(INVERSE) + png16(inverse(depth_m))


def rvl(pixels: NDArray[np.uint16]) -> bytes:
    """RVL of an image, value by value."""
    groups: list[int] = []

    def put(value: int) -> None:
        while True:
            group, value = value & 7, value >> 3
            groups.append(group | (8 if value else 0))
            if not value:
                return

    flat = pixels.reshape(-1).tolist()
    at = previous = 0
    while at < len(flat):
        zeros = at
        while at < len(flat) and flat[at] == 0:
            at += 1
        put(at - zeros)
        end = at
        while end < len(flat) and flat[end]:
            end += 1
        put(end - at)
        for value in flat[at:end]:
            difference = value - previous
            put(2 * difference if difference >= 0 else -2 * difference - 1)
            previous = value
        at = end
    groups += [0] * (-len(groups) % 8)
    words = [int("".join(f"{group:x}" for group in groups[i : i + 8]), 16) for i in range(0, len(groups), 8)]
    return struct.pack(f"<{len(words)}I", *words)


def packed_rvl(pixels: NDArray[np.uint16], parameters: tuple[float, float] = (0.0, 0.0)) -> bytes:
    """As "16UC1; compressedDepth rvl": width and height stand before the code."""
    height, width = pixels.shape
    return header(parameters) + struct.pack("<II", width, height) + rvl(pixels)
