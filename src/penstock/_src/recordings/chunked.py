"""What recordings of chunks (ROS 1 bags, mcap) have in common: open files, the message index, fetching."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.chunk_fetch import ChunkFetcher, Framing
from penstock._src.recordings.fetch import Block
from penstock._src.recordings.message_index import (
    ChunkIndex,
    RecordingIndex,
    TopicIndex,
    largest_reads,
    relocated,
    time_range_ns,
)
from penstock._src.recordings.messages.schemas import SchemaStore
from penstock._src.recordings.recording import (
    LargestReads,
    OnCorrupt,
    Recording,
    Topic,
    as_readonly,
    span_of,
)
from penstock._src.recordings.recovery.scan_bytes import FileBytes
from penstock._src.recordings.unpack import open_content
from penstock._src.system.files import ByteSource
from penstock.errors import RecordingError, os_errors

if TYPE_CHECKING:
    from penstock._src.recordings.recovery.report import DamageLog


class ChunkedRecording(Recording):
    """A recording whose messages lie in chunks, found by an index."""

    _index: tuple[TopicIndex, ...]
    _chunks: ChunkIndex
    framing: ClassVar[type[Framing]]

    def __init__(self, path: Path, *, on_corrupt: OnCorrupt, notes: Sequence[str]) -> None:
        super().__init__(path, schemas=SchemaStore(), on_corrupt=on_corrupt)
        self.notes += notes
        self._files: list[ByteSource] = []
        self._fetcher: ChunkFetcher | None = None

    @abstractmethod
    def _scanned(self) -> tuple[RecordingIndex, DamageLog]:
        """The index as the records of the files have it, and what is lost."""

    def _open_file(self, path: Path) -> FileBytes:
        """Open a file of the recording, unpacked where it is packed as a whole."""
        with os_errors(RecordingError, f"{path}: cannot be opened"):
            self._files.append(open_content(path))
        return FileBytes(path, source=self._files[-1])

    def _set_index(self, index: RecordingIndex) -> None:
        """Take what was found; topics are numbered anew, by their names."""
        order = index.topics.in_order()
        built = index.messages.finish(len(index.topics))
        self._index = tuple(built[met] for met, _ in order)
        self._chunks = index.chunks.finish()
        number_of = {met: number for number, (met, _) in enumerate(order)}
        self._framing = self.framing({(channel, number_of[met]) for channel, met in index.pairs})
        self.start_ns, self.end_ns = time_range_ns(self._index)
        self.compression = span_of(self._chunks.codecs())
        self._set_topics([(*topic, built[met].times_ns.size) for met, topic in order])

    def _relocate(self) -> tuple[ChunkIndex, tuple[TopicIndex, ...]] | None:
        """Where the messages lie by the records of the files; None where these do not hold the same messages."""
        index, _ = self._scanned()
        order = index.topics.in_order()
        if [schema for _, (_, _, schema) in order] != self._topic_schemas:
            return None
        built = index.messages.finish(len(index.topics))
        topics = [relocated(old, built[met]) for old, (met, _) in zip(self._index, order, strict=True)]
        if None in topics:
            return None
        self._chunks, self._index = index.chunks.finish(), tuple(each for each in topics if each is not None)
        return self._chunks, self._index

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

    def _blocks(
        self, topic_ids: NDArray[np.int32], numbers: NDArray[np.int64], memory_bytes: int, clip_bytes: int | None
    ) -> Iterator[Block]:
        if self._fetcher is None or self._fetcher.limits != (memory_bytes, clip_bytes):
            self._fetcher = ChunkFetcher(
                self._files,
                self._chunks,
                self._index,
                self._framing,
                memory_bytes=memory_bytes,
                clip_bytes=clip_bytes,
                lose=self._lose if self._on_corrupt == "count" else None,
                relocate=self._relocate,
            )
        return self._fetcher.blocks(topic_ids, numbers)
