"""Which row each thread of the engine is at: after a crash in a codec, the training process knows the image."""

from __future__ import annotations

import itertools
import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.source import SampleSource
from penstock._src.stores.store import ImageArray, ImageSource, Scratch
from penstock._src.system.files import Prefetch, memory_file
from penstock.errors import ImageError, StoreCorrupt

_THREADS = 1024
_WORD = 8
_IDLE = -1


@dataclass(frozen=True)
class RowRef:
    """One image: the number of its store in the loader, the number of its column there, its row."""

    source: int
    column: int
    row: int


class RowMarks:
    """Shared memory with three numbers per thread: the row that it reads or decodes now."""

    def __init__(self, fd: int | None = None) -> None:
        """A new one, or the one that another process has made."""
        size = _THREADS * 3 * _WORD
        self.fd = memory_file("penstock-rows") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, size)
        self._map = mmap.mmap(self.fd, size)
        self._words = memoryview(self._map).cast("q")
        self._places: dict[int, int] = {}
        self._numbers = itertools.count()  # of threads; no two that come at once get the same
        if fd is None:
            self.clear()

    def put(self, source: int, column: int, row: int) -> None:
        """The calling thread begins with this row; -1: it is done."""
        thread = threading.get_ident()
        place = self._places.get(thread)
        if place is None:
            place = self._places[thread] = next(self._numbers) % _THREADS * 3
        words = self._words
        words[place], words[place + 1], words[place + 2] = source, column, row

    def clear(self) -> None:
        """No thread is at any row."""
        for number in range(_THREADS):
            self._words[3 * number + 2] = _IDLE

    def read(self) -> set[RowRef]:
        """The rows that threads are at, or were when they ended."""
        words = self._words
        marks = (RowRef(*words[3 * number : 3 * number + 3]) for number in range(_THREADS))
        return {mark for mark in marks if mark.row != _IDLE}

    def close(self) -> None:
        """Give the memory back; more than once is fine."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._words.release()
            self._map.close()
            os.close(fd)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if getattr(self, "fd", -1) >= 0:
            close(self.fd)  # as an argument: when the interpreter ends, the module's names are gone before this


class GuardedReader(ImageSource):
    """The images of a column, each marked while it is read and decoded; refused rows are errors, and not touched."""

    def __init__(self, inner: ImageSource, marks: RowMarks, source: int, column: int, refused: frozenset[int]) -> None:
        self._inner, self._marks = inner, marks
        self._source, self._column, self._refused = source, column, refused
        self.scratch_bytes = inner.scratch_bytes
        self.pixel_order = inner.pixel_order

    def read(self, rows: Sequence[int], scratch: Scratch) -> Iterator[ImageArray]:
        mark, source, column = self._marks.put, self._source, self._column
        stop = next((number for number, row in enumerate(rows) if row in self._refused), len(rows))
        images = iter(self._inner.read(rows[:stop], scratch))  # a reader may fetch ahead
        try:
            for row in rows[:stop]:
                mark(source, column, row)
                image = next(images, None)
                if image is None:
                    return
                yield image
            if stop < len(rows):
                raise StoreCorrupt("decoding it ended the engine process twice: the file is damaged there")
        finally:
            mark(source, column, _IDLE)

    def prefetch(self, rows: Sequence[int]) -> Prefetch | None:
        return self._inner.prefetch(rows)

    def keys(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._inner.keys(rows)

    def runs(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._inner.runs(rows)

    @property
    def largest_bytes(self) -> int:
        return self._inner.largest_bytes

    def read_block(self, rows: Sequence[int], memory: NDArray[np.uint8]) -> list[ImageArray | ImageError]:
        return self._inner.read_block(rows, memory)


def guard_source(source: SampleSource, number: int, marks: RowMarks, refused: frozenset[RowRef]) -> None:
    """Mark what is read of a source, which has this number in the loader."""
    for place, column in enumerate(source.images):
        rows = frozenset(each.row for each in refused if (each.source, each.column) == (number, place))
        source.images[place] = replace(column, reader=GuardedReader(column.reader, marks, number, place, rows))
