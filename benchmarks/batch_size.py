# ruff: noqa: E402
"""The batch size that `penstock.plan.find_max_batch_size` predicts, against the true maximum.

    python benchmarks/batch_size.py --gpu [--memory 24GiB] [--models resnet50,vit,act,text-image] [--deadline 420]
    python benchmarks/batch_size.py            # the same on the CPU, by resident memory, with a small network

Each model is probed in a process of its own, with float32 and with bfloat16 autocast, AdamW, on a GPU whose memory is
limited for the process. The true maximum is found by bisection: each batch is tried for a few steps in a fresh process
under the same limit, and runs out of memory or does not. Needs torch and torchvision.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Last, not first: torch asks for the standard library's `profile`, and a script beside this one has that name.
HERE = Path(__file__).resolve().parent
sys.path = [each for each in sys.path if each != str(HERE)]
sys.path.append(str(HERE))

from measure import Claim, finish

GPU_MODELS = ("resnet50", "vit", "act", "text-image")
CPU_MODELS = ("small",)
TRIAL_STEPS = 4
AT_ONCE = 4  # processes that try batches on one GPU
CHILD_LIMIT_S = 90
CAMERAS = 3
BEGAN = time.monotonic()


@dataclass(frozen=True)
class Case:
    """One model with one arithmetic."""

    model: str
    amp: bool
    device: str
    memory_bytes: int

    @property
    def label(self) -> str:
        return f"{self.model}, {'bf16 autocast' if self.amp else 'float32'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", action="store_true", help="on the first CUDA device")
    parser.add_argument("--memory", default=None, help="limit of a process (24GiB on a GPU)")
    parser.add_argument("--models", default="")
    parser.add_argument("--deadline", type=float, default=420.0, help="seconds after which nothing new is started")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(json.loads(args.child))
        return
    from penstock._src.system.units import parse_bytes

    memory_bytes = parse_bytes(args.memory or ("24GiB" if args.gpu else "800MiB"))
    names = args.models.split(",") if args.models else list(GPU_MODELS if args.gpu else CPU_MODELS)
    device = "cuda" if args.gpu else "cpu"
    cases = [
        Case(name, amp, device, memory_bytes) for name in names for amp in ((False, True) if args.gpu else (False,))
    ]
    say(f"{len(cases)} cases on {device}, {memory_bytes / 2**30:g} GiB for a process")
    probes = {case: probe for case in cases if (probe := probed(case, args.deadline)) is not None}
    with ThreadPoolExecutor(len(cases)) as pool:
        gate = threading.Semaphore(AT_ONCE if args.gpu else 1)
        found = {case: pool.submit(true_maximum, case, probes[case]["batch_size"], gate, args.deadline)
                 for case in probes}  # fmt: skip
        truths = {case: future.result() for case, future in found.items()}
    print(
        f"\n{next(iter(probes.values()))['machine'] if probes else device}, {memory_bytes / 2**30:g} GiB for a process"
    )
    show(probes, truths)
    finish(claims(cases, probes, truths))


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:5.0f} s] {text}", flush=True)


def run_child(case: Case, task: str, batch_size: int = 0) -> dict[str, Any]:
    """A fresh process; what it prints last is its answer."""
    words = {**case.__dict__, "task": task, "batch_size": batch_size}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(words)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_LIMIT_S)
    except subprocess.TimeoutExpired:
        return {"error": f"took more than {CHILD_LIMIT_S} s"}
    if done.returncode:
        return {"error": done.stderr.strip()[-1500:] or f"exit code {done.returncode}"}
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer


# The parent: probes, then bisection


def probed(case: Case, deadline_s: float) -> dict[str, Any] | None:
    if time.monotonic() - BEGAN > deadline_s:
        say(f"{case.label}: not probed, the time is up")
        return None
    found = run_child(case, "probe")
    if "error" in found:
        say(f"{case.label}: the probe failed: {found['error']}")
        return None
    points = ", ".join(str(each["batch_size"]) for each in found["points"])
    say(
        f"{case.label}: predicted {found['batch_size']} in {found['seconds']:.1f} s by {found['method']}, steps at "
        f"{points}; the lines alone: reserved {found['by_reserved']}, allocated {found['by_allocated']}; replay off by "
        f"{found['replay_error']:.2%}; linear within {found['linearity_error']:.2%}; out of memory "
        f"{found['out_of_memory']} times; confirmed at {found['confirmed_gib']:.2f} GiB, predicted "
        f"{found['predicted_bytes'] / 2**30:.2f} GiB"
    )
    return found


def true_maximum(case: Case, guess: int, gate: threading.Semaphore, deadline_s: float) -> int | None:
    """The largest batch that runs: a bracket around the guess, then bisection to one part in a hundred."""
    tried: dict[int, bool] = {}

    def runs(batch_size: int) -> bool | None:
        with gate:
            if time.monotonic() - BEGAN > deadline_s:
                return None
            found = run_child(case, "trial", batch_size)
        if "error" in found:
            say(f"{case.label}: batch {batch_size}: {found['error']}")
            return None
        tried[batch_size] = found["fits"]
        say(f"{case.label}: batch {batch_size} {'runs' if found['fits'] else 'does not'} ({found['gib']:.2f} GiB)")
        return bool(found["fits"])

    bracket = bracketed(runs, guess)
    if bracket is None:
        say(f"{case.label}: no true maximum")
        return None
    low, high = bracket
    while high - low > max(1, guess // 100):
        middle = (low + high) // 2
        fits = runs(middle)
        if fits is None:  # the time is up: what is known has to do, where it is close enough
            say(f"{case.label}: the true maximum lies between {low} and {high}")
            return low if high - low <= max(2, guess // 30) else None
        low, high = (middle, high) if fits else (low, middle)
    say(f"{case.label}: {low} is the true maximum ({guess} predicted, {guess / low - 1:+.1%})")
    return low


def bracketed(runs: Callable[[int], bool | None], guess: int) -> tuple[int, int] | None:
    """A batch that runs and one that does not."""
    first = runs(guess)
    if first is None:
        return None
    edge = guess
    for share in (0.03, 0.05, 0.1, 0.3, 1.0):
        width = max(1, int(guess * share))
        following = edge + width if first else max(1, edge - width)
        fits = runs(following)
        if fits is None:
            return None
        if fits != first:
            return (edge, following) if first else (following, edge)
        edge = following
    return None


def show(probes: dict[Case, dict[str, Any]], truths: dict[Case, int | None]) -> None:
    print(f"{'':<28}{'predicted':>10}{'true':>8}{'error':>8}{'probe':>9}{'fixed':>10}{'a sample':>11}  method")
    for case, found in probes.items():
        truth = truths[case]
        error = f"{found['batch_size'] / truth - 1:+.1%}" if truth else "-"
        print(
            f"{case.label:<28}{found['batch_size']:>10}{truth or '-':>8}{error:>8}{found['seconds']:>7.1f} s"
            f"{found['reserved']['fixed_bytes'] / 2**20:>6.0f} MiB{found['reserved']['sample_bytes'] / 2**20:>7.1f} MiB"
            f"  {found['method']}"
        )


def claims(cases: list[Case], probes: dict[Case, dict[str, Any]], truths: dict[Case, int | None]) -> list[Claim]:
    found = []
    for case in cases:
        truth = truths.get(case)
        if truth:
            error = abs(probes[case]["batch_size"] / truth - 1)
            bar = "<= 0.05" if case.device == "cuda" else "<= 0.15"  # resident memory has its noise
            found.append(Claim(f"{case.label}: the predicted maximum is off the true one by", error, bar))
    answered = list(probes.values())
    found.append(Claim("cases with a prediction and a true maximum", len(found), f">= {len(cases)}"))
    if answered:
        found.append(Claim("seconds of the slowest probe", max(each["seconds"] for each in answered), "<= 30"))
        found.append(
            Claim("times that a probe ran out of memory", sum(each["out_of_memory"] for each in answered), "<= 0")
        )
    return found


# The child: one probe or one trial


def child(words: dict[str, Any]) -> None:
    import torch

    torch.manual_seed(0)
    if words["device"] == "cpu":
        from penstock._src.system.memory import give_back_large_blocks

        give_back_large_blocks()  # what the heap keeps of freed tensors would be noise
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    device, memory_bytes = torch.device(words["device"]), int(words["memory_bytes"])
    if device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(memory_bytes / torch.cuda.mem_get_info()[1])
    model, make_batch, loss = MODELS[words["model"]](device)
    model = model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    amp = torch.bfloat16 if words["amp"] else None
    if words["task"] == "probe":
        answer = probe(model, make_batch, optimizer, loss, amp, memory_bytes)
    else:
        answer = trial(model, make_batch, optimizer, loss, amp, words, device)
    print(json.dumps(answer), flush=True)


def probe(model: Any, make_batch: Any, optimizer: Any, loss: Any, amp: Any, memory_bytes: int) -> dict[str, Any]:
    import torch

    from penstock.plan import find_max_batch_size

    where = next(model.parameters()).device
    # On the CPU most of the limit is the interpreter, and a trial has no loader.
    options: dict[str, Any] = {} if where.type == "cuda" else {"margin": 0.0, "host_batches": 0}
    found = find_max_batch_size(model, make_batch, optimizer, loss=loss, amp=amp, memory=memory_bytes, **options)
    usable = int(found.limit_bytes * (1 - found.margin))
    return {
        **found.as_dict(),
        "machine": f"torch {torch.__version__}, {torch.cuda.get_device_name(where) if where.type == 'cuda' else 'CPU'}",
        "by_reserved": found.reserved.largest(usable),
        "by_allocated": found.allocated.largest(usable),
        "confirmed_gib": found.confirmed.reserved_bytes / 2**30 if found.confirmed else 0.0,
    }


def trial(model: Any, make_batch: Any, optimizer: Any, loss: Any, amp: Any, words: Any, device: Any) -> dict[str, Any]:
    """Whether a few steps of training run under the limit."""
    import contextlib

    import torch

    from penstock._src.plan.probe.device_memory import is_out_of_memory
    from penstock._src.system.memory import PeakMeter

    fits = True
    with PeakMeter() as meter:
        try:
            for _ in range(TRIAL_STEPS):
                batch = make_batch(words["batch_size"])
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(device.type, dtype=amp) if amp else contextlib.nullcontext():
                    value = loss(model, batch)
                value.backward()
                optimizer.step()
                del batch, value
            if device.type == "cuda":
                torch.cuda.synchronize()
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            fits = False
    if device.type == "cuda":
        return {"fits": fits, "gib": torch.cuda.max_memory_reserved() / 2**30}
    return {"fits": meter.peak_bytes <= words["memory_bytes"], "gib": meter.peak_bytes / 2**30}


# The models: (model, make_batch, loss)


def resnet50(device: Any) -> Any:
    import torchvision

    return torchvision.models.resnet50(weights=None), *classification(device)


def vit(device: Any) -> Any:
    import torchvision

    return torchvision.models.vit_b_16(weights=None), *classification(device)


def classification(device: Any, pixels: int = 224, classes: int = 1000) -> Any:
    import torch

    def make_batch(count: int) -> Any:
        images = torch.randn(count, 3, pixels, pixels, device=device)
        return images, torch.randint(classes, (count,), device=device)

    def loss(model: Any, batch: Any) -> Any:
        return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])

    return make_batch, loss


def act(device: Any) -> Any:
    """The policy of examples/act with its usual sizes: three cameras of 240×320, chunks of 20 actions."""
    import torch

    sys.path.insert(0, str(HERE.parent / "examples"))
    from act.model import ActModel, Shape
    from act.policy import masked_mean, style_divergence

    shape = Shape(state_dim=14, action_dim=14, cameras=CAMERAS, height=240, width=320, chunk_size=20)

    def make_batch(count: int) -> Any:
        images = [torch.randint(256, (count, 3, 240, 320), dtype=torch.uint8, device=device) for _ in range(CAMERAS)]
        state, actions = torch.randn(count, 14, device=device), torch.randn(count, 20, 14, device=device)
        return state, images, actions, torch.zeros(count, 20, dtype=torch.bool, device=device)

    def loss(model: Any, batch: Any) -> Any:
        found, mean, log_variance = model(*batch)
        return masked_mean((found - batch[2]).abs(), batch[3]) + 10 * style_divergence(mean, log_variance)

    return ActModel(shape), make_batch, loss


def text_image(device: Any) -> Any:
    """A question and an image in one transformer of 12 layers: 111 million parameters, answers as classes."""
    import torch
    from torch import nn

    words, patches, width, answers = 128, 196, 768, 3129

    class TextImage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(30522, width)
            self.patches = nn.Conv2d(3, width, 16, 16)
            self.places = nn.Parameter(torch.randn(1, words + patches, width) * 0.02)
            layer = nn.TransformerEncoderLayer(width, 12, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
            self.encoder = nn.TransformerEncoder(layer, 12, nn.LayerNorm(width), enable_nested_tensor=False)
            self.head = nn.Linear(width, answers)

        def forward(self, text: Any, images: Any) -> Any:
            seen = self.patches(images).flatten(2).transpose(1, 2)
            tokens = torch.cat([self.words(text).to(seen.dtype), seen], dim=1) + self.places
            return self.head(self.encoder(tokens)[:, 0])

    def make_batch(count: int) -> Any:
        text = torch.randint(30522, (count, words), device=device)
        images = torch.randn(count, 3, 224, 224, device=device)
        return text, images, torch.randint(answers, (count,), device=device)

    def loss(model: Any, batch: Any) -> Any:
        return nn.functional.cross_entropy(model(batch[0], batch[1]), batch[2])

    return TextImage(), make_batch, loss


def small(device: Any) -> Any:
    from torch import nn

    tanhs = [nn.Tanh() for _ in range(6)]
    model = nn.Sequential(nn.Conv2d(3, 16, 1), *tanhs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return model, *classification(device, 64, 10)


MODELS: dict[str, Callable[[Any], Any]] = {
    "resnet50": resnet50,
    "vit": vit,
    "act": act,
    "text-image": text_image,
    "small": small,
}

if __name__ == "__main__":
    main()
