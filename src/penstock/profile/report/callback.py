"""A snapshot as a flat dict of floats, for wandb.log, TensorBoard's add_scalar or a line of JSON.

wandb.log(penstock.profile.callback(), step=step)
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.profile.record.difference import between
from penstock.profile.report.figures import StageRow, peak_bytes, stage_rows
from penstock.system.units import plain

if TYPE_CHECKING:
    from penstock.profile.snapshot import Snapshot


def scalars(snapshot: Snapshot, *, since: Snapshot | None = None, prefix: str = "penstock") -> dict[str, float]:
    """Values by name: `penstock/data_wait_share`, `penstock/03b_image_decode/p95_ms`, …

    With `since`, an earlier snapshot of the same run, steps, means, shares, calls and percentiles are those between
    the two; without it, those since the beginning.
    """
    if not prefix.strip("/"):
        raise UsageError("the prefix of the values is empty", hint='use prefix="penstock"')
    seen = snapshot if since is None else between(since, snapshot)
    values: dict[str, float] = {}

    def put(name: str, value: float | None) -> None:
        # Names that become the same word keep apart; a value that is no number would break a logger.
        if value is None or not math.isfinite(value):
            return
        key = base = f"{prefix.rstrip('/')}/{name}"
        number = 2
        while key in values:
            key, number = f"{base} ({number})", number + 1
        values[key] = float(value)

    steps = seen.steps
    if steps.count:
        put("steps", snapshot.steps.count)
        put("step/mean_ms", steps.total_ns / steps.count / 1e6)
        put("steps_per_s", steps.count / steps.total_ns * 1e9 if steps.total_ns else None)
        put("data_wait_ms", steps.wait_total_ns / steps.count / 1e6)
        put("data_wait_share", steps.wait_share)
    if snapshot.steps.count and since is None:
        for name, ns in (("p50", steps.p50_ns), ("p95", steps.p95_ns), ("p99", steps.p99_ns)):
            put(f"step/{name}_ms", ns / 1e6)
    for row in stage_rows(seen):
        for name, value in _stage_values(row):
            put(f"{_key(row.label)}/{name}", value)
    for name, count in snapshot.counters.items():
        put(f"counters/{_key(name)}", count)
    for name, gauge in snapshot.gauges.items():
        put(f"gauges/{_key(name)}", gauge.last)
    if snapshot.memory:
        last = snapshot.memory[-1]
        put("memory/rss_bytes", last.rss_bytes)
        put("memory/tree_pss_bytes", last.tree_pss_bytes)
        put("memory/peak_bytes", peak_bytes(snapshot))
    return values


def _stage_values(row: StageRow) -> list[tuple[str, float | None]]:
    return [
        ("mean_ms", row.mean_ns / 1e6),
        ("p50_ms", row.p50_ns / 1e6),
        ("p95_ms", row.p95_ns / 1e6),
        ("p99_ms", row.p99_ns / 1e6),
        ("total_s", row.total_ns / 1e9),
        ("self_s", row.self_ns / 1e9),
        ("calls", row.calls),
        ("share", row.share),
    ]


def _key(name: str) -> str:
    """A name as a part of a key: one line, no path of its own."""
    return plain(name).replace("/", "_").strip() or "_"
