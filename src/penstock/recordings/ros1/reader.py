"""ROS 1 bags: the index at the end of the file and behind every chunk, never the messages."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from penstock.errors import LimitExceeded, NotARecording, RecordingCorrupt, RecordingError
from penstock.recordings.chunk_fetch import ChunkFetcher
from penstock.recordings.file_window import Window, recover_hint
from penstock.recordings.message_index import largest_reads, relocate, time_range_ns
from penstock.recordings.messages.schemas import SameDefinitions, Schema, SchemaStore, topic_order, type_name
from penstock.recordings.recording import (
    DEFAULT_FETCH_BYTES,
    LargestReads,
    OnCorrupt,
    Recording,
    Topic,
    as_readonly,
    span_of,
)
from penstock.recordings.recovery.report import DamageLog, no_record_note
from penstock.recordings.recovery.scan_bytes import FileBytes
from penstock.recordings.ros1.framing import Ros1Framing
from penstock.recordings.ros1.index import ChunkInfos, Ros1Indexer
from penstock.recordings.ros1.records import (
    MAGIC,
    MAX_CONNECTION_BYTES,
    OP_BAG_HEADER,
    OP_CHUNK_INFO,
    OP_CONNECTION,
    Fields,
    read_header,
)
from penstock.recordings.unpack import open_content

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from penstock.recordings.fetch import Block
    from penstock.recordings.recovery.scan_bytes import ScanBytes
    from penstock.recordings.split import Source

_WINDOW_BYTES = 1 << 20


class Ros1Recording(Recording):
    """A ROS 1 bag, format 2.0."""

    kind: ClassVar[str] = "ros1"

    def __init__(self, source: Source, *, on_corrupt: OnCorrupt = "raise") -> None:
        path = source.path
        super().__init__(path, schemas=SchemaStore(), on_corrupt=on_corrupt)
        self.notes += source.notes
        self._fetcher: ChunkFetcher | None = None
        try:
            self._file = open_content(path)
        except OSError as error:
            raise RecordingError(f"{path}: cannot be opened: {error.strerror}") from error
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self.size_bytes = self._file.size_bytes
        window = Window(self._file)
        index_at, connection_count, chunk_count = _read_bag_header(window)
        connections, infos, end = _read_tail(window, index_at)
        if len(connections) != connection_count or len(infos) != chunk_count:
            found = f"{len(connections)} connections and {len(infos)} chunks"
            claimed = f"{connection_count} and {chunk_count}"
            if len(connections) < connection_count or len(infos) < chunk_count:
                raise window.broken(f"the index ends with {found}; the bag claims {claimed}", end)
            self.notes.append(f"the index lists {found}; the bag header claims {claimed}")
        if end < self.size_bytes:
            self.notes.append(no_record_note(self.size_bytes - end, end))
        schemas = self._read_index(window, connections, infos, index_at)
        self.start_ns, self.end_ns = time_range_ns(self._index)
        self.compression = span_of(self._chunks.codecs())
        counts = [index.times_ns.size for index in self._index]
        self._set_topics([(name, "ros1", schema, n) for (name, schema), n in zip(schemas, counts, strict=True)])

    def _read_index(
        self, window: Window, connections: dict[int, tuple[str, Schema]], infos: ChunkInfos, index_at: int
    ) -> list[tuple[str, Schema]]:
        """The index as the bag has it; where it does not hold, as a scan of the whole bag finds it."""
        topic_of_connection, schemas = self._number_topics(connections)
        indexer = Ros1Indexer(window, topic_of_connection)
        try:
            indexer.run(infos, index_at)
            index, chunks = indexer.index, indexer.chunks
            self.notes += indexer.notes
        except (RecordingCorrupt, LimitExceeded) as error:
            from penstock.recordings.ros1.rescan import ScannedBag

            with FileBytes(self.path, source=self._file) as source:
                scanned = ScannedBag(source, DamageLog(file=self.path.name))
            if scanned.log.lost and self._on_corrupt == "raise":
                raise
            self.notes.append(f"its index does not hold ({error.message}); the bag was scanned")
            scanned.log.tell(self._add_loss, self.notes)
            topic_of_connection, schemas = self._number_topics(scanned.connections)
            index, chunks = scanned.index(topic_of_connection), scanned.chunks
        self._index = index.finish(len(schemas))
        self._chunks = chunks.finish()
        self._topic_of_connection = topic_of_connection
        self._framing = Ros1Framing(topic_of_connection, self.path)
        return schemas

    def _relocate(self, number: int, source: ScanBytes, begin: int, end: int) -> None:
        from penstock.recordings.ros1.rescan import ChunkMessages

        messages = ChunkMessages(self._topic_of_connection, self.path, self._framing.usual_header_bytes)
        messages.walk(source, begin, end)
        relocate(self._index, number, messages.found)

    @staticmethod
    def _number_topics(
        connections: dict[int, tuple[str, Schema]],
    ) -> tuple[dict[int, int], list[tuple[str, Schema]]]:
        """Connections of one name, type and definition (several publishers) are one topic; sorted by name."""
        same = SameDefinitions()
        joined = {number: (name, same.first(name, schema)) for number, (name, schema) in connections.items()}
        keys = sorted(set(joined.values()), key=topic_order)
        numbers = {key: number for number, key in enumerate(keys)}
        return {connection: numbers[key] for connection, key in joined.items()}, keys

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
                relocate=self._relocate,
            )
        return self._fetcher.blocks(topic_ids, numbers)


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


def _read_tail(window: Window, at: int) -> tuple[dict[int, tuple[str, Schema]], ChunkInfos, int]:
    """The connections and the chunk list at the end of the file, and where what is no record begins."""
    connections: dict[int, tuple[str, Schema]] = {}
    infos = ChunkInfos()
    while at < window.size_bytes:
        try:
            at = _read_tail_record(window, at, connections, infos)
        except RecordingCorrupt:
            break  # whether anything is missing is seen by the numbers that the bag header claims
    return connections, infos, at


def _read_tail_record(window: Window, at: int, connections: dict[int, tuple[str, Schema]], infos: ChunkInfos) -> int:
    """Take one record of the index; where it ends."""
    fields, data_at, data_bytes = read_header(window, at, _WINDOW_BYTES)
    if data_bytes > min(MAX_CONNECTION_BYTES, window.size_bytes - data_at):
        raise window.broken(f"an index record claims {data_bytes:,} bytes of data", at)
    data = window.at(data_at, data_bytes, _WINDOW_BYTES)
    op = fields.op
    if op == OP_CONNECTION:
        described = Fields(data, window.path, data_at)
        text = described.text(b"message_definition", default="")
        schema = Schema(type_name(described.text(b"type")), "ros1msg", text)
        connections[fields.u32(b"conn")] = (fields.text(b"topic"), schema)
    elif op == OP_CHUNK_INFO:
        if (version := fields.u32(b"ver")) != 1:
            raise fields.broken(f"chunk info of version {version}; version 1 is known")
        if data_bytes % 8 or data_bytes != 8 * fields.u32(b"count"):
            raise fields.broken(f"chunk info of {fields.u32(b'count')} connections has {data_bytes} bytes")
        infos.add(fields.u64(b"chunk_pos"), struct.iter_unpack("<II", data))
    return data_at + data_bytes
