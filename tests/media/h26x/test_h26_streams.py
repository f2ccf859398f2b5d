"""Scanning and decoding H.264 and H.265 streams: what FFmpeg says of them, and what hostile bytes do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._src.media.h26x import h264, h265
from penstock._src.media.h26x.nal import Bits, annex_b, length_prefixed, nal_units, unescaped
from penstock._src.media.h26x.stream_decode import StreamDamage, StreamDecoder
from penstock._src.media.h26x.stream_index import UNUSABLE, StreamIndex, StreamScanner, to_sample
from penstock._src.media.h26x.stream_order import KEY, LEADING, REORDERED
from penstock._src.media.mp4.index import read_index
from penstock._src.media.mp4.writer import Mp4Writer
from penstock.errors import VideoError
from tests.media import streams

CODECS = ("h264", "h265")


def scan(codec: str, packets: Any) -> StreamIndex:
    scanner = StreamScanner(codec)  # type: ignore[arg-type]
    for packet in packets:
        scanner.add(packet)
    return scanner.finish()


def numbers(index: StreamIndex, bit: int) -> list[int]:
    return [int(number) for number in np.flatnonzero(index.has(bit))]


def decode(index: StreamIndex, packets: Any, *, in_order: bool = True) -> list[tuple[int, Any]]:
    with StreamDecoder(index.codec, delay=index.delay, in_order=in_order) as decoder:
        shown = [each for number, data in enumerate(packets) for each in decoder.feed(number, data)]
        shown += decoder.flush()
    return [(each.number, each.rgb()) for each in shown]


# Bits and units


def test_numbers_are_read_bit_by_bit() -> None:
    bits = Bits(bytes([0b1_010_011_0, 0b0100_0010, 0b1_0000000]))
    assert [bits.ue(), bits.ue(), bits.ue(), bits.ue(), bits.se()] == [0, 1, 2, 3, -2]
    assert bits.left == 24 - 17
    with pytest.raises(VideoError, match="ends 1 bits too early"):
        Bits(b"\x80").u(9)
    with pytest.raises(VideoError, match="has more than 32 bits"):
        Bits(bytes(40)).ue(what="a size")
    with pytest.raises(VideoError, match="a size is 6, at most 5"):
        Bits(b"\x38").ue(5, "a size")


def test_units_lie_between_start_codes() -> None:
    data = b"\0\0\0\1\x67abc\0\0\1\x68d\0\0\0\1\x65slice\0\0\3\0"
    assert nal_units(data) == [b"\x67abc", b"\x68d", b"\x65slice\0\0\3"]
    prefixed = b"\0\0\0\4\x67abc" + b"\0\0\0\2\x68d" + b"\0\0\0\x09\x65slice\0\0\3"
    assert length_prefixed(nal_units(data)) == prefixed
    assert nal_units(annex_b([b"\x67abc", b"\x65x"])) == [b"\x67abc", b"\x65x"]
    for broken in (b"", b"abc", b"x\0\0\1\x65"):
        with pytest.raises(VideoError, match="not Annex B"):
            nal_units(broken)


@given(st.binary(max_size=80))
@settings(max_examples=60)
def test_escaping_is_undone(plain: bytes) -> None:
    escaped = bytearray()
    for byte in plain:
        if byte <= 3 and escaped[-2:] == b"\0\0":
            escaped.append(3)
        escaped.append(byte)
    assert unescaped(bytes(escaped)) == plain


# What a scan finds


@pytest.mark.parametrize("codec", CODECS)
def test_keys_order_and_sets(codec: str) -> None:
    index = scan(codec, streams.stream(codec, 25))
    assert numbers(index, KEY) == [0, 10, 20]
    assert numbers(index, REORDERED) == numbers(index, UNUSABLE) == []
    assert len(index.sets) == 1 and index.delay == 0
    assert index.first_picture.size_px == (48, 64) and index.first_picture.pix_fmt == "yuv420p"
    assert index.key_at_or_before(15) == 10
    assert list(index.rest_of_group(15)) == [15, 16, 17, 18, 19]


@pytest.mark.parametrize("codec", CODECS)
def test_images_out_of_order_are_seen(codec: str) -> None:
    sent = streams.stream(codec, 25, b_frames=3)
    index = scan(codec, sent)
    assert numbers(index, REORDERED) and index.delay >= 1
    shown = decode(index, sent)
    assert [number for number, _ in shown] == list(range(25))
    assert all(np.array_equal(a, b) for (_, a), b in zip(shown, streams.decoded(codec, sent), strict=True))
    own = [number for number, _ in decode(index, sent, in_order=False)]
    assert own != sorted(own) == list(range(25))
    place = index.rest_of_group(numbers(index, REORDERED)[0])
    assert place.start in numbers(index, KEY)  # with one of them the whole group is lost


def test_leading_images_of_an_open_group_need_the_group_before() -> None:
    sent = streams.stream("h265", 30, b_frames=3, more="open-gop=1")
    index = scan("h265", sent)
    leading = numbers(index, LEADING)
    assert leading and numbers(index, UNUSABLE) == []
    key = max(number for number in numbers(index, KEY) if number < leading[0])
    cut = scan("h265", sent[key:])
    assert set(numbers(cut, LEADING)[:1]) <= set(numbers(cut, UNUSABLE))


FORMATS = [
    ("h264", "yuv420p", "libx264", 62, 46, {}),
    ("h264", "yuvj420p", "libx264", 64, 48, {}),
    ("h264", "yuv422p", "libx264", 64, 46, {}),
    ("h264", "yuv444p", "libx264", 63, 47, {}),
    ("h264", "yuv420p10le", "libx264", 64, 48, {}),
    ("h265", "yuv420p", "libx265", 62, 46, {}),
    ("h265", "yuv422p10le", "libx265", 64, 48, {}),
    ("h265", "yuv444p", "libx265", 63, 47, {}),
    ("h265", "yuvj420p", "libx265", 64, 48, {"x265-params": "range=full:log-level=error"}),
]


@pytest.mark.parametrize(("codec", "pix_fmt", "encoder", "width", "height", "options"), FORMATS)
def test_the_parameter_set_says_what_ffmpeg_says(
    codec: str, pix_fmt: str, encoder: str, width: int, height: int, options: dict[str, str], tmp_path: Path
) -> None:
    """Sizes that need cropping, other samplings and depths; moved into an MP4, the pixels are the same."""
    from fractions import Fraction

    import av

    context: Any = av.CodecContext.create(encoder, "w")
    context.width, context.height = width, height
    context.pix_fmt = pix_fmt if codec == "h264" else pix_fmt.replace("j", "")
    context.time_base, context.framerate = Fraction(1, 30), 30
    context.options = {"bf": "0", "threads": "1"} | (
        options if codec == "h264" else {"bf": "0", "x265-params": "log-level=error:pools=1:frame-threads=1"} | options
    )
    sent = []
    for number in range(4):
        frame = av.VideoFrame.from_ndarray(streams.rgb_image(number, height, width), format="rgb24")
        frame.pts = number
        sent += [bytes(packet) for packet in context.encode(frame)]
    sent += [bytes(packet) for packet in context.encode(None)]
    index = scan(codec, sent)
    image = index.first_picture
    assert (image.width, image.height, image.pix_fmt) == (width, height, pix_fmt)
    with Mp4Writer(tmp_path / "a.mp4", stsd=index.sets[0].stsd(), width=width, height=height, fps=30) as video:
        video.append([to_sample(index.codec, data) for data in sent], index.has(KEY).tolist())
    assert read_index(tmp_path / "a.mp4").count == 4
    with av.open(str(tmp_path / "a.mp4")) as container:
        found = container.streams.video[0].codec_context
        assert (found.width, found.height, found.pix_fmt) == (width, height, pix_fmt)
        moved = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert all(map(np.array_equal, moved, streams.decoded(codec, sent)))


@pytest.mark.parametrize("codec", CODECS)
def test_our_sample_description_is_ffmpegs(codec: str) -> None:
    """The record inside avc1 and hvc1 against the one that FFmpeg's muxer makes of the same parameter sets."""
    from penstock._src.media.video.encode import VideoEncoder
    from penstock._src.media.video.hardware import encoder_settings

    name = b"avcC" if codec == "h264" else b"hvcC"
    with VideoEncoder(encoder_settings("h264" if codec == "h264" else "hevc"), 64, 48, 30) as encoder:
        theirs = box_of(encoder.stsd, name)
    sets = parameter_sets(codec, theirs)
    scanner = StreamScanner(codec)  # type: ignore[arg-type]
    scanner.add(annex_b([*sets, key_unit(codec)]))
    index = scanner.finish()
    ours = box_of(index.sets[0].stsd(), name)
    if codec == "h265":
        # FFmpeg also fills in what the sets say of segmentation and parallelism, and leaves open whether more of them
        # follow inside the samples; hvc1 means that none do.
        theirs, ours = theirs[:13] + theirs[16:], ours[:13] + ours[16:]
        theirs = theirs[:20] + bytes((theirs[20] | 0x80,)) + theirs[21:]
    assert ours[:23] == theirs[:23]
    assert all(unit in ours for unit in sets) and len(ours) == len(theirs)


def box_of(stsd: bytes, name: bytes) -> bytes:
    at = stsd.index(name)
    size = int.from_bytes(stsd[at - 4 : at], "big")
    return stsd[at + 4 : at - 4 + size]


def parameter_sets(codec: str, record: bytes) -> list[bytes]:
    """The units of an avcC or hvcC record."""
    units = []
    if codec == "h264":
        at = 6
        for _ in range(2):
            for _ in range(record[at - 1] & 31):
                size = int.from_bytes(record[at : at + 2], "big")
                units.append(record[at + 2 : at + 2 + size])
                at += 2 + size
            at += 1
        return units
    at = 23
    for _ in range(record[22]):
        count = int.from_bytes(record[at + 1 : at + 3], "big")
        at += 3
        for _ in range(count):
            size = int.from_bytes(record[at : at + 2], "big")
            units.append(record[at + 2 : at + 2 + size])
            at += 2 + size
    return units


def key_unit(codec: str) -> bytes:
    """A slice header of a key frame, as far as it is read."""
    # H.264: first_mb 0, type I, pps 0, then numbers; H.265: first slice, no_output_of_prior_pics, pps 0, type I
    return b"\x65\x88\x84\x00\x40\xff" if codec == "h264" else b"\x26\x01\xaf\x80\xff"


def test_the_colour_matrix_of_the_stream_is_used() -> None:
    """One grey-red image, coded with both matrices: other bytes, the same colours."""
    for matrix in ("bt709", "smpte170m"):
        sent = streams.stream("h264", 2, crf=1, more=f"colormatrix={matrix}")
        planes = streams.planes("h264", sent)
        index = scan("h264", sent)
        shown = decode(index, sent)[0][1]
        luma, cb, cr = (float(plane.mean()) for plane in planes[0])
        kr, kb = (0.2126, 0.0722) if matrix == "bt709" else (0.299, 0.114)
        red = 255 / 219 * (luma - 16) + 255 / 112 * (1 - kr) * (cr - 128)
        blue = 255 / 219 * (luma - 16) + 255 / 112 * (1 - kb) * (cb - 128)
        assert abs(shown[..., 0].mean() - red) < 2 and abs(shown[..., 2].mean() - blue) < 2


# Damage


@pytest.mark.parametrize("codec", CODECS)
def test_a_missing_image_is_seen_in_the_headers_of_the_next(codec: str) -> None:
    sent = list(streams.stream(codec, 30))
    index = scan(codec, sent[:14] + sent[15:])
    assert numbers(index, UNUSABLE) == [14, 15, 16, 17, 18]
    assert "an image is missing before it" in index.why(14)
    assert index.why(16) == "cannot be decoded without message 14"


def test_ffmpeg_alone_does_not_report_a_missing_image_and_calls_recovery_points_key_frames() -> None:
    """Why the headers are read by our own code: see the docstring of penstock._src.media.h26x."""
    sent = list(streams.stream("h264", 30))
    context: Any = av.CodecContext.create("h264", "r")
    context.thread_count, context.options = 1, {"err_detect": "explode"}
    shown = [frame for packet in (*sent[:14], *sent[15:]) for frame in context.decode(av.Packet(packet))]
    shown += context.decode(None)
    assert len(shown) == 29 and not any(frame.is_corrupt for frame in shown)

    refreshed = streams.stream("h264", 30, more="intra-refresh=1")
    parser: Any = av.CodecContext.create("h264", "r")
    packets = [packet for data in refreshed for packet in parser.parse(data)] + parser.parse(None)
    assert [number for number, packet in enumerate(packets) if packet.is_keyframe][:1] == [0]
    assert sum(packet.is_keyframe for packet in packets) > 1 and parser.extradata is None
    assert numbers(scan("h264", refreshed), KEY) == [0]


@pytest.mark.parametrize("more", ["open-gop=0", "open-gop=1", "ref=5:b-pyramid=1", "temporal-layers=3"])
def test_every_missing_reference_of_h265_is_seen_and_nothing_else(more: str) -> None:
    """Without an image that others are predicted from its group is broken; one that none needs leaves no trace."""
    sent = list(streams.stream("h265", 30, b_frames=3, more=more))
    assert numbers(scan("h265", sent), UNUSABLE) == []
    for lost in (*range(1, 9), 14):
        kind = next(h265.unit_type(unit) for unit in nal_units(sent[lost]) if h265.unit_type(unit) < 32)
        broken = numbers(scan("h265", sent[:lost] + sent[lost + 1 :]), UNUSABLE)
        if kind >= 16 or broken:
            continue
        assert kind % 2 == 0, f"message {lost} of type {kind} is a reference"


@pytest.mark.parametrize("codec", CODECS)
def test_a_cut_slice_is_found(codec: str) -> None:
    sent = list(streams.stream(codec, 20, width=128, height=96, crf=15))
    for number, part in ((0, 0.5), (4, 0.9), (14, 0.3)):
        broken = list(sent)
        broken[number] = sent[number][: int(len(sent[number]) * part)]
        with pytest.raises(StreamDamage) as caught:
            decode(scan(codec, sent), broken)
        assert caught.value.number == number


@pytest.mark.parametrize("codec", CODECS)
def test_what_holds_no_single_image_is_unusable(codec: str) -> None:
    sent = list(streams.stream(codec, 20))
    module = h264 if codec == "h264" else h265
    heads = annex_b(unit for unit in nal_units(sent[10]) if module.unit_type(unit) in module.PARSERS)
    index = scan(codec, [*sent[:5], heads, *sent[10:]])
    assert numbers(index, UNUSABLE) == [5] and index.why(5) == "holds no image"
    index = scan(codec, [*sent[:5], sent[5] + sent[6], *sent[7:]])
    assert numbers(index, UNUSABLE) == [5, 6, 7, 8] and "images or more" in index.why(5)
    index = scan(codec, sent[3:])
    assert numbers(index, UNUSABLE) == list(range(7)) and index.why(2) == "comes before the first key frame"


@pytest.mark.parametrize("codec", CODECS)
def test_parameter_sets_that_never_end_are_bounded(codec: str) -> None:
    sent = streams.stream(codec, 1)[0]
    module = h264 if codec == "h264" else h265
    units = nal_units(sent)
    last = max(k for k, unit in enumerate(units) if module.unit_type(unit) in module.PARSERS)
    index = scan(codec, (annex_b(units[: last + 1]) + b"\x01" * n + annex_b(units[last + 1 :]) for n in range(1, 3000)))
    assert len(index.sets) <= 1000 and index.nbytes < 3 << 20
    assert "change all the time" in index.why(1500)
    huge = scan(codec, [annex_b(units[: last + 1]) + b"\x01" * 5000 + annex_b(units[last + 1 :])])
    assert "at most 4,096" in huge.why(0)


@given(data=st.data())
@settings(max_examples=80)
def test_hostile_streams_neither_crash_nor_loop(data: st.DataObject) -> None:
    codec = data.draw(st.sampled_from(CODECS))
    sent = [
        bytearray(packet) for packet in streams.stream(codec, 12, gop=4, b_frames=data.draw(st.sampled_from((0, 2))))
    ]
    for _ in range(data.draw(st.integers(1, 6))):
        victim = sent[data.draw(st.integers(0, 11))]
        how = data.draw(st.sampled_from(("flip", "cut", "insert")))
        at = data.draw(st.integers(0, max(0, min(len(victim) - 1, 60))))
        if how == "flip" and victim:
            victim[at] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "cut":
            del victim[at:]
        else:
            victim[at:at] = data.draw(st.binary(max_size=12))
    index = scan(codec, map(bytes, sent))
    assert len(index.flags) == len(index.versions) == 12
    for number in range(12):
        assert isinstance(index.why(number), str)
    if any(max(each.picture.size_px) > 512 for each in index.sets):
        return  # a decoder would do as it is told, and take its time
    try:
        decode(index, map(bytes, sent))
    except StreamDamage:
        pass


@given(st.binary(max_size=200))
@settings(max_examples=120)
def test_random_parameter_sets_are_read_or_refused(noise: bytes) -> None:
    for parse in (h264.parse_sps, h264.parse_pps, h265.parse_sps, h265.parse_pps):
        try:
            parse(b"\x67\x01" + noise)
        except VideoError:
            pass
