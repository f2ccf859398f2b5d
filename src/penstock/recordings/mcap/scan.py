"""Scanning a damaged mcap file record by record: every message that is whole goes to a new file."""

from __future__ import annotations

import struct
import zlib
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from penstock.errors import LimitExceeded, RecordingCorrupt, RecordingError
from penstock.formats.content import ZSTD_MAGIC
from penstock.recordings.codecs import CODECS, MAX_CHUNK_BYTES, check_sizes, decode_prefix, decompress_into
from penstock.recordings.mcap import records as r
from penstock.recordings.mcap.plausible import (
    ChunkHead,
    Known,
    McapRecord,
    believable_message,
    chunk_head,
    next_record,
    parse_record,
)
from penstock.recordings.mcap.survey import McapSurvey, survey_mcap, topic_facts
from penstock.recordings.mcap.writer import McapWriter
from penstock.recordings.messages.schemas import type_name
from penstock.recordings.recovery.metadata import TopicFacts
from penstock.recordings.recovery.record_walk import UNFINISHED, ChunkWalk, PackedChunk
from penstock.recordings.recovery.scan_bytes import pieces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.recordings.recovery.metadata import FileFacts
    from penstock.recordings.recovery.report import DamageLog
    from penstock.recordings.recovery.scan_bytes import FileBytes, ScanBytes

_DAMAGED = "a chunk that does not decompress"
_MOST_MESSAGES = 1 << 40
_MAX_TIME_NS = (1 << 63) - 1
_CUT_CHUNK = "the file ends inside a chunk"
_HEAD_AT = len(r.MAGIC)


def recover_mcap(source: FileBytes, target: Path, log: DamageLog, facts: FileFacts, *, keep_suspect: bool) -> None:
    """Write every message, attachment and metadata record that can be read to a new file at `target`."""
    survey = survey_mcap(source)
    with McapWriter(target, profile=survey.profile, codec=survey.codec) as writer:
        McapScan(_Copy(writer, facts), log, survey, source.path, keep_suspect=keep_suspect).run(source)


class Sink(Protocol):
    """Where the records of a scan go."""

    def channel(self, content: bytes, schema: bytes | None) -> int:
        """A channel, which may have no message; the number that its messages come with."""

    def message(self, source: ScanBytes, record: McapRecord, number: int, head: bytes) -> None:
        """A message that is whole; `head`: channel, sequence and times."""

    def metadata(self, content: bytes, name: bytes) -> None: ...

    def attach(self, n_bytes: int, content: Iterator[bytes], index: bytes) -> None: ...


class _Copy:
    """Records go to a new file, and what is known of the topics to its facts."""

    def __init__(self, writer: McapWriter, facts: FileFacts) -> None:
        self._writer = writer
        self._facts = facts
        self._topics: dict[int, TopicFacts] = {}
        self.metadata = writer.metadata
        self.attach = writer.attach

    def channel(self, content: bytes, schema: bytes | None) -> int:
        number = self._writer.channel(content, schema)
        topic = self._topics[number] = topic_facts(content, schema)
        self._facts.topics.setdefault(topic, 0)
        return number

    def message(self, source: ScanBytes, record: McapRecord, number: int, head: bytes) -> None:
        payload = source.at(record.data_at + r.MESSAGE_HEAD_BYTES, record.length - r.MESSAGE_HEAD_BYTES)
        if self._facts.first_ns is None and payload[:4] == ZSTD_MAGIC:
            self._facts.packed_messages = True
        self._writer.write(number, head[2:], payload)
        self._facts.count(self._topics[number], int.from_bytes(head[6:14], "little"))


class McapScan(ChunkWalk[McapRecord]):
    """The walk that decides what a file holds: what it gives to the sink is there, what its log counts is lost."""

    def __init__(
        self, sink: Sink, log: DamageLog, survey: McapSurvey, path: Path, *, keep_suspect: bool = False
    ) -> None:
        super().__init__(log, keep_suspect=keep_suspect)
        self._sink = sink
        self.packed: PackedChunk | None = None  # the one whose messages are walked
        self._survey = survey
        self._path = path
        self._schemas = dict(survey.schemas)
        self._channels = dict(survey.channels)
        self._numbers: dict[int, tuple[int, str, str]] = {}
        self._seen_ns: int | None = None
        self._has_end = False
        self._counted = 0
        self._has_checksums = survey.has_checksums

    def run(self, source: FileBytes) -> None:
        begin = self.log.mark()
        if (magic := source.at(0, _HEAD_AT)) != r.MAGIC:
            self.log.add(0, min(_HEAD_AT, source.size), f"the file begins with {magic!r} instead of {r.MAGIC!r}", 0)
        end = source.size
        if end >= 2 * _HEAD_AT and source.at(end - _HEAD_AT, _HEAD_AT) == r.MAGIC:
            end -= _HEAD_AT
        self.walk(source, _HEAD_AT, end)
        self.close_chunk(end)
        if not self._has_end:
            self.log.add_end(source.size, UNFINISHED)
        whole = (0, source.size)
        if self._survey.messages is None and self.log.written < self._counted < _MOST_MESSAGES:
            # A summary that proves nothing else may still prove that something is missing.
            self.log.settle(begin, self._counted, whole, "messages that the summary counts")
        if self._survey.messages is not None:
            self.log.settle(begin, self._survey.messages, whole, "messages that the summary counts")
        for channel in sorted(self._channels):
            self._number(channel)

    # What RecordWalk asks for

    def parse(self, source: ScanBytes, at: int, end: int, inner: bool) -> McapRecord:
        return parse_record(source, at, end, inner)

    def search(self, source: ScanBytes, at: int, end: int, inner: bool) -> int | None:
        outer_only = not inner and self._survey.codec != "none"
        return next_record(source, at, end, inner, Known(self._channels, self._seen_ns, outer_only))

    def knowledge(self) -> int:
        return len(self._channels)

    def begins_like_a_record(self, source: ScanBytes, at: int, following: int | None) -> bool:
        head = source.at(at, r.RECORD_HEAD_BYTES)
        if len(head) < r.RECORD_HEAD_BYTES:
            return True
        content_at = at + r.RECORD_HEAD_BYTES
        if following is not None and content_at + struct.unpack_from("<Q", head, 1)[0] == following:
            return True
        has_room = following is None or following - content_at >= r.MESSAGE_HEAD_BYTES
        return has_room and believable_message(source, content_at, self._channels, self._seen_ns)

    def carries_payload(self, record: McapRecord) -> bool:
        return record.op in (r.OP_MESSAGE, r.OP_SCHEMA, r.OP_CHANNEL, r.OP_METADATA, r.OP_ATTACHMENT)

    def holds_messages(self, begin: int) -> bool:
        return not self._has_end

    def take(self, source: ScanBytes, record: McapRecord, end: int, inner: bool) -> int:
        if record.op == r.OP_MESSAGE and self._is_disguised_index(source, record, inner):
            self.log.add(record.at, record.end, "a record of the index whose kind is broken", 0)
        elif record.op == r.OP_MESSAGE:
            # Behind a broken part, it may be of a chunk whose head, and with it the checksum, is lost.
            unproven = self.unproven and self._has_checksums and not inner
            self._take_message(source, record, suspect=self.suspect or unproven)
        elif record.op == r.OP_CHUNK:
            return self._take_chunk(source, record, end)
        elif record.op == r.OP_MESSAGE_INDEX and self.chunk is not None:
            channel = int.from_bytes(source.at(record.data_at, 2), "little")
            self.chunk.list(channel, (record.length - 6) // 16, is_known=channel in self._channels)
            if self.chunk.index_at == record.at:
                self.chunk.index_at = record.end
        elif record.op == r.OP_ATTACHMENT:
            self._take_attachment(source, record)
        elif record.op == r.OP_DATA_END:
            self._take_data_end(source, record)
        elif record.op in (r.OP_SCHEMA, r.OP_CHANNEL, r.OP_METADATA):
            self._take_small(source, record)
        elif record.op == r.OP_STATISTICS and self._has_end:
            self._counted = int.from_bytes(source.at(record.data_at, 8), "little")
        elif record.op > r.OP_DATA_END:
            self.log.add(
                record.at, record.end, f"a record of the private kind {record.op:#04x}, which is not copied", 0
            )
            self.log.lost_parts += 1
        elif not self._has_end and (record.op != r.OP_HEADER or record.at != _HEAD_AT):
            self.log.add(record.at, record.end, f"a record of kind {record.op} where messages should be")
        return record.end

    def take_cut(self, source: ScanBytes, record: McapRecord, stop: int, end: int) -> int | None:
        head = chunk_head(source, record, end) if record.op == r.OP_CHUNK else None
        if head is None:
            return None
        self.begin_chunk(record, None)
        if head.codec == "none":
            return head.data_at  # its records are walked one by one, as far as they go
        return self._take_packed(source, record, head, max(stop, head.data_at), is_cut=stop == end)

    # Chunks

    def close_chunk(self, at: int) -> None:
        """Compare what a chunk gave with what its message indexes list, where those are all there."""
        chunk, self.chunk = self.chunk, None
        if chunk is None or chunk.index_at != at or chunk.expected is None or chunk.given is None:
            return
        where, cause = (chunk.at, chunk.end), "messages that the chunk's index lists"
        self.log.settle(chunk.mark, chunk.expected, where, cause, chunk.given)
        self.count_misplaced(chunk)

    def _take_chunk(self, source: ScanBytes, record: McapRecord, end: int) -> int:
        head = chunk_head(source, record, end)
        if head is None:
            self.log.add(record.at, record.end, "a chunk whose head is broken")
            return record.end
        believed = self.follows(source, record.end, end, inner=False) or (
            self.is_filled(source, head.data_at, record.end)
            if head.codec == "none"
            else head.raw_bytes > 0 and self._unpacked(source, record, head, record.end)[0] is not None
        )
        self.begin_chunk(record, record.end if believed else None)
        self.unproven = not believed
        self._has_checksums = self._has_checksums or head.crc != 0
        if head.codec != "none":
            following = record.end if believed else self.resync(source, head.data_at, end, inner=False)
            stop = end if following is None else following
            return self._take_packed(source, record, head, stop, is_cut=following is None)
        if not believed:
            return head.data_at
        if head.crc and self._crc(source, head.data_at, record.end) != head.crc:
            if not self.keep_suspect:
                self.log.add(record.at, record.end, "a chunk that fails its CRC")
                if self.chunk is not None:
                    self.chunk.given = 0
                return record.end
            self.suspect = True
        self.walk_chunk(source, head.data_at, record.end)
        self.suspect = False
        return record.end

    def _is_disguised_index(self, source: ScanBytes, record: McapRecord, inner: bool) -> bool:
        """True for a message index that one bit has made a message: it follows a chunk, and its own length fits.

        Behind the end of the data there are no messages at all.
        """
        if self._has_end:
            return True
        if inner or self.chunk is None or self.chunk.index_at != record.at:
            return False
        listed_bytes = int.from_bytes(source.at(record.data_at + 2, 4), "little")
        return listed_bytes == record.length - 6 and listed_bytes % 16 == 0

    def _crc(self, source: ScanBytes, begin: int, end: int) -> int:
        crc = 0
        for _, piece in pieces(source, begin, end):
            crc = zlib.crc32(piece, crc)
        return crc

    def _take_packed(self, source: ScanBytes, record: McapRecord, head: ChunkHead, stop: int, *, is_cut: bool) -> int:
        self.begin_packed(record, stop)
        data, why = self._unpacked(source, record, head, stop)
        self.packed = PackedChunk(head.data_at, stop - head.data_at, head.raw_bytes, head.codec, head.crc)
        if data is None and head.codec in CODECS:
            if is_cut or self.keep_suspect:
                data = decode_prefix(head.codec, source, head.data_at, stop, min(head.raw_bytes, MAX_CHUNK_BYTES))
            if is_cut:
                why = f"{_CUT_CHUNK}; {len(data or b''):,} of {head.raw_bytes:,} bytes could be decompressed"
            if data is not None:
                self.packed = replace(self.packed, raw_bytes=len(data), crc=0, is_part=True)
        self.walk_packed(data, why, is_cut=is_cut)
        return stop

    def _unpacked(
        self, source: ScanBytes, record: McapRecord, head: ChunkHead, stop: int
    ) -> tuple[bytearray | None, str]:
        stored_bytes = stop - head.data_at
        try:
            check_sizes(self._path, record.at, head.codec, stored_bytes, head.raw_bytes)
            target = bytearray(head.raw_bytes)
            stored = memoryview(source.at(head.data_at, stored_bytes))
            decompress_into(head.codec, stored, memoryview(target), self._path, record.at)
        except (RecordingCorrupt, LimitExceeded, RecordingError) as error:
            return None, f"{_DAMAGED}: {error.message.removeprefix(f'{self._path}: ')}"
        if head.crc and zlib.crc32(target) != head.crc:
            return (target if self.keep_suspect else None), "a chunk that fails its CRC"
        return target, ""

    # The other records

    def _take_small(self, source: ScanBytes, record: McapRecord) -> None:
        if record.length > r.MAX_SMALL_RECORD_BYTES:
            self.log.add(*self.place(source, record.at, record.end), "a definition of an impossible size", 0)
            return
        content = source.at(record.data_at, record.length)
        number = struct.unpack_from("<H", content)[0]
        if record.op == r.OP_SCHEMA:
            if self._schemas.get(number) != content:
                self._schemas[number] = content
                self._numbers.clear()
        elif record.op == r.OP_CHANNEL:
            if self._channels.get(number) != content:
                self._channels[number] = content
                self._numbers.pop(number, None)
        elif not self._has_end:
            name_bytes = struct.unpack_from("<I", content)[0]
            self._sink.metadata(content, content[4 : 4 + name_bytes])

    def _number(self, channel: int) -> tuple[int, str, str]:
        """The number that the sink gave to a channel, the name of its topic, and its type."""
        known = self._numbers.get(channel)
        if known is None:
            content = self._channels[channel]
            schema_id = struct.unpack_from("<H", content, 2)[0]
            schema = self._schemas.get(schema_id)
            facts = topic_facts(content, schema)
            name, kind = facts.name, type_name(facts.type)
            if schema is None and schema_id:
                self.log.notes.append(f"{name}: its schema is lost; the messages are kept without one")
                self.log.lost_parts += 1
            known = self._numbers[channel] = (self._sink.channel(content, schema), name, kind)
        return known

    def _take_message(self, source: ScanBytes, record: McapRecord, *, suspect: bool) -> None:
        head = source.at(record.data_at, r.MESSAGE_HEAD_BYTES)
        channel, _, time_ns, _ = struct.unpack("<HIQQ", head)
        if time_ns > _MAX_TIME_NS:
            self.log.add(*self.place(source, record.at, record.end), "a message with an impossible time", 1)
            return
        if channel not in self._channels:
            why = f"messages of channel {channel}, whose record is lost"
            self.log.add(*self.place(source, record.at, record.end), why, 1)
            return
        if self.chunk is not None:
            self.chunk.held[channel] += 1
        number, name, kind = self._number(channel)
        self._sink.message(source, record, number, head)
        self._seen_ns = time_ns
        self.log.took(name, kind)
        self.log.suspect += suspect

    def _take_attachment(self, source: ScanBytes, record: McapRecord) -> None:
        at = record.data_at
        head = source.at(at, 16)
        sizes = []
        used = 16
        for width in (4, 4, 8):
            sizes.append(int.from_bytes(source.at(at + used, width), "little"))
            used += width + sizes[-1]
        claimed = struct.unpack("<I", source.at(at + used, 4).ljust(4, b"\0"))[0]
        if used + 4 > record.length or (claimed and self._crc(source, at, at + used) != claimed):
            self.log.add(record.at, record.end, "an attachment that fails its CRC", 0)
            self.log.lost_parts += 1
            return
        name = source.at(at + 20, sizes[0])
        media = source.at(at + 24 + sizes[0], sizes[1])
        index = head + struct.pack("<Q", sizes[2]) + struct.pack("<I", len(name)) + name
        index += struct.pack("<I", len(media)) + media
        content = (piece for _, piece in pieces(source, at, record.end))
        self._sink.attach(record.length, content, index)

    def _take_data_end(self, source: ScanBytes, record: McapRecord) -> None:
        self._has_end = True
        claimed = struct.unpack("<I", source.at(record.data_at, 4))[0]
        if claimed and not self.log.has_damage and self._crc(source, 0, record.at) != claimed:
            self.log.add(_HEAD_AT, record.at, "the data section fails its CRC, and nothing in it tells where", 0)
            self.log.suspect = self.log.written
