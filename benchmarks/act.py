# ruff: noqa: E402
"""ACT training with its usual sizes: does its step wait for data, and what does the verdict say?

    python benchmarks/act.py [--device cuda] [--episodes 40] [--rows 100] [--size 480x640] [--epochs 5] [--keep DIR]

Makes the dual-arm task of `penstock demo act` (four 480×640 JPEG cameras), trains `examples/imitate_episodes.py` on it
with hidden 512, feed-forward 3200, chunk 20 and batch 64, bfloat16: once as the loader chooses by itself (a view in
RAM, which fits), once with images decoded on the device. Prints table and verdict of both, and checks trace and page.
The data wait is that of all training steps, the first ones included. Then the same step in turns, on a batch that stays
on the device and with the loader: what nvJPEG takes from a step that is bound by the GPU is informational.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# Last, not first: torch asks for the standard library's `profile`, and a script beside this one has that name.
sys.path = [each for each in sys.path if each != str(HERE)]
sys.path.append(str(HERE))

from measure import Claim, finish

from penstock import profile

USUAL = ["--task_name", "astrobench_dual_arm", "--policy_class", "ACT", "--kl_weight", "10", "--chunk_size", "20",
        "--hidden_dim", "512", "--dim_feedforward", "3200", "--lr", "1e-5", "--seed", "0"]  # fmt: skip
WAYS = {"as the loader chooses": [], "nvJPEG": ["--view", "off", "--gpu_decode", "on"]}
BARS = {"as the loader chooses": "<= 1.03", "nvJPEG": ">= 0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--size", default="480x640")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--memory", default="40GiB")
    parser.add_argument("--steps", type=int, default=12, help="of a turn")
    parser.add_argument("--rounds", type=int, default=5, help="of turns: alone, with the loader, alone")
    parser.add_argument("--only", choices=("training", "beside"), help="one of the two parts alone")
    parser.add_argument("--keep", type=Path, help="a directory for data, profiles, pages and traces")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        work = args.keep or Path(made)
        work.mkdir(parents=True, exist_ok=True)
        claims = [claim for name in WAYS for claim in measured(name, work, args)]
    finish(claims)


def penstock(*words: str | Path) -> str:
    """The command's output, which is also printed."""
    return shown([sys.executable, "-m", "penstock", *map(str, words)])


def shown(command: list[str]) -> str:
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}")
    return "".join(lines)


def measured(name: str, work: Path, args: argparse.Namespace) -> list[Claim]:
    """Train, and see what the profile says."""
    data, short = work / "reach", name.replace(" ", "-")
    if not data.exists():
        penstock("demo", "act", "--out", data, "--episodes", str(args.episodes), "--rows", str(args.rows),
                 "--size", args.size)  # fmt: skip
    if args.only == "beside":
        return beside(name, work, args)
    run, page, trace = (work / f"{short}.{end}" for end in ("json", "html", "trace.json"))
    print(f"\n━━━ {name} ━━━")
    shown([
        sys.executable, str(HERE.parent / "examples" / "imitate_episodes.py"), *USUAL, *WAYS[name],
        "--ckpt_dir", str(work / f"ckpt-{short}"), "--dataset", str(data), "--device", args.device, "--amp",
        "--memory", args.memory, "--batch_size", str(args.batch_size), "--num_epochs", str(args.epochs),
        "--table_every", str(args.epochs), "--lang", "en", "--profile-out", str(run), "--overwrite",
    ])  # fmt: skip
    penstock("profile", run, "--html", page, "--trace", trace)
    reported = profile.load(run)
    tracks = {event["args"]["name"] for event in json.loads(trace.read_text())["traceEvents"]
              if event["name"] == "thread_name"}  # fmt: skip
    print(f"tracks of the trace: {', '.join(sorted(tracks))}; page of {page.stat().st_size / 1e3:.0f} KB")
    steps = reported.steps
    rate = 4 * args.batch_size / max(steps.mean_ns, 1) * 1e9
    print(f"{name}: {steps.count} steps of {steps.mean_ns / 1e6:.1f} ms, {rate:,.0f} images/s")
    found = [Claim(f"data wait of all training steps, {name}", steps.wait_share, "<= 0.02")]
    if args.device.startswith("cuda"):
        found.append(Claim(f"a track of the GPU in the trace, {name}", float("GPU" in tracks), ">= 1"))
    return found if args.only == "training" else [*found, *beside(name, work, args)]


def beside(name: str, work: Path, args: argparse.Namespace) -> list[Claim]:
    """The example's step with the loader over the same step alone: turns of some steps, waits for data included."""
    sys.path.insert(0, str(HERE.parent / "examples"))  # before this folder, which has an act.py as well
    import torch
    from act.options import build_parser, settings_from
    from act.train import Pace, Trainer
    from imitate_episodes import open_data

    words = [*USUAL, *WAYS[name], "--ckpt_dir", str(work / "beside"), "--dataset", str(work / "reach"), "--amp",
             "--device", args.device, "--memory", args.memory, "--batch_size", str(args.batch_size)]  # fmt: skip
    settings = settings_from(build_parser().parse_args(words))
    with open_data(settings) as data:
        trainer = Trainer(settings, data)

        def turn(batches: Iterator[dict[str, Any]]) -> float:
            pace = Pace(trainer.device)
            for number in range(args.steps + 3):
                if number == 3:
                    synchronize(trainer.device)
                    began = time.perf_counter()
                trainer._train_step(next(batches))
                pace.step()
            synchronize(trainer.device)
            return 1e3 * (time.perf_counter() - began) / args.steps

        def endless() -> Iterator[dict[str, Any]]:
            while True:
                yield from data.train

        batches = endless()
        for _ in range(len(data.train) + 1):
            batch = next(batches)  # the first epoch fills the view; its last batch may be a short one
        resident = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in batch.items()}
        turn(itertools.repeat(resident))  # cuDNN chooses its algorithms
        alone, there = [], []
        for _ in range(args.rounds):
            before = turn(itertools.repeat(resident))
            there.append(turn(batches))
            alone.append((before + turn(itertools.repeat(resident))) / 2)
    ratio = statistics.median(one / other for one, other in zip(there, alone, strict=True))
    print(f"{name}: step alone {statistics.median(alone):.1f} ms, with the loader {statistics.median(there):.1f} ms, "
          f"{ratio:.3f} of it (median of {args.rounds} rounds)")  # fmt: skip
    return [Claim(f"ACT: step with loader over step alone, {name}", ratio, BARS[name])]


def synchronize(device: Any) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
