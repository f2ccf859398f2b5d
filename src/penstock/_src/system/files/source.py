"""Bytes by position: what every reader reads from, whatever they are stored on."""

from __future__ import annotations

import errno
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from penstock._src.system.closing import Closing
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_FILE_BUFFER_BYTES = 256 << 10
_SAMPLE_BYTES = 4096


class ReadErrors:
    """The exceptions of one kind of reader: `opening` where bytes cannot be opened, `reading` where they are broken.

    A reader that has words of its own derives from this class.
    """

    def __init__(self, opening: type[PenstockError], reading: type[PenstockError] | None = None) -> None:
        self.opening = opening
        self.reading = reading or opening

    def cannot_open(self, path: Path, error: OSError) -> Exception:
        return self.opening(f"{path}: cannot be opened: {error.strerror}")

    def cannot_read(self, path: Path, offset: int, error: Exception) -> Exception:
        return self.reading(f"{path}: byte {offset:,} cannot be read: {error}")

    def ends(self, path: Path, offset: int, n_bytes: int, got_bytes: int) -> Exception:
        """`got_bytes` of the `n_bytes` from `offset` are there."""
        return self.reading(
            f"{path}: byte {offset + got_bytes:,} lies beyond the end of the file", hint="the file is cut or damaged"
        )


class Identity(NamedTuple):
    """What tells that bytes are still the same. Of remote bytes, `inode` and `device` are numbers of their version."""

    size_bytes: int
    mtime_ns: int
    inode: int = 0
    device: int = 0

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        # Half the time of cls(…): stores ask before every batch of rows.
        return tuple.__new__(cls, (status.st_size, status.st_mtime_ns, status.st_ino, status.st_dev))


def identity_of(path: Path) -> Identity:
    """The identity of a file that need not be open."""
    return Identity.of(path.stat())


class Prefetch:
    """Ranges that were asked for ahead of being read; closing it drops what nobody read. Local files need none."""

    def close(self) -> None:
        """More than once is fine."""


class ByteSource(Closing, ABC):
    """Bytes of a known size, read by position; any number of threads may read at once.

    An implementation gives `_read_some`, `identity`, `duplicate` and `close`; one whose requests take long also gives
    its own `read_many`. Whatever fails in them is raised as OSError and becomes the error of the reader here.
    """

    is_remote = False
    """Whether a read takes so long that it pays to ask for ranges ahead."""

    def __init__(self, path: Path, size_bytes: int, errors: ReadErrors | None = None) -> None:
        """`errors`: None leaves OSError as it is."""
        self.path = path
        self.size_bytes = size_bytes
        self.errors = errors

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.size_bytes:,} bytes)"

    @abstractmethod
    def _read_some(self, target: memoryview, offset: int) -> int:
        """Fill the beginning of `target` from `offset`; how many bytes that were, 0 at the end."""

    @abstractmethod
    def identity(self) -> Identity:
        """What the bytes are now; not what they were when they were opened."""

    @abstractmethod
    def duplicate(self, errors: ReadErrors | None) -> ByteSource:
        """The same bytes for a reader with other errors, closed by itself."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open. A second call does nothing."""

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill `target` (bytes in one dimension, also of an array) with the bytes from `offset`, all of them."""
        view = memoryview(target)
        if (done := self._fill(view, offset)) < len(view):
            raise self._ends(offset, len(view), done)

    def read_many(self, requests: Iterable[tuple[int, memoryview]]) -> None:
        """Fill every target with the bytes from its offset."""
        for offset, target in requests:
            self.read_into(target, offset)

    def prefetch(self, ranges: Sequence[tuple[int, int]]) -> Prefetch:
        """These ranges (offset, bytes) are read next; a source whose requests take long asks for them now."""
        return Prefetch()

    def read(self, offset: int, n_bytes: int) -> bytes:
        """The bytes from `offset`; fewer where they end before."""
        data = memoryview(bytearray(max(0, min(n_bytes, self.size_bytes - offset))))
        return bytes(data[: self._fill(data, offset)])

    def read_exactly(self, offset: int, n_bytes: int) -> bytes:
        """The bytes from `offset`, all of them."""
        data = self.read(offset, n_bytes)
        if len(data) != n_bytes:
            raise self._ends(offset, n_bytes, len(data))
        return data

    def sample(self, size_bytes: int | None = None) -> bytes:
        """A few KiB: beginning, middle and end (of the size that they had).

        With size and time of change they tell bytes from others that were put in their place with the same time, and a
        copy elsewhere stays the same.
        """
        last = max((self.size_bytes if size_bytes is None else size_bytes) - _SAMPLE_BYTES, 0)
        return b"".join(self.read(offset, _SAMPLE_BYTES) for offset in sorted({0, last // 2, last}))

    def as_file(self, *, closes: bool = False, buffered: bool = True, short_reads: bool = False) -> BinaryIO:
        """A seekable file object, for a library that takes one. `closes`: it closes the source with itself. Not
        `buffered`: it reads what is asked for and no byte more. `short_reads`: a read may give
        less than is asked for."""
        file = ByteSourceFile(self, closes)
        return io.BufferedReader(file, _FILE_BUFFER_BYTES) if buffered else file  # type: ignore[return-value]

    def _fill(self, view: memoryview, offset: int) -> int:
        """Read until the view is full or the bytes end; how many there were."""
        done = 0
        while done < len(view):
            try:
                got = self._read_some(view[done:], offset + done)
            except (OSError, OverflowError, ValueError) as error:
                raise self._cannot_read(offset + done, error) from error
            if not got:
                break
            done += got
        return done

    def _cannot_read(self, offset: int, error: Exception) -> Exception:
        if self.errors is None or isinstance(error, PenstockError):
            return error
        return self.errors.cannot_read(self.path, offset, error)

    def _ends(self, offset: int, n_bytes: int, got_bytes: int) -> Exception:
        if self.errors is None:
            return OSError(errno.EIO, f"ends at byte {offset + got_bytes:,}", str(self.path))
        return self.errors.ends(self.path, offset, n_bytes, got_bytes)


class LocalSource(ByteSource):
    """An open local file; closed at the latest when nobody refers to it any more."""

    def __init__(self, path: Path, descriptor: int, errors: ReadErrors | None = None) -> None:
        """Takes over the descriptor."""
        self.descriptor = descriptor
        super().__init__(path, os.fstat(descriptor).st_size, errors)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if self.descriptor >= 0:
            close(self.descriptor)  # as an argument: when the interpreter ends, the module's names are gone before this

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1  # a late read cannot hit another file
        if descriptor >= 0:
            os.close(descriptor)

    def identity(self) -> Identity:
        return Identity.of(os.fstat(self.descriptor))

    def duplicate(self, errors: ReadErrors | None) -> LocalSource:
        return LocalSource(self.path, os.dup(self.descriptor), errors)

    def _read_some(self, target: memoryview, offset: int) -> int:
        return os.preadv(self.descriptor, (target,), offset)

    def read_into(self, target: memoryview, offset: int) -> None:
        try:
            got = os.preadv(self.descriptor, (target,), offset)
        except (OSError, OverflowError, ValueError):
            got = -1
        if got != len(target):
            super().read_into(target, offset)  # asked again: the rest, or the error in words

    def read(self, offset: int, n_bytes: int) -> bytes:
        try:
            data = os.pread(self.descriptor, n_bytes, offset)
            while data and len(data) < n_bytes:
                piece = os.pread(self.descriptor, n_bytes - len(data), offset + len(data))
                if not piece:
                    break
                data += piece
        except (OSError, OverflowError, ValueError) as error:
            raise self._cannot_read(offset, error) from error
        return data


class ByteWindow:
    """Small reads at rising positions of a source, many of them answered by one request."""

    def __init__(self, source: ByteSource, ahead_bytes: int = 0) -> None:
        """`ahead_bytes`: how much is read at once where a call does not say it."""
        self.source = source
        self.path = source.path
        self.size_bytes = source.size_bytes
        self.ahead_bytes = ahead_bytes
        self._begin = 0
        self._held = b""

    def at(self, offset: int, n_bytes: int, ahead: int = 0) -> bytes:
        """The bytes from `offset`, fewer where the source ends; `ahead`: so many will be asked for next."""
        start = offset - self._begin
        if start < 0 or start + n_bytes > len(self._held):
            if (left_bytes := self.size_bytes - offset) <= 0:
                return b""
            if n_bytes > (ahead := ahead or self.ahead_bytes):  # too much to be held for the next call
                return self.source.read(offset, min(n_bytes, left_bytes))
            self._held, self._begin, start = self.source.read(offset, min(ahead, left_bytes)), offset, 0
        return self._held[start : start + n_bytes]


class ByteSourceFile(io.RawIOBase):
    """A position in a source."""

    def __init__(self, source: ByteSource, closes: bool) -> None:
        self._source = source
        self._closes = closes
        self._at = 0

    def close(self) -> None:
        if self._closes and not self.closed:
            self._source.close()
        super().close()

    @property
    def name(self) -> str:
        return str(self._source.path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size_bytes}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, f"byte {start + offset:,} lies before the beginning", self.name)
        self._at = start + offset
        return self._at

    def readinto(self, target: WriteableBuffer) -> int:
        view = memoryview(target).cast("B")
        view = view[: max(0, self._source.size_bytes - self._at)]
        if view:
            self._source.read_into(view, self._at)
            self._at += len(view)
        return len(view)
