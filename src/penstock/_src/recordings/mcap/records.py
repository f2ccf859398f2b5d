"""The records of mcap files, read strictly: what is wrong in one is an error."""

from __future__ import annotations

import struct
from typing import NamedTuple

from penstock._src.formats.registry import MCAP_MAGIC
from penstock._src.recordings.messages.schemas import Schema, TopicTable, type_name

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
_FOOTER = struct.Struct("<QQI")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class ChannelFacts(NamedTuple):
    """What the records of a channel and its schema tell; texts are as the schema has them."""

    name: str
    type: str
    encoding: str
    schema_encoding: str = ""
    schema_text: str = ""
    qos: str = ""
    type_hash: str = ""


def text_at(content: bytes, at: int) -> tuple[str, int]:
    """A string of a record, and where it ends."""
    data, end = _bytes_at(content, at)
    return data.decode("utf-8", errors="replace"), end


def _bytes_at(content: bytes, at: int) -> tuple[bytes, int]:
    end = at + 4 + int.from_bytes(content[at : at + 4], "little")
    return content[at + 4 : end], end


def channel_facts(channel: bytes, schema: bytes | None) -> ChannelFacts:
    """From the content of the two records."""
    name, at = text_at(channel, 4)
    encoding, at = text_at(channel, at)
    metadata, at = {}, at + 4
    while at < len(channel):
        key, at = text_at(channel, at)
        metadata[key], at = text_at(channel, at)
    more = metadata.get("offered_qos_profiles", ""), metadata.get("topic_type_hash", "")
    if schema is None:
        return ChannelFacts(name, "", encoding, "", "", *more)
    kind, at = text_at(schema, 2)
    schema_encoding, at = text_at(schema, at)
    data, _ = _bytes_at(schema, at)
    # Descriptors of protobuf are no text: one character for each byte keeps them whole.
    text = data.decode("latin-1") if schema_encoding == "protobuf" else data.decode("utf-8", errors="replace")
    return ChannelFacts(name, kind, encoding, schema_encoding, text, *more)


def topic_number(topics: TopicTable, channel: bytes, schema: bytes | None) -> int:
    """The number of a channel's topic; JSON may go without a schema, and is shown as what it is."""
    facts = channel_facts(channel, schema)
    kind = type_name(facts.type) or ("json" if facts.encoding == "json" else "")
    described = Schema(kind, facts.schema_encoding or "none", facts.schema_text)
    return topics.number(facts.name, facts.encoding, described)


def read_statistics(content: bytes) -> tuple[int, dict[int, int] | None]:
    """Messages in all and by channel, None when the writer left these out."""
    (total,), (n_bytes,) = _U64.unpack_from(content), _U32.unpack_from(content, 42)
    pairs = content[46 : 46 + n_bytes // 10 * 10]
    counts = {channel: count for channel, count in struct.iter_unpack("<HQ", pairs) if count}
    return total, counts if counts or not total else None


def read_footer(tail: bytes) -> tuple[int, int] | None:
    """Where the summary begins (0: there is none) and its CRC, from the last bytes of a file; None: no footer."""
    if not tail.endswith(MAGIC) or tail[:RECORD_HEAD_BYTES] != _RECORD_HEAD.pack(OP_FOOTER, 20):
        return None
    summary_at, _, crc = _FOOTER.unpack_from(tail, RECORD_HEAD_BYTES)
    return summary_at, crc
