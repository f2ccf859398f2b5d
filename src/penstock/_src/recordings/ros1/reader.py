"""ROS 1 bags: the index at the end of the file and behind every chunk, never the messages."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.chunked import ChunkedRecording
from penstock._src.recordings.codecs import StoredChunk, check_sizes
from penstock._src.recordings.file_window import corrupt, no_record_note, recover_hint
from penstock._src.recordings.message_index import RecordingIndex
from penstock._src.recordings.recording import OnCorrupt
from penstock._src.recordings.recovery.scan_bytes import FileBytes, ScannedRecord
from penstock._src.recordings.ros1.parsing import Ros1Framing, parse_record
from penstock._src.recordings.ros1.records import MAGIC, OP_BAG_HEADER, OP_CHUNK, OP_INDEX
from penstock._src.recordings.ros1.survey import survey_bag, topic_number
from penstock._src.recordings.split import SplitFiles
from penstock._src.system.closing import on_error
from penstock.errors import LimitExceeded, NotARecording, RecordingCorrupt, RecordingError

if TYPE_CHECKING:
    from penstock._src.recordings.recovery.report import DamageLog

# Index entries are sorted and measured in batches of about so many, so that a long bag needs no large temporaries.
_BATCH_MESSAGES = 1 << 14


class Ros1Recording(ChunkedRecording):
    """A ROS 1 bag, format 2.0."""

    kind: ClassVar[str] = "ros1"
    framing = Ros1Framing

    def __init__(self, source: SplitFiles, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, on_corrupt=on_corrupt, notes=source.notes)
        with on_error(self.close), self._open_file(source.path) as file:
            self.size_bytes = file.size_bytes
            self._open(file)

    def _open(self, file: FileBytes) -> None:
        """The index as the bag has it; where it does not hold, as a scan of the whole bag finds it."""
        try:
            index = self._read_index(file)
        except (RecordingCorrupt, LimitExceeded) as error:
            index, log = self._scanned()
            if log.lost and self._on_corrupt == "raise":
                raise
            self.notes.append(f"{error.message}; the bag was scanned")
            log.report_to(self._add_loss, self.notes)
        self._set_index(index)

    def _read_index(self, file: FileBytes) -> RecordingIndex:
        _check_header(file)
        survey = survey_bag(file)
        counts = f"{len(survey.connections)} connections and {len(survey.chunk_messages)} chunks"
        claimed = f"{survey.connection_count} and {survey.chunk_count}"
        if len(survey.connections) < survey.connection_count or len(survey.chunk_messages) < survey.chunk_count:
            raise corrupt(file.path, f"the index ends with {counts}; the bag claims {claimed}", survey.end)
        if (len(survey.connections), len(survey.chunk_messages)) != (survey.connection_count, survey.chunk_count):
            self.notes.append(f"the index lists {counts}; the bag header claims {claimed}")
        if survey.end < self.size_bytes:
            self.notes.append(no_record_note(self.size_bytes - survey.end, survey.end))
        index = RecordingIndex()
        topics = {number: topic_number(index.topics, *each) for number, each in survey.connections.items()}
        index.pairs = set(topics.items())
        self.notes += Ros1Indexer(file, index, topics).run(survey.chunk_messages, survey.index_at)
        return index

    def _scanned(self) -> tuple[RecordingIndex, DamageLog]:
        from penstock._src.recordings.recovery.report import DamageLog
        from penstock._src.recordings.ros1.scan import index_bag

        index, log = RecordingIndex(), DamageLog(file=self.path.name)
        with FileBytes(self.path, source=self._files[0]) as source:
            index_bag(source, log, index)
        return index, log


def _check_header(file: FileBytes) -> None:
    """Refuse what is no bag with an index."""
    path, size = file.path, file.size_bytes
    magic = file.at(0, len(MAGIC))
    if magic != MAGIC:
        if magic.startswith(b"#ROSBAG V") or magic.startswith(b"#ROSRECORD"):
            version = magic.decode("ascii", errors="replace").strip()
            raise RecordingError(
                f"{path}: written in the old format {version!r}; penstock reads bags of format 2.0",
                hint="rewrite it with ROS 1: rosbag filter old.bag new.bag True",
            )
        if size < len(MAGIC) and MAGIC.startswith(magic):
            raise corrupt(path, f"the file is {size} bytes long, too short for a bag", size)
        raise NotARecording(f"{path}: not a ROS 1 bag: it begins with {magic[:13]!r}")
    record = _record(file, len(MAGIC), OP_BAG_HEADER)
    if record.fields.get(b"encryptor"):
        raise RecordingError(f"{path}: encrypted by {record.text(b'encryptor')!r}", hint="decrypt it with ROS 1 first")
    index_at = record.number(b"index_pos")
    if index_at == 0:
        raise RecordingCorrupt(
            "the bag has no index: its recorder was stopped before it could write one (a .bag.active file)",
            path=str(path),
            offset=len(MAGIC),
            hint=recover_hint(path),
        )
    if index_at > size or index_at < record.end:
        raise corrupt(path, f"the index should begin at byte {index_at:,}; the file has {size:,}: it was cut", size)


def _record(file: FileBytes, at: int, op: int) -> ScannedRecord:
    """The record at a position, which must be whole and of a kind."""
    record = parse_record(file, at, file.size_bytes, inner=False)
    if record.state != "whole":
        raise corrupt(file.path, f"{record.why}: it was cut" if record.state == "cut" else record.why, at)
    if record.op != op:
        raise corrupt(file.path, f"a record of kind {record.op} lies where one of kind {op} must be", at)
    return record


class Ros1Indexer:
    """Collects the index records behind the chunks and turns them into the message index, batch by batch.

    Where one does not hold, the records of the bag decide what is there (`index_bag` in `scan.py`).
    """

    def __init__(self, file: FileBytes, index: RecordingIndex, topic_of_connection: dict[int, int]) -> None:
        self._file = file
        self._topic_of_connection = topic_of_connection
        self._index = index

    def run(self, chunks: dict[int, int], index_at: int) -> list[str]:
        """Take the index of every chunk; RecordingCorrupt or LimitExceeded where one does not hold.

        `chunks`: messages by position, as the end of the bag tells them. Gives notes.
        """
        padding: list[tuple[int, int]] = []
        positions = sorted(chunks)
        for position, end in zip(positions, [*positions[1:], index_at], strict=False):
            if self._index.entry_count >= _BATCH_MESSAGES:
                self._index.flush_entries(self._file.path, _times_and_offsets)
            count, at = self._add_chunk(position, end)
            if count != chunks[position]:
                what = "the chunk's index and the end of the bag count its messages differently"
                raise corrupt(self._file.path, what, position)
            if at < end:
                padding.append((end - at, at))
        self._index.flush_entries(self._file.path, _times_and_offsets)
        if not padding:
            return []
        return [no_record_note(sum(n_bytes for n_bytes, _ in padding), padding[0][1], len(padding))]

    def _add_chunk(self, position: int, end: int) -> tuple[int, int]:
        """One chunk and its index records, which lie before `end`; messages listed, and where the records end."""
        path = self._file.path
        record = _record(self._file, position, OP_CHUNK)
        codec, raw_bytes = record.text(b"compression"), record.number(b"size")
        if record.end > end:
            left = f"the chunk claims {record.length:,} bytes, and {end - record.data_at:,} are left for it"
            raise corrupt(path, left, position)
        check_sizes(path, position, codec, record.length, raw_bytes)
        if codec == "none" and raw_bytes != record.length:
            raise corrupt(path, f"the plain chunk claims {raw_bytes:,} bytes and holds {record.length:,}", position)
        number = self._index.chunks.add(StoredChunk(record.data_at, record.length, raw_bytes, codec))
        return self._add_index_records(number, record.end, end)

    def _add_index_records(self, chunk: int, at: int, end: int) -> tuple[int, int]:
        total = 0
        while at < end:
            record = parse_record(self._file, at, end, inner=False)
            if record.state != "whole":
                break  # whether anything is missing is seen by the counts
            if record.op != OP_INDEX:
                raise corrupt(self._file.path, "a record that is not an index follows a chunk's index", at)
            connection, count = record.number(b"conn"), record.number(b"count")
            topic = self._topic_of_connection.get(connection)
            if topic is None and count:
                what = f"an index record of connection {connection}, which the bag does not list"
                raise corrupt(self._file.path, what, at)
            if topic is not None and count:
                self._index.add_entries(topic, chunk, self._file.at(record.data_at, record.length), count)
            total += count
            at = record.end
        return total, at


def _times_and_offsets(entries: bytearray, path: Path) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    table = np.frombuffer(entries, "<u4").reshape(-1, 3)
    return table[:, 0].astype(np.int64) * 1_000_000_000 + table[:, 1], table[:, 2]
