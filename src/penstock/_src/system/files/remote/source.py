"""A remote file as a `ByteSource`: ranges of the version that was opened, neighbours together, many at once."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, BinaryIO

from penstock._src.system.files.locations import RemotePath
from penstock._src.system.files.remote.client import Client, ObjectInfo
from penstock._src.system.files.remote.held import BLOCK_BYTES, SMALL_BYTES, TAIL_BYTES, held
from penstock._src.system.files.remote.prefetch import (
    MOST_BYTES,
    Prefetched,
    Range,
    merge_ranges,
    prefetcher,
    table_of,
)
from penstock._src.system.files.remote.requests import pool
from penstock._src.system.files.source import ByteSource, ByteSourceFile, Identity, ReadErrors

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_FILE_BUFFER_BYTES = 256 << 10
_WHOLE_PIECES = 4
_WHOLE_BYTES = 8 << 20
"""A file up to this size that a library reads through is fetched whole: many small reads would each take a request."""


def identity_from(info: ObjectInfo) -> Identity:
    """Size, time and ETag of an object."""
    return Identity(info.size_bytes, info.modified_ns, zlib.crc32((info.etag or "").encode()))


def version_of(url: str, info: ObjectInfo) -> tuple[object, ...]:
    """What pieces of a file are held by: some web servers give no ETag."""
    return url, info.etag or info.modified_ns, info.size_bytes


class RemoteSource(ByteSource):
    """An object of a bucket, or a file of a web server, in the version that it had when it was opened."""

    is_remote = True

    def __init__(
        self, url: str, client: Client, key: str, info: ObjectInfo, errors: ReadErrors | None = None
    ) -> None:  # fmt: skip
        super().__init__(RemotePath(url), info.size_bytes, errors)
        self._client, self._key, self._info = client, key, info
        self._version = version_of(url, info)
        self._table = table_of(self._version)

    def identity(self) -> Identity:
        """Of the version that was opened: every read checks that it still is the one which is there."""
        return identity_from(self._info)

    def sample(self, size_bytes: int | None = None) -> bytes:
        return self._info.etag.encode() if self._info.etag else super().sample(size_bytes)

    def duplicate(self, errors: ReadErrors | None) -> RemoteSource:
        return RemoteSource(str(self.path), self._client, self._key, self._info, errors)

    def close(self) -> None:
        """Nothing is open between two requests."""

    def prefetch(self, ranges: Sequence[Range]) -> Prefetched:
        """These ranges are read next: ask for them now, many at once, within the bytes that are allowed for it."""
        tail = self._tail()
        beyond = self.size_bytes - (TAIL_BYTES if tail is None else len(tail))
        return Prefetched(prefetcher().add(self._table, [each for each in ranges if each[0] < beyond], self._request))

    def warm_tail(self, most_bytes: int) -> None:
        """Hold the end of the file, or all of it where it is not larger than this."""
        whole = self.size_bytes <= max(most_bytes, TAIL_BYTES)
        if self.size_bytes and not self.holds(0 if whole else self.size_bytes - TAIL_BYTES):
            held.replace(self._tail_key, self._request(0 if whole else self.size_bytes - TAIL_BYTES, self.size_bytes))

    def warm_head(self, most_bytes: int) -> None:
        """Hold the beginning of a file that is larger than this."""
        if self.size_bytes > max(most_bytes, TAIL_BYTES):
            held.put((*self._version, 0), self._request(0, BLOCK_BYTES))

    def as_file(self, *, closes: bool = False, buffered: bool = True, short_reads: bool = False) -> BinaryIO:
        if short_reads:
            return RangeFile(self, closes)  # type: ignore[return-value]
        file = WholeFile(self, closes) if self.size_bytes <= _WHOLE_BYTES else ByteSourceFile(self, closes)
        return io.BufferedReader(file, _FILE_BUFFER_BYTES) if buffered else file  # type: ignore[return-value]

    def read_many(self, requests: Iterable[tuple[int, memoryview]]) -> None:
        targets = [(offset, memoryview(target).cast("B")) for offset, target in requests]
        targets = [(offset, target) for offset, target in targets if len(target)]
        for offset, target in targets:
            if offset + len(target) > self.size_bytes:
                raise self._ends(offset, len(target), max(0, self.size_bytes - offset))
        if len(targets) == 1:
            self._read_range(targets[0][1], targets[0][0])
            return
        targets.sort(key=lambda each: each[0])
        calls, at = [], 0
        for span in merge_ranges([(offset, len(target)) for offset, target in targets]):
            first = at
            while at < len(targets) and targets[at][0] + len(targets[at][1]) <= span.end:
                at += 1
            calls.append(partial(self._fill_span, span.begin, span.end, targets[first:at]))
        pool().run_all(calls)

    def _fill_span(self, begin: int, end: int, targets: Sequence[tuple[int, memoryview]]) -> None:
        """One request for several targets; a large target takes several."""
        if end - begin > MOST_BYTES:
            for offset, target in targets:
                for start in range(0, len(target), MOST_BYTES):
                    self._fill_piece_at(target[start : start + MOST_BYTES], offset + start)
            return
        data = self._request(begin, end)
        for offset, target in targets:
            target[:] = data[offset - begin : offset - begin + len(target)]

    def _fill_piece_at(self, target: memoryview, offset: int) -> None:
        target[:] = self._request(offset, offset + len(target))

    def _read_some(self, target: memoryview, offset: int) -> int:
        n_bytes = max(0, min(len(target), self.size_bytes - offset))
        if n_bytes:
            self._read_range(memoryview(target).cast("B")[:n_bytes], offset)
        return n_bytes

    def _read_range(self, target: memoryview, offset: int) -> None:
        if self._from_held(target, offset) or prefetcher().take(self._table, target, offset):
            return
        if len(target) <= MOST_BYTES:
            target[:] = self._read(offset, offset + len(target))
            return
        starts = range(0, len(target), MOST_BYTES)

        def fill(start: int) -> None:
            stop = min(start + MOST_BYTES, len(target))
            target[start:stop] = self._request(offset + start, offset + stop)

        pool().run_all([partial(fill, start) for start in starts])

    def _from_held(self, target: memoryview, offset: int) -> bool:
        """Whether it is a piece that is kept: the end of the file, or a little of its metadata."""
        end, tail = offset + len(target), self._tail()
        if tail is None and offset >= self.size_bytes - TAIL_BYTES:
            tail = self._read(max(0, self.size_bytes - TAIL_BYTES), self.size_bytes)
            held.put(self._tail_key, tail)
        begin = self.size_bytes - (0 if tail is None else len(tail))
        if tail is not None and offset >= begin:
            target[:] = tail[offset - begin : end - begin]
            return True
        block = offset // BLOCK_BYTES
        begin = block * BLOCK_BYTES
        stop = min(begin + BLOCK_BYTES, self.size_bytes)
        if end > stop:
            return False
        found = held.find((*self._version, block))
        if found is None:
            if len(target) > SMALL_BYTES or self._table.entries:
                return False
            found = self._read(begin, stop)
            held.put((*self._version, block), found)
        target[:] = found[offset - begin : end - begin]
        return True

    def ahead_of(self, offset: int) -> int:
        """How many bytes from an offset on are asked for already; 0 where none are."""
        return prefetcher().ahead_of(self._table, offset)

    def holds(self, offset: int) -> bool:
        """Whether the bytes from an offset to the end are held."""
        tail = self._tail()
        return tail is not None and offset >= self.size_bytes - len(tail)

    def read_pieces(self, target: memoryview) -> None:
        """All of the file, by a few requests at once."""
        step = max(TAIL_BYTES, -(-len(target) // _WHOLE_PIECES))
        pool().run_all(
            [partial(self._fill_piece, target, start, start + step) for start in range(0, len(target), step)]
        )

    def _fill_piece(self, target: memoryview, start: int, stop: int) -> None:
        stop = min(stop, len(target))
        target[start:stop] = self._request(start, stop)

    def _tail(self) -> memoryview | None:
        """The end of the file, of whatever length, where it is held."""
        return held.find(self._tail_key)

    @property
    def _tail_key(self) -> tuple[object, ...]:
        return (*self._version, "tail")

    def _read(self, begin: int, end: int) -> memoryview:
        """One request; where the main thread waits, it hears signals."""
        return self._client.read(self._key, begin, end, self._info.etag)

    def _request(self, begin: int, end: int) -> memoryview:
        """One request in a thread of the pool."""
        return self._client.read_here(self._key, begin, end, self._info.etag)


class WholeFile(ByteSourceFile):
    """A small remote file for a library: the first read that is not of its end brings all of it."""

    def __init__(self, source: RemoteSource, closes: bool) -> None:
        super().__init__(source, closes)
        self._remote = source
        self._data: memoryview | None = None

    def readinto(self, target: WriteableBuffer) -> int:
        at, size_bytes = self.tell(), self._remote.size_bytes
        if self._data is None and (at >= size_bytes - TAIL_BYTES or self._remote.holds(at)):
            return super().readinto(target)
        if self._data is None:
            data = memoryview(bytearray(size_bytes))
            self._remote.read_pieces(data)
            self._data = data
        view = memoryview(target).cast("B")
        piece = self._data[at : at + len(view)]
        view[: len(piece)] = piece
        self.seek(at + len(piece))
        return len(piece)

    def close(self) -> None:
        self._data = None
        super().close()


class RangeFile(ByteSourceFile):
    """A remote file for a decoder: a read gives what was asked for ahead around it, or a part of a usual buffer."""

    def __init__(self, source: RemoteSource, closes: bool) -> None:
        super().__init__(source, closes)
        self._remote = source
        self._begin, self._data = 0, b""

    def readinto(self, target: WriteableBuffer) -> int:
        view, at = memoryview(target).cast("B"), self.tell()
        if not self._begin <= at < self._begin + len(self._data):
            n_bytes = self._remote.ahead_of(at) or max(len(view), _FILE_BUFFER_BYTES)
            self._begin, self._data = at, self._remote.read(at, n_bytes)
        piece = memoryview(self._data)[at - self._begin : at - self._begin + len(view)]
        view[: len(piece)] = piece
        self.seek(at + len(piece))
        return len(piece)

    def close(self) -> None:
        self._data = b""
        super().close()
