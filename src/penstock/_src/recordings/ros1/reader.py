"""ROS 1 bags: the index at the end of the file and behind every chunk, never the messages."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.chunked import ChunkedRecording
from penstock._src.recordings.codecs import StoredChunk, check_sizes
from penstock._src.recordings.file_window import RecordingWindow, no_record_note, recover_hint
from penstock._src.recordings.message_index import RecordingIndex
from penstock._src.recordings.messages.schemas import Schema, type_name
from penstock._src.recordings.recording import OnCorrupt
from penstock._src.recordings.recovery.scan_bytes import FileBytes, ScannedRecord
from penstock._src.recordings.ros1.parsing import Ros1Framing, parse_record
from penstock._src.recordings.ros1.records import (
    MAGIC,
    OP_BAG_HEADER,
    OP_CHUNK,
    OP_CHUNK_INFO,
    OP_CONNECTION,
    OP_INDEX,
    header_fields,
)
from penstock._src.recordings.split import SplitFiles
from penstock._src.system.closing import on_error
from penstock.errors import LimitExceeded, NotARecording, RecordingCorrupt, RecordingError

if TYPE_CHECKING:
    from penstock._src.recordings.recovery.report import DamageLog

_WINDOW_BYTES = 1 << 20
_CHUNK_HEADER_BYTES = 256
# Index entries are sorted and measured in batches of about so many, so that a long bag needs no large temporaries.
_BATCH_MESSAGES = 1 << 14
_MASK = (1 << 64) - 1


class Ros1Recording(ChunkedRecording):
    """A ROS 1 bag, format 2.0."""

    kind: ClassVar[str] = "ros1"
    framing = Ros1Framing

    def __init__(self, source: SplitFiles, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, on_corrupt=on_corrupt, notes=source.notes)
        window = self._open_file(source.path)
        with on_error(self.close):
            self._open(window)

    def _open(self, window: RecordingWindow) -> None:
        self.size_bytes = window.size_bytes
        index_at, connection_count, chunk_count = _read_bag_header(window)
        connections, infos, end = _read_tail(window, index_at)
        if len(connections) != connection_count or len(infos) != chunk_count:
            counts = f"{len(connections)} connections and {len(infos)} chunks"
            claimed = f"{connection_count} and {chunk_count}"
            if len(connections) < connection_count or len(infos) < chunk_count:
                raise window.broken(f"the index ends with {counts}; the bag claims {claimed}", end)
            self.notes.append(f"the index lists {counts}; the bag header claims {claimed}")
        if end < self.size_bytes:
            self.notes.append(no_record_note(self.size_bytes - end, end))
        self._read_index(window, connections, infos, index_at)

    def _read_index(
        self, window: RecordingWindow, connections: dict[int, tuple[str, Schema]], infos: ChunkInfos, index_at: int
    ) -> None:
        """The index as the bag has it; where it does not hold, as a scan of the whole bag finds it."""
        index = RecordingIndex()
        topics = {number: index.topics.number(name, "ros1", schema) for number, (name, schema) in connections.items()}
        indexer = Ros1Indexer(window, index, topics)
        try:
            indexer.run(infos, index_at)
            self.notes += indexer.notes
            index.pairs = set(topics.items())
        except (RecordingCorrupt, LimitExceeded) as error:
            index, log = self._scanned()
            if log.lost and self._on_corrupt == "raise":
                raise
            self.notes.append(f"its index is wrong ({error.message}); the bag was scanned")
            log.report_to(self._add_loss, self.notes)
        self._set_index(index)

    def _scanned(self) -> tuple[RecordingIndex, DamageLog]:
        from penstock._src.recordings.recovery.report import DamageLog
        from penstock._src.recordings.ros1.scan import index_bag

        index, log = RecordingIndex(), DamageLog(file=self.path.name)
        with FileBytes(self.path, source=self._files[0]) as source:
            index_bag(source, log, index)
        return index, log


def _read_bag_header(window: RecordingWindow) -> tuple[int, int, int]:
    """Where the index begins, how many connections and chunks it holds."""
    path, size = window.path, window.size_bytes
    magic = window.at(0, min(len(MAGIC), size), 4096)
    if magic != MAGIC:
        if magic.startswith(b"#ROSBAG V") or magic.startswith(b"#ROSRECORD"):
            version = magic.decode("ascii", errors="replace").strip()
            raise RecordingError(
                f"{path}: written in the old format {version!r}; penstock reads bags of format 2.0",
                hint="rewrite it with ROS 1: rosbag filter old.bag new.bag True",
            )
        if size < len(MAGIC) and MAGIC.startswith(magic):
            raise window.broken(f"the file is {size} bytes long, too short for a bag", size)
        raise NotARecording(f"{path}: not a ROS 1 bag: it begins with {magic[:13]!r}")
    record = _record(window, len(MAGIC), 4096)
    if record.op != OP_BAG_HEADER:
        raise window.broken(f"a record of kind {record.op} lies where the bag header must be", len(MAGIC))
    if record.fields.get(b"encryptor"):
        raise RecordingError(f"{path}: encrypted by {record.text(b'encryptor')!r}", hint="decrypt it with ROS 1 first")
    index_at = record.number(b"index_pos")
    if index_at == 0:
        raise RecordingCorrupt(
            "the bag has no index: its recorder was stopped before it could write one (a .bag.active file)",
            path=str(path),
            offset=len(MAGIC),
            hint=recover_hint(path),
        )
    if index_at > size or index_at < record.end:
        raise window.broken(f"the index should begin at byte {index_at:,}; the file has {size:,}: it was cut", size)
    return index_at, record.number(b"conn_count"), record.number(b"chunk_count")


def _record(window: RecordingWindow, at: int, ahead: int) -> ScannedRecord:
    """The record at a position, which must be whole; `ahead`: so many bytes from there will be asked for."""
    window.ahead_bytes = ahead
    record = parse_record(window, at, window.size_bytes, inner=False)
    if record.state != "whole":
        raise window.broken(f"{record.why}: it was cut" if record.state == "cut" else record.why, at)
    return record


def _read_tail(window: RecordingWindow, at: int) -> tuple[dict[int, tuple[str, Schema]], ChunkInfos, int]:
    """The connections and the chunk list at the end of the file, and where what is no record begins."""
    connections: dict[int, tuple[str, Schema]] = {}
    infos = ChunkInfos()
    while at < window.size_bytes:
        try:
            at = _read_tail_record(window, at, connections, infos)
        except RecordingCorrupt:
            break  # whether anything is missing is seen by the numbers that the bag header claims
    return connections, infos, at


def _read_tail_record(
    window: RecordingWindow, at: int, connections: dict[int, tuple[str, Schema]], infos: ChunkInfos
) -> int:
    """Take one record of the index; where it ends."""
    record = _record(window, at, _WINDOW_BYTES)
    data = window.at(record.data_at, record.end - record.data_at)
    if record.op == OP_CONNECTION:
        described = header_fields(data) or {}
        if b"type" not in described:
            raise window.broken("a connection without a type", record.data_at)
        # Definitions have comments in any 8-bit encoding: a comment must not cost the topic.
        kind, text = (described.get(key, b"").decode("utf-8", "replace") for key in (b"type", b"message_definition"))
        connections[record.number(b"conn")] = (record.text(b"topic"), Schema(type_name(kind), "ros1msg", text))
    elif record.op == OP_CHUNK_INFO:
        infos.add(record.number(b"chunk_pos"), struct.iter_unpack("<II", data))
    return record.end


class ChunkInfos:
    """Where the end of the bag says that chunks begin, and how many messages of each connection they hold."""

    def __init__(self) -> None:
        self._positions, self._counts = array("Q"), array("Q")

    def __len__(self) -> int:
        return len(self._positions)

    def add(self, position: int, counts: Iterable[tuple[int, int]]) -> None:
        """`counts`: messages by connection, kept as one number that another list of counts does not give."""
        self._positions.append(position)
        self._counts.append(sum(_weighted_count(*each) for each in counts) & _MASK)

    def in_file_order(self, end: int) -> Iterator[tuple[int, int, int]]:
        """Position, counts, and where the next chunk (or, at last, the index) begins."""
        positions = np.array(self._positions, np.uint64)
        order = np.argsort(positions, kind="stable").tolist()
        for place, number in enumerate(order):
            following = self._positions[order[place + 1]] if place + 1 < len(order) else end
            yield self._positions[number], self._counts[number], following


def _weighted_count(connection: int, count: int) -> int:
    """A count weighted by connection: sums of these are equal when the counts of all connections are."""
    return count * (connection * 0x9E3779B97F4A7C15 & _MASK | 1)


class Ros1Indexer:
    """Collects the index records behind the chunks and turns them into the message index, batch by batch.

    Where one does not hold, the records of the bag decide what is there (`index_bag` in `scan.py`).
    """

    def __init__(self, window: RecordingWindow, index: RecordingIndex, topic_of_connection: dict[int, int]) -> None:
        self.notes: list[str] = []
        self._window = window
        self._topic_of_connection = topic_of_connection
        self._index = index

    def run(self, infos: ChunkInfos, index_at: int) -> None:
        """Take the index of every chunk; RecordingCorrupt or LimitExceeded where one does not hold."""
        padding: list[tuple[int, int]] = []
        for position, counts, end in infos.in_file_order(index_at):
            if self._index.entry_count >= _BATCH_MESSAGES:
                self._index.flush_entries(self._window.path, _times_and_offsets)
            count, at = self._add_chunk(position, end)
            if count != counts:
                what = "the chunk's index and the end of the bag count its messages differently"
                raise self._window.broken(what, position)
            if at < end:
                padding.append((end - at, at))
        if padding:
            self.notes.append(no_record_note(sum(n_bytes for n_bytes, _ in padding), padding[0][1], len(padding)))
        self._index.flush_entries(self._window.path, _times_and_offsets)

    def _add_chunk(self, position: int, end: int) -> tuple[int, int]:
        """One chunk and its index records, which lie before `end`; the counts listed, and where the records end."""
        window = self._window
        record = _record(window, position, _CHUNK_HEADER_BYTES)
        if record.op != OP_CHUNK:
            raise window.broken(f"a record of kind {record.op} lies where the index names a chunk", position)
        data_at, stored_bytes = record.data_at, record.end - record.data_at
        codec, raw_bytes = record.text(b"compression"), record.number(b"size")
        if record.end > end:
            left = f"the chunk claims {stored_bytes:,} bytes, and {end - data_at:,} are left for it"
            raise window.broken(left, position)
        check_sizes(window.path, position, codec, stored_bytes, raw_bytes)
        if codec == "none" and raw_bytes != stored_bytes:
            raise window.broken(f"the plain chunk claims {raw_bytes:,} bytes and holds {stored_bytes:,}", position)
        number = self._index.chunks.add(StoredChunk(data_at, stored_bytes, raw_bytes, codec))
        return self._add_index_records(number, data_at + stored_bytes, end)

    def _add_index_records(self, chunk: int, at: int, end: int) -> tuple[int, int]:
        window = self._window
        # The header of the next chunk is wanted right after, and lies behind these records.
        ahead = min(end - at + _CHUNK_HEADER_BYTES, _WINDOW_BYTES)
        total = 0
        while at < end:
            window.ahead_bytes = ahead
            record = parse_record(window, at, end, inner=False)
            if record.state != "whole":
                break  # whether anything is missing is seen by the counts
            if record.op != OP_INDEX:
                raise window.broken("a record that is not an index follows a chunk's index", at)
            connection, count = record.number(b"conn"), record.number(b"count")
            entries = window.at(record.data_at, record.length)
            topic = self._topic_of_connection.get(connection)
            if topic is None and count:
                raise window.broken(f"an index record of connection {connection}, which the bag does not list", at)
            if topic is not None and count:
                self._index.add_entries(topic, chunk, entries, count)
            total += _weighted_count(connection, count)
            at = record.end
        return total & _MASK, at


def _times_and_offsets(entries: bytearray, path: Path) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    table = np.frombuffer(entries, "<u4").reshape(-1, 3)
    return table[:, 0].astype(np.int64) * 1_000_000_000 + table[:, 1], table[:, 2]
