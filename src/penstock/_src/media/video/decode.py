"""Frames of video files by number, decoded by FFmpeg as the readers of a data set decode them.

`VideoDecoder` stays open and goes on where it stands; `frames` is one pass over some frames of a file.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.mp4.index import read_index
from penstock._src.media.video.frame_times import FrameTimes, WholeFrames
from penstock._src.system.closing import Closing
from penstock._src.system.files import for_library
from penstock._src.system.memory import give_back_freed
from penstock.errors import VideoError

NEAR_FRAMES = 3
"""A seek costs about as much as so many frames; so far ahead of a key frame, going on is cheaper."""
_CLOSED_BETWEEN = 8  # decoders, until what they left in the heap is given back: glibc keeps it, and it would pile up
_closed = itertools.count(1)
# FFmpeg's numbers.
_BT601 = 5
_OTHER_MATRICES = frozenset((1, 4, 7, 9, 10))  # BT.709, FCC, SMPTE 240M, BT.2020
_FULL_RANGE = 2


class VideoDecoder(Closing):
    """An open video file: one thread reads at a time, and forward is the cheap direction.

    `threads` bounds those of FFmpeg, and with them the frames that it keeps; `file` is a number of the caller's.
    """

    def __init__(self, path: str, times: FrameTimes, threads: int | None = None, file: int = 0) -> None:
        from av.video.reformatter import VideoReformatter

        self.path = path
        self.file = file
        self.times = times
        self.threads = threads
        self.position = -1
        """The frame that comes out next; -1 where only a seek helps."""
        self.seeks = 0
        self._reformatter = VideoReformatter()
        self._container: Any = None
        with _ffmpeg_errors(path):
            self._container, self._stream = _opened(path)
            if threads is not None:
                self._stream.codec_context.thread_count = threads
            if threads is not None and threads > 1:
                self._stream.thread_type = "AUTO"
            self._frames: Iterator[Any] = self._container.decode(self._stream)
            self._whole = WholeFrames(times, from_start=True)
            self.position = 0

    def frames_to(self, number: int) -> int | None:
        """How many frames going on to a frame takes; None where a seek is cheaper."""
        if self.position < 0 or number < self.position:
            return None
        if number - self.position > NEAR_FRAMES and self.times.key_of(number) > self.position + NEAR_FRAMES:
            return None
        return number - self.position

    def frame(self, number: int) -> Any:
        """A frame by its number in the order in which frames are shown."""
        with _ffmpeg_errors(self.path):
            if self.frames_to(number) is None:
                self._seek(number)
            frame = self._decode_until(number)
            if frame is None:
                # Some key frames are none: where a seek does not lead to the whole frame, the decoder begins anew.
                self._seek(0)
                frame = self._decode_until(number)
        if frame is None:
            self.position = -1
            raise VideoError(f"{self.path}: frame {number:,} of {self.times.count:,} does not decode")
        return frame

    def pixels(self, frame: Any, pixel_format: str) -> NDArray[Any]:
        """(height, width, 3) uint8 for "rgb24", (height, width) uint16 for "gray12le"; valid as long as it is held."""
        with _ffmpeg_errors(self.path):
            if frame.format.name != pixel_format:
                options = rgb_options(frame) if pixel_format == "rgb24" else {}
                frame = self._reformatter.reformat(frame, format=pixel_format, **options)
            plane = frame.planes[0]
            height, width = frame.height, frame.width
            if pixel_format == "gray12le":
                wide = np.frombuffer(plane, np.uint16).reshape(height, plane.line_size // 2)
                return wide[:, :width]
            flat = np.frombuffer(plane, np.uint8).reshape(height, plane.line_size)
            return np.ascontiguousarray(flat[:, : width * 3]).reshape(height, width, 3)

    def close(self) -> None:
        self.position = -1
        self._frames = iter(())
        if self._container is not None:
            self._container.close()
            self._container = None
            if next(_closed) % _CLOSED_BETWEEN == 0:
                give_back_freed()

    def _seek(self, number: int) -> None:
        self.seeks += 1
        key = self.times.key_of(number)
        self._container.seek(self.times.of_frame(key), backward=True, any_frame=False, stream=self._stream)
        self._frames = self._container.decode(self._stream)
        self._whole = WholeFrames(self.times, from_start=number == 0)

    def _decode_until(self, number: int) -> Any:
        """Decode until the frame comes out; None where it is damaged, where a later one comes, or the end."""
        self.position = -1
        for frame in self._frames:
            shown = self.times.number(frame.pts)
            is_whole = self._whole.follow(shown, frame)
            if shown == number:
                if not is_whole:
                    return None
                self.position = number + 1
                return frame
            if shown > number:
                return None
        return None


def frames(
    path: str | os.PathLike[str], indices: Sequence[int], threads: int | None = None
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(number, RGB) of the frames asked for, in rising order, each once; frames in between are decoded only where the
    codec needs them. `threads` bounds those of the decoder, and with them the frames that it keeps.

    >>> for number, rgb in frames("cam.mp4", [0, 17, 899]): ...                      # doctest: +SKIP
    """
    name = os.fspath(path)
    index = read_index(name)
    order = index.presentation_order()
    wanted = indices if isinstance(indices, range) and indices.step == 1 else sorted(set(indices))
    if wanted and not 0 <= wanted[0] <= wanted[-1] < len(order):
        bad = wanted[0] if wanted[0] < 0 else wanted[-1]
        raise VideoError(f"{name}: frame {bad} of a video with {len(order):,} frames")
    with VideoDecoder(name, FrameTimes.of(index.pts[order], index.key[order]), threads) as decoder:
        for number in wanted:
            yield number, decoder.pixels(decoder.frame(number), "rgb24")


def pixel_format(path: str | os.PathLike[str]) -> str:
    """What the decoder says its frames are ("yuv420p"); none is decoded."""
    name = os.fspath(path)
    with _ffmpeg_errors(name):
        container, stream = _opened(name)
        with container:
            return str(stream.codec_context.pix_fmt or "")


def _opened(name: str) -> tuple[Any, Any]:
    """The file, and its video stream."""
    import av

    # As MP4 and nothing else: a playlist with that name could make FFmpeg open other files.
    container = av.open(for_library(name, short_reads=True), format="mp4")
    if not container.streams.video:
        container.close()
        raise VideoError(f"{name}: the file has no video track")
    return container, container.streams.video[0]


@contextmanager
def _ffmpeg_errors(path: str) -> Iterator[None]:
    import av

    try:
        yield
    except (av.FFmpegError, OSError) as error:
        raise VideoError(f"{path}: cannot be decoded: {error}") from error


def rgb_options(frame: Any) -> dict[str, int]:
    """What PyAV's `reformat` and `to_ndarray` need beside format="rgb24"; nothing for frames without a tag.

    PyAV < 16 heeds the tags of a frame only where the result is said to be tagged otherwise; unless it is, every frame
    counts as BT.601, and as limited where the name of its format says nothing else ("yuvj420p" is full).
    """
    is_other = frame.colorspace in _OTHER_MATRICES
    is_full = frame.color_range == _FULL_RANGE
    if not is_other and not is_full:
        return {}
    name: str = frame.format.name
    if not name.startswith("yuv"):  # grey and RGB have no matrix
        return {}
    is_named_full = name.startswith("yuvj")
    if not is_other:
        return {} if is_named_full else {"src_color_range": _FULL_RANGE}
    return {"dst_colorspace": _BT601, "src_color_range": _FULL_RANGE if is_named_full else int(frame.color_range)}
