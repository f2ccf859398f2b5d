"""What a scan reads from: a file through a small window, or a chunk that was decompressed; bounds are the caller's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Protocol

from penstock.errors import RecordingError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WINDOW_BYTES = 256 << 10
_SEARCH_BYTES = 1 << 20


class ScanBytes(Protocol):
    """Bytes by position; `size` is where they end."""

    size: int

    def at(self, offset: int, n_bytes: int) -> bytes:
        """The bytes from `offset`, fewer where the source ends."""


class ChunkBytes:
    """A decompressed chunk."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = data
        self.size = len(data)

    def at(self, offset: int, n_bytes: int) -> bytes:
        return bytes(self._data[offset : offset + n_bytes])


class FileBytes:
    """A file that is only read, never written."""

    def __init__(self, path: Path, content: Path | None = None, *, fd: int = -1) -> None:
        """`content`: where the bytes lie, when what is at `path` had to be unpacked; or `fd`, which is open already."""
        self.path = path
        self.content = content or path
        try:
            self._fd = os.dup(fd) if fd >= 0 else os.open(self.content, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise RecordingError(f"{path}: cannot be opened: {error.strerror}") from error
        self.size = os.fstat(self._fd).st_size
        self._begin = 0
        self._held = b""

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> FileBytes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def at(self, offset: int, n_bytes: int) -> bytes:
        start = offset - self._begin
        if start >= 0 and start + n_bytes <= len(self._held):
            return self._held[start : start + n_bytes]
        if offset >= self.size:
            return b""
        if n_bytes > _WINDOW_BYTES:
            return self._read(offset, n_bytes)
        self._held, self._begin = self._read(offset, _WINDOW_BYTES), offset
        return self._held[:n_bytes]

    def _read(self, offset: int, n_bytes: int) -> bytes:
        pieces: list[bytes] = []
        n_bytes = min(n_bytes, self.size - offset)
        while n_bytes > 0:
            try:
                piece = os.pread(self._fd, n_bytes, offset)
            except OSError as error:
                raise RecordingError(
                    f"{self.path}: byte {offset:,}: cannot be read: {error.strerror}",
                    hint="the disk itself fails: copy the file with ddrescue first, and recover the copy",
                ) from error
            if not piece:
                break
            pieces.append(piece)
            offset += len(piece)
            n_bytes -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def is_padding(source: ScanBytes, begin: int, end: int) -> bool:
    """True when a range holds nothing but zeros."""
    return all(not any(piece) for _, piece in pieces(source, begin, end))


def pieces(source: ScanBytes, begin: int, end: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) that cover a range; each has `overlap` bytes of the next, for patterns across borders."""
    at = begin
    while at < end:
        yield at, source.at(at, min(_SEARCH_BYTES + overlap, end - at))
        at += _SEARCH_BYTES
