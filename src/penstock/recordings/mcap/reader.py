"""mcap recordings: one file, or the files of a split bag as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.errors import RecordingError
from penstock.formats.content import ZSTD_MAGIC
from penstock.recordings.chunk_fetch import ChunkFetcher
from penstock.recordings.file_window import Window
from penstock.recordings.mcap.index import McapFileIndexer, McapIndex
from penstock.recordings.mcap.records import McapFraming
from penstock.recordings.message_compression import PACKED_NOTE, decompressed
from penstock.recordings.message_index import largest_reads, relocate, time_range_ns
from penstock.recordings.messages.schemas import SchemaStore, topic_order
from penstock.recordings.recording import (
    DEFAULT_FETCH_BYTES,
    LargestReads,
    OnCorrupt,
    Recording,
    Topic,
    as_readonly,
    span_of,
)
from penstock.recordings.split import is_zstd_file
from penstock.recordings.unpack import open_content

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.recordings.fetch import Block
    from penstock.recordings.recovery.scan_bytes import ScanBytes
    from penstock.recordings.split import Source
    from penstock.system.files import ByteSource


# The frame of a record and the first bytes of its payload.
_PROBE_BYTES = 64


class McapRecording(Recording):
    """mcap, with or without summary, chunks, indexes."""

    kind: ClassVar[str] = "mcap"

    def __init__(self, source: Source, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, schemas=SchemaStore(), on_corrupt=on_corrupt)
        self.notes += source.notes
        self._files: list[ByteSource] = []
        self._fetcher: ChunkFetcher | None = None
        try:
            self._open(source)
        except BaseException:
            self.close()
            raise

    def _open(self, source: Source) -> None:
        shared = McapIndex(self._add_loss if self._on_corrupt == "count" else None, self._lose_unknown)
        for number, path in enumerate(source.files):
            self.size_bytes += path.stat().st_size
            try:
                self._files.append(open_content(path))
            except OSError as error:
                raise RecordingError(f"{path}: cannot be opened: {error.strerror}") from error
            McapFileIndexer(shared, self._files[-1], number, Window(self._files[-1])).run()
        found = list(shared.topics)
        order = sorted(range(len(found)), key=lambda met: (*topic_order((found[met][0], found[met][2])), found[met][1]))
        number_of = {met: number for number, met in enumerate(order)}
        index = shared.index.finish(len(found))
        self._index = tuple(index[met] for met in order)
        self._chunks = shared.chunks.finish()
        self._pairs = {(channel, number_of[met]) for channel, met in shared.pairs}
        self._framing = McapFraming(self._pairs)
        self.start_ns, self.end_ns = time_range_ns(self._index)
        used = self._chunks.codecs()
        self.notes += shared.notes
        self._set_topics([(*found[met], index[met].times_ns.size) for met in order])
        self._packed_messages = self._are_messages_packed(source)
        if self._packed_messages or any(is_zstd_file(path) for path in source.files):
            used = used - {"none"} | {"zstd"}
        self.compression = span_of(used)
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
            for block in self.fetch(np.array([first.id], np.int32), np.zeros(1, np.int64), clip_bytes=_PROBE_BYTES):
                packed = bool(block.payloads[0] is not None and block.payloads[0][:4] == ZSTD_MAGIC)
                block.release()
        except RecordingError:
            packed = False
        finally:
            self._on_corrupt, self._fetcher = on_corrupt, None
        if packed:
            self.notes.append(PACKED_NOTE)
        return packed

    def _relocate(self, number: int, source: ScanBytes, begin: int, end: int) -> None:
        from penstock.recordings.mcap.rescan import ChunkMessages

        messages = ChunkMessages(self._pairs, self.path)
        messages.walk(source, begin, end)
        relocate(self._index, number, messages.found)

    @property
    def index_bytes(self) -> int:
        return sum(index.nbytes for index in self._index) + self._chunks.nbytes

    def largest_reads(self, topics: Sequence[Topic]) -> LargestReads:
        return largest_reads([self._index[topic.id] for topic in topics], self._chunks)

    def close(self) -> None:
        self._fetcher = None  # it refers back to this recording: its buffers would wait for the garbage collector
        for file in self._files:
            file.close()

    def times_ns(self, topic: Topic) -> NDArray[np.int64]:
        return as_readonly(self._index[topic.id].times_ns)

    def fetch(
        self,
        topic_ids: NDArray[np.int32],
        numbers: NDArray[np.int64],
        *,
        memory_bytes: int = DEFAULT_FETCH_BYTES,
        clip_bytes: int | None = None,
    ) -> Iterator[Block]:
        self._check_request(topic_ids, numbers)
        limits = (memory_bytes // 2, None) if self._packed_messages else (memory_bytes, clip_bytes)
        if self._fetcher is None or self._fetcher.limits != limits:
            self._fetcher = ChunkFetcher(
                self._files,
                self._chunks,
                self._index,
                self._framing,
                memory_bytes=limits[0],
                clip_bytes=limits[1],
                lose=self._lose if self._on_corrupt == "count" else None,
                relocate=self._relocate,
            )
        blocks = self._fetcher.blocks(topic_ids, numbers)
        if not self._packed_messages:
            return blocks
        return decompressed(blocks, memory_bytes // 2, self.path, self._lose_placed(topic_ids, numbers))
