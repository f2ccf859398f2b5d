"""mcap recordings: one file, or the files of a split bag as one."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.content import ZSTD_MAGIC
from penstock._src.recordings.chunk_fetch import ChannelTopics
from penstock._src.recordings.chunked import ChunkedRecording
from penstock._src.recordings.codecs import StoredChunk, check_sizes, decompress_into
from penstock._src.recordings.fetch import PACKED_NOTE
from penstock._src.recordings.file_window import RecordingWindow, recover_hint
from penstock._src.recordings.mcap import records as r
from penstock._src.recordings.mcap.parsing import McapFraming, chunk_head, parse_record
from penstock._src.recordings.message_index import RecordingIndex
from penstock._src.recordings.recording import OnCorrupt, span_of
from penstock._src.recordings.recovery.record_walk import UNFINISHED, crc_of
from penstock._src.recordings.recovery.scan_bytes import FileBytes, ScannedRecord
from penstock._src.recordings.split import SplitFiles
from penstock._src.recordings.unpack import is_packed
from penstock._src.system.closing import on_error
from penstock._src.system.files import ByteSource
from penstock.errors import LimitExceeded, NotARecording, RecordingCorrupt, RecordingError

if TYPE_CHECKING:
    from penstock._src.recordings.recovery.report import DamageLog

# The frame of a record and the first bytes of its payload.
_PROBE_BYTES = 64

_BATCH_MESSAGES = 1 << 16
# Offsets are 32 bits wide, so messages outside chunks are addressed from a new base every 2 GiB.
_LOOSE_SPAN_BYTES = 1 << 31
_MAX_TIME_NS = (1 << 63) - 1


class McapRecording(ChunkedRecording):
    """mcap, with or without summary, chunks, indexes."""

    kind: ClassVar[str] = "mcap"

    def __init__(self, source: SplitFiles, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, on_corrupt=on_corrupt, notes=source.notes)
        with on_error(self.close):
            self._open(source)

    def _open(self, source: SplitFiles) -> None:
        index = RecordingIndex()
        for number, path in enumerate(source.files):
            self.size_bytes += path.stat().st_size
            self._add_file(index, number, self._open_file(path))
        self._set_index(index)
        self._framing = McapFraming(ChannelTopics(self._pairs))
        self._packed_messages = self._are_messages_packed(source)
        if self._packed_messages or any(is_packed(path) for path in source.files):
            self.compression = span_of(self._chunks.codecs() - {"none"} | {"zstd"})
        self._compare(source)

    def _add_file(self, index: RecordingIndex, number: int, window: RecordingWindow) -> None:
        """Add a file by its own indexes; where these do not hold, as a scan of its records finds it."""
        path = self._files[number].path
        before, chunk_count = index.messages.counts(), len(index.chunks)
        indexer = McapFileIndexer(index, self._files[number], number, window)
        problem = None
        try:
            holds = indexer.run()
        except (RecordingCorrupt, LimitExceeded) as error:
            holds, problem = False, error
        self.notes += indexer.notes
        if holds:
            if not indexer.has_end:
                self._lose_unknown(UNFINISHED, path.name)
            return
        from penstock._src.recordings.recovery.report import DamageLog

        index.discard_entries()
        index.messages.rollback(before)
        index.chunks.rollback(chunk_count)
        log = DamageLog(file=path.name)
        self._scan_file(index, number, log)
        if log.lost and self._on_corrupt == "raise":
            lost = f"{log.lost:,} messages are lost"
            raise problem or RecordingCorrupt(lost, path=str(path), hint=recover_hint(path))
        if problem is None:
            self.notes += indexer.disagreements(log.written)
        else:
            self.notes.append(f"{path.name}: its index is wrong ({problem.message}); scanned")
        log.report_to(self._add_loss, self.notes)

    def _scan_file(self, index: RecordingIndex, number: int, log: DamageLog) -> None:
        from penstock._src.recordings.mcap.scan import index_mcap

        with FileBytes(self._files[number].path, source=self._files[number]) as source:
            index_mcap(source, log, index, number)

    def _scanned(self) -> tuple[RecordingIndex, DamageLog]:
        from penstock._src.recordings.recovery.report import DamageLog

        index, log = RecordingIndex(), DamageLog(file=self.path.name)
        for number in range(len(self._files)):
            self._scan_file(index, number, log)
        return index, log

    def _are_messages_packed(self, source: SplitFiles) -> bool:
        """As metadata.yaml tells, else the first message: rosbag2 packs all messages of a bag, or none."""
        if source.metadata.compression_mode == "message":
            return True
        firsts = [topic for topic in self.topics if topic.count and topic.encoding == "cdr"]
        if not firsts:
            return False
        # Of the first messages, the one whose chunk takes least to read.
        first = min(firsts, key=lambda topic: int(self._chunks.raw_bytes[self._index[topic.id].chunk[0]]))
        self._packed_messages = False
        on_corrupt, self._on_corrupt = self._on_corrupt, "raise"  # what is broken is counted when it is read
        try:
            for _, payload in self.payloads(first, [0], clip_bytes=_PROBE_BYTES):
                packed = payload is not None and payload[:4] == ZSTD_MAGIC
        except RecordingError:
            packed = False
        finally:
            self._on_corrupt, self._fetcher = on_corrupt, None
        if packed:
            self.notes.append(PACKED_NOTE)
        return packed


def _times_and_offsets(entries: bytearray, path: Path) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    table = np.frombuffer(entries, "<u8").reshape(-1, 2)
    late = np.flatnonzero(table[:, 0] > _MAX_TIME_NS)
    if late.size:
        raise RecordingCorrupt(f"a message is stamped {int(table[late[0], 0])} ns", path=str(path))
    return table[:, 0].astype(np.int64), table[:, 1]


class McapFileIndexer:
    """One file: its summary, then its data section, record by record.

    The data section is walked and chunk bodies are skipped, so the index tells what the file holds and not what its
    summary claims. The summary is asked for schemas and channels (which otherwise lie inside chunks), and for counts to
    compare with. A chunk is decompressed here only when its index is missing or names an unknown channel.
    """

    def __init__(self, index: RecordingIndex, file: ByteSource, number: int, window: RecordingWindow) -> None:
        self.notes: list[str] = []
        self.has_end = False
        self._index = index
        self._file = file
        self._number = number
        self._window = window
        self._schemas: dict[int, r.SchemaRecord] = {0: r.NO_SCHEMA}
        self._channels: dict[int, r.ChannelRecord] = {}
        self._topic_of_channel: dict[int, int] = {}
        self._statistics: dict[int, int] | None = None
        self._counted: dict[int, int] = {}
        self._loose = (-1, 0)

    def run(self) -> bool:
        """Add this file to the index; False where its summary counts other messages than its indexes list."""
        window, path = self._window, self._file.path
        if bytes(window.at(0, min(8, window.size_bytes), 4096)) != r.MAGIC:
            raise NotARecording(f"{path}: not an mcap file")
        self._walk_data(self._read_end())
        self._index.flush_entries(path, _times_and_offsets)
        if self._statistics is not None and self._statistics != self._counted:
            return False
        for channel in self._channels:
            self._topic(channel, is_last_try=True)
        self._index.pairs |= set(self._topic_of_channel.items())
        return True

    def disagreements(self, count: int) -> list[str]:
        """Notes on what the file claims, where a scan found so many messages."""
        name, claimed, indexed = (
            self._file.path.name,
            sum((self._statistics or {}).values()),
            sum(self._counted.values()),
        )
        notes = []
        if count != indexed:
            notes.append(
                f"{name}: its message indexes list {indexed} messages and its chunks hold {count}; the chunks were read"
            )
        if count != claimed:
            notes.append(f"{name}: its summary claims {claimed} messages, and it holds {count}")
        return notes

    def _read_end(self) -> int:
        """Use the summary if there is one; where the data section ends."""
        window, size = self._window, self._window.size_bytes
        footer_at = size - len(r.MAGIC) - r.FOOTER_BYTES
        tail = bytes(window.at(footer_at, r.FOOTER_BYTES + len(r.MAGIC))) if footer_at >= len(r.MAGIC) else b""
        if (footer := r.read_footer(tail)) is None:
            self.notes.append(f"{self._file.path.name}: no footer: its recorder did not finish; scanned")
            return size
        summary_at, claimed = footer
        if not summary_at:
            self.notes.append(f"{self._file.path.name}: no summary; scanned")
            return footer_at
        if not len(r.MAGIC) <= summary_at <= footer_at:
            self._disable_index(f"it should begin at byte {summary_at:,} of {size:,}")
            return footer_at
        try:
            if claimed and (crc := self._crc(summary_at, footer_at + r.FOOTER_BYTES - 4)) != claimed:
                raise window.broken(f"CRC {crc:#010x}, claimed {claimed:#010x}", summary_at)
            for kind, at, length in r.walk(window, summary_at, footer_at):
                if kind == r.OP_STATISTICS:
                    self._statistics = r.read_statistics(self._content(window, at, length))
                else:
                    self._take_definition(window, kind, at, length)
        except (RecordingCorrupt, LimitExceeded) as error:
            self._disable_index(error.message)
            # Only a summary that can be trusted ends the data section; DataEnd does too.
            return footer_at
        return summary_at

    def _disable_index(self, reason: str) -> None:
        self.notes.append(f"{self._file.path.name}: its summary is broken ({reason}); scanned")
        self._schemas, self._channels, self._topic_of_channel = {0: r.NO_SCHEMA}, {}, {}
        self._statistics = None

    def _crc(self, begin: int, end: int) -> int:
        with FileBytes(self._file.path, source=self._file) as source:
            return crc_of(source, begin, end)

    def _walk_data(self, data_end: int) -> None:
        window = self._window
        records = r.walk(window, len(r.MAGIC), data_end)
        pending: tuple[StoredChunk, list[tuple[int, NDArray[np.uint64]]]] | None = None
        for kind, at, length in records:
            if kind == r.OP_MESSAGE_INDEX:
                if pending is not None:
                    pending[1].append(r.read_message_index(window, at, length))
                continue
            if pending is not None:
                self._finish_chunk(*pending)
                pending = None
            if kind == r.OP_CHUNK:
                self._flush_when_large()
                pending = (self._chunk_head(at, length), [])
            elif kind == r.OP_MESSAGE:
                self._add_loose(at, length)
            elif kind == r.OP_DATA_END:
                self.has_end = True
                break
            else:
                self._take_definition(window, kind, at, length)
        if pending is not None:
            self._finish_chunk(*pending)

    def _flush_when_large(self) -> None:
        if self._index.entry_count >= _BATCH_MESSAGES:
            self._index.flush_entries(self._file.path, _times_and_offsets)

    def _take_definition(self, source: r.Bytes, kind: int, at: int, length: int) -> None:
        if kind == r.OP_SCHEMA:
            schema = r.read_schema(self._content(source, at, length))
            if self._schemas.setdefault(schema.id, schema) != schema:
                raise source.broken(f"schema {schema.id} is defined twice, and differently", at)
        elif kind == r.OP_CHANNEL:
            channel = r.read_channel(self._content(source, at, length))
            if self._channels.setdefault(channel.id, channel) != channel:
                raise source.broken(f"channel {channel.id} is defined twice, and differently", at)

    def _content(self, source: r.Bytes, at: int, length: int) -> bytes:
        """The content of a small record, whose strings fill its length."""
        if length > r.MAX_SMALL_RECORD_BYTES:
            raise LimitExceeded(
                f"{source.path}: byte {at:,}: a record claims {length:,} bytes; its kind has at most "
                f"{r.MAX_SMALL_RECORD_BYTES:,}",
                size=length,
                limit=r.MAX_SMALL_RECORD_BYTES,
            )
        record = parse_record(source, at - r.RECORD_HEAD_BYTES, at + length, inner=False)
        if record.state != "whole":
            raise source.broken(record.why, at)
        return source.at(at, length)

    def _topic(self, channel: int, *, is_last_try: bool = False) -> int | None:
        """The topic of a channel; None while the channel or its schema is unknown and may still be met."""
        topic = self._topic_of_channel.get(channel)
        if topic is None and channel in self._channels:
            record = self._channels[channel]
            schema = self._schemas.get(record.schema_id)
            if schema is None and not is_last_try:
                return None
            topic = self._topic_of_channel[channel] = r.topic_number(self._index.topics, record, schema)
        return topic

    def _chunk_head(self, at: int, length: int) -> StoredChunk:
        record = ScannedRecord(at - r.RECORD_HEAD_BYTES, "whole", "", r.OP_CHUNK, at, at + length)
        head = chunk_head(self._window, record, record.end) if length >= 40 else None
        if head is None or int.from_bytes(self._window.at(head.data_at - 8, 8), "little") != head.stored_bytes:
            raise self._window.broken(f"a chunk of {length:,} bytes that contradicts its length", at)
        return head

    def _finish_chunk(self, head: StoredChunk, indexes: list[tuple[int, NDArray[np.uint64]]]) -> None:
        check_sizes(self._file.path, head.data_at, head.codec, head.stored_bytes, head.raw_bytes)
        if head.codec == "none" and head.raw_bytes != head.stored_bytes:
            wrong = f"a plain chunk of {head.stored_bytes:,} bytes claims {head.raw_bytes:,}"
            raise self._window.broken(wrong, head.data_at)
        number = self._index.chunks.add(head, self._number)
        topics = [self._topic(channel) for channel, entries in indexes if len(entries)]
        if None in topics or not indexes:
            self._scan_chunk(number, head)
            return
        for channel, entries in indexes:
            topic = self._topic(channel)
            if len(entries) and topic is not None:
                self._index.add_entries(topic, number, entries.tobytes(), len(entries))
                self._counted[channel] = self._counted.get(channel, 0) + len(entries)

    def _scan_chunk(self, number: int, head: StoredChunk) -> None:
        """Walk the records of a chunk. A plain one is walked in the file, so that its size does not matter."""
        if head.codec == "none":
            source: r.Bytes = self._window
            begin, end = head.data_at, head.data_at + head.stored_bytes
        else:
            stored, raw = bytearray(head.stored_bytes), bytearray(head.raw_bytes)
            self._file.read_into(memoryview(stored), head.data_at)
            decompress_into(head.codec, memoryview(stored), memoryview(raw), self._file.path, head.data_at)
            if head.crc and zlib.crc32(raw) != head.crc:
                raise self._window.broken("the chunk fails its CRC", head.data_at)
            source, begin, end = r.RawChunk(raw, self._file.path, head.data_at), 0, head.raw_bytes
        for kind, at, length in r.walk(source, begin, end):
            if kind == r.OP_MESSAGE:
                channel, time_ns = r.read_message_head(source, at, length)
                self._add_message(channel, time_ns, number, at - r.RECORD_HEAD_BYTES - begin, length)
            else:
                self._take_definition(source, kind, at, length)

    def _add_loose(self, at: int, length: int) -> None:
        """A message outside chunks."""
        channel, time_ns = r.read_message_head(self._window, at, length)
        start = at - r.RECORD_HEAD_BYTES
        number, base = self._loose
        # A later chunk has a higher number, and numbers must rise along the file.
        if number != len(self._index.chunks) - 1 or number < 0 or start - base >= _LOOSE_SPAN_BYTES:
            self._flush_when_large()
            left = self._window.size_bytes - start
            number = self._index.chunks.add(StoredChunk(start, left, left), self._number)
            self._loose, base = (number, start), start
        check_sizes(self._file.path, start, "none", length, length)
        self._add_message(channel, time_ns, number, start - base, length)

    def _add_message(self, channel: int, time_ns: int, chunk: int, offset: int, length: int) -> None:
        topic = self._topic(channel, is_last_try=True)
        self._counted[channel] = self._counted.get(channel, 0) + 1
        if topic is None:
            position = offset + int(self._index.chunks.positions()[chunk])
            raise self._window.broken(f"a message of channel {channel}, which is not defined before it", position)
        self._index.add_entries(topic, chunk, struct.pack("<QQ", time_ns, offset), 1, length + r.RECORD_HEAD_BYTES)
