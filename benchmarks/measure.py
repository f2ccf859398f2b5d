"""Timing a command and its memory, and printing claims: shared by the benchmark scripts."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """One command: how long it took, and the peak RSS summed over its process tree."""

    seconds: float
    peak_rss_bytes: int
    output: str
    own_rss_bytes: int = 0  # the peak of the command alone: processes that it starts one after the other do not add up


@dataclass(frozen=True)
class Claim:
    """A figure with its bar; `holds` says whether it is met."""

    claim: str
    value: float
    bar: str

    @property
    def holds(self) -> bool:
        sign, bound = self.bar.split()
        return self.value <= float(bound) if sign == "<=" else self.value >= float(bound)


def run(
    command: Sequence[str], *, env: dict[str, str] | None = None, memory: bool = True, timeout_s: float | None = None
) -> Run:
    """Run a command to its end. Watching its memory takes a little of its time: not where the time is the claim.

    Past `timeout_s` it is killed, and `subprocess.TimeoutExpired` is raised.
    """
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **(env or {})}
    )
    tree = _TreePeak(process.pid) if memory else None
    try:
        out, errors = process.communicate(timeout=timeout_s)
        seconds = time.perf_counter() - began
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    finally:
        if tree is not None:
            tree.stop()
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}:\n{errors[-3000:]}")
    if tree is None:
        return Run(seconds, 0, out)
    return Run(seconds, tree.peak_bytes, out, tree.own_bytes)


class _TreePeak:
    """Samples VmHWM of every process of a tree; the sum is at least the true peak of the tree's RSS."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._peaks: dict[int, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    @property
    def peak_bytes(self) -> int:
        return sum(self._peaks.values())

    @property
    def own_bytes(self) -> int:
        """The peak of the command itself, without the processes that it started."""
        return self._peaks.get(self._pid, 0)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(0.01):
            for pid in self._tree(self._pid):
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                for line in status.splitlines():
                    if line.startswith("VmHWM:"):
                        self._peaks[pid] = max(self._peaks.get(pid, 0), int(line.split()[1]) * 1024)

    def _tree(self, pid: int) -> list[int]:
        found = [pid]
        try:
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [each for child in task.read_text().split() for each in self._tree(int(child))]
        except OSError:
            pass  # it has just ended
        return found


def alternate(actions: dict[str, list[str]], *, rounds: int, before: dict[str, list[Path]]) -> dict[str, list[Run]]:
    """Time several commands in turn, round after round, so that a noisy moment hits them all; outputs removed first."""
    import shutil

    results: dict[str, list[Run]] = {name: [] for name in actions}
    for _ in range(rounds):
        for name, command in actions.items():
            for path in before.get(name, []):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
            os.sync()  # what the command before left for the disk must not slow this one
            results[name].append(run(command, memory=False))
    return results


def median_seconds(runs: Sequence[Run]) -> float:
    return statistics.median(each.seconds for each in runs)


def finish(claims: Sequence[Claim]) -> None:
    """The claims as a table for people and, last, as one JSON object."""
    print()
    for claim in claims:
        print(f"{'holds' if claim.holds else 'FAILS':<6} {claim.value:>10.3g}  (bar {claim.bar})  {claim.claim}")
    print(json.dumps({"claims": [{**asdict(claim), "holds": claim.holds} for claim in claims]}))
