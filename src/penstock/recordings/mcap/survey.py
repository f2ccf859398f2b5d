"""What the two ends of an mcap file tell before it is scanned, and what its records say of a topic."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.recordings.codecs import CODECS
from penstock.recordings.mcap import records as r
from penstock.recordings.mcap.plausible import chunk_head, parse_record
from penstock.recordings.recovery.metadata import TopicFacts
from penstock.recordings.recovery.record_walk import crc_of

if TYPE_CHECKING:
    from penstock.recordings.recovery.scan_bytes import FileBytes

_HEAD_AT = len(r.MAGIC)


@dataclass
class McapSurvey:
    """What the beginning and the end of a file tell before it is scanned."""

    profile: str = ""
    codec: str = "none"
    has_checksums: bool = False
    messages: int | None = None
    schemas: dict[int, bytes] = field(default_factory=dict)
    channels: dict[int, bytes] = field(default_factory=dict)


def survey_mcap(source: FileBytes) -> McapSurvey:
    survey = McapSurvey()
    at = _HEAD_AT
    while at < source.size:
        record = parse_record(source, at, source.size, inner=False)
        if record.op == r.OP_HEADER:
            size = struct.unpack("<I", source.at(record.data_at, 4).ljust(4, b"\0"))[0]
            survey.profile = source.at(record.data_at + 4, size).decode("utf-8", errors="replace")
        if record.op == r.OP_CHUNK and (head := chunk_head(source, record, source.size)):
            survey.codec = head.codec if head.codec in CODECS else "none"
            survey.has_checksums = head.crc != 0
        if record.state != "whole" or record.op == r.OP_CHUNK:
            break
        at = record.end
    _read_summary(source, survey)
    return survey


def _read_summary(source: FileBytes, survey: McapSurvey) -> None:
    footer_at = source.size - _HEAD_AT - r.FOOTER_BYTES
    footer = source.at(footer_at, r.FOOTER_BYTES + _HEAD_AT) if footer_at >= _HEAD_AT else b""
    if not footer.endswith(r.MAGIC) or footer[:9] != struct.pack("<BQ", r.OP_FOOTER, 20):
        return
    summary_at, _, claimed = struct.unpack_from("<QQI", footer, 9)
    is_proven = not claimed or (summary_at >= _HEAD_AT and crc_of(source, summary_at, footer_at + 25) == claimed)
    at = summary_at or footer_at
    while _HEAD_AT <= at < footer_at:
        record = parse_record(source, at, footer_at, inner=False)
        if record.state != "whole" or record.length > r.MAX_SMALL_RECORD_BYTES:
            return
        content = source.at(record.data_at, record.length)
        if record.op == r.OP_SCHEMA:
            survey.schemas[struct.unpack_from("<H", content)[0]] = content
        elif record.op == r.OP_CHANNEL:
            survey.channels[struct.unpack_from("<H", content)[0]] = content
        elif record.op == r.OP_CHUNK_INDEX:
            survey.has_checksums = True  # as every writer of chunks does; what is kept unproven is told
            survey.codec = _chunk_index_codec(content) or survey.codec
        elif record.op == r.OP_STATISTICS and is_proven:
            survey.messages = struct.unpack_from("<Q", content)[0]
        at = record.end


def _chunk_index_codec(content: bytes) -> str:
    """The compression that a chunk index names; empty where it names none that is known."""
    at = 36 + int.from_bytes(content[32:36], "little") + 8
    name, _ = _text_at(content, at)
    return name if name in CODECS else ""


def topic_facts(channel: bytes, schema: bytes | None) -> TopicFacts:
    name, used = _text_at(channel, 4)
    encoding, used = _text_at(channel, used)
    metadata, at = {}, used + 4
    while at < len(channel):
        key, at = _text_at(channel, at)
        metadata[key], at = _text_at(channel, at)
    return TopicFacts(
        name=name,
        type="" if schema is None else _text_at(schema, 2)[0],
        encoding=encoding,
        qos=metadata.get("offered_qos_profiles", ""),
        type_hash=metadata.get("topic_type_hash", ""),
    )


def _text_at(content: bytes, at: int) -> tuple[str, int]:
    """A string of a record, and where it ends."""
    end = at + 4 + int.from_bytes(content[at : at + 4], "little")
    return content[at + 4 : end].decode("utf-8", errors="replace"), end
