"""`verdict()`: input-bound or compute-bound, by which stage, and what each change would give; checked where asked.

    print(profile.verdict())                 # one sentence, and the changes that apply
    profile.verdict(check=True)              # runs the best change for a short window: predicted against measured

What is measured and tried for it is no part of the run's own record.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from penstock.errors import PenstockError, UsageError
from penstock.lazy import dataclass
from penstock.profile import spans
from penstock.profile.case import Case, Fix, Starts
from penstock.profile.fixes import bandwidth_of, best_of, fixes_for
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
from penstock.profile.snapshot import Snapshot, StepStats
from penstock.profile.subject import Way, subjects
from penstock.profile.trial import Replay, Step, Trial, batch_cost, try_fix
from penstock.profile.words import WORKER_START, Language, Said, fix_name, lines_of, said, sentence_of

_WAYS = ("now", "scaled", "read", "ram", "disk", "gpu")
_FEW_STEPS = 20
_UNEXPLAINED = (0.7, 1.6)  # beyond, something else is at work that a factor must not hide
_MOST_CALIBRATED = 32
_CALIBRATED_PER_CPU = 8  # threads, where with more of them each hardly takes longer: they wait
_HARDLY_LONGER = 1.25
_DISTURBED = 0.1  # of the step: by so much it may differ between the run and a trial of the same thing
_STARTS_MATTER = 0.02  # of the step: then a trial has to go through whole epochs
_LONG_EPOCH_S = 20.0  # nobody waits for several of these


@dataclass(frozen=True)
class Verdict:
    """What binds a training step, with the numbers, and what would help; `str()` is for people."""

    bound: str
    """"input" or "compute"."""
    stage: str | None
    """The loader's largest stage, or, compute-bound, the step's own; `worker_start` where most of the waiting is for
    worker processes that start anew for each epoch."""
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
    starts: Starts = Starts()

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
        """The sentence, the changes that apply, what was tried, and notes; in Chinese with `lang="zh"`."""
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
                "epoch_start_ms": round(self.starts.per_step_ms, 3),
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
    if not (seconds > 0 and math.isfinite(seconds)):
        raise UsageError(f"seconds={seconds!r}: a window has to have some length", hint="seconds=1.5")
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
    elif told.get("pictures"):
        notes += (said("unmeasured", why=_absence(told) if subject is None else said("not asked")),)
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
    stage = leading[0].name if leading else None
    share = min(leading[0].ms / total, 1.0) if leading and total > 0 else 0.0
    if case.is_input_bound and case.starts.spared_ms > 0.5 * pace.wait_ms:
        stage, share = WORKER_START, min(case.starts.spared_ms / pace.wait_ms, 1.0)
    if pace.left_out:
        notes += (said("breaks", count=pace.left_out),)
    return Verdict(
        "input" if case.is_input_bound else "compute", stage, share, pace, case.now, case.stages, computing, fixes,
        best, case.ways, notes, trial, case.starts,
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


def missing_data(told: Mapping[str, Any]) -> list[str]:
    """Where the data of a loader was, if it is not there any more."""
    stores = told.get("stores")
    words = [each for each in stores if isinstance(each, Mapping)] if isinstance(stores, list) else []
    paths = [str(each["path"]) for each in words if each.get("words") is not None and "path" in each]
    return [path for path in paths if not os.path.exists(path)]


def _absence(told: Mapping[str, Any]) -> Said:
    """Why there is no loader that could be measured."""
    paths = missing_data(told)
    return said("data is gone", paths=", ".join(paths)) if paths else said("not at hand")


def _handed(told: Mapping[str, Any]) -> int:
    return int(told.get("batches_handed") or 0)


def _calibrated(subject: Any, told: Mapping[str, Any]) -> tuple[Mapping[str, Way], tuple[str, ...]]:
    measure = getattr(subject, "calibrate", None)
    if measure is None:
        return {}, ()
    threads = max(int(told.get("threads") or 1), 1)
    more = min(max(2 * threads, int(told.get("cores") or 1)), max(_MOST_CALIBRATED, threads))
    try:
        found: dict[str, Way] = dict(measure(_WAYS, sorted({threads, more})))
        most = min(_CALIBRATED_PER_CPU * int(told.get("cores") or 1), _MOST_CALIBRATED)
        now = found.get("now")
        if now is not None and most > more and now.ms(more) < _HARDLY_LONGER * now.ms(threads):
            for name, way in measure(("now", "read"), (most,)).items():  # they wait: more of them may wait together
                if (known := found.get(name)) is not None:
                    found[name] = replace(known, ms_by_threads={**way.ms_by_threads, **known.ms_by_threads})
    except (PenstockError, OSError, MemoryError) as error:
        return {}, (said("measuring failed", error=str(error)),)
    return found, ()


def _early(snapshot: Snapshot) -> tuple[str, ...]:
    count = snapshot.steps.count
    return (said("few steps", count=count),) if count < _FEW_STEPS else ()


# The model's numbers


def _case(snapshot: Snapshot, told: dict[str, Any], ways: Mapping[str, Way]) -> tuple[Case, Pace]:
    steps = snapshot.steps
    pace = pace_of(steps.series, steps.count, steps.total_ns, steps.wait_total_ns)
    hit_share, made = _pictures(snapshot, told)
    told["made_per_batch"] = made
    batches = _batches(snapshot, told)
    stages = stages_of(snapshot, batches)
    service = sum(stage.ms for stage in stages)
    pace, starts = _starts(pace, steps, told, service)
    threads = int(told.get("threads", told.get("workers", 1)))
    bandwidth = bandwidth_of(ways, threads)
    now = Situation(
        service_ms=service,
        threads=threads,
        cores=int(told.get("cores") or snapshot.machine.get("cores") or os.cpu_count() or 1),
        compute_ms=pace.compute_ms,
        cpu_ms=_counted_cpu_ms(snapshot, told, service, batches) or _cpu_ms(service, stages, ways),
        compute_cpu_ms=steps.cpu_total_ns / 1e6 / max(steps.count, 1),
        read_bytes=float(told.get("stored_bytes_per_batch") or 0.0) * (1 - hit_share),
        bandwidth=bandwidth,
    )
    is_input_bound = pace.wait_ms > WAIT_SHARE * pace.step_ms
    between_ms = pace.step_ms - starts.per_step_ms  # the steady state, which the model is of
    if threads and now.batch_ms > 0 and between_ms - pace.compute_ms > WAIT_SHARE * between_ms:
        low, high = _UNEXPLAINED
        now = replace(now, unexplained=min(max(between_ms / now.batch_ms, low), high))
    elif now.batch_ms > between_ms:  # it kept up: what its threads took was their waiting for CPUs that the step had
        now = replace(now, unexplained=between_ms / now.batch_ms)
    on_gpu = bool(snapshot.gpu) or str(told.get("device", "cpu")) != "cpu"
    return Case(now, pace.step_ms, stages, told, ways, hit_share, is_input_bound, None, on_gpu, starts), pace


def _starts(pace: Pace, steps: StepStats, told: Mapping[str, Any], service_ms: float) -> tuple[Pace, Starts]:
    """What the beginnings of passes cost, and the pace with one of them in every epoch, however short the run was."""
    count, wait_ms = int(told.get("starts") or 0), float(told.get("start_wait_ms") or 0.0)
    seen = steps.series[-(pace.steps + pace.left_out) :]
    if not count or not wait_ms or not seen:
        return pace, Starts()
    per_point = max(steps.steps_per_point, 1)
    likely_ns = 0.5e6 * wait_ms / per_point
    long = sorted(seen, key=lambda point: point.duration_ns)[len(seen) - pace.left_out :]
    rest = [point for point in long if point.wait_ns < likely_ns]  # breaks that are none of these
    kept = pace.steps + len(long) - len(rest)
    step_ms = (pace.step_ms * pace.steps + sum(each.duration_ns for each in long if each not in rest) / 1e6) / kept
    mean_ms = (pace.wait_ms * pace.steps + sum(each.wait_ns for each in long if each not in rest) / 1e6) / kept
    total = kept * per_point
    if per_point == 1:  # the pace leaves out the first steps, and with them perhaps some beginnings
        count = min(count, sum(each.wait_ns >= likely_ns for each in seen))
    between_ms = max(mean_ms * total - count * wait_ms, 0.0) / max(total - count, 1)  # what any other step waits
    more_ms = wait_ms - between_ms
    if not count or more_ms <= 0:
        return pace, Starts()
    apart = _steps_of_a_pass(steps, told)
    change_ms = more_ms / apart - more_ms * count / total
    pace = Pace(max(step_ms + change_ms, 0.0), max(mean_ms + change_ms, 0.0), kept, len(rest))
    stays = bool(told.get("persistent_workers")) or not told.get("workers")
    spared_ms = 0.0 if stays else max(wait_ms - max(service_ms, between_ms), 0.0)
    return pace, Starts(min(more_ms / apart, pace.wait_ms), min(spared_ms / apart, pace.wait_ms), wait_ms, apart)


def _steps_of_a_pass(steps: StepStats, told: Mapping[str, Any]) -> float:
    """By the length of the loader, unless passes were seen to be longer or shorter."""
    starts, handed = int(told["starts"]), _handed(told)
    least, most = handed / (starts + 1), handed / starts  # the first pass may be from before a reset, the last go on
    batches = min(max(float(told.get("batches") or most), least), most)
    per_step = steps.batches / steps.count if steps.batches and steps.count else 1.0
    return max(batches / max(per_step, 1e-9), 1.0)


def _counted_cpu_ms(snapshot: Snapshot, told: dict[str, Any], service_ms: float, batches: float) -> float:
    """What CPUs worked for a batch in the workers of an attached DataLoader; 0 where nobody counted."""
    counted = snapshot.counters.get("fetch_cpu_ns", 0) / 1e6 / max(batches, 1e-9)
    told["is_cpu_known"] = bool(counted) and "workers" in told
    if not told["is_cpu_known"]:
        return 0.0
    workers = int(told["workers"] or 0)
    own = max((point.tree_pss_bytes - point.rss_bytes for point in snapshot.memory), default=0)
    told["worker_bytes"] = own / workers if workers and own > 0 else None
    return min(counted, service_ms)


def _pictures(snapshot: Snapshot, told: Mapping[str, Any]) -> tuple[float, float]:
    """(part of the pictures that a view answered for, pictures of a batch), as counted."""
    hits, made = (snapshot.counters.get(name, 0) for name in ("view_hits", "pictures_decoded"))
    share = hits / (hits + made) if hits + made else float(told.get("hit_share") or 0.0)
    return share, float(told.get("made_per_batch") or told.get("pictures_per_batch") or 0.0)


def _batches(snapshot: Snapshot, told: Mapping[str, Any]) -> float:
    """Batches that the recorded work was for; some of it went into batches that nobody has taken yet."""
    counted = snapshot.counters.get("view_hits", 0) + snapshot.counters.get("pictures_decoded", 0)
    per_batch = float(told.get("made_per_batch") or 0.0)
    if counted and per_batch:
        return counted / per_batch
    used, steps = snapshot.counters.get("batches_used", 0), snapshot.steps
    return steps.count * max(1.0, used / steps.batches) if steps.batches else float(steps.count)  # with validation's


def _cpu_ms(service_ms: float, stages: Sequence[Stage], ways: Mapping[str, Way]) -> float:
    reading = sum(stage.ms for stage in stages if stage.name in READS)
    read = ways.get("read")
    if read is None:
        return service_ms - reading
    first = min(read.ms_by_threads)
    waits = max(0.0, 1 - read.cpu_ms / max(read.ms(first), 1e-9))
    return service_ms - waits * reading


def _with_cost(case: Case, subject: Any, step: Step) -> Case:
    size = int(case.told.get("batch_size") or 0)
    return replace(case, cost=batch_cost(subject, step, size) if size else None)


# Checking


def _checked(
    subject: Any, best: Fix | None, case: Case, step: Step | None, seconds: float
) -> tuple[Trial | None, tuple[str, ...]]:
    if subject is None:
        return None, (said("nothing tried", why=_absence(case.told)),)
    if best is None:
        return None, (said("nothing tried", why=said("nothing known")),)
    if step is None and best.batch_factor != 1:
        return None, (said("needs step", fix=fix_name(best)),)
    now = case.now
    whole = case.starts.per_step_ms > _STARTS_MATTER * case.step_ms
    epoch_s = (case.told.get("batches") or case.starts.steps) * case.step_ms / 1e3
    if whole and epoch_s > _LONG_EPOCH_S:
        return None, (said("long epoch", fix=fix_name(best), seconds=epoch_s),)
    replay = step if step is not None else Replay(now.compute_ms, now.compute_cpu_ms)
    # A view fills while it is measured: there is no steady state without the change to compare with.
    steady = bool(best.change) and not any(each.get("view") for each in case.pictures)
    try:
        trial = try_fix(
            subject, best, replay, seconds=seconds, batch_ms=now.batch_ms, control=steady, whole_passes=whole
        )
    except PenstockError as error:
        return None, (said("trial failed", fix=fix_name(best), error=error.message),)
    beside = trial.control_ms
    if beside is not None and abs(beside / case.step_ms - 1) > _DISTURBED:
        return trial, (said("disturbed", beside=beside, then=case.step_ms),)
    return trial, ()
