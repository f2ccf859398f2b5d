"""The boxes of an MP4 file as a tree in memory, read without trust: no length leads outside its parent."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.errors import VideoError


@dataclass(frozen=True)
class Box:
    """The body of one box, somewhere in a buffer that was read from a file."""

    path: str
    kind: str
    data: bytes
    start: int
    end: int
    base: int
    """Where the buffer begins in the file, for error messages."""

    def error(self, message: str) -> VideoError:
        return VideoError(
            f"{self.path}: byte {self.base + self.start:,}: box {self.kind!r}: {message}",
            hint="the file is damaged or was not written to its end",
        )

    def __len__(self) -> int:
        return self.end - self.start

    def unpack(self, layout: str, at: int = 0) -> tuple[int, ...]:
        needed = struct.calcsize(layout)
        if at + needed > len(self):
            raise self.error(f"{len(self)} bytes, at least {at + needed} are needed")
        return struct.unpack_from(layout, self.data, self.start + at)

    def letters(self, at: int) -> str:
        """The four letters that name a kind of thing."""
        return self.data[self.start + at : self.start + at + 4].decode("latin-1")

    def children(self, at: int = 0) -> Iterator[Box]:
        position = self.start + at
        while self.end - position >= 8:  # up to seven bytes of padding are seen in the wild
            size, raw_kind = struct.unpack_from(">I4s", self.data, position)
            header = 8
            if size == 1:
                (size,) = self.unpack(">Q", position + 8 - self.start)
                header = 16
            elif size == 0:
                size = self.end - position
            kind = raw_kind.decode("latin-1")
            if size < header or size > self.end - position:
                raise self.error(f"holds a box {kind!r} of {size:,} bytes where {self.end - position:,} are left")
            yield Box(self.path, kind, self.data, position + header, position + size, self.base)
            position += size

    def find(self, *kinds: str, at: int = 0) -> Box | None:
        """The box at this path of kinds below, the first of each kind."""
        here = self
        for depth, kind in enumerate(kinds):
            box = next((child for child in here.children(at if depth == 0 else 0) if child.kind == kind), None)
            if box is None:
                return None
            here = box
        return here

    def need(self, *kinds: str) -> Box:
        box = self.find(*kinds)
        if box is None:
            raise self.error(f"has no {'/'.join(kinds)}")
        return box

    def table(self, dtype: str, columns: int, at: int = 4) -> NDArray[np.int64]:
        """A counted table: 32-bit count at `at`, then rows of equal numbers; shape (count, columns)."""
        (count,) = self.unpack(">I", at)
        row_bytes = np.dtype(dtype).itemsize * columns
        if count * row_bytes > len(self) - at - 4:
            raise self.error(f"claims {count:,} rows of {row_bytes} bytes, {len(self) - at - 4:,} bytes are there")
        values = np.frombuffer(self.data, dtype, count * columns, self.start + at + 4)
        return values.astype(np.int64).reshape(count, columns)
