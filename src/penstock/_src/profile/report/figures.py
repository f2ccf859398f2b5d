"""The figures that every output shows: a row per stage with its share of the step, the data wait, memory, epochs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from penstock._src.profile.record.steps import STEP_ALONE, STEP_BESIDE, WAIT
from penstock._src.profile.stats import Snapshot, SpanStats, merge_spans

MAIN_THREAD = "MainThread"
IDLE = "loader idle"  # a loader that is ahead of the training
BETWEEN_STEPS = re.compile(r"1\d[a-z]?_val|30_checkpoint")  # stages that are part of no step
HIGH_WAIT = 0.1  # of a step
HIGH_COST = 1.1  # times the step alone


class StageRow(NamedTuple):
    """One stage of all threads and processes together; `share` is of the time of all steps, None without steps and
    for validation and checkpoints, which are in none of them.

    A call inside a call of the same name (recursion, tasks at once) is in the total by the outer one; its own duration
    is in `nested_ns`, and counts for the mean as that of any other call.
    """

    name: str
    where: str
    is_gpu: bool
    calls: int
    total_ns: int
    self_ns: int
    max_ns: int
    mean_ns: float
    p50_ns: int
    p95_ns: int
    p99_ns: int
    share: float | None
    nested_ns: int

    @property
    def label(self) -> str:
        """The name, told apart from a host's stage of the same name."""
        return f"{self.name} [GPU]" if self.is_gpu else self.name

    @property
    def is_wait(self) -> bool:
        return self.name == WAIT


class WaitFigures(NamedTuple):
    """The headline: how much of a step the loop waited for data."""

    steps: int
    share: float
    wait_ns: float
    step_ns: float


class LoaderCost(NamedTuple):
    """What the loader adds to a step that does not wait for it: the step while the loader rests, and while it works."""

    alone_ms: float
    beside_ms: float

    @property
    def ratio(self) -> float:
        return self.beside_ms / self.alone_ms

    @property
    def is_high(self) -> bool:
        """Whether it is more than a machine's moods."""
        return self.ratio > HIGH_COST


def loader_cost(snapshot: Snapshot) -> LoaderCost | None:
    """As a penstock loader has measured it in the training; None where it has not, or too few steps were made."""
    alone, beside = (snapshot.gauges.get(name) for name in (STEP_ALONE, STEP_BESIDE))
    return None if alone is None or beside is None or alone.last <= 0 else LoaderCost(alone.last, beside.last)


def stage_rows(snapshot: Snapshot) -> list[StageRow]:
    """The stages of host and GPU, the largest total first; idle time comes last."""
    grouped: dict[tuple[str, bool], list[SpanStats]] = {}
    for is_gpu, spans in ((False, snapshot.spans), (True, snapshot.gpu)):
        for each in spans:
            grouped.setdefault((each.name, is_gpu), []).append(each)
    rows = [_row(name, spans, snapshot, is_gpu) for (name, is_gpu), spans in grouped.items()]
    called = [row for row in rows if row.calls]
    return sorted(called, key=lambda row: (row.name == IDLE, -row.total_ns, row.name, row.is_gpu))


def wait_figures(snapshot: Snapshot) -> WaitFigures | None:
    """The mean data wait and step, None where no step was marked."""
    steps = snapshot.steps
    if not steps.count or not steps.total_ns:
        return None
    return WaitFigures(steps.count, steps.wait_share, steps.wait_total_ns / steps.count, steps.total_ns / steps.count)


def peak_bytes(snapshot: Snapshot) -> int:
    """The largest memory seen, of the process with its children; 0 where none was seen."""
    return max((max(point.rss_bytes, point.tree_pss_bytes) for point in snapshot.memory), default=0)


def memory_limit_bytes(snapshot: Snapshot) -> int:
    """The memory that the machine grants; 0 where the snapshot does not say."""
    value = snapshot.machine.get("memory_bytes")
    return int(value) if isinstance(value, (int, float)) and value > 0 else 0


def where_text(threads: Iterable[tuple[int, str]], main_process: int) -> str:
    """Where a stage ran, in a few words: nothing for the main thread, "4 threads", "main, 2 workers"."""
    seen = set(threads)
    own = len({thread for process, thread in seen if process == main_process and thread != MAIN_THREAD})
    workers = len({process for process, _ in seen if process != main_process})
    words = [
        f"{count} {word}{'s' if count > 1 else ''}" for count, word in ((own, "thread"), (workers, "worker")) if count
    ]
    return ", ".join((["main"] if (main_process, MAIN_THREAD) in seen else []) + words) if words else ""


def _row(name: str, spans: list[SpanStats], snapshot: Snapshot, is_gpu: bool) -> StageRow:
    all_of = merge_spans(name, spans)
    where = "GPU" if is_gpu else where_text(((each.process, each.thread) for each in spans), snapshot.process)
    steps = snapshot.steps
    share = None if not steps.total_ns or BETWEEN_STEPS.match(name) else all_of.total_ns / steps.total_ns
    if share is not None and name == WAIT:  # a validation waits, too: that is no part of a step
        share = steps.wait_share
    return StageRow(
        name, where, is_gpu, all_of.count, all_of.total_ns, all_of.self_ns, all_of.max_ns, all_of.mean_ns,
        all_of.p50_ns, all_of.p95_ns, all_of.p99_ns, share, all_of.nested_ns,
    )  # fmt: skip
