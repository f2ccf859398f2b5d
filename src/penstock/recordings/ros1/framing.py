"""How a ROS 1 chunk wraps a message, undone for a whole block of messages at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from penstock.errors import RecordingCorrupt
from penstock.recordings.recovery.scan_bytes import ChunkBytes, is_padding
from penstock.recordings.ros1.plausible import NS_PER_S, begins_like_a_record, next_record, parse_record
from penstock.recordings.ros1.records import OP_MESSAGE, Fields, field_places, u32_from

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from penstock.recordings.chunk_fetch import ChannelTopics

_CLIPPED = "its header is longer than what was read of it"


@dataclass(frozen=True)
class _Skeleton:
    """The bytes of a message header that are the same in all messages of a bag; where the connection number lies."""

    head_bytes: int
    columns: NDArray[np.intp]
    expected: NDArray[np.uint8]
    connection_at: int
    time_at: int


class Ros1Framing:
    """Messages in a chunk: header length, header (connection, op, time), data length, data."""

    def __init__(self, topics_of_connections: ChannelTopics, path: Path) -> None:
        self._path = path
        self._known = topics_of_connections
        self._usual: _Skeleton | None = None

    @property
    def usual_header_bytes(self) -> int:
        """The length of message headers, 0 before one was read."""
        return 0 if self._usual is None else self._usual.head_bytes - 4

    def unwrap(
        self,
        data: NDArray[np.uint8],
        start: NDArray[np.int64],
        span: NDArray[np.int64],
        held: NDArray[np.int64],
        topic_ids: NDArray[np.int32],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], dict[int, str]]:
        begin, end = np.zeros(start.size, np.int64), np.zeros(start.size, np.int64)
        usual = self._unwrap_usual(data, start, span, held, topic_ids, begin, end)
        broken: dict[int, str] = {}
        for place in np.flatnonzero(~usual).tolist():
            at = int(start[place])
            found = self._unwrap_one(data, at, int(span[place]), int(held[place]), int(topic_ids[place]))
            if isinstance(found, str):
                broken[place] = found
            else:
                begin[place], end[place] = at + found[0], at + found[1]
        return begin, end, broken

    def _unwrap_usual(
        self,
        data: NDArray[np.uint8],
        start: NDArray[np.int64],
        span: NDArray[np.int64],
        held: NDArray[np.int64],
        topic_ids: NDArray[np.int32],
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
    ) -> NDArray[np.bool_]:
        """All messages at once whose headers look like the first one's but for the values; the mask of those done."""
        skeleton = self._usual
        if skeleton is None or data.size < skeleton.head_bytes + 4:
            return np.zeros(start.size, np.bool_)
        before = skeleton.head_bytes + 4
        fits = np.minimum(span, held) >= before
        heads = data[np.where(fits, start, 0)[:, None] + np.arange(before)]
        usual = fits & (heads[:, skeleton.columns] == skeleton.expected).all(axis=1)
        sizes = _u32_column(heads, skeleton.head_bytes)
        # A message ends where the next one begins; what is between them otherwise is looked at one by one.
        usual &= before + sizes == span
        usual &= _u32_column(heads, skeleton.time_at + 4) < NS_PER_S
        usual &= self._known.belong(_u32_column(heads, skeleton.connection_at), topic_ids)
        begin[usual] = (start + before)[usual]
        end[usual] = (start + np.minimum(before + sizes, held))[usual]
        return np.asarray(usual)

    def _unwrap_one(
        self, data: NDArray[np.uint8], start: int, span: int, held: int, topic: int
    ) -> tuple[int, int] | str:
        """One message in any layout: payload begin and end relative to `start`, or what is wrong."""
        have = min(span, held)
        if have < 8:
            return f"{have} bytes are too few for a message record"
        raw = data[start : start + have].tobytes()
        (header_bytes,) = u32_from(raw)
        if header_bytes + 8 > span:
            return f"its header claims {header_bytes:,} bytes, and {span:,} are left for the whole record"
        if header_bytes + 8 > have:
            return _CLIPPED
        try:
            fields = Fields(raw[4 : 4 + header_bytes], self._path, 0)
            op, connection, time = fields.op, fields.u32(b"conn"), fields.raw(b"time", 8)
        except RecordingCorrupt as error:
            return error.message
        if op != OP_MESSAGE:
            return f"a record of kind {op} lies where the index names a message"
        if not self._known.belong(np.array([connection]), np.array([topic], np.int32))[0]:
            return f"the message belongs to connection {connection}, which is not of this topic"
        (size,) = u32_from(raw, 4 + header_bytes)
        if u32_from(time, 4)[0] >= NS_PER_S:
            return "a message with an impossible time"
        end = header_bytes + 8 + size
        if end > span:
            return f"the message claims {size:,} bytes, and {span - header_bytes - 8:,} are left before the next one"
        if end < span == have and not self._goes_on(raw, end, header_bytes):
            return f"its length is broken: no record begins where it ends, {span - end:,} bytes before the next message"
        if self._usual is None:
            self._usual = _skeleton(raw[: 4 + header_bytes])
        return header_bytes + 8, min(end, have)

    @staticmethod
    def _goes_on(raw: bytes, at: int, header_bytes: int) -> bool:
        """True when a record follows a message before the next message: the description of a connection."""
        source = ChunkBytes(raw)
        if parse_record(source, at, len(raw), inner=True).state != "bad":
            return True
        following = next_record(source, at, len(raw), inner=True, outer_only=False) or len(raw)
        return is_padding(source, at, following) or begins_like_a_record(source, at, following, header_bytes)


def _u32_column(heads: NDArray[np.uint8], at: int) -> NDArray[np.int64]:
    column: NDArray[np.int64] = np.ascontiguousarray(heads[:, at : at + 4]).view("<u4")[:, 0].astype(np.int64)
    return column


def _skeleton(head: bytes) -> _Skeleton:
    """Made from a header (with its length in front) that was found valid."""
    fixed = np.ones(len(head), np.bool_)
    places = field_places(head[4:])
    for begin, end in (places[b"conn"], places[b"time"]):
        fixed[4 + begin : 4 + end] = False
    columns = np.flatnonzero(fixed)
    return _Skeleton(
        len(head), columns, np.frombuffer(head, np.uint8)[columns], 4 + places[b"conn"][0], 4 + places[b"time"][0]
    )
