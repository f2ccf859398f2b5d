"""What the machine grants, and the memory of the run over time: about twice a second while steps are marked."""

from __future__ import annotations

import platform
import sys
import threading
from time import perf_counter_ns
from typing import Any

from penstock._src.profile.record.histogram import Series
from penstock._src.profile.stats import MemoryPoint
from penstock._src.system.limits import read_cpu_limit, read_memory_limit
from penstock._src.system.memory import rss_bytes, tree_pss_bytes

_INTERVAL_NS = 500_000_000
MAX_POINTS = 2048
# Reading the memory of a tree of processes may take the kernel milliseconds: one part in 1,000 of the time, or every
# minute. In between, what this process holds takes microseconds.
_RARITY = 1000
_TREE_NS = 60_000_000_000


class MemorySeries(Series[MemoryPoint]):
    """The memory of this process and its children over time; of points that are merged the highest is kept."""

    def __init__(self) -> None:
        super().__init__(MAX_POINTS, lambda points: max(points, key=lambda each: (each.tree_pss_bytes, each.rss_bytes)))
        self._due_ns = self._tree_due_ns = self._beside_bytes = 0
        self._lock = threading.Lock()

    def look(self) -> None:
        """Take a point where it is time for one: at the end of a step, for a thread of its own would disturb forks."""
        if perf_counter_ns() >= self._due_ns:
            self.sample()

    def sample(self) -> None:
        """Take a point now; what other processes hold is taken as when it was last looked at."""
        now_ns, held_bytes = perf_counter_ns(), rss_bytes()
        self._due_ns = now_ns + _INTERVAL_NS
        if now_ns >= self._tree_due_ns:
            self._beside_bytes = tree_pss_bytes() - held_bytes
            took_ns = perf_counter_ns() - now_ns
            self._tree_due_ns = now_ns + max(_INTERVAL_NS, min(took_ns * _RARITY, _TREE_NS))
        with self._lock:
            self.add(MemoryPoint(now_ns, held_bytes, max(held_bytes + self._beside_bytes, 0)))


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
