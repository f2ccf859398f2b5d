"""Payloads in the order asked, through a few recycled buffers: memory follows `memory_bytes`, never the recording."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from penstock._src.formats.content import ZSTD_MAGIC
from penstock._src.recordings.codecs import check_sizes, decompress_into
from penstock._src.system.closing import on_error
from penstock.errors import LimitExceeded, RecordingCorrupt, RecordingError

BLOCK_BYTES = 4 << 20
BLOCK_MESSAGES = 1024
_ROUND_BYTES = 64 << 10
# A consumer may stall on a slow disk for long, but not for ever.
_WAIT_S = 600.0

PACKED_NOTE = "each message is compressed with zstd, though no metadata.yaml says so; they are decompressed"
_SIZE_BYTES = (0, 2, 4, 8)


class Block:
    """Neighbouring payloads of a request. They are views into a buffer that is reused after `release()`.

    `first` is the position in the request of the first payload; a payload is None only where the recording was opened
    with on_corrupt="count" and the message is lost. A block may be released from any thread, more than once.
    """

    __slots__ = ("_give_back", "file_bytes", "first", "payloads")

    def __init__(
        self,
        first: int,
        payloads: list[memoryview | None],
        file_bytes: int,
        give_back: Callable[[bool], None] | None = None,
    ) -> None:
        self.first = first
        self.payloads = payloads
        self.file_bytes = file_bytes
        # A list, because taking its one element is atomic: two threads cannot give back one buffer twice.
        self._give_back = [give_back] if give_back is not None else []

    def __len__(self) -> int:
        return len(self.payloads)

    def release(self) -> None:
        """Give the buffer back: the payloads must not be used any more."""
        try:
            give_back = self._give_back.pop()
        except IndexError:
            return
        self.payloads = []
        give_back(True)

    def __del__(self) -> None:
        # Not released, yet payloads may live on in the consumer's hands: the buffer leaves the pool and is not reused.
        for give_back in getattr(self, "_give_back", ()):
            give_back(False)


class BufferPool:
    """Recycled buffers of at most `limit_bytes` together; `acquire` waits until enough is released.

    Two buffers are always granted, so that a message larger than the limit can pass while the one before is still held
    (as it is by `for block in fetch(…)`, which lets go of a block only when it has the next).
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._free: list[bytearray] = []
        self._lent_bytes = 0
        self._lent = 0
        self._changed = threading.Condition()

    @property
    def held_bytes(self) -> int:
        """Bytes lent and kept for reuse."""
        with self._changed:
            return self._lent_bytes + sum(map(len, self._free))

    def acquire(self, n_bytes: int) -> bytearray:
        """A buffer of at least `n_bytes`, content undefined."""
        with self._changed:
            while self._lent > 1 and self._lent_bytes + n_bytes > self.limit_bytes:
                self._wait(n_bytes)
            fits = [buffer for buffer in self._free if len(buffer) >= n_bytes]
            if fits:
                buffer = min(fits, key=len)
                self._free.remove(buffer)
            else:
                # Rounded up, so that blocks of nearly one size can share buffers.
                size = n_bytes + (-n_bytes % _ROUND_BYTES if self.limit_bytes >= 16 * _ROUND_BYTES else 0)
                while self._free and self._lent_bytes + size + sum(map(len, self._free)) > self.limit_bytes:
                    self._free.remove(min(self._free, key=len))
                buffer = bytearray(size)
            self._lent += 1
            self._lent_bytes += len(buffer)
            return buffer

    def _wait(self, n_bytes: int) -> None:
        alone = threading.active_count() == 1
        if alone or not self._changed.wait(_WAIT_S):
            raise RecordingError(
                f"fetch needs {n_bytes:,} bytes more, and {self._lent_bytes:,} of its {self.limit_bytes:,} are in "
                f"{self._lent} blocks that were not released",
                hint="call release() on each block when done with it, or give fetch a larger memory_bytes",
            )

    def give_back(self, buffer: bytearray, reuse: bool) -> None:
        """Take a buffer back; safe from any thread."""
        with self._changed:
            self._lent -= 1
            self._lent_bytes -= len(buffer)
            if reuse and self._lent_bytes + sum(map(len, self._free)) + len(buffer) <= self.limit_bytes:
                self._free.append(buffer)
            self._changed.notify_all()


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

    `lose` gets the cause and the position in the request of what cannot be unpacked; without it that is an error.
    """
    pool = BufferPool(memory_bytes)
    most_bytes = min(BLOCK_BYTES, memory_bytes // 4)
    for block in blocks:
        sizes = _sizes_of(block, path, lose)
        # What lies close together in the file may be a thousand times larger here.
        for begin, end in _parts(sizes, most_bytes):
            yield _unpacked(block, begin, sizes[begin:end], pool, path, lose)
        block.release()


def _sizes_of(block: Block, path: Path, lose: Callable[[str, int], None] | None) -> list[int | None]:
    sizes: list[int | None] = []
    for place, payload in enumerate(block.payloads, block.first):
        try:
            sizes.append(None if payload is None else _size_of(payload, place, path))
        except (RecordingCorrupt, LimitExceeded) as error:
            if lose is None:
                raise
            lose(error.message, place)
            sizes.append(None)
    return sizes


def _parts(sizes: list[int | None], most_bytes: int) -> Iterator[tuple[int, int]]:
    """Runs of messages that take at most so many bytes together; one that takes more is a run of its own."""
    begin = total = 0
    for place, size in enumerate(sizes):
        if place > begin and total + (size or 0) > most_bytes:
            yield begin, place
            begin, total = place, 0
        total += size or 0
    yield begin, len(sizes)


def _unpacked(
    block: Block,
    begin: int,
    sizes: list[int | None],
    pool: BufferPool,
    path: Path,
    lose: Callable[[str, int], None] | None,
) -> Block:
    """The messages from `begin` on, of these sizes."""
    buffer = pool.acquire(sum(size or 0 for size in sizes))
    view = memoryview(buffer)
    payloads: list[memoryview | None] = []
    at, first = 0, block.first + begin
    with on_error(partial(pool.give_back, buffer, True)):
        for place, size in enumerate(sizes):
            payload = block.payloads[begin + place]
            if payload is None or size is None:
                payloads.append(None)
                continue
            target = view[at : at + size]
            at += size
            try:
                if payload[:4] == ZSTD_MAGIC:
                    decompress_into("zstd", payload, target, path, 0)
                else:
                    target[:] = payload
                payloads.append(target.toreadonly())
            except RecordingCorrupt as error:
                if lose is None:
                    what = f"message {first + place:,} of those asked for does not decompress"
                    raise RecordingCorrupt(what, path=str(path)) from error
                lose("a compressed message does not decompress", first + place)
                payloads.append(None)
    return Block(first, payloads, block.file_bytes, partial(pool.give_back, buffer))


def _size_of(payload: memoryview, place: int, path: Path) -> int:
    if payload[:4] != ZSTD_MAGIC:
        return len(payload)
    size = zstd_content_bytes(payload)
    if size is None:
        raise RecordingCorrupt(f"compressed message {place} does not state its size", path=str(path))
    check_sizes(path, 0, "zstd", len(payload), size)
    return size
