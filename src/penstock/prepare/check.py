"""`check_training`: is a configuration ready to train with? Configuration, files, one sample, a few steps.

findings = Findings()
for part in check_training(load_clip_config("deblur.yaml"), findings):
    print("\\n".join(part.lines))
findings.report().exit_code
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from penstock.errors import MissingExtra, StoreError
from penstock.formats.findings import Findings
from penstock.load.clips.config import ClipConfig, DataConfig
from penstock.load.clips.dataset import SpikeClips
from penstock.load.clips.loaders import open_clips
from penstock.plan.workers import split_workers
from penstock.prepare import CHECK_PARTS
from penstock.prepare.steps import StepTimes, advice, measure_steps
from penstock.stores.spike.check import check_row
from penstock.stores.spike.store import SpikeStore
from penstock.system import units
from penstock.system.limits import read_cpu_limit

_LOOKED_AT = 4  # sequences of a split of which a row is read


@dataclass(frozen=True)
class Part:
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
) -> Iterator[Part]:
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
            yield _steps(config, gpus, steps, step_ms)
        except MissingExtra as error:
            if len(parts) == 1:
                raise
            findings.add("info", "torch", "steps", f"not measured: {error.message}")


def _configuration(config: ClipConfig, findings: Findings, gpus: int) -> Part:
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
    return Part("configuration", lines, values)


# Files


def _splits(data: DataConfig) -> dict[str, str | None]:
    """Label → split, those that the training reads."""
    found: dict[str, str | None] = {"train": data.train_split}
    return {**found, "val": data.val_split} if data.val_split else found


def _files(config: ClipConfig, findings: Findings) -> Part:
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
        for sequence in store.sequences[::step]:
            check_row(sequence, sequence.frames // 2, findings)
        sequences = len(store.sequences)
        size = units.format_size(store.stored_bytes)
        lines.append(f"{label:<9} {sequences:,} sequences · {store.rows:,} images · {clips:,} clips · {size}")
        lines += [f"{'':<9} {note}" for note in store.notes]
        values[label] = {"sequences": sequences, "images": store.rows, "clips": clips, "notes": list(store.notes)}
    return Part("files", tuple(lines), values)


# One sample


def _sample(config: ClipConfig, findings: Findings) -> Part:
    lines, values = [], {}
    for label in _splits(config.data):
        clips, facts = look_at_sample(config, label)
        for name, each in facts.items():
            lines.append(f"{label:<9} {name:<10} {each}")
        values[label] = {name: asdict(each) for name, each in facts.items()}
        _judge(facts, clips, findings)
    return Part("sample", tuple(lines), values)


def look_at_sample(config: ClipConfig, label: str = "train") -> tuple[SpikeClips, dict[str, ArrayFacts]]:
    """The clips of "train" or "val", and the arrays of the first one as a training gets them."""
    clips = open_clips(config, is_training=label == "train", output="numpy")
    sample = {name: np.asarray(each) for name, each in clips[0].items()}
    return clips, {name: _facts(each) for name, each in sample.items() if each.ndim > 1}


def _facts(array: Any) -> ArrayFacts:
    above = float((array > 0).mean())
    return ArrayFacts(array.shape, str(array.dtype), float(array.min()), float(array.max()), above)


def _judge(facts: dict[str, ArrayFacts], clips: SpikeClips, findings: Findings) -> None:
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


# Steps


def _steps(config: ClipConfig, gpus: int | None, steps: int, step_ms: float | None) -> Part:
    lines: list[str] = []
    times = measure_steps(config, gpus=gpus, steps=steps, step_ms=step_ms, log=lines.append)
    lines += [f"{label:<9} {text}" for label, text in _step_rows(times)]
    verdict, knob = advice(times, config)
    lines += [f"{'verdict':<9} {verdict}", *([f"{'change':<9} {knob}"] if knob else [])]
    return Part("steps", tuple(lines), {**asdict(times), "verdict": verdict, "change": knob})


def _step_rows(times: StepTimes) -> Iterator[tuple[str, str]]:
    step = "as fast as it can" if times.step_ms is None else f"with a step of {times.step_ms:g} ms"
    yield (
        "steps",
        f"{times.steps:,} batches {step} · data_time={times.data_ms:.1f}ms, {times.slowest_ms:.1f}ms at most · "
        f"first batch after {times.first_s:.1f} s",
    )
    share = f"{times.cpu_share:.0%} of {times.cpus:g} CPUs, all programs of the machine {times.machine_share:.0%}"
    yield "cpu", f"{share} · {times.workers} workers per GPU"
    yield (
        "memory",
        f"{units.format_bytes(times.grown_bytes)} more in all processes · predicted "
        f"{units.format_bytes(times.predicted_bytes)} for training and validation",
    )


def whole_images(config: ClipConfig) -> ClipConfig:
    """The same without a crop and without turning: what the files hold."""
    return replace(config, data=replace(config.data, crop_size=None, augment=False))
