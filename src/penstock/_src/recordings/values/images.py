"""Images out of messages, as the bytes that were recorded; nothing is decoded here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from penstock._src.media.image.raw import RawImage as RawImage
from penstock._src.recordings.messages.decoder import MessageDecoder, Payload
from penstock._src.recordings.recording import Recording, Topic
from penstock.errors import ImageError, LimitExceeded, MessageError, SchemaError

if TYPE_CHECKING:
    from penstock._src.media.h26x.nal import StreamCodec
    from penstock._src.media.h26x.stream_index import StreamIndex

COMPRESSED_TYPES = frozenset(
    ("sensor_msgs/msg/CompressedImage", "foxglove_msgs/msg/CompressedImage", "foxglove.CompressedImage")
)
RAW_TYPES = frozenset(("sensor_msgs/msg/Image", "foxglove_msgs/msg/RawImage", "foxglove.RawImage"))

# Which field of each type names the codec.
_CODEC_FIELD = {
    "foxglove_msgs/msg/CompressedVideo": "format",
    "foxglove.CompressedVideo": "format",
    "ffmpeg_image_transport_msgs/msg/FFMPEGPacket": "encoding",
}
VIDEO_TYPES = frozenset(_CODEC_FIELD)

_CODEC_WORDS: tuple[tuple[str, StreamCodec], ...] = (
    ("264", "h264"),  # h264, libx264, h264_nvenc
    ("avc", "h264"),
    ("265", "h265"),
    ("hevc", "h265"),
)


class EncodedImage(NamedTuple):  # one is made per message: a frozen dataclass takes four times as long to make
    """An image file inside a message; `format` is what the message says of it: "jpeg", "rgb8; jpeg compressed bgr8"."""

    format: str
    data: memoryview


class ImageReader:
    """Reads the image of every message of a topic; its data is a view into the payload."""

    def __init__(self, decoder: MessageDecoder) -> None:
        self._type_name = decoder.type_name
        self.is_compressed = decoder.type_name in COMPRESSED_TYPES
        self._has_byte_order = False
        if self.is_compressed:
            self._read = decoder.reader(["format", "data"])
        elif decoder.type_name in RAW_TYPES:
            paths = ["height", "width", "encoding", "step", "data"]
            self._has_byte_order = decoder.message.field("is_bigendian") is not None
            self._read = decoder.reader([*paths, "is_bigendian"] if self._has_byte_order else paths)
        else:
            known = ", ".join(sorted(COMPRESSED_TYPES | RAW_TYPES))
            raise SchemaError(f"{decoder.type_name} holds no image that can be read; known are {known}")

    def __call__(self, payload: Payload) -> EncodedImage | RawImage:
        """The image of one message."""
        if self.is_compressed:
            return EncodedImage._make(self._read(payload))
        height, width, encoding, step, data, *order = self._read(payload)
        if len(data) < height * step:
            raise ImageError(
                f"{self._type_name}: {width}×{height} {encoding!r} with rows of {step:,} bytes needs "
                f"{height * step:,} bytes, the message holds {len(data):,}"
            )
        return RawImage(height, width, encoding, bool(order and order[0]), step, data)


class VideoPacket(NamedTuple):
    """One coded image; its data is a view into the payload."""

    codec: StreamCodec
    data: memoryview


class VideoReader:
    """Reads the coded image of every message of a topic."""

    def __init__(self, decoder: MessageDecoder) -> None:
        if decoder.type_name not in VIDEO_TYPES:
            raise SchemaError(f"{decoder.type_name} holds no video; known are {', '.join(sorted(VIDEO_TYPES))}")
        self._type_name = decoder.type_name
        self._read = decoder.reader([_CODEC_FIELD[decoder.type_name], "data"])

    def __call__(self, payload: Payload) -> VideoPacket:
        """The coded image of one message."""
        name, data = self._read(payload)
        return VideoPacket(codec_of(name), data)


def codec_of(name: str) -> StreamCodec:
    """The codec that a message names: "h264", "hevc_nvenc", "h264;yuv420p;bgr8"."""
    first = name.split(";", 1)[0].lower()
    for word, codec in _CODEC_WORDS:
        if word in first:
            return codec
    raise ImageError(
        f"its video is {name[:40]!r}, and only H.264 and H.265 are read",
        hint="record the camera as h264 or h265, or leave the topic out under features:",
    )


def scan_stream(recording: Recording, topic: Topic, reader: VideoReader) -> StreamIndex:
    """Look at every message of a topic once: its headers say what can be copied and what must be decoded."""
    from penstock._src.media.h26x.stream_index import UNUSABLE, StreamScanner
    from penstock._src.media.h26x.stream_order import KEY

    scanner: StreamScanner | None = None
    first_problem: str | None = None
    unread = 0  # messages before the first that names its codec
    for _, payload in recording.payloads(topic):
        data, problem = None, None
        try:
            if payload is not None:
                packet = reader(payload)
                if scanner is None:
                    scanner = StreamScanner(packet.codec)
                    for _ in range(unread):
                        scanner.add(None, first_problem)
                data = bytes(packet.data)
                if packet.codec != scanner.codec:
                    data, problem = None, f"is {packet.codec}, the first was {scanner.codec}"
        except (ImageError, MessageError, LimitExceeded) as error:
            problem = error.message
        if scanner is None:
            first_problem, unread = problem or first_problem, unread + 1
        else:
            scanner.add(data, problem)
    if scanner is None:
        why = f": {first_problem}" if first_problem else ""
        raise ImageError(f"{recording.path}: {topic.name} has no message with H.264 or H.265{why}")
    index = scanner.finish()
    if not np.any((index.flags & (KEY | UNUSABLE)) == KEY):
        raise ImageError(
            f"{recording.path}: {topic.name}: none of its {topic.count:,} messages holds a whole key frame, "
            f"so no image can be decoded; message 0 {index.why(0)}",
            hint="record for longer than the camera's key frame interval, or leave the topic out under features:",
        )
    return index
