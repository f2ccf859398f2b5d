"""Fault 11: the size or the encoding of a camera's images changes within a topic.

Expected: an error that names the topic, the message and both; nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

import penstock
from penstock.errors import ImageError
from tests.conversion import bags
from tests.conversion.bags import CAM_H, Jpeg, Raw
from tests.media import depths

RAW, DEPTH = "/cam/image_raw", "/cam/depth/image_raw"
PACKED = f"{DEPTH}/compressedDepth"


def raw(encoding: str, width: int = 64, samples: int = 3) -> Raw:
    return Raw(bytes(48 * width * samples), 48, width, encoding, width * samples)


def packed(form: str, width: int = 64) -> Jpeg:
    pack = {"png": depths.packed_png, "rvl": depths.packed_rvl}[form]
    return Jpeg(pack(depths.millimetres(0, 48, width)), f"16UC1; compressedDepth {form}")


def png16(channels: int) -> Jpeg:
    shape = (48, 64) if channels == 1 else (48, 64, channels)
    return Jpeg(cv2.imencode(".png", np.full(shape, 700, np.uint16))[1].tobytes(), "png")


CHANGES: dict[str, tuple[str, Any, Any, str, str]] = {
    "jpeg size": (CAM_H, Jpeg(bags.jpeg(1)), Jpeg(bags.jpeg(1, height=64)), "jpeg 64×48", "jpeg 64×64"),
    "jpeg to png": (CAM_H, Jpeg(bags.jpeg(1)), Jpeg(bags.png(1), "png"), "jpeg 64×48", "png 64×48"),
    "png size": (CAM_H, Jpeg(bags.png(1), "png"), Jpeg(bags.png(1, width=32), "png"), "png 64×48", "png 32×48"),
    "raw size": (RAW, raw("rgb8"), raw("rgb8", 32), "raw rgb8 64×48", "raw rgb8 32×48"),
    "raw encoding": (RAW, raw("rgb8"), raw("bgr8"), "raw rgb8 64×48", "raw bgr8 64×48"),
    "raw to yuv": (RAW, raw("mono16", samples=2), raw("yuyv", samples=2), "raw mono16 64×48", "raw yuyv 64×48"),
    "depth values": (
        DEPTH, raw("16UC1", samples=2), raw("32FC1", samples=4), "depth 16UC1 raw 64×48", "depth 32FC1 raw 64×48",
    ),
    "depth size": (PACKED, packed("png"), packed("png", 32), "depth 16UC1 png 64×48", "depth 16UC1 png 32×48"),
    "depth packing": (PACKED, packed("png"), packed("rvl"), "depth 16UC1 png 64×48", "depth 16UC1 rvl 64×48"),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_an_error_that_names_topic_message_and_both(change: str, tmp_path: Path) -> None:
    topic, before, after, first, then = CHANGES[change]
    tape = bags.messages(topic, bags.times(30, 1), lambda number: before if number < 17 else after)
    bag = bags.write(tmp_path / "run.bag", tape + bags.joints(bags.STATE, bags.times(50, 1)))
    with pytest.raises(ImageError) as caught:
        penstock.convert(bag, tmp_path / "out", **({"video": "images"} if "jpeg" in change else {}))
    assert f"{topic}: message 17 is {then}, the first was {first}" in caught.value.message
    assert caught.value.hint
    assert not (tmp_path / "out").exists()


def test_a_jpeg_that_changes_its_sampling_cannot_be_copied_into_one_video(tmp_path: Path) -> None:
    gray = cv2.imencode(".jpg", bags.image(3)[..., 0])[1].tobytes()
    tape = bags.change(bags.robot(1), CAM_H, 8, bags.with_content(Jpeg(gray)))
    bag = bags.write(tmp_path / "run.bag", tape)
    with pytest.raises(ImageError, match=rf"{CAM_H}: message 8 is gray, the ones before yuvj420p"):
        penstock.convert(bag, tmp_path / "out")
    assert penstock.convert(bag, tmp_path / "again", video="mjpeg").exit_code == 0


@pytest.mark.parametrize(
    ("content", "says", "hint"),
    [
        (lambda n: png16(3), "16 bits per colour, and LeRobot's cameras have 8", "record 8-bit PNG"),
        (lambda n: png16(1), "one channel of 16 bits", "map it as depth"),
        (lambda n: raw("32FC1", samples=4), "unknown image encoding '32FC1'", "mapped as depth"),
    ],
)
def test_16_bit_images_are_not_cut_to_8_in_silence(
    content: Callable[[int], Any], says: str, hint: str, tmp_path: Path
) -> None:
    topic = RAW if isinstance(content(0), Raw) else "/cam/image/compressed"
    bag = bags.write(tmp_path / "run.bag", bags.messages(topic, bags.times(30, 1), content))
    with pytest.raises(ImageError) as caught:
        penstock.convert(bag, tmp_path / "out", features={"observation.images.cam": {"topic": topic, "depth": "off"}})
    assert topic in caught.value.message and says in caught.value.message
    assert hint in (caught.value.hint or "")
