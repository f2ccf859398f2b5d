"""A snapshot as a trace for ui.perfetto.dev and chrome://tracing: threads, steps and memory on one time axis."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from penstock._src.profile.record import session
from penstock._src.profile.report.figures import MAIN_THREAD, stage_rows
from penstock._src.profile.schema import replacing
from penstock._src.profile.stats import Snapshot, SpanEvent, ThreadEvents

GPU_THREADS = ("GPU", "CUDA")
_GPU_SORT = 1_000_000  # below all threads
_MOST_DEPTH = 512

Record = dict[str, Any]


def export_trace(path: str | os.PathLike[str], snapshot: Snapshot | None = None) -> Path:
    """Write the last events of all threads for Perfetto or chrome://tracing, compressed where `path` ends in .gz."""
    taken = session.snapshot() if snapshot is None else snapshot
    is_packed = Path(path).suffix == ".gz"
    with (
        replacing(path, "the trace") as scratch,
        gzip.open(scratch, "wt", encoding="utf-8") if is_packed else scratch.open("w", encoding="utf-8") as out,
    ):
        out.write('{"displayTimeUnit":"ms","otherData":' + _dumps(_about(taken)) + ',"traceEvents":[\n')
        before = ""
        for record in trace_events(taken):
            out.write(before + _dumps(record))
            before = ",\n"
        out.write("\n]}\n")
    return Path(path)


def trace_events(snapshot: Snapshot) -> Iterator[Record]:
    """The events of the trace, one after the other: names of processes and threads first."""
    zero_ns = _zero_ns(snapshot)
    yield from _process_names(snapshot)
    taken: dict[int, int] = {}
    for thread in snapshot.events:
        pid = thread.process
        for number, track in enumerate(_nesting_tracks(thread.events)):
            tid = taken[pid] = taken.get(pid, 0) + 1
            title = thread.thread if number == 0 else f"{thread.thread} (overlapping {number})"
            yield _meta("thread_name", pid, tid, name=title)
            order = _GPU_SORT if _is_gpu(thread) else 0 if thread.thread == MAIN_THREAD else tid
            yield _meta("thread_sort_index", pid, tid, sort_index=order)
            category = "gpu" if _is_gpu(thread) else "span"
            for event in track:
                where = {"pid": pid, "tid": tid, "ts": (event.start_ns - zero_ns) / 1000}
                yield {"ph": "X", "name": event.name, "cat": category, **where, "dur": event.duration_ns / 1000}
    yield from _steps(snapshot, zero_ns)
    yield from _counters(snapshot, zero_ns)


def _dumps(value: Any) -> str:
    # Lone surrogates of a name would not be UTF-8: escapes are, and every JSON reader takes them.
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _about(snapshot: Snapshot) -> Record:
    return {
        "program": "penstock",
        "steps": snapshot.steps.count,
        "taken_at": snapshot.taken_at,
        "gpu_stages_ms": {row.name: round(row.mean_ns / 1e6, 4) for row in stage_rows(snapshot) if row.is_gpu},
        "lost": {name: count for name, count in snapshot.lost.items() if count},
    }


def _zero_ns(snapshot: Snapshot) -> int:
    """The moment that the trace calls 0: the first of everything in it."""
    moments = [event.start_ns for thread in snapshot.events for event in thread.events]
    moments += [point.start_ns for point in snapshot.steps.series]
    moments += [point.time_ns for point in snapshot.memory] + [epoch.start_ns for epoch in snapshot.epochs]
    return min(moments, default=snapshot.start_ns)


def _is_gpu(thread: ThreadEvents) -> bool:
    return thread.thread.split(" ")[0] in GPU_THREADS


def _meta(kind: str, pid: int, tid: int, **args: Any) -> Record:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0.0, "args": args}


def _process_names(snapshot: Snapshot) -> Iterator[Record]:
    names = {snapshot.process: "main"}
    for thread in snapshot.events:
        if thread.process != snapshot.process:
            names.setdefault(thread.process, thread.process_name or "worker")
        elif thread.process_name:
            names[thread.process] = thread.process_name
    for order, pid in enumerate(sorted(names, key=lambda pid: (pid != snapshot.process, pid))):
        yield _meta("process_name", pid, 0, name=f"{names[pid]} ({pid})")
        yield _meta("process_sort_index", pid, 0, sort_index=order)


def _nesting_tracks(events: Sequence[SpanEvent]) -> list[list[SpanEvent]]:
    """Events in tracks on which any two either lie apart or one within the other, as a trace must have them.

    One thread gives one track. A buffer that several threads or streams wrote to may overlap: what does, moves on.
    """
    tracks: list[list[SpanEvent]] = []
    ends: list[list[int]] = []  # of each track: where its open events end, the outermost first
    for event in sorted(events, key=lambda each: (each.start_ns, -each.duration_ns, each.depth)):
        end_ns = event.start_ns + event.duration_ns
        for track, open_ends in zip(tracks, ends, strict=True):
            while open_ends and open_ends[-1] <= event.start_ns:
                open_ends.pop()
            if len(open_ends) < _MOST_DEPTH and (not open_ends or open_ends[-1] >= end_ns):
                track.append(event)
                open_ends.append(end_ns)
                break
        else:
            tracks.append([event])
            ends.append([end_ns])
    return tracks


def _steps(snapshot: Snapshot, zero_ns: int) -> Iterator[Record]:
    """Steps and epochs as async events: a track of their own above the threads."""
    pid, thinned = snapshot.process, snapshot.steps.steps_per_point
    for point in snapshot.steps.series:
        args = {"wait_ms": round(point.wait_ns / 1e6, 4), "duration_ms": round(point.duration_ns / 1e6, 4)}
        if thinned > 1:
            args["mean_of_steps"] = thinned
        yield from _async("step", point.step, pid, point.start_ns - zero_ns, point.duration_ns, args)
    for epoch in snapshot.epochs:
        args = {"steps": epoch.steps, "wait_ms": round(epoch.wait_ns / 1e6, 4)}
        yield from _async("epoch", epoch.epoch, pid, epoch.start_ns - zero_ns, epoch.duration_ns, args)


def _async(kind: str, number: int, pid: int, start_ns: int, duration_ns: int, args: Record) -> Iterator[Record]:
    common = {"cat": kind, "name": f"{kind} {number}", "id": f"{kind}{number}", "pid": pid, "tid": 0}
    yield {"ph": "b", **common, "ts": start_ns / 1000, "args": args}
    yield {"ph": "e", **common, "ts": (start_ns + duration_ns) / 1000}


def _counters(snapshot: Snapshot, zero_ns: int) -> Iterator[Record]:
    pid = snapshot.process
    for point in snapshot.memory:
        held = {"process": round(point.rss_bytes / 2**20, 3), "with children": round(point.tree_pss_bytes / 2**20, 3)}
        yield _counter("memory (MiB)", pid, point.time_ns - zero_ns, held)
    for step in snapshot.steps.series:
        busy_ns = max(0, step.duration_ns - step.wait_ns)
        parts = {"data wait": round(step.wait_ns / 1e6, 4), "the rest": round(busy_ns / 1e6, 4)}
        yield _counter("step (ms)", pid, step.start_ns - zero_ns, parts)
    end_ns = max(snapshot.taken_ns - zero_ns, 0)
    for name, value in snapshot.counters.items():  # only their sums are known: one value, at the end
        yield _counter(name, pid, end_ns, {"sum": value})


def _counter(name: str, pid: int, at_ns: int, values: Record) -> Record:
    return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": at_ns / 1000, "args": values}
