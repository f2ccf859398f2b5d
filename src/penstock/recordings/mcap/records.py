"""The records of mcap files, read strictly: what is wrong in one is an error."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LimitExceeded, RecordingCorrupt
from penstock.formats.builtin import MCAP_MAGIC

MAGIC = MCAP_MAGIC
OP_HEADER, OP_FOOTER, OP_SCHEMA, OP_CHANNEL, OP_MESSAGE, OP_CHUNK, OP_MESSAGE_INDEX = 1, 2, 3, 4, 5, 6, 7
OP_CHUNK_INDEX, OP_ATTACHMENT, OP_ATTACHMENT_INDEX, OP_STATISTICS = 8, 9, 0x0A, 0x0B
OP_METADATA, OP_METADATA_INDEX, OP_SUMMARY_OFFSET, OP_DATA_END = 0x0C, 0x0D, 0x0E, 0x0F

RECORD_HEAD_BYTES = 9
MESSAGE_HEAD_BYTES = 22
FOOTER_BYTES = RECORD_HEAD_BYTES + 20
# Schemas, channels, statistics: records that are read as a whole. A chunk's own head has one short text in it.
MAX_SMALL_RECORD_BYTES = 16 << 20
_CHUNK_HEAD_BYTES = 32
_MAX_CODEC_NAME_BYTES = 32

_RECORD_HEAD = struct.Struct("<BQ")
_CHUNK_HEAD = struct.Struct("<QQQII")
_MESSAGE_HEAD = struct.Struct("<HIQQ")
_FOOTER = struct.Struct("<QQI")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Bytes(Protocol):
    """Where records are read from: a file window, or a chunk that was decompressed."""

    path: Path

    def at(self, offset: int, n_bytes: int, ahead: int = 0) -> bytes | memoryview: ...

    def broken(self, message: str, offset: int) -> RecordingCorrupt: ...


class RawChunk:
    """A decompressed chunk, addressed from its own beginning."""

    def __init__(self, data: memoryview, path: Path, position: int) -> None:
        self.path = path
        self._data = data
        self._position = position

    def at(self, offset: int, n_bytes: int, ahead: int = 0) -> memoryview:
        if offset + n_bytes > len(self._data):
            raise self.broken(f"{n_bytes:,} bytes are needed, and {len(self._data) - offset:,} are left", offset)
        return self._data[offset : offset + n_bytes]

    def broken(self, message: str, offset: int) -> RecordingCorrupt:
        return RecordingCorrupt(
            f"at byte {offset:,} of the decompressed chunk: {message}", path=str(self.path), offset=self._position
        )


class _Reader:
    """Fields of one record's content, one after the other, never beyond its end."""

    def __init__(self, source: Bytes, at: int, length: int) -> None:
        if length > MAX_SMALL_RECORD_BYTES:
            raise LimitExceeded(
                f"{source.path}: byte {at:,}: a record claims {length:,} bytes; its kind has at most "
                f"{MAX_SMALL_RECORD_BYTES:,}",
                size=length,
                limit=MAX_SMALL_RECORD_BYTES,
            )
        self._source, self._at = source, at
        self._data = bytes(source.at(at, length))
        self._used = 0

    def take(self, n_bytes: int) -> bytes:
        left = len(self._data) - self._used
        if n_bytes > left:
            raise self._source.broken(f"a field of {n_bytes:,} bytes, and {left:,} are left in its record", self._at)
        self._used += n_bytes
        return self._data[self._used - n_bytes : self._used]

    def u16(self) -> int:
        return int(_U16.unpack(self.take(2))[0])

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def text(self) -> str:
        return self.take(self.u32()).decode("utf-8", errors="replace")


@dataclass(frozen=True)
class SchemaRecord:
    id: int
    name: str
    encoding: str
    text: str


@dataclass(frozen=True)
class ChannelRecord:
    id: int
    schema_id: int
    topic: str
    encoding: str


@dataclass(frozen=True)
class ChunkRecord:
    """Head of a chunk; `data_at` is where its stored bytes begin."""

    raw_bytes: int
    crc: int
    codec: str
    data_at: int
    stored_bytes: int


def read_schema(source: Bytes, at: int, length: int) -> SchemaRecord:
    fields = _Reader(source, at, length)
    number, name, encoding = fields.u16(), fields.text(), fields.text()
    data = fields.take(fields.u32())
    # Descriptors of protobuf are no text: one character for each byte keeps them whole.
    text = data.decode("latin-1") if encoding == "protobuf" else data.decode("utf-8", errors="replace")
    return SchemaRecord(number, name, encoding, text)


def read_channel(source: Bytes, at: int, length: int) -> ChannelRecord:
    fields = _Reader(source, at, length)
    return ChannelRecord(fields.u16(), fields.u16(), fields.text(), fields.text())


def read_statistics(source: Bytes, at: int, length: int) -> dict[int, int] | None:
    """Messages by channel, None when the writer left them out."""
    fields = _Reader(source, at, length)
    total = fields.u64()
    fields.take(2 + 4 + 4 + 4 + 4 + 8 + 8)
    pairs = fields.take(fields.u32())
    if len(pairs) % 10:
        raise source.broken(f"message counts of {len(pairs)} bytes are no list of pairs", at)
    counts = {channel: count for channel, count in struct.iter_unpack("<HQ", pairs) if count}
    return counts if counts or not total else None


def read_message_index(source: Bytes, at: int, length: int) -> tuple[int, NDArray[np.uint64]]:
    """Channel, and (time, offset) per message. Its length is bounded by the file, as an index is by nature."""
    head = source.at(at, 6) if length >= 6 else b""
    if not head:
        raise source.broken(f"a message index of {length} bytes", at)
    channel, n_bytes = _U16.unpack(head[:2])[0], _U32.unpack(head[2:])[0]
    if n_bytes > length - 6 or n_bytes % 16:
        raise source.broken(f"a message index claims {n_bytes:,} bytes of {length - 6:,}", at)
    return channel, np.frombuffer(source.at(at + 6, n_bytes), "<u8").reshape(-1, 2)


def read_chunk_head(source: Bytes, at: int, length: int) -> ChunkRecord:
    if length < _CHUNK_HEAD_BYTES + 8:
        raise source.broken(f"a chunk of {length} bytes", at)
    _, _, raw_bytes, crc, name_bytes = _CHUNK_HEAD.unpack(source.at(at, _CHUNK_HEAD_BYTES))
    if name_bytes > min(_MAX_CODEC_NAME_BYTES, length - _CHUNK_HEAD_BYTES - 8):
        raise source.broken(f"a chunk whose compression has a name of {name_bytes:,} bytes", at)
    name = bytes(source.at(at + _CHUNK_HEAD_BYTES, name_bytes)).decode("utf-8", errors="replace")
    data_at = at + _CHUNK_HEAD_BYTES + name_bytes + 8
    stored_bytes = int(_U64.unpack(source.at(data_at - 8, 8))[0])
    if stored_bytes != length - _CHUNK_HEAD_BYTES - name_bytes - 8:
        raise source.broken(f"a chunk of {length:,} bytes claims {stored_bytes:,} bytes of records", at)
    return ChunkRecord(raw_bytes, crc, name or "none", data_at, stored_bytes)


def read_footer(tail: bytes) -> tuple[int, int] | None:
    """Where the summary begins (0: there is none) and its CRC, from the last bytes of a file; None: no footer."""
    if not tail.endswith(MAGIC) or tail[:RECORD_HEAD_BYTES] != _RECORD_HEAD.pack(OP_FOOTER, 20):
        return None
    summary_at, _, crc = _FOOTER.unpack_from(tail, RECORD_HEAD_BYTES)
    return summary_at, crc


def read_message_head(source: Bytes, at: int, length: int) -> tuple[int, int]:
    """Channel and log time."""
    if length < MESSAGE_HEAD_BYTES:
        raise source.broken(f"a message record of {length} bytes", at)
    channel, _, time_ns, _ = _MESSAGE_HEAD.unpack(source.at(at, MESSAGE_HEAD_BYTES))
    return channel, time_ns


def walk(source: Bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(kind, where its content begins, bytes of content) of the records in a range; cut ones are an error."""
    ahead = 4096
    while at < end:
        if end - at < RECORD_HEAD_BYTES:
            raise source.broken(f"{end - at} bytes are left where a record should begin", at)
        # Large records follow each other in a file of pictures: reading ahead of one would read what is skipped.
        kind, length = _RECORD_HEAD.unpack(source.at(at, RECORD_HEAD_BYTES, min(ahead, end - at)))
        content_at = at + RECORD_HEAD_BYTES
        if length > end - content_at:
            raise source.broken(
                f"a record of kind {kind} claims {length:,} bytes, and {end - content_at:,} are left", at
            )
        if kind == 0:
            raise source.broken("a record of kind 0, which does not exist", at)
        yield kind, content_at, length
        ahead = 65536 if length < 8192 else 128 if kind == OP_MESSAGE else 4096
        at = content_at + length
