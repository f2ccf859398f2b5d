"""Conversion on a cluster: H.264 on two one-core Ray nodes against two local processes, and growth with the inputs.

    python benchmarks/scale.py [--quick] [--only efficiency growth] [--rounds N] [--keep DIR]

Needs `penstock[ray]`. The nodes are real Ray nodes on this machine (`ray.cluster_utils.Cluster`), so both
ways have the same two cores and the same disk. Times are those of the reports: from the first look at the inputs to the
finished data set, without the start of Python and of the cluster. Ways take turns, and medians are compared.
Driver memory is the peak RSS of the process that was started, without the nodes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import Claim, finish

import penstock
from penstock._src.demo.recording import Script, write_recording
from penstock._src.system.units import format_bytes, format_size

SOURCE = str(Path(penstock.__file__).parents[1])
COUNTS = (10, 100, 1_000, 10_000)
NODE = {"num_cpus": 1, "memory": 2 * 2**30, "object_store_memory": 80 * 2**20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="smaller recordings and fewer of them, under a minute or so"
    )
    parser.add_argument("--only", nargs="*", choices=("efficiency", "growth"), default=("efficiency", "growth"))
    parser.add_argument("--rounds", type=int, default=None, help="how often the timed ways take turns")
    parser.add_argument("--keep", metavar="DIR", help="make the recordings here and keep them")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-scale-"))
    directory.mkdir(parents=True, exist_ok=True)
    claims: list[Claim] = []
    try:
        with _cluster():
            if "efficiency" in args.only:
                claims += _efficiency(args, directory)
            if "growth" in args.only:
                claims += _growth(args, directory)
    finally:
        if not args.keep:
            shutil.rmtree(directory)
    finish(claims)


@contextmanager
def _cluster() -> Iterator[None]:
    """Two nodes of one core each, whose workers load this penstock."""
    # Ray's workers give way to everything else on a machine; here both ways are to have the same cores.
    os.environ.update(PYTHONPATH=SOURCE, RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        cluster.add_node(**NODE)
        os.environ["RAY_ADDRESS"] = cluster.address
        yield
    finally:
        cluster.shutdown()


def _convert(source: Path, out: Path, *words: str) -> dict[str, Any]:
    """Run the command into a fresh output; its report."""
    for each in (out, *out.parent.glob(f"{out.name}.penstock-*")):
        shutil.rmtree(each, ignore_errors=True)
    os.sync()
    command = [sys.executable, "-m", "penstock", "convert", str(source), str(out), "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} exited with {done.returncode}:\n{done.stderr[-3000:]}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _efficiency(args: argparse.Namespace, directory: Path) -> list[Claim]:
    """The same H.264 conversion by two local processes and by two nodes."""
    recordings, seconds = (6, 8.0) if args.quick else (12, 12.0)
    source = directory / "day"
    if not source.exists():
        source.mkdir()
        for number in range(recordings):
            write_recording(source / f"run_{number:02d}.bag", Script(seconds=seconds, distinct_images=60, seed=number))
    words = ("video=h264", "files.group_mb=64")
    ways = {"--jobs 2": ("--jobs", "2"), "--on ray": ("--on", "ray")}
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds or (1 if args.quick else 3)):
        for name, way in ways.items():
            taken[name].append(_convert(source, directory / name.strip("-").replace(" ", "_"), *words, *way)["seconds"])
            print(f"{name:<10} {taken[name][-1]:7.2f} s", flush=True)
    if _files(directory / "jobs_2") != _files(directory / "on_ray"):
        raise SystemExit("the two ways made different data sets")
    print(f"{recordings} recordings of {seconds:g} s, three cameras at 640×480, H.264")
    for name, each in taken.items():
        print(f"  {name:<10} {statistics.median(each):7.2f} s   {' '.join(f'{value:.2f}' for value in each)}")
    ratios = [local / ray for local, ray in zip(taken["--jobs 2"], taken["--on ray"], strict=True)]
    return [Claim("H.264 on two one-core nodes against --jobs 2 (efficiency)", statistics.median(ratios), ">= 0.9")]


def _files(out: Path) -> dict[str, bytes]:
    found = sorted(path for path in out.rglob("*") if path.is_file())
    return {
        str(path.relative_to(out)): path.read_bytes() for path in found if path.relative_to(out).parts[0] != "penstock"
    }


def _growth(args: argparse.Namespace, directory: Path) -> list[Claim]:
    """Time and driver memory with the number of recordings."""
    tiny = directory / "tiny.bag"
    if not tiny.exists():
        write_recording(tiny, Script(seconds=0.4, fps=10, joint_hz=20, width=64, height=48, distinct_images=4))
    counts = COUNTS[:3] if args.quick else COUNTS
    found: dict[int, tuple[float, int]] = {}
    print(f"\ntiny recordings of {format_size(tiny.stat().st_size)} on two one-core nodes")
    print(f"  {'recordings':>10} {'seconds':>9} {'ms each':>8} {'driver peak':>12}")
    for count in counts:
        source = directory / f"tiny_{count}"
        source.mkdir(exist_ok=True)
        for number in range(count):
            if not (link := source / f"run_{number:05d}.bag").exists():
                os.link(tiny, link)
        report = _convert(source, directory / "grown", "--on", "ray")
        seconds, peak = float(report["seconds"]), int(report["peak_rss_bytes"])
        found[count] = seconds, peak
        print(f"  {count:>10,} {seconds:>9.2f} {1000 * seconds / count:>8.1f} {format_bytes(peak):>12}", flush=True)
    most = counts[-1]
    per_input = found[most][0] / most / (found[most // 10][0] / (most // 10))
    return [
        Claim(f"driver's peak with {most:,} recordings (MB)", found[most][1] / 1e6, "<= 300"),
        Claim(f"time per recording, {most:,} against {most // 10:,} of them (times)", per_input, "<= 1.2"),
    ]


if __name__ == "__main__":
    main()
