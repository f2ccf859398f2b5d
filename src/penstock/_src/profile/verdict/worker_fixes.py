"""More threads, more workers, workers that stay: the changes of who makes the batches, with what the model predicts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from penstock._src.profile.messages import message
from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.verdict.case import WORTH, Fix, FixInputs

_MOST_THREADS = 64
_WAITS = 0.5  # of the work, must be waiting for more workers than CPUs to be of use
_PREFETCHED = 2  # batches that a worker makes ahead where nobody says otherwise: torch's own choice
_LEAST_ROUNDS = 2  # that a pass fills the queues of all workers: of more of them it would use only the beginnings
_SHORT_PASS_MS = 10_000.0  # then workers had better stay, where nobody saw how long they take to start


def threads(case: FixInputs) -> Fix | None:
    """Of a penstock loader, by what an image was measured to take with more of them at once."""
    now, path = case.now, case.access_paths.get("now")
    if not case.is_input_bound or not now.service_ms or case.loader.threads is None:
        return None
    if path is not None and case.hit_share < 1:
        return _measured_threads(case, path)
    more = min(now.cores, _MOST_THREADS)
    if more <= now.threads:
        return None
    why = message("shared work", more=more, cores=now.cores, service=now.service_ms)
    return Fix("threads", {"threads": more}, replace(now, threads=more).step_ms, why)


def _measured_threads(case: FixInputs, path: AccessPath) -> Fix | None:
    """Of the numbers of threads that were measured, the smallest that gives (nearly) the shortest step."""
    now = case.now
    steps = {
        more: replace(now, threads=more, service_ms=now.service_ms * path.ms(more) / path.ms(now.threads)).step_ms
        for more in sorted(path.ms_by_threads)
        if more > now.threads
    }
    if not steps:
        return None
    more = next(each for each, ms in steps.items() if ms <= min(steps.values()) * (1 + WORTH))
    why = message("measured threads", more=more, then=path.ms(more), now=path.ms(now.threads))
    return Fix("threads", {"threads": more}, steps[more], why)


def workers(case: FixInputs) -> Fix | None:
    """Of a DataLoader: until the step computes longer, up to the CPUs; twice as many where workers mostly wait."""
    now, loader = case.now, case.loader
    if not case.is_input_bound or not now.service_ms or loader.workers is None:
        return None
    waits = now.cpu_ms < (1 - _WAITS) * now.service_ms
    target = max(now.bounds_ms["cores"], now.compute_ms / now.unexplained, 1e-3)
    more = min(math.ceil(now.service_ms / target - 0.05), now.cores * (2 if waits else 1))
    if loader.batches:
        more = min(more, math.ceil(loader.batches / (loader.prefetch_factor or _PREFETCHED) / _LEAST_ROUNDS))
    if more <= now.threads:
        return None
    changed = replace(now, threads=more)
    key = "waiting work" if more > now.cores else "shared work"
    why = message(key, service=now.service_ms, cpu=now.cpu_ms, more=more, cores=now.cores)
    change: dict[str, Any] = {"num_workers": more}
    starts_ms = case.starts.per_step_ms
    if not loader.persistent_workers and (loader.batches or math.inf) * changed.step_ms < _SHORT_PASS_MS:
        change["persistent_workers"] = True
        why += message("and stay")
        starts_ms -= case.starts.spared_ms
    why += message("of a stream") if loader.is_stream else ""
    return Fix("workers", change, changed.step_ms + starts_ms, why)


def persistent(case: FixInputs) -> Fix | None:
    """Workers that stay from epoch to epoch: only the first one waits until they have started."""
    starts, loader = case.starts, case.loader
    if not starts.spared_ms or not loader.workers or loader.persistent_workers:
        return None
    predicted = max(case.step_ms - starts.spared_ms, case.now.compute_ms)
    first_ms = starts.wait_ms - starts.spared_ms * starts.steps
    waits = {"wait": _time(starts.wait_ms), "first": _time(first_ms)}
    why = message("persistent", workers=loader.workers, steps=starts.steps, **waits)
    return Fix("persistent workers", {"persistent_workers": True}, predicted, why)


def _time(ms: float) -> str:
    return f"{ms / 1e3:.1f} s" if ms >= 1000 else f"{ms:.0f} ms"
