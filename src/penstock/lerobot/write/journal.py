"""The journal of a data set: one checksummed line per committed episode, written last, and read to go on after a crash.

    {"crc":"9ae0daaf","record":{"type":"header",…}}
    {"crc":"1f8f9d27","record":{"type":"episode",…}}

The checksum is that of the record's own bytes. A line counts when it is whole. A process that was killed while it wrote
leaves the beginning of a line at the end, which is cut off; damage anywhere else is an error, never a loss.
Closing packs the lines of episodes, many into one, and leaves their statistics to meta/episodes (packing.py).
Episodes that were committed as a group have one state, in the last of their lines: without that line none counts.
"""

from __future__ import annotations

import collections
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock import __version__
from penstock.errors import DataSetCorrupt, DataSetError
from penstock.lerobot import layout
from penstock.lerobot.episodes import EpisodeRecord
from penstock.lerobot.features import Feature, check_features, parse_feature
from penstock.lerobot.write import packing
from penstock.system.files import write_all

FORMAT = 1
LONGEST_LINE_BYTES = 256 * layout.MIB

_LINE = re.compile(rb'\{"crc":"([0-9a-f]{8})","record":(\{.*\})\}\n\Z', re.DOTALL)

_CLOSED = b'{"type":"closed"'
_GROUPED = b'{"type":"episode","state":null'  # it reached the disk together with the following one

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Header:
    """What all episodes of a data set share, and what must not change when it is continued."""

    fps: int
    features: Sequence[Feature]
    robot_type: str | None
    data_file_bytes: int
    video_file_bytes: int
    chunks_size: int
    parcel: bool
    identity: Mapping[str, Any]
    penstock: str = __version__

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "header",
            "format": FORMAT,
            "penstock": self.penstock,
            "fps": self.fps,
            "features": [{"key": feature.key, **feature.to_json()} for feature in self.features],
            "robot_type": self.robot_type,
            "data_file_bytes": self.data_file_bytes,
            "video_file_bytes": self.video_file_bytes,
            "chunks_size": self.chunks_size,
            "parcel": self.parcel,
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
        try:
            features = tuple(parse_feature(str(each["key"]), each, where) for each in entry["features"])
            check_features(features)
            numbers = [entry[name] for name in ("fps", "data_file_bytes", "video_file_bytes", "chunks_size")]
            if any(type(number) is not int or number < 1 for number in numbers):
                raise ValueError(f"{numbers} are not all whole and at least 1")
            fps, data_file_bytes, video_file_bytes, chunks_size = numbers
            return cls(
                fps,
                features,
                entry["robot_type"],
                data_file_bytes,
                video_file_bytes,
                chunks_size,
                parcel=bool(entry["parcel"]),
                identity=dict(entry["identity"]),
                penstock=str(entry["penstock"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise DataSetCorrupt(f"{where}: the header cannot be used: {error!r}") from error


def can_resume(root: Path | str) -> bool:
    """Whether there is a journal to go on from; a process may have been killed before it wrote the first line."""
    path = Path(root) / layout.JOURNAL_PATH
    return path.is_file() and next(whole_lines(path), None) is not None


class Journal:
    """The journal of one data set. `create` gives one that can be written, `read` one that can after `go_on`."""

    def __init__(self, path: Path, header: Header, end_bytes: int) -> None:
        self.path = path
        self.header = replace(header, identity={})
        self._end_bytes = end_bytes
        self._descriptor: int | None = None
        self._fsync = False

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r}, {self._end_bytes:,} bytes)"

    @property
    def identity(self) -> Mapping[str, Any]:
        """What the first writer said about the data set; read each time, for it may name very many inputs."""
        for _, line in whole_lines(self.path):
            return Header.from_json(json.loads(line), str(self.path)).identity
        raise DataSetCorrupt(f"{self.path}: the first line is gone")

    @classmethod
    def create(cls, root: Path, header: Header, *, fsync: bool) -> Journal:
        """Begin a journal; its first line is on the disk with the first record that is."""
        journal = cls(root / layout.JOURNAL_PATH, header, 0)
        line = encode_line(header.to_json())
        with layout.writing(journal.path, "cannot make the journal"):
            journal.path.parent.mkdir(parents=True, exist_ok=True)
            journal._open(os.O_CREAT | os.O_EXCL, fsync)
        journal._append(line, durable=False)
        return journal

    @classmethod
    def read(cls, root: Path | str) -> Journal:
        """The journal of a data set as it stands, which another process may be writing."""
        path = Path(root) / layout.JOURNAL_PATH
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

    def go_on(self, *, fsync: bool) -> None:
        """Open a journal that was read for writing; what a killed process left of a line is cut off."""
        layout.own_copy(self.path)
        with layout.writing(self.path, "cannot open the journal"):
            self._open(0, fsync)
            os.truncate(self.path, self._end_bytes)

    def append(self, *records: Record) -> None:
        """Write a line for each; they are on the disk when this returns."""
        self._append(b"".join(encode_line(record) for record in records), durable=True)

    def close(self) -> None:
        """Write no more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def pack(self, closed: Record) -> None:
        """Write `closed` as the last line, and the lines of episodes since the last such line packed; in one step."""
        path = self.path.with_name(self.path.name + ".part")
        with layout.writing(path, "cannot write the journal"), open(path, "wb") as target:
            lines = (record for _, record in whole_lines(self.path, self._end_bytes))
            for record in packing.packed(lines, self._lines_until_closed()):
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
            if line.startswith(packing.MARKER):
                if kind in (None, "episode"):
                    yield from packing.unpacked(line, str(self.path))
            elif marker is None or line.startswith(marker, 1):
                yield json.loads(line)

    def episodes(self) -> Iterator[EpisodeRecord]:
        """The committed episodes, in order."""
        for record in self.records("episode"):
            yield EpisodeRecord.from_json(record, str(self.path))

    def last_episode(self) -> EpisodeRecord | None:
        """The episode that was committed last."""
        for record in collections.deque(self.records("episode"), maxlen=1):
            return EpisodeRecord.from_json(record, str(self.path))
        return None

    def notes(self) -> Iterator[dict[str, Any]]:
        """The notes that belong to no episode, in order."""
        for record in self.records("note"):
            yield record["note"]

    @property
    def is_closed(self) -> bool:
        """Whether the last thing that happened is that the data set was finished."""
        is_closed = False
        for _, line in whole_lines(self.path, self._end_bytes):
            if not line.startswith(b'{"type":"note"'):
                is_closed = line.startswith(_CLOSED)
        return is_closed

    def _lines_until_closed(self) -> int:
        """How many lines there are up to the last time that the data set was closed: they stay as they are."""
        lines = enumerate((line for _, line in whole_lines(self.path, self._end_bytes)), 1)
        return max((number for number, line in lines if line.startswith(_CLOSED)), default=0)

    def _open(self, flags: int, fsync: bool) -> None:
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | flags, 0o644)
        self._fsync = fsync

    def _append(self, line: bytes, *, durable: bool) -> None:
        if self._descriptor is None:
            raise DataSetError(f"{self.path}: the journal is closed")
        try:
            with layout.writing(self.path, "cannot write the journal"):
                write_all(self._descriptor, line)
                if durable and self._fsync:
                    os.fdatasync(self._descriptor)
        except BaseException:
            # Whatever came after half a line would be lost with it.
            self.close()
            raise
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
