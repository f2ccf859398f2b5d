"""Videos of JPEGs whose brightness goes from 16 to 235: FFmpeg writes them when it is asked to."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock._src.media.image import codec, jpeg
from penstock._src.stores.store import Scratch
from tests.lerobot import making
from tests.media.clips import HEIGHT, WIDTH, blocks, middles, tagged_clip
from tests.stores.lerobot_sets import jpegs


@pytest.mark.parametrize("is_full", [False, True])
def test_colours_are_those_of_the_original(tmp_path: Path, is_full: bool) -> None:
    making.make(tmp_path / "set", (5,))
    information = tmp_path / "set/meta/info.json"
    info = json.loads(information.read_text())
    info["features"][making.CAMERA]["shape"] = [HEIGHT, WIDTH, 3]
    information.write_text(json.dumps(info))
    tagged_clip(next((tmp_path / "set").rglob("*.mp4")), "mjpeg", None, is_full=is_full)
    with penstock.open(tmp_path / "set") as store:
        for number, frame in enumerate(store.images(making.CAMERA).read(range(5), Scratch())):
            assert frame.ndim == (1 if is_full else 3)
            pixels = codec.decode(frame.tobytes()) if is_full else frame
            assert np.median(np.abs(middles(pixels) - middles(blocks(number)))) <= 3


def test_only_the_comment_of_ffmpeg_says_so() -> None:
    plain = next(iter(jpegs().values()))
    assert not jpeg.is_limited_range(plain)
    for text, is_limited in ((b"CS=ITU601\0", True), (b"CS=ITU601", True), (b"a remark", False)):
        comment = b"\xff\xfe" + (len(text) + 2).to_bytes(2, "big") + text
        assert jpeg.is_limited_range(plain[:2] + comment + plain[2:]) is is_limited
        for size in range(40):
            jpeg.is_limited_range((plain[:2] + comment + plain[2:])[:size])
