"""A run in the numbers that the model of a verdict takes: pace, service time, CPU time, and beginnings of passes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from penstock._src.profile.loader_info import LoaderInfo
from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.stats import Snapshot, StepStats
from penstock._src.profile.verdict.case import CpuUse, FixInputs, PassStartCost
from penstock._src.profile.verdict.fixes import bandwidth_of
from penstock._src.profile.verdict.model import (
    READS,
    SAMPLES,
    WAIT_SHARE,
    LoaderModel,
    Pace,
    StageTime,
    pace_of,
    stages_of,
)

_UNEXPLAINED = (0.7, 1.6)  # beyond, something else is at work that a factor must not hide
_FAR_AHEAD = 0.5  # of the computing: a loader that needs less for a batch lets nobody wait for its work
_HAND_OVER_MS = 5.0  # per batch, at most
_ELSEWHERE = 0.5  # of the work on samples: then the thread that asks tells little of what they wait for


def leading(loaders: Iterable[LoaderInfo]) -> LoaderInfo:
    """The loader that a run is judged by: the one that fed most of the steps; of several that are asked in turn for
    each step, the one that was waited for longest."""
    found = list(loaders)
    if any(each.is_companion for each in found):
        return max(found, key=_waited_ms)
    return max(found, key=lambda each: (each.step_batches or 0, each.batches_handed or 0), default=LoaderInfo())


def others_of(snapshot: Snapshot, loader: LoaderInfo) -> list[LoaderInfo]:
    """Other loaders that feed the same steps."""
    if not any(each.is_companion for each in snapshot.loaders):
        return []
    return [each for each in snapshot.loaders if _waited_ms(each) and each.text != loader.text]


def _waited_ms(loader: LoaderInfo) -> float:
    return loader.steps_waited_ms or 0.0


def case_of(snapshot: Snapshot, loader: LoaderInfo, access_paths: Mapping[str, AccessPath]) -> tuple[FixInputs, Pace]:
    """What changes are derived from, and the pace of the steps."""
    steps = snapshot.steps
    pace = pace_of(steps.series, steps.count, steps.total_ns, steps.wait_total_ns)
    hit_share, made = _images(snapshot, loader)
    loader = replace(loader, made_per_batch=made)
    batches = _batches(snapshot, made)
    stages = stages_of(snapshot, batches)
    part = _own_part(snapshot, loader, sum(stage.ms for stage in stages))
    stages = tuple(replace(stage, ms=part * stage.ms) for stage in stages)
    service = sum(stage.ms for stage in stages)
    pace, starts = _starts(pace, steps, loader, service)
    threads = next((each for each in (loader.threads, loader.workers) if each is not None), 1)
    bandwidth = bandwidth_of(access_paths, threads)
    beside_ms, inline_ms = _beside(snapshot, loader)
    cpu, counted_ms = _cpu_use(snapshot, loader, service, batches / part)
    now = LoaderModel(
        service_ms=service,
        threads=threads,
        cores=int(loader.cores or snapshot.machine.get("cores") or os.cpu_count() or 1),
        compute_ms=pace.compute_ms + inline_ms,
        cpu_ms=counted_ms or _cpu_ms(service, stages, access_paths),
        compute_cpu_ms=steps.cpu_total_ns / 1e6 / max(steps.count, 1),
        read_bytes=(loader.stored_bytes_per_batch or 0.0) * (1 - hit_share),
        bandwidth=bandwidth,
        beside_ms=beside_ms,
    )
    if loader.workers and any(stage.name == SAMPLES for stage in stages):
        now = replace(now, hand_over_ms=_hand_over_ms(now, pace.wait_ms - starts.per_step_ms, pace, steps))
    is_input_bound = pace.wait_ms - now.hand_over_ms > WAIT_SHARE * pace.step_ms
    between_ms = pace.step_ms - starts.per_step_ms  # the steady state, which the model is of
    wait_ms = between_ms - pace.compute_ms - now.hand_over_ms
    if threads and now.batch_ms > 0 and wait_ms > WAIT_SHARE * between_ms:
        low, high = _UNEXPLAINED
        now = replace(now, unexplained=min(max(between_ms / now.batch_ms, low), high))
    elif now.batch_ms > between_ms:  # it kept up: what its threads took was their waiting for CPUs that the step had
        now = replace(now, unexplained=between_ms / now.batch_ms)
    on_gpu = bool(snapshot.gpu) or (loader.device or "cpu") != "cpu"
    autocast = snapshot.machine.get("autocast")
    found = FixInputs(
        now, pace.step_ms, stages, loader, access_paths, hit_share, is_input_bound,
        on_gpu=on_gpu, starts=starts, cpu=cpu, autocast=autocast,
    )  # fmt: skip
    return found, pace


def _own_part(snapshot: Snapshot, loader: LoaderInfo, mean_ms: float) -> float:
    """What batches of this DataLoader take for a step, over the mean of all that were attached, also of those that are
    gone: stages are recorded together."""
    steps = snapshot.steps
    per_step = steps.batches / steps.count if steps.batches and steps.count else 1.0
    service_ns = snapshot.counters.get(loader.service_counter or "", 0)
    own_ms = service_ns / 1e6 / max(loader.batches_handed or 0, 1) * per_step
    return own_ms / mean_ms if own_ms > 0 and mean_ms > 0 else 1.0


def _beside(snapshot: Snapshot, loader: LoaderInfo) -> tuple[float, float]:
    """Of a step: (what other loaders with workers need for their batches, the longest; what those without take)."""
    steps = max(snapshot.steps.count, 1)
    need_ms = inline_ms = 0.0
    for each in others_of(snapshot, loader):
        if each.workers == 0:
            inline_ms += _waited_ms(each) / steps
        elif each.workers:
            service_ms = snapshot.counters.get(each.service_counter or "", 0) / 1e6 / steps
            need_ms = max(need_ms, service_ms / each.workers)
    return need_ms, inline_ms


def _starts(pace: Pace, steps: StepStats, loader: LoaderInfo, service_ms: float) -> tuple[Pace, PassStartCost]:
    """What the beginnings of passes cost, and the pace with one of them in every epoch, however short the run was."""
    count, wait_ms = loader.starts or 0, loader.start_wait_ms or 0.0
    seen = steps.series[-(pace.steps + pace.left_out) :]
    if not count or not wait_ms or not seen:
        return pace, PassStartCost()
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
        return pace, PassStartCost()
    apart = _steps_of_a_pass(steps, loader)
    change_ms = more_ms / apart - more_ms * count / total
    pace = Pace(max(step_ms + change_ms, 0.0), max(mean_ms + change_ms, 0.0), kept, len(rest))
    stays = bool(loader.persistent_workers) or not loader.workers
    spared_ms = 0.0 if stays else max(wait_ms - max(service_ms, between_ms), 0.0)
    return pace, PassStartCost(min(more_ms / apart, pace.wait_ms), min(spared_ms / apart, pace.wait_ms), wait_ms, apart)


def _hand_over_ms(now: LoaderModel, wait_ms: float, pace: Pace, steps: StepStats) -> float:
    """Of a step, what taking batches from worker processes that are far ahead costs the loop; 0 where it is not that.

    It is torch's own, about the same for every batch, whatever the data does: a few slow batches among many are not.
    """
    per_step = max(steps.batches / steps.count, 1.0) if steps.count else 1.0
    waits = sorted(point.wait_ns for point in steps.series)
    is_even = bool(waits) and waits[len(waits) // 2] > 0.5e6 * wait_ms
    is_ahead = 0 < now.batch_ms < _FAR_AHEAD * pace.compute_ms
    is_small = WAIT_SHARE * pace.step_ms < wait_ms <= _HAND_OVER_MS * per_step
    return wait_ms if is_even and is_ahead and is_small else 0.0


def _steps_of_a_pass(steps: StepStats, loader: LoaderInfo) -> float:
    """By the length of the loader, unless passes were seen to be longer or shorter."""
    starts, given = loader.starts or 1, loader.batches_handed or 0
    least, most = given / (starts + 1), given / starts  # the first pass may be from before a reset, the last go on
    batches = min(max(float(loader.batches or most), least), most)
    per_step = steps.batches / steps.count if steps.batches and steps.count else 1.0
    return max(batches / max(per_step, 1e-9), 1.0)


def _cpu_use(snapshot: Snapshot, loader: LoaderInfo, service_ms: float, batches: float) -> tuple[CpuUse, float]:
    """How the workers of an attached DataLoader use CPUs, and what these worked for a batch (0 where nobody counted).
    That is more than a batch takes where the data set has threads of its own."""
    counted_ms = snapshot.counters.get("fetch_cpu_ns", 0) / 1e6 / max(batches, 1e-9)
    elsewhere_ms = snapshot.counters.get("fetch_cpu_elsewhere_ns", 0) / 1e6
    queued_ms = snapshot.counters.get("fetch_queued_ns", 0) / 1e6 / max(batches, 1e-9)
    use = CpuUse(
        is_known=bool(counted_ms) and loader.workers is not None,
        works_elsewhere=elsewhere_ms > _ELSEWHERE * counted_ms * batches,
        queued_ms=min(queued_ms, max(service_ms - counted_ms, 0.0)),
    )
    if not use.is_known:
        return use, 0.0
    own_bytes = max((point.tree_pss_bytes - point.rss_bytes for point in snapshot.memory), default=0)
    if loader.workers and own_bytes > 0:
        use = replace(use, worker_bytes=own_bytes / loader.workers)
    return use, counted_ms


def _images(snapshot: Snapshot, loader: LoaderInfo) -> tuple[float, float]:
    """(part of the images that a view answered for, images of a batch), as counted."""
    hits, made = (snapshot.counters.get(name, 0) for name in ("view_hits", "images_decoded"))
    share = hits / (hits + made) if hits + made else loader.hit_share or 0.0
    return share, loader.made_per_batch or loader.images_per_batch or 0.0


def _batches(snapshot: Snapshot, images_per_batch: float) -> float:
    """Batches that the recorded work was for; some of it went into batches that nobody has taken yet."""
    counted = snapshot.counters.get("view_hits", 0) + snapshot.counters.get("images_decoded", 0)
    if counted and images_per_batch:
        return counted / images_per_batch
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
