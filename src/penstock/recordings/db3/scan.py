"""Saving the rows of a damaged db3 file: through SQLite where it finds no fault, else page by page."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.errors import PenstockError, RecordingCorrupt
from penstock.formats.content import ZSTD_MAGIC
from penstock.recordings.db3.file import SQLITE_ERRORS, connect
from penstock.recordings.db3.sqlite_pages import Row, SqlitePages
from penstock.recordings.db3.writer import Db3Writer
from penstock.recordings.messages.schemas import type_name
from penstock.recordings.recovery.metadata import TopicFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.recordings.recovery.metadata import FileFacts
    from penstock.recordings.recovery.report import DamageLog
    from penstock.recordings.recovery.scan_bytes import FileBytes

_DEFINITION_ENCODINGS = ("ros2msg", "ros2idl", "unknown")
_MAX_SMALL_ROW_BYTES = 16 << 20
_MAX_TOPICS = 100_000
_MOST_ROWS = 1 << 40


@dataclass
class Tables:
    """The small tables of a bag."""

    ros_distro: str = ""
    topics: dict[int, TopicFacts] = field(default_factory=dict)
    definitions: list[tuple[str, str, str, str]] = field(default_factory=list)


def recover_db3(source: FileBytes, target: Path, log: DamageLog, facts: FileFacts) -> None:
    """Write every row that can be read to a new file at `target`."""
    with tempfile.TemporaryDirectory(prefix=".penstock-recover-", dir=target.parent) as scratch:
        connection = _sound_database(source, Path(scratch))
        if connection is not None:
            try:
                _copy_by_sqlite(connection, source, target, log, facts)
            finally:
                connection.close()
            return
    log.notes.append("SQLite finds the file broken; it was read page by page")
    _copy_by_pages(source, target, log, facts)


def _sound_database(source: FileBytes, scratch: Path) -> sqlite3.Connection | None:
    """A connection to a file that SQLite finds whole, else None. What a killed recorder left beside it is applied."""
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
        connection = connect(path, source.path, writable=bool(pending))
    except PenstockError:
        return None
    try:
        found = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found and found[0] == "ok" and _counts_agree(connection):
            return connection
    except SQLITE_ERRORS:
        # Whatever SQLite stumbles over, the pages are read without it.
        connection.close()
        return None
    connection.close()
    return None


def _counts_agree(connection: sqlite3.Connection) -> bool:
    """The table and its index over time, where there is one, hold the same number of rows."""
    named = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'timestamp_idx'").fetchone()
    if named is None:
        return True
    (rows,) = connection.execute("SELECT count(*) FROM messages NOT INDEXED").fetchone()
    (listed,) = connection.execute("SELECT count(*) FROM messages INDEXED BY timestamp_idx").fetchone()
    return bool(rows == listed)


# Through SQLite


def _copy_by_sqlite(
    connection: sqlite3.Connection, source: FileBytes, target: Path, log: DamageLog, facts: FileFacts
) -> None:
    try:
        tables = _read_tables(connection)
        rows = connection.execute("SELECT rowid, topic_id, timestamp, data FROM messages ORDER BY rowid")
        _write(target, tables, rows, log, facts, source.size)
    except SQLITE_ERRORS as error:
        raise RecordingCorrupt(f"SQLite says: {error}", path=str(source.path)) from error


def _read_tables(connection: sqlite3.Connection) -> Tables:
    tables = Tables()
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "schema" in names:
        found = connection.execute("SELECT ros_distro FROM schema").fetchone()
        tables.ros_distro = str(found[0]) if found else ""
    columns = [name for (name,) in connection.execute("SELECT name FROM pragma_table_info('topics')")]
    wanted = ("id", "name", "type", "serialization_format", "offered_qos_profiles", "type_description_hash")
    chosen = ", ".join(name if name in columns else "''" for name in wanted)
    for number, *texts in connection.execute(f"SELECT {chosen} FROM topics LIMIT {_MAX_TOPICS}"):
        tables.topics[number] = TopicFacts(*(_text(value) for value in texts))
    if "message_definitions" in names:
        tables.definitions = [
            (_text(kind), _text(encoding), _text(text), _text(type_hash))
            for kind, encoding, text, type_hash in connection.execute(
                "SELECT topic_type, encoding, encoded_message_definition, type_description_hash "
                f"FROM message_definitions WHERE length(encoded_message_definition) <= {_MAX_SMALL_ROW_BYTES}"
            )
        ]
    return tables


def _text(value: Any) -> str:
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)


# Page by page


def _copy_by_pages(source: FileBytes, target: Path, log: DamageLog, facts: FileFacts) -> None:
    begin = log.mark()
    rows = PagedRows(source, log)
    _write(target, rows.tables, rows.messages(), log, facts, source.size)
    rows.settle(begin)


class PagedRows:
    """The rows of a file whose tree SQLite cannot follow, read page by page; `log` counts what is lost."""

    def __init__(self, source: FileBytes, log: DamageLog) -> None:
        self._log = log
        self._size = source.size
        self._pages = SqlitePages(source)
        if not self._pages.header_is_whole:
            cause = f"the header is broken; pages of {self._pages.page_bytes:,} bytes were taken"
            log.add(0, min(100, source.size), cause, 0)
        self.tables, index = _sort_rows(self._pages)
        order = np.argsort(np.array(index.rowid, np.int64), kind="stable")
        self._rowids = np.array(index.rowid, np.int64)[order]
        self._places = np.array(index.page, np.uint32)[order], np.array(index.place, np.uint16)[order]

    def messages(self) -> Iterator[tuple[int, Any, Any, Any]]:
        """(row id, topic, time, data) of the rows that are whole, each row id once."""
        last: int | None = None
        for position, rowid in enumerate(self._rowids.tolist()):
            if rowid == last:
                continue
            values = self._values(position)
            if values is None:
                page, place = (int(column[position]) for column in self._places)
                at = (page - 1) * self._pages.page_bytes
                cause = "a row whose data are in pages that are missing"
                self._log.add(at + place, at + self._pages.page_bytes, cause, 1)
                continue
            last = rowid
            yield rowid, values[1], values[2], values[3]

    def data(self, rowid: int) -> bytes | None:
        """The payload of one row, None where it is not whole."""
        first, end = np.searchsorted(self._rowids, (rowid, rowid + 1)).tolist()
        each = (self._values(position, again=True) for position in range(first, end))
        data = next((values[3] for values in each if values is not None), None)
        return data if isinstance(data, bytes) else None

    def settle(self, begin: tuple[int, int, int, int, int]) -> None:
        """Count what is missing since a mark, after all messages were read."""
        # rosbag2 numbers its rows from 1 and removes none: what is missing in between is lost.
        listed = (values[1] for values in self._pages.index_rows() if len(values) == 2 and isinstance(values[1], int))
        highest = max(int(self._rowids.max(initial=0)), max((row for row in listed if row < _MOST_ROWS), default=0))
        cause = f"rows between 1 and {highest:,} that are in no page"
        self._log.settle(begin, highest, (0, self._size), cause, hidden=True)
        claimed, rest = self._pages.claimed_bytes(), self._size % self._pages.page_bytes
        if claimed > self._size:
            self._log.add(self._size, claimed, "the file was cut here")
        elif rest:
            self._log.add(self._size - rest, self._size, "the file ends inside a page")

    def _values(self, position: int, *, again: bool = False) -> tuple[Any, ...] | None:
        row = self._pages.row_at(*(int(column[position]) for column in self._places))
        return None if row is None else self._pages.values(row, again=again)


@dataclass
class _RowIndex:
    """Where the rows of the table of messages lie: 14 bytes per row."""

    rowid: array[int] = field(default_factory=lambda: array("q"))
    page: array[int] = field(default_factory=lambda: array("I"))
    place: array[int] = field(default_factory=lambda: array("H"))


def _sort_rows(pages: SqlitePages) -> tuple[Tables, _RowIndex]:
    """Which table each row is of, told by the kinds of its values."""
    tables, index = Tables(), _RowIndex()
    for row in pages.rows():
        kinds = "".join(_kind(serial) for serial in row.types)
        if kinds[1:] == "iib" and len(kinds) == 4:
            index.rowid.append(row.rowid)
            index.page.append(row.page)
            index.place.append(row.place)
        elif kinds[1:4] == "ttt" and len(kinds) in (4, 5, 6) and row.payload_bytes <= _MAX_SMALL_ROW_BYTES:
            _add_small_row(tables, row, pages)
        elif kinds in ("nt", "it") and not tables.ros_distro and row.payload_bytes < 64:
            values = pages.values(row)
            tables.ros_distro = _text(values[1]) if values else ""
    return tables, index


def _kind(serial: int) -> str:
    if serial in (0, 7):
        return "n" if serial == 0 else "f"
    return "i" if serial < 10 else "t" if serial % 2 else "b"


def _add_small_row(tables: Tables, row: Row, pages: SqlitePages) -> None:
    values = pages.values(row)
    if values is None:
        return
    texts = [_text(value) for value in values[1:]]
    if texts[0].startswith("/"):
        if len(tables.topics) < _MAX_TOPICS:
            tables.topics[row.rowid] = TopicFacts(*texts)
    elif texts[1] in _DEFINITION_ENCODINGS and len(texts) == 4:
        tables.definitions.append((texts[0], texts[1], texts[2], texts[3]))


# Either way


def _write(target: Path, tables: Tables, rows: Any, log: DamageLog, facts: FileFacts, size_bytes: int) -> None:
    with Db3Writer(target, tables.ros_distro) as writer:
        for definition in tables.definitions:
            writer.definition(*definition)
        for topic in tables.topics.values():
            facts.topics.setdefault(topic, 0)
            writer.topic(topic)
        for _, number, time_ns, data in rows:
            known = tables.topics.get(number)
            if known is None or not isinstance(time_ns, int) or not isinstance(data, bytes):
                why = f"messages of topic {number!r:.20}, whose row is lost" if known is None else "rows without data"
                log.add(0, size_bytes, why, 1)
                continue
            if facts.first_ns is None and data[:4] == ZSTD_MAGIC:
                facts.packed_messages = True
            writer.write(writer.topic(known), time_ns, data)
            facts.count(known, time_ns)
            log.took(known.name, type_name(known.type))
        writer.close(facts)
