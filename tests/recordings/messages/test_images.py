"""Images come out as the bytes that were recorded."""

from __future__ import annotations

import struct

import pytest

from penstock._src.recordings.messages.decode import RosDecoder
from penstock._src.recordings.messages.definitions import parse_msg
from penstock._src.recordings.messages.standard_types import standard_definitions
from penstock._src.recordings.values.images import EncodedImage, ImageReader, RawImage
from penstock.errors import ImageError, MessageError, SchemaError


def reader(name: str) -> ImageReader:
    return ImageReader(RosDecoder(standard_definitions("ros1"), name, "ros1"))


def raw(height: int, width: int, step: int, data: bytes, big_endian: int = 0) -> bytes:
    return bytes(16) + struct.pack("<III4sBII", height, width, 4, b"rgb8", big_endian, step, len(data)) + data


def test_a_compressed_image_is_its_bytes() -> None:
    image = reader("sensor_msgs/CompressedImage")(bytes(16) + struct.pack("<I4sI3s", 4, b"jpeg", 3, b"\xff\xd8\xff"))
    assert isinstance(image, EncodedImage)
    assert (image.format, bytes(image.data)) == ("jpeg", b"\xff\xd8\xff")


def test_a_raw_image_has_its_shape() -> None:
    image = reader("sensor_msgs/Image")(raw(2, 1, 4, bytes(range(8)), big_endian=1))
    assert isinstance(image, RawImage)
    assert image[:-1] == (2, 1, "rgb8", True, 4)
    assert bytes(image.data) == bytes(range(8))
    assert repr(image) == "RawImage(1×2 'rgb8', step 4, 8 bytes)"


def test_a_raw_image_shorter_than_it_claims_gives_both_numbers() -> None:
    with pytest.raises(ImageError, match="1×2 'rgb8' with rows of 4 bytes needs 8 bytes, the message holds 7"):
        reader("sensor_msgs/Image")(raw(2, 1, 4, bytes(7)))


def test_a_cut_image_message_is_a_message_error() -> None:
    with pytest.raises(MessageError, match=r"Image\.data: needs 8 bytes"):
        reader("sensor_msgs/Image")(raw(2, 1, 4, bytes(8))[:-1])


def test_foxglove_images_are_read() -> None:
    text = "time timestamp\nstring frame_id\nuint8[] data\nstring format\n"
    decoder = RosDecoder(parse_msg(text, "foxglove_msgs/CompressedImage"), "foxglove_msgs/CompressedImage", "ros1")
    image = ImageReader(decoder)(bytes(12) + struct.pack("<I2sI3s", 2, b"ab", 3, b"png"))
    assert isinstance(image, EncodedImage)
    assert (image.format, bytes(image.data)) == ("png", b"ab")


def test_other_types_are_no_images() -> None:
    with pytest.raises(SchemaError, match="std_msgs/msg/String holds no image"):
        reader("std_msgs/String")
