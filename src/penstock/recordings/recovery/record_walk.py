"""Walking records through damage: the next plausible record is looked for, and what lies between is counted as lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from penstock.recordings.recovery.scan_bytes import ChunkBytes, is_padding

if TYPE_CHECKING:
    from penstock.recordings.recovery.report import DamageLog
    from penstock.recordings.recovery.scan_bytes import ScanBytes

# No byte of the file tells how much this was, so it is a loss of an unknown number.
UNFINISHED = "the recorder did not finish, or the rest was cut off: what should follow is in no file"

State = Literal["whole", "cut", "bad"]


@dataclass(frozen=True)
class Found:
    """What lies at a position: a whole record, one that reaches beyond the end, or none."""

    at: int
    state: State
    why: str = ""
    op: int = 0
    data_at: int = 0
    end: int = 0


RecordT = TypeVar("RecordT", bound=Found)


class RecordWalk(ABC, Generic[RecordT]):
    """The walk that bags and mcap files share; a container says what a record is and what becomes of it.

    A record is believed when a record (or the end) follows it. Where it is not so, either its length or what follows
    is broken: whoever begins next decides.
    """

    def __init__(self, log: DamageLog) -> None:
        self.log = log
        self.unproven = False  # True behind a broken part, until something begins that proves itself
        self.cut_cause = ""  # said instead, while what is left of a packed chunk is walked
        self._remembered: tuple[ScanBytes, int, int, bool, RecordT] | None = None
        self._searched: tuple[ScanBytes, int, bool, int, int, int | None] | None = None

    @abstractmethod
    def parse(self, source: ScanBytes, at: int, end: int, inner: bool) -> RecordT:
        """What lies at `at`; `inner`: inside a chunk, where fewer kinds may be."""

    @abstractmethod
    def search(self, source: ScanBytes, at: int, end: int, inner: bool) -> int | None:
        """Where the next record that can be believed begins, from `at` on."""

    def knowledge(self) -> int:
        """Grows when a search might find what an earlier one did not."""
        return 0

    @abstractmethod
    def take(self, source: ScanBytes, record: RecordT, end: int, inner: bool) -> int:
        """Use a whole record; where to go on."""

    @abstractmethod
    def take_cut(self, source: ScanBytes, record: RecordT, stop: int, end: int) -> int | None:
        """Save what a record gives whose end is missing, up to `stop`; where to go on, None when it gives nothing."""

    @abstractmethod
    def begins_like_a_record(self, source: ScanBytes, at: int, following: int | None) -> bool:
        """True when a record was meant to begin here, though it is broken."""

    @abstractmethod
    def carries_payload(self, record: RecordT) -> bool:
        """True for records whose wrong length would give a wrong message."""

    def holds_messages(self, begin: int) -> bool:
        """False for parts of the file where no message can be, so that their loss is none."""
        return True

    def place(self, source: ScanBytes, begin: int, end: int) -> tuple[int, int]:
        """The bytes of the file that a range of a source stands for."""
        return begin, end

    def walk(self, source: ScanBytes, at: int, end: int, *, inner: bool = False) -> None:
        """Take all records in a range; what cannot be read is in the log."""
        while at < end:
            found = self._look(source, at, end, inner)
            if found.state == "bad":
                at = self._skip(source, at, self.resync(source, at + 1, end, inner), end, found.why)
            elif found.state == "cut":
                at = self._cut(source, found, end, inner)
            elif self.carries_payload(found):
                at = self._believe_or_skip(source, found, end, inner)
            else:
                at = self.take(source, found, end, inner)

    def resync(self, source: ScanBytes, at: int, end: int, inner: bool) -> int | None:
        """`search`, which is asked once for a stretch however often it is met: hostile files stay linear."""
        known, knowledge = self._searched, self.knowledge()
        if known is not None and known[0] is source and known[1:3] == (end, inner) and known[4] == knowledge:
            begin, found = known[3], known[5]
            if begin <= at <= (end if found is None else found):
                return found
        found = self.search(source, at, end, inner)
        self._searched = (source, end, inner, at, knowledge, found)
        return found

    def _look(self, source: ScanBytes, at: int, end: int, inner: bool) -> RecordT:
        known = self._remembered
        if known is not None and known[0] is source and known[1:4] == (at, end, inner):
            return known[4]
        found = self.parse(source, at, end, inner)
        self._remembered = (source, at, end, inner, found)
        return found

    def follows(self, source: ScanBytes, at: int, end: int, inner: bool) -> bool:
        """True when a record, the beginning of a cut one, or the end lies at `at`."""
        return at == end or (at < end and self._look(source, at, end, inner).state != "bad")

    def _skip(self, source: ScanBytes, at: int, following: int | None, end: int, why: str) -> int:
        until = end if following is None else following
        begin, stop = self.place(source, at, until)
        self.unproven = True
        self.log.add(begin, stop, why, None if self.holds_messages(begin) else 0)
        return until

    def _cut(self, source: ScanBytes, record: RecordT, end: int, inner: bool) -> int:
        following = self.resync(source, record.at + 1, end, inner)
        stop = end if following is None else following
        resumed = None if inner else self.take_cut(source, record, stop, end)
        if resumed is not None:
            return resumed
        why = self.cut_cause or record.why if following is None else f"a record whose length is broken ({record.why})"
        return self._skip(source, record.at, following, end, why)

    def _believe_or_skip(self, source: ScanBytes, record: RecordT, end: int, inner: bool) -> int:
        if not self.follows(source, record.end, end, inner):
            following = self.resync(source, record.data_at, end, inner)
            swallows = following is not None and following < record.end
            if swallows or not (
                is_padding(source, record.end, end if following is None else following)
                or self.begins_like_a_record(source, record.end, following)
            ):
                return self._skip(source, record.at, following, end, "a message whose length is broken")
        return self.take(source, record, end, inner)


@dataclass
class Chunk:
    """The chunk that was met last: what its index says that it held."""

    at: int
    end: int
    mark: tuple[int, int, int, int, int]
    index_at: int | None
    expected: int | None = None
    given: int | None = None  # messages that came from it; None where nobody knows where it ends
    listed: Counter[int] = field(default_factory=Counter)  # by connection or channel, as its index lists them
    held: Counter[int] = field(default_factory=Counter)  # and as they came
    index_is_odd: bool = False  # its index lists one connection twice, or one that is not known

    def list(self, number: int, count: int, *, is_known: bool) -> None:
        """An index record of one connection."""
        self.index_is_odd = self.index_is_odd or number in self.listed or not is_known
        self.expected = (self.expected or 0) + count
        self.listed[number] += count


@dataclass(frozen=True)
class PackedChunk:
    """Where a packed chunk lies, and how large it becomes; `is_part`: as far as it can be decoded."""

    data_at: int
    stored_bytes: int
    raw_bytes: int
    codec: str
    crc: int = 0
    is_part: bool = False


class ChunkWalk(RecordWalk[RecordT]):
    """A walk through records that lie in chunks, packed or not; what each chunk gave is compared with its index."""

    def __init__(self, log: DamageLog, *, keep_suspect: bool) -> None:
        super().__init__(log)
        self.keep_suspect = keep_suspect
        self.suspect = False  # True while a chunk that proved to be damaged is walked
        self.chunk: Chunk | None = None
        self.packed_place = (0, 0)

    @abstractmethod
    def close_chunk(self, at: int) -> None:
        """The chunk that was met last ends with its index, at `at`: count what is missing of it."""

    def place(self, source: ScanBytes, begin: int, end: int) -> tuple[int, int]:
        return self.packed_place if isinstance(source, ChunkBytes) else (begin, end)

    def begin_chunk(self, record: RecordT, index_at: int | None) -> None:
        self.close_chunk(record.at)
        self.chunk = Chunk(record.at, record.end, self.log.mark(), index_at)

    def begin_packed(self, record: RecordT, stop: int) -> None:
        """A packed chunk goes on to `stop`, which may not be where its head says."""
        self.packed_place = (record.at, stop)
        if self.chunk is not None and stop != record.end:
            self.chunk.index_at, self.chunk.end = stop, stop

    def count_misplaced(self, chunk: Chunk) -> None:
        """A message that names another connection than the index does is lost to its own topic."""
        wrong = sum((chunk.listed - chunk.held).values())
        if wrong and not chunk.index_is_odd and sum(chunk.listed.values()) == sum(chunk.held.values()):
            self.log.add(chunk.at, chunk.end, "messages that name another topic than the chunk's index", wrong)

    def is_filled(self, source: ScanBytes, at: int, end: int) -> bool:
        """True when whole records fill a plain chunk exactly: then its length is right, whatever follows it."""
        while at < end:
            record = self.parse(source, at, end, inner=True)
            if record.state != "whole":
                return False
            at = record.end
        return True

    def walk_packed(self, data: bytes | bytearray | None, why: str, *, is_cut: bool) -> None:
        """Take the records of a chunk that was unpacked as far as it could be; `why` says what is wrong with it."""
        if why:
            self.log.add(*self.packed_place, why)
        if data is None:
            if self.chunk is not None:
                self.chunk.given = 0
            return
        self.suspect, self.cut_cause = bool(why) and not is_cut, why
        self.walk_chunk(ChunkBytes(data), 0, len(data))
        self.suspect, self.cut_cause = False, ""

    def walk_chunk(self, source: ScanBytes, begin: int, end: int) -> None:
        before, chunk = self.log.written, self.chunk
        self.walk(source, begin, end, inner=True)
        if chunk is not None:
            chunk.given = self.log.written - before
