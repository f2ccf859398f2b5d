"""Small H.264 and H.265 streams for tests, made by x264 and x265 through PyAV: one packet per image."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from tests.media.images import rgb_image

WIDTH, HEIGHT, FPS = 64, 48, 30
ENCODER = {"h264": "libx264", "h265": "libx265"}
DECODER = {"h264": "h264", "h265": "hevc"}


@functools.cache
def stream(
    codec: str,
    count: int,
    *,
    gop: int = 10,
    b_frames: int = 0,
    width: int = WIDTH,
    height: int = HEIGHT,
    first: int = 0,
    crf: int = 23,
    more: str = "",
) -> tuple[bytes, ...]:
    """Annex B packets in the order in which they are sent; key frames carry their parameter sets."""
    context: Any = av.CodecContext.create(ENCODER[codec], "w")
    context.width, context.height, context.pix_fmt = width, height, "yuv420p"
    context.time_base, context.framerate = Fraction(1, FPS), FPS
    shared = f"keyint={gop}:min-keyint={gop}:scenecut=0:bframes={b_frames}:b-adapt=0" + (f":{more}" if more else "")
    if codec == "h264":
        context.options = {"preset": "fast", "crf": str(crf), "x264-params": shared + ":threads=1"}
    else:
        params = f"{shared}:log-level=error:pools=1:frame-threads=1:repeat-headers=1"
        context.options = {"preset": "fast", "crf": str(crf), "x265-params": params}
    packets: list[bytes] = []
    for number in range(count):
        frame = av.VideoFrame.from_ndarray(rgb_image(first + number, height, width), format="rgb24")
        frame.pts = number
        packets += [bytes(packet) for packet in context.encode(frame)]
    packets += [bytes(packet) for packet in context.encode(None)]
    assert len(packets) == count
    return tuple(packets)


def decoded(codec: str, packets: tuple[bytes, ...] | list[bytes]) -> list[NDArray[np.uint8]]:
    """The images in the order in which they are shown, by FFmpeg alone."""
    context: Any = av.CodecContext.create(DECODER[codec], "r")
    context.thread_count = 1
    shown = []
    for number, packet in enumerate(packets):
        wrapped = av.Packet(packet)
        wrapped.pts = number
        shown += context.decode(wrapped)
    shown += context.decode(None)
    return [frame.to_ndarray(format="rgb24") for frame in shown]


def planes(codec: str, packets: tuple[bytes, ...]) -> list[list[NDArray[np.uint8]]]:
    """Luma and both chroma planes of every image."""
    context: Any = av.CodecContext.create(DECODER[codec], "r")
    shown = [frame for packet in packets for frame in context.decode(av.Packet(packet))] + context.decode(None)
    found = []
    for frame in shown:
        rows = frame.to_ndarray().reshape(-1)
        luma, chroma = frame.width * frame.height, frame.width * frame.height // 4
        found.append([rows[:luma], rows[luma : luma + chroma], rows[luma + chroma :]])
    return found


def file_frames(path: Any) -> list[NDArray[np.uint8]]:
    """All frames of a video file, by FFmpeg alone."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
