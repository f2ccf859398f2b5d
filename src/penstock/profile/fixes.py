"""What would make the step shorter: each change that applies, with the step time that the model predicts for it.

Nothing here is a constant from a table: what a copy, a scaled decode or a read takes was measured on the user's own
rows (`Way`), and a change for which nothing was measured comes without a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.profile.case import CLOSE, OTHER, Case, Fix, Starts, rounds_of
from penstock.profile.model import DECODE, READS, SAMPLES, Situation
from penstock.profile.subject import Way
from penstock.profile.words import Said, said
from penstock.units import format_bytes

_WORTH = 0.02  # of the step: a change that wins less is not listed
_KEPT_FREE = 0.1  # of the memory that is available: a loader that takes the last of it is no fix
_VIEW_OVERHEAD = 1.001  # flags and headers
_MOST_THREADS = 64
_WORKERS = "workers"
_MOST_PER_CPU = 8  # workers that wait for storage; the more there are, the more memory they take
_WAITS = 0.2  # of the work, must be waiting for more workers than CPUs to be of use
_LEAST_ROUNDS = 2  # that a pass fills the queues of all workers: of more of them it would use only the beginnings
_SHORT_PASS_MS = 10_000.0  # then workers had better stay, where nobody saw how long they take to start
_HALF = 2  # of the bandwidth that twice the threads would bring, must come for a storage not to be called the limit


def bandwidth_of(ways: Mapping[str, Way], threads: int) -> float | None:
    """Bytes per second that the storage gives at most; None where more threads still get more, or it hardly waits."""
    read = ways.get("read")
    if read is None or read.stored_bytes <= 0:
        return None
    more = max(read.ms_by_threads)
    waits = read.ms(threads) > 2 * read.cpu_ms + 0.2
    if more <= threads or not waits:
        return None
    rate = {count: count * read.stored_bytes / read.ms(count) * 1e3 for count in (threads, more)}
    gain, asked = rate[more] / rate[threads] - 1, more / threads - 1
    return max(rate.values()) if gain < asked / _HALF / 2 else None


def fixes_for(case: Case) -> tuple[Fix, ...]:
    """All that apply, the best first; those that alter the training last."""
    makers: tuple[Callable[[Case], Fix | None], ...] = (
        _threads, _filling, _view_in_ram, _view_on_disk, _scaled, _gpu_decode, _fewer_columns, _storage, _batch, _amp,
        _decode_once,
    )  # fmt: skip
    found = [_with_starts(fix, case.starts) for maker in makers if (fix := maker(case)) is not None]
    staying = _persistent(case)
    found += [] if staying is None else [staying]
    limit = case.step_ms * (1 - _WORTH)
    worth = [fix for fix in found if fix.predicted_step_ms is None or fix.per_batch_ms <= limit]
    return tuple(sorted(worth, key=_rank))


def _with_starts(fix: Fix, starts: Starts) -> Fix:
    """The model is of the steady state; passes begin as before, but with other workers, which is in their number."""
    if fix.predicted_step_ms is None or fix.name == _WORKERS:
        return fix
    return replace(fix, predicted_step_ms=fix.predicted_step_ms + starts.per_step_ms * fix.batch_factor)


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


def _rank(fix: Fix) -> tuple[bool, float, int]:
    return fix.alters_training, fix.per_batch_ms, _trouble(fix)


def _trouble(fix: Fix) -> int:
    order = ("persistent workers", "threads", _WORKERS, "wait for the view", "view in RAM", "view on disk",
             "scaled decode", "decode on the GPU")  # fmt: skip
    return order.index(fix.name) if fix.name in order else len(order)


# Threads and workers


def _threads(case: Case) -> Fix | None:
    now = case.now
    if not case.is_input_bound or not now.service_ms or now.hand_over_ms:
        return None
    if not {"threads", "workers"} & case.told.keys():
        return None  # nobody knows what made the batches, nor with how many
    way = case.ways.get("now")
    if way is not None and case.hit_share < 1:
        return _measured_threads(case, way)
    more = _useful(case)
    if more <= now.threads:
        return None
    changed = replace(now, threads=more)
    if more > now.cores:
        why = said("waiting work", service=now.service_ms, cpu=now.cpu_ms, more=more, cores=now.cores)
    else:
        why = said("shared work", more=more, cores=now.cores, service=now.service_ms)
    if "workers" in case.told:
        return _workers(case, changed, why)
    return Fix("threads", {"threads": more}, changed.step_ms, why)


def _workers(case: Case, changed: Situation, why: Said) -> Fix:
    """The more there are, the longer they take to start: where that shows, they stay from pass to pass."""
    had = bool(case.told.get("persistent_workers"))
    stays = had or _starts_matter(case, changed)
    change: dict[str, Any] = {"num_workers": changed.threads}
    if stays and not had:
        change["persistent_workers"] = True
        why += said("and stay")
    why += said("of a stream") if case.told.get("is_stream") else ""
    return Fix(_WORKERS, change, changed.step_ms + _start_ms(case, changed, stays), why)


def _starts_matter(case: Case, changed: Situation) -> bool:
    if case.starts.steps and case.now.threads:
        return _restart_ms(case, changed) > _WORTH * changed.step_ms
    return float(case.told.get("batches") or math.inf) * changed.step_ms < _SHORT_PASS_MS


def _restart_ms(case: Case, changed: Situation) -> float:
    """Of a step: what starting so many workers anew for every pass costs."""
    return case.starts.spared_ms * changed.threads / max(case.now.threads, 1)


def _start_ms(case: Case, changed: Situation, stays: bool) -> float:
    """Of a step: what the beginning of a pass costs.

    All workers begin at once and have their first batches at the same time, so the step then computes for as many while
    the next are made: either this is all that the pass takes longer, or, computing for longer, the first batch alone.
    """
    steps = case.starts.steps or float(case.told.get("batches") or 0)
    if not steps:
        return 0.0
    first_ms = case.starts.wait_ms - case.starts.spared_ms * steps
    beyond_ms = max(first_ms - changed.service_ms, 0.0)
    begins_ms = min(changed.service_ms, changed.threads * changed.compute_ms) + beyond_ms
    return begins_ms / steps + (0.0 if stays else _restart_ms(case, changed))


def _measured_threads(case: Case, way: Way) -> Fix | None:
    """Of the numbers of threads that were measured, the smallest that gives (nearly) the shortest step."""
    now = case.now
    steps = {
        more: replace(now, threads=more, service_ms=now.service_ms * way.ms(more) / way.ms(now.threads)).step_ms
        for more in sorted(way.ms_by_threads)
        if more > now.threads
    }
    if not steps:
        return None
    more = next(each for each, ms in steps.items() if ms <= min(steps.values()) * (1 + _WORTH))
    why = said("measured threads", more=more, then=way.ms(more), now=way.ms(now.threads))
    return Fix("threads", {"threads": more}, steps[more], why)


def _useful(case: Case) -> int:
    """Threads until something else binds; of workers no more than a pass has work for."""
    wanted = _wanted(case)
    if "workers" not in case.told:
        return wanted
    rounds = rounds_of(case.told, 1)
    return wanted if math.isinf(rounds) else min(wanted, math.ceil(rounds / _LEAST_ROUNDS))


def _wanted(case: Case) -> int:
    """Up to the CPUs, beyond them only as far as work is known to be waiting."""
    now = case.now
    if not case.told.get("is_cpu_known"):
        return min(now.cores, _MOST_THREADS)
    others = [ms for name, ms in now.bounds_ms.items() if name != "threads"]
    target = max(*others, max(now.compute_ms, now.beside_ms) / now.unexplained, 1e-3)
    wanted = math.ceil(now.service_ms / target - 0.05)
    waits_ms = now.service_ms - now.cpu_ms - float(case.told.get("queued_ms") or 0.0)
    if waits_ms < _WAITS * now.service_ms:
        return min(wanted, now.cores, _MOST_THREADS)
    most = min(_MOST_PER_CPU * now.cores, _MOST_THREADS)
    each, left = case.told.get("worker_bytes"), case.told.get("memory_available_bytes")
    if each and left is not None:
        most = min(most, now.threads + int(left * (1 - _KEPT_FREE) / each))
    return min(wanted, most)


def _persistent(case: Case) -> Fix | None:
    """Workers that stay from epoch to epoch: only the first one waits until they have started."""
    starts, told = case.starts, case.told
    if not starts.spared_ms or not told.get("workers") or told.get("persistent_workers"):
        return None
    predicted = max(case.step_ms - starts.spared_ms, case.now.compute_ms)
    first = starts.wait_ms - starts.spared_ms * starts.steps
    waits = {"wait": _time(starts.wait_ms), "first": _time(first)}
    why = said("persistent", workers=told["workers"], steps=starts.steps, **waits)
    return Fix("persistent workers", {"persistent_workers": True}, predicted, why)


def _time(ms: float) -> str:
    return f"{ms / 1e3:.1f} s" if ms >= 1000 else f"{ms:.0f} ms"


def _decode_once(case: Case) -> Fix | None:
    """For a data set of the user's own: nothing of it can be measured here, but what helps against decoding is known.

    Where the data set says nothing of its stages, a sample that CPUs work on may well be decoding.
    """
    if "workers" not in case.told or not case.waits_between or not case.stages:
        return None
    now, leading = case.now, case.stages[0].name
    ready_ms = now.service_ms - float(case.told.get("queued_ms") or 0.0)
    works = bool(case.told.get("is_cpu_known")) and now.cpu_ms > 0.5 * ready_ms
    if leading != DECODE and not (leading == SAMPLES and works):
        return None
    why = said("decode once", if_pictures="" if leading == DECODE else said("if pictures"))
    return Fix("decode once", {}, None, why)


# Views


def _viewable(case: Case) -> list[Mapping[str, Any]]:
    return [each for each in case.pictures if each["view_row_bytes"] and not each["on_device"]]


def _needed_bytes(pictures: Sequence[Mapping[str, Any]]) -> int:
    return int(sum(each["view_row_bytes"] * each["rows"] for each in pictures) * _VIEW_OVERHEAD) + (len(pictures) << 15)


def _with_hits(case: Case, way: Way | None, share: float) -> float | None:
    """The step when a view answers for `share` of the pictures: the hit mix of copies and what is made now.

    None where nobody measured what a copy takes.
    """
    if way is None:
        return None
    now = case.now
    copy_ms, copy_cpu = way.ms(now.threads) * case.per_batch, way.cpu_ms * case.per_batch
    missed = max(1 - case.hit_share, 1e-9)
    made = max(case.picture_ms - case.hit_share * copy_ms, 0.0) / missed  # if every picture had to be made
    rest = max(now.service_ms - case.picture_ms, 0.0)
    cpu = now.cpu_ms / now.service_ms if now.service_ms else 1.0
    changed = replace(
        now,
        service_ms=rest + share * copy_ms + (1 - share) * made,
        cpu_ms=rest + share * copy_cpu + (1 - share) * made * cpu,
        read_bytes=now.read_bytes * (1 - share) / missed,
    )
    return changed.step_ms


def _filling(case: Case) -> Fix | None:
    """A view that is being filled answers for more in the next epoch, and nothing has to be done."""
    views = [each for each in _viewable(case) if each["view"]]
    if not case.is_input_bound or not views or len(views) < len(_viewable(case)):
        return None
    share = sum(each["view"]["capacity"] for each in views) / max(sum(each["rows"] for each in views), 1)
    where = views[0]["view"]["where"]
    way = case.ways.get(where)
    if share <= case.hit_share + 0.02:
        return None
    filled = sum(each["view"]["filled"] for each in views)
    places = sum(each["view"]["capacity"] for each in views)
    state = said("view is filled") if filled >= places else said("view is being filled", filled=filled)
    why = said("filling", places=places, state=state, share=share)
    return Fix("wait for the view", {}, _with_hits(case, way, share), why, needs_filling=True)


def _view_in_ram(case: Case) -> Fix | None:
    pictures, way = _viewable(case), case.ways.get("ram")
    if not case.is_input_bound or not pictures:
        return None
    have = [each["view"] for each in pictures if each["view"] and each["view"]["where"] == "ram"]
    needed, held = _needed_bytes(pictures), sum(view["bytes"] for view in have)
    left = int(case.told["memory_left_bytes"])
    change: dict[str, Any] = {"view": "ram"}
    share, why = 1.0, said("pictures in RAM", needed=format_bytes(needed))
    if needed > left:
        usable = int(case.told["memory_available_bytes"] * (1 - _KEPT_FREE))
        wanted = case.told["memory_bytes"] - left + needed
        if wanted <= usable:
            change["memory"] = wanted
            why += said("needs memory", wanted=format_bytes(wanted))
        else:
            share = left / needed
            why += said("does not fit", left=format_bytes(left), share=share)
    if held and share <= case.hit_share + 0.02:
        return None
    if len(have) == len(pictures) and "memory" not in change:
        return None  # it is there already; `_filling` speaks of it
    why += said("not measured") if way is None else said("copy takes", copy=way.ms(case.now.threads))
    return Fix("view in RAM", change, _with_hits(case, way, share), why + said("fills"), needs_filling=True)


def _view_on_disk(case: Case) -> Fix | None:
    pictures, way = _viewable(case), case.ways.get("disk")
    if not case.is_input_bound or not pictures or any(each["view"] for each in pictures):
        return None
    needed, free = _needed_bytes(pictures), case.told.get("cache_free_bytes")
    if free is None or needed > free * (1 - _KEPT_FREE):
        return None
    if way is None and case.ways:
        return None  # others could be measured, this one not: nothing may be written there
    why = said("pictures on disk", needed=format_bytes(needed), free=format_bytes(free))
    why += said("not measured") if way is None else said("from disk takes", copy=way.ms(case.now.threads))
    predicted = _with_hits(case, way, 1.0)
    return Fix("view on disk", {"view": "disk"}, predicted, why + said("fills and stays"), needs_filling=True)


# Decoding


def _scaled(case: Case) -> Fix | None:
    able = [each for each in case.pictures if each["can_scale"]]
    if not case.is_input_bound or not able:
        return None
    scaled, exact, read = (case.ways.get(name) for name in ("scaled", "now", "read"))
    if scaled is None or exact is None:
        return Fix("scaled decode", {"exact": False}, None, said("nothing measured"), CLOSE)
    reading = read.cpu_ms if read is not None else 0.0
    # Of CPU time: decoding waits for nothing, and neighbours on the machine do not change it.
    ratio = max(scaled.cpu_ms - reading, 1e-6) / max(exact.cpu_ms - reading, 1e-6)
    saved = case.stage_ms(DECODE) * (1 - ratio)
    now = case.now
    cpu = max(now.cpu_ms - saved, 0.0)
    changed = replace(now, service_ms=max(now.service_ms - saved, 0.0), cpu_ms=cpu)
    why = said("scaled", ratio=ratio, pictures=scaled.pictures)
    return Fix("scaled decode", {"exact": False}, changed.step_ms, why, CLOSE)


def _gpu_decode(case: Case) -> Fix | None:
    jpegs = [each for each in case.pictures if each["is_jpeg"] and not each["on_device"]]
    if not case.is_input_bound or not jpegs or not case.told.get("cuda"):
        return None
    if case.told.get("resize", "linear") != "linear":
        return None  # the device knows no other
    way = case.ways.get("gpu")
    device = case.told["device"] if case.told["device"] != "cpu" else "cuda"
    change = {"device": device, "gpu_decode": True, "view": "off"}
    if way is None:
        return Fix("decode on the GPU", change, None, said("nvjpeg not measured"), CLOSE)
    now = case.now
    read = case.ways.get("read")
    reading = (read.ms(now.threads) if read is not None else 0.0) * case.per_batch
    rest = max(now.service_ms - case.picture_ms, 0.0)
    changed = replace(now, service_ms=rest + reading, cpu_ms=rest + reading)
    on_device = way.ms(1) * case.per_batch  # on a stream of its own, beside the step's kernels
    step = max(changed.step_ms, on_device)
    return Fix("decode on the GPU", change, step, said("nvjpeg", ms=way.ms(1)), CLOSE)


def _fewer_columns(case: Case) -> Fix | None:
    if not case.is_input_bound or len(case.pictures) < 2 or not case.picture_ms:
        return None
    total = sum(each["stored"][0] * each["stored"][1] * each["steps"] for each in case.pictures)
    dearest = max(case.pictures, key=lambda each: each["stored"][0] * each["stored"][1] * each["steps"])
    part = dearest["stored"][0] * dearest["stored"][1] * dearest["steps"] / total
    now = case.now
    kept = 1 - part * case.picture_ms / now.service_ms
    changed = replace(now, service_ms=now.service_ms * kept, cpu_ms=now.cpu_ms * kept,
                      read_bytes=now.read_bytes * (1 - part))  # fmt: skip
    why = said("fewer columns", column=dearest["column"], part=part)
    return Fix("fewer columns", {}, changed.step_ms, why, OTHER)


def _storage(case: Case) -> Fix | None:
    reading = case.stage_ms(*READS)
    now = case.now
    if not case.is_input_bound or not reading or reading < 0.5 * case.picture_ms or not now.read_bytes:
        return None
    waiting = max(now.service_ms - now.cpu_ms, 0.0)
    changed = replace(now, service_ms=now.service_ms - waiting, bandwidth=None)
    target = max(changed.step_ms, 1e-3)
    has = now.bandwidth or now.read_bytes / (case.step_ms / 1e3)
    needed = now.read_bytes / (target / 1e3)
    why = said("storage", has=has / 1e6, needed=needed / 1e6, batch=now.read_bytes / 1e6)
    return Fix("faster storage", {}, changed.step_ms, why)


# Computing


def _batch(case: Case) -> Fix | None:
    """Twice the samples per step: what is fixed in a step is paid half as often. Only with the user's step replayed."""
    cost = case.cost
    if case.is_input_bound or cost is None or cost.fixed_ms <= 0:
        return None
    size = int(case.told.get("batch_size") or 0)
    if not size:
        return None
    scale = case.now.compute_ms / cost.ms(size)  # beside a working loader it takes a little longer than alone
    compute = cost.ms(2 * size) * scale
    now = case.now
    changed = replace(now, service_ms=2 * now.service_ms, cpu_ms=2 * now.cpu_ms, read_bytes=2 * now.read_bytes,
                      compute_ms=compute)  # fmt: skip
    world = (case.told.get("options") or {}).get("shard")
    total = 2 * size * (world[1] if world else 1)
    half = cost.sizes[0]
    why = said("larger batch", low=cost.ms(half), half=half, high=cost.ms(size), size=size, fixed=cost.fixed_ms)
    return Fix("larger batch", {"batch_size": total}, changed.step_ms, why, OTHER, batch_factor=2.0)


def _amp(case: Case) -> Fix | None:
    if case.is_input_bound or not case.on_gpu or case.told.get("autocast"):
        return None
    return Fix("mixed precision", {}, None, said("mixed precision"), OTHER)
