"""A snapshot as a flat dict of floats, for wandb.log, TensorBoard's add_scalar or a line of JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from penstock._src.profile.record import session
from penstock._src.profile.record.histogram import Durations
from penstock._src.profile.report.figures import peak_bytes, stage_rows
from penstock._src.profile.stats import Snapshot, between
from penstock._src.system.units import plain


def callback(since: Snapshot | None = None, *, snapshot: Snapshot | None = None) -> dict[str, float]:
    """Values by name: `penstock/data_wait_share`, `penstock/03b_image_decode/p95_ms`, …

    With `since`, an earlier snapshot of the same run, steps, means, shares, calls and percentiles are those between
    the two; without it, those since the beginning.
    """
    taken = session.snapshot(events=False) if snapshot is None else snapshot
    values = _values(taken, since)
    # A value that is no number would break a logger.
    return {f"penstock/{name}": float(value) for name, value in values if value is not None and math.isfinite(value)}


def _values(snapshot: Snapshot, since: Snapshot | None) -> Iterator[tuple[str, float | None]]:
    seen = snapshot if since is None else between(since, snapshot)
    steps = seen.steps
    if steps.count:
        yield "steps", snapshot.steps.count
        yield "step/mean_ms", steps.mean_ns / 1e6
        yield "steps_per_s", 1e9 / steps.mean_ns if steps.total_ns else None
        yield "data_wait_ms", steps.wait_mean_ns / 1e6
        yield "data_wait_share", steps.wait_share
        if since is None:
            yield from _times("step", steps, ("p50", "p95", "p99"))
    for row in stage_rows(seen):
        key = _key(row.label)
        yield from _times(key, row, ("mean", "p50", "p95", "p99"))
        yield f"{key}/total_s", row.total_ns / 1e9
        yield f"{key}/self_s", row.self_ns / 1e9
        yield f"{key}/calls", row.count
        yield f"{key}/share", row.share
    for name, count in snapshot.counters.items():
        yield f"counters/{_key(name)}", count
    for name, gauge in snapshot.gauges.items():
        yield f"gauges/{_key(name)}", gauge.last
    if snapshot.memory:
        last = snapshot.memory[-1]
        yield "memory/rss_bytes", last.rss_bytes
        yield "memory/tree_pss_bytes", last.tree_pss_bytes
        yield "memory/peak_bytes", peak_bytes(snapshot)


def _times(key: str, durations: Durations, names: Iterable[str]) -> Iterator[tuple[str, float]]:
    for name in names:
        yield f"{key}/{name}_ms", getattr(durations, f"{name}_ns") / 1e6


def _key(name: str) -> str:
    """A name as a part of a key: one line, no path of its own."""
    return plain(name).replace("/", "_").strip() or "_"
