"""Records of ROS 1 bags at any position: is this one, where does the next begin, and which message is in it?"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.chunk_fetch import Framing, Places, UsualMessages
from penstock._src.recordings.codecs import CODECS
from penstock._src.recordings.file_window import NO_RECORD
from penstock._src.recordings.recovery.scan_bytes import ChunkBytes, ScanBytes, ScannedRecord, is_padding, pieces
from penstock._src.recordings.ros1.records import (
    MAX_CONNECTION_BYTES,
    OP_BAG_HEADER,
    OP_CHUNK,
    OP_CHUNK_INFO,
    OP_CONNECTION,
    OP_INDEX,
    OP_MESSAGE,
    field_places,
    header_fields,
    u32_from,
)

# Real headers have a few hundred bytes at most (the longest field is a topic name).
_MAX_HEADER_BYTES = 64 << 10
_USUAL_HEADER_BYTES = 128
_NS_PER_S = 1_000_000_000
# Needed fields by kind, with their sizes (0: any).
_NEEDED = {
    OP_MESSAGE: {b"conn": 4, b"time": 8},
    OP_BAG_HEADER: {b"index_pos": 8, b"conn_count": 4, b"chunk_count": 4},
    OP_INDEX: {b"ver": 4, b"conn": 4, b"count": 4},
    OP_CHUNK: {b"compression": 0, b"size": 4},
    OP_CHUNK_INFO: {b"ver": 4, b"chunk_pos": 8, b"start_time": 8, b"end_time": 8, b"count": 4},
    OP_CONNECTION: {b"conn": 4, b"topic": 0},
}
_NAMES = {b"op", b"encryptor"} | {name for needed in _NEEDED.values() for name in needed}
_INNER = (OP_MESSAGE, OP_CONNECTION)
_OP_FIELD = b"\x04\x00\x00\x00op="
# The op field is not always the first one: so far back the record may begin.
_BACK_BYTES = 512
_CUT = "the file ends inside a record"


def parse_record(source: ScanBytes, at: int, end: int, inner: bool) -> ScannedRecord:
    """What lies at a position; every value that the kind of record fixes is checked."""
    raw = source.at(at, min(_USUAL_HEADER_BYTES, end - at))
    if len(raw) < 4:
        return ScannedRecord(at, "cut", _CUT)
    (header_bytes,) = u32_from(raw)
    if not 8 <= header_bytes <= _MAX_HEADER_BYTES:
        return ScannedRecord(at, "bad", NO_RECORD)
    data_at = at + 8 + header_bytes
    if data_at - at > len(raw):
        raw = source.at(at, min(data_at - at, end - at))
        if data_at - at > len(raw):
            is_cut = _is_cut_header(raw[4 : 4 + header_bytes], header_bytes)
            return ScannedRecord(at, "cut", _CUT) if is_cut else ScannedRecord(at, "bad", NO_RECORD)
    fields = header_fields(raw[4 : 4 + header_bytes])
    if fields is None or len(fields.get(b"op", b"")) != 1:
        return ScannedRecord(at, "bad", NO_RECORD)
    op = fields[b"op"][0]
    (data_bytes,) = u32_from(raw, 4 + header_bytes)
    if wrong := _wrong(op, fields, data_bytes, inner):
        return ScannedRecord(at, "bad", wrong)
    if data_at + data_bytes > end:
        return ScannedRecord(at, "cut", _CUT, op, data_at, data_at + data_bytes, fields)
    return ScannedRecord(at, "whole", "", op, data_at, data_at + data_bytes, fields)


def _wrong(op: int, fields: dict[bytes, bytes], data_bytes: int, inner: bool) -> str:
    """What a record of this kind cannot have; empty when all is well."""
    needed = _NEEDED.get(op)
    if needed is None or (inner and op not in _INNER):
        return f"a record of kind {op} where none can be"
    for name, size in needed.items():
        value = fields.get(name)
        if value is None or (size and len(value) != size):
            return f"a record of kind {op} without a right field {name.decode()!r}"
    if op == OP_MESSAGE and u32_from(fields[b"time"], 4)[0] >= _NS_PER_S:
        return "a message with an impossible time"
    if op == OP_CHUNK and fields[b"compression"].decode("ascii", errors="replace") not in CODECS:
        return "a chunk with an unknown compression"
    if op == OP_CONNECTION and data_bytes > MAX_CONNECTION_BYTES:
        return "a connection record of an impossible size"
    if op in (OP_INDEX, OP_CHUNK_INFO):
        unit = 12 if op == OP_INDEX else 8
        if u32_from(fields[b"ver"])[0] != 1 or data_bytes != unit * u32_from(fields[b"count"])[0]:
            return "an index record that contradicts itself"
    return ""


def _is_cut_header(data: bytes, header_bytes: int) -> bool:
    """True when these bytes can be the beginning of a header."""
    if len(data) < 4:
        return True
    (size,) = u32_from(data)
    if not 4 <= size <= header_bytes - 4:
        return False
    name, equals, _ = data[4 : 4 + size].partition(b"=")
    return name in _NAMES if equals else any(known.startswith(name) for known in _NAMES)


def begins_like_a_record(source: ScanBytes, at: int, following: int | None, usual_header_bytes: int) -> bool:
    """True when parts of a header stand here, before the following record, though it is broken.

    `usual_header_bytes`: the length of the headers seen so far, 0 where none was seen.
    """
    head = source.at(at, 96 if following is None else min(96, following - at))
    if usual_header_bytes and len(head) >= 4 and u32_from(head)[0] == usual_header_bytes:
        return True
    return sum(name in head for name in (b"op=", b"conn=", b"time=", b"topic=", b"size=", b"ver=")) >= 2


def next_record(source: ScanBytes, at: int, end: int, inner: bool, *, outer_only: bool) -> int | None:
    """Where the next record begins, found by the field that every header has.

    `outer_only`: not what lies inside chunks, since packed chunks hold its headers as they are, among other things.
    """
    for offset, piece in pieces(source, at, end, len(_OP_FIELD)):
        hit = piece.find(_OP_FIELD)
        while hit >= 0:
            begin = _record_around(source, offset + hit, at, end, inner, outer_only)
            if begin is not None:
                return begin
            hit = piece.find(_OP_FIELD, hit + 1)
    return None


def _record_around(source: ScanBytes, op_at: int, lowest: int, end: int, inner: bool, outer_only: bool) -> int | None:
    first = max(lowest, op_at - 4 - _BACK_BYTES)
    before = source.at(first, op_at - first)
    for back in range(len(before) - 4, -1, -1):
        (header_bytes,) = u32_from(before, back)
        begin = first + back
        if not op_at + 4 - begin <= header_bytes <= _MAX_HEADER_BYTES:
            continue
        record = parse_record(source, begin, end, inner)
        if outer_only and record.op in (OP_MESSAGE, OP_CONNECTION):
            continue
        if record.op == OP_CHUNK and record.state == "cut":
            return begin
        if record.state == "whole" and (
            record.end == end or parse_record(source, record.end, end, inner).state != "bad"
        ):
            return begin
    return None


class _Skeleton(NamedTuple):
    """The bytes of a message header that are the same in all messages of a bag; where the connection number lies."""

    head_bytes: int
    columns: NDArray[np.intp]
    expected: NDArray[np.uint8]
    connection_at: int
    time_at: int


class Ros1Framing(Framing):
    """Messages in a chunk: header length, header (connection, op, time), data length, data."""

    message_op = OP_MESSAGE
    parse = staticmethod(parse_record)

    def __init__(self, pairs: set[tuple[int, int]]) -> None:
        super().__init__(pairs)
        self._skeleton: _Skeleton | None = None  # the first message shows it

    def usual(self, data: NDArray[np.uint8], start: Places, span: Places, held: Places) -> UsualMessages | None:
        skeleton = self._skeleton
        if skeleton is None or data.size < skeleton.head_bytes + 4:
            return None
        before = skeleton.head_bytes + 4
        fits = np.minimum(span, held) >= before
        heads = data[np.where(fits, start, 0)[:, None] + np.arange(before)]
        which = fits & (heads[:, skeleton.columns] == skeleton.expected).all(axis=1)
        which &= _u32_column(heads, skeleton.time_at + 4) < _NS_PER_S
        size = _u32_column(heads, skeleton.head_bytes)
        return UsualMessages(which, before, size, _u32_column(heads, skeleton.connection_at))

    def channel_and_head(self, raw: bytes, record: ScannedRecord) -> tuple[int, int]:
        if self._skeleton is None:
            self._skeleton = _skeleton(raw[: record.data_at - 4])
        return record.number(b"conn"), record.data_at

    def has_next_record(self, source: ChunkBytes, record: ScannedRecord) -> bool:
        at, end = record.end, source.size_bytes
        if parse_record(source, at, end, inner=True).state != "bad":
            return True
        following = next_record(source, at, end, inner=True, outer_only=False) or end
        return is_padding(source, at, following) or begins_like_a_record(source, at, following, record.data_at - 8)


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
