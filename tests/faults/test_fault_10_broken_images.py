"""Fault 10: a JPEG that is truncated, has another size, claims 60,000 × 60,000 pixels, or is no JPEG at all.

Expected: the header is checked first, the message is counted and named, and no placeholder takes its place.
"""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from pathlib import Path

import pytest

import penstock
from penstock.errors import ImageError, RecordingError
from tests.conversion import bags, datasets
from tests.conversion.bags import CAM_H, CAM_L, Jpeg, Raw
from tests.media import depths

H = "observation.images.cam_h"
WHOLE = bags.jpeg(5)


def claiming(width: int, height: int) -> bytes:
    """A whole JPEG whose frame header claims another size."""
    at = WHOLE.index(b"\xff\xc0")
    return WHOLE[: at + 5] + struct.pack(">HH", height, width) + WHOLE[at + 9 :]


def png_claiming(width: int, height: int, bits: int = 8, colour: int = 2) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    end = struct.pack(">I", 0) + b"IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + end


BROKEN = {
    "truncated in its data": WHOLE[:-40],
    "truncated in its header": WHOLE[:30],
    "60,000 × 60,000": claiming(60_000, 60_000),
    "0 × 0": claiming(0, 0),
    "not a JPEG": b"GIF89a" + bytes(200),
    "text": b"no image today",
    "empty": b"",
    "a PNG of 60,000 × 60,000": png_claiming(60_000, 60_000),
}


@pytest.mark.parametrize("video", ["copy", "mjpeg", "images"])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_image_is_counted_named_and_never_stored(kind: str, video: str, tmp_path: Path) -> None:
    tape = bags.change(bags.robot(1), CAM_H, 12, bags.with_content(Jpeg(BROKEN[kind])))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out", video=video)
    assert report.exit_code == 3 and dict(report.lost) == {f"unusable message: {CAM_H}": 1}
    assert report.frames == 29  # its row is left out: the camera is the timeline
    assert any(f"{CAM_H}: message 12: " in note for note in report.notes)
    if video == "copy":
        assert datasets.samples(tmp_path / "out", H) == [bags.jpeg(n) for n in range(30) if n != 12]
    assert datasets.problems(tmp_path / "out", full=True) == []


def test_strict_refuses_the_recording_and_leaves_nothing(tmp_path: Path) -> None:
    tape = bags.change(bags.robot(1), CAM_H, 12, bags.with_content(Jpeg(BROKEN["60,000 × 60,000"])))
    bag = bags.write(tmp_path / "run.bag", tape)
    with pytest.raises(RecordingError, match=r"message 12: .*60000×60000 pixels, the limit is 16384"):
        penstock.convert(bag, tmp_path / "out", strict=True)
    assert not (tmp_path / "out").exists()


def test_a_camera_that_claims_too_much_from_the_first_message_on_costs_no_memory(tmp_path: Path) -> None:
    for number, data in enumerate((claiming(60_000, 60_000), png_claiming(16_000, 16_000))):
        tape = bags.messages(CAM_H, bags.times(30, 1), lambda n, data=data: Jpeg(data))
        bag = bags.write(tmp_path / f"{number}.bag", tape + bags.joints(bags.STATE, bags.times(50, 1)))
        tracemalloc.start()
        with pytest.raises(ImageError, match=CAM_H):
            penstock.convert(bag, tmp_path / "out")
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 50 * 2**20


def test_a_image_of_another_size_stops_the_conversion_with_both_sizes(tmp_path: Path) -> None:
    tape = bags.change(bags.robot(1), CAM_L, 20, bags.with_content(Jpeg(bags.jpeg(3, width=32))))
    with pytest.raises(ImageError, match=rf"{CAM_L}: message 20 is jpeg 32×48, the first was jpeg 64×48"):
        penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert not (tmp_path / "out").exists()


RAW, PACKED = "/cam_h/depth/image_raw", "/cam_h/depth/image_raw/compressedDepth"
PNG16 = depths.packed_png(depths.millimetres(3))
RVL = depths.packed_rvl(depths.millimetres(3))
HUGE_RVL = depths.header() + struct.pack("<II", 60_000, 60_000) + RVL[20:]


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("png", PNG16[:-20]),
        ("png", PNG16[:15]),
        ("png", depths.header() + png_claiming(60_000, 60_000, 16, 0)),
        ("rvl", HUGE_RVL),
        ("rvl", RVL[:200]),
        ("rvl", RVL[:20] + b"\xff" * 40),
    ],
    ids=["cut", "cut in its header", "60,000 × 60,000", "RVL 60,000 × 60,000", "RVL cut", "RVL rubbish"],
)
def test_broken_depth_is_counted_and_never_stored(form: str, data: bytes, tmp_path: Path) -> None:
    pack = depths.packed_png if form == "png" else depths.packed_rvl
    text = f"16UC1; compressedDepth {form}"
    tape = bags.camera(CAM_H, bags.times(30, 1))
    tape += bags.messages(PACKED, bags.times(30, 1), lambda n: Jpeg(pack(depths.millimetres(n)), text))
    tape = bags.change(tape, PACKED, 7, bags.with_content(Jpeg(data, text)))
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert report.exit_code == 3 and dict(report.lost) == {f"unusable message: {PACKED}": 1}
    assert datasets.problems(tmp_path / "out", full=True) == []


@pytest.mark.parametrize(
    ("missing", "says"),
    [(1, "needs 9,216 bytes, the message holds 9,215"), (-384, "has 9,600 bytes, 48 rows of 192 bytes need 9,216")],
)
def test_raw_images_of_a_wrong_length_are_counted_with_the_numbers(missing: int, says: str, tmp_path: Path) -> None:
    good = Raw(bytes(48 * 192), 48, 64, "rgb8", 192)
    wrong = Raw(bytes(48 * 192 - missing), 48, 64, "rgb8", 192)
    topic = "/cam_h/image_raw"
    tape = bags.messages(topic, bags.times(30, 1), lambda n: wrong if n == 9 else good)
    report = penstock.convert(bags.write(tmp_path / "run.bag", tape), tmp_path / "out")
    assert dict(report.lost) == {f"unusable message: {topic}": 1} and report.frames == 29
    assert any(says in note for note in report.notes)
