"""A fleet's day: what 10,000 robots with 10 GB each take, computed from terms that are measured on this machine.

    python benchmarks/fleet.py [--quick] [--robots 10000] [--gb 10] [--recording-gb 1]

Measured: CPU seconds and wall time of `penstock convert --jobs 1` for copied JPEG video, CPU seconds for H.264, less
those of a recording with next to nothing in it; growth of `--shard 0/1` and of `penstock commit` with the number of
recordings, each of them a group of its own; requests of a conversion from a range server; bytes of tables and metadata.
Computed: all of the day. A core is a CPU second per second. A process also waits for its disk.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from measure import Claim, finish

from penstock._src.demo.recording import Script, write_recording
from penstock._src.system.files.remote.client import WRITE_BUFFER_BYTES
from tests.remote.server import RangeServer

DAY_S = 86_400
CAMERAS = 3


@dataclass(frozen=True)
class Terms:
    """What was measured."""

    copy_bytes_per_s: float  # of one core
    process_bytes_per_s: float  # of one process on this disk
    encode_frames_per_s: float  # of one core
    bytes_per_frame: float
    table_bytes_per_row: float
    fixed_s: float  # CPU of one recording, whatever its size
    commit_s: float  # driver, of one recording
    commit_growth: float
    read_bytes_per_request: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="growth up to 100 recordings instead of 1,000")
    parser.add_argument("--robots", type=int, default=10_000)
    parser.add_argument("--gb", type=float, default=10.0, help="of each robot and day")
    parser.add_argument("--recording-gb", type=float, default=1.0, help="of one recording")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-fleet-") as made:
        terms = measured(Path(made), (10, 30, 100) if args.quick else (10, 100, 1_000))
    finish(day(terms, args))


def measured(directory: Path, counts: tuple[int, ...]) -> Terms:
    long, short, tiny = directory / "long.bag", directory / "short.bag", directory / "tiny.bag"
    write_recording(long, Script(seconds=120.0, distinct_images=60))
    write_recording(short, Script(seconds=4.0, distinct_images=60))
    write_recording(tiny, Script(seconds=0.5, fps=10))
    out = directory / "out"
    start_s, start_wall_s, _ = median_of_three(tiny, out)
    copy_s, copy_wall_s, rows = median_of_three(long, out)
    tables = sum(file.stat().st_size for part in ("data", "meta") for file in (out / part).rglob("*") if file.is_file())
    encode_s, _, encoded_rows = converted(short, out, "video=h264")
    n_bytes, requests = read_remotely(long, out)
    fixed_s, commit_s, growth = grown(directory, tiny, counts)
    return Terms(
        copy_bytes_per_s=long.stat().st_size / (copy_s - start_s),
        process_bytes_per_s=long.stat().st_size / (copy_wall_s - start_wall_s),
        encode_frames_per_s=CAMERAS * encoded_rows / (encode_s - start_s),
        bytes_per_frame=long.stat().st_size / (CAMERAS * rows),
        table_bytes_per_row=tables / rows,
        fixed_s=fixed_s,
        commit_s=commit_s,
        commit_growth=growth,
        read_bytes_per_request=n_bytes / requests,
    )


def command(*words: object, env: dict[str, str] | None = None) -> tuple[float, float]:
    """Run penstock: seconds, CPU seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *map(str, words)],
        capture_output=True, text=True, check=False, env={**os.environ, **(env or {})},
    )  # fmt: skip
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(f"penstock {' '.join(map(str, words))} exited with {done.returncode}:\n{done.stderr[-3000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu_s


def cleared(out: Path) -> Path:
    for each in (out, *out.parent.glob(f"{out.name}.penstock-*")):
        shutil.rmtree(each, ignore_errors=True)
    return out


def converted(source: Path, out: Path, *words: str) -> tuple[float, float, int]:
    """CPU seconds, seconds and rows of one conversion."""
    os.sync()  # what the command before left for the disk must not slow this one
    seconds, cpu_s = command("convert", source, cleared(out), "--jobs", 1, *words)
    return cpu_s, seconds, int(json.loads((out / "meta" / "info.json").read_text())["total_frames"])


def median_of_three(source: Path, out: Path) -> tuple[float, float, int]:
    cpu_s, seconds, rows = zip(*(converted(source, out) for _ in range(3)), strict=True)
    return statistics.median(cpu_s), statistics.median(seconds), rows[0]


def read_remotely(source: Path, out: Path) -> tuple[int, int]:
    """Bytes and requests of a conversion from a bucket."""
    with RangeServer() as server:
        server.add(source, "fleet")
        command("convert", f"s3://fleet/{source.name}", cleared(out), "--jobs", 1, env=server.environment)
        return source.stat().st_size, server.count()


def grown(directory: Path, tiny: Path, counts: tuple[int, ...]) -> tuple[float, float, float]:
    """CPU seconds of a recording, driver seconds of a recording, and how the latter grow."""
    shard: dict[int, float] = {}
    commit: dict[int, float] = {}
    print(f"recordings of {tiny.stat().st_size / 1e6:.2f} MB, each a group of its own")
    print(f"  {'recordings':>10} {'shard, CPU s':>13} {'commit, s':>10}")
    for count in counts:
        source = directory / f"tiny_{count}"
        source.mkdir()
        for number in range(count):
            os.link(tiny, source / f"run_{number:05d}.bag")
        out = cleared(directory / "grown")
        _, shard[count] = command("convert", source, out, "--shard", "0/1", "--jobs", 1, "files.group_mb=1")
        commit[count], _ = command("commit", out)
        print(f"  {count:>10,} {shard[count]:>13.2f} {commit[count]:>10.2f}", flush=True)
    few, many = counts[-2:]
    each = [(grown[many] - grown[few]) / (many - few) for grown in (shard, commit)]
    earlier = (commit[few] - commit[counts[0]]) / (few - counts[0])
    return each[0], each[1], each[1] / earlier


def day(terms: Terms, args: argparse.Namespace) -> list[Claim]:
    """The table, and what must hold of it."""
    n_bytes = args.robots * args.gb * 1e9
    recordings = n_bytes / (args.recording_gb * 1e9)
    frames = n_bytes / terms.bytes_per_frame
    copy_cores = (n_bytes / terms.copy_bytes_per_s + recordings * terms.fixed_s) / DAY_S
    encode_cores = frames / terms.encode_frames_per_s / DAY_S
    gets, puts = n_bytes / terms.read_bytes_per_request, n_bytes / WRITE_BUFFER_BYTES
    commit_h = recordings * terms.commit_s / 3600
    lines = [
        ("measured on this machine", ""),
        ("copied JPEG video, a core", f"{terms.copy_bytes_per_s / 1e6:,.0f} MB/s"),
        ("the same, a process on this disk", f"{terms.process_bytes_per_s / 1e6:,.0f} MB/s"),
        ("H.264 of 640×480, a core", f"{terms.encode_frames_per_s:,.0f} frames/s"),
        ("a stored frame", f"{terms.bytes_per_frame / 1e3:,.0f} kB"),
        ("tables and metadata", f"{terms.table_bytes_per_row:,.0f} bytes per row"),
        ("a recording, whatever its size", f"{1e3 * terms.fixed_s:,.0f} ms of CPU"),
        ("commit of a recording, driver", f"{1e3 * terms.commit_s:,.1f} ms"),
        ("a read request", f"{terms.read_bytes_per_request / 1e6:,.2f} MB"),
        (f"computed: {args.robots:,} robots × {args.gb:g} GB, recordings of {args.recording_gb:g} GB", ""),
        ("bytes, in and out", f"{n_bytes / 1e12:,.0f} TB, {n_bytes / DAY_S / 1e9:,.2f} GB/s each way"),
        ("recordings, frames", f"{recordings:,.0f}, {frames / 1e9:,.2f} billion"),
        ("cores that copy", f"{copy_cores:,.1f}"),
        ("processes that copy, disks as here", f"{n_bytes / terms.process_bytes_per_s / DAY_S:,.1f}"),
        ("cores that encode H.264 instead", f"{copy_cores + encode_cores:,.0f}"),
        ("reads", f"{gets / 1e6:,.1f} million, {gets / DAY_S:,.0f} a second"),
        ("writes in parts of 8 MiB", f"{puts / 1e6:,.1f} million, {puts / DAY_S:,.0f} a second"),
        ("tables and metadata", f"{frames / CAMERAS * terms.table_bytes_per_row / 1e9:,.0f} GB"),
        ("commit, one driver", f"{commit_h:,.1f} hours"),
    ]
    print()
    for name, value in lines:
        print(f"  {name:<36} {value}" if value else name)
    return [
        Claim("cores that copy the day", copy_cores, "<= 16"),
        Claim("hours of one driver to commit the day", commit_h, "<= 24"),
        Claim("commit of a recording: growth with their number (times)", terms.commit_growth, "<= 1.5"),
    ]


if __name__ == "__main__":
    main()
