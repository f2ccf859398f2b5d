"""The colours of a video are those that were filmed, whichever matrix and range it is tagged with."""

from __future__ import annotations

import itertools
from pathlib import Path

import av
import numpy as np
import pytest

from penstock._src.media.mp4.index import read_index
from penstock._src.media.video import decode
from penstock._src.media.video.decode import VideoDecoder, rgb_options
from penstock._src.media.video.frame_times import FrameTimes
from tests.media.clips import MATRICES, blocks, middles, tagged_clip

ENCODERS = ("libx264", "libsvtav1")


@pytest.mark.parametrize(("encoder", "matrix", "is_full"), [*itertools.product(ENCODERS, MATRICES, (False, True))])
def test_colours_are_those_of_the_original(tmp_path: Path, encoder: str, matrix: str | None, is_full: bool) -> None:
    path = tagged_clip(tmp_path / "a.mp4", encoder, matrix, is_full=is_full)
    index = read_index(path)
    order = index.presentation_order()
    decoder = VideoDecoder(str(path), FrameTimes.of(index.pts[order], index.key[order]), 1)
    for number, rgb in decode.frames(path, range(5)):
        assert np.median(np.abs(middles(rgb) - middles(blocks(number)))) <= 2
        assert np.array_equal(decoder.pixels(decoder.frame(number), "rgb24"), rgb)
    decoder.close()


@pytest.mark.parametrize("matrix", [None, "smpte170m"])
def test_frames_without_another_tag_are_converted_as_ever(tmp_path: Path, matrix: str | None) -> None:
    path = tagged_clip(tmp_path / "a.mp4", "libx264", matrix, is_full=False)
    with av.open(str(path)) as container:
        plain = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0) if not rgb_options(frame)]
    assert len(plain) == 5
    for number, rgb in decode.frames(path, range(5)):
        assert np.array_equal(rgb, plain[number])
