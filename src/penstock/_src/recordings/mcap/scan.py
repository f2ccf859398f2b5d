"""Scanning a damaged mcap file record by record: every message that is whole is copied, or put into an index."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from penstock._src.formats.content import ZSTD_MAGIC
from penstock._src.recordings.codecs import CODECS, StoredChunk
from penstock._src.recordings.mcap import records as r
from penstock._src.recordings.mcap.parsing import (
    ScanState,
    believable_message,
    chunk_head,
    next_record,
    parse_record,
)
from penstock._src.recordings.mcap.writer import McapWriter
from penstock._src.recordings.message_index import RecordingIndex
from penstock._src.recordings.messages.schemas import type_name
from penstock._src.recordings.metadata import RecordingFileFacts, TopicFacts
from penstock._src.recordings.recovery.record_walk import ChunkWalk, ScanSink, crc_of
from penstock._src.recordings.recovery.report import DamageLog
from penstock._src.recordings.recovery.scan_bytes import FileBytes, ScanBytes, ScannedRecord, pieces
from penstock._src.recordings.recovery.scan_index import IndexSink

_MOST_MESSAGES = 1 << 40
_MAX_TIME_NS = (1 << 63) - 1
_HEAD_AT = len(r.MAGIC)


def recover_mcap(
    source: FileBytes, target: Path, log: DamageLog, facts: RecordingFileFacts, *, keep_suspect: bool
) -> None:
    """Write every message, attachment and metadata record that can be read to a new file at `target`."""
    survey = survey_mcap(source)
    with McapWriter(target, profile=survey.profile, codec=survey.codec) as writer:
        sink = _McapCopy(writer, facts)
        McapScan(sink, log, survey, source.path, writer=writer, keep_suspect=keep_suspect).run(source)


def index_mcap(source: FileBytes, log: DamageLog, index: RecordingIndex, file: int = 0) -> None:
    """Add every message that is whole to an index; `log` counts what is lost."""

    def topic_of(channel: bytes, schema: bytes | None) -> int:
        return r.topic_number(index.topics, channel, schema)

    sink = IndexSink(index, topic_of, source.size_bytes, file)
    McapScan(sink, log, survey_mcap(source), source.path).run(source)
    sink.flush()


class _McapCopy:
    """Messages go to a new file, and what is known of the topics to its facts."""

    def __init__(self, writer: McapWriter, facts: RecordingFileFacts) -> None:
        self._writer = writer
        self._facts = facts
        self._topics: dict[int, TopicFacts] = {}

    def channel(self, number: int, described: bytes, more: bytes | None) -> int:
        written = self._writer.channel(described, more)
        facts = r.channel_facts(described, more)
        topic = TopicFacts(facts.name, facts.type, facts.encoding, facts.qos, facts.type_hash)
        self._topics[written] = topic
        self._facts.topics.setdefault(topic, 0)
        return written

    def message(
        self, source: ScanBytes, record: ScannedRecord, number: int, time_ns: int, packed: StoredChunk | None
    ) -> None:
        content = source.at(record.data_at, record.end - record.data_at)
        head, payload = content[2 : r.MESSAGE_HEAD_BYTES], content[r.MESSAGE_HEAD_BYTES :]
        if self._facts.first_ns is None and payload[:4] == ZSTD_MAGIC:
            self._facts.packed_messages = True
        self._writer.write(number, head, payload)
        self._facts.count(self._topics[number], time_ns)


class McapScan(ChunkWalk):
    """The walk that decides what a file holds; `writer` takes what is no message."""

    chunk_op = r.OP_CHUNK
    parse = staticmethod(parse_record)
    chunk_head = staticmethod(chunk_head)
    channels: dict[int, bytes]  # the content of their records

    def __init__(
        self,
        sink: ScanSink,
        log: DamageLog,
        survey: McapSurvey,
        path: Path,
        *,
        writer: McapWriter | None = None,
        keep_suspect: bool = False,
    ) -> None:
        channels, has_checksums = dict(survey.channels), survey.has_checksums
        super().__init__(sink, log, path, channels=channels, has_checksums=has_checksums, keep_suspect=keep_suspect)
        self._survey = survey
        self._schemas = dict(survey.schemas)
        self._seen_ns: int | None = None
        self._has_end = False
        self._summary_count = 0
        self._writer = writer

    def run(self, source: FileBytes) -> None:
        begin, end = self.log.mark(), source.size_bytes
        if (magic := source.at(0, _HEAD_AT)) != r.MAGIC:
            self.log.add(0, min(_HEAD_AT, end), f"the file begins with {magic!r} instead of {r.MAGIC!r}", 0)
        if end >= 2 * _HEAD_AT and source.at(end - _HEAD_AT, _HEAD_AT) == r.MAGIC:
            end -= _HEAD_AT
        self.walk(source, _HEAD_AT, end)
        self.close_chunk(end)
        if not self._has_end:
            self.log.add_end(source.size_bytes)
        expected = self._survey.messages
        if expected is None and self.log.written < self._summary_count < _MOST_MESSAGES:
            expected = self._summary_count  # a summary that proves nothing else may still prove that some are missing
        if expected is not None:
            self.log.resolve_unknown(begin, expected, (0, source.size_bytes), "messages that the summary counts")
        for channel in sorted(self.channels):
            self.number(channel)

    # What the walk asks for

    def search(self, source: ScanBytes, at: int, end: int, inner: bool) -> int | None:
        outer_only = not inner and self._survey.codec != "none"
        return next_record(source, at, end, inner, ScanState(self.channels, self._seen_ns, outer_only))

    def begins_like_a_record(self, source: ScanBytes, at: int, following: int | None) -> bool:
        head = source.at(at, r.RECORD_HEAD_BYTES)
        if len(head) < r.RECORD_HEAD_BYTES:
            return True
        content_at = at + r.RECORD_HEAD_BYTES
        if following is not None and content_at + struct.unpack_from("<Q", head, 1)[0] == following:
            return True
        has_room = following is None or following - content_at >= r.MESSAGE_HEAD_BYTES
        return has_room and believable_message(source, content_at, self.channels, self._seen_ns)

    def carries_payload(self, record: ScannedRecord) -> bool:
        return record.op in (r.OP_MESSAGE, r.OP_SCHEMA, r.OP_CHANNEL, r.OP_METADATA, r.OP_ATTACHMENT)

    def holds_messages(self, begin: int) -> bool:
        return not self._has_end

    def describe(self, channel: int) -> tuple[str, str, bytes, bytes | None]:
        content = self.channels[channel]
        schema_id = struct.unpack_from("<H", content, 2)[0]
        schema = self._schemas.get(schema_id)
        facts = r.channel_facts(content, schema)
        if schema is None and schema_id:
            self.log.add(0, 0, f"the schema of {facts.name} is lost; its messages are kept without one")
        return facts.name, type_name(facts.type), content, schema

    def take(self, source: ScanBytes, record: ScannedRecord, end: int, inner: bool) -> int:
        if record.op == r.OP_MESSAGE and self._is_disguised_index(source, record, inner):
            self.log.add(record.at, record.end, "a record of the index whose kind is broken", 0)
        elif record.op == r.OP_MESSAGE:
            self._take_message(source, record, inner)
        elif record.op == r.OP_CHUNK:
            return self.take_chunk(source, record, end)
        elif record.op == r.OP_MESSAGE_INDEX and self.chunk is None:
            self.log.add(record.at, record.end, "a message index without a chunk, which may have been a message", 1)
        elif record.op == r.OP_MESSAGE_INDEX:
            channel = int.from_bytes(source.at(record.data_at, 2), "little")
            self.take_index(record, channel, (record.length - 6) // 16)
        elif record.op == r.OP_DATA_END:
            self._take_data_end(source, record)
        elif record.op in (r.OP_SCHEMA, r.OP_CHANNEL):
            self._take_definition(source, record)
        elif record.op == r.OP_STATISTICS and self._has_end:
            self._summary_count = int.from_bytes(source.at(record.data_at, 8), "little")
        elif record.op in (r.OP_ATTACHMENT, r.OP_METADATA):
            self._take_other(source, record)
        elif record.op > r.OP_DATA_END:
            self._lose_part(record, f"a record of the private kind {record.op:#04x}, which is not copied")
        elif not self._has_end and (record.op != r.OP_HEADER or record.at != _HEAD_AT):
            self.log.add(record.at, record.end, f"a record of kind {record.op} where messages should be")
        return record.end

    def _is_disguised_index(self, source: ScanBytes, record: ScannedRecord, inner: bool) -> bool:
        """True for a message index that one bit has made a message: it follows a chunk, and its own length fits.

        Behind the end of the data there are no messages at all.
        """
        if self._has_end:
            return True
        if inner or self.chunk is None or self.chunk.index_at != record.at:
            return False
        listed_bytes = int.from_bytes(source.at(record.data_at + 2, 4), "little")
        return listed_bytes == record.length - 6 and listed_bytes % 16 == 0

    # The records

    def _take_message(self, source: ScanBytes, record: ScannedRecord, inner: bool) -> None:
        channel, _, time_ns, _ = struct.unpack("<HIQQ", source.at(record.data_at, r.MESSAGE_HEAD_BYTES))
        if time_ns > _MAX_TIME_NS:
            self.log.add(*self.place(source, record.at, record.end), "a message with an impossible time", 1)
            return
        # Behind a broken part, it may be of a chunk whose head, and with it the checksum, is lost.
        suspect = self.suspect or (self.unproven and self.has_checksums and not inner)
        self.take_message(source, record, channel, time_ns, suspect=suspect)
        if channel in self.channels:
            self._seen_ns = time_ns

    def _take_definition(self, source: ScanBytes, record: ScannedRecord) -> None:
        if record.length > r.MAX_SMALL_RECORD_BYTES:
            self.log.add(*self.place(source, record.at, record.end), "a definition of an impossible size", 0)
            return
        content = source.at(record.data_at, record.length)
        number = struct.unpack_from("<H", content)[0]
        if record.op == r.OP_SCHEMA:
            if self._schemas.get(number) != content:
                self._schemas[number] = content
                self.numbers.clear()
        elif self.channels.get(number) != content:
            self.channels[number] = content
            self.numbers.pop(number, None)

    def _take_other(self, source: ScanBytes, record: ScannedRecord) -> None:
        if self._writer is None or self._has_end:
            return
        index = _attachment_index(source, record) if record.op == r.OP_ATTACHMENT else _metadata_index(source, record)
        if index is None:
            self._lose_part(record, "an attachment or metadata record that fails its CRC, or its name is too long")
            return
        content = (piece for _, piece in pieces(source, record.data_at, record.end))
        self._writer.copy(record.op, record.length, content, index)

    def _lose_part(self, record: ScannedRecord, cause: str) -> None:
        """What is no message, and is not in the new file."""
        self.log.add(record.at, record.end, cause, 0)
        self.log.lost_parts += 1

    def _take_data_end(self, source: ScanBytes, record: ScannedRecord) -> None:
        self._has_end = True
        claimed = struct.unpack("<I", source.at(record.data_at, 4))[0]
        if claimed and not self.log.has_damage and crc_of(source, 0, record.at) != claimed:
            self.log.add(_HEAD_AT, record.at, "the data section fails its CRC, and nothing in it tells where", 0)
            self.log.suspect = self.log.written


def _attachment_index(source: ScanBytes, record: ScannedRecord) -> bytes | None:
    """Times, size, name and media type, as a summary has them; None where its checksum fails."""
    at, used = record.data_at, 16
    for _ in ("name", "media type"):
        used += 4 + int.from_bytes(source.at(at + used, 4), "little")
    if used > r.MAX_SMALL_RECORD_BYTES:
        return None
    size = source.at(at + used, 8)
    end = at + used + 8 + int.from_bytes(size, "little")
    claimed = int.from_bytes(source.at(end, 4), "little")
    if end + 4 > record.end or (claimed and crc_of(source, at, end) != claimed):
        return None
    return source.at(at, 16) + size + source.at(at + 16, used - 16)


def _metadata_index(source: ScanBytes, record: ScannedRecord) -> bytes | None:
    """The name of a metadata record, as a summary has it."""
    name_bytes = int.from_bytes(source.at(record.data_at, 4), "little")
    return source.at(record.data_at, 4 + name_bytes) if name_bytes <= r.MAX_SMALL_RECORD_BYTES else None


@dataclass
class McapSurvey:
    """What the beginning and the end of a file tell; `problem`: why its summary cannot be trusted."""

    problem: str = "no footer: its recorder did not finish"
    profile: str = ""
    codec: str = "none"
    has_checksums: bool = False
    summary_at: int = 0
    messages: int | None = None
    counts: dict[int, int] | None = None  # by channel
    schemas: dict[int, bytes] = field(default_factory=dict)
    channels: dict[int, bytes] = field(default_factory=dict)


def survey_mcap(source: FileBytes) -> McapSurvey:
    survey = McapSurvey()
    at = _HEAD_AT
    while at < source.size_bytes:
        record = parse_record(source, at, source.size_bytes, inner=False)
        if record.op == r.OP_HEADER:
            size = struct.unpack("<I", source.at(record.data_at, 4).ljust(4, b"\0"))[0]
            survey.profile = source.at(record.data_at + 4, size).decode("utf-8", errors="replace")
        if record.op == r.OP_CHUNK and (head := chunk_head(source, record, source.size_bytes)):
            survey.codec = head.codec if head.codec in CODECS else "none"
            survey.has_checksums = head.crc != 0
        if record.state != "whole" or record.op in (r.OP_CHUNK, r.OP_MESSAGE):
            break
        at = record.end
    _read_summary(source, survey)
    return survey


def _read_summary(source: FileBytes, survey: McapSurvey) -> None:
    footer_at = source.size_bytes - _HEAD_AT - r.FOOTER_BYTES
    footer = r.read_footer(source.at(footer_at, r.FOOTER_BYTES + _HEAD_AT)) if footer_at >= _HEAD_AT else None
    if footer is None:
        return
    at, claimed = footer
    survey.summary_at, survey.problem = at, ""
    if not _HEAD_AT <= at <= footer_at:
        survey.problem = "no summary"
    elif claimed and (crc := crc_of(source, at, footer_at + 25)) != claimed:
        survey.problem = f"its summary is broken: CRC {crc:#010x}, claimed {claimed:#010x}"
    while _HEAD_AT <= at < footer_at:
        record = parse_record(source, at, footer_at, inner=False)
        if record.state != "whole" or record.length > r.MAX_SMALL_RECORD_BYTES:
            survey.problem = survey.problem or f"its summary is broken: {record.why or 'a record is too large'}"
            return
        content = source.at(record.data_at, record.length)
        if record.op == r.OP_SCHEMA:
            survey.schemas[struct.unpack_from("<H", content)[0]] = content
        elif record.op == r.OP_CHANNEL:
            survey.channels[struct.unpack_from("<H", content)[0]] = content
        elif record.op == r.OP_CHUNK_INDEX:
            survey.has_checksums = True  # as every writer of chunks does; what is kept unverified is reported
            survey.codec = _chunk_index_codec(content) or survey.codec
        elif record.op == r.OP_STATISTICS and not survey.problem:
            survey.messages, survey.counts = r.read_statistics(content)
        at = record.end


def _chunk_index_codec(content: bytes) -> str:
    """The compression that a chunk index names; empty where it names none that is known."""
    at = 36 + int.from_bytes(content[32:36], "little") + 8
    name, _ = r.text_at(content, at)
    return name if name in CODECS else ""
