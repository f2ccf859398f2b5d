"""Decodes an H.264 or H.265 stream message by message, and finds what cannot be decoded instead of showing it."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock._src.media.h26x import h265
from penstock._src.media.h26x.nal import StreamCodec, annex_b, nal_units
from penstock._src.media.video.decode import rgb_options
from penstock._src.system.closing import Closing
from penstock.errors import VideoError

# Behind the end of a whole slice no decoder reads on, but behind a cut one it does.
_TAIL = bytes(range(0xA5, 0xD5, 3))


class DecodedFrame:
    """One frame of a stream: the number of its message, and its pixels when they are asked for."""

    __slots__ = ("_frame", "number")

    def __init__(self, number: int, frame: Any) -> None:
        self.number = number
        self._frame = frame

    def rgb(self) -> NDArray[np.uint8]:
        """The pixels, as the readers of a data set convert them: shape (height, width, 3)."""
        pixels: NDArray[np.uint8] = self._frame.to_ndarray(format="rgb24", **rgb_options(self._frame))
        return pixels

    def _same_as(self, other: DecodedFrame) -> bool:
        return bool(np.array_equal(_planes(self._frame), _planes(other._frame)))


class StreamDecoder(Closing):
    """Decodes one stream; a context manager. Damage is a VideoError whose `number` says from which message on.

    `in_order`: frames take the numbers of their messages in rising order, whatever the order in which they came;
    otherwise each keeps the number of its own message. FFmpeg's H.265 decoder does not tell that a slice is cut, so
    such streams are decoded a second time with bytes added behind each slice: where the frames differ, it was.
    """

    def __init__(self, codec: StreamCodec, *, delay: int, in_order: bool) -> None:
        self._codec: StreamCodec = codec
        self._delay = delay
        self._in_order = in_order
        self._contexts: list[Any] = []
        self._expected: list[int] = []
        self._twins: list[DecodedFrame] = []
        self.reset()

    def reset(self) -> None:
        """Forget everything: the next message must hold a key frame."""
        import av

        self._expected, self._twins = [], []
        self._contexts = []
        for _ in range(2 if self._codec == "h265" else 1):
            context: Any = av.CodecContext.create("h264" if self._codec == "h264" else "hevc", "r")
            context.thread_count = 1
            # Without a delay frames come out at once; with one, FFmpeg must not guess a shorter one.
            context.options = {"err_detect": "explode", **({"strict": "strict"} if self._delay else {})}
            if not self._delay:
                context.options["flags"] = "low_delay"
            self._contexts.append(context)

    def feed(self, number: int, data: bytes) -> Iterator[DecodedFrame]:
        """Decode a message; the frames that are ready, none at first where frames are reordered."""
        heappush(self._expected, number)
        return self._decode(number, data)

    def flush(self) -> Iterator[DecodedFrame]:
        """The frames that are still held back; every message has been shown, or is reported."""
        if self._expected:
            yield from self._decode(min(self._expected), None)
        if self._expected:
            raise StreamDamage(min(self._expected), "the decoder shows no image for it")
        self.reset()

    def close(self) -> None:
        self._contexts, self._twins = [], []

    def _decode(self, number: int, data: bytes | None) -> Iterator[DecodedFrame]:
        import av

        try:
            frames = self._contexts[0].decode(_packet(number, data))
            if len(self._contexts) > 1:
                tailed = None if data is None else _with_tails(data)
                twins = self._contexts[1].decode(_packet(number, tailed))
                self._twins += [DecodedFrame(frame.pts, frame) for frame in twins]
        except (av.FFmpegError, ValueError, VideoError) as error:
            raise StreamDamage(number, f"cannot be decoded: {_text(error)}") from error
        for frame in frames:
            if frame.pts is None or frame.is_corrupt:
                raise StreamDamage(number, "is damaged")
            shown = DecodedFrame(frame.pts, frame)
            if len(self._contexts) > 1 and not (self._twins and shown._same_as(self._twins.pop(0))):
                raise StreamDamage(shown.number, "is cut or damaged")
            yield self._numbered(shown)

    def _numbered(self, shown: DecodedFrame) -> DecodedFrame:
        if self._in_order:
            shown.number = heappop(self._expected)
        elif shown.number in self._expected:
            self._expected.remove(shown.number)
        else:
            raise StreamDamage(shown.number, "is shown twice")
        return shown


class StreamDamage(VideoError):
    """A message of a stream cannot be decoded."""

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


def _packet(number: int, data: bytes | None) -> Any:
    if data is None:
        return None
    import av

    packet = av.Packet(data)
    packet.pts = number
    return packet


def _with_tails(data: bytes) -> bytes:
    """The message with bytes behind each slice that a decoder of a whole slice does not read."""
    return annex_b(unit + _TAIL if h265.unit_type(unit) in h265.PICTURE_TYPES else unit for unit in nal_units(data))


def _planes(frame: Any) -> Any:
    try:
        return frame.to_ndarray()
    except (ValueError, NotImplementedError):  # PyAV cannot give this pixel format as it is
        return frame.to_ndarray(format="rgb24")


def _text(error: BaseException) -> str:
    return str(getattr(error, "strerror", None) or error).split(":")[0]
