"""ROS 1 bags: the index at the end of the file and behind every chunk, never the messages."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar

from penstock.errors import LimitExceeded, NotARecording, RecordingCorrupt, RecordingError
from penstock.recordings.chunk_fetch import ChannelTopics
from penstock.recordings.chunked import ChunkedRecording
from penstock.recordings.file_window import recover_hint
from penstock.recordings.message_index import ChunksBuilder, IndexBuilder
from penstock.recordings.messages.schemas import Schema, TopicTable, type_name
from penstock.recordings.recovery.report import DamageLog, no_record_note
from penstock.recordings.recovery.scan_bytes import FileBytes
from penstock.recordings.ros1.index import ChunkInfos, Ros1Indexer
from penstock.recordings.ros1.parsing import Ros1Framing, header_fields
from penstock.recordings.ros1.records import (
    MAGIC,
    MAX_CONNECTION_BYTES,
    OP_BAG_HEADER,
    OP_CHUNK_INFO,
    OP_CONNECTION,
    Fields,
    read_header,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.recordings.file_window import Window
    from penstock.recordings.recording import OnCorrupt
    from penstock.recordings.recovery.scan_bytes import ScanBytes
    from penstock.recordings.split import Source

_WINDOW_BYTES = 1 << 20


class Ros1Recording(ChunkedRecording):
    """A ROS 1 bag, format 2.0."""

    kind: ClassVar[str] = "ros1"
    _framing: Ros1Framing

    def __init__(self, source: Source, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, on_corrupt=on_corrupt, notes=source.notes)
        window = self._open_file(source.path)
        try:
            self._open(window)
        except BaseException:
            self.close()
            raise

    def _open(self, window: Window) -> None:
        self.size_bytes = window.size_bytes
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
        self._read_index(window, connections, infos, index_at)
        self._framing = Ros1Framing(ChannelTopics(self._pairs))

    def _read_index(
        self, window: Window, connections: dict[int, tuple[str, Schema]], infos: ChunkInfos, index_at: int
    ) -> None:
        """The index as the bag has it; where it does not hold, as a scan of the whole bag finds it."""
        topics = TopicTable()
        topic_of = {number: topics.number(name, "ros1", schema) for number, (name, schema) in connections.items()}
        indexer = Ros1Indexer(window, topic_of)
        try:
            indexer.run(infos, index_at)
            self.notes += indexer.notes
            self._set_index(topics, indexer.index, indexer.chunks, set(topic_of.items()))
        except (RecordingCorrupt, LimitExceeded) as error:
            from penstock.recordings.ros1.scan import index_bag

            topics, chunks, index, log = TopicTable(), ChunksBuilder(), IndexBuilder(), DamageLog(file=self.path.name)
            with FileBytes(self.path, source=self._files[0]) as source:
                pairs = index_bag(source, log, chunks, index, lambda name, more: _topic(topics, name, more or b""))
            if log.lost and self._on_corrupt == "raise":
                raise
            self.notes.append(f"its index does not hold ({error.message}); the bag was scanned")
            log.tell(self._add_loss, self.notes)
            self._set_index(topics, index, chunks, pairs)

    def _messages_in(self, source: ScanBytes, begin: int, end: int) -> Mapping[int, Sequence[tuple[int, int, int]]]:
        from penstock.recordings.ros1.scan import messages_in_chunk

        return messages_in_chunk(source, begin, end, self.path, self._pairs, self._framing.usual_header_bytes)


def _topic(topics: TopicTable, name: bytes, described: bytes) -> int:
    """The number of a topic that a scan found."""
    fields = header_fields(described) or {}
    kind, text = (fields.get(key, b"").decode("utf-8", "replace") for key in (b"type", b"message_definition"))
    return topics.number(name.decode("utf-8", "replace"), "ros1", Schema(type_name(kind), "ros1msg", text))


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
