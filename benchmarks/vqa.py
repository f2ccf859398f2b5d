"""A JSONL of a million questions: opened, read at random, and shared with workers; against datasets and a plain list.

    python benchmarks/vqa.py [--quick] [--peers-python PATH] [--lines N] [--keep DIR]

Every contender is a process of its own (benchmarks/vqa_child.py), so that its memory is its own. Memory is RSS above
what the process had after its imports; that of a worker is what no other process shares (USS). Rates are the best of
several rounds: other processes on the machine only make them lower. The Python of --peers-python needs torch, and
datasets for that contender.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import Claim, finish

LINES, QUICK_LINES = 1_000_000, 100_000
_CHILD = Path(__file__).resolve().parent / "vqa_child.py"
_BLOCK = 10_000
_ANSWERS = ("yes", "no", "red", "blue", "2", "3", "on the table", "a dog")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_LINES:,} lines, under a minute")
    parser.add_argument("--lines", type=int, help=f"of the file (default {LINES:,})")
    parser.add_argument("--peers-python", metavar="PATH", default=sys.executable, help="a Python with torch, datasets")
    parser.add_argument("--keep", metavar="DIR", help="make the data here and keep it")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    busy = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load average {busy:.1f}" + (": not quiet enough for figures" if busy > 0.7 else ""))
    try:
        finish(_claims(directory, args.lines or (QUICK_LINES if args.quick else LINES), args.peers_python))
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def write_lines(path: Path, count: int) -> None:
    """Records as of VQAv2 in JSONL: about 190 bytes each."""
    with path.open("w", encoding="utf-8") as file:
        for first in range(0, count, _BLOCK):
            file.writelines(
                json.dumps(
                    {
                        "question_id": number,
                        "image_id": number // 5,
                        "image": f"train2014/COCO_train2014_{number // 5:012d}.jpg",
                        "question": f"What is on the left of object number {number} in the image?",
                        "answer": _ANSWERS[number * 7919 % len(_ANSWERS)],
                    }
                )
                + "\n"
                for number in range(first, min(first + _BLOCK, count))
            )


def _claims(directory: Path, count: int, python: str) -> list[Claim]:
    path = directory / f"{count}.jsonl"
    if not path.exists():
        write_lines(path, count)
    print(f"{count:,} lines, {path.stat().st_size / 1e6:,.0f} MB\n", flush=True)
    print(f"{'':<20}{'first open':>12}{'then':>9}{'memory':>10}{'records/s':>12}{'each of 4 workers':>20}", flush=True)
    ours = _contender("penstock, lazy", "lazy", path, python)
    if ours is None:
        raise SystemExit(f"{python} has no torch: --peers-python names one that has")
    others = {name: _contender(name, kind, path, python) for name, kind in (("datasets", "datasets"), ("list", "list"))}
    claims = [
        Claim(f"{count:,} lines: first open (s)", ours["first_s"], "<= 20"),
        Claim(f"{count:,} lines: opened again (s)", ours["again_s"], "<= 1"),
        Claim("memory above the baseline, open and read at random (MB)", ours["memory_mb"], "<= 60"),
        Claim("own memory of each of 4 workers, at most (MB)", ours["worker_mb"], "<= 20"),
        Claim("random access without images (records/s)", ours["records_per_s"], ">= 20000"),
    ]
    if (found := others["datasets"]) is not None:
        faster = ours["records_per_s"] / found["records_per_s"]
        claims.append(Claim("random access against datasets (times)", faster, ">= 2"))
    if (found := others["list"]) is not None:
        claims.append(Claim("memory against a plain list (share)", ours["memory_mb"] / found["memory_mb"], "<= 0.2"))
    return claims


def _contender(name: str, kind: str, path: Path, python: str) -> Any:
    """First open, open again (which measures the rest); None where the contender is not installed."""
    cache = path.parent / f"cache-{kind}"
    shutil.rmtree(cache, ignore_errors=True)
    first = _child(python, kind, path, cache, "open")
    if first is None:
        print(f"{name:<20}not installed", flush=True)
        return None
    found = _child(python, kind, path, cache, "all")
    found = {**found, "first_s": first["open_s"], "again_s": found["open_s"]}
    found["memory_mb"] = max(first["memory_mb"], found["memory_mb"])
    print(
        f"{name:<20}{found['first_s']:>10.2f} s{found['again_s']:>7.2f} s{found['memory_mb']:>7,.0f} MB"
        f"{found['records_per_s']:>12,.0f}{found['worker_mb']:>17,.0f} MB   ({found['cpu_us']:.1f} µs CPU a record)",
        flush=True,
    )
    return found


def _child(python: str, kind: str, path: Path, cache: Path, what: str) -> Any:
    source = str(_CHILD.parents[1] / "src")
    places = os.pathsep.join(each for each in (source, os.environ.get("PYTHONPATH", "")) if each)
    environment = {
        **os.environ, "PYTHONPATH": places, "PENSTOCK_CACHE": str(cache), "HF_DATASETS_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [python, str(_CHILD), kind, str(path), what]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode == 3:
        return None
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
