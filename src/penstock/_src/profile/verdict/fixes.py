"""What would make the step shorter: each change that applies, with the step time that the model predicts for it.

Nothing here is a constant from a table: what a copy, a scaled decode or a read takes was measured on the user's own
rows (`AccessPath`), and a change for which nothing was measured comes without a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock._src.profile.messages import message, ms_text
from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.stats import ImageInfo
from penstock._src.profile.verdict.model import DECODE, KEPT_FREE, READS, WORTH, Fix, FixInputs
from penstock._src.system.units import format_bytes

_VIEW_OVERHEAD = 1.001  # flags and headers
_LEAST_GAIN = 0.25  # of what more threads ask for: with less the storage is called the limit


def bandwidth_of(access_paths: Mapping[str, AccessPath], threads: int) -> float | None:
    """Bytes per second that the storage gives at most; None where more threads still get more, or it hardly waits."""
    read = access_paths.get("read")
    if read is None or read.stored_bytes <= 0:
        return None
    more = max(read.ms_by_threads)
    waits = read.ms(threads) > 2 * read.cpu_ms + 0.2
    if more <= threads or not waits:
        return None
    rate = {count: count * read.stored_bytes / read.ms(count) * 1e3 for count in (threads, more)}
    gain, asked = rate[more] / rate[threads] - 1, more / threads - 1
    return max(rate.values()) if gain < _LEAST_GAIN * asked else None


def fixes_for(case: FixInputs) -> tuple[Fix, ...]:
    """All that apply, the best first; those that alter the training last."""
    steady: tuple[Callable[[FixInputs], Fix | None], ...] = (_batch, _amp)
    if case.is_input_bound:
        steady = (_threads, _filling, _view_in_ram, _view_on_disk, _scaled, _gpu_decode, _storage, _decode_once)
    found = [_with_starts(fix, case) for maker in steady if (fix := maker(case)) is not None]
    found += [fix for maker in (_workers, _persistent) if (fix := maker(case)) is not None]
    limit = case.step_ms * (1 - WORTH)
    worth = [fix for fix in found if fix.predicted_step_ms is None or fix.per_batch_ms <= limit]
    return tuple(sorted(worth, key=lambda fix: (fix.alters_training, fix.per_batch_ms, _trouble(fix))))


def _with_starts(fix: Fix, case: FixInputs) -> Fix:
    """The model is of the steady state: with such a change, passes begin as before."""
    ms = fix.predicted_step_ms
    return replace(fix, predicted_step_ms=None if ms is None else ms + case.starts.per_step_ms * fix.batch_factor)


def best_of(fixes: Sequence[Fix], step_ms: float) -> Fix | None:
    """The one to recommend: what wins most and leaves the training as it is; of equal ones the least change."""
    numbered = [fix for fix in fixes if fix.predicted_step_ms is not None]
    open_to = [fix for fix in numbered if not fix.alters_training and (fix.change or fix.needs_filling)]
    if not open_to and all(fix.alters_training for fix in fixes):
        open_to = [fix for fix in numbered if fix.batch_factor != 1]
    if not open_to:
        return None
    least = min(fix.per_batch_ms for fix in open_to)
    return min((fix for fix in open_to if fix.per_batch_ms <= least + 0.02 * step_ms), key=_trouble)


def _trouble(fix: Fix) -> int:
    order = ("persistent workers", "threads", "workers", "wait for the view", "view in RAM", "view on disk",
             "scaled decode", "decode on the GPU")  # fmt: skip
    return order.index(fix.name) if fix.name in order else len(order)


def _decode_once(case: FixInputs) -> Fix | None:
    """For a data set of the user's own: what helps against decoding is known, though nothing of it can be measured."""
    is_slow = case.loader.workers is not None and case.now.batch_ms > case.now.compute_ms
    is_decode = bool(case.stages) and case.stages[0].name == DECODE
    return Fix("decode once", {}, None, message("decode once")) if is_slow and is_decode else None


# Views


def _viewable(case: FixInputs) -> list[ImageInfo]:
    return [each for each in case.loader.images if each.view_row_bytes and not each.on_device]


def _needed_bytes(images: Sequence[ImageInfo]) -> int:
    return int(sum(each.view_row_bytes * each.rows for each in images) * _VIEW_OVERHEAD) + (len(images) << 15)


def _with_hits(case: FixInputs, path: AccessPath | None, share: float) -> float | None:
    """The step when a view answers for `share` of the images: the hit mix of copies and what is made now.

    None where nobody measured what a copy takes.
    """
    if path is None:
        return None
    now, per_batch = case.now, case.loader.made_per_batch or 0.0
    copy_ms, copy_cpu = path.ms(now.threads) * per_batch, path.cpu_ms * per_batch
    missed = max(1 - case.hit_share, 1e-9)
    made = max(case.image_ms - case.hit_share * copy_ms, 0.0) / missed  # if every image had to be made
    rest = max(now.service_ms - case.image_ms, 0.0)
    cpu = now.cpu_ms / now.service_ms if now.service_ms else 1.0
    changed = replace(
        now,
        service_ms=rest + share * copy_ms + (1 - share) * made,
        cpu_ms=rest + share * copy_cpu + (1 - share) * made * cpu,
        read_bytes=now.read_bytes * (1 - share) / missed,
    )
    return changed.step_ms


def _filling(case: FixInputs) -> Fix | None:
    """A view that is being filled answers for more in the next epoch, and nothing has to be done."""
    images = _viewable(case)
    views = [each.view for each in images if each.view is not None]
    places, filled = sum(view.capacity for view in views), sum(view.filled for view in views)
    share = places / max(sum(each.rows for each in images), 1)
    if not views or len(views) < len(images) or share <= case.hit_share + 0.02:
        return None
    path = case.access_paths.get(views[0].where)
    state = message("view is filled") if filled >= places else message("view is being filled", filled=filled)
    why = message("filling", places=places, state=state, share=share)
    return Fix("wait for the view", {}, _with_hits(case, path, share), why, needs_filling=True)


def _view_in_ram(case: FixInputs) -> Fix | None:
    images, path = _viewable(case), case.access_paths.get("ram")
    if not images:
        return None
    needed, left = _needed_bytes(images), case.loader.memory_left_bytes or 0
    change: dict[str, Any] = {"view": "ram"}
    share, why = 1.0, message("images in RAM", needed=format_bytes(needed))
    if needed > left:
        usable = int((case.loader.memory_available_bytes or 0) * (1 - KEPT_FREE))
        wanted = (case.loader.memory_bytes or 0) - left + needed
        if wanted <= usable:
            change["memory"] = wanted
            why += message("needs memory", wanted=format_bytes(wanted))
        else:
            share = left / needed
            why += message("does not fit", left=format_bytes(left), share=share)
    if any(each.view and each.view.where == "ram" for each in images) and "memory" not in change:
        return None  # it is there already; `_filling` speaks of it
    why += message("not measured") if path is None else message("copy takes", copy=path.ms(case.now.threads))
    return Fix("view in RAM", change, _with_hits(case, path, share), why + message("fills"), needs_filling=True)


def _view_on_disk(case: FixInputs) -> Fix | None:
    images, path = _viewable(case), case.access_paths.get("disk")
    if not images or any(each.view for each in images):
        return None
    needed, free = _needed_bytes(images), case.loader.cache_free_bytes
    if free is None or needed > free * (1 - KEPT_FREE):
        return None
    if path is None and case.access_paths:
        return None  # others could be measured, this one not: nothing may be written there
    why = message("images on disk", needed=format_bytes(needed), free=format_bytes(free))
    why += message("not measured") if path is None else message("from disk takes", copy=path.ms(case.now.threads))
    predicted = _with_hits(case, path, 1.0)
    return Fix("view on disk", {"view": "disk"}, predicted, why + message("fills and stays"), needs_filling=True)


# Decoding


def _scaled(case: FixInputs) -> Fix | None:
    if not any(each.can_scale for each in case.loader.images):
        return None
    scaled, exact, read = (case.access_paths.get(name) for name in ("scaled", "now", "read"))
    if scaled is None or exact is None:
        return Fix("scaled decode", {"exact": False}, None, message("nothing measured"))
    reading = read.cpu_ms if read is not None else 0.0
    # Of CPU time: decoding waits for nothing, and neighbours on the machine do not change it.
    ratio = max(scaled.cpu_ms - reading, 1e-6) / max(exact.cpu_ms - reading, 1e-6)
    now, saved = case.now, case.stage_ms(DECODE) * (1 - ratio)
    changed = replace(now, service_ms=max(now.service_ms - saved, 0.0), cpu_ms=max(now.cpu_ms - saved, 0.0))
    why = message("scaled", ratio=ratio, images=scaled.images)
    return Fix("scaled decode", {"exact": False}, changed.step_ms, why)


def _gpu_decode(case: FixInputs) -> Fix | None:
    loader, path = case.loader, case.access_paths.get("gpu")
    has_jpegs = any(each.is_jpeg and not each.on_device for each in loader.images)
    if not has_jpegs or not loader.cuda or loader.resize not in (None, "linear"):  # the device knows no other
        return None
    change = {"device": "cuda" if loader.device in (None, "cpu") else loader.device, "gpu_decode": True, "view": "off"}
    if path is None:
        return Fix("decode on the GPU", change, None, message("nvjpeg not measured"))
    now = case.now
    read = case.access_paths.get("read")
    reading = (read.ms(now.threads) if read is not None else 0.0) * (loader.made_per_batch or 0.0)
    rest = max(now.service_ms - case.image_ms, 0.0)
    changed = replace(now, service_ms=rest + reading, cpu_ms=rest + reading)
    on_device = path.ms(1) * (loader.made_per_batch or 0.0)  # on a stream of its own, beside the step's kernels
    step = max(changed.step_ms, on_device)
    return Fix("decode on the GPU", change, step, message("nvjpeg", ms=path.ms(1)))


def _storage(case: FixInputs) -> Fix | None:
    now, reading = case.now, case.stage_ms(*READS)
    if not reading or reading < 0.5 * case.image_ms or not now.read_bytes:
        return None
    changed = replace(now, service_ms=min(now.service_ms, now.cpu_ms), bandwidth=None)
    has = now.bandwidth or now.read_bytes / (case.step_ms / 1e3)
    needed = now.read_bytes / (max(changed.step_ms, 1e-3) / 1e3)
    why = message("storage", has=has / 1e6, needed=needed / 1e6, batch=now.read_bytes / 1e6)
    return Fix("faster storage", {}, changed.step_ms, why)


# Computing


def _batch(case: FixInputs) -> Fix | None:
    """Twice the samples per step: what is fixed in a step is paid half as often. Only with the user's step replayed."""
    now, cost, size = case.now, case.cost, case.loader.batch_size
    if not size:
        return None
    if cost is None:
        return Fix("larger batch", {}, None, message("larger batch unknown"), alters_training=True)
    if cost.fixed_ms <= 0:
        return None
    scale = now.compute_ms / cost.ms(size)  # beside a working loader it takes a little longer than alone
    changed = replace(now, service_ms=2 * now.service_ms, cpu_ms=2 * now.cpu_ms, read_bytes=2 * now.read_bytes,
                      compute_ms=cost.ms(2 * size) * scale)  # fmt: skip
    total = 2 * size * case.loader.processes
    half = cost.sizes[0]
    why = message("larger batch", low=cost.ms(half), half=half, high=cost.ms(size), size=size, fixed=cost.fixed_ms)
    return Fix("larger batch", {"batch_size": total}, changed.step_ms, why, alters_training=True, batch_factor=2.0)


def _amp(case: FixInputs) -> Fix | None:
    if not case.on_gpu or case.autocast:
        return None
    return Fix("mixed precision", {}, None, message("mixed precision"), alters_training=True)


# Who makes the batches


_MOST_THREADS = 64
_WAITS = 0.5  # of the work, must be waiting for more workers than CPUs to be of use
_PREFETCHED = 2  # batches that a worker makes ahead where nobody says otherwise: torch's own choice
_LEAST_ROUNDS = 2  # that a pass fills the queues of all workers: of more of them it would use only the beginnings
_SHORT_PASS_MS = 10_000.0  # then workers had better stay, where nobody saw how long they take to start


def _threads(case: FixInputs) -> Fix | None:
    """Of a penstock loader, by what an image was measured to take with more of them at once."""
    now, path = case.now, case.access_paths.get("now")
    if not now.service_ms or case.loader.threads is None:
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


def _workers(case: FixInputs) -> Fix | None:
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


def _persistent(case: FixInputs) -> Fix | None:
    """Workers that stay from epoch to epoch: only the first one waits until they have started."""
    starts, loader = case.starts, case.loader
    if not starts.spared_ms or not loader.workers or loader.persistent_workers:
        return None
    predicted = max(case.step_ms - starts.spared_ms, case.now.compute_ms)
    first_ms = starts.wait_ms - starts.spared_ms * starts.steps
    waits = {"wait": ms_text(starts.wait_ms), "first": ms_text(first_ms)}
    why = message("persistent", workers=loader.workers, steps=starts.steps, **waits)
    return Fix("persistent workers", {"persistent_workers": True}, predicted, why)
