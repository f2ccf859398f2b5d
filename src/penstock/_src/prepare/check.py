"""`check_training`: is a configuration ready to train with? Configuration, files, one sample, a few steps.

findings = Findings()
for part in check_training(load_clip_config("deblur.yaml"), findings):
    print("\\n".join(part.lines))
findings.report().exit_code
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from penstock._src.formats.findings import Findings
from penstock._src.load.clips import torch_loader
from penstock._src.load.clips.config import ClipConfig, DataConfig
from penstock._src.load.clips.dataset import SpikeClips
from penstock._src.load.clips.frames import image_bytes
from penstock._src.load.clips.loaders import clip_loaders, open_clips
from penstock._src.plan.workers import split_workers
from penstock._src.prepare import CHECK_PARTS
from penstock._src.stores.spike.check import check_row
from penstock._src.stores.spike.store import SpikeStore
from penstock._src.system import memory, units
from penstock._src.system.limits import read_cpu_limit
from penstock.errors import MissingExtra, StoreError

_LOOKED_AT = 4  # sequences of a split of which a row is read


@dataclass(frozen=True)
class CheckPart:
    """What one part of the check has found: lines for people, the same as plain values."""

    name: str
    lines: tuple[str, ...]
    values: dict[str, Any]


@dataclass(frozen=True)
class ArrayFacts:
    """One array of a sample."""

    shape: tuple[int, ...]
    dtype: str
    low: float
    high: float
    share_above_0: float

    def __str__(self) -> str:
        return f"{self.shape} {self.dtype}, {self.low:.3g}…{self.high:.3g}, {self.share_above_0:.1%} above 0"


def check_training(
    config: ClipConfig,
    findings: Findings,
    parts: Sequence[str] = CHECK_PARTS,
    *,
    gpus: int | None = None,
    steps: int = 20,
    step_ms: float | None = None,
) -> Iterator[CheckPart]:
    """The parts in their order, each when it is done; problems go into `findings`. An error ends the check.

    `gpus`: processes of the training on this machine. `steps`: how many are measured. `step_ms`: how long the training
    step takes, which is waited for in between; without it the loader runs as fast as it can.
    """
    if "configuration" in parts:
        yield _configuration(config, findings, gpus or 1)
    if "files" in parts:
        yield _files(config, findings)
    if "sample" in parts:
        yield _sample(config, findings)
    if "steps" in parts:
        try:
            yield _steps(config, findings, gpus, steps, step_ms)
        except MissingExtra as error:
            if len(parts) == 1:
                raise
            findings.add("info", "torch", "steps", f"not measured: {error.message}")


def _configuration(config: ClipConfig, findings: Findings, gpus: int) -> CheckPart:
    data, loader, train = config.data, config.dataloader, config.train
    cpus = read_cpu_limit()
    plan = split_workers(
        loader.total_workers, cpus=cpus.granted, gpus=gpus, train=loader.train_workers, val=loader.val_workers
    )
    for warning in plan.warnings:
        findings.add("info", "workers", "DATALOADER", warning)
    crop = "whole images" if data.crop_size is None else f"crop {data.crop_size}"
    way = f"from {data.voxel_cache_dirname}/*.npy" if data.use_precomputed_voxels else "counted while loading"
    cache = f"one of {data.cache_size_gb:g} GB for all workers" if data.use_ram_cache else "off"
    lines = (
        f"data      {data.root} · {data.train_split} and {data.val_split} · clips of {data.clip_len} images, {crop}",
        f"voxels    {data.num_voxel_bins} bins, {way}",
        f"cache     {cache}",
        f"workers   {loader.total_workers} → {plan.total} of {cpus.granted:g} CPUs ({cpus.ruled_by}): {plan.train} per "
        f"GPU × {plan.gpus} = {plan.train_total} · validation {plan.val} per GPU",
        f"prefetch  {loader.train_prefetch_factor} · validation {loader.val_prefetch_factor}",
        f"batch     {train.batch_size} × {train.gradient_accumulation_steps} accumulated · validation "
        f"{train.val_batch_size} · {train.epochs} epochs",
    )
    values = {
        "cpus": cpus.granted, "gpus": plan.gpus, "total_workers": plan.total, "train_workers": plan.train,
        "val_workers": plan.val, "train_prefetch_factor": loader.train_prefetch_factor,
        "val_prefetch_factor": loader.val_prefetch_factor, "cache_bytes": data.cache_bytes,
    }  # fmt: skip
    return CheckPart("configuration", lines, values)


# Files


def _splits(data: DataConfig) -> dict[str, str | None]:
    """Label → split, those that the training reads."""
    splits: dict[str, str | None] = {"train": data.train_split}
    return {**splits, "val": data.val_split} if data.val_split else splits


def _files(config: ClipConfig, findings: Findings) -> CheckPart:
    data = config.data
    lines, values = [], {}
    for label, split in _splits(data).items():
        store = SpikeStore(data.root, **data.store_options(split))
        clips = sum(max(each.frames - data.clip_len + 1, 0) for each in store.sequences)
        for reason, rows in store.skipped.items():
            message = f"{rows:,} rows left out: {reason}; first: {store.first_skipped[reason]}"
            findings.add("loss", reason, store.path, message)
        if not clips:
            raise StoreError(
                f"{store.path}: no sequence of {label} has the {data.clip_len} images of a clip",
                hint="a smaller DATA.CLIP_LEN, or longer sequences",
            )
        step = -(-len(store.sequences) // _LOOKED_AT)
        listed = Findings()
        for sequence in store.sequences[::step]:
            check_row(sequence, sequence.frames // 2, listed)
        for problem in listed.problems:  # what a training leaves out is a loss, and no error
            severity = "loss" if data.on_error == "skip" else problem.severity
            findings.add(severity, "content", problem.where, problem.message, problem.hint)
        sequences = len(store.sequences)
        size = units.format_size(store.stored_bytes)
        lines.append(f"{label:<9} {sequences:,} sequences · {store.rows:,} images · {clips:,} clips · {size}")
        lines += [f"{'':<9} {note}" for note in store.notes]
        values[label] = {"sequences": sequences, "images": store.rows, "clips": clips, "notes": list(store.notes)}
    return CheckPart("files", tuple(lines), values)


# One sample


def _sample(config: ClipConfig, findings: Findings) -> CheckPart:
    lines, values = [], {}
    for label in _splits(config.data):
        clips, facts = first_sample(config, label)
        for name, each in facts.items():
            lines.append(f"{label:<9} {name:<10} {each}")
        values[label] = {name: asdict(each) for name, each in facts.items()}
        _check_sample(facts, clips, findings)
        _count_skipped(clips.skipped, findings)
    return CheckPart("sample", tuple(lines), values)


def first_sample(config: ClipConfig, label: str = "train") -> tuple[SpikeClips, dict[str, ArrayFacts]]:
    """The clips of "train" or "val", and the arrays of the first one as a training gets them."""
    clips = open_clips(config, is_training=label == "train", output="numpy")
    sample = {name: np.asarray(each) for name, each in clips[0].items()}
    return clips, {name: _facts(each) for name, each in sample.items() if each.ndim > 1}


def _facts(array: Any) -> ArrayFacts:
    above = float((array > 0).mean())
    return ArrayFacts(array.shape, str(array.dtype), float(array.min()), float(array.max()), above)


def _check_sample(facts: dict[str, ArrayFacts], clips: SpikeClips, findings: Findings) -> None:
    """What a sample that can be trained on looks like."""
    where = clips.where(0)
    for name in ("blur", "sharp"):
        if name not in facts:
            findings.add("info", "sharp", where, f"there are no images {name!r}: nothing to compare an output with")
        elif facts[name].low == facts[name].high:
            findings.add("loss", "images", where, f"every pixel of {name} is {facts[name].low:g}")
    spikes = facts.get("spike_vox") or facts["spike_packed"]
    if not spikes.share_above_0:
        findings.add("loss", "voxels", where, "the voxels are all zero", f"penstock doctor {clips.store.path}")


def _count_skipped(skipped: Sequence[str], findings: Findings) -> None:
    for text in skipped:
        findings.add("loss", "clips left out", "", f"a clip is left out: {text}")


# Steps


def _steps(config: ClipConfig, findings: Findings, gpus: int | None, steps: int, step_ms: float | None) -> CheckPart:
    lines: list[str] = []
    times = measure_steps(config, gpus=gpus, steps=steps, step_ms=step_ms, log=lines.append)
    _count_skipped(times.skipped, findings)
    lines += [f"{label:<9} {text}" for label, text in _step_rows(times)]
    verdict, knob = advice(times)
    lines += [f"{'verdict':<9} {verdict}", *([f"{'change':<9} {knob}"] if knob else [])]
    return CheckPart("steps", tuple(lines), {**asdict(times), "verdict": verdict, "change": knob})


def _step_rows(times: StepTimes) -> Iterator[tuple[str, str]]:
    step = "as fast as it can" if times.step_ms is None else f"with a step of {times.step_ms:g} ms"
    yield (
        "steps",
        f"{times.steps:,} batches {step} · data_time={times.data_ms:.1f}ms, {times.slowest_ms:.1f}ms at most · "
        f"first batch after {times.first_s:.1f} s",
    )
    share = f"{times.cpu_share:.0%} of {times.cpus:g} CPUs"
    yield "cpu", f"{share} · {times.workers} workers per GPU"
    yield (
        "memory",
        f"{units.format_bytes(times.grown_bytes)} more in all processes · predicted "
        f"{units.format_bytes(times.predicted_bytes)} for training and validation",
    )


_BUSY = 0.85  # of the CPUs granted: from here on more workers have nothing to run on
_UNNOTICED = 0.05  # of a step: a wait that a training does not notice


@dataclass(frozen=True)
class StepTimes:
    """What was measured, after every worker had given its first batch."""

    steps: int
    step_ms: float | None  # the training step that was waited for in between
    data_ms: float  # the mean wait for a batch
    slowest_ms: float
    first_s: float  # until the first batch, workers started
    cpu_share: float  # of the CPUs granted, by all processes of the check
    cpus: float
    gpus: int
    workers: int  # of one GPU's process
    grown_bytes: int
    predicted_bytes: int
    images_bytes: int  # all images of the set, decoded
    cache_bytes: int
    skipped: tuple[str, ...] = ()  # clips that could not be read, with `DATA.ON_ERROR: skip`


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
        batches = itertools.chain.from_iterable(itertools.repeat(loaders.train))
        next(batches)
        first_s = time.perf_counter() - began
        for _ in range(loaders.plan.train):
            next(batches)
        cpu_s, began = _cpu_seconds(), time.perf_counter()
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
            cpus=cpus,
            gpus=loaders.plan.gpus,
            workers=loaders.plan.train,
            grown_bytes=max(memory.tree_pss_bytes() - before_bytes, 0),
            predicted_bytes=loaders.predicted_bytes,
            images_bytes=sum(int(image_bytes(store).sum()) for store in stores),
            cache_bytes=loaders.memory.cache_bytes,
            skipped=tuple(loaders.skipped),
        )


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


def advice(times: StepTimes) -> tuple[str, str | None]:
    """What binds, in one sentence, and the key to change; None where nothing has to be changed."""
    pace = f"a batch every {times.data_ms:.1f} ms"
    if times.step_ms is None:
        verdict = f"the loader gives {pace}: a training step that takes longer does not wait for it"
        return verdict, f"to make it faster: {_faster(times)}"
    share = times.data_ms / (times.step_ms + times.data_ms)
    if share <= _UNNOTICED:
        return f"compute-bound: the step of {times.step_ms:g} ms waits {times.data_ms:.1f} ms ({share:.0%})", None
    verdict = f"input-bound: the step of {times.step_ms:g} ms waits {times.data_ms:.1f} ms more ({share:.0%})"
    return verdict, _faster(times)


def _faster(times: StepTimes) -> str:
    """The key that makes loading faster, by what is short."""
    share = f"CPU use {times.cpu_share:.0%}, {times.workers} workers per GPU"
    if times.cpu_share < _BUSY and times.workers * times.gpus < times.cpus:
        return f'{share}: DATALOADER.TOTAL_WORKERS: "cpu*0.9", or as many as there are CPUs'
    if times.cache_bytes < times.images_bytes:
        needed_gb = math.ceil(times.images_bytes / 1e8) / 10
        return f"{share}: DATA.USE_RAM_CACHE: true and CACHE_SIZE_GB: {needed_gb:g} keep every image decoded"
    return f"{share}: later epochs come from the cache; DATA.DTYPE: uint8 hands out bytes"
