"""mcap recordings: one file, or the files of a split bag as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.errors import RecordingError
from penstock.formats.content import ZSTD_MAGIC
from penstock.recordings.chunk_fetch import ChannelTopics
from penstock.recordings.chunked import ChunkedRecording
from penstock.recordings.mcap.index import McapFileIndexer, McapIndex
from penstock.recordings.mcap.parsing import McapFraming
from penstock.recordings.message_compression import PACKED_NOTE
from penstock.recordings.recording import span_of
from penstock.recordings.unpack import is_packed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.recordings.recording import OnCorrupt
    from penstock.recordings.recovery.scan_bytes import ScanBytes
    from penstock.recordings.split import Source


# The frame of a record and the first bytes of its payload.
_PROBE_BYTES = 64


class McapRecording(ChunkedRecording):
    """mcap, with or without summary, chunks, indexes."""

    kind: ClassVar[str] = "mcap"

    def __init__(self, source: Source, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, on_corrupt=on_corrupt, notes=source.notes)
        try:
            self._open(source)
        except BaseException:
            self.close()
            raise

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

    def _messages_in(self, source: ScanBytes, begin: int, end: int) -> Mapping[int, Sequence[tuple[int, int, int]]]:
        from penstock.recordings.mcap.scan import messages_in_chunk

        return messages_in_chunk(source, begin, end, self.path, self._pairs)
