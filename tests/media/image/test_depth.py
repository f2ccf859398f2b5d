from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock._src.media.image import depth, png, rvl, tiff
from penstock.errors import ImageError, LimitExceeded, PenstockError
from tests.media import depths
from tests.media.images import encode, rgb_image


@dataclass(frozen=True)
class Raw:
    height: int
    width: int
    encoding: str
    step: int
    data: memoryview
    big_endian: bool = False


def raw(pixels: NDArray[Any], encoding: str, *, padding: int = 0, big: bool = False) -> Raw:
    octets = np.ascontiguousarray(pixels.astype(pixels.dtype.newbyteorder(">" if big else "<"))).view(np.uint8)
    rows = np.pad(octets.reshape(len(pixels), -1), ((0, 0), (0, padding)), constant_values=99)
    return Raw(*pixels.shape, encoding, rows.shape[1], memoryview(rows.tobytes()), big)


# ── raw


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("padding", [0, 3])
def test_raw_values_are_exact_in_either_byte_order(big: bool, padding: int) -> None:
    whole, floats = depths.millimetres(height=7, width=9), depths.metres(height=7, width=9)
    for encoding in ("16UC1", "mono16"):
        found = depth.from_raw(raw(whole, encoding, padding=padding, big=big))
        assert found.dtype == np.uint16 and np.array_equal(found, whole)
    found = depth.from_raw(raw(floats, "32FC1", padding=padding, big=big))
    assert found.dtype == np.float32 and np.array_equal(found.view(np.uint32), floats.view(np.uint32))


def test_raw_images_that_are_no_depth_are_refused() -> None:
    with pytest.raises(ImageError, match="'rgb8' is not depth; depth is 16UC1, mono16, 32FC1"):
        depth.probe_raw(Raw(7, 9, "rgb8", 27, memoryview(bytes(189))))
    with pytest.raises(ImageError, match="125 bytes, 7 rows of 18 bytes need 126"):
        depth.from_raw(Raw(7, 9, "16UC1", 18, memoryview(bytes(125))))


# ── compressedDepth


@pytest.mark.parametrize("text", ["16UC1; compressedDepth png", "16UC1; compressedDepth", "16UC1;compressedDepth PNG"])
def test_a_png_behind_the_header_is_found_and_can_be_copied(text: str) -> None:
    pixels = depths.millimetres()
    data = memoryview(depths.packed_png(pixels))
    info = depth.probe_compressed(text, data)
    assert (info.height, info.width, info.values, info.packing, info.start) == (48, 64, "16UC1", "png", 12)
    assert info.is_stored_form and info.unit == "mm"
    assert np.array_equal(depth.from_compressed(info, data), pixels)
    assert np.array_equal(depth.decode(data[info.start :]), pixels)


def test_a_png_without_a_header_is_taken_as_it_is() -> None:
    info = depth.probe_compressed("16UC1; png compressed", depths.png16(depths.millimetres()))
    assert info.start == 0 and info.is_stored_form


def test_inverse_depth_becomes_metres_by_the_parameters_of_its_header() -> None:
    sent = depths.metres()
    data = depths.packed_inverse(sent)
    info = depth.probe_compressed("32FC1; compressedDepth png", data)
    assert not info.is_stored_form and info.unit == "m"
    found = depth.from_compressed(info, data)
    codes = depths.inverse(sent)
    a, b = depths.INVERSE
    expected = np.array([a / (c - b) if c else np.nan for c in codes.reshape(-1).tolist()]).reshape(sent.shape)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert np.array_equal(np.isnan(found), codes == 0) and np.isnan(found[0, 0])
    seen = np.isfinite(sent) & (sent < 10)
    assert np.abs(found[seen] - sent[seen]).max() < 0.002  # the step of the quantisation at 4 m


def test_rvl_is_decoded_exactly_also_as_inverse_depth() -> None:
    pixels = depths.millimetres(3)
    data = depths.packed_rvl(pixels)
    info = depth.probe_compressed("16UC1; compressedDepth rvl", data)
    assert (info.height, info.width, info.packing, info.start) == (48, 64, "rvl", 20)
    assert not info.is_stored_form
    found = depth.from_compressed(info, data)
    assert found.dtype == np.uint16 and np.array_equal(found, pixels)
    codes = depths.inverse(depths.metres())
    data = depths.packed_rvl(codes, depths.INVERSE)
    info = depth.probe_compressed("32FC1; compressedDepth rvl", data)
    expected = np.where(codes == 0, np.nan, depths.INVERSE[0] / (codes.astype(float) - depths.INVERSE[1]))
    np.testing.assert_allclose(depth.from_compressed(info, data), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "data", "says"),
    [
        ("16UC1; compressedDepth png", b"", "of 0 bytes is cut"),
        ("16UC1; compressedDepth png", depths.header() + bytes(30), "holds neither PNG nor RVL: 00 00"),
        ("16UC1; compressedDepth png", depths.packed_png(depths.millimetres())[:-30], "no IEND"),
        ("16UC1; compressedDepth png", depths.header() + encode(".png", rgb_image()), "8 bits and colour type 2"),
        ("16UC1; compressedDepth rvl", depths.header() + struct.pack("<II", 0, 5) + bytes(8), "0×5"),
        ("32FC1; compressedDepth png", depths.packed_png(depths.millimetres()), "A = 0.0"),
        ("32FC1; compressedDepth png", depths.header((float("nan"), 1)) + bytes(40), "A = nan"),
    ],
)
def test_messages_that_are_no_depth_are_refused(text: str, data: bytes, says: str) -> None:
    with pytest.raises(ImageError) as caught:
        depth.probe_compressed(text, data)
    assert says in caught.value.message


@pytest.mark.parametrize("size", [(60_000, 60_000), (16_000, 16_000)])
def test_hostile_sizes_are_refused_before_anything_is_allocated(size: tuple[int, int]) -> None:
    with pytest.raises(LimitExceeded):
        depth.probe_compressed("16UC1; compressedDepth rvl", depths.header() + struct.pack("<II", *size) + bytes(8))


# ── RVL


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_rvl_is_the_inverse_of_its_code(data: st.DataObject) -> None:
    height, width = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 9))
    values = st.sampled_from([0, 0, 0, 1, 7, 8, 600, 601, 602, 32_767, 32_768, 65_535])
    flat = data.draw(st.lists(values, min_size=height * width, max_size=height * width))
    pixels = np.array(flat, np.uint16).reshape(height, width)
    code = depths.rvl(pixels)
    assert np.array_equal(rvl.decode(code, height, width), pixels)
    assert np.array_equal(rvl.decode(code + bytes(12), height, width), pixels)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=64), st.integers(1, 40), st.integers(1, 40))
def test_rvl_of_any_bytes_is_a_image_or_our_error(code: bytes, height: int, width: int) -> None:
    try:
        assert rvl.decode(code, height, width).shape == (height, width)
    except ImageError as error:
        assert error.message.startswith("RVL")


def test_rvl_cut_at_any_byte_is_refused_with_the_numbers() -> None:
    pixels = depths.millimetres(height=6, width=8)
    code = depths.rvl(pixels)
    for end in range(0, len(code) - 4):
        with pytest.raises(ImageError, match="RVL"):
            rvl.decode(code[:end], 6, 8)
    with pytest.raises(ImageError, match=r"is cut: it holds 48 of 49 pixels"):
        rvl.decode(code, 7, 7)
    with pytest.raises(ImageError, match=r"behind 0 of 2 pixels"):
        rvl.decode(code, 1, 2)
    with pytest.raises(ImageError, match="more than 30 bits"):
        rvl.decode(b"\xff" * 8 + bytes(8), 1, 2)


# ── what is kept


def test_stored_files_give_back_every_bit() -> None:
    whole = np.random.default_rng(1).integers(0, 65_536, (37, 53), dtype=np.uint16)
    floats = np.random.default_rng(2).integers(0, 2**32, (37, 53), dtype=np.uint32).view(np.float32)  # NaN of all kinds
    for pixels in (whole, floats, whole[::2, ::3], floats[:, ::-1]):
        found = depth.decode(depth.encode(pixels))
        assert found.dtype == pixels.dtype and found.tobytes() == np.ascontiguousarray(pixels).tobytes()
    assert png.is_png(depth.encode(whole)) and tiff.is_tiff(depth.encode(floats))


def test_opencv_reads_our_tiff_and_we_read_that_of_others() -> None:
    import cv2

    floats = np.linspace(0.1, 9.0, 35 * 50, dtype=np.float32).reshape(35, 50)
    shown = cv2.imdecode(np.frombuffer(tiff.encode(floats), np.uint8), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(shown, floats)
    for pixels in (floats, depths.millimetres()):
        assert np.array_equal(depth.decode(encode(".tiff", pixels)), pixels)  # compressed


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "0 bytes that start with nothing"),
        (b"\xff\xd8\xff" + bytes(20), "PNG or TIFF"),
        (encode(".png", rgb_image()), "8 bits"),
        (encode(".tiff", rgb_image()), "decodes to uint8"),
        (tiff.encode(depths.metres())[:-1], "decodes to nothing"),
        (tiff.encode(depths.metres())[:60], "decodes to nothing"),
        (b"II*\0" + struct.pack("<I", 2**32 - 1), "decodes to nothing"),
        (b"II*\0" + struct.pack("<IH", 8, 60_000), "decodes to nothing"),
        (depths.png16(depths.millimetres())[:80] + b"IEND", "cannot be decoded|decodes to nothing"),
    ],
)
def test_broken_files_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(PenstockError, match=says):
        depth.decode(data)


def test_only_depth_is_encoded_as_depth() -> None:
    with pytest.raises(ImageError, match=r"not uint8 \(48, 64, 3\)"):
        depth.encode(rgb_image())  # type: ignore[arg-type]
    with pytest.raises(ImageError, match=r"float32 \(2, 3, 1\)"):
        depth.encode(np.zeros((2, 3, 1), np.float32))


def test_lerobots_reader_of_images_sees_the_same_values() -> None:
    PIL = pytest.importorskip("PIL.Image")
    for pixels, mode in ((depths.millimetres(), "I;16"), (depths.metres(), "F")):
        shown = PIL.open(io.BytesIO(depth.encode(pixels)))
        assert shown.mode == mode and np.array_equal(np.array(shown), pixels, equal_nan=mode == "F")


# ── resizing and 8 bits


def test_resizing_takes_pixels_and_invents_none() -> None:
    pixels = depths.millimetres()
    half = depth.resize(pixels, (24, 32))
    assert np.array_equal(half, pixels[1::2, 1::2])
    assert np.array_equal(depth.resize(pixels, (96, 128)), np.repeat(np.repeat(pixels, 2, 0), 2, 1))
    odd = depth.resize(depths.metres(), (31, 50))
    rows = [int((i + 0.5) * 48 / 31) for i in range(31)]
    columns = [int((i + 0.5) * 64 / 50) for i in range(50)]
    assert np.array_equal(odd, depths.metres()[rows][:, columns], equal_nan=True)
    assert depth.resize(pixels, (48, 64)) is pixels


def test_8_bits_follow_one_fixed_range() -> None:
    low, high = 400, 1400
    expected = [0 if v <= low else 255 if v >= high else round((v - low) * 255 / (high - low)) for v in range(0, 2000)]
    found = depth.to_gray(np.arange(2000, dtype=np.uint16).reshape(40, 50), (low, high))
    assert found.dtype == np.uint8 and np.abs(found.reshape(-1) - np.array(expected)).max() <= 1
    assert found[0, 0] == 0 and found[-1, -1] == 255
    alone = depth.to_gray(np.array([[900]], np.uint16), (low, high))
    assert alone[0, 0] == found.reshape(-1)[900]  # whatever else the image holds


def test_metres_and_what_is_no_number_in_8_bits() -> None:
    pixels = np.array([[0.4, 0.9, 1.4, np.nan, np.inf, -np.inf, 0.0]], np.float32)
    assert depth.to_gray(pixels, (400, 1400)).tolist() == [[0, 128, 255, 0, 255, 0, 0]]
