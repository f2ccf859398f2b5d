"""Compressed chunks into buffers of a size known beforehand: a false size is an error, never an allocation."""

from __future__ import annotations

import bz2
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from penstock._src.recordings.file_window import recover_hint
from penstock._src.recordings.recovery.scan_bytes import ScanBytes
from penstock.errors import LimitExceeded, RecordingCorrupt, RecordingError

CODECS = ("none", "lz4", "bz2", "zstd")
MAX_CHUNK_BYTES = 1 << 30

# What is small may be as empty as it likes (a black image); what is large must have cost something to store.
_SMALL_BYTES = 64 << 20
_MOST_EXPANSION = 128
_PREFIX_STEPS_BYTES = (1 << 20, 4096, 1)
_STORED_SPARE_BYTES = 1 << 20


class StoredChunk(NamedTuple):
    """Where the stored bytes of a chunk lie, and what becomes of them; CRC 0 is not checked."""

    data_at: int
    stored_bytes: int
    raw_bytes: int
    codec: str = "none"
    crc: int = 0
    is_part: bool = False  # the stream is cut, and decoded as far as it goes


def check_sizes(path: Path, offset: int, codec: str, stored_bytes: int, raw_bytes: int) -> None:
    """Refuse sizes that a chunk cannot have, before a byte is read or allocated for it."""
    if codec not in CODECS:
        raise RecordingError(
            f"{path}: byte {offset:,}: chunk compressed with {codec!r}", hint=f"penstock reads {', '.join(CODECS)}"
        )
    for what, size in (("stored", stored_bytes), ("decompressed", raw_bytes)):
        if size > MAX_CHUNK_BYTES:
            raise LimitExceeded(
                f"{path}: byte {offset:,}: chunk claims {size:,} {what} bytes; the limit is {MAX_CHUNK_BYTES:,}",
                size=size,
                limit=MAX_CHUNK_BYTES,
                hint=f"the file is damaged or hostile; {recover_hint(path)}",
            )
    most = max(_SMALL_BYTES, stored_bytes * _MOST_EXPANSION)
    if codec != "none" and raw_bytes > most:
        raise LimitExceeded(
            f"{path}: byte {offset:,}: {stored_bytes:,} bytes of {codec} claim to decompress to {raw_bytes:,}, "
            f"and at most {most:,} are accepted",
            size=raw_bytes,
            limit=most,
            hint=f"the file is damaged or hostile; {recover_hint(path)}",
        )


def decompress_into(codec: str, stored: memoryview, target: memoryview, path: Path, offset: int) -> None:
    """Fill `target` exactly; RecordingCorrupt when the stream is broken, or holds fewer or more bytes."""
    try:
        filled, more = _into(codec, stored, target)
    except (OSError, ValueError, EOFError) as error:
        raise RecordingCorrupt(
            f"{codec} chunk of {len(stored):,} bytes does not decompress: {error}", path=str(path), offset=offset
        ) from error
    if filled != len(target) or more:
        actual = f"more than {filled:,}" if more else f"{filled:,}"
        raise RecordingCorrupt(
            f"{codec} chunk claims {len(target):,} decompressed bytes and holds {actual}", path=str(path), offset=offset
        )


def _into(codec: str, stored: memoryview, target: memoryview) -> tuple[int, bool]:
    """Bytes that were filled, and whether the stream goes on."""
    # The stream fills our recycled buffer and stops there; pyarrow.decompress would allocate afresh for every chunk.
    with _stream(codec, stored) as stream:
        filled = 0
        while filled < len(target):
            got = stream.readinto(target[filled:])
            if not got:
                break
            filled += got
        more = bool(stream.read(1)) if filled == len(target) else False
    return filled, more


def compress(codec: str, data: bytes | bytearray | memoryview) -> bytes | bytearray | memoryview:
    """A chunk's bytes as they are stored."""
    if codec == "none":
        return data
    if codec == "bz2":
        return bz2.compress(data)
    import pyarrow as pa

    packed: bytes = pa.compress(data, codec=codec, asbytes=True)
    return packed


def decode_prefix(codec: str, source: ScanBytes, begin: int, end: int, limit_bytes: int = MAX_CHUNK_BYTES) -> bytearray:
    """What a stream in a range of the source decodes to, up to where it is cut or broken, or to the limit.

    The libraries give out whole blocks: rosbag writes an lz4 chunk as one, so that nothing comes of it when it is cut.
    """
    # What does not shrink is stored a little larger than it is.
    most = limit_bytes + limit_bytes // 32 + _STORED_SPARE_BYTES
    stored = source.at(begin, min(end - begin, limit_bytes if codec == "none" else most))
    if codec == "none":
        return bytearray(stored)
    made = bytearray()
    read_prefix(lambda: _stream(codec, stored), made.extend, limit_bytes)
    return made


def _stream(codec: str, stored: bytes | memoryview) -> Any:
    if codec == "bz2":
        return bz2.BZ2File(io.BytesIO(stored))
    import pyarrow as pa

    return pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(stored)), codec)


def read_prefix(opened: Callable[[], Any], take: Callable[[bytes], object], limit_bytes: int) -> bool:
    """Give what a compressed stream decodes to, up to where it breaks, to `take`; True when it ended well.

    A read that fails keeps what it had decoded to itself: finer rounds fetch that too.
    """
    done = 0
    for step in _PREFIX_STEPS_BYTES:
        try:
            with opened() as stream:
                skipped = 0
                while skipped < done and (piece := stream.read(min(_PREFIX_STEPS_BYTES[0], done - skipped))):
                    skipped += len(piece)
                while done < limit_bytes and (piece := stream.read(min(step, limit_bytes - done))):
                    take(piece)
                    done += len(piece)
            return True
        except (OSError, ValueError, EOFError) as error:
            if getattr(error, "errno", None) is not None:
                raise  # the disk, not the stream
    return False
