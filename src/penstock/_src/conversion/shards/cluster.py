"""A Ray cluster: connecting to it, what its nodes have, and refusing a task that none of them can hold."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock._src.system import units
from penstock.errors import BudgetExceeded, MissingExtra, PenstockError, UsageError

WORKER_BYTES = 96 * 2**20  # a Ray worker before it does anything
NODE_WAIT_S = 300.0  # for a node in place of one that was lost
_OBJECT_STORE_BYTES = 100 * 2**20  # answers are small
_CLIENT = "ray://"


@dataclass(frozen=True)
class ClusterNode:
    """What one node grants to tasks."""

    name: str
    cpus: float
    memory_bytes: int

    def slots(self, cpus: int, memory_bytes: int) -> int:
        """How many tasks of this size it runs at once."""
        return min(int(self.cpus // cpus), self.memory_bytes // max(memory_bytes, 1))


def check_target(on: str) -> None:
    if on != "ray" and not (on.startswith(_CLIENT) and len(on) > len(_CLIENT)):
        raise UsageError(
            f"--on {on}: not known",
            hint="--on ray (RAY_ADDRESS, a cluster on this machine, or a new one here), or "
            "--on ray://HOST:10001 (Ray Client)",
        )


@contextlib.contextmanager
def connected(on: str) -> Iterator[Any]:
    """The module `ray`, connected to the cluster that is asked for; one that is connected already is used."""
    check_target(on)
    try:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray
    except ImportError as error:
        raise MissingExtra("ray", "ray", f"--on {on}") from error
    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if on != "ray":
            ray.init(address=on, **quiet)
        else:
            try:
                ray.init(address="auto", **quiet)
            except ConnectionError:
                if "RAY_ADDRESS" in os.environ:
                    raise
                ray.init(include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES, **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        where = os.environ.get("RAY_ADDRESS", "this machine") if on == "ray" else on
        raise PenstockError(
            f"no Ray cluster answers at {where}: {error}", hint="`ray status` on that machine says what is running"
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


def nodes_of(ray: Any) -> list[ClusterNode]:
    """The nodes that are alive; a head node often has no CPUs."""
    found = []
    for each in ray.nodes():
        if each.get("Alive"):
            resources = each.get("Resources", {})
            name = f"{each.get('NodeManagerHostname', '')}/{str(each.get('NodeID', ''))[:6]}"
            found.append(ClusterNode(name, float(resources.get("CPU", 0)), int(resources.get("memory", 0))))
    return found


def fitting(nodes: list[ClusterNode], cpus: int, memory_bytes: int) -> list[ClusterNode]:
    """The nodes that can hold a task; an error with the numbers where none can: Ray would wait without a word."""
    able = [node for node in nodes if node.slots(cpus, memory_bytes)]
    if able:
        return able
    shown = ", ".join(f"{node.name}: {node.cpus:g} CPUs, {units.format_bytes(node.memory_bytes)}" for node in nodes[:6])
    largest = max((node.memory_bytes for node in nodes if node.cpus >= cpus), default=0)
    raise BudgetExceeded(
        f"a task needs {cpus} CPU{'s' if cpus != 1 else ''} and {units.format_bytes(memory_bytes)}, and no node of the "
        f"cluster can hold it ({shown or 'no node is alive'})",
        size=memory_bytes,
        limit=largest,
        hint="give a smaller --memory or --jobs (both are those of one task), or larger nodes",
    )


class MissingNodes:
    """Whether tasks wait for a node that no longer is there. Another one may come: some clusters replace nodes."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def look(self, nodes: list[ClusterNode], cpus: int, tasks_bytes: Iterable[int]) -> str | None:
        """What to say where that begins; an error with the numbers once it lasts. `tasks_bytes`: of all under way."""
        largest = max((each for each in tasks_bytes if not any(node.slots(cpus, each) for node in nodes)), default=0)
        if not largest:
            self._since_s = None
            return None
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
            return f"no node of the cluster can hold a task of {units.format_bytes(largest)} any more: waiting for one"
        if now_s - self._since_s >= NODE_WAIT_S:
            fitting(nodes, cpus, largest)
        return None


def share_bytes(nodes: list[ClusterNode], cpus: int) -> int:
    """The memory that each task has when a node runs as many as it has CPUs for; that of the most generous node."""
    able = [node for node in nodes if node.cpus >= cpus]
    return max((node.memory_bytes // max(1, int(node.cpus // cpus)) for node in able), default=0)
