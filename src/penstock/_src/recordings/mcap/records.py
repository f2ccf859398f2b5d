"""The records of mcap files, read strictly: what is wrong in one is an error."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.registry import MCAP_MAGIC
from penstock._src.recordings.messages.schemas import Schema, TopicTable, type_name
from penstock._src.recordings.recovery.scan_bytes import ChunkBytes, ScanBytes
from penstock.errors import RecordingCorrupt

MAGIC = MCAP_MAGIC
OP_HEADER, OP_FOOTER, OP_SCHEMA, OP_CHANNEL, OP_MESSAGE, OP_CHUNK, OP_MESSAGE_INDEX = 1, 2, 3, 4, 5, 6, 7
OP_CHUNK_INDEX, OP_ATTACHMENT, OP_ATTACHMENT_INDEX, OP_STATISTICS = 8, 9, 0x0A, 0x0B
OP_METADATA, OP_METADATA_INDEX, OP_SUMMARY_OFFSET, OP_DATA_END = 0x0C, 0x0D, 0x0E, 0x0F

RECORD_HEAD_BYTES = 9
MESSAGE_HEAD_BYTES = 22
FOOTER_BYTES = RECORD_HEAD_BYTES + 20
# Schemas, channels, statistics: records that are read as a whole.
MAX_SMALL_RECORD_BYTES = 16 << 20

_RECORD_HEAD = struct.Struct("<BQ")
_MESSAGE_HEAD = struct.Struct("<HIQQ")
_FOOTER = struct.Struct("<QQI")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Bytes(ScanBytes, Protocol):
    """Where records are read from: a file window, or a chunk that was decompressed."""

    path: Path

    def at(self, offset: int, n_bytes: int, ahead: int = 0) -> bytes: ...

    def broken(self, message: str, offset: int) -> RecordingCorrupt: ...


class RawChunk(ChunkBytes):
    """A decompressed chunk, addressed from its own beginning."""

    def __init__(self, data: bytearray, path: Path, position: int) -> None:
        super().__init__(data)
        self.path = path
        self._position = position

    def at(self, offset: int, n_bytes: int, ahead: int = 0) -> bytes:
        if offset + n_bytes > self.size_bytes:
            raise self.broken(f"{n_bytes:,} bytes are needed, and {self.size_bytes - offset:,} are left", offset)
        return super().at(offset, n_bytes)

    def broken(self, message: str, offset: int) -> RecordingCorrupt:
        return RecordingCorrupt(
            f"at byte {offset:,} of the decompressed chunk: {message}", path=str(self.path), offset=self._position
        )


@dataclass(frozen=True)
class SchemaRecord:
    id: int
    name: str
    encoding: str
    text: str


NO_SCHEMA = SchemaRecord(0, "", "", "")


@dataclass(frozen=True)
class ChannelRecord:
    id: int
    schema_id: int
    topic: str
    encoding: str


def topic_number(topics: TopicTable, channel: ChannelRecord, schema: SchemaRecord | None) -> int:
    """The number of a channel's topic; JSON may go without a schema, and is shown as what it is."""
    schema = schema or NO_SCHEMA
    name = type_name(schema.name) or ("json" if channel.encoding == "json" else "")
    return topics.number(channel.topic, channel.encoding, Schema(name, schema.encoding or "none", schema.text))


def text_at(content: bytes, at: int) -> tuple[str, int]:
    """A string of a record, and where it ends."""
    end = at + 4 + int.from_bytes(content[at : at + 4], "little")
    return content[at + 4 : end].decode("utf-8", errors="replace"), end


def read_schema(content: bytes) -> SchemaRecord:
    name, at = text_at(content, 2)
    encoding, at = text_at(content, at)
    data = content[at + 4 : at + 4 + int.from_bytes(content[at : at + 4], "little")]
    # Descriptors of protobuf are no text: one character for each byte keeps them whole.
    text = data.decode("latin-1") if encoding == "protobuf" else data.decode("utf-8", errors="replace")
    return SchemaRecord(int.from_bytes(content[:2], "little"), name, encoding, text)


def read_channel(content: bytes) -> ChannelRecord:
    number, schema_id = struct.unpack_from("<HH", content)
    topic, at = text_at(content, 4)
    return ChannelRecord(number, schema_id, topic, text_at(content, at)[0])


def read_statistics(content: bytes) -> dict[int, int] | None:
    """Messages by channel, None when the writer left them out."""
    (total,), (n_bytes,) = _U64.unpack_from(content), _U32.unpack_from(content, 42)
    pairs = content[46 : 46 + n_bytes // 10 * 10]
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
        # Large records follow each other in a file of images: reading ahead of one would read what is skipped.
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
