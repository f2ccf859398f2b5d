"""A few steps of a training without its model: what a batch takes, CPU use, memory, and what to change."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from penstock.load.clips import torch_loader
from penstock.load.clips.config import ClipConfig
from penstock.load.clips.frames import image_bytes
from penstock.load.clips.loaders import ClipLoaders, clip_loaders
from penstock.plan.workers import split_workers
from penstock.system import memory, units
from penstock.system.limits import read_cpu_limit

_BUSY = 0.85  # of the CPUs granted: from here on more workers have nothing to run on
_UNNOTICED = 0.05  # of a step: a wait that a training does not notice


@dataclass(frozen=True)
class StepTimes:
    """What was measured, after every worker had given its first batch."""

    steps: int
    step_ms: float | None
    """The training step that was waited for in between."""
    data_ms: float
    """The mean wait for a batch."""
    slowest_ms: float
    first_s: float
    """Until the first batch, workers started."""
    cpu_share: float
    """Of the CPUs granted, by all processes of the check."""
    machine_share: float
    """How busy the CPUs of the machine were, by whatever."""
    cpus: float
    gpus: int
    workers: int
    """Of one GPU's process."""
    grown_bytes: int
    predicted_bytes: int
    images_bytes: int
    """All images of the set, decoded."""
    cache_bytes: int


def measure_steps(
    config: ClipConfig,
    *,
    gpus: int | None = None,
    steps: int = 20,
    step_ms: float | None = None,
    log: Callable[[str], object] | None = None,
) -> StepTimes:
    """Take batches as a training does; `step_ms` is slept between two, since a GPU's step leaves the CPUs alone."""
    torch_loader.require_torch()  # what libraries take is no memory of loading
    import cv2  # noqa: F401

    before_bytes = memory.tree_pss_bytes()
    with clip_loaders(config, gpus=gpus, log=log) as loaders:
        began = time.perf_counter()
        batches = _endless(loaders)
        next(batches)
        first_s = time.perf_counter() - began
        for _ in range(loaders.plan.train):
            next(batches)
        cpu_s, busy, began = _cpu_seconds(), _Busy(), time.perf_counter()
        waits = [_wait_for(batches, step_ms) for _ in range(steps)]
        took_s, cpu_s = time.perf_counter() - began, _cpu_seconds() - cpu_s
        cpus = read_cpu_limit().granted
        stores = [each.store for each in (loaders.train_clips, loaders.val_clips) if each is not None]
        return StepTimes(
            steps=steps,
            step_ms=step_ms,
            data_ms=sum(waits) / len(waits),
            slowest_ms=max(waits),
            first_s=first_s,
            cpu_share=cpu_s / took_s / cpus,
            machine_share=busy.share(),
            cpus=cpus,
            gpus=loaders.plan.gpus,
            workers=loaders.plan.train,
            grown_bytes=max(memory.tree_pss_bytes() - before_bytes, 0),
            predicted_bytes=loaders.predicted_bytes,
            images_bytes=sum(int(image_bytes(store).sum()) for store in stores),
            cache_bytes=loaders.memory.cache_bytes,
        )


def _endless(loaders: ClipLoaders) -> Iterator[Any]:
    while True:
        yield from loaders.train


def _wait_for(batches: Iterator[Any], step_ms: float | None) -> float:
    """Milliseconds that the training loop waits for its next batch."""
    if step_ms is not None:
        time.sleep(step_ms / 1000)
    began = time.perf_counter()
    next(batches)
    return (time.perf_counter() - began) * 1000


def _cpu_seconds() -> float:
    """CPU time of this process and of those that it started and that live."""
    import psutil

    own = psutil.Process()
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


class _Busy:
    """How busy all CPUs of the machine are from here on."""

    def __init__(self) -> None:
        self._began = self._now()

    def share(self) -> float:
        idle, total = (after - before for after, before in zip(self._now(), self._began, strict=True))
        return 1 - idle / total if total else 0.0

    def _now(self) -> tuple[float, float]:
        import psutil

        times = psutil.cpu_times()
        return times.idle + getattr(times, "iowait", 0.0), sum(times)


def advice(times: StepTimes, config: ClipConfig) -> tuple[str, str | None]:
    """What binds, in one sentence, and the key to change; None where nothing has to be changed."""
    pace = f"a batch every {times.data_ms:.1f} ms"
    if times.step_ms is None:
        verdict = f"the loader gives {pace}: a training step that takes longer does not wait for it"
        return verdict, f"to make it faster: {_faster(times, config)}"
    share = times.data_ms / (times.step_ms + times.data_ms)
    if share <= _UNNOTICED:
        return f"compute-bound: the step of {times.step_ms:g} ms waits {times.data_ms:.1f} ms ({share:.0%})", None
    verdict = f"input-bound: the step of {times.step_ms:g} ms waits {times.data_ms:.1f} ms more ({share:.0%})"
    return verdict, _faster(times, config)


def _faster(times: StepTimes, config: ClipConfig) -> str:
    """The key that makes loading faster, by what is short."""
    share = f"CPU use {times.cpu_share:.0%}"
    if times.cpu_share < _BUSY <= times.machine_share:
        return (
            f"{share}, the machine's CPUs {times.machine_share:.0%}: other programs run on them; measure without these"
        )
    more = _more_workers(times)
    if times.cpu_share < _BUSY and more:
        return f"{share}, {times.workers} workers per GPU: DATALOADER.TOTAL_WORKERS: {more}"
    if times.cache_bytes < times.images_bytes:
        needed_gb = math.ceil(times.images_bytes / 1e8) / 10
        return f"{share}: DATA.USE_RAM_CACHE: true and CACHE_SIZE_GB: {needed_gb:g} keep every image decoded"
    if times.cpu_share < _BUSY:
        return f"{share}: it waits for the disk; later epochs come from the cache, or take a faster disk"
    if config.data.dtype == "float32":
        return f"{share}: DATA.DTYPE: uint8 hands out bytes, and `prepare` makes floats on the GPU"
    return f"{share}: every CPU works; later epochs come from the cache of {units.format_bytes(times.cache_bytes)}"


def _more_workers(times: StepTimes) -> str | None:
    """A value of TOTAL_WORKERS that gives more workers, and not more than there are CPUs."""
    for asked in ("cpu*0.9", int(times.cpus)):
        plan = split_workers(asked, cpus=times.cpus, gpus=times.gpus)
        if plan.train > times.workers and plan.train_total <= times.cpus:
            return f'"{asked}"' if isinstance(asked, str) else str(asked)
    return None
