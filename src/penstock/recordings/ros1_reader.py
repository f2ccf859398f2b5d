"""ROS 1 bags: the index at the end of the file and behind every chunk, never the messages."""

from __future__ import annotations

import os
import struct
from array import array
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from penstock.errors import LimitExceeded, NotARecording, RecordingCorrupt, RecordingError
from penstock.recordings.chunk_fetch import ChunkFetcher, File
from penstock.recordings.codecs import CODECS, check_sizes
from penstock.recordings.file_window import Window, recover_hint
from penstock.recordings.message_index import ChunksBuilder, IndexBuilder, in_file_order, largest_reads, time_range_ns
from penstock.recordings.recording import (
    DEFAULT_FETCH_BYTES,
    LargestReads,
    OnCorrupt,
    Recording,
    Topic,
    as_readonly,
    span_of,
)
from penstock.recordings.ros1_framing import Ros1Framing
from penstock.recordings.ros1_records import (
    MAGIC,
    MAX_CONNECTION_BYTES,
    OP_BAG_HEADER,
    OP_CHUNK,
    OP_CHUNK_INFO,
    OP_CONNECTION,
    OP_INDEX,
    Fields,
    read_header,
    u32_from,
)
from penstock.recordings.schemas import Schema, SchemaStore, topic_order, type_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.recordings.fetch import Block
    from penstock.recordings.message_index import LoseEntries

_WINDOW_BYTES = 1 << 20
_CHUNK_HEADER_BYTES = 256
_USUAL_INDEX_BYTES = 256
# Index entries are sorted and measured in batches of about so many, so that a long bag needs no large temporaries.
_BATCH_MESSAGES = 1 << 14


class _ChunkInfos:
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


class Ros1Recording(Recording):
    """A ROS 1 bag, format 2.0."""

    kind: ClassVar[Literal["ros1", "db3", "mcap"]] = "ros1"

    def __init__(self, path: Path, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(path, schemas=SchemaStore(), on_corrupt=on_corrupt)
        self._fetcher: ChunkFetcher | None = None
        try:
            self._file = File(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            raise RecordingError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.size_bytes = os.fstat(self._file.fd).st_size
        window = Window(self._file.fd, self.path, self.size_bytes)
        index_at, connection_count, chunk_count = _read_bag_header(window)
        connections, infos = _read_tail(window, index_at)
        if len(connections) != connection_count or len(infos) != chunk_count:
            found = f"{len(connections)} connections and {len(infos)} chunks"
            claimed = f"{connection_count} and {chunk_count}"
            if len(connections) < connection_count or len(infos) < chunk_count:
                raise window.broken(f"the index ends with {found}; the bag claims {claimed}", self.size_bytes)
            self.notes.append(f"the index lists {found}; the bag header claims {claimed}")
        topic_of_connection, schemas = self._number_topics(connections)
        lose = self._add_loss if self._on_corrupt == "count" else None
        builder = _Ros1Index(window, topic_of_connection, lose)
        self._index_chunks(builder, infos, index_at)
        self._index = builder.index.finish(len(schemas))
        self._chunks = builder.chunks.finish()
        self._framing = Ros1Framing(topic_of_connection, self.path)
        self.start_ns, self.end_ns = time_range_ns(self._index)
        self.compression = span_of(self._chunks.codecs())
        counts = [index.times_ns.size for index in self._index]
        self._set_topics([(name, "ros1", schema, n) for (name, schema), n in zip(schemas, counts, strict=True)])

    @staticmethod
    def _number_topics(
        connections: dict[int, tuple[str, Schema]],
    ) -> tuple[dict[int, int], list[tuple[str, Schema]]]:
        """Connections of one name, type and definition (several publishers) are one topic; sorted by name."""
        keys = sorted(set(connections.values()), key=topic_order)
        numbers = {key: number for number, key in enumerate(keys)}
        return {connection: numbers[key] for connection, key in connections.items()}, keys

    def _index_chunks(self, builder: _Ros1Index, infos: _ChunkInfos, index_at: int) -> None:
        for position, messages, end in infos.in_file_order(index_at):
            try:
                found = builder.add_chunk(position, end)
            except (RecordingCorrupt, LimitExceeded) as error:
                if self._on_corrupt == "raise":
                    raise
                self._add_loss(error.message, messages, f"chunk at byte {position:,}")
                continue
            if found != messages:
                where = f"chunk at byte {position:,}"
                self.notes.append(f"{where}: its index lists {found} messages, the end of the bag {messages}")
        builder.flush()
        for connection, count in sorted(builder.unknown.items()):
            self._add_loss(f"connection {connection} has no connection record", count, "index")

    @property
    def index_bytes(self) -> int:
        return sum(index.nbytes for index in self._index) + self._chunks.nbytes

    def largest_reads(self, topics: Sequence[Topic]) -> LargestReads:
        return largest_reads([self._index[topic.id] for topic in topics], self._chunks)

    def close(self) -> None:
        self._fetcher = None  # it refers back to this recording: its buffers would wait for the garbage collector
        self._file.close()

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
        if self._fetcher is None or self._fetcher.limits != (memory_bytes, clip_bytes):
            self._fetcher = ChunkFetcher(
                [self._file],
                self._chunks,
                self._index,
                self._framing,
                memory_bytes=memory_bytes,
                clip_bytes=clip_bytes,
                lose=self._lose if self._on_corrupt == "count" else None,
            )
        return self._fetcher.blocks(topic_ids, numbers)


class _Ros1Index:
    """Collects the index records behind the chunks and turns them into the message index, batch by batch."""

    def __init__(self, window: Window, topic_of_connection: dict[int, int], lose: LoseEntries | None) -> None:
        self._window = window
        self._lose = lose
        self._topic_of_connection = topic_of_connection
        self.index = IndexBuilder()
        self.chunks = ChunksBuilder()
        self.unknown: dict[int, int] = {}
        self._entries = bytearray()
        self._topics, self._chunk_numbers, self._counts = array("i"), array("i"), array("q")
        self._usual: tuple[int, int, int, int] | None = None

    def add_chunk(self, position: int, end: int) -> int:
        """One chunk and its index records, which lie before `end`; the number of messages listed."""
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
        if self._entries and len(self._entries) >= 12 * _BATCH_MESSAGES:
            self.flush()
        number = self.chunks.add(
            position=data_at, stored_bytes=stored_bytes, raw_bytes=raw_bytes, codec=CODECS.index(codec)
        )
        return self._add_index_records(number, data_at + stored_bytes, end)

    def _add_index_records(self, chunk: int, at: int, end: int) -> int:
        window = self._window
        # The header of the next chunk is wanted right after, and lies behind these records.
        ahead = min(end - at + _CHUNK_HEADER_BYTES, _WINDOW_BYTES)
        total = 0
        while at + 8 <= end:
            connection, count, data_at = self._index_record(at, ahead)
            if count < 0:
                break
            if data_at + 12 * count > end:
                raise window.broken(f"an index record claims {count:,} messages, beyond the next chunk", at)
            entries = window.at(data_at, 12 * count, ahead)
            topic = self._topic_of_connection.get(connection)
            if topic is None:
                self.unknown[connection] = self.unknown.get(connection, 0) + count
            elif count:
                self._entries += entries
                self._topics.append(topic)
                self._chunk_numbers.append(chunk)
                self._counts.append(count)
            total += count
            at = data_at + 12 * count
        return total

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

    def flush(self) -> None:
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


def _read_bag_header(window: Window) -> tuple[int, int, int]:
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
    fields, data_at, data_bytes = read_header(window, len(MAGIC), 4096)
    if fields.op != OP_BAG_HEADER:
        raise fields.broken(f"a record of kind {fields.op} lies where the bag header must be")
    if b"encryptor" in fields and fields.raw(b"encryptor"):
        raise RecordingError(f"{path}: encrypted by {fields.text(b'encryptor')!r}", hint="decrypt it with ROS 1 first")
    index_at = fields.u64(b"index_pos")
    if index_at == 0:
        raise RecordingCorrupt(
            "the bag has no index: its recorder was stopped before it could write one (a .bag.active file)",
            path=str(path),
            offset=len(MAGIC),
            hint=recover_hint(path),
        )
    if index_at > size or index_at < data_at + data_bytes:
        raise window.broken(f"the index should begin at byte {index_at:,}; the file has {size:,}: it was cut", size)
    return index_at, fields.u32(b"conn_count"), fields.u32(b"chunk_count")


def _read_tail(window: Window, at: int) -> tuple[dict[int, tuple[str, Schema]], _ChunkInfos]:
    """The connections and the chunk list at the end of the file."""
    connections: dict[int, tuple[str, Schema]] = {}
    infos = _ChunkInfos()
    while at < window.size_bytes:
        fields, data_at, data_bytes = read_header(window, at, _WINDOW_BYTES)
        if data_bytes > min(MAX_CONNECTION_BYTES, window.size_bytes - data_at):
            raise window.broken(f"an index record claims {data_bytes:,} bytes of data", at)
        data = window.at(data_at, data_bytes, _WINDOW_BYTES)
        op = fields.op
        if op == OP_CONNECTION:
            described = Fields(data, window.path, data_at)
            schema = Schema(
                type_name(described.text(b"type")), "ros1msg", described.text(b"message_definition", default="")
            )
            connections[fields.u32(b"conn")] = (fields.text(b"topic"), schema)
        elif op == OP_CHUNK_INFO:
            if (version := fields.u32(b"ver")) != 1:
                raise fields.broken(f"chunk info of version {version}; version 1 is known")
            if data_bytes % 8 or data_bytes != 8 * fields.u32(b"count"):
                raise fields.broken(f"chunk info of {fields.u32(b'count')} connections has {data_bytes} bytes")
            messages = sum(struct.unpack(f"<{data_bytes // 4}I", data)[1::2])
            infos.add(fields.u64(b"chunk_pos"), messages)
        at = data_at + data_bytes
    return connections, infos
