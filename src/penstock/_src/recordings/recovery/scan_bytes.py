"""What a scan reads from: a file through a small window, or a chunk that was decompressed; bounds are the caller's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple, Protocol

from penstock._src.system.closing import Closing
from penstock._src.system.files import ByteSource, ByteWindow, ReadErrors, open_source
from penstock.errors import RecordingError

_WINDOW_BYTES = 256 << 10
_JUMP_BYTES = 4096
_SEARCH_BYTES = 1 << 20


class ScanBytes(Protocol):
    """Bytes by position."""

    size_bytes: int

    def at(self, offset: int, n_bytes: int) -> bytes:
        """The bytes from `offset`, fewer where the source ends."""


State = Literal["whole", "cut", "bad"]


class ScannedRecord(NamedTuple):  # a frozen dataclass takes four times as long to make
    """What lies at a position: a whole record, one that reaches beyond the end, or none."""

    at: int
    state: State
    why: str = ""
    op: int = 0
    data_at: int = 0
    end: int = 0
    fields: Mapping[bytes, bytes] = MappingProxyType({})  # of its header, in bags

    @property
    def length(self) -> int:
        return self.end - self.data_at

    def number(self, name: bytes) -> int:
        return int.from_bytes(self.fields[name], "little")

    def text(self, name: bytes) -> str:
        return self.fields[name].decode("utf-8", errors="replace")


class ChunkBytes:
    """A decompressed chunk."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = data
        self.size_bytes = len(data)

    def at(self, offset: int, n_bytes: int) -> bytes:
        return bytes(self._data[offset : offset + n_bytes])


class _ScanErrors(ReadErrors):
    def cannot_read(self, path: Path, offset: int, error: Exception) -> Exception:
        why = error.strerror if isinstance(error, OSError) else error
        return RecordingError(
            f"{path}: byte {offset:,}: cannot be read: {why}",
            hint="the disk itself fails: copy the file with ddrescue first, and recover the copy",
        )


_ERRORS = _ScanErrors(RecordingError)


class FileBytes(Closing, ByteWindow):
    """A file that is only read, never written."""

    def __init__(self, path: Path, content: Path | None = None, *, source: ByteSource | None = None) -> None:
        """`content`: where the bytes lie, when what is at `path` had to be unpacked; or `source`, open already."""
        self.content = content or path
        super().__init__(source.duplicate(_ERRORS) if source else open_source(self.content, _ERRORS), _JUMP_BYTES)
        self.path = path

    def at(self, offset: int, n_bytes: int, ahead: int = 0) -> bytes:
        """The more is read in a row, the more is read ahead; what a large record holds may be skipped."""
        held_end = self._begin + len(self._held)
        if offset < self._begin or offset + n_bytes > held_end:
            goes_on = self._begin <= offset <= held_end
            self.ahead_bytes = min(4 * self.ahead_bytes, _WINDOW_BYTES) if goes_on else _JUMP_BYTES
        return super().at(offset, n_bytes, ahead)

    def close(self) -> None:
        self.source.close()


def is_padding(source: ScanBytes, begin: int, end: int) -> bool:
    """True when a range holds nothing but zeros."""
    return all(not any(piece) for _, piece in pieces(source, begin, end))


def pieces(source: ScanBytes, begin: int, end: int, overlap: int = 0) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) that cover a range; each has `overlap` bytes of the next, for patterns across borders."""
    at = begin
    while at < end:
        yield at, source.at(at, min(_SEARCH_BYTES + overlap, end - at))
        at += _SEARCH_BYTES
