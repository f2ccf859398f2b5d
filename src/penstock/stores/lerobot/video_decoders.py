"""Frames of video files by number through FFmpeg: decoders that stay open and go on where they stand."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import UsageError, VideoError
from penstock.media.video.decode import rgb_options
from penstock.media.video.frame_times import FrameTimes, WholeFrames
from penstock.system.files import for_library
from penstock.system.memory import give_back_freed

_CLOSED_BETWEEN = 8  # decoders, until what they left in the heap is given back: glibc keeps it, and it would pile up
_closed = itertools.count(1)
NEAR_FRAMES = 3
"""A seek costs about as much as so many frames; so far ahead of a key frame, going on is cheaper."""


class Decoder:
    """An open video file: one thread reads at a time, and forward is the cheap direction."""

    def __init__(self, path: str, file: int, times: FrameTimes, threads: int) -> None:
        import_av(path)
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
            import av

            # As MP4 and nothing else: a playlist with that name could make FFmpeg open other files.
            self._container = av.open(for_library(path), format="mp4")
            if not self._container.streams.video:
                raise VideoError(f"{path}: the file has no video track")
            self._stream = self._container.streams.video[0]
            self._stream.codec_context.thread_count = threads
            if threads > 1:
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
            found = self._on_to(number)
            if found is None:
                # Some key frames are none: where a seek does not lead to the whole frame, the decoder begins anew.
                self._seek(0)
                found = self._on_to(number)
        if found is None:
            self.position = -1
            raise VideoError(f"{self.path}: frame {number:,} of {self.times.count:,} does not decode")
        return found

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

    def _on_to(self, number: int) -> Any:
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


@contextmanager
def _ffmpeg_errors(path: str) -> Iterator[None]:
    import av

    try:
        yield
    except (av.FFmpegError, OSError) as error:
        raise VideoError(f"{path}: cannot be decoded: {error}") from error


def import_av(path: str) -> None:
    """Say in words that FFmpeg is missing."""
    try:
        import av  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"{path}: decoding this video needs the package 'av'",
            hint="pip install av",
        ) from error


@dataclass(frozen=True)
class DepthScale:
    """How LeRobot 0.6.1 keeps depth in a video: 12-bit codes for logarithms (or distances) between two distances."""

    low_m: float = 0.01
    high_m: float = 10.0
    shift_m: float = 3.5
    is_log: bool = True

    def millimetres(self, codes: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """The distances, rounded to millimetres."""
        low, high = self.low_m, self.high_m
        if self.is_log:
            low, high = float(np.log(low + self.shift_m)), float(np.log(high + self.shift_m))
        metres = np.empty(codes.shape, np.float32)
        np.multiply(codes, (high - low) / 4095, out=metres)
        metres += np.float32(low)
        if self.is_log:
            np.exp(metres, out=metres)
            metres -= np.float32(self.shift_m)
        np.clip(metres, self.low_m, self.high_m, out=metres)
        np.rint(metres * np.float32(1000.0), out=metres)
        return np.clip(metres, 0, 65535).astype(np.uint16)
