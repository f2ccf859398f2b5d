"""Every raw encoding against numpy computations that share nothing with OpenCV."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from penstock._src.media.image import codec
from penstock._src.media.image import raw as raw_image
from penstock.errors import ImageError, LimitExceeded
from tests.media.images import rgb_image

HEIGHT, WIDTH = 12, 18


@dataclass(frozen=True)
class Raw:
    height: int
    width: int
    encoding: str
    step: int
    data: memoryview
    big_endian: bool = False


def raw(samples: NDArray[Any], encoding: str, *, padding: int = 0, big: bool = False, rows: int = 0) -> Raw:
    """A message of the samples, (rows, …); `rows` of them are chroma behind the image."""
    lines = samples.reshape(samples.shape[0], -1).astype(samples.dtype.newbyteorder(">" if big else "<"))
    octets = np.ascontiguousarray(lines).view(np.uint8).reshape(len(lines), -1)
    octets = np.pad(octets, ((0, 0), (0, padding)), constant_values=99)
    return Raw(len(lines) - rows, WIDTH, encoding, octets.shape[1], memoryview(octets.tobytes()), big)


def rgb8() -> NDArray[np.uint8]:
    return rgb_image(height=HEIGHT, width=WIDTH)


def with_alpha(rgb: NDArray[Any]) -> NDArray[Any]:
    return np.concatenate([rgb, np.full((*rgb.shape[:2], 1), 77, rgb.dtype)], axis=2)


def deep(rgb: NDArray[np.uint8]) -> NDArray[np.uint16]:
    """16 bits whose low byte is noise."""
    noise = np.random.default_rng(0).integers(0, 256, rgb.shape, dtype=np.uint16)
    return (rgb.astype(np.uint16) << 8) | noise


@pytest.mark.parametrize("padding", [0, 6])
@pytest.mark.parametrize("big", [False, True])
def test_colour_orders_of_8_and_16_bits(padding: int, big: bool) -> None:
    rgb = rgb8()
    bgr = rgb[:, :, ::-1]
    for encoding, pixels in {
        "rgb8": rgb, "bgr8": bgr, "8UC3": bgr, "rgba8": with_alpha(rgb), "bgra8": with_alpha(bgr),
        "8UC4": with_alpha(bgr), "rgb16": deep(rgb), "bgr16": deep(bgr), "16UC3": deep(bgr),
        "rgba16": deep(with_alpha(rgb)), "bgra16": deep(with_alpha(bgr)), "16UC4": deep(with_alpha(bgr)),
    }.items():  # fmt: skip
        shown = raw_image.to_rgb(raw(pixels, encoding, padding=padding, big=big))
        assert np.array_equal(shown, rgb), encoding
        assert len(codec.encode_jpeg(shown)) > 100  # a read-only view is fine


@pytest.mark.parametrize("encoding", ["mono8", "8UC1", "mono16", "16UC1"])
@pytest.mark.parametrize("big", [False, True])
def test_gray_keeps_its_high_byte_whatever_else_the_frame_holds(encoding: str, big: bool) -> None:
    gray = rgb8()[:, :, 0]
    pixels = deep(gray) if "16" in encoding else gray
    dark = pixels // 2  # a rule per frame would stretch both to the same image
    shown = raw_image.to_rgb(raw(pixels, encoding, padding=4, big=big))
    shown_dark = raw_image.to_rgb(raw(dark, encoding, big=big))
    assert np.array_equal(shown, np.repeat(gray[..., np.newaxis], 3, axis=2))
    expected = dark // 256 if "16" in encoding else dark
    assert np.array_equal(shown_dark[:, :, 1], expected)


def bt601(y: NDArray[Any], u: NDArray[Any], v: NDArray[Any]) -> NDArray[np.float64]:
    """ITU-R BT.601 with 16…235 for luma and 16…240 for chroma, in floats."""
    luma = 255.0 / 219.0 * (np.maximum(y.astype(np.float64), 16) - 16)
    blue, red = u.astype(np.float64) - 128, v.astype(np.float64) - 128
    scale = 255.0 / 224.0
    r = luma + scale * 1.402 * red
    g = luma - scale * (0.344136 * blue + 0.714136 * red)
    b = luma + scale * 1.772 * blue
    return np.clip(np.stack([r, g, b], axis=-1), 0, 255)


def planes() -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    rgb = rgb8()
    return rgb[:, :, 0], rgb[:, :, 1], rgb[:, :, 2]


def near(shown: NDArray[np.uint8], expected: NDArray[np.float64]) -> bool:
    return bool(np.abs(shown.astype(np.float64) - expected).max() <= 1.6)


@pytest.mark.parametrize("encoding", ["yuv422", "uyvy", "yuv422_yuy2", "yuyv"])
@pytest.mark.parametrize("padding", [0, 4])
def test_yuv_4_2_2(encoding: str, padding: int) -> None:
    y, u, v = planes()
    half_u, half_v = u[:, ::2], v[:, ::2]
    pairs = np.empty((HEIGHT, WIDTH // 2, 4), np.uint8)
    luma, chroma = ([1, 3], [0, 2]) if encoding in ("yuv422", "uyvy") else ([0, 2], [1, 3])
    pairs[:, :, luma[0]], pairs[:, :, luma[1]] = y[:, ::2], y[:, 1::2]
    pairs[:, :, chroma[0]], pairs[:, :, chroma[1]] = half_u, half_v
    shown = raw_image.to_rgb(raw(pairs, encoding, padding=padding))
    assert near(shown, bt601(y, np.repeat(half_u, 2, axis=1), np.repeat(half_v, 2, axis=1)))


@pytest.mark.parametrize("encoding", ["nv12", "nv21"])
@pytest.mark.parametrize("padding", [0, 6])
def test_yuv_4_2_0(encoding: str, padding: int) -> None:
    y, u, v = planes()
    small = [u[::2, ::2], v[::2, ::2]]
    chroma = np.stack(small if encoding == "nv12" else small[::-1], axis=-1).reshape(HEIGHT // 2, WIDTH)
    message = raw(np.concatenate([y, chroma]), encoding, padding=padding, rows=HEIGHT // 2)
    full = [np.repeat(np.repeat(each, 2, axis=0), 2, axis=1) for each in small]
    assert near(raw_image.to_rgb(message), bt601(y, *full))


def mosaic(rgb: NDArray[Any], pattern: str) -> NDArray[Any]:
    flat = np.empty(rgb.shape[:2], rgb.dtype)
    for place, colour in enumerate(pattern):
        row, column = divmod(place, 2)
        flat[row::2, column::2] = rgb[row::2, column::2, "rgb".index(colour)]
    return flat


def bilinear(flat: NDArray[Any], pattern: str) -> NDArray[np.float64]:
    """Each missing colour is the mean of that colour's pixels among the eight neighbours (of the four for green)."""
    height, width = flat.shape
    shown = np.zeros((height, width, 3))
    for row in range(1, height - 1):
        for column in range(1, width - 1):
            for colour in range(3):
                found = {}
                for down in (-1, 0, 1):
                    for right in (-1, 0, 1):
                        if "rgb".index(pattern[2 * ((row + down) % 2) + (column + right) % 2]) == colour:
                            found[down, right] = float(flat[row + down, column + right])
                if (0, 0) in found:
                    shown[row, column, colour] = found[0, 0]
                else:
                    straight = [value for place, value in found.items() if 0 in place]
                    shown[row, column, colour] = np.mean(straight or list(found.values()))
    return shown


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer_patterns(pattern: str) -> None:
    rgb = rgb8()
    inner = (slice(1, -1), slice(1, -1))
    flat = mosaic(rgb, pattern)
    expected = bilinear(flat, pattern)[inner]
    shown = raw_image.to_rgb(raw(flat, f"bayer_{pattern}8", padding=3))
    assert np.abs(shown[inner] - expected).max() <= 1
    assert np.array_equal(shown[0, 1:-1], shown[1, 1:-1])  # the border repeats its neighbours
    wide = deep(flat)
    expected = bilinear(wide, pattern)[inner] / 256
    for big in (False, True):
        shown = raw_image.to_rgb(raw(wide, f"bayer_{pattern}16", padding=2, big=big))
        assert np.abs(shown[inner] - np.floor(expected)).max() <= 1
    one = np.broadcast_to(np.array([200, 100, 50], np.uint8), rgb.shape)
    assert np.array_equal(raw_image.to_rgb(raw(mosaic(one, pattern), f"bayer_{pattern}8")), one)


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (Raw(7, 9, "rgb8", 26, memoryview(bytes(189))), "step is 26 bytes, 9 pixels of rgb8 need 27"),
        (Raw(7, 9, "mono16", 17, memoryview(bytes(189))), "step is 17 bytes, 9 pixels of mono16 need 18"),
        (Raw(7, 9, "rgb8", 27, memoryview(bytes(188))), "188 bytes, 7 rows of 27 bytes need 189"),
        (Raw(7, 9, "rgb8", 27, memoryview(bytes(189 + 54))), "243 bytes, 7 rows of 27 bytes need 189"),
        (Raw(8, 8, "nv12", 8, memoryview(bytes(95))), "95 bytes, 12 rows of 8 bytes need 96"),
        (Raw(7, 9, "rgb8", 0, memoryview(b"")), "step is 0 bytes"),
        (Raw(7, 0, "rgb8", 27, memoryview(bytes(189))), "0×7"),
        (Raw(7, 8, "nv21", 8, memoryview(bytes(84))), "cannot be 8×7 pixels"),
        (Raw(7, 9, "yuyv", 18, memoryview(bytes(126))), "cannot be 9×7 pixels"),
        (Raw(3, 9, "bayer_rggb8", 9, memoryview(bytes(27))), "9×3 pixels is too small"),
        (Raw(7, 9, "h264", 9, memoryview(bytes(63))), "unknown image encoding 'h264'; known: 16UC1, 16UC3"),
        (Raw(7, 9, "32FC1", 36, memoryview(bytes(252))), "mapped as depth"),
    ],
)
def test_images_that_contradict_themselves_are_refused_with_the_numbers(message: Raw, says: str) -> None:
    with pytest.raises(ImageError) as caught:
        raw_image.to_rgb(message)
    assert says in str(caught.value)


def test_a_claimed_size_is_refused_before_anything_is_made_of_it() -> None:
    with pytest.raises(LimitExceeded):
        raw_image.to_rgb(Raw(7, 1 << 31, "rgb8", 27, memoryview(bytes(189))))


def test_every_encoding_that_is_offered_works() -> None:
    for encoding in raw_image.ENCODINGS:
        wide = 2 if "16" in encoding else 1
        samples = 4 if "a8" in encoding or "a16" in encoding or encoding.endswith("C4") else 3
        lines = 3 * HEIGHT if encoding == "nv24" else HEIGHT * 3 // 2 if encoding.startswith("nv") else HEIGHT
        if encoding.startswith(("nv", "mono", "bayer")) or encoding.endswith("C1"):
            samples = 1
        elif encoding.startswith(("yuv", "uyvy", "yuyv")):
            samples = 2
        step = WIDTH * samples * wide
        shown = raw_image.to_rgb(Raw(HEIGHT, WIDTH, encoding, step, memoryview(bytes(lines * step))))
        assert shown.shape == (HEIGHT, WIDTH, 3) and shown.dtype == np.uint8, encoding
