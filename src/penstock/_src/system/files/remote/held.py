"""Small pieces of remote files that are read again and again: their ends (indexes, footers) and blocks of metadata."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

HELD_BYTES = 24 << 20
"""What they take together, of all files of a process."""
TAIL_BYTES = 64 << 10
"""One request for the end of a file: holds the index of a video of 14,000 frames, or the footer of most tables."""
BLOCK_BYTES = 32 << 10
SMALL_BYTES = 4 << 10
"""A read of so little is one of metadata: the block around it is read, for the next is near."""


class HeldPieces:
    """Pieces by key, the most lately used ones."""

    def __init__(self, limit_bytes: int = HELD_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._pieces: OrderedDict[Hashable, memoryview] = OrderedDict()
        self._total_bytes = 0
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._after_fork)

    def find(self, key: Hashable) -> memoryview | None:
        with self._lock:
            found = self._pieces.get(key)
            if found is not None:
                self._pieces.move_to_end(key)
            return found

    def get(self, key: Hashable, read: Callable[[], memoryview]) -> memoryview:
        """A piece; where it is not held, `read` is called (by two threads, if both come first)."""
        found = self.find(key)
        if found is None:
            found = read()
            self.put(key, found)
        return found

    def put(self, key: Hashable, piece: memoryview) -> None:
        with self._lock:
            if key in self._pieces:
                return
            self._pieces[key] = piece
            self._total_bytes += len(piece)
            while self._total_bytes > self._limit_bytes and len(self._pieces) > 1:
                _, dropped = self._pieces.popitem(last=False)
                self._total_bytes -= len(dropped)

    def replace(self, key: Hashable, piece: memoryview) -> None:
        """A longer piece takes the place of a shorter one."""
        with self._lock:
            self._total_bytes -= len(self._pieces.pop(key, b""))
        self.put(key, piece)

    def clear(self) -> None:
        with self._lock:
            self._pieces.clear()
            self._total_bytes = 0

    def _after_fork(self) -> None:
        self._lock = threading.Lock()


held = HeldPieces()
