"""Where every message lies, in flat arrays: 20 bytes per message, no Python object per message."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.codecs import CODECS, StoredChunk
from penstock._src.recordings.file_window import recover_hint
from penstock._src.recordings.messages.schemas import TopicTable
from penstock._src.recordings.recording import LargestReads
from penstock.errors import RecordingCorrupt

TimesAndOffsets = tuple[NDArray[np.int64], NDArray[Any]]


class TopicIndex(NamedTuple):
    """The messages of one topic in file order: time, chunk number, offset in the raw chunk, bytes it may span."""

    times_ns: NDArray[np.int64]
    chunk: NDArray[np.int32]
    offset: NDArray[np.uint32]
    span: NDArray[np.uint32]

    @property
    def nbytes(self) -> int:
        return self.times_ns.nbytes + self.chunk.nbytes + self.offset.nbytes + self.span.nbytes


class ChunkIndex(NamedTuple):
    """Where the chunks lie: file number, position of their stored bytes, sizes, codec number; CRC 0 is not checked."""

    file: NDArray[np.int32]
    position: NDArray[np.int64]
    stored_bytes: NDArray[np.int64]
    raw_bytes: NDArray[np.int64]
    codec: NDArray[np.uint8]
    crc: NDArray[np.uint32]
    part: NDArray[np.uint8]  # 1: the stream is cut, and decoded as far as it goes

    @property
    def nbytes(self) -> int:
        columns = (self.file, self.position, self.stored_bytes, self.raw_bytes, self.codec, self.crc, self.part)
        return sum(column.nbytes for column in columns)

    @property
    def whole(self) -> NDArray[np.bool_]:
        """Chunks that must be read as a whole: compressed, or with a checksum to verify."""
        return np.asarray((self.codec != 0) | (self.crc != 0))

    def codecs(self) -> set[str]:
        """The compressions in use."""
        # Not np.unique: its first call imports numpy.ma, which costs more than opening a bag.
        return {CODECS[number] for number in np.flatnonzero(np.bincount(self.codec)).tolist()}


class ChunkIndexBuilder:
    """Chunks as they are found; `add` returns the chunk's number."""

    def __init__(self) -> None:
        self._columns = (array("i"), array("q"), array("q"), array("q"), array("B"), array("I"), array("B"))

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, chunk: StoredChunk, file: int = 0) -> int:
        codec = CODECS.index(chunk.codec)
        values = (file, chunk.data_at, chunk.stored_bytes, chunk.raw_bytes, codec, chunk.crc, chunk.is_part)
        for column, value in zip(self._columns, values, strict=True):
            column.append(value)
        return len(self) - 1

    def rollback(self, length: int) -> None:
        """Forget the chunks from number `length` on."""
        for column in self._columns:
            del column[length:]

    def raw_bytes(self) -> NDArray[np.int64]:
        return np.array(self._columns[3], np.int64)

    def positions(self) -> NDArray[np.int64]:
        return np.array(self._columns[1], np.int64)

    def finish(self) -> ChunkIndex:
        dtypes = (np.int32, np.int64, np.int64, np.int64, np.uint8, np.uint32, np.uint8)
        made: list[Any] = [np.array(column, dtype) for column, dtype in zip(self._columns, dtypes, strict=True)]
        return ChunkIndex(*made)


class TopicColumns:
    """Columns of numbers for every topic, which grow batch by batch and can go back to where they were."""

    def __init__(self, *dtypes: str) -> None:
        self._dtypes = tuple(np.dtype(dtype) for dtype in dtypes)
        self._columns: dict[int, tuple[bytearray, ...]] = {}

    def extend(self, topic: int, *values: NDArray[Any]) -> None:
        columns = self._columns.get(topic)
        if columns is None:
            columns = self._columns[topic] = tuple(bytearray() for _ in self._dtypes)
        for column, source, dtype in zip(columns, values, self._dtypes, strict=True):
            column += source.astype(dtype, copy=False).tobytes()

    def counts(self) -> dict[int, int]:
        """Messages so far, by topic."""
        return {topic: len(columns[0]) // self._dtypes[0].itemsize for topic, columns in self._columns.items()}

    def rollback(self, counts: Mapping[int, int]) -> None:
        """Back to what `counts()` returned before."""
        for topic, columns in self._columns.items():
            for column, dtype in zip(columns, self._dtypes, strict=True):
                del column[counts.get(topic, 0) * dtype.itemsize :]

    def arrays(self, topic: int) -> list[NDArray[Any]]:
        """The columns of a topic, used in place."""
        columns = self._columns.get(topic) or tuple(bytearray() for _ in self._dtypes)
        return [np.frombuffer(column, dtype) for column, dtype in zip(columns, self._dtypes, strict=True)]


class IndexBuilder(TopicColumns):
    """The columns of `TopicIndex`; batches come in file order, so nothing is ever sorted as a whole."""

    def __init__(self) -> None:
        super().__init__("<i8", "<i4", "<u4", "<u4")

    def add(
        self,
        topic: NDArray[np.int32],
        times_ns: NDArray[np.int64],
        chunk: NDArray[np.int32],
        offset: NDArray[np.uint32],
        span: NDArray[np.uint32],
    ) -> None:
        """Append messages that are in file order within each topic."""
        if topic.size == 0:
            return
        order = np.argsort(topic, kind="stable")
        grouped = topic[order]
        starts = np.flatnonzero(np.concatenate(([True], grouped[1:] != grouped[:-1])))
        ends = np.append(starts[1:], grouped.size)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            own = order[start:end]
            self.extend(int(grouped[start]), times_ns[own], chunk[own], offset[own], span[own])

    def finish(self, topic_count: int) -> tuple[TopicIndex, ...]:
        """The index of topics 0 … topic_count - 1."""
        return tuple(TopicIndex(*self.arrays(topic)) for topic in range(topic_count))


def relocated(old: TopicIndex, new: TopicIndex) -> TopicIndex | None:
    """The places of `new` under the numbers of `old`; None where the two do not list messages of the same times."""
    of_old, of_new = (np.argsort(each.times_ns, kind="stable") for each in (old, new))
    if not np.array_equal(old.times_ns[of_old], new.times_ns[of_new]):
        return None
    place = np.empty_like(of_new)
    place[of_old] = of_new
    return TopicIndex(old.times_ns, new.chunk[place], new.offset[place], new.span[place])


def largest_reads(index: Sequence[TopicIndex], chunks: ChunkIndex) -> LargestReads:
    """What reading these topics holds at least: the largest message, and the largest chunk that is read whole."""
    used = np.zeros(chunks.whole.size, np.bool_)
    for topic in index:
        used[topic.chunk] = True
    used &= chunks.whole
    return LargestReads(
        message_bytes=max((int(topic.span.max()) for topic in index if topic.span.size), default=0),
        chunk_bytes=int(chunks.raw_bytes[used].max(initial=0)),
        passing_bytes=int(chunks.stored_bytes[used & (chunks.codec != 0)].max(initial=0)),
    )


def time_range_ns(index: Sequence[TopicIndex]) -> tuple[int, int]:
    """The earliest and the latest receive time; (0, 0) without messages."""
    used = [topic.times_ns for topic in index if topic.times_ns.size]
    if not used:
        return 0, 0
    return min(int(times.min()) for times in used), max(int(times.max()) for times in used)


class RecordingIndex:
    """The index of a recording while it is made: topics and channels as they are met, chunks, messages.

    Index records of chunks are kept as they lie in the file, and sorted and measured in batches: a long file needs no
    more.
    """

    def __init__(self) -> None:
        self.topics = TopicTable()
        self.pairs: set[tuple[int, int]] = set()  # (channel or connection, topic)
        self.chunks = ChunkIndexBuilder()
        self.messages = IndexBuilder()
        self.discard_entries()

    def discard_entries(self) -> None:
        """Forget the index records that were not flushed."""
        self._entries = bytearray()
        self._columns = array("i"), array("i"), array("q")  # topic, chunk, number of messages
        self.entry_count = 0

    def add_entries(self, topic: int, chunk: int, entries: bytes, count: int) -> None:
        """Index entries of one topic in one chunk."""
        self._entries += entries
        self.entry_count += count
        topics, chunks, counts = self._columns  # not a loop: a bag has one of these for each chunk and topic
        topics.append(topic)
        chunks.append(chunk)
        counts.append(count)

    def flush_entries(self, path: Path, unpack: Callable[[bytearray, Path], TimesAndOffsets]) -> None:
        """Make messages of all entries; called only between chunks. `unpack` gives times and offsets of records."""
        if not self._columns[0]:
            return
        counts = np.array(self._columns[2], np.int64)
        topic, chunk = (np.repeat(np.array(column), counts) for column in self._columns[:2])
        times_ns, offset = unpack(self._entries, path)
        order, span = _in_file_order(chunk, offset, self.chunks, path)
        self.messages.add(topic[order], times_ns[order], chunk[order], offset[order].astype(np.uint32), span)
        self.discard_entries()


def _in_file_order(
    chunk: NDArray[np.int32], offset: NDArray[np.unsignedinteger[Any]], chunks: ChunkIndexBuilder, path: Path
) -> tuple[NDArray[np.intp], NDArray[np.uint32]]:
    """The order of messages in the file, and for each (in that order) the bytes up to the next message or chunk end.

    Index records give offsets and no lengths, and list them in order of time; the true length stands in front of the
    message and is checked against this span when it is read. Entries that point outside their chunk are an error.
    """
    raw_bytes = chunks.raw_bytes()
    beyond = np.flatnonzero(offset >= raw_bytes[chunk].astype(np.uint64))
    if beyond.size:
        at = int(beyond[0])
        position, size = int(chunks.positions()[chunk[at]]), int(raw_bytes[chunk[at]])
        cause = f"the index names a message at byte {int(offset[at]):,} of a chunk of {size:,} bytes"
        raise RecordingCorrupt(cause, path=str(path), offset=position, hint=recover_hint(path))
    place = (chunk.astype(np.int64) << 32) | offset.astype(np.int64)
    order = np.argsort(place, kind="stable")
    place = place[order]
    fresh = np.ones(place.size, np.bool_)
    fresh[1:] = place[1:] != place[:-1]
    distinct = place[fresh]
    distinct_chunk = distinct >> 32
    start = distinct & 0xFFFFFFFF
    end = raw_bytes[distinct_chunk]
    same_chunk = distinct_chunk[1:] == distinct_chunk[:-1]
    end[:-1][same_chunk] = start[1:][same_chunk]
    return order, (end - start).astype(np.uint32)[np.cumsum(fresh) - 1]
