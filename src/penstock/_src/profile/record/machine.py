"""What the machine grants, and the memory of the run over time: about twice a second while steps are marked."""

from __future__ import annotations

import platform
import sys
from time import perf_counter_ns
from typing import Any

from penstock._src.profile.stats import MemoryPoint
from penstock._src.system.limits import read_cpu_limit, read_memory_limit
from penstock._src.system.memory import rss_bytes, tree_pss_bytes

INTERVAL_S = 0.5
MAX_POINTS = 2048
# Reading the memory of a tree of processes may take the kernel milliseconds: one part in 1,000 of the time, or every
# minute. In between, what this process holds takes microseconds.
_RARITY = 1000
_TREE_S = 60.0


class MemorySeries:
    """Points in constant memory: when full, every second one is left out and they come half as often."""

    def __init__(self) -> None:
        self.points: tuple[MemoryPoint, ...] = ()
        self._interval_ns = round(INTERVAL_S * 1e9)
        self._due_ns = self._tree_due_ns = self._beside_bytes = 0

    def look(self) -> None:
        """Take a point where it is time for one: at the end of a step, for a thread of its own would disturb forks."""
        if perf_counter_ns() >= self._due_ns:
            self.sample()

    def sample(self) -> None:
        """Take a point now; what other processes hold is taken as when it was last looked at."""
        now_ns, held_bytes = perf_counter_ns(), rss_bytes()
        if now_ns >= self._tree_due_ns:
            self._beside_bytes = tree_pss_bytes() - held_bytes
            took_ns = perf_counter_ns() - now_ns
            self._tree_due_ns = now_ns + max(self._interval_ns, min(took_ns * _RARITY, round(_TREE_S * 1e9)))
        self.points = (*self.points, MemoryPoint(now_ns, held_bytes, max(held_bytes + self._beside_bytes, 0)))
        if len(self.points) >= MAX_POINTS:
            self.points = self.points[::2]
            self._interval_ns *= 2
        self._due_ns = now_ns + self._interval_ns


# The machine

_machine: dict[str, Any] = {}


def machine() -> dict[str, Any]:
    """What the machine grants to this process, and what others have measured of it."""
    if "cores" not in _machine:
        cpus, memory = read_cpu_limit(), read_memory_limit()
        tell_machine(
            cores=cpus.count,
            cores_granted=cpus.granted,
            cores_ruled_by=cpus.ruled_by,
            memory_bytes=memory.bytes,
            memory_ruled_by=memory.ruled_by,
            python=platform.python_version(),
            system=sys.platform,
        )
    return dict(_machine)


def tell_machine(**facts: Any) -> None:
    """Add figures that were measured (JSON values) to the `machine` of snapshots."""
    _machine.update(facts)
