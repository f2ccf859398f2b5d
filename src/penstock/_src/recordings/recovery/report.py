"""What a recovery saved and what it lost: byte ranges with causes, bounded however often a file is broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from penstock._src.recordings.file_window import NO_RECORD, no_record_note, recover_hint, unknown_loss
from penstock._src.recordings.messages.schemas import several_types
from penstock.errors import RecordingCorrupt

# Kept one by one; of a file that is broken in more places, number and bytes are reported.
_KEPT_RANGES = 1000
# No byte of the file tells how much this was, so it is a loss of an unknown number.
UNFINISHED = "the recorder did not finish, or the rest was cut off: what should follow is in no file"


@dataclass(frozen=True)
class Damage:
    """A range of a file that gave nothing; `messages` that lay there, None where unknown."""

    file: str
    begin: int
    end: int
    cause: str
    messages: int | None = None

    @property
    def n_bytes(self) -> int:
        return max(self.end - self.begin, 0)

    @property
    def where(self) -> str:
        return f"bytes {self.begin:,} … {self.end:,}"

    def note(self) -> str:
        """One sentence about a range that costs no message."""
        if self.cause.startswith(NO_RECORD):
            return no_record_note(self.n_bytes, self.begin)
        return f"{self.where}: {self.cause}; no message is missing"


@dataclass(frozen=True)
class RecoveryReport:
    """The result of `recover`: what the new recording holds, and every range of the old one that is not in it."""

    source: str
    output: str
    kind: str
    topics: dict[str, int]
    damages: tuple[Damage, ...]
    damage_count: int
    damaged_bytes: int
    lost_messages: int
    lost_unknown: bool
    lost_count: int
    """Messages lost, and 1 for each place where the number is unknown: the number that doctor and convert give.

    Messages that are kept without proof are such a place.
    """
    suspect_messages: int
    lost_parts: int
    """Attachments and private records of mcap that are not in the new recording."""
    notes: tuple[str, ...]
    bytes_in: int
    bytes_out: int

    @property
    def messages(self) -> int:
        return sum(self.topics.values())

    @property
    def lost(self) -> bool:
        """True when messages or parts were lost, may have been lost, or were kept without proof."""
        return bool(self.lost_messages or self.lost_unknown or self.suspect_messages or self.lost_parts)

    @property
    def lost_text(self) -> str:
        """How much was lost, in words."""
        if self.lost_unknown:
            return f"at least {self.lost_messages:,} lost" if self.lost_messages else "an unknown number lost"
        return f"{self.lost_messages:,} lost" if self.lost else "nothing lost"

    @property
    def exit_code(self) -> int:
        return 3 if self.lost else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        totals = {"messages": self.messages, "lost": self.lost, "topics": dict(sorted(self.topics.items()))}
        return asdict(self) | totals


@dataclass
class DamageLog:
    """Collects what a scan meets; `resolve_unknown` says afterwards how many messages a broken part had held."""

    file: str = ""
    topics: Counter[str] = field(default_factory=Counter)
    types: Counter[tuple[str, str]] = field(default_factory=Counter)  # messages by topic and type
    notes: list[str] = field(default_factory=list)
    suspect: int = 0
    lost_parts: int = 0
    is_unfinished: bool = False
    _kept: list[Damage] = field(default_factory=list)
    _count: int = 0
    _bytes: int = 0
    _lost: int = 0
    _unknown: int = 0

    def count_taken(self, topic: str, kind: str) -> None:
        """One message is whole."""
        self.topics[topic] += 1
        self.types[topic, kind] += 1

    @property
    def written(self) -> int:
        """Messages that went to the new recording."""
        return sum(self.topics.values())

    @property
    def has_damage(self) -> bool:
        return self._count > 0

    @property
    def lost(self) -> int:
        """Messages that are known to be lost, and one for each place where the number is unknown."""
        return self._lost + self._unknown + (self.suspect > 0)

    def report_to(self, lose: Callable[[str, int, str], None], notes: list[str]) -> None:
        """Give every range to `lose` (cause, messages, where), or to the notes where no message is missing."""
        left = self.lost
        if self.suspect:
            cause = f"{self.suspect:,} messages kept without proof, as a checksum is lost or fails; counted as 1"
            lose(cause, 1, self.file)
            left -= 1
        padding = [damage for damage in self._kept if damage.messages == 0 and damage.cause.startswith(NO_RECORD)]
        if padding:
            notes.append(no_record_note(sum(damage.n_bytes for damage in padding), padding[0].begin, len(padding)))
        for damage in self._kept:
            if damage.messages == 0:
                notes += [] if damage.cause.startswith(NO_RECORD) else [damage.note()]
            elif damage.messages is None:
                lose(unknown_loss(damage.cause), 1, damage.where)
                left -= 1
            else:
                lose(damage.cause, damage.messages, damage.where)
                left -= damage.messages
        if left > 0:
            lose(f"{self._count - len(self._kept):,} more broken places", left, self.file)

    def add(self, begin: int, end: int, cause: str, messages: int | None = None) -> None:
        """A range that gave nothing; ranges that touch and have one cause are one."""
        last = self._kept[-1] if self._kept and self._count == len(self._kept) else None
        if last is not None and (last.file, last.cause, last.messages is None) == (self.file, cause, messages is None):
            again = (last.begin, last.end) == (begin, end)  # several faults inside one packed chunk
            if again or last.end == begin:
                total = None if messages is None else (last.messages or 0) + messages
                self._kept[-1] = replace(last, end=end, messages=total)
                self._bytes += 0 if again else max(end - begin, 0)
                self._lost += messages or 0
                return
        self._count += 1
        self._bytes += max(end - begin, 0)
        self._lost += messages or 0
        self._unknown += messages is None
        if len(self._kept) < _KEPT_RANGES:
            self._kept.append(Damage(self.file, begin, end, cause, messages))

    def add_end(self, size: int) -> None:
        """The end of a file that was not finished, unless a broken range that reaches to it tells as much."""
        last = self._kept[-1] if self._kept and self._count == len(self._kept) else None
        if last is None or (last.file, last.end, last.messages) != (self.file, size, None):
            self.is_unfinished = True
            self.add(size, size, UNFINISHED)

    def as_error(self, path: Path) -> RecordingCorrupt:
        """The first range that cost messages, as an error."""
        first = next((damage for damage in self._kept if damage.messages != 0), self._kept[0])
        return RecordingCorrupt(first.cause, path=str(path), offset=first.begin, hint=recover_hint(path))

    def mark(self) -> tuple[int, int, int, int, int]:
        """A place to settle from: ranges kept, unknown and counted, messages lost and written so far."""
        return len(self._kept), self._unknown, self._count, self._lost, self.written

    def resolve_unknown(
        self,
        mark: tuple[int, int, int, int, int],
        expected: int,
        where: tuple[int, int],
        cause: str,
        n_given: int | None = None,
        *,
        hidden: bool = False,
    ) -> None:
        """Since the mark, `expected` messages should have come from a range: its unknown numbers become known.

        `n_given`: the messages that came from the range, where others came since. A range that begins at 0 is the whole
        file, with what was cut off behind its end. Where no record of the range is broken, a larger count is wrong and
        nothing is lost, unless messages can be missing without a trace (`hidden`).
        """
        first, unknown, count, lost, written = mark
        came = self.written - written if n_given is None else n_given
        missing = max(expected - came - (self._lost - lost), 0)
        places = [place for place in range(first, len(self._kept)) if self._is_open(place, where)]
        for place in places:
            self._kept[place] = replace(self._kept[place], messages=missing if place == places[0] else 0)
        if places:
            self._lost += missing
            self._unknown -= len(places)
        elif missing and self._count > len(self._kept) and self._unknown > unknown:
            self._lost += missing  # of ranges that are too many to be kept
        elif missing and (hidden or self._count > count):
            self.add(*where, cause, missing)
        elif missing:
            self.notes.append(f"{cause}: {expected:,}; {came:,} are there, no record is broken, and none is missing")

    def _is_open(self, place: int, where: tuple[int, int]) -> bool:
        damage = self._kept[place]
        inside = where[0] == 0 or where[0] <= damage.begin < where[1]
        return damage.messages is None and damage.file == self.file and inside

    def report(self, *, source: str, output: str, kind: str, bytes_in: int, bytes_out: int) -> RecoveryReport:
        return RecoveryReport(
            source=source,
            output=output,
            kind=kind,
            topics=dict(self.topics),
            damages=tuple(self._kept),
            damage_count=self._count,
            damaged_bytes=self._bytes,
            lost_messages=self._lost,
            lost_unknown=self._unknown > 0,
            lost_count=self.lost,
            suspect_messages=self.suspect,
            lost_parts=self.lost_parts,
            notes=(*self.notes, *several_types(self.types.items())),
            bytes_in=bytes_in,
            bytes_out=bytes_out,
        )
