"""The records of ROS 1 bags, format 2.0: headers of named fields, and messages inside chunks."""

from __future__ import annotations

import struct

MAGIC = b"#ROSBAG V2.0\n"
OP_MESSAGE, OP_BAG_HEADER, OP_INDEX, OP_CHUNK, OP_CHUNK_INFO, OP_CONNECTION = 2, 3, 4, 5, 6, 7

MAX_CONNECTION_BYTES = 16 << 20

u32_from = struct.Struct("<I").unpack_from


def header_fields(data: bytes) -> dict[bytes, bytes] | None:
    """The fields of a record header, None where the bytes are none."""
    values: dict[bytes, bytes] = {}
    at, end = 0, len(data)
    while at < end:
        if end - at < 4:
            return None
        (size,) = u32_from(data, at)
        at += 4
        name, equals, value = data[at : at + size].partition(b"=")
        if size > end - at or not equals:
            return None
        values[name] = value
        at += size
    return values


def field_places(header: bytes) -> dict[bytes, tuple[int, int]]:
    """Where the values of a header that is right begin and end."""
    places, at = {}, 0
    while at < len(header):
        (size,) = u32_from(header, at)
        name = header[at + 4 : at + 4 + size].partition(b"=")[0]
        places[name] = at + 5 + len(name), at + 4 + size
        at += 4 + size
    return places
