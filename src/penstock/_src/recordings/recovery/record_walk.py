"""Walking records through damage: the next plausible record is looked for, and what lies between is counted as lost."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from penstock._src.recordings.codecs import (
    CODECS,
    MAX_CHUNK_BYTES,
    StoredChunk,
    check_sizes,
    decode_prefix,
    decompress_into,
)
from penstock._src.recordings.recovery.scan_bytes import ChunkBytes, ScanBytes, ScannedRecord, is_padding, pieces
from penstock.errors import LimitExceeded, RecordingError

if TYPE_CHECKING:
    from penstock._src.recordings.recovery.report import DamageLog


@dataclass
class ChunkCounts:
    """The chunk that was met last: what its index says that it held."""

    at: int
    end: int
    mark: tuple[int, int, int, int, int]
    index_at: int | None
    expected: int | None = None
    given: int | None = None  # messages that came from it; None where its end is unknown
    listed: Counter[int] = field(default_factory=Counter)  # by connection or channel, as its index lists them
    held: Counter[int] = field(default_factory=Counter)  # and as they came
    index_is_odd: bool = False  # its index lists one connection twice, or one that is not known

    def list(self, number: int, count: int, *, is_known: bool) -> None:
        """An index record of one connection."""
        self.index_is_odd = self.index_is_odd or number in self.listed or not is_known
        self.expected = (self.expected or 0) + count
        self.listed[number] += count


class ScanSink(Protocol):
    """Where the messages of a scan go."""

    def channel(self, number: int, described: bytes, more: bytes | None) -> int:
        """A channel (or connection), which may have no message; the number that its messages come with."""

    def message(
        self, source: ScanBytes, record: ScannedRecord, number: int, time_ns: int, packed: StoredChunk | None
    ) -> None:
        """A message that is whole; `packed`: the chunk that the source was unpacked from."""


class ChunkWalk(ABC):
    """The walk that bags and mcap files share; a container says what a record is and what becomes of it.

    A record is believed when a record (or the end) follows it. Where it is not so, either its length or what follows
    is broken: whoever begins next decides. What each chunk gave is compared with its index. What the walk gives to the
    sink is there, and what its log counts is lost. `counted`: messages by the position of their chunk, where the end of
    the file tells them.
    """

    chunk_op: ClassVar[int]

    def __init__(
        self,
        sink: ScanSink,
        log: DamageLog,
        path: Path,
        *,
        channels: dict[int, Any],
        counted: Mapping[int, int] | None = None,
        has_checksums: bool = False,
        keep_suspect: bool = False,
    ) -> None:
        self.log = log
        self.unproven = False  # True behind a broken part, until something begins that proves itself
        self.channels = channels  # what the file says of each, as it lies there
        self.numbers: dict[int, tuple[int, str, str]] = {}  # number in the sink, topic and type by channel
        self.expected: dict[int, int] = {}  # messages by the position of their chunk
        self.whole_chunks = 0
        self.chunk: ChunkCounts | None = None
        self.suspect = False  # True while a chunk that proved to be damaged is walked
        self.has_checksums = has_checksums
        self._sink = sink
        self._path = path
        self._counted = counted or {}
        self._keep_suspect = keep_suspect
        self._cut_cause = ""  # the cause reported instead, while the rest of a packed chunk is walked
        self._packed: StoredChunk | None = None  # the one whose messages are walked
        self._packed_place = (0, 0)
        self._remembered: tuple[ScanBytes, int, int, bool, ScannedRecord] | None = None
        self._searched: tuple[ScanBytes, int, bool, int, int, int | None] | None = None

    @abstractmethod
    def parse(self, source: ScanBytes, at: int, end: int, inner: bool) -> ScannedRecord:
        """What lies at `at`; `inner`: inside a chunk, where fewer kinds may be."""

    @abstractmethod
    def search(self, source: ScanBytes, at: int, end: int, inner: bool) -> int | None:
        """Where the next record that can be believed begins, from `at` on."""

    @abstractmethod
    def take(self, source: ScanBytes, record: ScannedRecord, end: int, inner: bool) -> int:
        """Use a whole record; where to go on."""

    @abstractmethod
    def begins_like_a_record(self, source: ScanBytes, at: int, following: int | None) -> bool:
        """True when a record was meant to begin here, though it is broken."""

    @abstractmethod
    def carries_payload(self, record: ScannedRecord) -> bool:
        """True for records whose wrong length would give a wrong message."""

    @abstractmethod
    def holds_messages(self, begin: int) -> bool:
        """False for parts of the file where no message can be, so that their loss is none."""

    @abstractmethod
    def chunk_head(self, source: ScanBytes, record: ScannedRecord, end: int) -> StoredChunk | None:
        """The head of a chunk; None where the source ends inside it."""

    @abstractmethod
    def describe(self, channel: int) -> tuple[str, str, bytes, bytes | None]:
        """Topic and type of a channel, and its two descriptions as they lie in the file."""

    def place(self, source: ScanBytes, begin: int, end: int) -> tuple[int, int]:
        """The bytes of the file that a range of a source stands for."""
        return self._packed_place if isinstance(source, ChunkBytes) else (begin, end)

    def walk(self, source: ScanBytes, at: int, end: int, *, inner: bool = False) -> None:
        """Take all records in a range; what cannot be read is in the log."""
        while at < end:
            record = self._record_at(source, at, end, inner)
            if record.state == "bad":
                at = self._skip(source, at, self.resync(source, at + 1, end, inner), end, record.why)
            elif record.state == "cut":
                at = self._cut(source, record, end, inner)
            elif self.carries_payload(record):
                at = self._accept_or_skip(source, record, end, inner)
            else:
                at = self.take(source, record, end, inner)

    def resync(self, source: ScanBytes, at: int, end: int, inner: bool) -> int | None:
        """`search`, which is asked once for a stretch however often it is met: hostile files stay linear."""
        known, knowledge = self._searched, len(self.channels)
        if known is not None and known[0] is source and known[1:3] == (end, inner) and known[4] == knowledge:
            begin, record = known[3], known[5]
            if begin <= at <= (end if record is None else record):
                return record
        record = self.search(source, at, end, inner)
        self._searched = (source, end, inner, at, knowledge, record)
        return record

    def _record_at(self, source: ScanBytes, at: int, end: int, inner: bool) -> ScannedRecord:
        known = self._remembered
        if known is not None and known[0] is source and known[1:4] == (at, end, inner):
            return known[4]
        record = self.parse(source, at, end, inner)
        self._remembered = (source, at, end, inner, record)
        return record

    def follows(self, source: ScanBytes, at: int, end: int, inner: bool) -> bool:
        """True when a record, the beginning of a cut one, or the end lies at `at`."""
        return at == end or (at < end and self._record_at(source, at, end, inner).state != "bad")

    def _skip(self, source: ScanBytes, at: int, following: int | None, end: int, why: str) -> int:
        until = end if following is None else following
        begin, stop = self.place(source, at, until)
        self.unproven = True
        self.log.add(begin, stop, why, None if self.holds_messages(begin) else 0)
        return until

    def _cut(self, source: ScanBytes, record: ScannedRecord, end: int, inner: bool) -> int:
        following = self.resync(source, record.at + 1, end, inner)
        stop = end if following is None else following
        resumed = None if inner else self._take_cut(source, record, stop, end)
        if resumed is not None:
            return resumed
        why = self._cut_cause or record.why if following is None else f"a record whose length is broken ({record.why})"
        return self._skip(source, record.at, following, end, why)

    def _accept_or_skip(self, source: ScanBytes, record: ScannedRecord, end: int, inner: bool) -> int:
        if not self.follows(source, record.end, end, inner):
            following = self.resync(source, record.data_at, end, inner)
            swallows = following is not None and following < record.end
            if swallows or not (
                is_padding(source, record.end, end if following is None else following)
                or self.begins_like_a_record(source, record.end, following)
            ):
                return self._skip(source, record.at, following, end, "a message whose length is broken")
        return self.take(source, record, end, inner)

    def number(self, channel: int) -> tuple[int, str, str]:
        """The number that the sink gave to a channel, the name of its topic, and its type."""
        known = self.numbers.get(channel)
        if known is None:
            name, kind, described, more = self.describe(channel)
            known = self.numbers[channel] = (self._sink.channel(channel, described, more), name, kind)
        return known

    def take_message(
        self,
        source: ScanBytes,
        record: ScannedRecord,
        channel: int,
        time_ns: int,
        *,
        suspect: bool,
        what: str = "channel",
    ) -> None:
        if channel not in self.channels:
            why = f"messages of {what} {channel}, whose record is lost"
            self.log.add(*self.place(source, record.at, record.end), why, 1)
            return
        if self.chunk is not None:
            self.chunk.held[channel] += 1
        number, name, kind = self.number(channel)
        packed = self._packed if isinstance(source, ChunkBytes) else None
        self._sink.message(source, record, number, time_ns, packed)
        self.log.count_taken(name, kind)
        self.log.suspect += suspect

    def take_index(self, record: ScannedRecord, channel: int, count: int) -> None:
        """An index record of one channel, behind its chunk."""
        if self.chunk is not None:
            self.chunk.list(channel, count, is_known=channel in self.channels)
            if self.chunk.index_at == record.at:
                self.chunk.index_at = record.end

    def _take_cut(self, source: ScanBytes, record: ScannedRecord, stop: int, end: int) -> int | None:
        """Save what a record gives whose end is missing, up to `stop`; where to go on, None when it gives nothing."""
        head = self.chunk_head(source, record, end) if record.op == self.chunk_op else None
        if head is None:
            return None
        self._begin_chunk(record, None)
        if head.codec == "none":
            return head.data_at  # its records are walked one by one, as far as they go
        return self._take_packed(source, record, head, max(stop, head.data_at), is_cut=stop == end)

    def take_chunk(self, source: ScanBytes, record: ScannedRecord, end: int) -> int:
        head = self.chunk_head(source, record, end)
        if head is None:
            self.log.add(record.at, record.end, "a chunk whose head is broken")
            return record.end
        believed = self.follows(source, record.end, end, inner=False) or (
            self._is_filled(source, head.data_at, record.end)
            if head.codec == "none"
            else head.raw_bytes > 0 and self._unpacked(source, record, head, record.end)[0] is not None
        )
        self._begin_chunk(record, record.end if believed else None)
        self.unproven = not believed
        self.has_checksums = self.has_checksums or head.crc != 0
        if head.codec != "none":
            # A recorder that was killed leaves the sizes of its last chunk at 0: the stream goes on to the end.
            following = record.end if believed else self.resync(source, head.data_at, end, inner=False)
            stop = end if following is None else following
            return self._take_packed(source, record, head, stop, is_cut=following is None)
        if not believed:
            return head.data_at  # its length is broken, not its records: they are walked one by one
        if head.crc and crc_of(source, head.data_at, record.end) != head.crc:
            if not self._keep_suspect:
                self.log.add(record.at, record.end, "a chunk that fails its CRC")
                if self.chunk is not None:
                    self.chunk.given = 0
                return record.end
            self.suspect = True
        self.whole_chunks += 1
        self._walk_chunk(source, head.data_at, record.end)
        self.suspect = False
        return record.end

    def close_chunk(self, at: int) -> None:
        """Compare what the last chunk gave with what its index lists, where that is all there; it ends at `at`."""
        chunk, self.chunk = self.chunk, None
        if chunk is None:
            return
        listed = chunk.expected if chunk.index_at == at and chunk.expected else None
        counted = self._counted.get(chunk.at)
        if listed is not None or counted is not None:
            # Either number may itself be broken: the larger one hides no loss.
            expected = self.expected[chunk.at] = max(listed or 0, counted or 0)
            if chunk.given is not None:
                where, cause = (chunk.at, chunk.end), "messages that the chunk's index lists"
                self.log.resolve_unknown(chunk.mark, expected, where, cause, chunk.given)
        if chunk.index_at == at:
            self._count_misplaced(chunk)

    def _begin_chunk(self, record: ScannedRecord, index_at: int | None) -> None:
        self.close_chunk(record.at)
        self.chunk = ChunkCounts(record.at, record.end, self.log.mark(), index_at)

    def _count_misplaced(self, chunk: ChunkCounts) -> None:
        """A message that names another connection than the index does is lost to its own topic."""
        wrong = sum((chunk.listed - chunk.held).values())
        if wrong and not chunk.index_is_odd and sum(chunk.listed.values()) == sum(chunk.held.values()):
            self.log.add(chunk.at, chunk.end, "messages that name another topic than the chunk's index", wrong)

    def _is_filled(self, source: ScanBytes, at: int, end: int) -> bool:
        """True when whole records fill a plain chunk exactly: then its length is right, whatever follows it."""
        while at < end:
            record = self.parse(source, at, end, inner=True)
            if record.state != "whole":
                return False
            at = record.end
        return True

    def _take_packed(
        self, source: ScanBytes, record: ScannedRecord, head: StoredChunk, stop: int, *, is_cut: bool
    ) -> int:
        """Take what a packed chunk gives that goes on to `stop`, which may not be where its head says."""
        self._packed_place = (record.at, stop)
        if self.chunk is not None and stop != record.end:
            self.chunk.index_at, self.chunk.end = stop, stop
        data, why = self._unpacked(source, record, head, stop)
        self._packed = head._replace(stored_bytes=stop - head.data_at)
        self.whole_chunks += data is not None
        if data is None and head.codec in CODECS:
            if is_cut or self._keep_suspect:
                limit = min(head.raw_bytes or MAX_CHUNK_BYTES, MAX_CHUNK_BYTES)
                data = decode_prefix(head.codec, source, head.data_at, stop, limit)
                self._packed = self._packed._replace(raw_bytes=len(data), crc=0, is_part=True)
            if is_cut:
                why = f"the file ends inside a chunk; {len(data or b''):,} bytes of it could be decompressed"
        if why:
            self.log.add(*self._packed_place, why)
        if data is not None:
            self.suspect, self._cut_cause = bool(why) and not is_cut, why
            self._walk_chunk(ChunkBytes(data), 0, len(data))
            self.suspect, self._cut_cause = False, ""
        elif self.chunk is not None:
            self.chunk.given = 0
        return stop

    def _walk_chunk(self, source: ScanBytes, begin: int, end: int) -> None:
        before, chunk = self.log.written, self.chunk
        self.walk(source, begin, end, inner=True)
        if chunk is not None:
            chunk.given = self.log.written - before

    def _unpacked(
        self, source: ScanBytes, record: ScannedRecord, head: StoredChunk, stop: int
    ) -> tuple[bytearray | None, str]:
        stored_bytes = stop - head.data_at
        try:
            check_sizes(self._path, record.at, head.codec, stored_bytes, head.raw_bytes)
            target = bytearray(head.raw_bytes)
            stored = memoryview(source.at(head.data_at, stored_bytes))
            decompress_into(head.codec, stored, memoryview(target), self._path, record.at)
        except (RecordingError, LimitExceeded) as error:
            return None, f"a chunk that does not decompress: {error.message.removeprefix(f'{self._path}: ')}"
        if head.crc and zlib.crc32(target) != head.crc:
            return (target if self._keep_suspect else None), "a chunk that fails its CRC"
        return target, ""


def crc_of(source: ScanBytes, begin: int, end: int) -> int:
    """The CRC-32 of a range."""
    crc = 0
    for _, piece in pieces(source, begin, end):
        crc = zlib.crc32(piece, crc)
    return crc
