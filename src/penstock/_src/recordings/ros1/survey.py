"""What the index of a ROS 1 bag tells, as far as it can be read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from penstock._src.recordings.messages.schemas import Schema, TopicTable, type_name
from penstock._src.recordings.recovery.scan_bytes import FileBytes
from penstock._src.recordings.ros1.parsing import parse_record
from penstock._src.recordings.ros1.records import (
    MAGIC,
    OP_BAG_HEADER,
    OP_CHUNK,
    OP_CHUNK_INFO,
    OP_CONNECTION,
    header_fields,
    u32_from,
)

_NOWHERE = 1 << 63


@dataclass(frozen=True)
class BagSurvey:
    """What the end of a bag tells, where it can be read: connections, and messages by the chunk's position."""

    connections: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    chunk_messages: dict[int, int] = field(default_factory=dict)
    index_at: int = 0
    connection_count: int = 0
    chunk_count: int = 0
    compression: Literal["none", "lz4", "bz2"] = "none"
    tail_at: int = _NOWHERE  # behind it lies no message
    end: int = 0  # where the records of the index end


def survey_bag(source: FileBytes) -> BagSurvey:
    """Hop over the records, payloads unread, until one is broken; from the index, where the bag says where it is."""
    connections: dict[int, tuple[bytes, bytes]] = {}
    chunk_messages: dict[int, int] = {}
    index_at, connection_count, chunk_count, tail_at = 0, 0, 0, _NOWHERE
    compression: Literal["none", "lz4", "bz2"] | None = None
    at = len(MAGIC)
    while at < source.size_bytes:
        record = parse_record(source, at, source.size_bytes, inner=False)
        if record.op == OP_CHUNK and compression is None:
            codec = record.fields[b"compression"]
            compression = "lz4" if codec == b"lz4" else "bz2" if codec == b"bz2" else "none"
        if record.state != "whole":
            if not at < tail_at < source.size_bytes:
                break
            at = tail_at  # what is broken before it is found by the scan
            continue
        at = record.end
        if record.op == OP_BAG_HEADER:
            index_at, chunk_count = record.number(b"index_pos"), record.number(b"chunk_count")
            connection_count = record.number(b"conn_count")
            tail = parse_record(source, index_at, source.size_bytes, inner=False)
            if index_at and tail.state == "whole" and tail.op in (OP_CONNECTION, OP_CHUNK_INFO):
                tail_at = index_at
        elif record.op == OP_CONNECTION:
            described = source.at(record.data_at, record.end - record.data_at)
            connections.setdefault(record.number(b"conn"), (record.fields[b"topic"], described))
        elif record.op == OP_CHUNK_INFO:
            counts = source.at(record.data_at, record.end - record.data_at)
            total = sum(u32_from(counts, place)[0] for place in range(4, len(counts), 8))
            chunk_messages[record.number(b"chunk_pos")] = total
        elif record.op == OP_CHUNK and record.end <= tail_at < source.size_bytes:
            at = tail_at
    return BagSurvey(
        connections, chunk_messages, index_at, connection_count, chunk_count, compression or "none", tail_at, at
    )


def topic_number(topics: TopicTable, name: bytes, described: bytes | None) -> int:
    """The number of a connection's topic."""
    fields = header_fields(described or b"") or {}
    # Definitions have comments in any 8-bit encoding: a comment must not cost the topic.
    kind, text = (fields.get(key, b"").decode("utf-8", "replace") for key in (b"type", b"message_definition"))
    return topics.number(name.decode("utf-8", "replace"), "ros1", Schema(type_name(kind), "ros1msg", text))
