"""A run in the numbers that the model of a verdict takes: pace, service time, CPU time, and beginnings of passes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.stats import LoaderInfo, Snapshot, StepStats
from penstock._src.profile.verdict.fixes import bandwidth_of
from penstock._src.profile.verdict.model import (
    READS,
    WAIT_SHARE,
    FixInputs,
    LoaderModel,
    Pace,
    PassStarts,
    StageTime,
    pace_of,
    stages_of,
)

_UNEXPLAINED = (0.7, 1.6)  # beyond, something else is at work that a factor must not hide
_FAR_AHEAD = 0.5  # of the computing: workers that need less for a batch let nobody wait for their work
_HAND_OVER_MS = 5.0  # at most: what torch takes to hand over a batch of workers, whatever they do


def leading(loaders: Iterable[LoaderInfo]) -> LoaderInfo:
    """The loader that a run is judged by: the one that fed most of the steps."""
    return max(loaders, key=lambda each: (each.step_batches or 0, each.batches_handed or 0), default=LoaderInfo())


def case_of(snapshot: Snapshot, loader: LoaderInfo, access_paths: Mapping[str, AccessPath]) -> tuple[FixInputs, Pace]:
    """What changes are derived from, and the pace of the steps."""
    steps = snapshot.steps
    per_step = max(steps.batches / steps.count, 1e-9) if steps.batches and steps.count else 1.0
    hits, made = (snapshot.counters.get(name, 0) for name in ("view_hits", "images_decoded"))
    hit_share = hits / (hits + made) if hits + made else loader.hit_share or 0.0
    loader = replace(loader, made_per_batch=loader.made_per_batch or loader.images_per_batch or 0.0)
    batches = _batches(snapshot, loader)
    stages = stages_of(snapshot, batches)
    service = sum(stage.ms for stage in stages)
    pace = pace_of(steps.series, steps.count, steps.total_ns, steps.wait_total_ns)
    pace, starts = _starts(pace, steps, loader, service, per_step)
    threads = next((each for each in (loader.threads, loader.workers) if each is not None), 1)
    counted_cpu_ms = snapshot.counters.get("fetch_cpu_ns", 0) / 1e6 / batches
    now = LoaderModel(
        service_ms=service,
        threads=threads,
        cores=int(loader.cores or snapshot.machine.get("cores") or os.cpu_count() or 1),
        compute_ms=pace.compute_ms,
        cpu_ms=counted_cpu_ms or (_cpu_ms(service, stages, access_paths) if loader.workers is None else service),
        compute_cpu_ms=steps.cpu_total_ns / 1e6 / max(steps.count, 1),
        read_bytes=(loader.stored_bytes_per_batch or 0.0) * (1 - hit_share),
        bandwidth=bandwidth_of(access_paths, threads),
    )
    between_ms = pace.step_ms - starts.per_step_ms  # the steady state, which the model is of
    wait_ms = between_ms - pace.compute_ms
    if loader.workers and 0 < now.batch_ms < _FAR_AHEAD * pace.compute_ms and wait_ms <= _HAND_OVER_MS * per_step:
        now = replace(now, compute_ms=between_ms)
        wait_ms = 0.0
    if threads and now.batch_ms > 0 and wait_ms > WAIT_SHARE * between_ms:
        low, high = _UNEXPLAINED
        now = replace(now, unexplained=min(max(between_ms / now.batch_ms, low), high))
    elif now.batch_ms > between_ms:  # it kept up: what its threads took was their waiting for CPUs that the step had
        now = replace(now, unexplained=between_ms / now.batch_ms)
    found = FixInputs(
        now,
        pace.step_ms,
        stages,
        loader,
        access_paths,
        hit_share,
        is_input_bound=wait_ms + starts.per_step_ms > WAIT_SHARE * pace.step_ms,
        on_gpu=bool(snapshot.gpu) or (loader.device or "cpu") != "cpu",
        starts=starts,
        autocast=snapshot.machine.get("autocast"),
    )
    return found, pace


def _starts(
    pace: Pace, steps: StepStats, loader: LoaderInfo, service_ms: float, per_step: float
) -> tuple[Pace, PassStarts]:
    """What the beginnings of passes cost, and the pace with one of them in every epoch, however short the run was."""
    count, wait_ms = loader.starts or 0, loader.start_wait_ms or 0.0
    if not count or not steps.count:
        return pace, PassStarts()
    waits = sorted(point.wait_ns / 1e6 for point in steps.series)[: -(count + 1)]  # without beginnings
    between_ms = sum(waits) / max(len(waits), 1)
    more_ms = max(wait_ms - between_ms, 0.0)
    given = loader.batches_handed or 0
    least, most = given / (count + 1), given / count  # the first pass may be from before a reset, the last go on
    apart = max(min(max(float(loader.batches or most), least), most) / per_step, 1.0)
    compute_ms = pace.compute_ms
    wait = between_ms + more_ms / apart
    stays = bool(loader.persistent_workers) or not loader.workers
    spared_ms = 0.0 if stays else max(wait_ms - max(service_ms, between_ms), 0.0)
    starts = PassStarts(more_ms / apart, spared_ms / apart, wait_ms, apart)
    return replace(pace, step_ms=compute_ms + wait, wait_ms=wait), starts


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
    if read is None:
        return service_ms - reading
    first = min(read.ms_by_threads)
    waits = max(0.0, 1 - read.cpu_ms / max(read.ms(first), 1e-9))
    return service_ms - waits * reading
