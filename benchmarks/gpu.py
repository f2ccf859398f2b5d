# ruff: noqa: E402
"""The loader on a GPU: images per second through nvJPEG and through the CPU, and the data wait of a policy's training.

    python benchmarks/gpu.py [--rows 6000] [--batches 300] [--steps 12] [--rounds 16]

Makes a LeRobot data set of three 480×640 JPEG cameras (MJPEG in MP4) with penstock's own writer; everything lies in the
page cache. Needs torch with CUDA and torchvision. The policy: ResNet-18 for each camera, a transformer encoder over
its tokens and a decoder for a chunk of 20 actions, bf16 autocast, AdamW, batch 64.

A step takes 10 % more or less from one second to the next. So the step alone and the step with each loader take short
turns, in one order and then in the other; each ratio is taken within a round, and their median counts.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Last, not first: torch asks for the standard library's `profile`, and a script beside this one has that name.
sys.path = [each for each in sys.path if each != str(Path(__file__).resolve().parent)]
sys.path.append(str(Path(__file__).resolve().parent))

import numpy as np
import torch
import torchvision
from measure import Claim, finish

import penstock
from penstock._src.conversion.commit.writer import DataSetWriter
from penstock._src.demo.scene import SceneCamera
from penstock._src.lerobot.features import Feature

CAMERAS = ("cam_h", "cam_l", "cam_r")
KEYS = [f"observation.images.{name}" for name in CAMERAS]
DISTINCT = 300
CHUNK = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--steps", type=int, default=12, help="of a turn")
    parser.add_argument("--rounds", type=int, default=16, help="of turns")
    parser.add_argument("--speed-rounds", type=int, default=5, help="of bare nvJPEG and loaders without a training")
    parser.add_argument("--only", default="", help="a part of the names of the ways that are trained with")
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, torchvision {torchvision.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        jpegs = make_set(Path(directory) / "set", args.rows)
        claims = [*speeds(Path(directory) / "set", jpegs, args), *training(Path(directory) / "set", args)]
    finish(claims)


def make_set(root: Path, rows: int) -> list[bytes]:
    """Ten episodes; the images repeat after 300 rows."""
    began = time.perf_counter()
    images = {name: list(SceneCamera(640, 480, seed).jpegs(DISTINCT, 30.0, 95)) for seed, name in enumerate(CAMERAS)}
    keys = {name: f"observation.images.{name}" for name in CAMERAS}
    features = [Feature(key, "video", (480, 640, 3), ("height", "width", "channels")) for key in keys.values()]
    names = tuple(f"joint_{number}" for number in range(16))
    features += [Feature("observation.state", "float32", (16,), names), Feature("action", "float32", (16,), names)]
    sample = np.zeros((480, 640, 3), np.uint8)
    with DataSetWriter(root, fps=30, features=tuple(features), robot_type="made", fsync=False) as writer:
        for number in range(10):
            count = rows // 10
            values = np.random.default_rng(number).standard_normal((count, 16)).astype(np.float32)
            with writer.episode(rows=count, task="hold still") as episode:
                for name, key in keys.items():
                    episode.video(key).append([images[name][(number + row) % DISTINCT] for row in range(count)])
                    episode.add_image_sample(key, sample)
                episode.write_rows({"observation.state": values, "action": values})
                episode.commit()
        writer.close()
    size = sum(map(len, images["cam_h"])) / DISTINCT
    took = time.perf_counter() - began
    print(f"made {rows:,} rows of three 480×640 cameras, {size / 1e3:.0f} KB an image, in {took:.0f} s")
    return images["cam_h"]


def bare_nvjpeg(jpegs: list[bytes], count: int) -> float:
    """Images per second of nvJPEG alone, bytes in memory, no resize."""
    data = [torch.from_numpy(np.frombuffer(jpegs[k % len(jpegs)], np.uint8).copy()) for k in range(count)]
    torchvision.io.decode_jpeg(data, device="cuda")
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        began = time.perf_counter()
        torchvision.io.decode_jpeg(data, device="cuda")
        torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return count / statistics.median(times)


def images_per_s(root: Path, batches: int, batch_size: int, **options: Any) -> tuple[float, tuple[str, ...]]:
    """Whole epochs, the first five batches not counted."""
    store = penstock.open(root)
    window = penstock.Window(columns=[*KEYS, "action", "observation.state"])
    with penstock.Loader(store, window, batch_size, device="cuda", memory="8GiB", view="off", **options) as loader:
        done, began = 0, 0.0
        while done < batches + 5:
            for _ in loader:
                done += 1
                if done == 5:
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                if done == batches + 5:
                    break
        torch.cuda.synchronize()
        return batches * batch_size * len(CAMERAS) / (time.perf_counter() - began), loader.notes


def speeds(root: Path, jpegs: list[bytes], args: argparse.Namespace) -> list[Claim]:
    """Bare nvJPEG and each way of the loader in turn; ratios are taken within a turn."""
    rates: dict[tuple[str, str], list[float]] = {}
    ways: dict[str, dict[str, Any]] = {"nvJPEG": {}, "CPU": {"gpu_decode": False}}
    for _ in range(args.speed_rounds):
        rates.setdefault(("nvJPEG", "bare"), []).append(bare_nvjpeg(jpegs, 3 * args.batch_size))
        for (way, options), engine in itertools.product(ways.items(), ("process", "thread")):
            batches = max(30, args.batches // (1 if way == "nvJPEG" else 3))
            rate, _ = images_per_s(root, batches, args.batch_size, engine=engine, **options)
            rates.setdefault((way, engine), []).append(rate)
    for (way, who), found in rates.items():
        each = ", ".join(f"{value:,.0f}" for value in found)
        print(f"{way}, {who}: {statistics.median(found):,.0f} images/s ({each})")
    quality(root)

    def over(way: str, other: str) -> float:
        pairs = zip(rates[way, "process"], rates[way, other], strict=True)
        return statistics.median(one / two for one, two in pairs)

    return [
        Claim("images/s through nvJPEG over bare nvJPEG", over("nvJPEG", "bare"), ">= 0.85"),
        Claim("images/s through nvJPEG", statistics.median(rates["nvJPEG", "process"]), ">= 12000"),
        Claim("images/s by CPU decode over the thread engine's", over("CPU", "thread"), ">= 0.95"),
        Claim("images/s by CPU decode, informational", statistics.median(rates["CPU", "process"]), ">= 0"),
    ]


def quality(root: Path) -> None:
    """How far the ways lie apart: the GPU's image and the CPU's scaled one against the CPU's exact one."""
    store = penstock.open(root)
    window = penstock.Window(columns=["observation.images.cam_h"])
    found = {}
    ways = {"exact": {"exact": True, "gpu_decode": False}, "scaled": {"gpu_decode": False}, "nvJPEG": {}}
    for name, options in ways.items():
        with penstock.Loader(store, window, 32, shuffle=False, device="cuda", view="off", **options) as loader:
            found[name] = next(iter(loader))["observation.images.cam_h"].float().cpu().clone()
    for name in ("scaled", "nvJPEG"):
        error = (found[name] - found["exact"]).square().mean().item()
        apart = (found[name] - found["exact"]).abs().max().item()
        psnr = 10 * np.log10(255**2 / error) if error else float("inf")
        print(f"{name} against exact: PSNR {psnr:.1f} dB, at most {apart:.0f} of 255 apart")


class Policy(torch.nn.Module):
    """ResNet-18 tokens of the cameras and the state, a transformer, a chunk of actions."""

    def __init__(self, cameras: int = 3, width: int = 512) -> None:
        super().__init__()
        self.cameras = cameras
        backbone = torchvision.models.resnet18(weights=None)
        self.backbone = torch.nn.Sequential(*list(backbone.children())[:-2])
        self.state = torch.nn.Linear(16, width)
        self.places = torch.nn.Parameter(torch.randn(1, cameras * 49 + 1, width) * 0.02)
        self.queries = torch.nn.Parameter(torch.randn(1, CHUNK, width) * 0.02)
        self.transformer = torch.nn.Transformer(width, 8, 4, 4, 3200, dropout=0.0, batch_first=True, norm_first=True)
        self.head = torch.nn.Linear(width, 16)

    def forward(self, images: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        count = len(state)
        tokens = self.backbone(images).flatten(2).transpose(1, 2)
        tokens = tokens.reshape(self.cameras, count, 49, -1).transpose(0, 1).reshape(count, self.cameras * 49, -1)
        tokens = torch.cat([self.state(state)[:, None], tokens], dim=1) + self.places
        return self.head(self.transformer(tokens, self.queries.expand(count, -1, -1)))


TWO = [f"observation.images.{name}" for name in CAMERAS[:2]]
WAYS: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "view in RAM": (KEYS, {"view": "ram", "gpu_decode": False}, "<= 1.05"),
    "CPU decode, two cameras": (TWO, {"gpu_decode": False}, "<= 1.10"),
    "nvJPEG": (KEYS, {}, "<= 1.10"),
    "CPU decode, three cameras": (KEYS, {"gpu_decode": False}, ""),
}


class Trainer:
    """One policy; every step ends with the loss on the host, so that what `next` takes is time without work."""

    def __init__(self, cameras: int) -> None:
        self.policy = Policy(cameras).cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), 1e-4, fused=True)
        self.mean = torch.tensor([0.485, 0.456, 0.406], device="cuda").view(1, 3, 1, 1)
        self.std = torch.tensor([0.229, 0.224, 0.225], device="cuda").view(1, 3, 1, 1)

    def step(self, batch: dict[str, Any]) -> None:
        images = torch.cat([value for name, value in batch.items() if name in KEYS])
        images = images.float().div_(255).sub_(self.mean).div_(self.std).to(memory_format=torch.channels_last)
        with torch.autocast("cuda", torch.bfloat16):
            actions = self.policy(images, batch["observation.state"])
            loss = (actions - batch["action"]).abs().mul(~batch["action_is_pad"][..., None]).mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        loss.item()


@dataclass
class Times:
    """Of some steps: the wait for data, the step behind it, the same step by events of the GPU; in milliseconds."""

    waits: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    events: list[float] = field(default_factory=list)

    def add(self, wait_s: float, step_s: float, events_ms: float) -> None:
        self.waits.append(1e3 * wait_s)
        self.steps.append(1e3 * step_s)
        self.events.append(events_ms)

    @property
    def turn_ms(self) -> float:
        """What one step takes, with its wait."""
        return statistics.mean(self.waits) + statistics.median(self.steps)


def endless(loader: Any) -> Iterator[dict[str, Any]]:
    while True:
        yield from loader


def turn(trainer: Trainer, batches: Iterator[dict[str, Any]], steps: int) -> Times:
    """Some steps; the first three are not counted."""
    times = Times()
    for number in range(steps + 3):
        began = time.perf_counter()
        batch = next(batches)
        got = time.perf_counter()
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        trainer.step(batch)
        last.record()
        ended = time.perf_counter()
        last.synchronize()
        if number >= 3:
            times.add(got - began, ended - got, first.elapsed_time(last))
    return times


def training(root: Path, args: argparse.Namespace) -> list[Claim]:
    """The step alone, on a batch that stays on the device, and with each loader."""
    claims: list[Claim] = []
    for name, (keys, options, bar) in WAYS.items():
        if args.only not in name:
            continue
        trainer = Trainer(len(keys))
        loaders = {engine: _loader(root, args, keys, engine=engine, **options) for engine in ("process", "thread")}
        batches = {engine: endless(loader) for engine, loader in loaders.items()}
        for engine, loader in loaders.items():
            for _ in range(len(loader) + 1 if "view" in options else 3):
                batch = next(batches[engine])  # the first epoch fills the view; its last batch may be a short one
        resident = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        batches["alone"] = batches["alone again"] = itertools.repeat(resident)
        turn(trainer, batches["alone"], 20)  # cuDNN chooses its algorithms
        # What was made ahead lasts for a few steps: where decoding cannot keep up, only long turns show it.
        rounds, steps = (args.rounds, args.steps) if bar else (max(1, args.rounds // 4), 4 * args.steps)
        order = ["alone", *loaders, "alone again"]
        found: dict[str, list[Times]] = {who: [] for who in order}
        for number in range(rounds):
            for who in order if number % 2 == 0 else reversed(order):
                found[who].append(turn(trainer, batches[who], steps))
        claims += _step_claims(name, found, bar, len(keys) * args.batch_size)
        for engine, loader in loaders.items():
            print(f"    {engine}: {loader.stats()['engine']} {[note for note in loader.notes if 'engine' in note]}")
            loader.close()
    return claims


def _step_claims(name: str, found: dict[str, list[Times]], bar: str, images: int) -> list[Claim]:
    claims = []
    both = zip(found["alone"], found["alone again"], strict=True)
    alone_ms = [(one.turn_ms + other.turn_ms) / 2 for one, other in both]
    print(f"training, {name} (median of {len(alone_ms)} turns of {len(found['alone'][0].steps)} steps; ms)")
    for who, turns in found.items():
        ratios = [one.turn_ms / alone for one, alone in zip(turns, alone_ms, strict=True)]
        step, wait, gpu, whole = (
            statistics.median(values)
            for values in (
                [statistics.median(each.steps) for each in turns],
                [statistics.mean(each.waits) for each in turns],
                [statistics.median(each.events) for each in turns],
                [each.turn_ms for each in turns],
            )
        )
        ratio = statistics.median(ratios)
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratio, ratio, ratio)
        print(
            f"  {who:11} step {step:6.1f}, wait {wait:6.2f}, GPU's own time {gpu:6.1f}, step and wait over alone "
            f"{ratio:.3f} (middle half {low:.2f} to {high:.2f}), {1e3 * images / whole:,.0f} images/s"
        )
        if who == "process":
            claims.append(Claim(f"step with loader over step alone, {name}", ratio, bar or ">= 0"))
            claims.append(Claim(f"data wait in the step, {name}", wait / whole, "<= 0.02" if bar else ">= 0"))
        elif who == "thread":
            claims.append(Claim(f"the same by threads of the training process, {name}, informational", ratio, ">= 0"))
    return claims


def _loader(root: Path, args: argparse.Namespace, keys: list[str], **options: Any) -> penstock.Loader:
    window = penstock.Window({"action": range(CHUNK)}, columns=[*keys, "observation.state", "action"])
    given = {"device": "cuda", "memory": "8GiB", "view": "off", **options}
    return penstock.Loader(penstock.open(root), window, args.batch_size, **given)


if __name__ == "__main__":
    main()
