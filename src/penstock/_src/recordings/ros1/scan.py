"""Scanning a damaged ROS 1 bag record by record: every message that is whole is copied, or put into an index."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from penstock._src.recordings.codecs import StoredChunk
from penstock._src.recordings.messages.schemas import type_name
from penstock._src.recordings.recovery.record_walk import ChunkWalk, ScanSink
from penstock._src.recordings.recovery.report import DamageLog
from penstock._src.recordings.recovery.scan_bytes import FileBytes, ScanBytes, ScannedRecord
from penstock._src.recordings.recovery.scan_index import IndexSink
from penstock._src.recordings.ros1.parsing import begins_like_a_record, next_record, parse_record
from penstock._src.recordings.ros1.records import (
    MAGIC,
    OP_CHUNK,
    OP_CONNECTION,
    OP_INDEX,
    OP_MESSAGE,
    header_fields,
    u32_from,
)
from penstock._src.recordings.ros1.survey import BagSurvey, survey_bag, topic_number
from penstock._src.recordings.ros1.writer import BagWriter

if TYPE_CHECKING:
    from penstock._src.recordings.message_index import RecordingIndex


def recover_bag(source: FileBytes, target: Path, log: DamageLog, *, keep_suspect: bool) -> None:
    """Write every message that can be read to a new bag at `target`."""
    survey = survey_bag(source)
    with BagWriter(target, compression=survey.compression) as bag:
        BagScan(_BagCopy(bag), log, survey, source.path, keep_suspect=keep_suspect).run(source)


def index_bag(source: FileBytes, log: DamageLog, index: RecordingIndex, file: int = 0) -> None:
    """Add every message that is whole to an index; `log` counts what is lost."""
    sink = IndexSink(index, partial(topic_number, index.topics), source.size_bytes, file)
    BagScan(sink, log, survey_bag(source), source.path).run(source)
    sink.flush()


class _BagCopy:
    """Messages go to a new bag; connections that are described alike become one."""

    def __init__(self, bag: BagWriter) -> None:
        self._bag = bag
        self._written: dict[tuple[bytes, bytes | None], int] = {}

    def channel(self, number: int, described: bytes, more: bytes | None) -> int:
        written = self._written.get((described, more))
        if written is None:
            written = self._written[described, more] = self._bag.add_connection(described, more or b"")
        return written

    def message(
        self, source: ScanBytes, record: ScannedRecord, number: int, time_ns: int, packed: StoredChunk | None
    ) -> None:
        self._bag.write(number, time_ns, source.at(record.data_at, record.end - record.data_at))


class BagScan(ChunkWalk):
    """The walk that decides what a bag holds."""

    chunk_op = OP_CHUNK
    parse = staticmethod(parse_record)
    channels: dict[int, tuple[bytes, bytes]]  # topic and description

    def __init__(
        self, sink: ScanSink, log: DamageLog, survey: BagSurvey, path: Path, *, keep_suspect: bool = False
    ) -> None:
        channels, counted = dict(survey.connections), survey.chunk_messages
        super().__init__(sink, log, path, channels=channels, counted=counted, keep_suspect=keep_suspect)
        self._survey = survey
        self.usual_header_bytes = 0

    def run(self, source: FileBytes) -> None:
        begin = self.log.mark()
        start = len(MAGIC)
        if (magic := source.at(0, start)) != MAGIC:
            self.log.add(0, min(start, source.size_bytes), f"the bag begins with {magic!r} instead of {MAGIC!r}", 0)
        self.walk(source, start, source.size_bytes)
        self.close_chunk(source.size_bytes)
        self._note_truncation(source.size_bytes)
        if 0 < self._survey.chunk_count == len(self._survey.chunk_messages):
            expected = max(sum(self.expected.values()), sum(self._survey.chunk_messages.values()))
            self.log.resolve_unknown(begin, expected, (0, source.size_bytes), "messages that the end of the bag counts")
        # Topics without messages are kept as well.
        for number in self.channels:
            self.number(number)

    def _note_truncation(self, size: int) -> None:
        if self._survey.index_at == 0:
            self.log.add_end(size)
        elif self._survey.index_at > size:
            known = 0 if self.whole_chunks == self._survey.chunk_count else None
            self.log.add(size, self._survey.index_at, "the file was cut here: its index began further on", known)

    # What the walk asks for

    def search(self, source: ScanBytes, at: int, end: int, inner: bool) -> int | None:
        outer_only = not inner and self._survey.compression != "none"
        return next_record(source, at, end, inner, outer_only=outer_only)

    def begins_like_a_record(self, source: ScanBytes, at: int, following: int | None) -> bool:
        return begins_like_a_record(source, at, following, self.usual_header_bytes)

    def carries_payload(self, record: ScannedRecord) -> bool:
        return record.op in (OP_MESSAGE, OP_CONNECTION)

    def holds_messages(self, begin: int) -> bool:
        return begin < self._survey.tail_at

    def chunk_head(self, source: ScanBytes, record: ScannedRecord, end: int) -> StoredChunk | None:
        codec = record.fields[b"compression"].decode("ascii", errors="replace")
        return StoredChunk(record.data_at, record.end - record.data_at, record.number(b"size"), codec)

    def describe(self, channel: int) -> tuple[str, str, bytes, bytes | None]:
        topic, described = self.channels[channel]
        kind = (header_fields(described) or {}).get(b"type", b"").decode("utf-8", errors="replace")
        return topic.decode("utf-8", errors="replace"), type_name(kind), topic, described

    def take(self, source: ScanBytes, record: ScannedRecord, end: int, inner: bool) -> int:
        if record.op == OP_MESSAGE:
            self.usual_header_bytes = record.data_at - record.at - 8
            seconds, ns = u32_from(record.fields[b"time"])[0], u32_from(record.fields[b"time"], 4)[0]
            connection, time_ns = record.number(b"conn"), seconds * 1_000_000_000 + ns
            self.take_message(source, record, connection, time_ns, suspect=self.suspect, what="connection")
        elif record.op == OP_CONNECTION:
            self._take_connection(source, record)
        elif record.op == OP_INDEX:
            self.take_index(record, record.number(b"conn"), record.number(b"count"))
        elif record.op == OP_CHUNK:
            return self.take_chunk(source, record, end)
        return record.end

    def _take_connection(self, source: ScanBytes, record: ScannedRecord) -> None:
        described = source.at(record.data_at, record.end - record.data_at)
        fields = header_fields(described)
        if fields is None or b"type" not in fields:
            self.log.add(*self.place(source, record.at, record.end), "a connection record that is broken", 0)
            return
        number, connection = record.number(b"conn"), (record.fields[b"topic"], described)
        if self.channels.get(number) != connection:
            self.channels[number] = connection
            self.numbers.pop(number, None)
