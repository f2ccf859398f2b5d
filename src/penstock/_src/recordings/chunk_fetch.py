"""Fetching from containers of chunks (ROS 1 bags, mcap): ranges of plain chunks, whole chunks where they are packed."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.codecs import CODECS, decode_prefix, decompress_into
from penstock._src.recordings.fetch import BLOCK_BYTES, BLOCK_MESSAGES, Block, BufferPool
from penstock._src.recordings.file_window import recover_hint
from penstock._src.recordings.message_index import ChunkIndex, TopicIndex
from penstock._src.recordings.recovery.scan_bytes import ChunkBytes, FileBytes, ScanBytes, ScannedRecord
from penstock._src.system.closing import on_error
from penstock._src.system.files import ByteSource
from penstock.errors import RecordingCorrupt

# Reading past a gap of this size costs about what a second system call costs.
_GAP_BYTES = 4096
_PLAN_MESSAGES = 16384
Places = NDArray[np.int64]


class UsualMessages(NamedTuple):
    """Of many messages: which look as they should, bytes before the payloads, bytes of payload, and channels."""

    which: NDArray[np.bool_]
    head_bytes: int
    size: Places
    channel: Places


class Framing(ABC):
    """How a container wraps one message."""

    message_op: int

    def __init__(self, pairs: set[tuple[int, int]]) -> None:
        """`pairs`: channels (or connections) and their topics."""
        self._pairs = pairs
        self._sorted_pairs = np.array(sorted(channel << 32 | topic for channel, topic in pairs), np.uint64)

    @abstractmethod
    def usual(self, data: NDArray[np.uint8], start: Places, span: Places, held: Places) -> UsualMessages | None:
        """All messages at once; None while nothing is known of how they look."""

    @abstractmethod
    def parse(self, source: ScanBytes, at: int, end: int, inner: bool) -> ScannedRecord:
        """The record at a position."""

    @abstractmethod
    def channel_and_head(self, raw: bytes, record: ScannedRecord) -> tuple[int, int]:
        """The channel of a message, and bytes before its payload."""

    @abstractmethod
    def has_next_record(self, source: ChunkBytes, record: ScannedRecord) -> bool:
        """True when something follows a message, before the next message, that may stand there."""

    def unwrap(
        self, data: NDArray[np.uint8], start: Places, span: Places, held: Places, topic_ids: NDArray[np.int32]
    ) -> tuple[Places, Places, dict[int, str]]:
        """Begin and end of the payloads in `data`, and {place: reason} for those that are broken.

        A message begins at `start`, may span `span` bytes, of which `held` are in `data`.
        """
        found = self.usual(data, start, span, held)
        if found is None:
            which = np.zeros(start.size, np.bool_)
            begin, end = np.zeros(start.size, np.int64), np.zeros(start.size, np.int64)
        else:
            # A message ends where the next one begins; what is between them otherwise is looked at one by one.
            which = found.which & (found.head_bytes + found.size == span) & self._belong(found.channel, topic_ids)
            begin = np.where(which, start + found.head_bytes, 0)
            end = np.where(which, start + np.minimum(span, held), 0)
        broken: dict[int, str] = {}
        for place in np.flatnonzero(~which).tolist():
            at, have = int(start[place]), int(min(span[place], held[place]))
            payload = self._unwrap_one(data[at : at + have].tobytes(), int(span[place]), int(topic_ids[place]))
            if isinstance(payload, str):
                broken[place] = payload
            else:
                begin[place], end[place] = at + payload[0], at + payload[1]
        return begin, end, broken

    def _belong(self, channels: Places, topic_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
        """True for each message whose channel is of its topic."""
        wanted = channels.astype(np.uint64) << np.uint64(32) | topic_ids.astype(np.uint64)
        nearest = np.minimum(np.searchsorted(self._sorted_pairs, wanted), self._sorted_pairs.size - 1)
        return np.asarray(self._sorted_pairs[nearest] == wanted)

    def _unwrap_one(self, raw: bytes, span: int, topic: int) -> tuple[int, int] | str:
        """One message in any layout: where its payload begins and ends, or what is wrong."""
        source = ChunkBytes(raw)
        record = self.parse(source, 0, span, inner=True)
        if record.state == "bad" or not record.op:
            return record.why if len(raw) == span else "its header is longer than what was read of it"
        if record.op != self.message_op:
            return f"a record of kind {record.op} lies where the index names a message"
        channel, head_bytes = self.channel_and_head(raw, record)
        if (channel, topic) not in self._pairs:
            return f"it belongs to channel {channel}, which is not of this topic"
        if record.end > span:
            return f"it claims {record.length:,} bytes, and {span - record.data_at:,} are left before the next message"
        if record.end < span == len(raw) and not self.has_next_record(source, record):
            return f"its length is broken: no record begins where it ends, {span - record.end:,} bytes before the next"
        return head_bytes, min(record.end, len(raw))


class _Messages(NamedTuple):
    """Messages of a request: topic and number, chunk, offset there, bytes that each may span, and how many are read."""

    ids: NDArray[np.int32]
    numbers: Places
    chunk: Places
    offset: Places
    span: Places
    held: Places

    def part(self, which: Any) -> _Messages:
        return _Messages(*(column[which] for column in self))


class _ChunkCache:
    """Decompressed chunks, the least recently used ones given up first."""

    def __init__(self, files: Sequence[ByteSource], chunks: ChunkIndex, limit_bytes: int) -> None:
        self._files = files
        self._chunks = chunks
        self.limit_bytes = limit_bytes
        self._kept: OrderedDict[int, tuple[bytearray, memoryview]] = OrderedDict()
        self._spare: bytearray | None = None
        self._stored = bytearray()
        self._failed: dict[int, RecordingCorrupt] = {}
        self.file_bytes = 0

    def get(self, number: int) -> memoryview:
        """The raw bytes of a chunk, valid until the next call."""
        if number in self._failed:
            raise self._failed[number]
        kept = self._kept.get(number)
        if kept is not None:
            self._kept.move_to_end(number)
            return kept[1]
        raw_bytes = int(self._chunks.raw_bytes[number])
        target = self._room_for(raw_bytes)
        view = memoryview(target)[:raw_bytes]
        try:
            self._load(number, view)
        except RecordingCorrupt as error:
            self._failed[number] = error
            self._spare = target
            raise
        self._kept[number] = (target, view)
        return view

    def _room_for(self, raw_bytes: int) -> bytearray:
        while self._kept and sum(len(buffer) for buffer, _ in self._kept.values()) + raw_bytes > self.limit_bytes:
            self._spare = self._kept.popitem(last=False)[1][0]
        spare, self._spare = self._spare, None
        # A buffer far too large for this chunk would hold memory that the limit counts on.
        if spare is not None and raw_bytes <= len(spare) <= max(2 * raw_bytes, 1 << 20):
            return spare
        return bytearray(raw_bytes)

    def _load(self, number: int, target: memoryview) -> None:
        chunks = self._chunks
        file = self._files[int(chunks.file[number])]
        position, stored_bytes = int(chunks.position[number]), int(chunks.stored_bytes[number])
        codec = CODECS[int(chunks.codec[number])]
        self.file_bytes += stored_bytes
        if codec == "none":
            file.read_into(target, position)
        elif self._chunks.part[number]:
            with FileBytes(file.path, source=file) as source:
                target[:] = decode_prefix(codec, source, position, position + stored_bytes, len(target))
        else:
            if not stored_bytes <= len(self._stored) <= max(4 * stored_bytes, 1 << 20):
                self._stored = bytearray(stored_bytes)
            # No `with`: the traceback of a failed decompression holds the view, and releasing it would hide the error.
            stored = memoryview(self._stored)[:stored_bytes]
            file.read_into(stored, position)
            decompress_into(codec, stored, target, file.path, position)
        claimed = int(chunks.crc[number])
        if claimed and (actual := zlib.crc32(target)) != claimed:
            raise RecordingCorrupt(
                f"chunk of {len(target):,} bytes fails its CRC: {actual:#010x}, {claimed:#010x} was recorded",
                path=str(file.path),
                offset=position,
            )


class ChunkFetcher:
    """Plans block by block, reads runs of neighbouring messages at once, unwraps them together.

    Its buffers and chunks serve one request after the other, so that a caller may cut a long request into pieces.
    """

    def __init__(
        self,
        files: Sequence[ByteSource],
        chunks: ChunkIndex,
        index: Sequence[TopicIndex],
        framing: Framing,
        *,
        memory_bytes: int,
        clip_bytes: int | None,
        lose: Callable[[str, str, NDArray[np.int32], NDArray[np.int64]], None] | None,
        relocate: Callable[[], tuple[ChunkIndex, Sequence[TopicIndex]] | None],
    ) -> None:
        self.limits = (memory_bytes, clip_bytes)
        self._files = files
        self._chunks = chunks
        self._index = index
        self._framing = framing
        self._clip_bytes = clip_bytes
        self._lose = lose
        self._whole = chunks.whole
        packed = bool(self._whole.any())
        pool_bytes = memory_bytes // 2 if packed else memory_bytes
        self._block_bytes = max(1, min(BLOCK_BYTES, pool_bytes // 4))
        self._gap_bytes = min(_GAP_BYTES, self._block_bytes // 8)
        self._pool = BufferPool(pool_bytes)
        self._cache = _ChunkCache(files, chunks, memory_bytes - pool_bytes)
        self._plain_bytes = 0
        self._relocate = relocate
        self._is_relocated = False

    def blocks(self, topic_ids: NDArray[np.int32], numbers: NDArray[np.int64]) -> Iterator[Block]:
        """The request, block by block; `file_bytes` counts from its beginning."""
        self._plain_bytes = self._cache.file_bytes = 0
        begin = 0
        while begin < numbers.size:
            ids = topic_ids[begin : begin + _PLAN_MESSAGES]
            wanted = numbers[begin : begin + _PLAN_MESSAGES]
            messages = self._locate(ids, wanted)
            total = np.cumsum(messages.held)
            at, index = 0, self._index
            while at < wanted.size and index is self._index:
                before = int(total[at - 1]) if at else 0
                end = int(np.searchsorted(total, before + self._block_bytes, side="right"))
                end = min(max(end, at + 1), at + BLOCK_MESSAGES, wanted.size)
                block = self._block(begin + at, messages.part(slice(at, end)))
                if block is not None:
                    yield block
                    at = end
            begin += at

    def _locate(self, ids: NDArray[np.int32], numbers: Places) -> _Messages:
        chunk, offset, span = (np.empty(ids.size, np.int64) for _ in range(3))
        for topic in np.flatnonzero(np.bincount(ids)).tolist():
            is_own = ids == topic
            index, which = self._index[topic], numbers[is_own]
            chunk[is_own], offset[is_own], span[is_own] = index.chunk[which], index.offset[which], index.span[which]
        held = span if self._clip_bytes is None else np.minimum(span, self._clip_bytes)
        return _Messages(ids, numbers, chunk, offset, span, held)

    def _block(self, first: int, messages: _Messages) -> Block | None:
        """The block, or None when the index was put right and has to be asked again."""
        chunk, offset = messages.chunk, messages.offset
        # A "source" is an address space: a file for plain chunks, the raw chunk itself for those read as a whole.
        whole = self._whole[chunk]
        source = np.where(whole, len(self._files) + chunk, self._chunks.file[chunk])
        place = np.where(whole, offset, self._chunks.position[chunk] + offset)
        run, run_source, run_place, run_bytes, start = _runs(source, place, messages.held, self._gap_bytes)
        buffer = self._pool.acquire(int(run_bytes.sum()))
        with on_error(partial(self._pool.give_back, buffer, True)):
            faults = self._fill(memoryview(buffer), run_source.tolist(), run_place.tolist(), run_bytes.tolist())
            payloads = self._payloads(buffer, messages, start, run, faults)
            if payloads is None:
                self._pool.give_back(buffer, True)
                return None
        give_back = partial(self._pool.give_back, buffer)
        return Block(first, payloads, self._plain_bytes + self._cache.file_bytes, give_back)

    def _fill(
        self, view: memoryview, sources: list[int], places: list[int], sizes: list[int]
    ) -> dict[int, RecordingCorrupt]:
        """Read the runs one behind the other into the buffer; the runs that cannot be read, when losses are counted."""
        faults: dict[int, RecordingCorrupt] = {}
        begins = [0, *accumulate(sizes)]
        targets = [view[begin : begin + size] for begin, size in zip(begins, sizes, strict=False)]
        for source, runs in groupby(range(len(sources)), sources.__getitem__):
            own_runs = list(runs)
            try:
                self._fill_from(source, own_runs, places, targets)
            except RecordingCorrupt:
                if self._lose is None:
                    raise
                for run in own_runs:  # one by one: which of them it was
                    try:
                        self._fill_from(source, [run], places, targets)
                    except RecordingCorrupt as error:
                        faults[run] = error
        return faults

    def _fill_from(self, source: int, runs: list[int], places: list[int], targets: list[memoryview]) -> None:
        """Read runs of one source."""
        if source < len(self._files):
            self._files[source].read_many([(places[run], targets[run]) for run in runs])
            self._plain_bytes += sum(len(targets[run]) for run in runs)
            return
        data = self._cache.get(source - len(self._files))
        for run in runs:
            targets[run][:] = data[places[run] : places[run] + len(targets[run])]

    def _payloads(
        self,
        buffer: bytearray,
        messages: _Messages,
        start: Places,
        run: NDArray[np.intp],
        faults: dict[int, RecordingCorrupt],
    ) -> list[memoryview | None] | None:
        ids, span = messages.ids, messages.span
        view = memoryview(buffer).toreadonly()
        lost = np.isin(run, list(faults)) if faults else np.zeros(ids.size, np.bool_)
        data = np.frombuffer(buffer, np.uint8)
        # What a lost run left in the buffer is not looked at: span 0 makes the framing call it broken.
        begin, end, broken = self._framing.unwrap(data, start, np.where(lost, 0, span), messages.held, ids)
        if any(not lost[place] for place in broken) and self._reindex():
            return None
        for number, error in faults.items():
            self._count_lost(error.message, messages.part(run == number))
        payloads: list[memoryview | None] = [view[a:b] for a, b in zip(begin.tolist(), end.tolist(), strict=True)]
        for place in np.flatnonzero(lost).tolist():
            payloads[place] = None
        for place, reason in broken.items():
            if not lost[place]:
                self._broken(reason, messages.part(slice(place, place + 1)))
                payloads[place] = None
        return payloads

    def _reindex(self) -> bool:
        """Ask the records of the files where the messages lie; False when that was done before, or does not help."""
        if self._is_relocated:
            return False
        self._is_relocated = True
        index = self._relocate()
        if index is None:
            return False
        done_bytes = self._cache.file_bytes
        self._chunks, self._index = index
        self._whole = self._chunks.whole
        self._cache = _ChunkCache(self._files, self._chunks, self._cache.limit_bytes)
        self._cache.file_bytes = done_bytes
        return True

    def _count_lost(self, cause: str, messages: _Messages) -> None:
        if self._lose is not None:
            position = int(self._chunks.position[messages.chunk[0]])
            self._lose(cause, f"chunk at byte {position:,}", messages.ids, messages.numbers)

    def _broken(self, reason: str, message: _Messages) -> None:
        chunk = int(message.chunk[0])
        file = self._files[int(self._chunks.file[chunk])]
        position = int(self._chunks.position[chunk])
        if self._lose is None:
            topic, number, offset = (int(column[0]) for column in (message.ids, message.numbers, message.offset))
            where = position + offset if not self._whole[chunk] else position
            raise RecordingCorrupt(
                f"message {number} of topic {topic}, at byte {offset:,} of its chunk: {reason}",
                path=str(file.path),
                offset=where,
                hint=recover_hint(file.path),
            )
        self._count_lost(reason, message)


def _runs(
    source: Places, place: Places, held: Places, gap_bytes: int
) -> tuple[NDArray[np.intp], Places, Places, Places, Places]:
    """Join neighbours: run number per message; per run source, place, bytes; per message its start in the buffer."""
    order = np.lexsort((place, source))
    src, begin = source[order], place[order]
    end = begin + held[order]
    fresh = np.ones(order.size, np.bool_)
    if order.size > 1:
        # Messages may overlap (one asked for twice), so a run reaches to the furthest end so far, not to the last one.
        # Offsetting every source by more than any place keeps the running maximum from crossing over.
        rank = np.concatenate(([0], np.cumsum(src[1:] != src[:-1])))
        lift = rank * (int(end.max()) + gap_bytes + 1)
        reach = np.maximum.accumulate(end + lift)
        fresh[1:] = begin[1:] + lift[1:] > reach[:-1] + gap_bytes
    firsts = np.flatnonzero(fresh)
    number = np.cumsum(fresh) - 1
    run_place = begin[firsts]
    run_bytes = np.maximum.reduceat(end, firsts) - run_place
    run_start = np.cumsum(run_bytes) - run_bytes
    run = np.empty(order.size, np.intp)
    run[order] = number
    start = np.empty(order.size, np.int64)
    start[order] = run_start[number] + (begin - run_place[number])
    return run, src[firsts], run_place, run_bytes, start
