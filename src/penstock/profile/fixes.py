"""What would make the step shorter: each change that applies, with the step time that the model predicts for it.

Nothing here is a constant from a table: what a copy, a scaled decode or a read takes was measured on the user's own
rows (`Way`), and a change for which nothing was measured comes without a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.lazy import dataclass
from penstock.profile.model import DECODE, READS, Situation, Stage
from penstock.profile.subject import Way
from penstock.units import format_bytes

SAME, CLOSE, OTHER = "same batches", "nearly the same pictures", "another training"
_WORTH = 0.02  # of the step: a change that wins less is not listed
_KEPT_FREE = 0.1  # of the memory that is available: a loader that takes the last of it is no fix
_VIEW_OVERHEAD = 1.001  # flags and headers
_MOST_THREADS = 64
_HALF = 2  # of the bandwidth that twice the threads would bring, must come for a storage not to be called the limit


@dataclass(frozen=True)
class Fix:
    """One change. `predicted_step_ms` is None where nothing was measured that a number could come from."""

    name: str
    change: Mapping[str, Any]
    """Options of the loader; empty where the change is none of its."""
    predicted_step_ms: float | None
    why: str
    keeps: str = SAME
    batch_factor: float = 1.0
    """Samples of a step, over those of now."""
    needs_filling: bool = False
    """Whether it is as predicted only once a view is filled."""

    @property
    def per_batch_ms(self) -> float:
        """For as many samples as a step takes now; without a number it is last."""
        return math.inf if self.predicted_step_ms is None else self.predicted_step_ms / self.batch_factor

    def to_dict(self) -> dict[str, Any]:
        ms = None if self.predicted_step_ms is None else round(self.predicted_step_ms, 3)
        return {"name": self.name, "change": dict(self.change), "predicted_step_ms": ms, "why": self.why,
                "keeps": self.keeps, "batch_factor": self.batch_factor}  # fmt: skip


@dataclass(frozen=True)
class BatchCost:
    """What the user's own step takes for a batch of n samples: fixed_ms + n · sample_ms, from two sizes replayed."""

    fixed_ms: float
    sample_ms: float
    sizes: tuple[int, int]

    def ms(self, samples: float) -> float:
        return self.fixed_ms + samples * self.sample_ms


@dataclass(frozen=True)
class Case:
    """Everything that fixes are derived from."""

    now: Situation
    step_ms: float
    stages: tuple[Stage, ...]
    told: Mapping[str, Any]
    ways: Mapping[str, Way]
    hit_share: float
    """Of the pictures, those that a view answered for."""
    is_input_bound: bool
    cost: BatchCost | None = None
    on_gpu: bool = False

    @property
    def pictures(self) -> Sequence[Mapping[str, Any]]:
        found: Sequence[Mapping[str, Any]] = self.told.get("pictures") or ()
        return found

    def stage_ms(self, *prefixes: str) -> float:
        return sum(stage.ms for stage in self.stages if stage.name.startswith(prefixes))

    @property
    def picture_ms(self) -> float:
        """Of the service time, all that has to do with pictures."""
        return self.stage_ms("03")

    @property
    def per_batch(self) -> float:
        """Pictures of a batch, as they were made or copied; those asked for, where nobody counted."""
        return float(self.told.get("made_per_batch") or self.told.get("pictures_per_batch") or 0.0)


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
    """All that apply, the best first."""
    makers: tuple[Callable[[Case], Fix | None], ...] = (
        _threads, _filling, _view_in_ram, _view_on_disk, _scaled, _gpu_decode, _fewer_columns, _storage, _batch, _amp,
    )  # fmt: skip
    found = [fix for maker in makers if (fix := maker(case)) is not None]
    limit = case.step_ms * (1 - _WORTH)
    worth = [fix for fix in found if fix.predicted_step_ms is None or fix.per_batch_ms <= limit]
    return tuple(sorted(worth, key=_rank))


def best_of(fixes: Sequence[Fix], step_ms: float) -> Fix | None:
    """The one to recommend: what wins most and leaves the training as it is; of equal ones the least change."""
    numbered = [fix for fix in fixes if fix.predicted_step_ms is not None]
    open_to = [fix for fix in numbered if fix.keeps != OTHER and (fix.change or fix.needs_filling)]
    open_to = open_to or [fix for fix in numbered if fix.batch_factor != 1]
    if not open_to:
        return None
    least = min(fix.per_batch_ms for fix in open_to)
    return min((fix for fix in open_to if fix.per_batch_ms <= least + 0.02 * step_ms), key=_trouble)


def _rank(fix: Fix) -> tuple[float, int]:
    return fix.per_batch_ms, _trouble(fix)


def _trouble(fix: Fix) -> int:
    order = ("threads", "wait for the view", "view in RAM", "view on disk", "scaled decode", "decode on the GPU")
    return order.index(fix.name) if fix.name in order else len(order)


# Threads


def _threads(case: Case) -> Fix | None:
    now = case.now
    if not case.is_input_bound or not now.service_ms:
        return None
    is_workers = "workers" in case.told
    way = case.ways.get("now")
    if way is not None and case.hit_share < 1:
        more = max(way.ms_by_threads)
        if more <= now.threads:
            return None
        service = now.service_ms * way.ms(more) / way.ms(now.threads)
        said = f"with {more} at once a picture takes one of them {way.ms(more):.2f} ms, now {way.ms(now.threads):.2f}"
    else:
        more = min(now.cores, _MOST_THREADS)
        if more <= now.threads:
            return None
        service = now.service_ms
        said = f"{more} of the {now.cores} CPUs granted share {service:.1f} ms of work per batch; others may want them"
    changed = replace(now, threads=more, service_ms=service)
    if is_workers:
        return Fix("workers", {"num_workers": more}, changed.step_ms, said)
    return Fix("threads", {"threads": more}, changed.step_ms, said)


# Views


def _viewable(case: Case) -> list[Mapping[str, Any]]:
    return [each for each in case.pictures if each["view_row_bytes"] and not each["on_device"]]


def _needed_bytes(pictures: Sequence[Mapping[str, Any]]) -> int:
    return int(sum(each["view_row_bytes"] * each["rows"] for each in pictures) * _VIEW_OVERHEAD) + (len(pictures) << 15)


def _with_hits(case: Case, way: Way, share: float) -> float:
    """The step when a view answers for `share` of the pictures: the hit mix of copies and what is made now."""
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
    if way is None or share <= case.hit_share + 0.02:
        return None
    filled = sum(each["view"]["filled"] for each in views)
    places = sum(each["view"]["capacity"] for each in views)
    state = "are all filled now" if filled >= places else f"are being filled ({filled:,} so far)"
    said = f"its {places:,} places {state}: then {share:.0%} of the pictures are only copied"
    return Fix("wait for the view", {}, _with_hits(case, way, share), said, needs_filling=True)


def _view_in_ram(case: Case) -> Fix | None:
    pictures, way = _viewable(case), case.ways.get("ram")
    if not case.is_input_bound or not pictures or way is None:
        return None
    have = [each["view"] for each in pictures if each["view"] and each["view"]["where"] == "ram"]
    needed, held = _needed_bytes(pictures), sum(view["bytes"] for view in have)
    left = int(case.told["memory_left_bytes"])
    change: dict[str, Any] = {"view": "ram"}
    share, said = 1.0, f"{format_bytes(needed)} of pictures at the training size"
    if needed > left:
        usable = int(case.told["memory_available_bytes"] * (1 - _KEPT_FREE))
        wanted = case.told["memory_bytes"] - left + needed
        if wanted <= usable:
            change["memory"] = wanted
            said += f" need memory={format_bytes(wanted)}, which this machine has"
        else:
            share = left / needed
            said += f" do not fit: {format_bytes(left)} of the budget hold {share:.0%}"
    if held and share <= case.hit_share + 0.02:
        return None
    if len(have) == len(pictures) and "memory" not in change:
        return None  # it is there already; `_filling` speaks of it
    said += f"; a copy takes {way.ms(case.now.threads):.3f} ms; it fills during the first epoch"
    return Fix("view in RAM", change, _with_hits(case, way, share), said, needs_filling=True)


def _view_on_disk(case: Case) -> Fix | None:
    pictures, way = _viewable(case), case.ways.get("disk")
    if not case.is_input_bound or not pictures or way is None or any(each["view"] for each in pictures):
        return None
    needed, free = _needed_bytes(pictures), case.told.get("cache_free_bytes")
    if free is None or needed > free * (1 - _KEPT_FREE):
        return None
    said = (
        f"{format_bytes(needed)} in the cache directory ({format_bytes(free)} free); a picture from there "
        f"takes {way.ms(case.now.threads):.3f} ms; it fills during the first epoch and stays for later runs"
    )
    return Fix("view on disk", {"view": "disk"}, _with_hits(case, way, 1.0), said, needs_filling=True)


# Decoding


def _scaled(case: Case) -> Fix | None:
    able = [each for each in case.pictures if each["can_scale"]]
    if not case.is_input_bound or not able:
        return None
    scaled, exact, read = (case.ways.get(name) for name in ("scaled", "now", "read"))
    if scaled is None or exact is None:
        return Fix("scaled decode", {"exact": False}, None, "nothing could be measured here", CLOSE)
    reading = read.cpu_ms if read is not None else 0.0
    # Of CPU time: decoding waits for nothing, and neighbours on the machine do not change it.
    ratio = max(scaled.cpu_ms - reading, 1e-6) / max(exact.cpu_ms - reading, 1e-6)
    saved = case.stage_ms(DECODE) * (1 - ratio)
    now = case.now
    cpu = max(now.cpu_ms - saved, 0.0)
    changed = replace(now, service_ms=max(now.service_ms - saved, 0.0), cpu_ms=cpu)
    said = (f"JPEGs decoded at a fraction of their size: {ratio:.2f} of the time of a full decode on {scaled.pictures} "
            "pictures of yours; pixels differ a little from those of full decode and resize")  # fmt: skip
    return Fix("scaled decode", {"exact": False}, changed.step_ms, said, CLOSE)


def _gpu_decode(case: Case) -> Fix | None:
    jpegs = [each for each in case.pictures if each["is_jpeg"] and not each["on_device"]]
    if not case.is_input_bound or not jpegs or not case.told.get("cuda"):
        return None
    way = case.ways.get("gpu")
    device = case.told["device"] if case.told["device"] != "cpu" else "cuda"
    change = {"device": device, "gpu_decode": True, "view": "off"}
    if way is None:
        return Fix("decode on the GPU", change, None, "nvJPEG could not be measured here", CLOSE)
    now = case.now
    read = case.ways.get("read")
    reading = (read.ms(now.threads) if read is not None else 0.0) * case.per_batch
    rest = max(now.service_ms - case.picture_ms, 0.0)
    changed = replace(now, service_ms=rest + reading, cpu_ms=rest + reading)
    on_device = way.ms(1) * case.per_batch  # on a stream of its own, beside the step's kernels
    step = max(changed.step_ms, on_device)
    said = (f"nvJPEG takes {way.ms(1):.3f} ms for a picture of yours; it shares the GPU with the step, which costs the "
            "step something that this number leaves out")  # fmt: skip
    return Fix("decode on the GPU", change, step, said, CLOSE)


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
    said = (f"without {dearest['column']} (by its pixels {part:.0%} of the work on pictures), if the policy does not "
            "need it: Window(columns=[…])")  # fmt: skip
    return Fix("fewer columns", {}, changed.step_ms, said, OTHER)


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
    said = (f"the files are read at {has / 1e6:,.0f} MB/s; {needed / 1e6:,.0f} MB/s "
            f"({now.read_bytes / 1e6:.1f} MB per batch) would keep up with the rest")  # fmt: skip
    return Fix("faster storage", {}, changed.step_ms, said)


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
    said = (f"your step took {cost.ms(half):.1f} ms for {half} samples and {cost.ms(size):.1f} ms for {size}: "
            f"{cost.fixed_ms:.1f} ms are fixed, and a larger batch pays them less often; it is another training "
            "(learning rate), and takes more memory")  # fmt: skip
    return Fix("larger batch", {"batch_size": total}, changed.step_ms, said, OTHER, batch_factor=2.0)


def _amp(case: Case) -> Fix | None:
    if case.is_input_bound or not case.on_gpu:
        return None
    said = "bfloat16 autocast on the GPU; what it brings depends on the model: measure it (no number is made up here)"
    return Fix("mixed precision", {}, None, said, OTHER)
