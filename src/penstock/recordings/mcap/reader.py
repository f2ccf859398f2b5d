"""mcap recordings: one file, or the files of a split bag as one."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LimitExceeded, NotARecording, RecordingCorrupt, RecordingError
from penstock.formats.content import ZSTD_MAGIC
from penstock.recordings.chunk_fetch import ChannelTopics
from penstock.recordings.chunked import ChunkedRecording
from penstock.recordings.codecs import CODECS, check_sizes, decompress_into
from penstock.recordings.fetch import PACKED_NOTE
from penstock.recordings.file_window import Window, recover_hint
from penstock.recordings.mcap import records as r
from penstock.recordings.mcap.parsing import McapFraming
from penstock.recordings.message_index import ChunksBuilder, IndexBuilder, IndexEntries
from penstock.recordings.messages.schemas import Schema, TopicTable, type_name
from penstock.recordings.recording import OnCorrupt, span_of
from penstock.recordings.recovery.record_walk import UNFINISHED, crc_of
from penstock.recordings.recovery.report import DamageLog
from penstock.recordings.recovery.scan_bytes import FileBytes, ScanBytes
from penstock.recordings.split import Source
from penstock.recordings.unpack import is_packed
from penstock.system.closing import on_error
from penstock.system.files import ByteSource

# The frame of a record and the first bytes of its payload.
_PROBE_BYTES = 64

_BATCH_MESSAGES = 1 << 16
# Offsets are 32 bits wide, so messages outside chunks are addressed from a new base every 2 GiB.
_LOOSE_SPAN_BYTES = 1 << 31
_MAX_TIME_NS = (1 << 63) - 1
_NO_SCHEMA = r.SchemaRecord(0, "", "", "")


class McapRecording(ChunkedRecording):
    """mcap, with or without summary, chunks, indexes."""

    kind: ClassVar[str] = "mcap"

    def __init__(self, source: Source, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, on_corrupt=on_corrupt, notes=source.notes)
        with on_error(self.close):
            self._open(source)

    def _open(self, source: Source) -> None:
        shared = McapIndex(self._add_loss if self._on_corrupt == "count" else None, self._lose_unknown)
        for number, path in enumerate(source.files):
            self.size_bytes += path.stat().st_size
            window = self._open_file(path)
            McapFileIndexer(shared, self._files[-1], number, window).run()
        self.notes += shared.notes
        self._set_index(shared.topics, shared.index, shared.chunks, shared.pairs)
        self._framing = McapFraming(ChannelTopics(self._pairs))
        self._packed_messages = self._are_messages_packed(source)
        if self._packed_messages or any(is_packed(path) for path in source.files):
            self.compression = span_of(self._chunks.codecs() - {"none"} | {"zstd"})
        self._compare(source)

    def _are_messages_packed(self, source: Source) -> bool:
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

    def _messages_in(self, source: ScanBytes, begin: int, end: int) -> Mapping[int, Sequence[tuple[int, int, int]]]:
        from penstock.recordings.mcap.scan import messages_in_chunk

        return messages_in_chunk(source, begin, end, self.path, self._pairs)


class McapIndex:
    """The index of all files of one recording; topics are numbered as they are met."""

    def __init__(self, lose: Callable[[str, int, str], None] | None, lose_unknown: Callable[[str, str], None]) -> None:
        """`lose` counts what is lost; without it a loss is an error."""
        self.lose = lose
        self.lose_unknown = lose_unknown
        self.index = IndexBuilder()
        self.chunks = ChunksBuilder()
        self.entries = IndexEntries(self.index, self.chunks, _times_and_offsets)
        self.topics = TopicTable()
        self.pairs: set[tuple[int, int]] = set()
        self.notes: list[str] = []

    def topic(self, channel: r.ChannelRecord, schema: r.SchemaRecord | None) -> int:
        """The number of a channel's topic; JSON may go without a schema, and is shown as what it is."""
        schema = schema or _NO_SCHEMA
        name = type_name(schema.name) or ("json" if channel.encoding == "json" else "")
        return self.topics.number(channel.topic, channel.encoding, Schema(name, schema.encoding or "none", schema.text))

    def flush_when_large(self, path: Path) -> None:
        if len(self.entries) >= _BATCH_MESSAGES:
            self.entries.flush(path)


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

    def __init__(self, shared: McapIndex, file: ByteSource, number: int, window: Window) -> None:
        self._shared = shared
        self._file = file
        self._number = number
        self._window = window
        self._schemas: dict[int, r.SchemaRecord] = {0: _NO_SCHEMA}
        self._channels: dict[int, r.ChannelRecord] = {}
        self._topic_of_channel: dict[int, int] = {}
        self._statistics: dict[int, int] | None = None
        self._found: dict[int, int] = {}
        self._loose = (-1, 0)
        self._has_end = False

    def run(self) -> None:
        """Add this file to the index; where its own indexes do not hold, as a scan of its records finds it."""
        window, shared = self._window, self._shared
        if bytes(window.at(0, min(8, window.size_bytes), 4096)) != r.MAGIC:
            raise NotARecording(f"{self._file.path}: not an mcap file")
        before, chunk_count = shared.index.counts(), len(shared.chunks)
        try:
            self._walk_data(self._read_end())
            shared.entries.flush(self._file.path)
            if self._statistics is None or self._statistics == self._found:
                for channel in self._channels:
                    self._topic(channel, last_chance=True)
                shared.pairs |= set(self._topic_of_channel.items())
                if not self._has_end:
                    shared.lose_unknown(UNFINISHED, self._file.path.name)
                return
            problem = None
        except (RecordingCorrupt, LimitExceeded) as error:
            problem = error
        shared.entries.discard()
        shared.index.rollback(before)
        shared.chunks.rollback(chunk_count)
        self._scan(problem)

    def _scan(self, problem: RecordingCorrupt | LimitExceeded | None) -> None:
        from penstock.recordings.mcap.scan import index_mcap

        shared, path = self._shared, self._file.path
        log = DamageLog(file=path.name)
        with FileBytes(path, source=self._file) as source:
            pairs = index_mcap(source, log, shared.chunks, shared.index, self._scanned_topic, self._number)
        if log.lost and shared.lose is None:
            raise problem or RecordingCorrupt(
                f"{log.lost:,} messages are lost", path=str(path), hint=recover_hint(path)
            )
        if problem is None:
            self._note_disagreement(log.written)
        else:
            shared.notes.append(f"{path.name}: its index does not hold ({problem.message}); scanned")
        log.tell(shared.lose or (lambda *_: None), shared.notes)
        shared.pairs |= pairs

    def _scanned_topic(self, channel: bytes, schema: bytes | None) -> int:
        """The topic of a channel, by the contents of its records."""
        described, text = (r.RawChunk(memoryview(content or b""), self._file.path, 0) for content in (channel, schema))
        record = None if schema is None else r.read_schema(text, 0, len(schema))
        return self._shared.topic(r.read_channel(described, 0, len(channel)), record)

    def _note_disagreement(self, found: int) -> None:
        name, claimed, indexed = self._file.path.name, sum((self._statistics or {}).values()), sum(self._found.values())
        if found != indexed:
            self._shared.notes.append(
                f"{name}: its message indexes list {indexed} messages and its chunks hold {found}; the chunks were read"
            )
        if found != claimed:
            self._shared.notes.append(f"{name}: its summary claims {claimed} messages, and it holds {found}")

    def _read_end(self) -> int:
        """Use the summary if there is one; where the data section ends."""
        window, size = self._window, self._window.size_bytes
        footer_at = size - len(r.MAGIC) - r.FOOTER_BYTES
        tail = bytes(window.at(footer_at, r.FOOTER_BYTES + len(r.MAGIC))) if footer_at >= len(r.MAGIC) else b""
        if (footer := r.read_footer(tail)) is None:
            self._shared.notes.append(f"{self._file.path.name}: no footer: its recorder did not finish; scanned")
            return size
        summary_at, claimed = footer
        if not summary_at:
            self._shared.notes.append(f"{self._file.path.name}: no summary; scanned")
            return footer_at
        if not len(r.MAGIC) <= summary_at <= footer_at:
            self._distrust(f"it should begin at byte {summary_at:,} of {size:,}")
            return footer_at
        try:
            if claimed and (crc := self._crc(summary_at, footer_at + r.FOOTER_BYTES - 4)) != claimed:
                raise window.broken(f"CRC {crc:#010x}, claimed {claimed:#010x}", summary_at)
            for kind, at, length in r.walk(window, summary_at, footer_at):
                if kind == r.OP_STATISTICS:
                    self._statistics = r.read_statistics(window, at, length)
                else:
                    self._learn(window, kind, at, length)
        except (RecordingCorrupt, LimitExceeded) as error:
            self._distrust(error.message)
            # Only a summary that can be trusted ends the data section; DataEnd does too.
            return footer_at
        return summary_at

    def _distrust(self, reason: str) -> None:
        self._shared.notes.append(f"{self._file.path.name}: its summary is broken ({reason}); scanned")
        self._schemas, self._channels, self._topic_of_channel = {0: _NO_SCHEMA}, {}, {}
        self._statistics = None

    def _crc(self, begin: int, end: int) -> int:
        with FileBytes(self._file.path, source=self._file) as source:
            return crc_of(source, begin, end)

    def _walk_data(self, data_end: int) -> None:
        window, shared = self._window, self._shared
        records = r.walk(window, len(r.MAGIC), data_end)
        pending: tuple[r.ChunkRecord, list[tuple[int, NDArray[np.uint64]]]] | None = None
        for kind, at, length in records:
            if kind == r.OP_MESSAGE_INDEX:
                if pending is not None:
                    pending[1].append(r.read_message_index(window, at, length))
                continue
            if pending is not None:
                self._finish_chunk(*pending)
                pending = None
            if kind == r.OP_CHUNK:
                shared.flush_when_large(self._file.path)
                pending = (r.read_chunk_head(window, at, length), [])
            elif kind == r.OP_MESSAGE:
                self._add_loose(at, length)
            elif kind == r.OP_DATA_END:
                self._has_end = True
                break
            else:
                self._learn(window, kind, at, length)
        if pending is not None:
            self._finish_chunk(*pending)

    def _learn(self, source: r.Bytes, kind: int, at: int, length: int) -> None:
        if kind == r.OP_SCHEMA:
            schema = r.read_schema(source, at, length)
            if self._schemas.setdefault(schema.id, schema) != schema:
                raise source.broken(f"schema {schema.id} is defined twice, and differently", at)
        elif kind == r.OP_CHANNEL:
            channel = r.read_channel(source, at, length)
            if self._channels.setdefault(channel.id, channel) != channel:
                raise source.broken(f"channel {channel.id} is defined twice, and differently", at)

    def _topic(self, channel: int, *, last_chance: bool = False) -> int | None:
        """The topic of a channel; None while the channel or its schema is unknown and may still be met."""
        topic = self._topic_of_channel.get(channel)
        if topic is None and channel in self._channels:
            record = self._channels[channel]
            schema = self._schemas.get(record.schema_id)
            if schema is None and not last_chance:
                return None
            topic = self._topic_of_channel[channel] = self._shared.topic(record, schema)
        return topic

    def _finish_chunk(self, head: r.ChunkRecord, indexes: list[tuple[int, NDArray[np.uint64]]]) -> None:
        shared, path = self._shared, self._file.path
        check_sizes(path, head.data_at, head.codec, head.stored_bytes, head.raw_bytes)
        if head.codec == "none" and head.raw_bytes != head.stored_bytes:
            wrong = f"a plain chunk of {head.stored_bytes:,} bytes claims {head.raw_bytes:,}"
            raise self._window.broken(wrong, head.data_at)
        number = shared.chunks.add(
            file=self._number,
            position=head.data_at,
            stored_bytes=head.stored_bytes,
            raw_bytes=head.raw_bytes,
            codec=CODECS.index(head.codec),
            crc=head.crc,
        )
        topics = [self._topic(channel) for channel, entries in indexes if len(entries)]
        if None in topics or not indexes:
            self._scan_chunk(number, head)
            return
        for channel, entries in indexes:
            topic = self._topic(channel)
            if len(entries) and topic is not None:
                shared.entries.add(topic, number, entries.tobytes(), len(entries))
                self._found[channel] = self._found.get(channel, 0) + len(entries)

    def _scan_chunk(self, number: int, head: r.ChunkRecord) -> None:
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
            source, begin, end = r.RawChunk(memoryview(raw), self._file.path, head.data_at), 0, head.raw_bytes
        for kind, at, length in r.walk(source, begin, end):
            if kind == r.OP_MESSAGE:
                channel, time_ns = r.read_message_head(source, at, length)
                self._add_message(channel, time_ns, number, at - r.RECORD_HEAD_BYTES - begin, length)
            else:
                self._learn(source, kind, at, length)

    def _add_loose(self, at: int, length: int) -> None:
        """A message outside chunks."""
        channel, time_ns = r.read_message_head(self._window, at, length)
        start = at - r.RECORD_HEAD_BYTES
        number, base = self._loose
        # A later chunk has a higher number, and numbers must rise along the file.
        if number != len(self._shared.chunks) - 1 or number < 0 or start - base >= _LOOSE_SPAN_BYTES:
            self._shared.flush_when_large(self._file.path)
            left = self._window.size_bytes - start
            number = self._shared.chunks.add(file=self._number, position=start, stored_bytes=left, raw_bytes=left)
            self._loose, base = (number, start), start
        check_sizes(self._file.path, start, "none", length, length)
        self._add_message(channel, time_ns, number, start - base, length)

    def _add_message(self, channel: int, time_ns: int, chunk: int, offset: int, length: int) -> None:
        topic = self._topic(channel, last_chance=True)
        self._found[channel] = self._found.get(channel, 0) + 1
        if topic is None:
            position = offset + int(self._shared.chunks.positions()[chunk])
            raise self._window.broken(f"a message of channel {channel}, which is not defined before it", position)
        self._shared.entries.add(topic, chunk, struct.pack("<QQ", time_ns, offset), 1, length + r.RECORD_HEAD_BYTES)
