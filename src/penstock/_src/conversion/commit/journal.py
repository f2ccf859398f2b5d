"""The journal of a data set: one checksummed line per committed episode, written last, and read to go on after a crash.

    {"crc":"9ae0daaf","record":{"type":"header",…}}
    {"crc":"1f8f9d27","record":{"type":"episode",…}}

The checksum is that of the record's own bytes. A line counts when it is whole. A process that was killed while it wrote
leaves the beginning of a line at the end, which is cut off; damage anywhere else is an error, never a loss.
Episodes that were committed as a group have one state, in the last of their lines: without that line none counts.

Closing packs the lines of episodes, many into one, and leaves out their statistics where the closed data set has them:

    {"crc":"5a0c11d2","record":{"type":"packed","episodes":64,"zlib":"eNq9…"}}
"""

from __future__ import annotations

import base64
import collections
import itertools
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock import __version__
from penstock._src.conversion.commit.snapshot import SavedState
from penstock._src.conversion.sink import DEFAULT_OUTPUT
from penstock._src.lerobot import layout
from penstock._src.lerobot.features import Description
from penstock._src.lerobot.stats import Stats
from penstock._src.system.closing import on_error
from penstock._src.system.files import write_all
from penstock.errors import DataSetCorrupt, DataSetError

FORMAT = 1
OWN_DIR = layout.OWN_DIR
JOURNAL_PATH = layout.JOURNAL_PATH
LONGEST_LINE_BYTES = 256 * layout.MIB

_LINE = re.compile(rb'\{"crc":"([0-9a-f]{8})","record":(\{.*\})\}\n\Z', re.DOTALL)

_PACKED = b'{"type":"packed"'
_EPISODE = b'{"type":"episode"'
_GROUPED = b'{"type":"episode","state":null'  # it reached the disk together with the following one
_PACKED_EPISODES = 64

Record = Mapping[str, Any]


class Header(NamedTuple):
    """What all episodes of a data set share, and what must not change when it is continued."""

    description: Description
    identity: Mapping[str, Any]
    output: str = DEFAULT_OUTPUT
    is_worker_output: bool = False
    penstock: str = __version__

    def to_json(self) -> dict[str, Any]:
        output = {} if self.output == DEFAULT_OUTPUT else {"output": self.output}
        return {
            "type": "header",
            "format": FORMAT,
            "penstock": self.penstock,
            **output,
            **self.description.to_json(),
            "worker_output": self.is_worker_output,
            "identity": dict(self.identity),
        }

    @classmethod
    def from_json(cls, entry: Record, where: str) -> Header:
        """The header that `to_json` gave; raises DataSetError that says what is wrong."""
        if entry.get("type") != "header":
            raise DataSetCorrupt(f"{where}: the first line is not a header")
        if entry.get("format") != FORMAT:
            raise DataSetError(
                f"{where}: journal format {entry.get('format')!r}, written by penstock {entry.get('penstock')}; "
                f"penstock {__version__} knows format {FORMAT}",
                hint="continue the data set with the version that began it",
            )
        return cls(
            Description.from_json(entry, where),
            identity=entry["identity"],
            output=entry.get("output", DEFAULT_OUTPUT),
            is_worker_output=entry["worker_output"],
            penstock=entry["penstock"],
        )


class EpisodeRecord(NamedTuple):
    """Everything that is known about one committed episode; plain values only. The journal keeps one line of each.

    `place` is the sink's own. `announced_rows` and `names_tasks` (whether its rows name their tasks one by one) are how
    it was written: a copy that is written likewise has the same bytes. `state` is the state of the data set after the
    episode, in the last one of a group; `kept` is what a worker output keeps about the episode alone. `stats` is None
    where the closed data set holds them.
    """

    episode_index: int
    tasks: tuple[str, ...]
    first_row: int
    rows: int
    place: Mapping[str, Any]
    stats: Mapping[str, Stats | None] | None
    announced_rows: int | None = None
    names_tasks: bool = False
    note: Mapping[str, Any] | None = None
    state: SavedState | None = None
    kept: SavedState | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "episode",
            "state": None if self.state is None else self.state.to_json(),
            "episode_index": self.episode_index,
            "tasks": list(self.tasks),
            "first_row": self.first_row,
            "rows": self.rows,
            **self.place,
            "announced_rows": self.announced_rows,
            "names_tasks": self.names_tasks,
            "note": None if self.note is None else dict(self.note),
            "kept": None if self.kept is None else self.kept.to_json(),
            "stats": self.stats,
        }

    @classmethod
    def from_json(cls, entry: Record) -> EpisodeRecord:
        """The record that `to_json` gave."""
        return cls(
            episode_index=entry["episode_index"],
            tasks=tuple(entry["tasks"]),
            first_row=entry["first_row"],
            rows=entry["rows"],
            place={key: value for key, value in entry.items() if key not in _OF_EVERY_RECORD},
            stats=entry.get("stats"),
            announced_rows=entry["announced_rows"],
            names_tasks=entry["names_tasks"],
            note=entry["note"],
            state=None if entry["state"] is None else SavedState.from_json(entry["state"]),
            kept=None if entry["kept"] is None else SavedState.from_json(entry["kept"]),
        )


_OF_EVERY_RECORD = frozenset(EpisodeRecord(0, (), 0, 0, {}, None).to_json())


class Journal:
    """The journal of one data set. `create` makes a writable one; `open_for_append` makes one from `read` writable."""

    def __init__(self, path: Path, header: Header, end_bytes: int) -> None:
        self.path = path
        self.header = header._replace(identity={})
        self._end_bytes = end_bytes
        self._descriptor: int | None = None
        self._fsync = False

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the first writer recorded about the data set; read each time, as it may name very many inputs."""
        for _, line in whole_lines(self.path):
            return Header.from_json(json.loads(line), str(self.path)).identity
        raise DataSetCorrupt(f"{self.path}: the first line is gone")

    @classmethod
    def create(cls, root: Path, header: Header, *, fsync: bool) -> Journal:
        """Begin a journal; its first line is on the disk with the first record that is."""
        journal = cls(root / JOURNAL_PATH, header, 0)
        line = encode_line(header.to_json())
        with layout.writing(journal.path, "cannot make the journal"):
            journal.path.parent.mkdir(parents=True, exist_ok=True)
            journal._open(os.O_CREAT | os.O_EXCL, fsync)
        journal._append(line, durable=False)
        return journal

    @classmethod
    def read(cls, root: Path | str) -> Journal:
        """The journal of a data set as it stands, which another process may be writing."""
        path = Path(root) / JOURNAL_PATH
        header: Header | None = None
        end_bytes = 0
        for after_bytes, record in whole_lines(path):
            # An episode without a state counts together with the one behind it that has one.
            if not record.startswith(_GROUPED):
                end_bytes = after_bytes
            if header is None:
                header = Header.from_json(json.loads(record), str(path))
        if header is None:
            raise DataSetError(
                f"{root}: the journal of the data set has no line, so nothing was committed",
                hint="begin anew in an empty directory",
            )
        return cls(path, header, end_bytes)

    def open_for_append(self, *, fsync: bool) -> None:
        """Open a journal that was read for writing; what a killed process left of a line is cut off."""
        layout.own_copy(self.path)
        with layout.writing(self.path, "cannot open the journal"):
            self._open(0, fsync)
            os.truncate(self.path, self._end_bytes)

    def append(self, *records: Record) -> None:
        """Write a line for each; they are on the disk when this returns."""
        self._append(b"".join(encode_line(record) for record in records), durable=True)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def pack(self, closed: Record, *, with_statistics: bool) -> None:
        """Write `closed` as the last line, and the lines of episodes packed; in one step."""
        path = self.path.with_name(self.path.name + ".part")
        with layout.writing(path, "cannot write the journal"), open(path, "wb") as target:
            lines = (record for _, record in whole_lines(self.path, self._end_bytes))
            for record in packed(lines, with_statistics=with_statistics):
                target.write(_line(record))
            target.write(encode_line(closed))
            target.flush()
            if self._fsync:
                os.fsync(target.fileno())
            end_bytes = target.tell()
        self.close()
        with layout.writing(self.path, "cannot write the journal"):
            os.replace(path, self.path)
        self._end_bytes = end_bytes

    def records(self, kind: str | None = None) -> Iterator[dict[str, Any]]:
        """All records so far, or those of one type, read from the disk one by one."""
        marker = None if kind is None else f'"type":"{kind}"'.encode()
        for _, line in whole_lines(self.path, self._end_bytes):
            # The type stands first in every record, so that lines of other types are not parsed.
            if line.startswith(_PACKED):
                if kind in (None, "episode"):
                    yield from unpacked(line)
            elif marker is None or line.startswith(marker, 1):
                yield json.loads(line)

    def episodes(self) -> Iterator[EpisodeRecord]:
        for record in self.records("episode"):
            yield EpisodeRecord.from_json(record)

    def last_episode(self) -> EpisodeRecord | None:
        for record in collections.deque(self.records("episode"), maxlen=1):
            return EpisodeRecord.from_json(record)
        return None

    def notes(self) -> Iterator[dict[str, Any]]:
        """The notes that belong to no episode, in order."""
        for record in self.records("note"):
            yield record["note"]

    def _open(self, flags: int, fsync: bool) -> None:
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
        self._fsync = fsync

    def _append(self, line: bytes, *, durable: bool) -> None:
        if self._descriptor is None:
            raise DataSetError(f"{self.path}: the journal is closed")
        # Whatever came after half a line would be lost with it.
        with on_error(self.close), layout.writing(self.path, "cannot write the journal"):
            write_all(self._descriptor, line)
            if durable and self._fsync:
                os.fdatasync(self._descriptor)
        self._end_bytes += len(line)


def encode_line(record: Record) -> bytes:
    """A record as its line; only plain JSON can be one."""
    try:
        text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise DataSetError(f"a {record.get('type')} for the journal is not plain JSON: {error}") from error
    return _line(text)


def _line(text: bytes) -> bytes:
    return b'{"crc":"%08x","record":%b}\n' % (zlib.crc32(text), text)


def _decode_line(line: bytes) -> bytes | None:
    """The record's own bytes, or None when the line is not whole."""
    match = _LINE.match(line)
    if match is None or zlib.crc32(match.group(2)) != int(match.group(1), 16):
        return None
    return match.group(2)


def whole_lines(path: Path, end_bytes: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Every whole line: (byte after it, record); DataSetCorrupt where a damaged line is not the torn last one."""
    position = 0
    try:
        with open(path, "rb") as stream:
            while end_bytes is None or position < end_bytes:
                line = stream.readline(LONGEST_LINE_BYTES)
                record = _decode_line(line)
                if record is None:
                    if line and (not _is_torn(line) or end_bytes is not None or stream.read(1)):
                        raise DataSetCorrupt(
                            f"{path}: byte {position:,}: a damaged line in the journal",
                            hint="the data set cannot be continued; convert its recordings again",
                        )
                    return
                position += len(line)
                yield position, record
    except FileNotFoundError:
        raise DataSetError(
            f"{path}: no journal, so penstock cannot continue this data set",
            hint="only data sets that penstock wrote can be resumed or appended to",
        ) from None
    except OSError as error:
        raise DataSetCorrupt(f"{path}: the journal cannot be read: {error.strerror}") from error


def _is_torn(line: bytes) -> bool:
    """What a write leaves that was cut short: no end, or after a power cut holes of zeros."""
    return not line.endswith(b"\n") or b"\0" in line


def packed(lines: Iterable[bytes], *, with_statistics: bool) -> Iterator[bytes]:
    """The lines of a journal as a closed data set keeps them; what is packed already stays as it is."""
    for is_episode, run in itertools.groupby(lines, lambda line: line.startswith(_EPISODE)):
        if not is_episode:
            yield from run
        while is_episode and (some := list(itertools.islice(run, _PACKED_EPISODES))):
            yield _joined(some, with_statistics)


def _joined(lines: list[bytes], with_statistics: bool) -> bytes:
    records = [json.loads(line) for line in lines]
    for record in records if not with_statistics else ():
        del record["stats"]
    text = "\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    data = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    made = {"type": "packed", "episodes": len(lines), "zlib": data}
    return json.dumps(made, separators=(",", ":")).encode()


def unpacked(line: bytes) -> Iterator[dict[str, Any]]:
    """The records of episodes that a line packs."""
    for text in zlib.decompress(base64.b64decode(json.loads(line)["zlib"])).split(b"\n"):
        yield json.loads(text)
