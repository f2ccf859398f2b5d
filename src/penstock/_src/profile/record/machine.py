"""What the machine grants, and the memory of the run over time: about twice a second while steps are marked."""

from __future__ import annotations

import os
import platform
import sys
import threading
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
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        with self._lock:
            self._points: list[MemoryPoint] = []
            self._tree: MemoryPoint | None = None
            self.interval_s = INTERVAL_S
            self.due_ns = self.tree_due_ns = 0

    def look(self) -> None:
        """Take a point where it is time for one: at the end of a step, for a thread of its own would disturb forks."""
        now_ns = perf_counter_ns()
        if now_ns < self.due_ns:
            return
        self.due_ns = now_ns + round(self.interval_s * 1e9)
        if now_ns >= self.tree_due_ns:
            took_s = self.sample()
            self.tree_due_ns = now_ns + round(max(self.interval_s, min(took_s * _RARITY, _TREE_S)) * 1e9)
        else:
            self.glance()

    def sample(self) -> float:
        """Take a point; returns how many seconds that took."""
        began_ns = perf_counter_ns()
        self._tree = MemoryPoint(began_ns, rss_bytes(), tree_pss_bytes())
        self.add(self._tree)
        return (perf_counter_ns() - began_ns) / 1e9

    def glance(self) -> None:
        """A point of what this process holds; the tree is taken to have changed by as much since it was looked at."""
        known = self._tree
        if known is None:
            self.sample()
            return
        held_bytes = rss_bytes()
        tree_bytes = max(known.tree_pss_bytes + held_bytes - known.rss_bytes, 0)
        self.add(MemoryPoint(perf_counter_ns(), held_bytes, tree_bytes))

    def add(self, point: MemoryPoint) -> None:
        """Append a point."""
        with self._lock:
            self._points.append(point)
            if len(self._points) >= MAX_POINTS:
                self._points = self._points[::2]
                self.interval_s *= 2

    @property
    def points(self) -> tuple[MemoryPoint, ...]:
        """All points, oldest first."""
        with self._lock:
            return tuple(self._points)


_series = MemorySeries()


def memory_series() -> MemorySeries:
    """The memory of this process and of those that it started."""
    return _series


def _begin_anew() -> None:
    global _series
    _series = MemorySeries()


os.register_at_fork(after_in_child=_begin_anew)


# The machine

_machine: dict[str, Any] = {}
_machine_lock = threading.Lock()


def machine() -> dict[str, Any]:
    """What the machine grants to this process, and what others have measured of it."""
    with _machine_lock:
        if "cores" not in _machine:
            cpus, memory = read_cpu_limit(), read_memory_limit()
            _machine.update(
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
    """Add figures that were measured (JSON values), such as storage_bytes_per_s, to the `machine` of snapshots."""
    with _machine_lock:
        _machine.update(facts)
