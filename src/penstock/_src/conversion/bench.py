"""What a conversion takes with several chunk sizes: one process per setting, its memory measured from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from penstock import __version__
from penstock._src.system import memory, units
from penstock._src.system.closing import on_error
from penstock.errors import UsageError

_SAMPLE_INTERVAL_S = 0.02
_ERROR_BYTES = 4000


@dataclass(frozen=True)
class BenchRun:
    """One conversion; what it did not come to say is None."""

    chunk_size: str
    out: str
    exit_code: int
    seconds: float  # of the whole process, from its start to its end
    peak_bytes: int  # of the process and all its children, shared pages once
    predicted_peak_bytes: int | None = None
    budget_bytes: int | None = None
    bytes_in: int | None = None
    episodes: int | None = None
    frames: int | None = None
    lost: int | None = None
    error: str | None = None


@dataclass(frozen=True)
class Bench:
    """All trials of one recording."""

    sources: tuple[str, ...]
    trials: tuple[BenchRun, ...]
    penstock: str = __version__

    @property
    def exit_code(self) -> int:
        """1 when a trial failed, 3 when one lost something, else 0."""
        codes = [trial.exit_code for trial in self.trials]
        if any(code not in (0, 3) for code in codes):
            return 1
        return 3 if 3 in codes else 0

    def dumps(self) -> str:
        return json.dumps({"exit_code": self.exit_code, **asdict(self)}, indent=2) + "\n"

    def lines(self) -> list[str]:
        """The table for people; Markdown, so that it can be kept."""
        rows: list[tuple[str, ...]] = [("chunk_size", "peak memory", "time", "episodes", "rows", "lost")]
        for trial in self.trials:
            peak, took = units.format_bytes(trial.peak_bytes), f"{trial.seconds:.1f} s"
            if trial.error is not None:
                rows.append((trial.chunk_size, peak, took, f"failed ({trial.exit_code})", "–", "–"))
            else:
                counts = (trial.episodes or 0, trial.frames or 0, trial.lost or 0)
                rows.append((trial.chunk_size, peak, took, *(f"{count:,}" for count in counts)))
        failed = [f"chunk_size {trial.chunk_size}: {trial.error}" for trial in self.trials if trial.error is not None]
        above = [
            f"chunk_size {trial.chunk_size}: above the budget of {units.format_bytes(trial.budget_bytes)}"
            for trial in self.trials
            if trial.budget_bytes is not None and trial.peak_bytes > trial.budget_bytes
        ]
        return units.markdown_table(rows) + failed + above


def bench_conversion(
    sources: Sequence[str],
    output_dir: Path,
    chunk_sizes: Sequence[str],
    options: Sequence[str] = (),
    on_trial: Callable[[BenchRun], None] = lambda trial: None,
) -> Bench:
    """Convert `sources` once per chunk size, one after the other; `options` go to `penstock convert` as they are."""
    if len(set(chunk_sizes)) != len(chunk_sizes):
        raise UsageError(f"a chunk size is there twice: {' '.join(chunk_sizes)}")
    output_dir.mkdir(parents=True, exist_ok=True)
    trials = []
    for chunk_size in chunk_sizes:
        out = output_dir / f"chunk_size_{chunk_size}"
        command = [sys.executable, "-m", "penstock", "convert", *sources, str(out)]
        command += [*options, f"rosbag.chunk_size={chunk_size}", "--json"]
        trials.append(_run(command, chunk_size, out))
        on_trial(trials[-1])
    return Bench(tuple(sources), tuple(trials))


def _run(command: Sequence[str], chunk_size: str, out: Path) -> BenchRun:
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        began = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
        with on_error(partial(_stop, process)):
            peak_bytes = _watch(process)
        seconds = time.perf_counter() - began
        report = _report(stdout)
        stderr.seek(max(0, stderr.seek(0, 2) - _ERROR_BYTES))
        complaint = stderr.read().decode("utf-8", "replace").strip()
    code = process.returncode
    if report is None:
        return BenchRun(chunk_size, str(out), code, round(seconds, 3), peak_bytes, error=_error_text(code, complaint))
    return BenchRun(
        chunk_size=chunk_size,
        out=str(out),
        exit_code=code,
        seconds=round(seconds, 3),
        # The conversion reads its own mark from the kernel, which no spike escapes; samples see its children as well.
        peak_bytes=max(peak_bytes, int(report["peak_rss_bytes"])),
        predicted_peak_bytes=int(report["predicted_peak_bytes"]),
        budget_bytes=int(report["budget_bytes"]),
        bytes_in=int(report["bytes_in"]),
        episodes=int(report["episodes"]),
        frames=int(report["frames"]),
        lost=sum(int(count) for count in report["lost"].values()),
    )


def _watch(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end; the most memory that was seen in the process and its children."""
    peak_bytes = 0
    while True:
        try:
            process.wait(_SAMPLE_INTERVAL_S)
            return peak_bytes
        except subprocess.TimeoutExpired:
            peak_bytes = max(peak_bytes, memory.tree_pss_bytes(process.pid))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the conversion, which clears away what is half done."""
    process.terminate()
    process.wait()


def _report(stdout: IO[bytes]) -> dict[str, Any] | None:
    stdout.seek(0)
    try:
        report = json.load(stdout)
    except ValueError:  # it ended before it came to its report
        return None
    return report if isinstance(report, dict) and "peak_rss_bytes" in report else None


def _error_text(code: int, stderr: str) -> str:
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = [line for line in stderr.splitlines() if line.startswith("penstock:")] or stderr.splitlines()
    return lines[-1] if lines else f"exit code {code}"
