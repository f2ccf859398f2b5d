from __future__ import annotations

import struct
import zlib

import cv2
import numpy as np
import pytest

from penstock._src.media.image import codec, jpeg, png
from penstock.errors import ImageError, LimitExceeded
from tests.media.images import encode, gray_jpeg, psnr_db, rgb_image


def test_png_decodes_to_the_exact_pixels_in_rgb_order() -> None:
    rgb = rgb_image()
    assert np.array_equal(codec.decode(encode(".png", rgb[:, :, ::-1])), rgb)


def test_png_with_transparency_or_gray_becomes_three_channels() -> None:
    rgb = rgb_image()
    gray = codec.decode(encode(".png", rgb[:, :, 0]))
    assert np.array_equal(gray, np.repeat(rgb[:, :, :1], 3, axis=2))
    alpha = np.dstack([rgb[:, :, ::-1], np.full(rgb.shape[:2], 200, np.uint8)])
    assert np.array_equal(codec.decode(encode(".png", alpha)), rgb)


def test_a_jpeg_survives_encode_and_decode() -> None:
    rgb = rgb_image(height=480, width=640)
    assert psnr_db(codec.decode(memoryview(codec.encode_jpeg(rgb))), rgb) > 40
    assert psnr_db(codec.decode(codec.encode_jpeg(rgb, subsampling="4:4:4")), rgb) > 43
    assert len(codec.encode_jpeg(rgb, quality=50)) < len(codec.encode_jpeg(rgb, quality=95))
    assert codec.decode(gray_jpeg()).shape == (48, 64, 3)


@pytest.mark.parametrize("old_opencv", [False, True])
def test_exif_rotation_is_ignored_as_video_decoders_ignore_it(
    old_opencv: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if old_opencv:  # before 4.11 it could not decode to RGB itself
        monkeypatch.delattr(cv2, "IMREAD_COLOR_RGB", raising=False)
    rgb = rgb_image(height=32, width=64)
    data = codec.encode_jpeg(rgb)
    tiff = b"MM\0\x2a\0\0\0\x08" + b"\0\x01" + b"\x01\x12\0\x03\0\0\0\x01\0\x06\0\0" + bytes(4)
    exif = b"\xff\xe1" + struct.pack(">H", 8 + len(tiff)) + b"Exif\0\0" + tiff
    rotated = data[:2] + exif + data[2:]
    assert cv2.imdecode(np.frombuffer(rotated, np.uint8), cv2.IMREAD_COLOR).shape == (64, 32, 3)
    assert np.array_equal(codec.decode(rotated), codec.decode(data))
    assert psnr_db(codec.decode(data), rgb) > 35


def png_claiming(width: int, height: int, bit_depth: int = 8) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, bit_depth, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))


def test_claimed_sizes_are_checked_before_decoding() -> None:
    with pytest.raises(LimitExceeded) as caught:
        codec.decode(png_claiming(60_000, 60_000))
    assert (caught.value.size, caught.value.limit) == (60_000, jpeg.MAX_SIDE_PX)
    with pytest.raises(LimitExceeded) as caught:
        codec.decode(png_claiming(16_000, 16_000))
    assert (caught.value.size, caught.value.limit) == (256_000_000, png.MAX_PIXELS)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"GIF89a" + bytes(30), "neither JPEG nor PNG: 36 bytes"),
        (b"", "0 bytes that start with nothing"),
        (png_claiming(8, 8)[:20], "no whole IHDR"),
        (png_claiming(0, 8), "0×8"),
        (png_claiming(8, 8), "cannot be decoded|decodes to nothing"),
        (encode(".png", np.zeros((4, 4), np.uint16)), "one channel of 16 bits"),
        (encode(".png", np.zeros((4, 4, 3), np.uint16)), "16 bits per colour"),
        (codec.encode_jpeg(rgb_image())[:-2], "cut"),
    ],
)
def test_what_cannot_be_decoded_says_why(data: bytes, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        codec.decode(data)


def test_resize_gives_the_asked_shape_and_averages_when_shrinking() -> None:
    checker = np.zeros((64, 64, 3), np.uint8)
    checker[::2, ::2] = checker[1::2, 1::2] = 255
    assert np.ptp(codec.resize(checker, (32, 32)).astype(int)) <= 1
    assert codec.resize(rgb_image(), (96, 100)).shape == (96, 100, 3)
    same = rgb_image()
    assert codec.resize(same, (48, 64)) is same
    with pytest.raises(ImageError):
        codec.resize(same, (0, 5))


def test_jpeg_encoding_checks_what_it_gets() -> None:
    with pytest.raises(ImageError, match="float32"):
        codec.encode_jpeg(rgb_image().astype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(ImageError, match=r"\(48, 64\)"):
        codec.encode_jpeg(rgb_image()[:, :, 0])
    with pytest.raises(ImageError, match="quality 0"):
        codec.encode_jpeg(rgb_image(), quality=0)
    with pytest.raises(ImageError, match="4:1:0"):
        codec.encode_jpeg(rgb_image(), subsampling="4:1:0")
