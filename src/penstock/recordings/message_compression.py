"""ROS 2 bags whose messages are compressed one by one (rosbag2's compression mode "message")."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import LimitExceeded, RecordingCorrupt
from penstock.formats.content import ZSTD_MAGIC
from penstock.recordings.codecs import check_sizes, decompress_into
from penstock.recordings.fetch import Block, BufferPool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PACKED_NOTE = "each message is compressed with zstd, though no metadata.yaml tells so; they are decompressed"
_SIZE_BYTES = (0, 2, 4, 8)


def zstd_content_bytes(frame: memoryview) -> int | None:
    """The decompressed size that a zstd frame states in its header, None where it states none."""
    if len(frame) < 6 or frame[:4] != ZSTD_MAGIC:
        return None
    descriptor = frame[4]
    single_segment = bool(descriptor & 0x20)
    size_bytes = _SIZE_BYTES[descriptor >> 6] or (1 if single_segment else 0)
    at = 5 + (not single_segment) + (0, 1, 2, 4)[descriptor & 3]
    if not size_bytes or len(frame) < at + size_bytes:
        return None
    return int.from_bytes(frame[at : at + size_bytes], "little") + (256 if size_bytes == 2 else 0)


def decompressed(
    blocks: Iterator[Block], memory_bytes: int, path: Path, lose: Callable[[str, int], None] | None
) -> Iterator[Block]:
    """The same blocks with every compressed payload unpacked; plain ones pass as they are.

    `lose` is told the cause and the position in the request of what cannot be unpacked; without it that is an error.
    """
    pool = BufferPool(memory_bytes)
    for block in blocks:
        yield _unpack_block(block, pool, path, lose)
        block.release()


def _unpack_block(block: Block, pool: BufferPool, path: Path, lose: Callable[[str, int], None] | None) -> Block:
    sizes: list[int | None] = []
    for place, payload in enumerate(block.payloads, block.first):
        try:
            sizes.append(None if payload is None else _size_of(payload, place, path))
        except (RecordingCorrupt, LimitExceeded) as error:
            if lose is None:
                raise
            lose(error.message, place)
            sizes.append(None)
    buffer = pool.acquire(sum(size or 0 for size in sizes))
    view = memoryview(buffer)
    payloads: list[memoryview | None] = []
    at = 0
    try:
        for place, (payload, size) in enumerate(zip(block.payloads, sizes, strict=True), block.first):
            if payload is None or size is None:
                payloads.append(None)
                continue
            target = view[at : at + size]
            at += size
            try:
                _fill(payload, target, place, path)
                payloads.append(target.toreadonly())
            except RecordingCorrupt as error:
                if lose is None:
                    raise
                lose(error.message, place)
                payloads.append(None)
    except BaseException:
        pool.give_back(buffer, True)
        raise
    return Block(block.first, payloads, block.file_bytes, partial(pool.give_back, buffer))


def _size_of(payload: memoryview, place: int, path: Path) -> int:
    if payload[:4] != ZSTD_MAGIC:
        return len(payload)
    size = zstd_content_bytes(payload)
    if size is None:
        raise RecordingCorrupt(f"compressed message {place} does not state its size", path=str(path))
    try:
        check_sizes(path, 0, "zstd", len(payload), size)
    except LimitExceeded as error:
        raise LimitExceeded(
            f"{path}: message {place}: {len(payload):,} bytes of zstd claim to become {size:,}; the limit is "
            f"{error.limit:,}",
            size=size,
            limit=error.limit,
        ) from error
    return size


def _fill(payload: memoryview, target: memoryview, place: int, path: Path) -> None:
    if payload[:4] != ZSTD_MAGIC:
        target[:] = payload
        return
    try:
        decompress_into("zstd", payload, target, path, 0)
    except RecordingCorrupt as error:
        raise RecordingCorrupt(f"message {place} of the request: {error.message}", path=str(path)) from error
