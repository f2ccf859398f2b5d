"""Messages inside chunks: where the payloads lie in what was read, and which messages are broken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.recovery.scan_bytes import ChunkBytes, ScanBytes, ScannedRecord

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
