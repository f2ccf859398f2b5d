"""Where the messages lie that a scan finds: in packed chunks, or anywhere in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.recordings.codecs import CODECS
from penstock.recordings.recovery.scan_bytes import ChunkBytes

if TYPE_CHECKING:
    from penstock.recordings.message_index import ChunksBuilder
    from penstock.recordings.recovery.record_walk import Found, PackedChunk
    from penstock.recordings.recovery.scan_bytes import ScanBytes

# Offsets in the index are 32 bits wide, so messages outside packed chunks are addressed from a new base every 2 GiB.
_MOST_OFFSET = 1 << 31


class ScanPlaces:
    """Turns positions of a scan into chunk numbers and offsets; chunks are added as they are met."""

    def __init__(self, chunks: ChunksBuilder, size_bytes: int, file: int = 0) -> None:
        self._chunks = chunks
        self._size_bytes = size_bytes
        self._file = file
        self._packed: PackedChunk | None = None
        self._base: int | None = None
        self._number = 0

    def place(self, source: ScanBytes, record: Found, packed: PackedChunk | None) -> tuple[int, int]:
        """Chunk number and offset of a record; `packed`: the chunk that was unpacked, where the source is one."""
        if isinstance(source, ChunkBytes) and packed is not None:
            if packed is not self._packed:
                self._packed, self._base = packed, None
                self._number = self._chunks.add(
                    file=self._file,
                    position=packed.data_at,
                    stored_bytes=packed.stored_bytes,
                    raw_bytes=packed.raw_bytes,
                    codec=CODECS.index(packed.codec),
                    crc=packed.crc,
                    is_part=packed.is_part,
                )
            return self._number, record.at
        if self._base is None or record.end - self._base > _MOST_OFFSET:
            self._base, self._packed = record.at, None
            left = self._size_bytes - record.at
            self._number = self._chunks.add(file=self._file, position=record.at, stored_bytes=left, raw_bytes=left)
        return self._number, record.at - self._base
