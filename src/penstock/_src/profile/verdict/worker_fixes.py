"""More threads, more workers, workers that stay: the changes of who makes the batches, with what the model predicts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from penstock._src.profile.messages import BilingualText, message
from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.verdict.case import KEPT_FREE, WORTH, Fix, FixInputs, rounds_of
from penstock._src.profile.verdict.model import LoaderModel

_MOST_THREADS = 64
WORKERS = "workers"
_MOST_PER_CPU = 8  # workers that wait for storage; the more there are, the more memory they take
_WAITS = 0.2  # of the work, must be waiting for more workers than CPUs to be of use
_LEAST_ROUNDS = 2  # that a pass fills the queues of all workers: of more of them it would use only the beginnings
_SHORT_PASS_MS = 10_000.0  # then workers had better stay, where nobody saw how long they take to start


def threads(case: FixInputs) -> Fix | None:
    now = case.now
    if not case.is_input_bound or not now.service_ms or now.hand_over_ms:
        return None
    if case.loader.threads is None and case.loader.workers is None:
        return None  # nobody knows what made the batches, nor with how many
    path = case.access_paths.get("now")
    if path is not None and case.hit_share < 1:
        return _measured_threads(case, path)
    more = _useful(case)
    if more <= now.threads:
        return None
    changed = replace(now, threads=more)
    if more > now.cores:
        why = message("waiting work", service=now.service_ms, cpu=now.cpu_ms, more=more, cores=now.cores)
    else:
        why = message("shared work", more=more, cores=now.cores, service=now.service_ms)
    if case.loader.workers is not None:
        return _workers(case, changed, why)
    return Fix("threads", {"threads": more}, changed.step_ms, why)


def _workers(case: FixInputs, changed: LoaderModel, why: BilingualText) -> Fix:
    """The more there are, the longer they take to start: where that shows, they stay from pass to pass."""
    had = bool(case.loader.persistent_workers)
    stays = had or _starts_matter(case, changed)
    change: dict[str, Any] = {"num_workers": changed.threads}
    if stays and not had:
        change["persistent_workers"] = True
        why += message("and stay")
    why += message("of a stream") if case.loader.is_stream else ""
    return Fix(WORKERS, change, changed.step_ms + _start_ms(case, changed, stays), why)


def _starts_matter(case: FixInputs, changed: LoaderModel) -> bool:
    if case.starts.steps and case.now.threads:
        return _restart_ms(case, changed) > WORTH * changed.step_ms
    return (case.loader.batches or math.inf) * changed.step_ms < _SHORT_PASS_MS


def _restart_ms(case: FixInputs, changed: LoaderModel) -> float:
    """Of a step: what starting so many workers anew for every pass costs."""
    return case.starts.spared_ms * changed.threads / max(case.now.threads, 1)


def _start_ms(case: FixInputs, changed: LoaderModel, stays: bool) -> float:
    """Of a step: what the beginning of a pass costs.

    All workers begin at once and have their first batches at the same time, so the step then computes for as many while
    the next are made: either this is all that the pass takes longer, or, computing for longer, the first batch alone.
    """
    steps = case.starts.steps or float(case.loader.batches or 0)
    if not steps:
        return 0.0
    first_ms = case.starts.wait_ms - case.starts.spared_ms * steps
    beyond_ms = max(first_ms - changed.service_ms, 0.0)
    begins_ms = min(changed.service_ms, changed.threads * changed.compute_ms) + beyond_ms
    return begins_ms / steps + (0.0 if stays else _restart_ms(case, changed))


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


def _useful(case: FixInputs) -> int:
    """Threads until something else binds; of workers no more than a pass has work for."""
    wanted = _wanted(case)
    if case.loader.workers is None:
        return wanted
    rounds = rounds_of(case.loader, 1)
    return wanted if math.isinf(rounds) else min(wanted, math.ceil(rounds / _LEAST_ROUNDS))


def _wanted(case: FixInputs) -> int:
    """Up to the CPUs, beyond them only as far as work is known to be waiting."""
    now = case.now
    if not case.cpu.is_known:
        return min(now.cores, _MOST_THREADS)
    others = [ms for name, ms in now.bounds_ms.items() if name != "threads"]
    target = max(*others, max(now.compute_ms, now.beside_ms) / now.unexplained, 1e-3)
    wanted = math.ceil(now.service_ms / target - 0.05)
    waits_ms = now.service_ms - now.cpu_ms - case.cpu.queued_ms
    if waits_ms < _WAITS * now.service_ms or case.cpu.works_elsewhere:
        return min(wanted, now.cores, _MOST_THREADS)
    most = min(_MOST_PER_CPU * now.cores, _MOST_THREADS)
    each, left = case.cpu.worker_bytes, case.loader.memory_available_bytes
    if each and left is not None:
        most = min(most, now.threads + int(left * (1 - KEPT_FREE) / each))
    return min(wanted, most)


def persistent(case: FixInputs) -> Fix | None:
    """Workers that stay from epoch to epoch: only the first one waits until they have started."""
    starts, loader = case.starts, case.loader
    if not starts.spared_ms or not loader.workers or loader.persistent_workers:
        return None
    predicted = max(case.step_ms - starts.spared_ms, case.now.compute_ms)
    first = starts.wait_ms - starts.spared_ms * starts.steps
    waits = {"wait": _time(starts.wait_ms), "first": _time(first)}
    why = message("persistent", workers=loader.workers, steps=starts.steps, **waits)
    return Fix("persistent workers", {"persistent_workers": True}, predicted, why)


def _time(ms: float) -> str:
    return f"{ms / 1e3:.1f} s" if ms >= 1000 else f"{ms:.0f} ms"
