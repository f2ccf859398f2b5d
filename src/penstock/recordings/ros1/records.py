"""The records of ROS 1 bags, format 2.0: headers of named fields, and messages inside chunks."""

from __future__ import annotations

import struct
from pathlib import Path

from penstock.errors import RecordingCorrupt
from penstock.recordings.file_window import Window, recover_hint

MAGIC = b"#ROSBAG V2.0\n"
OP_MESSAGE, OP_BAG_HEADER, OP_INDEX, OP_CHUNK, OP_CHUNK_INFO, OP_CONNECTION = 2, 3, 4, 5, 6, 7

# Headers hold a handful of short fields; only a connection's data (its definition) is long.
MAX_HEADER_BYTES = 1 << 20
MAX_CONNECTION_BYTES = 16 << 20

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
u32_from = _U32.unpack_from


def parse_fields(data: bytes) -> dict[bytes, bytes]:
    """The fields of a record header; ValueError says why the bytes are none."""
    values: dict[bytes, bytes] = {}
    at, end = 0, len(data)
    while at < end:
        if end - at < 4:
            raise ValueError(f"{end - at} bytes are left in a record header where a field should begin")
        (size,) = u32_from(data, at)
        at += 4
        if size > end - at:
            raise ValueError(f"a header field claims {size:,} bytes, and {end - at:,} are left in the header")
        name, equals, value = data[at : at + size].partition(b"=")
        if not equals:
            raise ValueError("a header field without '='")
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


class Fields:
    """The fields of a record header, read with checks that name the byte where the record lies."""

    def __init__(self, data: bytes, path: Path, offset: int) -> None:
        self._path = path
        self._offset = offset
        try:
            self._values = parse_fields(data)
        except ValueError as error:
            raise self.broken(str(error)) from None

    def broken(self, message: str) -> RecordingCorrupt:
        return RecordingCorrupt(message, path=str(self._path), offset=self._offset, hint=recover_hint(self._path))

    def __contains__(self, name: bytes) -> bool:
        return name in self._values

    def raw(self, name: bytes, size: int | None = None) -> bytes:
        value = self._values.get(name)
        if value is None:
            raise self.broken(f"record header without the field {name.decode()!r}")
        if size is not None and len(value) != size:
            raise self.broken(f"field {name.decode()!r} has {len(value)} bytes, and must have {size}")
        return value

    @property
    def op(self) -> int:
        return self.raw(b"op", 1)[0]

    def u32(self, name: bytes) -> int:
        value: int = _U32.unpack(self.raw(name, 4))[0]
        return value

    def u64(self, name: bytes) -> int:
        value: int = _U64.unpack(self.raw(name, 8))[0]
        return value

    def text(self, name: bytes, default: str | None = None) -> str:
        if default is not None and name not in self._values:
            return default
        # Bags carry definitions with comments in any 8-bit encoding: a comment must not cost the topic.
        return self.raw(name).decode("utf-8", errors="replace")


def read_header(window: Window, offset: int, ahead: int = 0) -> tuple[Fields, int, int]:
    """The record at `offset`: its fields, where its data begin, how many bytes they are (not checked)."""
    (header_bytes,) = u32_from(window.at(offset, 4, ahead))
    if header_bytes > MAX_HEADER_BYTES:
        raise window.broken(f"a record header claims {header_bytes:,} bytes; at most {MAX_HEADER_BYTES:,}", offset)
    fields = Fields(window.at(offset + 4, header_bytes, ahead), window.path, offset)
    (data_bytes,) = u32_from(window.at(offset + 4 + header_bytes, 4))
    return fields, offset + 8 + header_bytes, data_bytes
