"""Pictures out of messages, as the bytes that were recorded; nothing is decoded here."""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import ImageError, SchemaError
from penstock.recordings.messages.decoder import MessageDecoder, Payload

COMPRESSED_TYPES = frozenset(
    ("sensor_msgs/msg/CompressedImage", "foxglove_msgs/msg/CompressedImage", "foxglove.CompressedImage")
)
RAW_TYPES = frozenset(("sensor_msgs/msg/Image", "foxglove_msgs/msg/RawImage", "foxglove.RawImage"))

# Named tuples, since one is made per message and a frozen dataclass takes four times as long to make.


class CompressedPicture(NamedTuple):
    """An image file inside a message; `format` is what the message says of it: "jpeg", "rgb8; jpeg compressed bgr8"."""

    format: str
    data: memoryview

    def __repr__(self) -> str:
        return f"CompressedPicture({self.format!r}, {len(self.data):,} bytes)"


class RawPicture(NamedTuple):
    """Pixels inside a message: `height` rows of `step` bytes each."""

    height: int
    width: int
    encoding: str
    big_endian: bool
    step: int
    data: memoryview

    def __repr__(self) -> str:
        return f"RawPicture({self.width}×{self.height} {self.encoding!r}, step {self.step}, {len(self.data):,} bytes)"


class ImageReader:
    """Reads the picture of every message of a topic; its data is a view into the payload."""

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
            raise SchemaError(f"{decoder.type_name} holds no picture that can be read; known are {known}")

    def __repr__(self) -> str:
        return f"ImageReader({self._type_name})"

    def __call__(self, payload: Payload) -> CompressedPicture | RawPicture:
        """The picture of one message."""
        if self.is_compressed:
            return CompressedPicture._make(self._read(payload))
        height, width, encoding, step, data, *order = self._read(payload)
        if len(data) < height * step:
            raise ImageError(
                f"{self._type_name}: {width}×{height} {encoding!r} with rows of {step:,} bytes needs "
                f"{height * step:,} bytes, the message holds {len(data):,}"
            )
        return RawPicture(height, width, encoding, bool(order and order[0]), step, data)
