"""A damaged db3 file: the rows of its leaf pages, for reading them and for saving them in a new file."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import threading
from array import array
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from penstock._src.formats.content import ZSTD_MAGIC
from penstock._src.recordings.db3.file import MAX_TOPICS, SQLITE_ERRORS, Db3File, Db3Index, MessageRow, Tables, as_text
from penstock._src.recordings.db3.pages import HEADER_BYTES, SqlitePages
from penstock._src.recordings.file_window import recover_hint
from penstock._src.recordings.messages.schemas import type_name
from penstock._src.recordings.metadata import METADATA_VERSION, RecordingFileFacts, TopicFacts, bag_information
from penstock._src.recordings.recovery.report import DamageLog
from penstock._src.recordings.recovery.scan_bytes import FileBytes
from penstock._src.system import plain_yaml
from penstock.errors import PenstockError, RecordingCorrupt, RecordingError

_TABLES = (
    "CREATE TABLE schema(schema_version INTEGER PRIMARY KEY,ros_distro TEXT NOT NULL)",
    "CREATE TABLE metadata(id INTEGER PRIMARY KEY,metadata_version INTEGER NOT NULL,metadata TEXT NOT NULL)",
    "CREATE TABLE topics(id INTEGER PRIMARY KEY,name TEXT NOT NULL,type TEXT NOT NULL,"
    "serialization_format TEXT NOT NULL,offered_qos_profiles TEXT NOT NULL,type_description_hash TEXT NOT NULL)",
    "CREATE TABLE message_definitions(id INTEGER PRIMARY KEY,topic_type TEXT NOT NULL,encoding TEXT NOT NULL,"
    "encoded_message_definition TEXT NOT NULL,type_description_hash TEXT NOT NULL)",
    "CREATE TABLE messages(id INTEGER PRIMARY KEY,topic_id INTEGER NOT NULL,timestamp INTEGER NOT NULL, "
    "data BLOB NOT NULL)",
)
_ROWS_PER_COMMIT = 1000

_DEFINITION_ENCODINGS = ("ros2msg", "ros2idl", "unknown")
_MAX_SMALL_ROW_BYTES = 16 << 20
_MOST_ROWS = 1 << 40
_BATCH_ROWS = 4096


class Db3Writer:
    """A new db3 file; it is complete after `close()`, which a `with` block calls."""

    def __init__(self, path: Path, ros_distro: str = "") -> None:
        self.path = Path(path)
        self._pending = 0
        self._topics: dict[TopicFacts, int] = {}
        try:
            self._connection = sqlite3.connect(self.path, isolation_level=None)
        except sqlite3.Error as error:
            raise RecordingError(f"{self.path}: cannot be written: {error}") from error
        # Nothing reads the file before it is whole and brought to the disk: no journal is needed on the way.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -8192", "locking_mode = EXCLUSIVE"):
            self._run(f"PRAGMA {pragma}")
        self._run("BEGIN")
        for table in _TABLES:
            self._run(table)
        self._run("INSERT INTO schema VALUES (4, ?)", ros_distro)

    def __enter__(self) -> Db3Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _run(self, sql: str, *values: object) -> None:
        try:
            self._connection.execute(sql, values)
        except (sqlite3.Error, OverflowError) as error:
            raise RecordingError(f"{self.path}: cannot be written: {error}") from error

    def topic(self, facts: TopicFacts) -> int:
        """The id of a topic in this file."""
        number = self._topics.get(facts)
        if number is None:
            number = self._topics[facts] = len(self._topics) + 1
            values = (facts.name, facts.type, facts.encoding, facts.qos, facts.type_hash)
            self._run("INSERT INTO topics VALUES (?, ?, ?, ?, ?, ?)", number, *values)
        return number

    def definition(self, type_name: str, encoding: str, text: str, type_hash: str) -> None:
        """Keep a message definition."""
        self._run(
            "INSERT INTO message_definitions (topic_type, encoding, encoded_message_definition, type_description_hash) "
            "VALUES (?, ?, ?, ?)",
            *(type_name, encoding, text, type_hash),
        )

    def write(self, topic: int, time_ns: int, data: bytes) -> None:
        """Append a message."""
        self._run("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", topic, time_ns, data)
        self._pending += 1
        if self._pending == _ROWS_PER_COMMIT:
            self._run("COMMIT")
            self._run("BEGIN")
            self._pending = 0

    def close(self, facts: RecordingFileFacts) -> None:
        """Write the index over time and the metadata; the file is complete afterwards."""
        text = plain_yaml.dump(bag_information([facts]))
        self._run("INSERT INTO metadata (metadata_version, metadata) VALUES (?, ?)", METADATA_VERSION, text)
        self._run("CREATE INDEX timestamp_idx ON messages (timestamp ASC)")
        self._run("COMMIT")
        self._connection.close()


class PagedFile:
    """A file whose tree SQLite cannot follow, with the interface of `Db3File`; `log` counts what is lost."""

    def __init__(self, source: FileBytes, log: DamageLog, *, packed: bool = False) -> None:
        self.path = source.path
        self.packed = packed
        self.packed_messages = False
        self.tables = Tables()
        self.log = log
        self._lock = threading.Lock()
        self._source = source
        self._pages = SqlitePages(source)
        if not self._pages.header_is_whole:
            cause = f"the header is broken; pages of {self._pages.page_bytes:,} bytes were taken"
            log.add(0, min(HEADER_BYTES, source.size_bytes), cause, 0)
        rowid, page, place = self._sort_rows()
        order = np.argsort(np.array(rowid, np.int64), kind="stable")
        self._rowids = np.array(rowid, np.int64)[order]
        self._places = np.array(page, np.uint32)[order], np.array(place, np.uint16)[order]

    def close(self) -> None:
        with self._lock:
            self._source.close()

    def messages(self) -> Iterator[MessageRow]:
        """(row id, topic, time, data) of the rows that are whole, each row id once; what is missing is counted."""
        begin, last = self.log.mark(), None
        for position, rowid in enumerate(self._rowids.tolist()):
            if rowid == last:
                continue
            values = self._values(position)
            if values is None:
                page, place = (int(column[position]) for column in self._places)
                at = (page - 1) * self._pages.page_bytes
                cause = "a row whose data are in pages that are missing"
                self.log.add(at + place, at + self._pages.page_bytes, cause, 1)
                continue
            last = rowid
            yield rowid, values[1], values[2], values[3]
        self._count_missing(begin)

    def add_to(self, index: Db3Index) -> None:
        """Add the rows that are whole; what is lost is in the log."""
        index.begin_file()
        topics = self.tables.numbers(index)

        def placed() -> Iterator[tuple[int, int, int, int]]:
            for row, topic, time_ns, data in usable(self, self.log, self._source.size_bytes):
                if self.log.written == 1:
                    self.packed_messages = data[:4] == ZSTD_MAGIC
                yield row, topics[topic], time_ns, len(data)

        places = placed()
        while rows := list(islice(places, _BATCH_ROWS)):
            index.add(np.array(rows, np.int64))

    def read(self, row: int, target: memoryview) -> None:
        """Fill `target` with the beginning of a message's data."""
        with self._lock:
            first, end = np.searchsorted(self._rowids, (row, row + 1)).tolist()
            each = (self._values(position) for position in range(first, end))
            data = next((values[3] for values in each if values is not None), None)
        if not isinstance(data, bytes) or len(data) < len(target):
            what = f"row {row} should hold {len(target):,} bytes, and they are not there"
            raise RecordingCorrupt(what, path=str(self.path), hint=recover_hint(self.path))
        target[:] = memoryview(data)[: len(target)]

    def _count_missing(self, begin: tuple[int, int, int, int, int]) -> None:
        """Count what is missing since a mark, after all messages were read."""
        # rosbag2 numbers its rows from 1 and removes none: what is missing in between is lost.
        entries = (values[1] for values in self._pages.index_entries() if len(values) == 2)
        listed = (row for row in entries if isinstance(row, int) and row < _MOST_ROWS)
        highest = max(int(self._rowids.max(initial=0)), max(listed, default=0))
        size, page_bytes, claimed = self._source.size_bytes, self._pages.page_bytes, self._pages.claimed_bytes
        cause = f"rows between 1 and {highest:,} that are in no page"
        self.log.resolve_unknown(begin, highest, (0, size), cause, hidden=True)
        if claimed > size:
            self.log.add(size, claimed, "the file was cut here")
        elif rest := size % page_bytes:
            self.log.add(size - rest, size, "the file ends inside a page")

    def _values(self, position: int) -> tuple[Any, ...] | None:
        row = self._pages.row_at(*(int(column[position]) for column in self._places))
        return None if row is None else self._pages.values(row)

    def _sort_rows(self) -> tuple[array[int], array[int], array[int]]:
        """Which table each row is of, recognised by the kinds of its values; row id, page and place of the messages."""
        columns = array("q"), array("I"), array("H")
        for row in self._pages.rows():
            kinds = "".join(_kind(serial) for serial in row.types)
            if kinds[1:] == "iib" and len(kinds) == 4:
                for column, value in zip(columns, (row.rowid, row.page, row.place), strict=True):
                    column.append(value)
            elif kinds[1:4] == "ttt" and len(kinds) in (4, 5, 6) and row.payload_bytes <= _MAX_SMALL_ROW_BYTES:
                self._add_small_row(row.rowid, self._pages.values(row))
            elif kinds in ("nt", "it") and not self.tables.ros_distro and row.payload_bytes < 64:
                values = self._pages.values(row)
                self.tables.ros_distro = as_text(values[1]) if values else ""
        return columns

    def _add_small_row(self, rowid: int, values: tuple[Any, ...] | None) -> None:
        texts = [as_text(value) for value in values[1:]] if values else [""]
        if texts[0].startswith("/"):
            if len(self.tables.topics) < MAX_TOPICS:
                self.tables.topics[rowid] = TopicFacts(*texts)
        elif len(texts) == 4 and texts[1] in _DEFINITION_ENCODINGS:
            self.tables.definitions.append((texts[0], texts[1], texts[2], texts[3]))


def _kind(serial: int) -> str:
    if serial in (0, 7):
        return "n" if serial == 0 else "f"
    return "i" if serial < 10 else "t" if serial % 2 else "b"


def usable(file: Db3File | PagedFile, log: DamageLog, size_bytes: int) -> Iterator[MessageRow]:
    """The messages of a file whose topic is known; the log counts them, and the others as lost."""
    topics = {number: (topic.name, type_name(topic.type)) for number, topic in file.tables.topics.items()}
    for row in file.messages():
        known = topics.get(row[1])
        if known is None or not isinstance(row[2], int) or not isinstance(row[3], bytes):
            why = f"messages of topic {row[1]!r:.20}, whose row is lost" if known is None else "rows without data"
            log.add(0, size_bytes, why, 1)
            continue
        log.count_taken(*known)
        yield row


def recover_db3(source: FileBytes, target: Path, log: DamageLog, facts: RecordingFileFacts) -> None:
    """Write every row that can be read to a new file at `target`."""
    with tempfile.TemporaryDirectory(prefix=".penstock-recover-", dir=target.parent) as scratch:
        file: Db3File | PagedFile | None = _sound_file(source, Path(scratch))
        if file is None:
            log.notes.append("SQLite finds the file broken; it was read page by page")
            file = PagedFile(source, log)
        with closing(file), Db3Writer(target, file.tables.ros_distro) as writer:
            for definition in file.tables.definitions:
                writer.definition(*definition)
            for topic in file.tables.topics.values():
                facts.topics.setdefault(topic, 0)
                writer.topic(topic)
            for _, number, time_ns, data in usable(file, log, source.size_bytes):
                if facts.first_ns is None and data[:4] == ZSTD_MAGIC:
                    facts.packed_messages = True
                topic = file.tables.topics[number]
                writer.write(writer.topic(topic), time_ns, data)
                facts.count(topic, time_ns)
            writer.close(facts)


def _sound_file(source: FileBytes, scratch: Path) -> Db3File | None:
    """A file that SQLite finds whole, else None. What a killed recorder left beside it is applied to a copy."""
    beside = [Path(f"{source.path}{suffix}") for suffix in ("-wal", "-journal")]
    pending = [side for side in beside if side.exists() and side.stat().st_size]
    path = source.content
    if pending:
        # Applying a log writes to the file, and the source is never written to.
        path = scratch / "copy.db3"
        shutil.copyfile(source.content, path)
        for side in pending:
            shutil.copyfile(side, f"{path}{side.name.removeprefix(source.path.name)}")
    try:
        file = Db3File(source.path, content=path, writable=bool(pending))
    except PenstockError:
        return None
    try:
        if file.is_sound():
            return file
    except (PenstockError, *SQLITE_ERRORS):
        # Whatever SQLite stumbles over, the pages are read without it.
        file.close()
        return None
    file.close()
    return None
