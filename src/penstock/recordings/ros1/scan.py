"""Scanning a damaged ROS 1 bag record by record: every message that is whole goes to a new bag."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from penstock.errors import LimitExceeded, RecordingCorrupt
from penstock.recordings.codecs import MAX_CHUNK_BYTES, check_sizes, decode_prefix, decompress_into
from penstock.recordings.messages.schemas import type_name
from penstock.recordings.recovery.record_walk import UNFINISHED, ChunkWalk, PackedChunk
from penstock.recordings.ros1.plausible import (
    Ros1Record,
    begins_like_a_record,
    next_record,
    parse_fields,
    parse_record,
)
from penstock.recordings.ros1.records import (
    MAGIC,
    OP_BAG_HEADER,
    OP_CHUNK,
    OP_CHUNK_INFO,
    OP_CONNECTION,
    OP_INDEX,
    OP_MESSAGE,
    u32_from,
)
from penstock.recordings.ros1.writer import BagWriter

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.recordings.recovery.report import DamageLog
    from penstock.recordings.recovery.scan_bytes import FileBytes, ScanBytes

_DAMAGED = "a chunk that does not decompress"
_NOWHERE = 1 << 63


class Sink(Protocol):
    """Where the messages of a scan go, with what the bag says of their connection."""

    def message(self, source: ScanBytes, record: Ros1Record, topic: bytes, described: bytes, time_ns: int) -> None:
        """A message that is whole."""

    def connection(self, number: int, topic: bytes, described: bytes) -> None:
        """A connection, which may have no message; after all messages."""


@dataclass(frozen=True)
class Survey:
    """What the end of a bag tells, where it can be read: connections, and messages by the chunk's position."""

    connections: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    chunk_messages: dict[int, int] = field(default_factory=dict)
    index_at: int = 0
    chunk_count: int = 0
    compression: Literal["none", "lz4", "bz2"] = "none"
    tail_at: int = _NOWHERE  # behind it lies no message

    @property
    def is_complete(self) -> bool:
        return 0 < self.chunk_count == len(self.chunk_messages)


def recover_bag(source: FileBytes, target: Path, log: DamageLog, *, keep_suspect: bool) -> None:
    """Write every message that can be read to a new bag at `target`."""
    survey = survey_bag(source)
    with BagWriter(target, compression=survey.compression) as bag:
        BagScan(_Copy(bag), log, survey, source.path, keep_suspect=keep_suspect).run(source)


class _Copy:
    """Messages go to a new bag; connections that are described alike become one."""

    def __init__(self, bag: BagWriter) -> None:
        self._bag = bag
        self._written: dict[tuple[bytes, bytes], int] = {}

    def message(self, source: ScanBytes, record: Ros1Record, topic: bytes, described: bytes, time_ns: int) -> None:
        self._bag.write(self._number(topic, described), time_ns, source.at(record.data_at, record.end - record.data_at))

    def connection(self, number: int, topic: bytes, described: bytes) -> None:
        self._number(topic, described)

    def _number(self, topic: bytes, described: bytes) -> int:
        number = self._written.get((topic, described))
        if number is None:
            number = self._written[topic, described] = self._bag.add_connection(topic, described)
        return number


def survey_bag(source: FileBytes) -> Survey:
    """Hop over the records, payloads unread, until one is broken; from the index, where the bag says where it is."""
    connections: dict[int, tuple[bytes, bytes]] = {}
    chunk_messages: dict[int, int] = {}
    index_at, chunk_count, tail_at = 0, 0, _NOWHERE
    compression: Literal["none", "lz4", "bz2"] | None = None
    at = len(MAGIC)
    while at < source.size:
        record = parse_record(source, at, source.size, inner=False)
        if record.op == OP_CHUNK and compression is None:
            said = record.fields[b"compression"]
            compression = "lz4" if said == b"lz4" else "bz2" if said == b"bz2" else "none"
        if record.state != "whole":
            if not at < tail_at < source.size:
                break
            at = tail_at  # what is broken before it is found by the scan
            continue
        at = record.end
        if record.op == OP_BAG_HEADER:
            index_at, chunk_count = record.u64(b"index_pos"), record.u32(b"chunk_count")
            tail = parse_record(source, index_at, source.size, inner=False)
            if index_at and tail.state == "whole" and tail.op in (OP_CONNECTION, OP_CHUNK_INFO):
                tail_at = index_at
        elif record.op == OP_CONNECTION:
            described = source.at(record.data_at, record.end - record.data_at)
            connections.setdefault(record.u32(b"conn"), (record.fields[b"topic"], described))
        elif record.op == OP_CHUNK_INFO:
            counts = source.at(record.data_at, record.end - record.data_at)
            total = sum(u32_from(counts, place)[0] for place in range(4, len(counts), 8))
            chunk_messages[record.u64(b"chunk_pos")] = total
        elif record.op == OP_CHUNK and record.end <= tail_at < source.size:
            at = tail_at
    return Survey(connections, chunk_messages, index_at, chunk_count, compression or "none", tail_at)


def _names(topic: bytes, described: bytes) -> tuple[str, str]:
    """The topic and the type of a connection."""
    kind = (parse_fields(described) or {}).get(b"type", b"")
    return topic.decode("utf-8", errors="replace"), type_name(kind.decode("utf-8", errors="replace"))


def _codec(record: Ros1Record) -> str:
    return record.fields[b"compression"].decode("ascii", errors="replace")


class BagScan(ChunkWalk[Ros1Record]):
    """The walk that decides what a bag holds: what it gives to the sink is there, what its log counts is lost."""

    def __init__(self, sink: Sink, log: DamageLog, survey: Survey, path: Path, *, keep_suspect: bool = False) -> None:
        super().__init__(log, keep_suspect=keep_suspect)
        self._sink = sink
        self._survey = survey
        self._path = path
        self._described = dict(survey.connections)
        self._expected: dict[int, int] = {}
        self._names: dict[tuple[bytes, bytes], tuple[str, str]] = {}
        self._whole_chunks = 0
        self.usual_header_bytes = 0
        self.packed: PackedChunk | None = None  # the one whose messages are walked

    def run(self, source: FileBytes) -> None:
        begin = self.log.mark()
        start = len(MAGIC)
        if (magic := source.at(0, start)) != MAGIC:
            self.log.add(0, min(start, source.size), f"the bag begins with {magic!r} instead of {MAGIC!r}", 0)
        self.walk(source, start, source.size)
        self.close_chunk(source.size)
        self._tell_what_was_cut_off(source.size)
        if self._survey.is_complete:
            expected = max(sum(self._expected.values()), sum(self._survey.chunk_messages.values()))
            self.log.settle(begin, expected, (0, source.size), "messages that the end of the bag counts")
        # Topics without messages are kept as well.
        for number, (topic, described) in self._described.items():
            self._sink.connection(number, topic, described)

    def _tell_what_was_cut_off(self, size: int) -> None:
        if self._survey.index_at == 0:
            self.log.add_end(size, UNFINISHED)
        elif self._survey.index_at > size:
            known = 0 if self._whole_chunks == self._survey.chunk_count else None
            self.log.add(size, self._survey.index_at, "the file was cut here: its index began further on", known)

    # What RecordWalk asks for

    def parse(self, source: ScanBytes, at: int, end: int, inner: bool) -> Ros1Record:
        return parse_record(source, at, end, inner)

    def search(self, source: ScanBytes, at: int, end: int, inner: bool) -> int | None:
        outer_only = not inner and self._survey.compression != "none"
        return next_record(source, at, end, inner, outer_only=outer_only)

    def begins_like_a_record(self, source: ScanBytes, at: int, following: int | None) -> bool:
        return begins_like_a_record(source, at, following, self.usual_header_bytes)

    def carries_payload(self, record: Ros1Record) -> bool:
        return record.op in (OP_MESSAGE, OP_CONNECTION)

    def holds_messages(self, begin: int) -> bool:
        return begin < self._survey.tail_at

    def take(self, source: ScanBytes, record: Ros1Record, end: int, inner: bool) -> int:
        if record.op == OP_MESSAGE:
            self._take_message(source, record)
        elif record.op == OP_CONNECTION:
            self._take_connection(source, record)
        elif record.op == OP_INDEX and self.chunk is not None:
            number = record.u32(b"conn")
            self.chunk.list(number, record.u32(b"count"), is_known=number in self._described)
            if self.chunk.index_at == record.at:
                self.chunk.index_at = record.end
        elif record.op == OP_CHUNK:
            return self._take_chunk(source, record, end)
        return record.end

    def take_cut(self, source: ScanBytes, record: Ros1Record, stop: int, end: int) -> int | None:
        if record.op != OP_CHUNK:
            return None
        self.begin_chunk(record, None)
        if record.fields[b"compression"] == b"none":
            return record.data_at
        return self._take_packed(source, record, max(stop, record.data_at), is_cut=stop == end)

    # Chunks

    def close_chunk(self, at: int) -> None:
        """Compare what a chunk gave with what its index records list, where those are all there."""
        chunk, self.chunk = self.chunk, None
        if chunk is None:
            return
        listed = chunk.expected if chunk.index_at == at and chunk.expected else None
        told = self._survey.chunk_messages.get(chunk.at)
        if listed is not None or told is not None:
            # Either number may itself be broken: the larger one hides no loss.
            expected = self._expected[chunk.at] = max(listed or 0, told or 0)
            if chunk.given is not None:
                where, cause = (chunk.at, chunk.end), "messages that the chunk's index lists"
                self.log.settle(chunk.mark, expected, where, cause, chunk.given)
        if chunk.index_at == at:
            self.count_misplaced(chunk)

    def _take_chunk(self, source: ScanBytes, record: Ros1Record, end: int) -> int:
        is_plain = record.fields[b"compression"] == b"none"
        believed = self.follows(source, record.end, end, inner=False) or (
            self.is_filled(source, record.data_at, record.end) if is_plain else self._unpacks(source, record)
        )
        self.begin_chunk(record, record.end if believed else None)
        if is_plain:
            if not believed:
                return record.data_at  # its length is broken, not its records: they are walked one by one
            self._whole_chunks += 1
            self.walk_chunk(source, record.data_at, record.end)
            return record.end
        if believed:
            return self._take_packed(source, record, record.end, is_cut=False)
        following = self.resync(source, record.data_at, end, inner=False)
        # A recorder that was killed leaves the sizes of its last chunk at 0: the stream goes on to the end.
        return self._take_packed(source, record, end if following is None else following, is_cut=following is None)

    def _take_packed(self, source: ScanBytes, record: Ros1Record, stop: int, *, is_cut: bool) -> int:
        self.begin_packed(record, stop)
        codec = _codec(record)
        self.packed = PackedChunk(record.data_at, stop - record.data_at, record.u32(b"size"), codec)
        data, why = self._unpacked(source, record, codec, stop)
        if data is None:
            if is_cut or self.keep_suspect:
                data = decode_prefix(codec, source, record.data_at, stop, record.u32(b"size") or MAX_CHUNK_BYTES)
            if is_cut:
                why = f"the file ends inside a chunk; {len(data or b''):,} bytes of it could be decompressed"
        else:
            self._whole_chunks += 1
        self.walk_packed(data, why, is_cut=is_cut)
        return stop

    def _unpacks(self, source: ScanBytes, record: Ros1Record) -> bool:
        """True when a chunk is whole though no record follows it."""
        has_sizes = record.end > record.data_at and record.u32(b"size") > 0
        return has_sizes and self._unpacked(source, record, _codec(record), record.end)[0] is not None

    def _unpacked(self, source: ScanBytes, record: Ros1Record, codec: str, stop: int) -> tuple[bytearray | None, str]:
        size, stored_bytes = record.u32(b"size"), stop - record.data_at
        try:
            check_sizes(self._path, record.at, codec, stored_bytes, size)
            target = bytearray(size)
            stored = memoryview(source.at(record.data_at, stored_bytes))
            decompress_into(codec, stored, memoryview(target), self._path, record.at)
        except (RecordingCorrupt, LimitExceeded) as error:
            return None, f"{_DAMAGED}: {error.message.removeprefix(f'{self._path}: ')}"
        return target, ""

    # Connections and messages

    def _take_connection(self, source: ScanBytes, record: Ros1Record) -> None:
        described = source.at(record.data_at, record.end - record.data_at)
        fields = parse_fields(described)
        if fields is None or b"type" not in fields:
            self.log.add(*self.place(source, record.at, record.end), "a connection record that is broken", 0)
            return
        self._described[record.u32(b"conn")] = (record.fields[b"topic"], described)

    def _take_message(self, source: ScanBytes, record: Ros1Record) -> None:
        connection = record.u32(b"conn")
        described = self._described.get(connection)
        self.usual_header_bytes = record.data_at - record.at - 8
        if described is None:
            why = f"messages of connection {connection}, whose record is lost"
            self.log.add(*self.place(source, record.at, record.end), why, 1)
            return
        if self.chunk is not None:
            self.chunk.held[connection] += 1
        seconds, ns = u32_from(record.fields[b"time"])[0], u32_from(record.fields[b"time"], 4)[0]
        self._sink.message(source, record, *described, seconds * 1_000_000_000 + ns)
        names = self._names.get(described)
        if names is None:
            names = self._names[described] = _names(*described)
        self.log.took(*names)
        self.log.suspect += self.suspect
