"""What each machine of a distributed conversion does: bytes, rate, memory against its budget, failures."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock._src.conversion.shards.write import GroupResult
from penstock._src.system import units


@dataclass
class NodeRow:
    """One machine."""

    node: str
    groups: int = 0
    bytes_in: int = 0
    seconds: float = 0.0  # of all its tasks together
    peak_bytes: int = 0  # of its largest task
    budget_bytes: int = 0  # of one task
    failed: int = 0  # inputs
    lost: int = 0  # attempts that ended with their process, or with the machine
    running: int = 0
    moving_bytes: int = 0  # of groups that are not done
    held_bytes: int = 0  # now, by all its tasks


class NodeTable:
    """All machines, as results and progress come in."""

    def __init__(self) -> None:
        self._rows: dict[str, NodeRow] = {}
        self._began_s = time.monotonic()

    def row(self, node: str) -> NodeRow:
        return self._rows.setdefault(node, NodeRow(node))

    def add(self, result: GroupResult) -> None:
        row = self.row(result.node)
        row.groups += 1
        row.bytes_in += result.bytes_in
        row.seconds = round(row.seconds + result.seconds, 3)
        row.peak_bytes = max(row.peak_bytes, result.peak_bytes)
        row.budget_bytes = max(row.budget_bytes, result.budget_bytes)
        row.failed += len(result.failed)

    def now(self, running: Mapping[Any, Mapping[str, Any]]) -> None:
        """The last progress of each attempt that runs now."""
        for row in self._rows.values():
            row.running = row.moving_bytes = row.held_bytes = 0
        for progress in running.values():
            row = self.row(str(progress.get("node", "")))
            row.running += 1
            row.moving_bytes += sum(progress.get("moved", {}).values())
            row.held_bytes += int(progress.get("bytes", 0))

    def rows(self) -> tuple[dict[str, Any], ...]:
        """For the report."""
        left_out = ("running", "moving_bytes", "held_bytes")
        rows = sorted(self._rows.values(), key=lambda row: row.node)
        return tuple({key: value for key, value in asdict(row).items() if key not in left_out} for row in rows)

    def lines(self) -> list[str]:
        """For people, one line for each machine."""
        passed_s = max(time.monotonic() - self._began_s, 1e-9)
        return [_line(row, passed_s) for row in sorted(self._rows.values(), key=lambda row: row.node)]


def _line(row: NodeRow, passed_s: float) -> str:
    moved_bytes = row.bytes_in + row.moving_bytes
    rate = f"{units.format_size(int(moved_bytes / passed_s))}/s"
    memory = f"{units.format_bytes(row.held_bytes)} of {units.format_bytes(row.budget_bytes * max(row.running, 1))}"
    faults = f" · {row.failed} failed" if row.failed else ""
    faults += f" · {row.lost} lost" if row.lost else ""
    return (
        f"{row.node}: {row.running} running · {row.groups} groups done · {units.format_size(moved_bytes)} · {rate} · "
        f"{memory}{faults}"
    )
