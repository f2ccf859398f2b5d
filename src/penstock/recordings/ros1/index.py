"""Building the message index of a ROS 1 bag from the index records behind its chunks.

Where one does not hold, the records of the bag decide what is there (`index_bag` in `scan.py`).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import RecordingCorrupt
from penstock.recordings.codecs import CODECS, check_sizes
from penstock.recordings.message_index import ChunksBuilder, IndexBuilder, IndexEntries
from penstock.recordings.recovery.report import no_record_note
from penstock.recordings.ros1.records import OP_CHUNK, OP_INDEX, field_places, read_header, u32_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.recordings.file_window import Window

_WINDOW_BYTES = 1 << 20
_CHUNK_HEADER_BYTES = 256
_USUAL_INDEX_BYTES = 256
# Index entries are sorted and measured in batches of about so many, so that a long bag needs no large temporaries.
_BATCH_MESSAGES = 1 << 14
_MASK = (1 << 64) - 1


class ChunkInfos:
    """Where the end of the bag says that chunks begin, and how many messages of each connection they hold."""

    def __init__(self) -> None:
        self._positions, self._counts = array("Q"), array("Q")

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: int, counts: Iterable[tuple[int, int]]) -> None:
        """`counts`: messages by connection, kept as one number that another list of counts does not give."""
        self._positions.append(position)
        self._counts.append(sum(weighed(*each) for each in counts) & _MASK)

    def in_file_order(self, end: int) -> Iterator[tuple[int, int, int]]:
        """Position, counts, and where the next chunk (or, at last, the index) begins."""
        positions = np.array(self._positions, np.uint64)
        order = np.argsort(positions, kind="stable").tolist()
        for place, number in enumerate(order):
            following = self._positions[order[place + 1]] if place + 1 < len(order) else end
            yield self._positions[number], self._counts[number], following


def weighed(connection: int, count: int) -> int:
    """A count that tells whose it is: sums of these are equal when the counts of all connections are."""
    return count * (connection * 0x9E3779B97F4A7C15 & _MASK | 1)


class Ros1Indexer:
    """Collects the index records behind the chunks and turns them into the message index, batch by batch."""

    def __init__(self, window: Window, topic_of_connection: dict[int, int]) -> None:
        self.notes: list[str] = []
        self._window = window
        self._topic_of_connection = topic_of_connection
        self.index = IndexBuilder()
        self.chunks = ChunksBuilder()
        self._entries = IndexEntries(self.index, self.chunks, _times_and_offsets)
        self._usual: tuple[int, int, int, int] | None = None

    def run(self, infos: ChunkInfos, index_at: int) -> None:
        """Take the index of every chunk; RecordingCorrupt or LimitExceeded where one does not hold."""
        padding: list[tuple[int, int]] = []
        for position, counts, end in infos.in_file_order(index_at):
            if len(self._entries) >= _BATCH_MESSAGES:
                self._entries.flush(self._window.path)
            found, at = self._add_chunk(position, end)
            if found != counts:
                what = "the chunk's index and the end of the bag count its messages differently"
                raise self._window.broken(what, position)
            if at < end:
                padding.append((end - at, at))
        if padding:
            self.notes.append(no_record_note(sum(n_bytes for n_bytes, _ in padding), padding[0][1], len(padding)))
        self._entries.flush(self._window.path)

    def _add_chunk(self, position: int, end: int) -> tuple[int, int]:
        """One chunk and its index records, which lie before `end`; the counts listed, and where the records end."""
        window = self._window
        fields, data_at, stored_bytes = read_header(window, position, _CHUNK_HEADER_BYTES)
        if fields.op != OP_CHUNK:
            raise fields.broken(f"a record of kind {fields.op} lies where the index names a chunk")
        codec, raw_bytes = fields.text(b"compression"), fields.u32(b"size")
        if data_at + stored_bytes > end:
            raise fields.broken(f"the chunk claims {stored_bytes:,} bytes, and {end - data_at:,} are left for it")
        check_sizes(window.path, position, codec, stored_bytes, raw_bytes)
        if codec == "none" and raw_bytes != stored_bytes:
            raise fields.broken(f"the plain chunk claims {raw_bytes:,} bytes and holds {stored_bytes:,}")
        number = self.chunks.add(
            position=data_at, stored_bytes=stored_bytes, raw_bytes=raw_bytes, codec=CODECS.index(codec)
        )
        return self._add_index_records(number, data_at + stored_bytes, end)

    def _add_index_records(self, chunk: int, at: int, end: int) -> tuple[int, int]:
        window = self._window
        # The header of the next chunk is wanted right after, and lies behind these records.
        ahead = min(end - at + _CHUNK_HEADER_BYTES, _WINDOW_BYTES)
        total = 0
        while at < end:
            try:
                connection, count, data_at = self._index_record(at, ahead)
            except RecordingCorrupt:
                break  # whether anything is missing is seen by the counts
            if count < 0:
                raise window.broken("a record that is no index lies behind a chunk's index", at)
            if data_at + 12 * count > end:
                break
            entries = window.at(data_at, 12 * count, ahead)
            topic = self._topic_of_connection.get(connection)
            if topic is None and count:
                raise window.broken(f"an index record of connection {connection}, which the bag does not list", at)
            if topic is not None and count:
                self._entries.add(topic, chunk, entries, count)
            total += weighed(connection, count)
            at = data_at + 12 * count
        return total & _MASK, at

    def _index_record(self, at: int, ahead: int) -> tuple[int, int, int]:
        """Connection, count (-1: another kind of record) and where its entries begin."""
        window = self._window
        if self._usual is not None:
            size, mask, skeleton, places = self._usual
            if at + size <= window.size_bytes:
                raw = window.at(at, size, ahead)
                if int.from_bytes(raw, "little") & mask == skeleton:
                    count = u32_from(raw, places & 0xFFFF)[0]
                    if u32_from(raw, size - 4)[0] == 12 * count:
                        return u32_from(raw, places >> 16)[0], count, at + size
        fields, data_at, data_bytes = read_header(window, at, ahead)
        if fields.op != OP_INDEX:
            return 0, -1, at
        if (version := fields.u32(b"ver")) != 1:
            raise fields.broken(f"index records of version {version}; version 1 is known")
        count = fields.u32(b"count")
        if data_bytes != 12 * count:
            raise fields.broken(f"an index record of {count:,} messages has {data_bytes:,} bytes, not {12 * count:,}")
        connection = fields.u32(b"conn")
        if data_at - at <= _USUAL_INDEX_BYTES:
            self._usual = _index_skeleton(window.at(at, data_at - at))
        return connection, count, data_at


def _times_and_offsets(entries: bytearray, path: Path) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    table = np.frombuffer(entries, "<u4").reshape(-1, 3)
    return table[:, 0].astype(np.int64) * 1_000_000_000 + table[:, 1], table[:, 2]


def _index_skeleton(record: bytes) -> tuple[int, int, int, int]:
    """(bytes, mask, masked value, places of connection and count) of an index record that was found valid.

    Thousands of these records differ only in three numbers; comparing all other bytes as one integer is what makes
    opening a bag of ten thousand chunks a matter of a blink.
    """
    mask = bytearray(b"\xff" * len(record))
    places = field_places(record[4:-4])
    for begin, end in (places[b"conn"], places[b"count"], (len(record) - 8, len(record) - 4)):
        mask[4 + begin : 4 + end] = bytes(end - begin)
    number = int.from_bytes(mask, "little")
    packed = 4 + places[b"conn"][0] << 16 | 4 + places[b"count"][0]
    return len(record), number, int.from_bytes(record, "little") & number, packed
