"""Compressed streams that are cut or broken: every byte that can still be decoded, and nothing that was guessed."""

from __future__ import annotations

import bz2
from typing import TYPE_CHECKING

from penstock.recordings.codecs import MAX_CHUNK_BYTES
from penstock.recordings.recovery.scan_bytes import pieces

if TYPE_CHECKING:
    from penstock.recordings.recovery.scan_bytes import ScanBytes

_STEP_BYTES = 64 << 10
_STORED_SPARE_BYTES = 1 << 20
_LZ4_MAGIC = 0x184D2204
_LZ4_HISTORY_BYTES = 64 << 10
_LZ4_MOST_BLOCK_BYTES = 4 << 20


def decode_prefix(codec: str, source: ScanBytes, begin: int, end: int, limit_bytes: int = MAX_CHUNK_BYTES) -> bytearray:
    """What a stream in a range of the source decodes to, up to where it is cut or broken, or to the limit."""
    if codec == "none":
        return bytearray(source.at(begin, min(end - begin, limit_bytes)))
    stored = bytearray()
    # What does not shrink is stored a little larger than it is, and a bz2 block is decoded as a whole.
    most = limit_bytes + limit_bytes // 32 + _STORED_SPARE_BYTES
    for _, piece in pieces(source, begin, min(end, begin + most)):
        stored += piece
    if codec == "bz2":
        return _bz2_prefix(stored, limit_bytes)
    made = _arrow_prefix(codec, stored, limit_bytes)
    if codec == "lz4" and len(made) < limit_bytes:
        # rosbag's chunks are one block each, and the library gives out whole blocks only.
        made = _lz4_last_block(stored, made, limit_bytes)
    return made


def _bz2_prefix(stored: bytearray, limit_bytes: int) -> bytearray:
    decompressor, made, data = bz2.BZ2Decompressor(), bytearray(), bytes(stored)
    try:
        while not decompressor.eof and len(made) < limit_bytes:
            piece = decompressor.decompress(data, min(_STEP_BYTES, limit_bytes - len(made)))
            data = b""
            made += piece
            if not piece and decompressor.needs_input:
                break
    except OSError:
        # The block that is broken gives nothing; those before it are in `made`.
        return made
    return made


def _arrow_prefix(codec: str, stored: bytearray, limit_bytes: int) -> bytearray:
    made = bytearray()
    # A read that fails keeps what it had decoded to itself: a second, finer round fetches that too.
    for step in (_STEP_BYTES, 1024, 1):
        if _read_on(codec, stored, made, step, limit_bytes):
            break
    return made


def _read_on(codec: str, stored: bytearray, made: bytearray, step: int, limit_bytes: int) -> bool:
    """Append what lies behind `made` in reads of `step` bytes; True when the stream ended well."""
    import pyarrow as pa

    skip = len(made)
    try:
        with pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(stored)), codec) as stream:
            while skip:
                got = len(stream.read(min(skip, _STEP_BYTES)))
                if not got:
                    return True
                skip -= got
            while len(made) < limit_bytes:
                piece = stream.read(min(step, limit_bytes - len(made)))
                if not piece:
                    return True
                made += piece
    except (OSError, ValueError):
        return False
    return True


def _lz4_last_block(stored: bytearray, made: bytearray, limit_bytes: int) -> bytearray:
    """Decode the cut block behind `made` sequence by sequence, as the frame format allows."""
    blocks = _lz4_blocks(stored)
    if blocks is None or not blocks:
        return made
    begin, size, plain = blocks[-1]
    if begin + size <= len(stored):
        return made  # the last block is whole: nothing is cut inside one
    if plain:
        return made  # the library hands out what it has of a block that is stored as it is
    room = min(limit_bytes, len(made) + _LZ4_MOST_BLOCK_BYTES)
    history = made[-_LZ4_HISTORY_BYTES:]
    return made + lz4_block_prefix(stored[begin:], history, room - len(made))


def _lz4_blocks(stored: bytearray) -> list[tuple[int, int, bool]] | None:
    """(begin, claimed bytes, is plain) of the blocks of a frame; None where it is no frame."""
    if len(stored) < 7 or int.from_bytes(stored[:4], "little") != _LZ4_MAGIC:
        return None
    flags = stored[4]
    at = 7 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)
    checksum_bytes = 4 if flags & 0x10 else 0
    blocks = []
    while at + 4 <= len(stored):
        word = int.from_bytes(stored[at : at + 4], "little")
        size = word & 0x7FFFFFFF
        if not word or size > _LZ4_MOST_BLOCK_BYTES:
            break
        blocks.append((at + 4, size, bool(word >> 31)))
        at += 4 + size + checksum_bytes
    return blocks


def lz4_block_prefix(block: bytes | bytearray, history: bytes | bytearray, limit_bytes: int) -> bytearray:
    """The output of the whole sequences at the beginning of a cut LZ4 block; `history`: the output before it."""
    made, before, at, size = bytearray(history), len(history), 0, len(block)

    def length(nibble: int, at: int) -> tuple[int, int]:
        """A length that goes on in further bytes when its four bits are full; -1 where those are cut off."""
        total, more = nibble, nibble == 15
        while more:
            if at >= size:
                return -1, at
            total += block[at]
            more = block[at] == 255
            at += 1
        return total, at

    while at < size and len(made) - before < limit_bytes:
        token = block[at]
        literals, at = length(token >> 4, at + 1)
        if literals < 0:
            break
        made += block[at : at + literals]
        at += literals
        if at + 2 > size:
            break
        distance = block[at] | block[at + 1] << 8
        matched, at = length(token & 15, at + 2)
        if matched < 0 or not 0 < distance <= len(made):
            break
        _copy_match(made, distance, matched + 4)
    return made[before : before + limit_bytes]


def _copy_match(made: bytearray, distance: int, count: int) -> None:
    start = len(made) - distance
    if count <= distance:
        made += made[start : start + count]
        return
    # An overlapping match repeats itself.
    pattern = bytes(made[start:])
    made += (pattern * (count // distance + 1))[:count]
