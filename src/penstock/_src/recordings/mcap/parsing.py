"""Records of mcap files at any position: is this one, where does the next begin, and which message is in it?"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Container
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.chunk_fetch import Framing, Places, UsualMessages
from penstock._src.recordings.codecs import StoredChunk
from penstock._src.recordings.file_window import NO_RECORD
from penstock._src.recordings.mcap import records as r
from penstock._src.recordings.recovery.scan_bytes import ChunkBytes, ScanBytes, ScannedRecord, is_padding, pieces

_INNER = (r.OP_SCHEMA, r.OP_CHANNEL, r.OP_MESSAGE)
# Shortest contents, by kind, where a record has no strings to check.
_SHORTEST = {
    r.OP_HEADER: 8,
    r.OP_MESSAGE: r.MESSAGE_HEAD_BYTES,
    r.OP_CHUNK: 40,
    r.OP_CHUNK_INDEX: 64,
    r.OP_ATTACHMENT_INDEX: 48,
    r.OP_STATISTICS: 46,
    r.OP_METADATA_INDEX: 20,
}
_EXACT = {r.OP_FOOTER: 20, r.OP_SUMMARY_OFFSET: 17, r.OP_DATA_END: 4}
# A later version of the format may add fields at the end of a record; so many bytes of them are believed.
_ADDED_BYTES = 64
_LONGEST_BYTES = 1 << 40
_PRIVATE = 0x80
# A kind, and a length below 4 GiB: what the search looks for before it looks closer.
_CANDIDATE = re.compile(rb"(?=[\x01-\x0f][\s\S]{4}\x00\x00\x00\x00)")
_CUT = "the file ends inside a record"
# Two messages of one recording lie no further apart.
_NEAR_NS = 400 * 86_400 * 1_000_000_000


def parse_record(source: ScanBytes, at: int, end: int, inner: bool) -> ScannedRecord:
    """What lies at a position; every length that the kind of record fixes is checked."""
    head = source.at(at, min(r.RECORD_HEAD_BYTES, end - at))
    op = head[0] if head else 0
    if not (0 < op <= r.OP_DATA_END or op >= _PRIVATE) or (inner and op not in _INNER):
        return ScannedRecord(at, "bad", f"{NO_RECORD} (kind {op})")
    if len(head) < r.RECORD_HEAD_BYTES:
        return ScannedRecord(at, "cut", _CUT)
    (length,) = struct.unpack_from("<Q", head, 1)
    data_at = at + r.RECORD_HEAD_BYTES
    if length > _LONGEST_BYTES or length < _SHORTEST.get(op, 0) or length != _EXACT.get(op, length):
        return ScannedRecord(at, "bad", f"a record of kind {op} cannot have {length:,} bytes")
    if not _fits(source, op, data_at, length, end):
        return ScannedRecord(at, "bad", f"a record of kind {op} that contradicts its length")
    return ScannedRecord(at, "whole" if data_at + length <= end else "cut", _CUT, op, data_at, data_at + length)


def _fits(source: ScanBytes, op: int, at: int, length: int, end: int) -> bool:
    """True when the strings inside a record fill its length; what is cut off is taken as right."""
    check = _CHECKS.get(op)
    if check is None:
        return True
    used = check(source, at, length, min(end, at + length))
    if used is None:
        return at + length > end
    return used <= length <= used + _ADDED_BYTES


def _number(source: ScanBytes, at: int, n_bytes: int, end: int) -> int | None:
    data = source.at(at, min(n_bytes, max(end - at, 0)))
    return int.from_bytes(data, "little") if len(data) == n_bytes else None


def _strings(source: ScanBytes, at: int, skip: int, widths: tuple[int, ...], length: int, end: int) -> int | None:
    """Bytes of a head and of the strings behind it (their lengths being so wide); None where the source ends first."""
    used = skip
    for width in widths:
        size = _number(source, at + used, width, end)
        if size is None:
            return None
        used += width + size
        if used > length:
            return used  # no length can be right any more
    return used


def _chunk_bytes(source: ScanBytes, at: int, length: int, end: int) -> int | None:
    name_bytes = _number(source, at + 28, 4, end)
    if name_bytes is None:
        return None
    if name_bytes > 32 or not source.at(at + 32, min(name_bytes, max(end - at - 32, 0))).isascii():
        return length + 1
    return _strings(source, at, 28, (4, 8), length, end)


_CHECKS: dict[int, Callable[[ScanBytes, int, int, int], int | None]] = {
    r.OP_HEADER: lambda s, at, n, end: _strings(s, at, 0, (4, 4), n, end),
    r.OP_SCHEMA: lambda s, at, n, end: _strings(s, at, 2, (4, 4, 4), n, end),
    r.OP_CHANNEL: lambda s, at, n, end: _strings(s, at, 4, (4, 4, 4), n, end),
    r.OP_MESSAGE_INDEX: lambda s, at, n, end: _strings(s, at, 2, (4,), n, end),
    r.OP_STATISTICS: lambda s, at, n, end: _strings(s, at, 42, (4,), n, end),
    r.OP_METADATA: lambda s, at, n, end: _strings(s, at, 0, (4, 4), n, end),
    # The checksum behind the data has 4 bytes more.
    r.OP_ATTACHMENT: lambda s, at, n, end: _strings(s, at, 16, (4, 4, 8), n, end),
    r.OP_CHUNK: _chunk_bytes,
}


def chunk_head(source: ScanBytes, record: ScannedRecord, end: int) -> StoredChunk | None:
    """The head of a chunk; None where the source ends inside it."""
    head = source.at(record.data_at, min(32, end - record.data_at))
    if len(head) < 32:
        return None
    _, _, raw_bytes, crc, name_bytes = struct.unpack("<QQQII", head)
    data_at = record.data_at + 32 + name_bytes + 8
    if data_at > end:
        return None
    name = source.at(record.data_at + 32, name_bytes)
    codec = name.decode("ascii", errors="replace") or "none"
    return StoredChunk(data_at, record.end - data_at, raw_bytes, codec, crc)


def is_near(time_ns: int, seen_ns: int | None) -> bool:
    """True when a message of this time can be of the recording whose messages were seen so far."""
    return seen_ns is None or abs(time_ns - seen_ns) <= _NEAR_NS


def believable_message(source: ScanBytes, at: int, channels: Container[int], seen_ns: int | None) -> bool:
    """True when a message's head names a known channel and a time that fits."""
    head = source.at(at, 14)
    return (
        len(head) == 14
        and struct.unpack_from("<H", head)[0] in channels
        and is_near(struct.unpack_from("<Q", head, 6)[0], seen_ns)
    )


@dataclass(frozen=True)
class ScanState:
    """What a scan has learnt, and a candidate is measured by; `outer_only`: what lies inside chunks is not looked for,
    since packed chunks hold much of it as it is, among other things."""

    channels: Container[int]
    seen_ns: int | None
    outer_only: bool


def next_record(source: ScanBytes, at: int, end: int, inner: bool, known: ScanState) -> int | None:
    """Where the next record begins that another one follows."""
    for offset, piece in pieces(source, at, end, r.RECORD_HEAD_BYTES):
        for match in _CANDIDATE.finditer(piece):
            record = parse_record(source, offset + match.start(), end, inner)
            if record.state == "whole" and _is_believable(source, record, end, inner, known):
                return record.at
    return None


def _is_believable(source: ScanBytes, record: ScannedRecord, end: int, inner: bool, known: ScanState) -> bool:
    if known.outer_only and record.op in _INNER:
        return False
    if record.op == r.OP_MESSAGE and not believable_message(source, record.data_at, known.channels, known.seen_ns):
        return False
    if record.end == end:
        return True
    after = parse_record(source, record.end, end, inner)
    strong = record.op in (r.OP_CHUNK, r.OP_SCHEMA, r.OP_CHANNEL)
    return after.state == "whole" or (strong and after.state == "cut")


class McapFraming(Framing):
    """Messages: kind, length, channel, sequence, two times, data."""

    message_op = r.OP_MESSAGE
    parse = staticmethod(parse_record)

    def usual(self, data: NDArray[np.uint8], start: Places, span: Places, held: Places) -> UsualMessages | None:
        before = r.RECORD_HEAD_BYTES + r.MESSAGE_HEAD_BYTES
        if data.size < before:
            return None
        fits = np.minimum(span, held) >= before
        heads = data[np.where(fits, start, 0)[:, None] + np.arange(before)]
        length = np.ascontiguousarray(heads[:, 1:9]).view("<u8")[:, 0]
        channel = np.ascontiguousarray(heads[:, 9:11]).view("<u2")[:, 0].astype(np.int64)
        # Larger ones would be negative numbers.
        which = fits & (heads[:, 0] == r.OP_MESSAGE) & (length >= r.MESSAGE_HEAD_BYTES) & (length < _LONGEST_BYTES)
        return UsualMessages(which, before, length.astype(np.int64) - r.MESSAGE_HEAD_BYTES, channel)

    def channel_and_head(self, raw: bytes, record: ScannedRecord) -> tuple[int, int]:
        return int.from_bytes(raw[record.data_at : record.data_at + 2], "little"), record.data_at + r.MESSAGE_HEAD_BYTES

    def has_next_record(self, source: ChunkBytes, record: ScannedRecord) -> bool:
        end = source.size_bytes
        return parse_record(source, record.end, end, inner=True).state != "bad" or is_padding(source, record.end, end)
