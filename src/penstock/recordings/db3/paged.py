"""A db3 file that SQLite cannot read: the pages that `recover` reads decide which messages are there."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import RecordingCorrupt
from penstock.formats.content import ZSTD_MAGIC
from penstock.recordings.db3.scan import PagedRows
from penstock.recordings.file_window import recover_hint
from penstock.recordings.messages.schemas import type_name

if TYPE_CHECKING:
    from penstock.recordings.db3.file import Db3Index
    from penstock.recordings.recovery.report import DamageLog
    from penstock.recordings.recovery.scan_bytes import FileBytes

_BATCH_ROWS = 4096


class PagedDb3File:
    """A damaged file with the interface of `Db3File`; rows are numbered as in the table."""

    def __init__(self, source: FileBytes, log: DamageLog, *, packed: bool = False) -> None:
        self.path = source.path
        self.packed = packed
        self.packed_messages = False
        self.log = log
        self._lock = threading.Lock()
        self._source = source
        self._rows = PagedRows(source, log)

    def close(self) -> None:
        with self._lock:
            self._source.close()

    def add_to(self, index: Db3Index) -> None:
        """Add the rows that are whole; what is lost is in the log."""
        index.begin_file()
        begin = self.log.mark()
        topics = self._topics(index)
        pending: list[tuple[int, int, int, int]] = []
        for rowid, number, time_ns, data in self._rows.messages():
            known = topics.get(number)
            if known is None or not isinstance(time_ns, int) or not isinstance(data, bytes):
                why = f"messages of topic {number!r:.20}, whose row is lost" if known is None else "rows without data"
                self.log.add(0, self._source.size, why, 1)
                continue
            if not self.log.written:
                self.packed_messages = data[:4] == ZSTD_MAGIC
            self.log.took(*known[1:])
            pending.append((known[0], time_ns, rowid, len(data)))
            if len(pending) == _BATCH_ROWS:
                _add(index, pending)
        _add(index, pending)
        self._rows.settle(begin)

    def read(self, row: int, target: memoryview) -> None:
        """Fill `target` with the beginning of a message's data."""
        with self._lock:
            data = self._rows.data(row)
        if data is None or len(data) < len(target):
            what = f"row {row} should hold {len(target):,} bytes, and they are not there"
            raise RecordingCorrupt(what, path=str(self.path), hint=recover_hint(self.path))
        target[:] = memoryview(data)[: len(target)]

    def _topics(self, index: Db3Index) -> dict[int, tuple[int, str, str]]:
        """Topic number, name and type by the number that the file gives to a topic."""
        tables = self._rows.tables
        texts = {type_name(kind): (form, text) for kind, form, text, _ in tables.definitions if form != "unknown"}
        topics = {}
        for number, facts in tables.topics.items():
            kind = type_name(facts.type)
            topics[number] = (index.topic(facts.name, facts.encoding or "cdr", kind, texts), facts.name, kind)
        return topics


def _add(index: Db3Index, pending: list[tuple[int, int, int, int]]) -> None:
    rows = np.array(pending, np.int64).reshape(-1, 4)
    pending.clear()
    for topic in np.flatnonzero(np.bincount(rows[:, 0])).tolist() if rows.size else ():
        mine = rows[rows[:, 0] == topic]
        index.add(topic, mine[:, 1], mine[:, 2], mine[:, 3])
