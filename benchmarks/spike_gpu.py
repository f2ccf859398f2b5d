"""The training of examples/train_deblur.py on a GPU: does its step wait for data?

K 32, crop 256, clips of 5, images in the RAM cache, voxels made on the device, bfloat16. Beside it: the guide's batch 1
with 6 batches in a step, floats and voxels from the CPU, images decoded for every clip; and for each a batch that stays
on the device, which no loader can be quicker than. The data wait is that of whole epochs, their first batch included.
"""

from __future__ import annotations

import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from measure import Claim
from spike_data import Scene, repeat_rows, write_scene

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
ON_DEVICE = {"VOXELS": "device", "DTYPE": "uint8"}
CACHED = {"USE_RAM_CACHE": True, "CACHE_SIZE_GB": 12.0}
LARGE = {"BATCH_SIZE": 8}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "batch 8, voxels on the device, images cached": ({**ON_DEVICE, **CACHED}, LARGE, "<= 0.02"),
    "batch 6 × 1, voxels on the device, images cached": (
        {**ON_DEVICE, **CACHED}, {"BATCH_SIZE": 1, "GRADIENT_ACCUMULATION_STEPS": 6}, "<= 1",
    ),
    "batch 8, voxels and floats from the CPU, images cached": (CACHED, LARGE, "<= 1"),
    "batch 8, voxels on the device, images decoded every time": (ON_DEVICE, LARGE, "<= 1"),
}  # fmt: skip


def gpu_claims(
    directory: Path, *, is_quick: bool, device: str = "cuda", scene: Scene | None = None, crop_px: int = 256
) -> list[Claim]:
    """Train epochs in every way; the first one warms up and is not counted."""
    import torch

    sys.path.append(str(EXAMPLES))
    from deblur.ranks import Ranks

    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("--gpu needs torch with CUDA, and a GPU")
    scene = scene or Scene(sequences=1, rows=12, test_sequences=1)
    began = time.perf_counter()
    root = write_scene(directory / "clips", scene, threads=8)
    repeat_rows(root / "train", 600 if is_quick else 2019)  # 2,015 clips, as many as the guide has
    where = torch.cuda.get_device_name() if device == "cuda" else device
    print(f"{where}, torch {torch.__version__}; data made in {time.perf_counter() - began:.0f} s", flush=True)
    ranks = Ranks(0, 1, torch.device(device))
    check_voxels(root, ranks.device, crop_px)
    claims = []
    for name, (values, train, bar) in WAYS.items():
        config = {
            "SEED": 123,
            "DATA": {"ROOT": str(root), "CROP_SIZE": crop_px, "K": 32, **values},
            "TRAIN": {"MAX_GRAD_NORM": 1.0, **train},
        }
        is_claimed = bar == "<= 0.02"
        found = wait_share(config, ranks, directory, name, epochs=3 if is_claimed and not is_quick else 1)
        claims.append(Claim(f"data wait of the step, {name}", found, bar))
    return claims


def check_voxels(root: Path, device: Any, crop_px: int) -> None:
    """Voxels of the device are those of the CPU."""
    import torch

    import penstock

    found = []
    for values in (ON_DEVICE, {}):
        config = {
            "DATA": {"ROOT": str(root), "CROP_SIZE": crop_px, "VAL_SPLIT": None, **values},
            "DATALOADER": {"TOTAL_WORKERS": 0},
        }
        with penstock.clip_loaders(config, log=None) as loaders:
            batches = islice(loaders.train, 8)
            found.append([loaders.prepare(batch, device)["spike_vox"].cpu() for batch in batches])
    if not all(torch.equal(one, two) for one, two in zip(*found, strict=True)):
        raise SystemExit("voxels of the device are not those of the CPU")
    print("voxels made on the device equal those of the CPU", flush=True)


def wait_share(config: dict[str, Any], ranks: Any, out: Path, name: str, epochs: int) -> float:
    """The share of the time of all steps that is waiting for data."""
    from deblur.train import Settings, Trainer

    import penstock

    with penstock.clip_loaders(config, log=None) as loaders:
        trainer = Trainer(loaders, ranks, Settings(out, log_every=1 << 30))
        waited_s = took_s = 0.0
        steps = 0
        for epoch in range(epochs + 1):
            first_step = trainer.step
            began = time.perf_counter()
            trainer.train_epoch()
            trainer.epoch, trainer.taken = trainer.epoch + 1, 0
            _finish(ranks.device)
            if epoch:
                took_s += time.perf_counter() - began
                waited_s += trainer.log.data_s
                steps += trainer.step - first_step
        alone_ms = 1e3 * resident_step_s(trainer, min(steps, 50))
    step_ms, share = 1e3 * took_s / steps, waited_s / took_s
    print(
        f"{name}: step {step_ms:.1f} ms, waiting for data {1e3 * waited_s / steps:.2f} ms, {100 * share:.2f} %; "
        f"a batch that stays on the device: {alone_ms:.1f} ms; {loaders.plan.train} workers",
        flush=True,
    )
    return share


def resident_step_s(trainer: Any, steps: int) -> float:
    """A step on one batch that lies on the device already."""
    batch = trainer.loaders.prepare(next(iter(trainer.loaders.train)), trainer.ranks.device)
    batches = trainer.config.train.gradient_accumulation_steps
    _finish(trainer.ranks.device)
    began = time.perf_counter()
    for _ in range(steps):
        trainer.optimize(sum(trainer.backward(batch) for _ in range(batches)))
    _finish(trainer.ranks.device)
    return (time.perf_counter() - began) / steps


def _finish(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
