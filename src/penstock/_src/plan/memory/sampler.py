"""`MemorySampler`: the memory of a process tree over time, and its peaks, in constant memory; a plot as text or SVG."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from penstock._src.system.files import write_file
from penstock._src.system.memory import PeakMeter, descendants, pss_bytes
from penstock._src.system.units import format_bytes, format_duration_ns
from penstock.errors import UsageError

_MOST_SAMPLES = 1024
_RARITY = 20  # looking takes at most one part in so many of the time
_BARS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class MemorySample:
    """A tree of processes at one moment. Sizes are PSS: pages that processes share count once."""

    seconds: float
    own_bytes: int
    workers_bytes: int
    workers: int
    gpu_bytes: int = 0
    """Reserved by torch in this process, on all devices."""

    @property
    def tree_bytes(self) -> int:
        return self.own_bytes + self.workers_bytes


@dataclass(frozen=True)
class MemoryPeaks:
    """The most that was seen, each by itself."""

    own_bytes: int
    tree_bytes: int
    worker_bytes: int
    """Of the largest single worker."""
    workers: int
    gpu_bytes: int


class MemorySampler:
    """Looks at a process and all that it started, again and again, in a thread of its own.

    >>> with MemorySampler() as sampler:                                             # doctest: +SKIP
    ...     train()
    >>> print(sampler.describe(), sampler.plot(), sep="\\n")                          # doctest: +SKIP

    It keeps about a thousand samples: when there are more, every second one goes, of those to come too. Peaks are of
    all. The peak of this process itself is the kernel's, so that none is missed.
    """

    def __init__(self, pid: int | None = None, *, every_s: float = 0.1) -> None:
        if not every_s > 0:
            raise UsageError(f"every_s={every_s!r}: a number of seconds above 0")
        self._pid = os.getpid() if pid is None else pid
        self._every_s = every_s
        self._meter = PeakMeter() if self._pid == os.getpid() else None
        self._lock = threading.Lock()
        self._samples: list[MemorySample] = []
        self._peaks = MemoryPeaks(0, 0, 0, 0, 0)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = time.monotonic()
        self._keep_every, self._seen = 1, 0

    def start(self) -> MemorySampler:
        """Begin; what an earlier run recorded is dropped."""
        self.stop()
        with self._lock:
            self._samples, self._peaks = [], MemoryPeaks(0, 0, 0, 0, 0)
            self._keep_every, self._seen = 1, 0
        self._stop.clear()
        self._began = time.monotonic()
        if self._meter is not None:
            self._meter = PeakMeter()
            self._meter.__enter__()
        self.sample()
        self._thread = threading.Thread(target=self._work, name="penstock-sampler", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> MemorySampler:
        """End, with a last look; more than once is fine."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self.sample()
            if self._meter is not None:
                self._meter.__exit__(None, None, None)
        return self

    def __enter__(self) -> MemorySampler:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def sample(self) -> MemorySample:
        """Look now."""
        sizes = [pss_bytes(pid) for pid in descendants(self._pid)]
        sample = MemorySample(
            time.monotonic() - self._began, pss_bytes(self._pid), sum(sizes), len(sizes), self._gpu_bytes()
        )
        with self._lock:
            peaks = self._peaks
            self._peaks = MemoryPeaks(
                max(peaks.own_bytes, sample.own_bytes),
                max(peaks.tree_bytes, sample.tree_bytes),
                max([peaks.worker_bytes, *sizes]),
                max(peaks.workers, sample.workers),
                max(peaks.gpu_bytes, sample.gpu_bytes),
            )
            if self._seen % self._keep_every == 0:
                self._samples.append(sample)
            self._seen += 1
            if len(self._samples) >= _MOST_SAMPLES:
                self._samples = self._samples[::2]
                self._keep_every *= 2
        return sample

    @property
    def samples(self) -> tuple[MemorySample, ...]:
        """Oldest first, at most about a thousand."""
        with self._lock:
            return tuple(self._samples)

    @property
    def peaks(self) -> MemoryPeaks:
        """The most so far."""
        own = self._meter.peak_bytes if self._meter is not None else 0
        with self._lock:
            peaks = self._peaks
        return MemoryPeaks(
            max(peaks.own_bytes, own), max(peaks.tree_bytes, own), peaks.worker_bytes, peaks.workers, peaks.gpu_bytes
        )

    def describe(self) -> str:
        """One line: the peaks."""
        peaks = self.peaks
        words = [f"peak {format_bytes(peaks.tree_bytes)}", f"this process {format_bytes(peaks.own_bytes)}"]
        if peaks.workers:
            words.append(f"{peaks.workers} workers, the largest {format_bytes(peaks.worker_bytes)}")
        if peaks.gpu_bytes:
            words.append(f"GPU {format_bytes(peaks.gpu_bytes)} reserved")
        return " · ".join(words)

    def plot(self, width: int = 60, height: int = 8) -> str:
        """The tree over time as text."""
        samples = self.samples
        if not samples:
            return "no samples"
        top = max(each.tree_bytes for each in samples) or 1
        columns = _columns(samples, width)
        label = len(format_bytes(top))
        lines = []
        for row in range(height, 0, -1):
            marks = "".join(_BARS[_eighths(size / top * height - (row - 1))] for size in columns)
            text = format_bytes(top) if row == height else "0 B" if row == 1 else ""
            lines.append(f"{text:>{label}} │{marks}")
        took = format_duration_ns(samples[-1].seconds * 1e9)
        return "\n".join([*lines, f"{'':>{label}} └{'─' * len(columns)}", f"{'':>{label}}  0 … {took}"])

    def save_svg(self, path: str | os.PathLike[str]) -> None:
        """The tree and this process over time as a drawing."""
        from penstock._src.plan.memory.svg import draw

        write_file(Path(path), [draw(self.samples, self.peaks).encode()], fsync=False)

    def _work(self) -> None:
        wait_s = self._every_s
        while not self._stop.wait(wait_s):
            began = time.monotonic()
            self.sample()
            wait_s = max(self._every_s, _RARITY * (time.monotonic() - began))

    def _gpu_bytes(self) -> int:
        torch = sys.modules.get("torch")
        if self._pid != os.getpid() or torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
            return 0
        return sum(torch.cuda.memory_reserved(index) for index in range(torch.cuda.device_count()))

    def __repr__(self) -> str:
        return f"<MemorySampler of process {self._pid}: {self.describe()}>"


def _columns(samples: tuple[MemorySample, ...], width: int) -> list[int]:
    """The largest of each part of the time; a part without samples has that of the one before."""
    end = samples[-1].seconds or 1.0
    columns = [0] * min(width, max(len(samples), 1))
    for each in samples:
        place = min(int(each.seconds / end * len(columns)), len(columns) - 1)
        columns[place] = max(columns[place], each.tree_bytes)
    for place in range(1, len(columns)):
        columns[place] = columns[place] or columns[place - 1]
    return columns


def _eighths(share: float) -> int:
    return max(0, min(8, round(share * 8)))
