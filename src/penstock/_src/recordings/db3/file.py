"""One SQLite file of a ROS 2 bag: its topics, its rows, one payload at a time."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from penstock._src.formats.content import ZSTD_MAGIC
from penstock._src.recordings.codecs import MAX_CHUNK_BYTES
from penstock._src.recordings.db3.pages import HEADER_BYTES, extent
from penstock._src.recordings.file_window import ERRORS, recover_hint
from penstock._src.recordings.message_index import TopicColumns
from penstock._src.recordings.messages.schemas import Schema, TopicTable, type_name
from penstock._src.recordings.metadata import TopicFacts
from penstock._src.recordings.unpack import is_packed, unpacked_file
from penstock._src.system.files import local_file, open_source
from penstock.errors import LimitExceeded, RecordingCorrupt, RecordingError

MAX_TOPICS = 100_000
_BATCH_ROWS = 4096
_MAX_DEFINITION_BYTES = 16 << 20
# SQLite quotes damaged text in its own messages, which Python then fails to decode.
SQLITE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
MessageRow = tuple[int, Any, Any, Any]
"""Row id, topic, time and data; SQLite keeps any kind of value in any column."""


@dataclass(frozen=True)
class TopicRows:
    """The messages of one topic: time, row id, stored bytes; the number of the first message of each file."""

    times_ns: NDArray[np.int64]
    row: NDArray[np.int64]
    size: NDArray[np.uint32]
    first_of_file: NDArray[np.int64]

    @property
    def nbytes(self) -> int:
        return self.times_ns.nbytes + self.row.nbytes + self.size.nbytes + self.first_of_file.nbytes


class Db3Index:
    """Grows the rows of all topics, file after file."""

    def __init__(self) -> None:
        self.topics = TopicTable()
        self._columns = TopicColumns("<i8", "<i8", "<u4")  # times, row ids and sizes
        self._firsts: list[dict[int, int]] = []

    def topic(self, name: str, encoding: str, kind: str, definitions: Mapping[str, tuple[str, str]]) -> int:
        """The number of a topic; `definitions`: (format, text) by type, as the file carries them."""
        # The events of a service are described by the text of the service.
        described = Schema(kind, *definitions.get(kind, definitions.get(kind.removesuffix("_Event"), ("", ""))))
        return self.topics.number(name, encoding, described)

    def add(self, rows: NDArray[np.int64]) -> None:
        """Rows of (row id, number of the topic, time, size)."""
        topics = rows[:, 1]
        for topic in sorted(set(topics.tolist())):
            own_rows = rows[topics == topic]
            self._columns.extend(topic, own_rows[:, 2], own_rows[:, 0], own_rows[:, 3])

    def mark(self) -> tuple[int, dict[int, int]]:
        """A place to come back to: the files and the rows of every topic so far."""
        return len(self._firsts), self._columns.counts()

    def rollback(self, mark: tuple[int, dict[int, int]]) -> None:
        """Forget what was added since the mark; topics that were met stay, without rows."""
        del self._firsts[mark[0] :]
        self._columns.rollback(mark[1])

    def begin_file(self) -> None:
        self._firsts.append(self._columns.counts())

    def finish(self, topic_count: int, file_count: int) -> tuple[TopicRows, ...]:
        made = []
        for topic in range(topic_count):
            times_ns, row, size = self._columns.arrays(topic)
            firsts = np.array([first.get(topic, 0) for first in self._firsts[:file_count]], np.int64)
            made.append(TopicRows(times_ns, row, size, firsts))
        return tuple(made)


@dataclass
class Tables:
    """The small tables of a bag: topics by their ids, and (type, encoding, text, hash) of message definitions."""

    ros_distro: str = ""
    topics: dict[int, TopicFacts] = field(default_factory=dict)
    definitions: list[tuple[str, str, str, str]] = field(default_factory=list)

    def numbers(self, index: Db3Index) -> dict[int, int]:
        """The numbers that an index gives to the topics."""
        texts = {
            type_name(kind): (form, text)
            for kind, form, text, _ in self.definitions
            if form in ("ros2msg", "ros2idl") and text.strip()
        }
        return {
            number: index.topic(topic.name, topic.encoding or "cdr", type_name(topic.type), texts)
            for number, topic in self.topics.items()
        }


def as_text(value: Any) -> str:
    """A value of a column that should hold text."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)


class Db3File:
    """An open SQLite file; reads are safe from any thread."""

    def __init__(self, path: Path, *, content: Path | None = None, writable: bool = False) -> None:
        """`content`: where the file lies, when it was unpacked or copied; a copy may be `writable`."""
        self.path = path
        self.packed = content is None and is_packed(path)
        self.packed_messages = False
        self._lock = threading.Lock()
        with unpacked_file(path) if self.packed else local_file(content or path) as plain:
            self._connection = connect(plain, path, writable=writable)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def broken(self, what: str) -> RecordingCorrupt:
        return RecordingCorrupt(what, path=str(self.path), hint=recover_hint(self.path))

    def add_to(self, index: Db3Index) -> None:
        """Add this file's rows; RecordingCorrupt where one of them cannot be read."""
        index.begin_file()
        rows = self._add_rows(index, self.tables.numbers(index))
        listed = self._rows_in_time_index()
        if listed is not None and listed != rows:
            raise self.broken(f"the table holds {rows} messages, and its index over time lists {listed}")

    def is_sound(self) -> bool:
        """True when SQLite finds no fault, and the table and its index over time hold the same number of rows."""
        result = self._query("PRAGMA quick_check(1)")
        if not result or result[0][0] != "ok" or not self.tables:
            return False
        listed = self._rows_in_time_index()
        return listed is None or listed == self._query("SELECT count(*) FROM messages NOT INDEXED")[0][0]

    def messages(self) -> Iterator[MessageRow]:
        """The rows of all messages, in the order of their ids."""
        try:
            yield from self._connection.execute("SELECT rowid, topic_id, timestamp, data FROM messages ORDER BY rowid")
        except SQLITE_ERRORS as error:
            raise self.broken(f"SQLite says: {error}") from error

    def _query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except SQLITE_ERRORS as error:
            raise self.broken(f"SQLite says: {error}") from error

    @cached_property
    def tables(self) -> Tables:
        """Topics, message definitions (ROS 2 Iron and later) and the name of the ROS distribution."""
        tables = Tables()
        if distro_row := self._table("schema", "ros_distro"):
            tables.ros_distro = as_text(distro_row[0][0])
        columns = ("id", "name", "type", "serialization_format", "offered_qos_profiles", "type_description_hash")
        for number, name, kind, *more in self._table("topics", *columns, end=f"ORDER BY id LIMIT {MAX_TOPICS + 1}"):
            if not isinstance(number, int) or not isinstance(name, str) or not isinstance(kind, str):
                raise self.broken(f"the topics table holds {(number, name, kind)!r:.200}")
            tables.topics[number] = TopicFacts(name, kind, *map(as_text, more))
        if len(tables.topics) > MAX_TOPICS:
            what = f"{self.path}: more than {MAX_TOPICS:,} topics"
            raise LimitExceeded(what, size=len(tables.topics), limit=MAX_TOPICS)
        texts = ("topic_type", "encoding", "encoded_message_definition", "type_description_hash")
        short = f"WHERE length(encoded_message_definition) <= {_MAX_DEFINITION_BYTES}"
        for kind, encoding, text, type_hash in self._table("message_definitions", *texts, end=short):
            tables.definitions.append((as_text(kind), as_text(encoding), as_text(text), as_text(type_hash)))
        return tables

    def _table(self, name: str, *columns: str, end: str = "") -> list[tuple[Any, ...]]:
        """The rows of a table, with '' for a column that it lacks; none where there is no such table."""
        if not self._query("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name):
            return []
        there = {column for (column,) in self._query("SELECT name FROM pragma_table_info(?)", name)}
        chosen = ", ".join(column if column in there else "''" for column in columns)
        return self._query(f"SELECT {chosen} FROM {name} {end}")

    def _add_rows(self, index: Db3Index, topic_of_id: dict[int, int]) -> int:
        total, last = 0, None
        try:
            first = self._connection.execute("SELECT substr(data, 1, 4) FROM messages LIMIT 1").fetchone()
            self.packed_messages = bool(first) and first[0] == ZSTD_MAGIC
            cursor = self._connection.execute(
                "SELECT rowid, topic_id, timestamp, length(data) FROM messages ORDER BY rowid"
            )
            while rows := cursor.fetchmany(_BATCH_ROWS):
                self._add_batch(index, topic_of_id, rows)
                total += len(rows)
                last = rows[-1][0]
        except SQLITE_ERRORS as error:
            raise self.broken(f"after {total} messages (row {last}) SQLite says: {error}") from error
        return total

    def _add_batch(self, index: Db3Index, topic_of_id: dict[int, int], rows: list[tuple[Any, ...]]) -> None:
        # SQLite keeps any kind of value in any column; without a given dtype, numpy shows what is there.
        table = np.array(rows)
        if table.dtype != np.int64:
            odd = next((row for row in rows if any(type(value) is not int for value in row)), rows[0])
            raise self.broken(f"row {odd[0]} holds other things than numbers: {odd!r:.200}")
        ids, places = np.unique(table[:, 1], return_inverse=True)
        for number, count in zip(ids.tolist(), np.bincount(places.reshape(-1)).tolist(), strict=True):
            if number not in topic_of_id:
                raise self.broken(f"{count:,} messages have the topic id {number}, which the topics table lacks")
        table[:, 1] = np.array([topic_of_id[number] for number in ids.tolist()])[places.reshape(-1)]
        index.add(table)

    def _rows_in_time_index(self) -> int | None:
        """Rows by the index that rosbag2 keeps beside the table: SQLite has no checksums, and this is the next best."""
        rows = self._query("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'timestamp_idx'")
        if not rows:
            return None
        count = self._query("SELECT count(*) FROM messages INDEXED BY timestamp_idx")[0][0]
        return int(count)

    def read(self, row: int, target: memoryview) -> None:
        """Fill `target` with the beginning of a message's data."""
        if len(target) > MAX_CHUNK_BYTES:
            raise LimitExceeded(
                f"{self.path}: row {row} claims {len(target):,} bytes; the limit is {MAX_CHUNK_BYTES:,}",
                size=len(target),
                limit=MAX_CHUNK_BYTES,
            )
        try:
            with self._lock:
                record = self._connection.execute("SELECT data FROM messages WHERE rowid = ?", (row,)).fetchone()
        except sqlite3.ProgrammingError as error:
            raise RecordingError(f"{self.path}: the recording was closed") from error
        except SQLITE_ERRORS as error:
            raise self.broken(f"row {row}: SQLite says: {error}") from error
        if record is None or not isinstance(record[0], bytes) or len(record[0]) < len(target):
            kind = "nothing" if record is None else type(record[0]).__name__
            have = f"{len(record[0]):,}" if kind == "bytes" else kind
            raise self.broken(f"row {row} should hold {len(target):,} bytes, and holds {have}")
        target[:] = memoryview(record[0])[: len(target)]


def connect(file: Path, shown: Path, *, writable: bool = False) -> sqlite3.Connection:
    """A connection with the tables of a bag in it, which changes nothing on disk unless it is a writable copy."""
    uri = f"file:{quote(str(file.resolve()))}?mode={'rw' if writable else 'ro'}"
    pending = [Path(f"{file}{suffix}") for suffix in ("-wal", "-journal")]
    unfinished = [side.name for side in pending if side.exists() and side.stat().st_size]
    if not unfinished:
        _check_extent(file, shown)
    try:
        # immutable: no lock files, works on read-only disks; but it would overlook what lies in a write-ahead log.
        connection = sqlite3.connect(
            uri if unfinished else f"{uri}&immutable=1", uri=True, check_same_thread=False, isolation_level=None
        )
    except SQLITE_ERRORS as error:
        raise RecordingError(f"{shown}: SQLite cannot open it: {error}") from error
    connection.text_factory = lambda data: data.decode("utf-8", errors="replace")
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        tables = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
    except SQLITE_ERRORS as error:
        connection.close()
        beside = f"; {', '.join(unfinished)} lies beside it" if unfinished else ""
        raise RecordingCorrupt(f"SQLite says: {error}{beside}", path=str(shown), hint=recover_hint(shown)) from error
    # Views and virtual tables can run for ever or read elsewhere; a bag's tables are plain.
    plain = {name for name, sql in tables.items() if not str(sql).upper().startswith("CREATE VIRTUAL")}
    if missing := {"topics", "messages"} - plain:
        connection.close()
        raise RecordingCorrupt(
            f"a SQLite file without the table {' and '.join(sorted(missing))}: not a ROS 2 bag", path=str(shown)
        )
    return connection


def _check_extent(file: Path, shown: Path) -> None:
    """Refuse a file that was cut: SQLite would read zeros where its last page ends."""
    size = file.stat().st_size
    with open_source(file, ERRORS) as source:
        page_bytes, claimed = extent(source.read(0, HEADER_BYTES))
    if size < claimed or (page_bytes and size % page_bytes):
        raise RecordingCorrupt(
            f"the file ends here, and should have {max(claimed, size):,} bytes or more: it was cut",
            path=str(shown),
            offset=size,
            hint=recover_hint(shown),
        )
