"""The figures that every output shows: a row per stage with its share of the step, the data wait, memory, epochs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from penstock._src.profile.record.steps import STEP_ALONE, STEP_BESIDE, WAIT
from penstock._src.profile.stats import Snapshot, SpanStats, StepStats, merge_by_name

MAIN_THREAD = "MainThread"
IDLE = "loader idle"  # a loader that is ahead of the training
BETWEEN_STEPS = re.compile(r"1\d[a-z]?_val|30_checkpoint")  # stages that are part of no step
HIGH_WAIT = 0.1  # of a step
HIGH_COST = 1.1  # times the step alone


@dataclass(frozen=True, kw_only=True)
class StageRow(SpanStats):
    """One stage of all threads and processes together; `share` is of the time of all steps, None without steps and
    for validation and checkpoints, which are in none of them."""

    where: str
    is_gpu: bool
    share: float | None

    @property
    def label(self) -> str:
        """The name, told apart from a host's stage of the same name."""
        return f"{self.name} [GPU]" if self.is_gpu else self.name

    @property
    def is_wait(self) -> bool:
        return self.name == WAIT


class LoaderCost(NamedTuple):
    """What the loader adds to a step that does not wait for it: the step while the loader rests, and while it works."""

    alone_ms: float
    beside_ms: float

    @property
    def ratio(self) -> float:
        return self.beside_ms / self.alone_ms

    @property
    def is_high(self) -> bool:
        """Whether it is more than the noise of measuring."""
        return self.ratio > HIGH_COST


def loader_cost(snapshot: Snapshot) -> LoaderCost | None:
    """As a penstock loader has measured it in the training; None where it has not, or too few steps were made."""
    alone, beside = (snapshot.gauges.get(name) for name in (STEP_ALONE, STEP_BESIDE))
    return None if alone is None or beside is None or alone.last <= 0 else LoaderCost(alone.last, beside.last)


def stage_rows(snapshot: Snapshot) -> list[StageRow]:
    """The stages of host and GPU, the largest total first; idle time comes last."""
    threads: dict[str, set[tuple[int, str]]] = {}
    for each in snapshot.spans:
        threads.setdefault(each.name, set()).add((each.process, each.thread))
    rows = [
        StageRow(
            **vars(stage),
            where="GPU" if is_gpu else where_text(threads[stage.name], snapshot.process),
            is_gpu=is_gpu,
            share=_share(stage, snapshot.steps),
        )
        for is_gpu, spans in ((False, snapshot.spans), (True, snapshot.gpu))
        for stage in merge_by_name(spans)
        if stage.count
    ]
    return sorted(rows, key=lambda row: (row.name == IDLE, -row.total_ns, row.name, row.is_gpu))


def _share(stage: SpanStats, steps: StepStats) -> float | None:
    if not steps.total_ns or BETWEEN_STEPS.match(stage.name):
        return None
    # A validation waits, too: that is no part of a step.
    return steps.wait_share if stage.name == WAIT else stage.total_ns / steps.total_ns


def peak_bytes(snapshot: Snapshot) -> int:
    """The largest memory seen, of the process with its children; 0 where none was seen."""
    return max((max(point.rss_bytes, point.tree_pss_bytes) for point in snapshot.memory), default=0)


def memory_limit_bytes(snapshot: Snapshot) -> int:
    """The memory that the machine grants; 0 where the snapshot does not say."""
    return int(snapshot.machine.get("memory_bytes") or 0)


def where_text(seen: set[tuple[int, str]], main_process: int) -> str:
    """Where a stage ran, in a few words: nothing for the main thread, "4 threads", "main, 2 workers"."""
    own = len({thread for process, thread in seen if process == main_process and thread != MAIN_THREAD})
    workers = len({process for process, _ in seen if process != main_process})
    words = [
        f"{count} {word}{'s' if count > 1 else ''}" for count, word in ((own, "thread"), (workers, "worker")) if count
    ]
    return ", ".join((["main"] if (main_process, MAIN_THREAD) in seen else []) + words) if words else ""
