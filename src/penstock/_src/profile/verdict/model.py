"""The model behind a verdict: what a batch takes the loader, what a step takes, and what a change would make of them.

A loader with w threads needs for a batch the longest of three times: S/w, where S is the service time (self times of
all its stages, summed over threads); (c·S + K)/cores, where c·S is the part of S that a CPU works and K what the step
itself takes of CPUs; and the bytes of a batch over the bandwidth of the storage. A step takes that, or its own
computing, whichever is longer: both go on at the same time. Without threads they do not, and a step takes the sum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock._src.profile.record.histogram import middle_ns
from penstock._src.profile.record.layout import OTHER
from penstock._src.profile.record.registry import AccessPath
from penstock._src.profile.record.steps import WAIT
from penstock._src.profile.report.figures import BETWEEN_STEPS, IDLE
from penstock._src.profile.stats import LoaderInfo, Snapshot, SpanStats, StepPoint, grouped

WAIT_SHARE = 0.05  # of the step: with less to win nobody would call it input-bound
DECODE = "03b_image_decode"
SAMPLES = "00_TOTAL_getitem"
READS = ("03a_read_one_camera", "03c_fetch_bytes")  # self times: what one camera takes beside its decoding
TO_DEVICE = "06_to_device"
LOADER_STAGES = frozenset({
    SAMPLES, "01_file_cache", "02_read_qpos", "03_read_images_total", DECODE, *READS, "03d_view_copy", "03e_view_put",
    "04_read_actions", "05_to_tensor_normalize", "05a_normalize_image", TO_DEVICE, "fetch", "collate",
})  # fmt: skip
"""The names of load/engine/stages.py, stores/caches.py, an attached DataLoader, which a user's own data set may use as
well; any other number before a name means nothing."""
# Waits, and what a sample's total holds already.
_NO_STAGES = (WAIT, IDLE, "plan_batch", OTHER)
_WARM_SHARE, _WARM_MOST = 0.1, 20  # of the first steps: files are opened, views mapped, kernels chosen
_OUTLIER = 8.0  # times the median: a checkpoint or a validation between two steps, if it is rare
_RARE = 0.03


@dataclass(frozen=True)
class StageTime:
    """One stage of the loader's work: its self time per batch, in all threads together."""

    name: str
    ms: float


@dataclass(frozen=True)
class StepTiming:
    """What a step takes in the steady state, and how much of it waits for data."""

    step_ms: float
    wait_ms: float
    steps: int

    @property
    def compute_ms(self) -> float:
        return max(self.step_ms - self.wait_ms, 0.0)


@dataclass(frozen=True)
class LoaderModel:
    """A loader and a step as the model sees them; `changed` ones are predictions."""

    service_ms: float
    threads: int
    cores: int
    compute_ms: float
    cpu_ms: float = 0.0
    """Of `service_ms`, what CPUs work: c·S. The rest waits for the storage."""
    compute_cpu_ms: float = 0.0
    read_bytes: float = 0.0
    bandwidth: float | None = None
    """Bytes per second that the storage gives at most; None: not known to bind."""
    unexplained: float = 1.0
    """What a batch took over what the model says, where that was seen."""

    @property
    def bounds_ms(self) -> dict[str, float]:
        """What a batch takes by each limit."""
        found = {
            "threads": self.service_ms / max(self.threads, 1),
            "cores": (self.cpu_ms + self.compute_cpu_ms) / max(self.cores, 1),
        }
        if self.bandwidth:
            found["storage"] = self.read_bytes / self.bandwidth * 1e3
        return found

    @property
    def batch_ms(self) -> float:
        """One batch every so often, if nobody kept the loader waiting."""
        return max(self.bounds_ms.values()) * self.unexplained

    @property
    def step_ms(self) -> float:
        return max(self.batch_ms, self.compute_ms) if self.threads else self.batch_ms + self.compute_ms


def step_timing_of(series: Sequence[StepPoint], count: int, total_ns: int, wait_ns: int) -> StepTiming:
    """The steady state: without the first steps, and without rare long breaks between steps."""
    warm = min(int(len(series) * _WARM_SHARE) + 1, _WARM_MOST) if len(series) > 3 else 0
    points = list(series[warm:])
    if not points:
        each = max(count, 1) * 1e6
        return StepTiming(total_ns / each, wait_ns / each, count)
    durations = sorted(point.duration_ns for point in points)
    longest = _OUTLIER * durations[len(durations) // 2]
    kept = [point for point in points if point.duration_ns <= longest]
    if len(points) - len(kept) > max(1, _RARE * len(points)):
        kept = points  # not rare: it belongs to the training
    each = len(kept) * 1e6
    return StepTiming(
        sum(point.duration_ns for point in kept) / each,
        sum(min(point.wait_ns, point.duration_ns) for point in kept) / each,
        len(kept),
    )


def _is_loading(span: SpanStats, snapshot: Snapshot) -> bool:
    """Whether its name, or that of a span around it, is a stage of loaders.

    A loader copies to the device in a thread of its own: where the loop does so itself, it is a part of the step.
    """
    names = {span.name, *span.path} & LOADER_STAGES
    if names == {TO_DEVICE}:
        return not any(each.name == WAIT and each.thread == span.thread for each in snapshot.spans)
    return bool(names)


def stages_of(snapshot: Snapshot, batches: float) -> tuple[StageTime, ...]:
    """The loader's stages by self time per batch, the largest first: by their names or their parents', and whatever
    else a process does that loads."""
    workers = {span.process for span in snapshot.spans if _is_loading(span, snapshot)} - {snapshot.process}
    spans = [span for span in snapshot.spans if span.process in workers or _is_loading(span, snapshot)]
    return _summed([span for span in spans if span.name not in _NO_STAGES], batches)


def compute_stages_of(snapshot: Snapshot, steps: float) -> tuple[StageTime, ...]:
    """The stages of the step itself in the steady state: on the device where that was timed, else as the host saw them.

    What the loader has done on the device is none of them, nor what goes on between steps or in other processes.
    """

    def computing(spans: Sequence[SpanStats]) -> list[SpanStats]:
        own = [span for span in spans if span.process == snapshot.process and not _is_loading(span, snapshot)]
        return [_steady(each) for each in own if each.name not in _NO_STAGES and not BETWEEN_STEPS.match(each.name)]

    return _summed(computing(snapshot.gpu) or computing(snapshot.spans), steps)


def _steady(span: SpanStats) -> SpanStats:
    """Without its first calls, in which kernels are chosen: rare, and many times as long as the others."""
    count = sum(calls for _, calls in span.histogram)
    kept = [pair for pair in span.histogram if middle_ns(pair[0]) <= _OUTLIER * span.p50_ns]
    usual = sum(calls for _, calls in kept)
    if not kept or not 0 < count - usual <= max(1, _RARE * count):
        return span
    part = sum(middle_ns(bucket) * calls for bucket, calls in kept) / usual * count / max(span.total_ns, 1)
    return replace(span, total_ns=round(span.total_ns * part), self_ns=round(span.self_ns * part))


def _summed(spans: Sequence[SpanStats], per: float) -> tuple[StageTime, ...]:
    stages = [
        StageTime(name, sum(each.self_ns for each in alike) / max(per, 1e-9) / 1e6)
        for name, alike in grouped(spans, lambda each: each.name).items()
    ]
    return tuple(sorted(stages, key=lambda stage: (-stage.ms, stage.name)))


# What changes are derived from


WORTH = 0.02  # of the step: a change that wins less is not listed
KEPT_FREE = 0.1  # of the memory that is available: a loader that takes the last of it is no fix


@dataclass(frozen=True)
class Fix:
    """One change. `predicted_step_ms` is None where nothing was measured that a number could come from."""

    name: str
    change: Mapping[str, Any]
    """Options of the loader; empty where the change is none of its."""
    predicted_step_ms: float | None
    why: str
    alters_training: bool = False
    batch_factor: float = 1.0
    """Samples of a step, over those of now."""
    needs_filling: bool = False
    """Whether it is as predicted only once a view is filled."""

    @property
    def per_batch_ms(self) -> float:
        """For as many samples as a step takes now; without a number it is last."""
        return math.inf if self.predicted_step_ms is None else self.predicted_step_ms / self.batch_factor


@dataclass(frozen=True)
class BatchCost:
    """What the user's own step takes for a batch of n samples: fixed_ms + n · sample_ms, from two sizes replayed."""

    fixed_ms: float
    sample_ms: float
    sizes: tuple[int, int]

    def ms(self, samples: float) -> float:
        return self.fixed_ms + samples * self.sample_ms


@dataclass(frozen=True)
class PassStarts:
    """What the beginnings of passes cost, all but the first of a loader: each waits for its first batch."""

    per_step_ms: float = 0.0
    """Beyond what any step waits, spread over all steps."""
    spared_ms: float = 0.0
    """Of that, what workers that stay from pass to pass would not need."""
    wait_ms: float = 0.0
    """For one first batch."""
    steps: float = 0.0
    """From one to the next."""


@dataclass(frozen=True)
class FixInputs:
    """Everything that fixes are derived from."""

    now: LoaderModel
    step_ms: float
    stages: tuple[StageTime, ...]
    loader: LoaderInfo
    access_paths: Mapping[str, AccessPath]
    hit_share: float
    """Of the images, those that a view answered for."""
    is_input_bound: bool
    cost: BatchCost | None = None
    on_gpu: bool = False
    starts: PassStarts = PassStarts()
    autocast: Any = None
    """Whether the step computes in mixed precision, where that was seen."""

    def stage_ms(self, *prefixes: str) -> float:
        return sum(stage.ms for stage in self.stages if stage.name.startswith(prefixes))

    @property
    def image_ms(self) -> float:
        """Of the service time, all that has to do with images."""
        return self.stage_ms("03")
