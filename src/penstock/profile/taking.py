"""`snapshot()` and `reset()`: the profile of the whole run at this moment, and beginning it anew."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from pathlib import Path
from typing import Any

from penstock.profile import layout as at
from penstock.profile.board import current_board
from penstock.profile.marks import marks
from penstock.profile.memory_series import memory_series
from penstock.profile.reading import LaneReading, merge_counters, merge_gauges, read_lanes
from penstock.profile.snapshot import Snapshot
from penstock.profile.subject import descriptions

_machine: dict[str, Any] = {}
_machine_lock = threading.Lock()


def snapshot(*, events: bool = True) -> Snapshot:
    """Everything recorded so far by all threads and processes of this run; they go on meanwhile.

    Without `events` (the last calls of every thread, one by one) it takes a third of the time.
    """
    gpu = sys.modules.get("penstock.profile.gpu")  # loaded by whoever times stages of a GPU
    board = current_board()
    lanes = [] if board is None else read_lanes(board, events=events)
    now_ns = time.perf_counter_ns()
    told = marks()
    if memory_series().points:
        memory_series().glance()  # as it is now, however long ago a step looked
    return Snapshot(
        spans=tuple(span for lane in lanes for span in lane.spans),
        counters=merge_counters(lanes),
        gauges=merge_gauges(lanes),
        steps=told.steps(),
        epochs=told.epochs(),
        memory=memory_series().points,
        gpu=() if gpu is None else gpu.stats(),
        machine=machine(),
        subjects=tuple(descriptions()),
        events=(
            *(lane.thread for lane in lanes if lane.thread.events),
            *(() if gpu is None or not events else gpu.events(0 if board is None else board.reset_ns)),
        ),
        lost=_lost(
            lanes,
            threads=0 if board is None else board.words[at.B_LOST_THREADS],
            gpu_spans=0 if gpu is None else gpu.lost(),
        ),
        process=os.getpid(),
        start_ns=now_ns if board is None else board.reset_ns,
        taken_ns=now_ns,
        taken_at=time.time(),
    )


def reset() -> None:
    """Begin anew: what has ended so far, in all threads and processes of this run, does not count any more.

    Nobody is stopped for it. A span that is open now counts as a whole when it ends.
    """
    board = current_board()
    if board is not None:
        board.words[at.B_LOST_THREADS] = 0
        board.reset_ns = time.perf_counter_ns()
    told = marks()
    with told.lock:
        told.clear()
    memory_series().clear()
    if (gpu := sys.modules.get("penstock.profile.gpu")) is not None:
        gpu.reset()


def save(path: str | os.PathLike[str]) -> Path:
    """Take a snapshot and write it as JSON, for `penstock profile`."""
    return snapshot().save(path)


def load(path: str | os.PathLike[str]) -> Snapshot:
    """The snapshot that `save` wrote."""
    return Snapshot.load(path)


def machine() -> dict[str, Any]:
    """What the machine grants to this process, and what others have told of it."""
    from penstock.system.limits import read_cpu_limit, read_memory_limit

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


def _lost(lanes: list[LaneReading], **lost: int) -> dict[str, int]:
    for lane in lanes:
        for name, value in lane.lost.items():
            lost[name] = lost.get(name, 0) + value
    return {name: value for name, value in lost.items() if value}
