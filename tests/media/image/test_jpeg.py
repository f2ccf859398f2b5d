from __future__ import annotations

from typing import Any

import cv2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._src.media.image import codec, jpeg
from penstock.errors import ImageError, LimitExceeded
from tests.media.images import encode, gray_jpeg, jpegs, rgb_image

ONE = jpegs(1)[0]


def sof_at(data: bytes) -> int:
    return data.index(b"\xff\xc0")


def with_bytes(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


@pytest.mark.parametrize("subsampling", ["4:2:0", "4:2:2", "4:4:4"])
def test_the_header_gives_size_and_subsampling(subsampling: str) -> None:
    data = codec.encode_jpeg(rgb_image(height=50, width=70), subsampling=subsampling)
    assert jpeg.probe(data) == jpeg.JpegInfo(70, 50, 3, subsampling)
    assert jpeg.probe(memoryview(bytearray(data))) == jpeg.probe(data)


def variants() -> list[bytes]:
    whole = [codec.encode_jpeg(rgb_image(), subsampling=s) for s in ("4:2:0", "4:2:2", "4:4:4")]
    factors = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411]
    whole += [encode(".jpg", rgb_image(), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor) for factor in factors]
    full_colour = whole[2]
    at = sof_at(full_colour)
    scan = full_colour.index(b"\xff\xda")
    as_rgb = bytearray(full_colour)
    as_rgb[at + 10 : at + 19 : 3] = b"RGB"
    as_rgb[scan + 5 : scan + 11 : 2] = b"RGB"
    return [*whole, bytes(as_rgb), gray_jpeg()]


@pytest.mark.parametrize("data", variants(), ids=["420", "422", "444", "440", "411", "rgb", "gray"])
def test_the_pixel_format_is_the_one_that_ffmpeg_decodes_to(data: bytes) -> None:
    import av

    context: Any = av.CodecContext.create("mjpeg", "r")
    (frame,) = [*context.decode(av.Packet(data)), *context.decode(None)]
    assert frame.format.name.replace("yuv4", "yuvj4") == jpeg.probe(data).pix_fmt


def test_progressive_and_restart_markers_are_read() -> None:
    progressive = encode(".jpg", rgb_image(), cv2.IMWRITE_JPEG_PROGRESSIVE, 1)
    restarts = encode(".jpg", rgb_image(), cv2.IMWRITE_JPEG_RST_INTERVAL, 2)
    assert jpeg.probe(progressive) == jpeg.probe(restarts) == jpeg.probe(ONE)


def test_fill_bytes_and_unknown_segments_before_the_header_are_skipped() -> None:
    comment = b"\xff\xff\xff\xfe\x00\x07hello"
    assert jpeg.probe(ONE[:2] + comment + ONE[2:]) == jpeg.probe(ONE)


def test_zero_padding_after_the_end_is_allowed_other_bytes_are_not() -> None:
    assert jpeg.probe(ONE + bytes(10_000)) == jpeg.probe(ONE)
    assert jpeg.JpegProbe().probe(ONE + bytes(3)) == jpeg.probe(ONE)
    with pytest.raises(ImageError, match="cut"):
        jpeg.probe(ONE + b"rubbish")


def test_every_cut_is_noticed() -> None:
    for size in range(len(ONE)):
        with pytest.raises(ImageError):
            jpeg.probe(ONE[:size])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "not a JPEG: 0 bytes"),
        (b"\x89PNG\r\n\x1a\n" + bytes(20), "89 50 4e 47"),
        (b"\xff\xd8\xff\xd9", "no frame header"),
        (with_bytes(ONE, sof_at(ONE) + 4, b"\x0c"), "12 bits"),
        (with_bytes(ONE, sof_at(ONE) + 1, b"\xc3"), "lossless"),
        (with_bytes(ONE, sof_at(ONE) + 5, b"\0\0"), "64×0"),
        (with_bytes(ONE, sof_at(ONE) + 9, b"\x04"), "components|it is cut"),
        (with_bytes(ONE, sof_at(ONE) + 2, b"\0\x01"), "cut"),
        (with_bytes(ONE, sof_at(ONE) + 2, b"\0\x05"), "3 bytes: it is cut"),
        (with_bytes(ONE, sof_at(ONE) + 11, b"\x31"), "which no reader takes"),
        (with_bytes(ONE, 2, b"\x00"), "where a marker"),
    ],
)
def test_what_is_wrong_is_reported(data: bytes, says: str) -> None:
    with pytest.raises(ImageError, match=says):
        jpeg.probe(data)


def test_a_frame_header_without_image_data_is_no_image() -> None:
    scan = ONE.index(b"\xff\xda")
    with pytest.raises(ImageError, match="no image data"):
        jpeg.probe(ONE[:scan] + b"\xff\xd9")


def test_a_giant_size_is_refused_with_both_numbers() -> None:
    with pytest.raises(LimitExceeded) as caught:
        jpeg.probe(with_bytes(ONE, sof_at(ONE) + 5, b"\xea\x60\xea\x60"))
    assert (caught.value.size, caught.value.limit) == (60_000, jpeg.MAX_SIDE_PX)


def test_the_stateful_probe_answers_as_the_plain_one_for_a_changing_stream() -> None:
    other = codec.encode_jpeg(rgb_image(3, 32, 96), quality=70)
    stream = [
        *jpegs(3),
        other,
        other,
        gray_jpeg(),
        *jpegs(2),
        encode(".jpg", rgb_image(), cv2.IMWRITE_JPEG_QUALITY, 50),
    ]
    probe = jpeg.JpegProbe()
    assert [probe.probe(memoryview(data)) for data in stream] == [jpeg.probe(data) for data in stream]


def test_the_stateful_probe_notices_a_cut_frame_and_goes_on() -> None:
    probe = jpeg.JpegProbe()
    first, second = jpegs(2)
    probe.probe(first)
    with pytest.raises(ImageError, match="cut"):
        probe.probe(second[:-2])
    with pytest.raises(ImageError):
        probe.probe(b"")
    assert probe.probe(second) == jpeg.probe(second)


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=6), st.integers(0, len(ONE)))
def test_damaged_headers_give_our_errors_or_a_result(flips: list[tuple[int, int]], size: int) -> None:
    data = bytearray(ONE)
    for at, value in flips:
        data[at] = value
    try:
        info = jpeg.probe(bytes(data[:size]))
    except (ImageError, LimitExceeded):
        return
    assert 1 <= info.width <= jpeg.MAX_SIDE_PX
    assert 1 <= info.height <= jpeg.MAX_SIDE_PX
