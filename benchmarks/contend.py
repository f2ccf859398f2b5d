"""Contenders that take turns: each a process of its own that plays a round when it is asked, and rests in between."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"


class Contender:
    """A script of `peers/` (or `load_contender.py`) with its Python; started at once, ready when `about` is read."""

    def __init__(self, name: str, script: str, *words: object, python: str = sys.executable) -> None:
        self.name = name
        self.rates: list[float] = []
        self._cpu_s: list[float] = []
        self.last: dict[str, Any] = {}
        path = PEERS / script if (PEERS / script).exists() else HERE / script
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, str(path), *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )
        self.about = self._answer()

    def play(self) -> dict[str, Any]:
        """One round."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        self.last = self._answer()
        self.rates.append(self.last["per_s"])
        self._cpu_s.append(self.last["cpu_s"] / self.last["samples"])
        return self.last

    @property
    def per_s(self) -> float:
        return statistics.median(self.rates)

    @property
    def cpu_s(self) -> float:
        """Of one sample, all threads together."""
        return statistics.median(self._cpu_s)

    @property
    def has_workers(self) -> bool:
        return bool(self.about.get("workers"))

    def line(self, unit: str = "samples") -> str:
        message = f"{len(self.rates)} rounds: {_rate(min(self.rates))}–{_rate(max(self.rates))}"
        if not self.has_workers:  # what they take is not seen from here
            message += f"; {1e3 * self.cpu_s:.2f} ms of CPU each"
        return f"{self.name:<52} {_rate(self.per_s):>10} {unit}/s   ({message})"

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._complaints.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            self._complaints.seek(0)
            raise ContenderFailed(f"{self.name} ended with {code}:\n{self._complaints.read()[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.1f}"


class ContenderFailed(SystemExit):
    """A contender ended before it answered; the text is what it said."""


class Contest:
    """Several contenders on the same data, in rounds: a noisy moment hits them all. A context manager."""

    def __init__(self) -> None:
        self._all: list[Contender] = []

    def add(self, name: str, script: str, *words: object, python: str = sys.executable) -> Contender:
        self._all.append(Contender(name, script, *words, python=python))
        return self._all[-1]

    def play(self, rounds: int, *, units: Sequence[str] = ()) -> None:
        """Let them take turns, then print a line for each."""
        for _ in range(rounds):
            for contender in self._all:
                contender.play()
        for number, contender in enumerate(self._all):
            print(contender.line(*units[number : number + 1]), flush=True)

    def __enter__(self) -> Contest:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for contender in self._all:
            contender.close()
