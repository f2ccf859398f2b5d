"""Chunks of a ROS 1 bag whose index does not hold: their messages are found by the walk that `recover` uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.recordings.codecs import CODECS
from penstock.recordings.recovery_report import DamageLog
from penstock.recordings.ros1_scan import BagScan, PackedChunk, survey_bag
from penstock.recordings.scan_bytes import ChunkBytes, FileBytes

if TYPE_CHECKING:
    from penstock.recordings.message_index import ChunksBuilder, IndexBuilder
    from penstock.recordings.ros1_plausible import Ros1Record
    from penstock.recordings.scan_bytes import ScanBytes

# Offsets in the index are 32 bits wide, so messages of plain chunks are addressed from a new base every 2 GiB.
_MOST_OFFSET = 1 << 31
_BATCH_MESSAGES = 1 << 14


class Rescan:
    """Walks a part of the bag; the messages found go to the index, what is lost to the log."""

    def __init__(
        self,
        source: FileBytes,
        topics: dict[int, int],
        index: IndexBuilder,
        chunks: ChunksBuilder,
        unknown: dict[int, int],
    ) -> None:
        """`topics`: the topic of each connection; `unknown` counts messages of connections that are not among them."""
        self.log = DamageLog(file=source.path.name)
        self._source = source
        self._scan = BagScan(self, self.log, survey_bag(source), source.path)
        self._topics = topics
        self._index = index
        self._chunks = chunks
        self._unknown = unknown
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._chunk = 0
        self._base: PackedChunk | int | None = None

    def run(self, begin: int, stop: int, expected: int) -> int:
        """The number of messages found between two positions, where `expected` should lie."""
        before = self.log.written
        self._base = None
        self._scan.run_part(self._source, begin, stop, expected)
        self._flush()
        return self.log.written - before

    def close(self) -> None:
        self._source.close()

    def message(self, source: ScanBytes, record: Ros1Record, topic: bytes, described: bytes, time_ns: int) -> None:
        number = record.u32(b"conn")
        if number not in self._topics:
            self._unknown[number] = self._unknown.get(number, 0) + 1
            return
        base = self._base_of(source, record)
        self._rows.append((self._topics[number], time_ns, self._chunk, record.at - base, record.end - record.at))
        if len(self._rows) >= _BATCH_MESSAGES:
            self._flush()

    def connection(self, topic: bytes, described: bytes) -> None:
        """The bag's own list of connections is complete."""

    def _base_of(self, source: ScanBytes, record: Ros1Record) -> int:
        """Where offsets count from: a packed chunk's beginning, or in the file a message that is near enough."""
        if isinstance(source, ChunkBytes):
            packed = self._scan.packed
            if packed is not None and packed is not self._base:
                self._base = packed
                self._chunk = self._chunks.add(
                    position=packed.data_at,
                    stored_bytes=packed.stored_bytes,
                    raw_bytes=packed.raw_bytes,
                    codec=CODECS.index(packed.codec),
                )
            return 0
        if not isinstance(self._base, int) or record.end - self._base > _MOST_OFFSET:
            self._base = record.at
            left = self._source.size - record.at
            self._chunk = self._chunks.add(position=record.at, stored_bytes=left, raw_bytes=left)
        return self._base

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        table = np.array(rows, np.int64)
        topic, chunk = table[:, 0].astype(np.int32), table[:, 2].astype(np.int32)
        self._index.add(topic, table[:, 1], chunk, table[:, 3].astype(np.uint32), table[:, 4].astype(np.uint32))
