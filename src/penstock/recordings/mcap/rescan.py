"""An mcap file whose indexes do not hold: the walk that `recover` uses decides which messages are there."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from penstock.recordings.mcap import records as r
from penstock.recordings.mcap.scan import McapScan
from penstock.recordings.mcap.survey import McapSurvey, survey_mcap
from penstock.recordings.recovery.report import DamageLog
from penstock.recordings.recovery.scan_index import ScanPlaces

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.recordings.mcap.plausible import McapRecord
    from penstock.recordings.message_index import ChunksBuilder, IndexBuilder
    from penstock.recordings.recovery.scan_bytes import FileBytes, ScanBytes

_BATCH_MESSAGES = 1 << 16


class _NoCopies:
    """Attachments and metadata are not messages."""

    def metadata(self, content: bytes, name: bytes) -> None:
        """Left where it is."""

    def attach(self, n_bytes: int, content: Iterator[bytes], index: bytes) -> None:
        """Left where it is."""


class ScannedMcap(_NoCopies):
    """Adds the messages of one file, found record by record, to an index; `log` counts what is lost."""

    def __init__(
        self,
        source: FileBytes,
        log: DamageLog,
        number: int,
        chunks: ChunksBuilder,
        index: IndexBuilder,
        topic_of: Callable[[r.ChannelRecord, r.SchemaRecord | None], int],
    ) -> None:
        self.log = log
        self.pairs: set[tuple[int, int]] = set()
        self._path = source.path
        self._index = index
        self._topic_of = topic_of
        self._rows = array("i"), array("q"), array("i"), array("I"), array("Q")
        self._places = ScanPlaces(chunks, source.size, number)
        self._scan = McapScan(self, log, survey_mcap(source), source.path)
        self._scan.run(source)
        self._flush()

    def channel(self, content: bytes, schema: bytes | None) -> int:
        record = r.read_channel(_records(content, self._path), 0, len(content))
        described = None if schema is None else r.read_schema(_records(schema, self._path), 0, len(schema))
        topic = self._topic_of(record, described)
        self.pairs.add((record.id, topic))
        return topic

    def message(self, source: ScanBytes, record: McapRecord, number: int, head: bytes) -> None:
        time_ns = int.from_bytes(head[6:14], "little")
        chunk, offset = self._places.place(source, record, self._scan.packed)
        for column, value in zip(self._rows, (number, time_ns, chunk, offset, record.end - record.at), strict=True):
            column.append(value)
        if len(self._rows[0]) >= _BATCH_MESSAGES:
            self._flush()

    def _flush(self) -> None:
        topic, times_ns, chunk, offset, span = (np.array(column) for column in self._rows)
        for column in self._rows:
            del column[:]
        self._index.add(topic, times_ns, chunk, offset, span.astype(np.uint32))


class ChunkMessages(_NoCopies):
    """The messages that a walk through one chunk finds: (time, offset, span) by topic."""

    def __init__(self, pairs: set[tuple[int, int]], path: Path) -> None:
        """`pairs`: (channel, topic), as the index of the recording has them."""
        self.found: dict[int, list[tuple[int, int, int]]] = {}
        self._topics: dict[int, list[int]] = {}
        for channel, topic in sorted(pairs):
            self._topics.setdefault(channel, []).append(topic)
        self._path = path
        self._begin = 0

    def walk(self, source: ScanBytes, begin: int, end: int) -> None:
        self._begin = begin
        # What a channel is called does not matter here, only that it is known.
        channels = {channel: channel.to_bytes(2, "little") + bytes(14) for channel in self._topics}
        survey = McapSurvey(channels=channels)
        McapScan(self, DamageLog(), survey, self._path).walk(source, begin, end, inner=True)

    def channel(self, content: bytes, schema: bytes | None) -> int:
        return int.from_bytes(content[:2], "little")

    def message(self, source: ScanBytes, record: McapRecord, number: int, head: bytes) -> None:
        time_ns = int.from_bytes(head[6:14], "little")
        for topic in self._topics.get(number, ()):
            place = time_ns, record.at - self._begin, record.end - record.at
            self.found.setdefault(topic, []).append(place)


def _records(content: bytes, path: Path) -> r.RawChunk:
    return r.RawChunk(memoryview(content), path, 0)
