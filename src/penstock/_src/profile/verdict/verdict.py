"""`verdict()`: input-bound or compute-bound, by which stage, and what each change would give; checked where asked.

What is measured and tried for it is no part of the run's own record.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import Any

from penstock._src.profile.messages import BilingualText, Language, message, name_of
from penstock._src.profile.record import session, spans
from penstock._src.profile.record.registry import AccessPath, loader_info_of, registered, tunable_of
from penstock._src.profile.record.steps import steps
from penstock._src.profile.report.figures import LoaderCost, loader_cost
from penstock._src.profile.schema import encode
from penstock._src.profile.stats import FETCH_CPU, FETCH_NS, LoaderInfo, Snapshot, StepStats, own_counter
from penstock._src.profile.verdict.fixes import bandwidth_of, best_of, fixes_for
from penstock._src.profile.verdict.model import (
    READS,
    WAIT_SHARE,
    Fix,
    FixInputs,
    LoaderModel,
    PassStarts,
    StageTime,
    StepTiming,
    compute_stages_of,
    stages_of,
    step_timing_of,
)
from penstock._src.profile.verdict.texts import WORKER_START, lines_of, sentence_of, trial_text
from penstock._src.profile.verdict.trial import FixTrial, Replay, Step, batch_cost, preserved_rng_state, try_fix
from penstock.errors import PenstockError, UsageError

_ACCESS_PATHS = ("now", "scaled", "read", "ram", "disk", "gpu")
_FEW_STEPS = 20
_MOST_CALIBRATED = 32
_DISTURBED = 0.1  # of the step: by so much it may differ between the run and a trial of the same thing
_STARTS_MATTER = 0.02  # of the step: then a trial has to go through whole epochs
_SHORT_EPOCH_S, _LONG_EPOCH_S = 1.0, 20.0  # one that has hardly a steady state; one of which nobody waits for several


@dataclass(frozen=True)
class Verdict:
    """What binds a training step, with the numbers, and what would help; `str()` is for people."""

    bound: str
    """"input", "compute", or "loader": compute-bound, but the loader makes the step longer."""
    stage: str | None
    """The loader's largest stage, or, compute-bound, the step's own; `worker_start` where most of the waiting is for
    worker processes that start anew for each epoch."""
    stage_share: float
    timing: StepTiming
    now: LoaderModel
    stages: tuple[StageTime, ...]
    fixes: tuple[Fix, ...]
    best: Fix | None
    access_paths: Mapping[str, AccessPath]
    notes: tuple[str, ...] = ()
    trial: FixTrial | None = None
    starts: PassStarts = field(default_factory=PassStarts)
    cost: LoaderCost | None = None
    """The step while the loader rests, and while it works, where that was measured."""

    @property
    def step_ms(self) -> float:
        return self.timing.step_ms

    @property
    def wait_ms(self) -> float:
        return self.timing.wait_ms

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        return sentence_of(self, "en")

    @property
    def trial_text(self) -> str:
        """What was tried; empty where nothing was."""
        return "" if self.trial is None else trial_text(self.trial)

    def lines(self, lang: Language = "en") -> list[str]:
        """The sentence, the changes that apply, what was tried, and notes; in Chinese with `lang="zh"`."""
        return lines_of(self, lang)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """JSON-safe."""
        cost, trial = self.cost, self.trial
        names = ("bound", "stage", "stage_share", "sentence", "step_ms", "wait_ms", "notes")
        told = {
            **{name: getattr(self, name) for name in names},
            "steps": self.timing.steps,
            "compute_ms": self.timing.compute_ms,
            "step_alone_ms": cost and cost.alone_ms,
            "step_with_loader_ms": cost and cost.beside_ms,
            "model": {**vars(self.now), "bounds_ms": self.now.bounds_ms, "epoch_start_ms": self.starts.per_step_ms},
            "stages": self.stages,
            "fixes": self.fixes,
            "best": self.best and self.best.name,
            "calibration": self.access_paths,
            "trial": trial and {**vars(trial), "fix": trial.fix.name, "error": trial.error},
        }
        return {name: encode(each) for name, each in told.items()}


def verdict(
    snapshot: Snapshot | None = None,
    check: bool = False,
    *,
    step: Step | None = None,
    loader: Any = None,
    calibrate: bool = True,
    seconds: float = 1.5,
) -> Verdict:
    """What binds the training step, of a snapshot or of what this process has recorded so far.

    `step(batch)` is the user's own step: with it the cost of a batch is measured (a larger batch gets a prediction),
    and `check=True` runs it instead of a sleep of the same length. It really runs, on a few real batches: where that
    must not touch the training, give one that works on a copy. `seconds` is the length of each of three windows.
    `loader` is the one to judge by, where the run has several.
    """
    began_ns = perf_counter_ns()
    taken = session.snapshot() if snapshot is None else snapshot
    if not (seconds > 0 and math.isfinite(seconds)):
        raise UsageError(f"seconds={seconds!r}: a window has to have some length", hint="seconds=1.5")
    if not taken.steps.count:
        is_off = "" if spans.is_enabled() else ": profiling is off, by PENSTOCK_PROFILE=0 or profile.disable()"
        hint = "iterate a penstock.Loader or profile.attach(dataloader), or call profile.mark_step() in the loop"
        raise UsageError(f"no step was recorded{is_off}", hint=hint)
    try:  # what is measured and tried is no part of the run: not of its spans, its steps, or its random numbers
        with spans.paused(), preserved_rng_state():
            tunable = tunable_of(loader) if loader is not None else _live(taken)
            return _judged(taken, tunable, check, step, calibrate, seconds)
    finally:
        steps().shift(perf_counter_ns() - began_ns)


def _judged(
    snapshot: Snapshot, tunable: Any, check: bool, step: Step | None, calibrate: bool, seconds: float
) -> Verdict:
    info = leading(snapshot.loaders) if tunable is None else _as_recorded(loader_info_of(tunable), snapshot)
    notes: list[str] = []
    if snapshot.steps.count < _FEW_STEPS:
        notes.append(message("few steps", count=snapshot.steps.count))
    paths: Mapping[str, AccessPath] = {}
    if calibrate and tunable is not None:
        try:
            paths = _calibrated(tunable, info)
        except (PenstockError, OSError, MemoryError) as error:
            notes.append(message("measuring failed", error=str(error)))
    elif info.images:
        notes.append(message("unmeasured", why=_absence(info) if tunable is None else "calibrate=False"))
    case, timing = case_of(snapshot, info, paths)
    if step is not None and tunable is not None and info.batch_size and not case.is_input_bound:
        case = replace(case, cost=batch_cost(tunable, step, info.batch_size, info.processes))
    if case.is_input_bound and (remote := _remote_note(snapshot)) is not None:
        notes.insert(0, remote)
    fixes = fixes_for(case)
    best = best_of(fixes, timing.step_ms)
    trial, note = _checked(tunable, best, case, step, seconds) if check else (None, None)
    notes += [note] if note else []
    stage, share = _stage(case, timing, snapshot)
    cost = loader_cost(snapshot)
    bound = "input" if case.is_input_bound else "compute"
    if bound == "compute" and cost is not None and cost.is_high:
        bound = "loader"
        notes.insert(0, message("fewer threads" if info.engine == "process" else "own process"))
    return Verdict(
        bound, stage, share, timing, case.now, case.stages, fixes, best,
        case.access_paths, tuple(notes), trial, case.starts, cost,
    )  # fmt: skip


def _remote_note(snapshot: Snapshot) -> str | None:
    """Whether remote data are bound by the latency of requests or by the bytes that come; None for local data."""
    names = ("remote_requests", "remote_bytes", "remote_wait_us", "remote_latency_us")
    requests, n_bytes, wait_us, latency_us = (snapshot.counters.get(name, 0) for name in names)
    if not requests or not wait_us:
        return None
    share = latency_us / wait_us
    key = "remote latency" if share > 0.5 else "remote bandwidth"
    return message(key, request=wait_us / requests / 1e3, share=f"{share:.0%}", size=f"{n_bytes / requests / 1e3:.0f}")


def _stage(case: FixInputs, timing: StepTiming, snapshot: Snapshot) -> tuple[str | None, float]:
    """The stage that binds, and its part of the work."""
    if case.is_input_bound and case.starts.spared_ms > 0.5 * timing.wait_ms:
        return WORKER_START, min(case.starts.spared_ms / timing.wait_ms, 1.0)
    ranked = case.stages if case.is_input_bound else compute_stages_of(snapshot, snapshot.steps.count)
    total_ms = case.now.service_ms if case.is_input_bound else timing.compute_ms
    if not ranked:
        return None, 0.0
    return ranked[0].name, min(ranked[0].ms / total_ms, 1.0) if total_ms > 0 else 0.0


# The loader


def _live(snapshot: Snapshot) -> Any:
    """The loader of this process that fed most of the steps of the run; None where that one is gone."""
    if snapshot.process not in (0, os.getpid()):
        return None
    infos = [(each, loader_info_of(each)) for each in registered()]
    first = leading(info for _, info in infos)
    if not first.step_batches and any(each.step_batches for each in snapshot.loaders):
        return None
    return next((each for each, info in infos if info is first), None)


def _as_recorded(info: LoaderInfo, snapshot: Snapshot) -> LoaderInfo:
    """What a loader said of itself in the run: one that is made again from a file has handed out nothing."""
    alike = (each for each in snapshot.loaders if info.text and each.text == info.text and not each.ended)
    return next(alike, info)


def missing_data(info: LoaderInfo) -> list[str]:
    """Where the data of a loader was, if it is not there any more."""
    return [each.path for each in info.stores if each.open_options is not None and not os.path.exists(each.path)]


def _absence(info: LoaderInfo) -> BilingualText:
    """Why there is no loader that could be measured."""
    paths = missing_data(info)
    return message("data is gone", paths=", ".join(paths)) if paths else message("not at hand")


def _calibrated(tunable: Any, info: LoaderInfo) -> Mapping[str, AccessPath]:
    """What an image takes by each way into a batch, with as many threads as there are and with more."""
    if not hasattr(tunable, "calibrate"):
        return {}
    threads = info.threads or 1
    more = min(max(2 * threads, info.cores or 1), max(_MOST_CALIBRATED, threads))
    found: Mapping[str, AccessPath] = tunable.calibrate(_ACCESS_PATHS, sorted({threads, more}))
    return found


# Checking


def _checked(
    tunable: Any, best: Fix | None, case: FixInputs, step: Step | None, seconds: float
) -> tuple[FixTrial | None, BilingualText | None]:
    """The trial of the best change, or why there is none; and what may have disturbed it."""
    if tunable is None:
        return None, message("nothing tried", why=_absence(case.loader))
    if best is None:
        return None, message("nothing tried", why=message("nothing known"))
    name = name_of("fix", best.name)
    if step is None and best.batch_factor != 1:
        return None, message("needs step", fix=name)
    now = case.now
    epoch_s = (case.loader.batches or case.starts.steps) * case.step_ms / 1e3
    starts_matter = case.starts.per_step_ms > _STARTS_MATTER * case.step_ms or epoch_s < _SHORT_EPOCH_S
    whole = case.loader.workers is not None and starts_matter
    if whole and epoch_s > _LONG_EPOCH_S:
        return None, message("long epoch", fix=name, seconds=epoch_s)
    replay = step if step is not None else Replay(now.compute_ms, now.compute_cpu_ms)
    # A view fills while it is measured: there is no steady state without the change to compare with.
    steady = bool(best.change) and not any(each.view for each in case.loader.images)
    try:
        trial = try_fix(
            tunable, best, replay, seconds=seconds, batch_ms=now.batch_ms, control=steady, whole_passes=whole
        )
    except (PenstockError, RuntimeError) as error:  # torch's, of workers that die or hang
        return None, message("trial failed", fix=name, error=getattr(error, "message", error))
    beside = trial.control_ms
    if beside is not None and abs(beside / case.step_ms - 1) > _DISTURBED:
        return trial, message("disturbed", beside=beside, then=case.step_ms)
    return trial, None


# What a run tells the model: timing, service time, CPU time, and beginnings of passes


_UNEXPLAINED = (0.7, 1.6)  # beyond, something else is at work that a factor must not hide
_FAR_AHEAD = 0.5  # of the computing: workers that need less for a batch let nobody wait for their work
_HAND_OVER_MS = 5.0  # at most: what torch takes to hand over a batch of workers, whatever they do


def leading(loaders: Iterable[LoaderInfo]) -> LoaderInfo:
    """The loader that a run is judged by: the one that fed most of the steps."""
    return max(loaders, key=lambda each: (each.step_batches or 0, each.batches_handed or 0), default=LoaderInfo())


def case_of(
    snapshot: Snapshot, loader: LoaderInfo, access_paths: Mapping[str, AccessPath]
) -> tuple[FixInputs, StepTiming]:
    """What changes are derived from, and the timing of the steps."""
    steps = snapshot.steps
    per_step = max(steps.batches / steps.count, 1e-9) if steps.batches and steps.count else 1.0
    hits, made = (snapshot.counters.get(name, 0) for name in ("view_hits", "images_decoded"))
    hit_share = hits / (hits + made) if hits + made else loader.hit_share or 0.0
    loader = replace(loader, made_per_batch=loader.made_per_batch or loader.images_per_batch or 0.0)
    batches = _batches(snapshot, loader)
    own_ms, own_cpu_ms = (_counted_ms(snapshot, name, loader) * per_step for name in (FETCH_NS, FETCH_CPU))
    stages = _own_stages(stages_of(snapshot, batches), own_ms)
    service = sum(stage.ms for stage in stages)
    timing = step_timing_of(steps.series, steps.count, steps.total_ns, steps.wait_total_ns)
    timing, starts = _starts(timing, steps, loader, service, per_step)
    threads = next((each for each in (loader.threads, loader.workers) if each is not None), 1)
    counted_cpu_ms = own_cpu_ms or snapshot.counters.get(FETCH_CPU, 0) / 1e6 / batches
    now = LoaderModel(
        service_ms=service,
        threads=threads,
        cores=int(loader.cores or snapshot.machine.get("cores") or os.cpu_count() or 1),
        compute_ms=timing.compute_ms,
        cpu_ms=counted_cpu_ms or (_cpu_ms(service, stages, access_paths) if loader.workers is None else service),
        compute_cpu_ms=steps.cpu_total_ns / 1e6 / max(steps.count, 1),
        read_bytes=(loader.stored_bytes_per_batch or 0.0) * (1 - hit_share),
        bandwidth=bandwidth_of(access_paths, threads),
    )
    between_ms = timing.step_ms - starts.per_step_ms  # the steady state, which the model is of
    wait_ms = between_ms - timing.compute_ms
    if loader.workers and 0 < now.batch_ms < _FAR_AHEAD * timing.compute_ms and wait_ms <= _HAND_OVER_MS * per_step:
        now = replace(now, compute_ms=between_ms)
        wait_ms = 0.0
    if threads and now.batch_ms > 0 and wait_ms > WAIT_SHARE * between_ms:
        low, high = _UNEXPLAINED
        now = replace(now, unexplained=min(max(between_ms / now.batch_ms, low), high))
    elif now.batch_ms > between_ms:  # it kept up: what its threads took was their waiting for CPUs that the step had
        now = replace(now, unexplained=between_ms / now.batch_ms)
    found = FixInputs(
        now,
        timing.step_ms,
        stages,
        loader,
        access_paths,
        hit_share,
        is_input_bound=wait_ms + starts.per_step_ms > WAIT_SHARE * timing.step_ms,
        on_gpu=bool(snapshot.gpu) or (loader.device or "cpu") != "cpu",
        starts=starts,
        autocast=snapshot.machine.get("autocast"),
    )
    return found, timing


def _counted_ms(snapshot: Snapshot, name: str, loader: LoaderInfo) -> float:
    """What a batch of this loader took, where that was counted apart from others."""
    counted_ns = snapshot.counters.get(own_counter(name, loader.number or 0), 0)
    return counted_ns / 1e6 / max(loader.batches_handed or 0, 1)


def _own_stages(stages: tuple[StageTime, ...], own_ms: float) -> tuple[StageTime, ...]:
    """Those of all loaders, a validation's too, are recorded together: scaled to what this one took."""
    mean_ms = sum(stage.ms for stage in stages)
    part = own_ms / mean_ms if own_ms > 0 and mean_ms > 0 else 1.0
    return tuple(replace(stage, ms=part * stage.ms) for stage in stages)


def _starts(
    timing: StepTiming, steps: StepStats, loader: LoaderInfo, service_ms: float, per_step: float
) -> tuple[StepTiming, PassStarts]:
    """What the beginnings of passes cost, and the timing with one of them in every epoch, however short the run was."""
    count, wait_ms = loader.starts or 0, loader.start_wait_ms or 0.0
    if not count or not steps.count:
        return timing, PassStarts()
    waits = sorted(point.wait_ns / 1e6 for point in steps.series)[: -(count + 1)]  # without beginnings
    between_ms = sum(waits) / max(len(waits), 1)
    more_ms = max(wait_ms - between_ms, 0.0)
    given = loader.batches_handed or 0
    least, most = given / (count + 1), given / count  # the first pass may be from before a reset, the last go on
    apart = max(min(max(float(loader.batches or most), least), most) / per_step, 1.0)
    compute_ms = timing.compute_ms
    wait = between_ms + more_ms / apart
    stays = bool(loader.persistent_workers) or not loader.workers
    spared_ms = 0.0 if stays else max(wait_ms - max(service_ms, between_ms), 0.0)
    starts = PassStarts(more_ms / apart, spared_ms / apart, wait_ms, apart)
    return replace(timing, step_ms=compute_ms + wait, wait_ms=wait), starts


def _batches(snapshot: Snapshot, loader: LoaderInfo) -> float:
    """Batches that the recorded work was for; some of it went into batches that nobody has taken yet."""
    counted = snapshot.counters.get("view_hits", 0) + snapshot.counters.get("images_decoded", 0)
    if counted and loader.made_per_batch:
        return counted / loader.made_per_batch
    used, steps = snapshot.counters.get("batches_used", 0), snapshot.steps
    return steps.count * max(1.0, used / steps.batches) if steps.batches else float(steps.count)  # with validation's


def _cpu_ms(service_ms: float, stages: Sequence[StageTime], access_paths: Mapping[str, AccessPath]) -> float:
    reading = sum(stage.ms for stage in stages if stage.name in READS)
    read = access_paths.get("read")
    waits = 1.0 if read is None else max(0.0, 1 - read.cpu_ms / max(read.ms(0), 1e-9))
    return service_ms - waits * reading
