"""Frames that are damaged, missing or not yet whole are refused, never handed out; files without a fault are read."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from penstock._src.media.mp4.index import read_index
from penstock._src.media.video import decode
from penstock._src.media.video.decode import VideoDecoder
from penstock._src.media.video.frame_times import FrameTimes
from penstock.errors import VideoError
from tests.conversion import version21
from tests.conversion.version21 import Video

COUNT, HEIGHT, WIDTH = 40, 128, 192
AV1_GOP_10 = Video("av1", gop=10)
H264_GOP_2 = Video(gop=2, options={"bf": "0", "crf": "5"})


def image(number: int) -> np.ndarray:
    """Blocks that wander, with a cut now and then."""
    colours = np.random.default_rng(number // 11).integers(0, 256, (HEIGHT // 16, WIDTH // 16, 3), np.uint8)
    return np.roll(np.kron(colours, np.ones((16, 16, 1), np.uint8)), number * 2, axis=1)


def clip(path: Path, video: Video) -> tuple[Path, list[np.ndarray]]:
    """A file, and its frames as FFmpeg shows them from end to end."""
    version21.encode(path, [image(number) for number in range(COUNT)], video)
    shown = version21.decoded(path)
    assert len(shown) == COUNT
    return path, shown


def opened(path: Path) -> VideoDecoder:
    index = read_index(path)
    order = index.presentation_order()
    return VideoDecoder(str(path), FrameTimes.of(index.pts[order], index.key[order]), 1)


def by_store(path: Path) -> Callable[[int], np.ndarray]:
    decoder = opened(path)
    return lambda number: decoder.pixels(decoder.frame(number), "rgb24")


def by_decode(path: Path) -> Callable[[int], np.ndarray]:
    return lambda number: next(decode.frames(path, [number], threads=1))[1]


def refused(read: Callable[[int], np.ndarray], shown: list[np.ndarray], order: list[int]) -> set[int]:
    """The frames that are refused; all others must be right."""
    bad = set()
    for number in order:
        try:
            pixels = read(number)
        except VideoError:
            bad.add(number)
        else:
            assert np.array_equal(pixels, shown[number]), number
    return bad


def flip(data: bytearray, start: int, size: int) -> None:
    """Some bytes of a sample are others, behind the header of its slice."""
    random = np.random.default_rng(1)
    for at in random.integers(start + 8, start + size, 20).tolist():
        data[at] ^= int(random.integers(1, 255))


def clear(data: bytearray, start: int, size: int) -> None:
    data[start : start + size] = bytes(size)


ORDERS = {"on": list(range(COUNT)), "back": list(range(COUNT))[::-1],
          "anyhow": np.random.default_rng(3).permutation(COUNT).tolist()}  # fmt: skip


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("way", [by_store, by_decode])
@pytest.mark.parametrize(
    ("video", "harm", "sample", "lost"),
    [(H264_GOP_2, flip, 12, {12, 13}), (AV1_GOP_10, clear, 15, set(range(15, 20)))], ids=["concealed", "left out"],
)  # fmt: skip
def test_what_a_decoder_conceals_or_leaves_out_is_refused(
    tmp_path: Path, video: Video, harm: Any, sample: int, lost: set[int], way: Any, order: list[int]
) -> None:
    path, shown = clip(tmp_path / "a.mp4", video)
    index, data = read_index(path), bytearray(path.read_bytes())
    harm(data, int(index.offsets[sample]), int(index.sizes[sample]))
    path.write_bytes(data)
    assert refused(way(path), shown, order) == lost


REFRESHED = ["keyint=2:bframes=0", "keyint=10:bframes=0", "keyint=30"]


@pytest.mark.parametrize("way", [by_store, by_decode])
@pytest.mark.parametrize("params", REFRESHED)
def test_images_refreshed_piece_by_piece_are_whole_after_a_seek(tmp_path: Path, params: str, way: Any) -> None:
    video = Video(gop=30, b_frames=2, options={"x264-params": f"intra-refresh=1:{params}", "preset": "veryfast"})
    path, shown = clip(tmp_path / "a.mp4", video)
    for number in ORDERS["anyhow"]:
        assert not refused(way(path), shown, [0, number]), number


WHOLE = {
    "b-frames": Video(gop=12, b_frames=3),
    "open gop": Video(gop=10, b_frames=3, options={"x264-params": "open-gop=1:b-adapt=0"}),
    "hevc, open gop": Video("hevc", gop=10, b_frames=3), "vp9": Video("vp9", gop=6), "av1": AV1_GOP_10,
}  # fmt: skip


@pytest.mark.parametrize("way", [by_store, by_decode])
@pytest.mark.parametrize("name", WHOLE)
def test_files_without_a_fault_are_read_in_any_order(tmp_path: Path, name: str, way: Any) -> None:
    path, shown = clip(tmp_path / "a.mp4", WHOLE[name])
    for order in ORDERS.values():
        assert not refused(way(path), shown, order)


def test_a_seek_before_a_key_frame_of_an_open_group_does_not_begin_anew(tmp_path: Path) -> None:
    path, shown = clip(tmp_path / "a.mp4", WHOLE["open gop"])
    decoder = opened(path)
    for number in (19, 39, 29):
        before = decoder.seeks
        assert np.array_equal(decoder.pixels(decoder.frame(number), "rgb24"), shown[number])
        assert decoder.seeks == before + 1


@pytest.mark.parametrize("way", [by_store, by_decode])
def test_uneven_times_are_no_gaps(tmp_path: Path, way: Any) -> None:
    path = tmp_path / "a.mp4"
    times = np.cumsum(np.random.default_rng(1).integers(1, 9, COUNT))
    with av.open(str(path), "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=100, options={"g": "10", "bf": "2"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number, time in enumerate(times.tolist()):
            frame = av.VideoFrame.from_ndarray(image(number), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 100)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    shown = version21.decoded(path)
    for order in ORDERS.values():
        assert not refused(way(path), shown, order)
