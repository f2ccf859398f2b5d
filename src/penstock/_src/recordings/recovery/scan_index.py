"""Where a scan finds the messages: a sink that keeps their places instead of copying them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from penstock._src.recordings.codecs import StoredChunk
from penstock._src.recordings.recovery.scan_bytes import ScanBytes, ScannedRecord

if TYPE_CHECKING:
    from penstock._src.recordings.message_index import RecordingIndex

# Offsets in the index are 32 bits wide, so messages outside packed chunks are addressed from a new base every 2 GiB.
_MOST_OFFSET = 1 << 31
_BATCH_MESSAGES = 1 << 16


class IndexSink:
    """Adds the messages of one file, found record by record, to an index; chunks are added as they are met."""

    def __init__(
        self, index: RecordingIndex, topic_of: Callable[[bytes, bytes | None], int], size_bytes: int, file: int
    ) -> None:
        """`topic_of`: the number of a topic, by the two descriptions that a scan gives of a channel."""
        self._index = index
        self._topic_of = topic_of
        self._size_bytes = size_bytes
        self._file = file
        self._rows = array("i"), array("q"), array("i"), array("I"), array("Q")
        self._packed: StoredChunk | None = None
        self._base: int | None = None
        self._chunk = 0

    def channel(self, number: int, described: bytes, more: bytes | None) -> int:
        topic = self._topic_of(described, more)
        self._index.pairs.add((number, topic))
        return topic

    def message(
        self, source: ScanBytes, record: ScannedRecord, number: int, time_ns: int, packed: StoredChunk | None
    ) -> None:
        chunk, offset = self._place(record, packed)
        for column, value in zip(self._rows, (number, time_ns, chunk, offset, record.end - record.at), strict=True):
            column.append(value)
        if len(self._rows[0]) >= _BATCH_MESSAGES:
            self.flush()

    def flush(self) -> None:
        """Add what was not added yet."""
        topic, times_ns, chunk, offset, span = (np.array(column) for column in self._rows)
        for column in self._rows:
            del column[:]
        self._index.messages.add(topic, times_ns, chunk, offset, span.astype(np.uint32))

    def _place(self, record: ScannedRecord, packed: StoredChunk | None) -> tuple[int, int]:
        """Chunk number and offset of a record; `packed`: the chunk that was unpacked for it."""
        if packed is not None:
            if packed is not self._packed:
                self._packed, self._base = packed, None
                self._chunk = self._index.chunks.add(packed, self._file)
            return self._chunk, record.at
        if self._base is None or record.end - self._base > _MOST_OFFSET:
            self._base, self._packed = record.at, None
            left = self._size_bytes - record.at
            self._chunk = self._index.chunks.add(StoredChunk(record.at, left, left), self._file)
        return self._chunk, record.at - self._base
