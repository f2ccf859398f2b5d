"""`penstock env --watch`: memory as granted, a process with its workers, and the GPUs, live."""

from __future__ import annotations

import json
import shutil
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from penstock._src.plan.memory.sampler import MemorySample, MemorySampler
from penstock._src.system.limits import Gpu, MemoryLimit, describe_memory, read_gpus, read_memory_limit
from penstock._src.system.units import format_bytes
from penstock.errors import UsageError

_BAR_WIDTH = 40
_GPUS_EVERY_S = 5.0  # nvidia-smi takes a while


@dataclass(frozen=True)
class Reading:
    """What one look shows; `tree` is None where no process is watched."""

    memory: MemoryLimit
    gpus: tuple[Gpu, ...]
    tree: MemorySample | None
    peak_bytes: int

    def lines(self) -> list[str]:
        """For people."""
        used = self.memory.bytes - min(self.memory.available_bytes, self.memory.bytes)
        share = used / self.memory.bytes
        full = round(share * _BAR_WIDTH)
        lines = [f"memory  {'█' * full}{'░' * (_BAR_WIDTH - full)} {share:.0%} · {describe_memory(self.memory)}"]
        if self.tree is not None:
            lines.append(
                f"process {format_bytes(self.tree.own_bytes)} · {self.tree.workers} workers "
                f"{format_bytes(self.tree.workers_bytes)} · peak {format_bytes(self.peak_bytes)}"
            )
        for gpu in self.gpus:
            if gpu.memory_bytes and gpu.free_bytes is not None:
                held = format_bytes(gpu.memory_bytes - gpu.free_bytes)
                lines.append(f"GPU {gpu.index}   {held} of {format_bytes(gpu.memory_bytes)} · {gpu.name}")
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        memory = {name: value for name, value in self.memory._asdict().items() if name != "candidates"}
        gpus = [asdict(gpu) for gpu in self.gpus]
        tree = None if self.tree is None else {**asdict(self.tree), "tree_bytes": self.tree.tree_bytes}
        return {"memory": memory, "gpus": gpus, "tree": tree, "peak_bytes": self.peak_bytes}


class MemoryWatch:
    """Looks again and again until it is interrupted, or `count` times."""

    def __init__(self, pid: int | None, *, every_s: float = 1.0, count: int | None = None) -> None:
        if pid is not None and not Path(f"/proc/{pid}").exists():
            raise UsageError(f"there is no process {pid}", hint="ps lists them")
        self._pid, self._every_s, self._count = pid, every_s, count
        self._sampler = None if pid is None else MemorySampler(pid)
        self._gpus: tuple[Gpu, ...] = ()
        self._gpus_due_s = 0.0
        self._height = 0

    def read(self) -> Reading:
        """One reading."""
        if time.monotonic() >= self._gpus_due_s:
            self._gpus = read_gpus()
            self._gpus_due_s = time.monotonic() + _GPUS_EVERY_S
        tree = None if self._sampler is None else self._sampler.sample()
        peak_bytes = 0 if self._sampler is None else self._sampler.peaks.tree_bytes
        return Reading(read_memory_limit(), self._gpus, tree, peak_bytes)

    def run(self, stream: IO[str] | None = None, *, as_json: bool = False) -> None:
        """Show readings until Ctrl-C, the end of the process, or `count`: one place on a terminal, lines elsewhere."""
        target = sys.stdout if stream is None else stream
        is_live = target.isatty() and not as_json
        shown = 0
        try:
            while self._count is None or shown < self._count:
                if shown:
                    time.sleep(self._every_s)
                if self._pid is not None and not Path(f"/proc/{self._pid}").exists():
                    print(f"process {self._pid} has ended", file=target)
                    break
                reading = self.read()
                if is_live and shown:
                    target.write(f"\x1b[{self._height}F\x1b[J")
                text = [json.dumps(reading.as_dict())] if as_json else reading.lines()
                if is_live:  # a line that wraps would not be drawn over
                    text = [line[: shutil.get_terminal_size().columns - 1] for line in text]
                self._height = len(text)
                print("\n".join(text), file=target, flush=True)
                shown += 1
        except KeyboardInterrupt:
            pass
        if self._sampler is not None and not as_json:
            print(self._sampler.describe(), file=target)
