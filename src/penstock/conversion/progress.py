"""How far a job is: who wants to know, and a count that neither goes back nor beyond the whole."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.conversion.report import Stage


class Progress(Protocol):
    """Who wants to know how far the job is; every method may do nothing."""

    def plan(self, lines: Sequence[tuple[str, str]]) -> None: ...
    def moved(self, done_bytes: int, total_bytes: int) -> None: ...
    def stage(self, stage: Stage) -> None: ...
    def note(self, text: str) -> None: ...
    def notes(self, source: str, notes: Sequence[str]) -> None: ...


class Silence:
    """Nobody wants to know."""

    def plan(self, lines: Sequence[tuple[str, str]]) -> None: ...
    def moved(self, done_bytes: int, total_bytes: int) -> None: ...
    def stage(self, stage: Stage) -> None: ...
    def note(self, text: str) -> None: ...
    def notes(self, source: str, notes: Sequence[str]) -> None: ...


class MovedBytes:
    """Bytes of all inputs so far; a second pass, or a chunk that is unpacked twice, does not count again."""

    def __init__(self, progress: Progress, sizes_bytes: Sequence[int]) -> None:
        self._progress = progress
        self._sizes_bytes = array("q", sizes_bytes)
        self._done_bytes = array("q", bytes(8 * len(sizes_bytes)))
        self._total_bytes = sum(sizes_bytes)
        self._moved_bytes = 0

    def __call__(self, number: int, done_bytes: int) -> None:
        """Of input `number`, `done_bytes` have been read."""
        more = min(done_bytes, self._sizes_bytes[number]) - self._done_bytes[number]
        if more > 0:
            self._done_bytes[number] += more
            self._moved_bytes += more
            self._progress.moved(self._moved_bytes, self._total_bytes)

    def done(self, number: int) -> None:
        self(number, self._sizes_bytes[number])
