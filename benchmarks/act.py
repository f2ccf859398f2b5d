# ruff: noqa: E402
"""ACT training with its usual sizes: does its step wait for data, and what does the verdict say?

    python benchmarks/act.py [--device cuda] [--episodes 40] [--rows 100] [--size 480x640] [--epochs 5] [--keep DIR]

Makes the dual-arm task of `penstock demo act` (four 480×640 JPEG cameras), trains `examples/imitate_episodes.py` on it
with hidden 512, feed-forward 3200, chunk 20 and batch 64, bfloat16: once as the loader chooses by itself (pictures
decoded on the device), once with a view in RAM. Prints table and verdict of both, and checks trace and page. The data
wait is that of all training steps, the first ones included.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Last, not first: torch asks for the standard library's `profile`, and a script beside this one has that name.
sys.path = [each for each in sys.path if each != str(HERE)]
sys.path.append(str(HERE))

from measure import Claim, finish

from penstock import profile

USUAL = ["--task_name", "astrobench_dual_arm", "--policy_class", "ACT", "--kl_weight", "10", "--chunk_size", "20",
        "--hidden_dim", "512", "--dim_feedforward", "3200", "--lr", "1e-5", "--seed", "0"]  # fmt: skip
WAYS = {"as the loader chooses": [], "view in RAM": ["--view", "ram"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--episodes", type=int, default=40)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--size", default="480x640")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--memory", default="40GiB")
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
    run, page, trace = (work / f"{short}.{end}" for end in ("json", "html", "trace.json"))
    print(f"\n━━━ {name} ━━━")
    shown([
        sys.executable, str(HERE.parent / "examples" / "imitate_episodes.py"), *USUAL, *WAYS[name],
        "--ckpt_dir", str(work / f"ckpt-{short}"), "--dataset", str(data), "--device", args.device, "--amp",
        "--memory", args.memory, "--batch_size", str(args.batch_size), "--num_epochs", str(args.epochs),
        "--table_every", str(args.epochs), "--lang", "en", "--profile-out", str(run), "--overwrite",
    ])  # fmt: skip
    penstock("profile", run, "--html", page, "--trace", trace)
    told = profile.load(run)
    tracks = {event["args"]["name"] for event in json.loads(trace.read_text())["traceEvents"]
              if event["name"] == "thread_name"}  # fmt: skip
    print(f"tracks of the trace: {', '.join(sorted(tracks))}; page of {page.stat().st_size / 1e3:.0f} KB")
    steps = told.steps
    rate = 4 * args.batch_size / max(steps.mean_ns, 1) * 1e9
    print(f"{name}: {steps.count} steps of {steps.mean_ns / 1e6:.1f} ms, {rate:,.0f} images/s")
    found = [Claim(f"data wait of all training steps, {name}", steps.wait_share, "<= 0.02")]
    if args.device.startswith("cuda"):
        found.append(Claim(f"a track of the GPU in the trace, {name}", float("GPU" in tracks), ">= 1"))
    return found


if __name__ == "__main__":
    main()
