"""A bag whose index does not hold: the walk that `recover` uses decides which messages are there, and lists them."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from penstock.recordings.message_index import ChunksBuilder, IndexBuilder
from penstock.recordings.messages.schemas import Schema, type_name
from penstock.recordings.recovery.report import DamageLog
from penstock.recordings.recovery.scan_index import ScanPlaces
from penstock.recordings.ros1.plausible import parse_fields
from penstock.recordings.ros1.scan import BagScan, Survey, survey_bag

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.recordings.recovery.scan_bytes import FileBytes, ScanBytes
    from penstock.recordings.ros1.plausible import Ros1Record

_BATCH_MESSAGES = 1 << 16


class ChunkMessages:
    """The messages that a walk through one chunk finds: (time, offset, span) by topic."""

    def __init__(self, topic_of_connection: dict[int, int], path: Path, usual_header_bytes: int) -> None:
        self.found: dict[int, list[tuple[int, int, int]]] = {}
        self._topics = topic_of_connection
        self._path = path
        self._usual_header_bytes = usual_header_bytes
        self._begin = 0

    def walk(self, source: ScanBytes, begin: int, end: int) -> None:
        self._begin = begin
        survey = Survey(dict.fromkeys(self._topics, (b"", b"")))
        scan = BagScan(self, DamageLog(), survey, self._path)
        scan.usual_header_bytes = self._usual_header_bytes
        scan.walk(source, begin, end, inner=True)

    def message(self, source: ScanBytes, record: Ros1Record, topic: bytes, described: bytes, time_ns: int) -> None:
        number = self._topics.get(record.u32(b"conn"))
        if number is not None:
            place = time_ns, record.at - self._begin, record.end - record.at
            self.found.setdefault(number, []).append(place)

    def connection(self, number: int, topic: bytes, described: bytes) -> None:
        """The bag's own list of connections is complete."""


class ScannedBag:
    """Where the messages of a bag lie, found record by record; `log` counts what is lost."""

    def __init__(self, source: FileBytes, log: DamageLog) -> None:
        self.log = log
        self.connections: dict[int, tuple[str, Schema]] = {}
        self.chunks = ChunksBuilder()
        # Connection, time, chunk, offset, span: 28 bytes per message.
        self._rows = array("i"), array("q"), array("i"), array("I"), array("Q")
        self._places = ScanPlaces(self.chunks, source.size)
        self._scan = BagScan(self, log, survey_bag(source), source.path)
        self._scan.run(source)

    def message(self, source: ScanBytes, record: Ros1Record, topic: bytes, described: bytes, time_ns: int) -> None:
        connection = record.u32(b"conn")
        if connection not in self.connections:
            self._describe(connection, topic, described)
        chunk, offset = self._places.place(source, record, self._scan.packed)
        for column, value in zip(self._rows, (connection, time_ns, chunk, offset, record.end - record.at), strict=True):
            column.append(value)

    def connection(self, number: int, topic: bytes, described: bytes) -> None:
        if number not in self.connections:
            self._describe(number, topic, described)

    def index(self, topic_of_connection: dict[int, int]) -> IndexBuilder:
        """The message index, with connections joined to topics."""
        made = IndexBuilder()
        connection, times_ns, chunk, offset, span = (np.frombuffer(column, column.typecode) for column in self._rows)
        for begin in range(0, connection.size, _BATCH_MESSAGES):
            part = slice(begin, begin + _BATCH_MESSAGES)
            topics = np.array([topic_of_connection[number] for number in connection[part].tolist()], np.int32)
            made.add(topics, times_ns[part], chunk[part], offset[part], span[part].astype(np.uint32))
        return made

    def _describe(self, number: int, topic: bytes, described: bytes) -> None:
        fields = parse_fields(described) or {}
        kind, text = (fields.get(name, b"").decode("utf-8", "replace") for name in (b"type", b"message_definition"))
        self.connections[number] = (topic.decode("utf-8", "replace"), Schema(type_name(kind), "ros1msg", text))
