# ruff: noqa: E402
"""The loader on a GPU: images per second through nvJPEG and through the CPU, and the data wait of a policy's training.

    python benchmarks/gpu.py [--rows 6000] [--batches 300] [--steps 200]

Makes a LeRobot data set of three 480×640 JPEG cameras (MJPEG in MP4) with penstock's own writer; everything lies in the
page cache. Needs torch with CUDA and torchvision. The policy: ResNet-18 for each camera, a transformer encoder over
its tokens and a decoder for a chunk of 20 actions, bf16 autocast, AdamW, batch 64.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
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
from penstock.conversion.commit.writer import DataSetWriter
from penstock.demo.scene import Camera
from penstock.lerobot.features import Feature

CAMERAS = ("cam_h", "cam_l", "cam_r")
KEYS = [f"observation.images.{name}" for name in CAMERAS]
DISTINCT = 300
CHUNK = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=6000)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, torchvision {torchvision.__version__}")
    with tempfile.TemporaryDirectory() as directory:
        jpegs = make_set(Path(directory) / "set", args.rows)
        claims = [*speeds(Path(directory) / "set", jpegs, args), *training(Path(directory) / "set", args)]
    finish(claims)


def make_set(root: Path, rows: int) -> list[bytes]:
    """Ten episodes; the pictures repeat after 300 rows."""
    began = time.perf_counter()
    pictures = {name: list(Camera(640, 480, seed).jpegs(DISTINCT, 30.0, 95)) for seed, name in enumerate(CAMERAS)}
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
                    episode.video(key).append([pictures[name][(number + row) % DISTINCT] for row in range(count)])
                    episode.add_image_sample(key, sample)
                episode.write_rows({"observation.state": values, "action": values})
                episode.commit()
        writer.close()
    size = sum(map(len, pictures["cam_h"])) / DISTINCT
    took = time.perf_counter() - began
    print(f"made {rows:,} rows of three 480×640 cameras, {size / 1e3:.0f} KB a picture, in {took:.0f} s")
    return pictures["cam_h"]


def bare_nvjpeg(jpegs: list[bytes], count: int) -> float:
    """Pictures per second of nvJPEG alone, bytes in memory, no resize."""
    data = [torch.from_numpy(np.frombuffer(jpegs[k % len(jpegs)], np.uint8).copy()) for k in range(count)]
    torchvision.io.decode_jpeg(data, device="cuda")
    times = []
    for _ in range(10):
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
    bare = bare_nvjpeg(jpegs, 3 * args.batch_size)
    print(f"bare nvJPEG, {3 * args.batch_size} pictures at a time: {bare:,.0f} images/s")
    rates = []
    for _ in range(3):
        rate, notes = images_per_s(root, args.batches, args.batch_size)
        rates.append(rate)
        print(f"loader, nvJPEG: {rate:,.0f} images/s {notes}")
    cpu, notes = images_per_s(root, max(30, args.batches // 3), args.batch_size, gpu_decode=False)
    print(f"loader, pictures decoded by the CPU's threads: {cpu:,.0f} images/s {notes}")
    found = statistics.median(rates)
    quality(root)
    return [
        Claim("images/s through device='cuda' and nvJPEG (median of 3)", found, ">= 12000"),
        Claim("of bare nvJPEG", found / bare, ">= 0"),
        Claim("images/s through the CPU's threads, informational", cpu, ">= 0"),
    ]


def quality(root: Path) -> None:
    """How far the ways lie apart: the GPU's picture and the CPU's scaled one against the CPU's exact one."""
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
    """ResNet-18 tokens of three cameras and the state, a transformer, a chunk of actions."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        backbone = torchvision.models.resnet18(weights=None)
        self.backbone = torch.nn.Sequential(*list(backbone.children())[:-2])
        self.state = torch.nn.Linear(16, width)
        self.places = torch.nn.Parameter(torch.randn(1, 3 * 49 + 1, width) * 0.02)
        self.queries = torch.nn.Parameter(torch.randn(1, CHUNK, width) * 0.02)
        self.transformer = torch.nn.Transformer(width, 8, 4, 4, 3200, dropout=0.0, batch_first=True, norm_first=True)
        self.head = torch.nn.Linear(width, 16)

    def forward(self, pictures: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        count = len(state)
        tokens = self.backbone(pictures).flatten(2).transpose(1, 2)
        tokens = tokens.reshape(3, count, 49, -1).transpose(0, 1).reshape(count, 3 * 49, -1)
        tokens = torch.cat([self.state(state)[:, None], tokens], dim=1) + self.places
        return self.head(self.transformer(tokens, self.queries.expand(count, -1, -1)))


def training(root: Path, args: argparse.Namespace) -> list[Claim]:
    """Every step ends with the loss on the host: what `next` takes then is time in which the GPU has nothing to do."""
    alone_ms = _resident(root, args)
    claims = [Claim("ms a step on a batch that stays on the device, informational", alone_ms, ">= 0")]
    ways = {
        "decoded by nvJPEG": ({}, "<= 0.02"),
        "from a view in RAM": ({"view": "ram", "gpu_decode": False}, "<= 0.02"),
        "decoded by the CPU's threads": ({"gpu_decode": False}, "<= 1"),
    }
    for name, (options, bar) in ways.items():
        with _loader(root, args, **options) as loader:
            for _ in loader if "view" in options else ():
                pass  # the first epoch fills the view
            waits, steps, firsts = _train(loader, args.steps)
        share = sum(waits) / (sum(waits) + sum(steps))
        step_ms = 1e3 * statistics.median(steps)
        wait_ms = 1e3 * statistics.median(waits)
        rate = 3 * args.batch_size * len(steps) / (sum(waits) + sum(steps))
        print(
            f"training, pictures {name}: step {step_ms:.1f} ms, {step_ms / alone_ms:.2f}× that alone, waiting for data "
            f"{wait_ms:.2f} ms (median), {100 * share:.2f} % of the time, {rate:,.0f} images/s; for the first batch of "
            f"an epoch {1e3 * statistics.median(firsts):.1f} ms"
        )
        claims.append(Claim(f"data wait of the step, pictures {name}", share, bar))
    return claims


def _loader(root: Path, args: argparse.Namespace, **options: Any) -> penstock.Loader:
    window = penstock.Window({"action": range(CHUNK)}, columns=[*KEYS, "observation.state", "action"])
    given = {"device": "cuda", "memory": "8GiB", "view": "off", **options}
    return penstock.Loader(penstock.open(root), window, args.batch_size, **given)


def _resident(root: Path, args: argparse.Namespace) -> float:
    """The step on one batch that lies on the device already, no loader at work: what no loader can be quicker than."""
    with _loader(root, args) as loader:
        batch = next(iter(loader))
    _, steps, _ = _train([batch] * 100, args.steps)
    step_ms = 1e3 * statistics.median(steps)
    print(f"training, one batch that stays on the device: step {step_ms:.1f} ms")
    return step_ms


def _train(loader: Any, count: int) -> tuple[list[float], list[float], list[float]]:
    """What `next` took, what the steps took, and what `next` took at the beginnings of epochs (but the first)."""
    policy = Policy().cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(policy.parameters(), 1e-4, fused=True)
    mean = torch.tensor([0.485, 0.456, 0.406], device="cuda").view(1, 3, 1, 1)
    std = torch.tensor([0.229, 0.224, 0.225], device="cuda").view(1, 3, 1, 1)
    waits: list[float] = []
    steps: list[float] = []
    firsts: list[float] = []
    number = 0
    while number < count + 20:
        batches = iter(loader)
        is_first = number > 0
        while True:
            began = time.perf_counter()
            batch = next(batches, None)
            got = time.perf_counter()
            if batch is None or number >= count + 20:
                break
            pictures = torch.cat([batch[key] for key in KEYS])
            pictures = pictures.float().div_(255).sub_(mean).div_(std).to(memory_format=torch.channels_last)
            with torch.autocast("cuda", torch.bfloat16):
                actions = policy(pictures, batch["observation.state"])
                loss = (actions - batch["action"]).abs().mul(~batch["action_is_pad"][..., None]).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            loss.item()
            number += 1
            if is_first:
                firsts.append(got - began)
                is_first = False
            if number > 20:  # cuDNN has chosen its algorithms
                waits.append(got - began)
                steps.append(time.perf_counter() - got)
    return waits, steps, firsts


if __name__ == "__main__":
    main()
