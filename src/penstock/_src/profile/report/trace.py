"""A snapshot as a trace for ui.perfetto.dev and chrome://tracing: threads, steps and memory on one time axis."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock._src.profile.record import session
from penstock._src.profile.report.figures import MAIN_THREAD
from penstock._src.profile.schema import replacing
from penstock._src.profile.stats import Snapshot, SpanEvent, ThreadEvents

_GPU_SORT = 1_000_000  # below all threads

Record = dict[str, Any]


def export_trace(path: str | os.PathLike[str], snapshot: Snapshot | None = None) -> Path:
    """Write the last events of all threads for Perfetto or chrome://tracing, compressed where `path` ends in .gz."""
    taken = session.snapshot() if snapshot is None else snapshot
    about = {"program": "penstock", "steps": taken.steps.count, "taken_at": taken.taken_at, "lost": dict(taken.lost)}
    trace = {"displayTimeUnit": "ms", "otherData": about, "traceEvents": list(trace_events(taken))}
    # Lone surrogates of a name would not be UTF-8: escapes are, and every JSON reader takes them.
    data = json.dumps(trace, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode()
    with replacing(path, "the trace") as scratch:
        scratch.write_bytes(gzip.compress(data) if Path(path).suffix == ".gz" else data)
    return Path(path)


def trace_events(snapshot: Snapshot) -> Iterator[Record]:
    """The events of the trace, one after the other: names of processes and threads first."""
    moments = [event.start_ns for thread in snapshot.events for event in thread.events]
    moments += [point.start_ns for point in snapshot.steps.series]
    moments += [point.time_ns for point in snapshot.memory] + [epoch.start_ns for epoch in snapshot.epochs]
    zero_ns = min(moments, default=snapshot.start_ns)
    names = {snapshot.process: "main"}
    for thread in snapshot.events:
        names[thread.process] = thread.process_name or names.get(thread.process, "worker")
    for order, (pid, name) in enumerate(names.items()):
        yield _meta("process_name", pid, 0, name=f"{name} ({pid})")
        yield _meta("process_sort_index", pid, 0, sort_index=order)
    tid = 0
    for thread in snapshot.events:
        category = "gpu" if _is_gpu(thread) else "span"
        for title, order, events in _tracks(thread):
            tid += 1
            yield _meta("thread_name", thread.process, tid, name=title)
            yield _meta("thread_sort_index", thread.process, tid, sort_index=order or tid)
            for event in events:
                where = {"pid": thread.process, "tid": tid, "ts": (event.start_ns - zero_ns) / 1000}
                yield {"ph": "X", "name": event.name, "cat": category, **where, "dur": event.duration_ns / 1000}
    yield from _steps(snapshot, zero_ns)
    yield from _counters(snapshot, zero_ns)


def _meta(kind: str, pid: int, tid: int, **args: Any) -> Record:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0.0, "args": args}


def _is_gpu(thread: ThreadEvents) -> bool:
    return thread.thread.startswith("GPU")


def _tracks(thread: ThreadEvents) -> Iterator[tuple[str, int, list[SpanEvent]]]:
    """(title, order, events): the spans of a thread nest; the stages of a GPU may overlap, so each depth is a track."""
    if not _is_gpu(thread):
        yield thread.thread, -(thread.thread == MAIN_THREAD), sorted(thread.events, key=_place)
        return
    for depth in sorted({each.depth for each in thread.events}):
        title = f"{thread.thread} (overlapping {depth})" if depth else thread.thread
        yield title, _GPU_SORT + depth, sorted((each for each in thread.events if each.depth == depth), key=_place)


def _place(event: SpanEvent) -> tuple[int, int]:
    return event.start_ns, -event.duration_ns


def _steps(snapshot: Snapshot, zero_ns: int) -> Iterator[Record]:
    """Steps and epochs as async events: a track of their own above the threads."""
    spans = [("step", point.step, point.start_ns, point.duration_ns, point.wait_ns) for point in snapshot.steps.series]
    spans += [("epoch", each.epoch, each.start_ns, each.duration_ns, each.wait_ns) for each in snapshot.epochs]
    for kind, number, start_ns, duration_ns, wait_ns in spans:
        common = {"cat": kind, "name": f"{kind} {number}", "id": f"{kind}{number}", "pid": snapshot.process, "tid": 0}
        yield {"ph": "b", **common, "ts": (start_ns - zero_ns) / 1000, "args": {"wait_ms": round(wait_ns / 1e6, 4)}}
        yield {"ph": "e", **common, "ts": (start_ns - zero_ns + duration_ns) / 1000}


def _counters(snapshot: Snapshot, zero_ns: int) -> Iterator[Record]:
    """Memory, and the parts of steps, as curves."""

    def curve(name: str, at_ns: int, values: Record) -> Record:
        at = {"pid": snapshot.process, "tid": 0, "ts": (at_ns - zero_ns) / 1000}
        return {"ph": "C", "name": name, **at, "args": values}

    for point in snapshot.memory:
        held = {"process": round(point.rss_bytes / 2**20, 3), "with children": round(point.tree_pss_bytes / 2**20, 3)}
        yield curve("memory (MiB)", point.time_ns, held)
    for step in snapshot.steps.series:
        busy_ns = max(0, step.duration_ns - step.wait_ns)
        parts = {"data wait": round(step.wait_ns / 1e6, 4), "the rest": round(busy_ns / 1e6, 4)}
        yield curve("step (ms)", step.start_ns, parts)
