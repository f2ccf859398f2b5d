"""Building the message index of a ROS 1 bag from the index records behind its chunks.

Where the index of a chunk does not hold, the chunk's own records decide what is there (`ros1_rescan.py`).
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import LimitExceeded, RecordingCorrupt
from penstock.recordings.codecs import CODECS, check_sizes
from penstock.recordings.message_index import ChunksBuilder, IndexBuilder, in_file_order
from penstock.recordings.recovery_report import no_record_note
from penstock.recordings.ros1_records import OP_CHUNK, OP_INDEX, read_header, u32_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.recordings.file_window import Window
    from penstock.recordings.message_index import LoseEntries
    from penstock.recordings.ros1_rescan import Rescan

_WINDOW_BYTES = 1 << 20
_CHUNK_HEADER_BYTES = 256
_USUAL_INDEX_BYTES = 256
# Index entries are sorted and measured in batches of about so many, so that a long bag needs no large temporaries.
_BATCH_MESSAGES = 1 << 14


class ChunkInfos:
    """Where the end of the bag says that chunks begin, and how many messages each holds."""

    def __init__(self) -> None:
        self._positions, self._messages = array("Q"), array("Q")

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: int, messages: int) -> None:
        self._positions.append(position)
        self._messages.append(messages)

    def in_file_order(self, end: int) -> Iterator[tuple[int, int, int]]:
        """Position, messages, and where the next chunk (or, at last, the index) begins."""
        positions = np.array(self._positions, np.uint64)
        order = np.argsort(positions, kind="stable").tolist()
        for place, number in enumerate(order):
            following = self._positions[order[place + 1]] if place + 1 < len(order) else end
            yield self._positions[number], self._messages[number], following


class Ros1Indexer:
    """Collects the index records behind the chunks and turns them into the message index, batch by batch."""

    def __init__(
        self, window: Window, topic_of_connection: dict[int, int], lose: LoseEntries | None, notes: list[str]
    ) -> None:
        """`lose`: counts what is lost; without it a loss is an error."""
        self._window = window
        self._lose = lose
        self._notes = notes
        self._topic_of_connection = topic_of_connection
        self.index = IndexBuilder()
        self.chunks = ChunksBuilder()
        self._unknown: dict[int, int] = {}
        self._entries = bytearray()
        self._topics, self._chunk_numbers, self._counts = array("i"), array("i"), array("q")
        self._usual: tuple[int, int, int, int] | None = None

    def run(self, infos: ChunkInfos, index_at: int, fd: int) -> None:
        """Take the index of every chunk, or its own records where that index does not hold."""
        rescan: Rescan | None = None
        for position, messages, end in infos.in_file_order(index_at):
            problem = self._add_or_undo(position, messages, end)
            if problem is not None:
                self._flush()
                rescan = rescan or self._rescan(fd)
                lost = rescan.log.lost
                rescan.run(position, end, messages)
                if self._lose is None and rescan.log.lost > lost:
                    raise problem
        self._flush()
        if rescan is not None:
            rescan.close()
        for connection, count in sorted(self._unknown.items()):
            cause = f"connection {connection} has no connection record"
            if self._lose is None:
                raise self._window.broken(f"{count:,} messages lost: {cause}", index_at)
            self._lose(cause, count, "index")
        if rescan is not None:
            rescan.log.tell(self._lose, self._notes)

    def _rescan(self, fd: int) -> Rescan:
        from penstock.recordings.ros1_rescan import Rescan
        from penstock.recordings.scan_bytes import FileBytes

        source = FileBytes(self._window.path, fd=fd)
        return Rescan(source, self._topic_of_connection, self.index, self.chunks, self._unknown)

    def _add_or_undo(self, position: int, messages: int, end: int) -> RecordingCorrupt | LimitExceeded | None:
        """Add a chunk by its index records; what is wrong where they do not hold, and then nothing was added."""
        if len(self._entries) >= 12 * _BATCH_MESSAGES:
            self._flush()
        before = len(self.chunks), len(self._entries), len(self._topics), dict(self._unknown)
        try:
            found, at = self._add_chunk(position, end)
            if found == messages:
                if at < end:
                    self._notes.append(no_record_note(end - at, at))
                return None
            problem: RecordingCorrupt | LimitExceeded = self._window.broken(
                f"the chunk's index lists {found:,} messages, and the end of the bag {messages:,}", position
            )
        except (RecordingCorrupt, LimitExceeded) as error:
            problem = error
        self.chunks.rollback(before[0])
        del self._entries[before[1] :]
        for column in (self._topics, self._chunk_numbers, self._counts):
            del column[before[2] :]
        self._unknown.clear()
        self._unknown.update(before[3])
        return problem

    def _add_chunk(self, position: int, end: int) -> tuple[int, int]:
        """One chunk and its index records, which lie before `end`; the messages listed, and where the records end."""
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
                break  # whether anything is missing is seen by the number of messages
            if count < 0:
                return total, end
            if data_at + 12 * count > end:
                break
            entries = window.at(data_at, 12 * count, ahead)
            topic = self._topic_of_connection.get(connection)
            if topic is None:
                self._unknown[connection] = self._unknown.get(connection, 0) + count
            elif count:
                self._entries += entries
                self._topics.append(topic)
                self._chunk_numbers.append(chunk)
                self._counts.append(count)
            total += count
            at = data_at + 12 * count
        return total, at

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

    def _flush(self) -> None:
        """Sort and measure the entries collected so far."""
        if not self._topics:
            return
        entries = np.frombuffer(self._entries, "<u4").reshape(-1, 3)
        counts = np.array(self._counts, np.int64)
        topic = np.repeat(np.array(self._topics, np.int32), counts)
        chunk = np.repeat(np.array(self._chunk_numbers, np.int32), counts)
        times_ns = entries[:, 0].astype(np.int64) * 1_000_000_000 + entries[:, 1]
        order, span = in_file_order(chunk, entries[:, 2], self.chunks, self._window.path, self._lose)
        self.index.add(topic[order], times_ns[order], chunk[order], entries[order, 2], span)
        self._entries = bytearray()
        self._topics, self._chunk_numbers, self._counts = array("i"), array("i"), array("q")


def _index_skeleton(record: bytes) -> tuple[int, int, int, int]:
    """(bytes, mask, masked value, places of connection and count) of an index record that was found valid.

    Thousands of these records differ only in three numbers; comparing all other bytes as one integer is what makes
    opening a bag of ten thousand chunks a matter of a blink.
    """
    mask = bytearray(b"\xff" * len(record))
    places = {}
    at = 4
    while at < len(record) - 4:
        (size,) = u32_from(record, at)
        name, _, value = record[at + 4 : at + 4 + size].partition(b"=")
        value_at = at + 5 + len(name)
        if name in (b"conn", b"count"):
            places[name] = value_at
            mask[value_at : value_at + len(value)] = bytes(len(value))
        at += 4 + size
    mask[-4:] = bytes(4)
    number = int.from_bytes(mask, "little")
    packed = places[b"conn"] << 16 | places[b"count"]
    return len(record), number, int.from_bytes(record, "little") & number, packed
