"""How good predictions were on this machine: one line per run in the cache directory, the newest kept."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from penstock._src.system.units import format_bytes

KEPT = 1000
_NAME = "predictions.jsonl"


class RunOutcome(NamedTuple):
    """A run: what was predicted of it, and what happened."""

    kind: str
    """"convert" or "load"."""
    what: str
    """The data, in a few words: "LeRobot v3.0, view ram"."""
    predicted_peak_bytes: int
    peak_bytes: int
    predicted_rate: float = 0.0
    """Samples/s; 0 where none was predicted."""
    rate: float = 0.0
    time_s: float = 0.0
    counted_bytes: int = 0
    """What the part of the process that was predicted counts itself; `peak_bytes` is then all that the process grew
    by, and the truth lies between. 0: `peak_bytes` is the truth."""
    waited: float | None = None
    """The part of the time that a training waited for batches."""
    is_bound: bool = True
    """Whether the loader set the pace; False: `rate` is that of the training, and says nothing of the prediction."""

    @property
    def memory_error(self) -> float:
        """0.1: the prediction was 10 % above what happened; 0 within what is known of it."""
        return self.predicted_peak_bytes / max(self._compared_bytes, 1) - 1

    @property
    def _compared_bytes(self) -> int:
        """What is known of the peak lies between two figures: the nearest to the prediction."""
        least = self.counted_bytes or self.peak_bytes
        return min(max(self.predicted_peak_bytes, least), max(self.peak_bytes, least))

    @property
    def rate_error(self) -> float | None:
        return self.predicted_rate / self.rate - 1 if self.predicted_rate and self.rate and self.is_bound else None

    @property
    def line(self) -> str:
        """One line for people."""
        peak, predicted = format_bytes(self.peak_bytes), format_bytes(self.predicted_peak_bytes)
        error = f"{self.memory_error:+.0%}"
        if self.counted_bytes:
            peak = f"{format_bytes(self.counted_bytes)} counted, {peak} with all of the process"
            is_between = self._compared_bytes == self.predicted_peak_bytes
            error = "between the two" if is_between else f"{error} of {format_bytes(self._compared_bytes)}"
        text = f"peak memory {peak}, predicted {predicted} ({error})"
        if not self.rate:
            return text
        text += f" · {self.rate:,.0f} samples/s, predicted {self.predicted_rate:,.0f} "
        if self.rate_error is not None:
            return text + f"({self.rate_error:+.0%})"
        return text + f"(not limited by the loader: the training waited {self.waited or 0:.0%} of the time)"


def record(outcome: RunOutcome, directory: Path) -> None:
    """Add a run. A history that cannot be written is no reason to fail."""
    stamped = {**outcome._asdict(), "time_s": outcome.time_s or time.time()}
    with contextlib.suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / _NAME).open("a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(json.dumps(stamped) + "\n")
            file.flush()
            _shorten(file.fileno(), directory / _NAME)


def _shorten(descriptor: int, path: Path) -> None:
    """Keep the newest; half of them go at a time, so that this is rare."""
    lines = path.read_bytes().splitlines(keepends=True)
    if len(lines) > KEPT:
        kept = b"".join(lines[-KEPT // 2 :])
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, kept, 0)


def read_history(directory: Path) -> list[RunOutcome]:
    """All runs, the oldest first; lines that are no runs are left out."""
    try:
        text = (directory / _NAME).read_text(encoding="utf-8")
    except OSError:
        return []
    return list(_parsed(text.splitlines()))


def _parsed(lines: Sequence[str]) -> Iterator[RunOutcome]:
    known = set(RunOutcome._fields)
    for line in lines:
        try:
            tree = json.loads(line)
            yield RunOutcome(**{name: value for name, value in tree.items() if name in known})
        except (ValueError, TypeError, AttributeError):
            continue


class Summary(NamedTuple):
    """Of the runs of one kind."""

    kind: str
    runs: int
    memory_error: float
    """The median of the sizes of all errors: 0.1 is 10 %."""
    worst_memory_error: float
    rate_error: float | None


def summaries(history: Sequence[RunOutcome]) -> list[Summary]:
    import statistics

    summaries = []
    for kind in sorted({each.kind for each in history}):
        own = [each for each in history if each.kind == kind]
        rates = [abs(each.rate_error) for each in own if each.rate_error is not None]
        sizes = [abs(each.memory_error) for each in own]
        summaries.append(
            Summary(kind, len(own), statistics.median(sizes), max(sizes), statistics.median(rates) if rates else None)
        )
    return summaries
