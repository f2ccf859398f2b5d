"""`verdict()`: input-bound or compute-bound, by which stage, and what each change would give; checked where asked.

    print(profile.verdict())                 # one sentence, and the changes that apply
    profile.verdict(check=True)              # runs the best change for a short window: predicted against measured

What is measured and tried for it is no part of the run's own record.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.errors import PenstockError, UsageError
from penstock.lazy import dataclass
from penstock.profile import spans
from penstock.profile.fixes import Case, Fix, bandwidth_of, best_of, fixes_for
from penstock.profile.model import (
    READS,
    WAIT_SHARE,
    Pace,
    Situation,
    Stage,
    compute_stages_of,
    pace_of,
    stages_of,
)
from penstock.profile.snapshot import Snapshot
from penstock.profile.subject import Way, subjects
from penstock.profile.trial import Replay, Step, Trial, batch_cost, try_fix
from penstock.profile.words import Language, lines_of, sentence_of

_WAYS = ("now", "scaled", "read", "ram", "disk", "gpu")
_FEW_STEPS = 20
_UNEXPLAINED = (0.7, 1.6)  # beyond, something else is at work that a factor must not hide
_MOST_CALIBRATED = 32
_DISTURBED = 0.1  # of the step: by so much it may differ between the run and a trial of the same thing


@dataclass(frozen=True)
class Verdict:
    """What binds a training step, with the numbers, and what would help; `str()` is for people."""

    bound: str
    """"input" or "compute"."""
    stage: str | None
    """The loader's largest stage, or, compute-bound, the step's own."""
    stage_share: float
    pace: Pace
    now: Situation
    stages: tuple[Stage, ...]
    compute_stages: tuple[Stage, ...]
    fixes: tuple[Fix, ...]
    best: Fix | None
    ways: Mapping[str, Way]
    notes: tuple[str, ...] = ()
    trial: Trial | None = None

    @property
    def step_ms(self) -> float:
        return self.pace.step_ms

    @property
    def wait_ms(self) -> float:
        return self.pace.wait_ms

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return sentence_of(self, "en")

    def lines(self, lang: Language = "en") -> list[str]:
        """The sentence, the changes that apply, what was tried, and notes."""
        return lines_of(self, lang)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        now = self.now
        return {
            "bound": self.bound,
            "stage": self.stage,
            "stage_share": round(self.stage_share, 4),
            "sentence": self.sentence,
            "steps": self.pace.steps,
            "step_ms": round(self.step_ms, 3),
            "wait_ms": round(self.wait_ms, 3),
            "compute_ms": round(self.pace.compute_ms, 3),
            "model": {
                "service_ms": round(now.service_ms, 3),
                "threads": now.threads,
                "cores": now.cores,
                "bounds_ms": {name: round(ms, 3) for name, ms in now.bounds_ms.items()},
                "ruled_by": now.ruled_by,
                "unexplained": round(now.unexplained, 3),
            },
            "stages": [{"name": each.name, "self_ms_per_batch": round(each.ms, 4)} for each in self.stages],
            "fixes": [fix.to_dict() for fix in self.fixes],
            "best": self.best.name if self.best is not None else None,
            "calibration": {name: way.to_dict() for name, way in self.ways.items()},
            "trial": self.trial.to_dict() if self.trial is not None else None,
            "notes": list(self.notes),
        }


def verdict(
    snapshot: Snapshot | None = None,
    check: bool = False,
    *,
    step: Step | None = None,
    subject: Any = None,
    calibrate: bool = True,
    seconds: float = 1.5,
) -> Verdict:
    """What binds the training step, of a snapshot or of what this process has recorded so far.

    `step(batch)` is the user's own step: with it the cost of a batch is measured (a larger batch gets a prediction),
    and `check=True` runs it instead of a sleep of the same length. It really runs, on a few real batches: where that
    must not touch the training, give one that works on a copy. `seconds` is the length of each of three windows.
    """
    if snapshot is None:
        from penstock.profile.taking import snapshot as take

        snapshot = take()
    if not snapshot.steps.count:
        raise UsageError(
            "no step was recorded: there is nothing to judge yet",
            hint="iterate a penstock.Loader or profile.attach(dataloader), or call profile.mark_step() in the loop",
        )
    with _unrecorded():  # what is measured and tried here is no part of the run
        return _judged(snapshot, check, step, subject, calibrate, seconds)


@contextmanager
def _unrecorded() -> Iterator[None]:
    was_on = spans.is_enabled()
    spans.disable()
    try:
        yield
    finally:
        if was_on:
            spans.enable()


def _judged(
    snapshot: Snapshot, check: bool, step: Step | None, subject: Any, calibrate: bool, seconds: float
) -> Verdict:
    subject = subject if subject is not None else _live(snapshot)
    told = _told(snapshot, subject)
    notes = _early(snapshot)
    ways: Mapping[str, Way] = {}
    if calibrate and subject is not None:
        ways, failed = _calibrated(subject, told)
        notes += failed
    elif not ways and told.get("pictures"):
        notes += ("the loader is not at hand: nothing could be measured on its data, so some changes have no number",)
    case, pace = _case(snapshot, told, ways)
    if step is not None and not case.is_input_bound and subject is not None:
        case = _with_cost(case, subject, step)
    fixes = fixes_for(case)
    best = best_of(fixes, pace.step_ms)
    trial = None
    if check:
        trial, failed = _checked(subject, best, case, step, seconds)
        notes += failed
    return _verdict(case, pace, snapshot, fixes, best, trial, notes)


def _verdict(
    case: Case, pace: Pace, snapshot: Snapshot, fixes: tuple[Fix, ...], best: Fix | None, trial: Trial | None,
    notes: tuple[str, ...],
) -> Verdict:  # fmt: skip
    computing = compute_stages_of(snapshot, snapshot.steps.count)
    leading = case.stages if case.is_input_bound else computing
    total = case.now.service_ms if case.is_input_bound else pace.compute_ms
    share = min(leading[0].ms / total, 1.0) if leading and total > 0 else 0.0
    if pace.left_out:
        notes += (f"{pace.left_out} long breaks between steps are not counted",)
    return Verdict(
        "input" if case.is_input_bound else "compute", leading[0].name if leading else None, share, pace, case.now,
        case.stages, computing, fixes, best, case.ways, notes, trial,
    )  # fmt: skip


# The subject


def _live(snapshot: Snapshot) -> Any:
    """The loader of this process that the run speaks of; of several the one that handed out most."""
    if snapshot.process not in (0, os.getpid()):
        return None
    found = subjects()
    return max(found, key=lambda each: _handed(each.describe()), default=None)


def _told(snapshot: Snapshot, subject: Any) -> dict[str, Any]:
    """How the loader was set up in the run, and what it is now."""
    if subject is not None:
        told = dict(subject.describe())
        named = told.get("text")
        return dict(next((each for each in snapshot.subjects if named and each.get("text") == named), told))
    found: Mapping[str, Any] = max(snapshot.subjects, key=lambda each: _handed(each), default={})
    return dict(found)


def _handed(told: Mapping[str, Any]) -> int:
    return int(told.get("batches_handed") or 0)


def _calibrated(subject: Any, told: Mapping[str, Any]) -> tuple[Mapping[str, Way], tuple[str, ...]]:
    measure = getattr(subject, "calibrate", None)
    if measure is None:
        return {}, ()
    threads = max(int(told.get("threads") or 1), 1)
    more = min(max(2 * threads, int(told.get("cores") or 1)), max(_MOST_CALIBRATED, threads))
    try:
        found: Mapping[str, Way] = measure(_WAYS, sorted({threads, more}))
    except (PenstockError, OSError, MemoryError) as error:
        return {}, (f"nothing could be measured on the data: {error}",)
    return found, ()


def _early(snapshot: Snapshot) -> tuple[str, ...]:
    count = snapshot.steps.count
    return (f"{count} steps are few: the numbers may still move",) if count < _FEW_STEPS else ()


# The model's numbers


def _case(snapshot: Snapshot, told: dict[str, Any], ways: Mapping[str, Way]) -> tuple[Case, Pace]:
    steps = snapshot.steps
    pace = pace_of(steps.series, steps.count, steps.total_ns, steps.wait_total_ns)
    hit_share, made = _pictures(snapshot, told)
    told["made_per_batch"] = made
    stages = stages_of(snapshot, _batches(snapshot, told))
    service = sum(stage.ms for stage in stages)
    threads = int(told.get("threads", told.get("workers", 1)))
    bandwidth = bandwidth_of(ways, threads)
    now = Situation(
        service_ms=service,
        threads=threads,
        cores=int(told.get("cores") or snapshot.machine.get("cores") or os.cpu_count() or 1),
        compute_ms=pace.compute_ms,
        cpu_ms=_cpu_ms(service, stages, ways),
        compute_cpu_ms=snapshot.counters.get("step_cpu_ns", 0) / 1e6 / max(steps.count, 1),
        read_bytes=float(told.get("stored_bytes_per_batch") or 0.0) * (1 - hit_share),
        bandwidth=bandwidth,
    )
    is_input_bound = pace.wait_ms > WAIT_SHARE * pace.step_ms
    if is_input_bound and threads and now.batch_ms > 0:
        low, high = _UNEXPLAINED
        now = _replaced(now, unexplained=min(max(pace.step_ms / now.batch_ms, low), high))
    elif now.batch_ms > pace.step_ms:  # it kept up: what its threads took was their waiting for CPUs that the step had
        now = _replaced(now, unexplained=pace.step_ms / now.batch_ms)
    on_gpu = bool(snapshot.gpu) or str(told.get("device", "cpu")) != "cpu"
    return Case(now, pace.step_ms, stages, told, ways, hit_share, is_input_bound, None, on_gpu), pace


def _pictures(snapshot: Snapshot, told: Mapping[str, Any]) -> tuple[float, float]:
    """(part of the pictures that a view answered for, pictures of a batch), as counted."""
    hits, made = (snapshot.counters.get(name, 0) for name in ("view_hits", "pictures_decoded"))
    share = hits / (hits + made) if hits + made else float(told.get("hit_share") or 0.0)
    return share, float(told.get("made_per_batch") or told.get("pictures_per_batch") or 0.0)


def _batches(snapshot: Snapshot, told: Mapping[str, Any]) -> float:
    """Batches that the recorded work was for; some of it went into batches that nobody has taken yet."""
    counted = snapshot.counters.get("view_hits", 0) + snapshot.counters.get("pictures_decoded", 0)
    per_batch = float(told.get("made_per_batch") or 0.0)
    return counted / per_batch if counted and per_batch else float(snapshot.steps.count)


def _cpu_ms(service_ms: float, stages: Sequence[Stage], ways: Mapping[str, Way]) -> float:
    reading = sum(stage.ms for stage in stages if stage.name in READS)
    read = ways.get("read")
    if read is None:
        return service_ms - reading
    first = min(read.ms_by_threads)
    waits = max(0.0, 1 - read.cpu_ms / max(read.ms(first), 1e-9))
    return service_ms - waits * reading


def _replaced(now: Situation, **changed: Any) -> Situation:
    from dataclasses import replace

    return replace(now, **changed)


def _with_cost(case: Case, subject: Any, step: Step) -> Case:
    from dataclasses import replace

    size = int(case.told.get("batch_size") or 0)
    return replace(case, cost=batch_cost(subject, step, size) if size else None)


# Checking


def _checked(
    subject: Any, best: Fix | None, case: Case, step: Step | None, seconds: float
) -> tuple[Trial | None, tuple[str, ...]]:
    if best is None:
        return None, ("nothing was tried: no change of the loader makes the step shorter",)
    if subject is None:
        return None, ("nothing was tried: the loader is not at hand",)
    if step is None and best.batch_factor != 1:
        return None, (f"{best.name} was not tried: that needs step=…",)
    now = case.now
    replay = step if step is not None else Replay(now.compute_ms, now.compute_cpu_ms)
    # A view fills while it is measured: there is no steady state without the change to compare with.
    steady = bool(best.change) and not any(each.get("view") for each in case.pictures)
    trial = try_fix(subject, best, replay, seconds=seconds, batch_ms=now.batch_ms, control=steady)
    beside = trial.control_ms
    if beside is not None and abs(beside / case.step_ms - 1) > _DISTURBED:
        return trial, (f"the machine is not as it was in the run: without the change a step takes {beside:.1f} ms now, "
                       f"then {case.step_ms:.1f} ms, so this trial tells little of the prediction",)  # fmt: skip
    return trial, ()
