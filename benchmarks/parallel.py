"""One process against several on recordings whose images are encoded: speed, memory, and that the bytes are the same.

    python benchmarks/parallel.py [--quick] [--keep DIR] [--video h264] [--rounds N]

Time: whole commands that take turns, medians, everything in the page cache. Memory: peak PSS of the process tree, what
its processes share counted once.
"""

from __future__ import annotations

import argparse
import filecmp
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import Claim, alternate, finish, median_seconds

from penstock._src.demo.recording import Script, write_recording
from penstock._src.system import memory, units

MIB = 2**20
BUDGETS = (512 * MIB, 2048 * MIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter recordings, under a minute")
    parser.add_argument("--keep", metavar="DIR", help="make the recordings here and keep them")
    parser.add_argument("--video", default="h264", help="what the images become")
    parser.add_argument("--rounds", type=int, default=None, help="how often the commands take turns")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        finish(_claims(args, directory))
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _claims(args: argparse.Namespace, directory: Path) -> list[Claim]:
    seconds, count = (6.0, 2) if args.quick else (20.0, 4)
    bags = []
    for number in range(count):
        bags.append(directory / f"parallel-{seconds:.0f}s-{number}.bag")
        if not bags[-1].exists():
            write_recording(bags[-1], Script(seconds=seconds, quality=95, seed=number))
    size = sum(bag.stat().st_size for bag in bags)
    print(f"{count} recordings of {seconds:.0f} s, {units.format_size(size)}, three cameras → {args.video}")
    outs = {jobs: directory / f"out-{jobs}" for jobs in (1, 2)}
    actions = {f"--jobs {jobs}": _command(bags, out, jobs, args.video) for jobs, out in outs.items()}
    before = {f"--jobs {jobs}": [out] for jobs, out in outs.items()}
    rounds = args.rounds or (1 if args.quick else 3)
    runs = alternate(actions, rounds=rounds, before=before)
    one, two = (median_seconds(runs[f"--jobs {jobs}"]) for jobs in outs)
    ratios = [a.seconds / b.seconds for a, b in zip(runs["--jobs 1"], runs["--jobs 2"], strict=True)]
    print(f"--jobs 1 {one:.2f} s, --jobs 2 {two:.2f} s; rounds {', '.join(f'{ratio:.2f}×' for ratio in ratios)}")
    claims = [Claim(f"--jobs 2 against --jobs 1, {args.video}, {count} recordings: times faster", one / two, ">= 1.7")]
    claims.append(Claim("files that differ between --jobs 1 and --jobs 2", len(_differing(*outs.values())), "<= 0"))
    for budget in BUDGETS:
        peak = _peak(_command(bags, outs[2], 2, args.video, memory_bytes=budget), outs[2])
        claims.append(
            Claim(
                f"--jobs 2 --memory {units.format_bytes(budget)}: peak PSS of the tree, MiB",
                peak / MIB,
                f"<= {budget // MIB}",
            )
        )
        claims.append(
            Claim(
                f"files that differ with --memory {units.format_bytes(budget)}",
                len(_differing(*outs.values())),
                "<= 0",
            )
        )
    for out in outs.values():
        shutil.rmtree(out)
    return claims


def _command(bags: list[Path], out: Path, jobs: int, video: str, memory_bytes: int = 2048 * MIB) -> list[str]:
    words = [*map(str, bags), str(out), "--jobs", str(jobs), "--memory", str(memory_bytes), f"video={video}", "--json"]
    return [sys.executable, "-m", "penstock", "convert", *words]


def _peak(command: list[str], out: Path) -> int:
    """Peak PSS of the command's tree, sampled every 20 ms."""
    shutil.rmtree(out)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    peak, over = 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.02):
            peak = max(peak, memory.tree_pss_bytes(process.pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    over.set()
    watcher.join()
    if code:
        raise SystemExit(f"{' '.join(command)} exited with {code}")
    return peak


def _differing(one: Path, other: Path) -> list[str]:
    """Files that are not the same in both, penstock's own report and journal left aside."""
    found = set()
    for root in (one, other):
        for path in root.rglob("*"):
            relative = path.relative_to(root)
            if path.is_file() and relative.parts[0] != "penstock":
                found.add(relative)
    return [
        str(each)
        for each in sorted(found)
        if not ((one / each).is_file() and (other / each).is_file())
        or not filecmp.cmp(one / each, other / each, shallow=False)
    ]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parent.parent / "src"))
    main()
