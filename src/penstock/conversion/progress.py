"""How far a job is: who wants to know, and a count that neither goes back nor beyond the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.conversion.job import RecordingPlan
    from penstock.conversion.report import Stage


class Progress(Protocol):
    """Who wants to know how far the job is; every method may do nothing."""

    def plan(self, plan: RecordingPlan) -> None: ...
    def moved(self, done_bytes: int, total_bytes: int) -> None: ...
    def stage(self, stage: Stage) -> None: ...
    def note(self, text: str) -> None: ...


class Silence:
    """Nobody wants to know."""

    def plan(self, plan: RecordingPlan) -> None: ...
    def moved(self, done_bytes: int, total_bytes: int) -> None: ...
    def stage(self, stage: Stage) -> None: ...
    def note(self, text: str) -> None: ...


class MovedBytes:
    """Bytes of all recordings so far; a second pass, or a chunk that is unpacked twice, does not count again."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def __call__(self, before_bytes: int, recording_bytes: int, first_row: int, rows: int, pass_bytes: int) -> None:
        """A pass that began at row `first_row` of `rows` has read `pass_bytes`, after recordings of `before_bytes`."""
        within = recording_bytes * first_row // max(rows, 1) + pass_bytes
        done = min(before_bytes + min(within, recording_bytes), self._total_bytes)
        self._done_bytes = max(self._done_bytes, done)
        self._progress.moved(self._done_bytes, self._total_bytes)
