"""mcap recordings: one file, or the files of a split bag as one."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.content import ZSTD_MAGIC
from penstock._src.recordings.chunked import ChunkedRecording
from penstock._src.recordings.codecs import check_sizes
from penstock._src.recordings.fetch import PACKED_NOTE
from penstock._src.recordings.file_window import corrupt, recover_hint
from penstock._src.recordings.mcap import records as r
from penstock._src.recordings.mcap.parsing import McapFraming, chunk_head, parse_record
from penstock._src.recordings.message_index import RecordingIndex
from penstock._src.recordings.recording import OnCorrupt, span_of
from penstock._src.recordings.recovery.scan_bytes import FileBytes, ScannedRecord
from penstock._src.recordings.split import SplitFiles
from penstock._src.recordings.unpack import is_packed
from penstock._src.system.closing import on_error
from penstock.errors import LimitExceeded, NotARecording, RecordingCorrupt, RecordingError

if TYPE_CHECKING:
    from penstock._src.recordings.recovery.report import DamageLog

# The frame of a record and the first bytes of its payload.
_PROBE_BYTES = 64

_BATCH_MESSAGES = 1 << 16
_MAX_TIME_NS = (1 << 63) - 1


class McapRecording(ChunkedRecording):
    """mcap, with or without summary, chunks, indexes."""

    kind: ClassVar[str] = "mcap"
    framing = McapFraming

    def __init__(self, source: SplitFiles, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, on_corrupt=on_corrupt, notes=source.notes)
        with on_error(self.close):
            self._open(source)

    def _open(self, source: SplitFiles) -> None:
        index = RecordingIndex()
        for number, path in enumerate(source.files):
            self.size_bytes += path.stat().st_size
            with self._open_file(path) as file:
                self._add_file(index, number, file)
        self._set_index(index)
        self._packed_messages = self._are_messages_packed(source)
        if self._packed_messages or any(is_packed(path) for path in source.files):
            self.compression = span_of(self._chunks.codecs() - {"none"} | {"zstd"})
        self._compare(source)

    def _add_file(self, index: RecordingIndex, number: int, file: FileBytes) -> None:
        """Add a file by its own indexes; where these do not hold, as a scan of its records finds it."""
        path = self._files[number].path
        before, chunk_count = index.messages.counts(), len(index.chunks)
        try:
            McapFileIndexer(index, number, file).run()
            return
        except (RecordingCorrupt, LimitExceeded) as error:
            problem = error
        from penstock._src.recordings.recovery.report import DamageLog

        index.discard_entries()
        index.messages.rollback(before)
        index.chunks.rollback(chunk_count)
        log = DamageLog(file=path.name)
        self._scan_file(index, number, log)
        if self._on_corrupt == "raise" and log.lost > log.is_unfinished:
            raise problem if getattr(problem, "offset", 0) is not None else log.as_error(path)
        self.notes.append(f"{problem.message}; it was scanned")
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
        packed = False
        on_corrupt, self._on_corrupt = self._on_corrupt, "raise"  # what is broken is counted when it is read
        try:
            # Of the first messages, the one whose chunk takes least to read.
            firsts.sort(key=lambda topic: int(self._chunks.raw_bytes[self._index[topic.id].chunk[0]]))
            for topic in firsts[:1]:
                for _, payload in self.payloads(topic, [0], clip_bytes=_PROBE_BYTES):
                    packed = payload is not None and payload[:4] == ZSTD_MAGIC
        except RecordingError:
            pass
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
    """One file by its own indexes: its summary, then the heads of its chunks and their message indexes.

    Chunk bodies are skipped. Whatever the indexes leave open is an error: the file is scanned then.
    """

    def __init__(self, index: RecordingIndex, number: int, file: FileBytes) -> None:
        self._index = index
        self._number = number
        self._file = file
        self._topic_of_channel: dict[int, int] = {}
        self._counted: dict[int, int] = {}

    def run(self) -> None:
        """Add this file to the index."""
        file = self._file
        from penstock._src.recordings.mcap.scan import survey_mcap

        if file.at(0, len(r.MAGIC)) != r.MAGIC:
            raise NotARecording(f"{file.path}: not an mcap file")
        self._survey = survey_mcap(file)
        if self._survey.problem:
            raise self._not_indexed(self._survey.problem)
        self._walk_data(self._survey.summary_at)
        self._index.flush_entries(file.path, _times_and_offsets)
        if self._survey.counts not in (None, self._counted):
            claimed, listed = (sum((counts or {}).values()) for counts in (self._survey.counts, self._counted))
            raise self._not_indexed(
                f"its summary claims {claimed} messages, and its message indexes list {listed} messages"
            )
        for channel in self._survey.channels:
            self._topic(channel)
        self._index.pairs |= set(self._topic_of_channel.items())

    def _not_indexed(self, why: str) -> RecordingCorrupt:
        return RecordingCorrupt(why, path=str(self._file.path), hint=recover_hint(self._file.path))

    def _walk_data(self, data_end: int) -> None:
        file = self._file
        chunk: int | None = None
        is_indexed = True
        at = len(r.MAGIC)
        while at < data_end:
            record = parse_record(file, at, data_end, inner=False)
            if record.state != "whole":
                raise corrupt(file.path, record.why, at)
            at = record.end
            if record.op == r.OP_MESSAGE_INDEX and chunk is not None:
                is_indexed = True
                channel, n_bytes = struct.unpack("<HI", file.at(record.data_at, 6))
                if n_bytes % 16:
                    raise corrupt(file.path, f"a message index of {n_bytes:,} bytes", record.at)
                self._add_entries(chunk, channel, file.at(record.data_at + 6, n_bytes))
                continue
            if not is_indexed and self._survey.counts is None:
                break
            if record.op == r.OP_CHUNK:
                if self._index.entry_count >= _BATCH_MESSAGES:
                    self._index.flush_entries(file.path, _times_and_offsets)
                chunk, is_indexed = self._add_chunk(record), False
            elif record.op == r.OP_MESSAGE:
                raise self._not_indexed("messages lie outside of chunks")
            elif record.op == r.OP_DATA_END:
                return
        raise self._not_indexed("its data section does not end" if is_indexed else "a chunk has no message index")

    def _add_chunk(self, record: ScannedRecord) -> int:
        path, head = self._file.path, chunk_head(self._file, record, record.end)
        if head is None or int.from_bytes(self._file.at(head.data_at - 8, 8), "little") != head.stored_bytes:
            raise corrupt(path, f"a chunk of {record.length:,} bytes that contradicts its length", record.at)
        check_sizes(path, head.data_at, head.codec, head.stored_bytes, head.raw_bytes)
        if head.codec == "none" and head.raw_bytes != head.stored_bytes:
            raise corrupt(path, f"a plain chunk of {head.stored_bytes:,} bytes claims {head.raw_bytes:,}", head.data_at)
        return self._index.chunks.add(head, self._number)

    def _add_entries(self, chunk: int, channel: int, entries: bytes) -> None:
        count = len(entries) // 16
        if count:
            self._index.add_entries(self._topic(channel), chunk, entries, count)
            self._counted[channel] = self._counted.get(channel, 0) + count

    def _topic(self, channel: int) -> int:
        if channel not in self._topic_of_channel:
            content = self._survey.channels.get(channel, b"")
            schema_id = int.from_bytes(content[2:4], "little")
            schema = self._survey.schemas.get(schema_id)
            if not content or (schema is None and schema_id):
                raise self._not_indexed(f"its summary does not describe channel {channel}")
            self._topic_of_channel[channel] = r.topic_number(self._index.topics, content, schema)
        return self._topic_of_channel[channel]
