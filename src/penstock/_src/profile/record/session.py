"""`snapshot()` and `reset()`: the profile of the whole run at this moment, and beginning it anew."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from pathlib import Path

from penstock._src.profile.record import gpu, registry, spans, steps
from penstock._src.profile.record import layout as at
from penstock._src.profile.record.board import current_board
from penstock._src.profile.record.machine import machine
from penstock._src.profile.record.reader import merge_gauges, read_buffers
from penstock._src.profile.stats import Snapshot, between, sums


def snapshot(*, events: bool = True) -> Snapshot:
    """Everything recorded so far by all threads and processes of this run; they go on meanwhile.

    Without `events` (the last calls of every thread, one by one) it takes a third of the time.
    """
    board, training = current_board(), steps.steps()
    buffers = [] if board is None else read_buffers(board, events=events)
    now_ns = time.perf_counter_ns()
    reset_ns = now_ns if board is None else board.reset_ns
    if training.memory.points:
        training.memory.sample()  # as it is now, however long ago a step looked
    levels = [each for buffer in buffers for each in buffer.levels]
    counters: Counter[str] = Counter()
    for each in levels:
        if each.kind == at.COUNTER:
            counters[each.name] += int(each.sum)
    lost = {
        "threads": 0 if board is None else board.words[at.B_LOST_THREADS],
        "gpu_spans": gpu.lost(),
        "counters": sum(each.lost_levels for each in buffers),
    }
    return Snapshot(
        spans=tuple(span for buffer in buffers for span in buffer.spans),
        counters=counters,
        gauges=merge_gauges(levels),
        steps=training.stats(),
        epochs=training.epochs(),
        memory=training.memory.points,
        gpu=gpu.stats(),
        machine=machine(),
        loaders=tuple(registry.loader_infos()),
        events=(
            *(buffer.thread for buffer in buffers if buffer.thread.events),
            *(gpu.events() if events else ()),
        ),
        lost={name: value for name, value in lost.items() if value},
        process=os.getpid(),
        start_ns=reset_ns,
        taken_ns=now_ns,
        taken_at=time.time(),
    )


def reset() -> None:
    """Begin anew: what has ended so far, in all threads and processes of this run, does not count any more.

    Nobody is stopped for it. A span that is open now counts as a whole when it ends.
    """
    board = current_board()
    if board is not None:
        board.reset(time.perf_counter_ns())
    for part in (steps, gpu, registry):
        part.begin_anew()


def save(path: str | os.PathLike[str]) -> Path:
    """Take a snapshot and write it as JSON, for `penstock profile`."""
    return snapshot().save(path)


load = Snapshot.load


# Epochs

_by_epoch: deque[tuple[int, Snapshot]] = deque(maxlen=16)
_last_end: Snapshot | None = None


def mark_epoch(number: int | None = None) -> None:
    """An epoch ends here (numbered on from 0 unless `number` says otherwise)."""
    global _last_end
    if spans.is_enabled():
        now_ns = time.perf_counter_ns()
        given = None if number is None else spans.whole_number(number, "mark_epoch(number)")
        epoch = steps.steps().mark_epoch(given, now_ns)
        end = sums(snapshot(events=False))
        _by_epoch.append((epoch, end if _last_end is None else between(_last_end, end)))
        _last_end = end


def of_epoch(epoch: int) -> Snapshot | None:
    """What was recorded in an epoch, the last one of that number; None where that is not known any more."""
    return dict(list(_by_epoch)).get(epoch)
