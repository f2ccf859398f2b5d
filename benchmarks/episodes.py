"""What a fleet's many episodes take: growth of time, memory and disk with their number, and opening 100,000 of them.

    python benchmarks/episodes.py [--quick] [--keep DIR]

Growth: one-second recordings with three cameras of 64×48 px, converted in one process. Per recording and per further
episode stands what one more of them takes, between the smallest and the largest job, so that starting Python is in
neither; the peak is that of the whole process. It grows until a data file has all the row groups that it may get.
Disk is the `penstock/` folder after closing, all of it: the report (which shows a hundred inputs in full) and the state
of the statistics, half a megabyte to two, and the journal, which grows by 0.3 to 0.5 KB per episode.

Opening: a data set of 100,000 episodes and 50 million rows (one row group per episode, 1,667 small videos), opened in a
fresh process that has imported everything before. Memory is the peak of the call above that.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from episodes_data import ROWS, make_data_set, make_recordings
from measure import Claim, finish, run

MB = 1e6
_MANY = 1000  # below, what does not grow with the episodes is most of penstock/: report, state of the statistics
_CONVERT = """
import json, sys, time, penstock._src.conversion.job as job
began, used = time.perf_counter(), time.process_time()
report = job.convert(sys.argv[1], sys.argv[2], memory="512MiB", jobs=1)
print(json.dumps([time.perf_counter() - began, time.process_time() - used, report.episodes]))
"""
_OPEN = """
import json, sys, time
import pyarrow.parquet, penstock, penstock._src.load.loader, penstock._src.stores.lerobot.store

def kib(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))

def step(call):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before, began, used = kib("VmRSS"), time.perf_counter(), time.process_time()
    made = call()
    return made, [time.perf_counter() - began, time.process_time() - used, (kib("VmHWM") - before) * 1024]

store, opening = step(lambda: penstock.open(sys.argv[1]))
loader, loading = step(lambda: penstock.Loader(store, batch_size=8, memory="1GiB"))
print(json.dumps([opening, loading, store.episodes, store.rows]))
"""


@dataclass(frozen=True)
class Size:
    """One job: how many recordings, and what it took."""

    recordings: int
    seconds: float
    cpu_s: float
    peak_bytes: int
    own_bytes: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer recordings and episodes, under a minute")
    parser.add_argument("--keep", metavar="DIR", help="make the data here and keep it")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        counts, episodes = ((150, 250), 5_000) if args.quick else ((50, 200, 800, 2_000), 100_000)
        finish([*_growth(directory, counts), *_opening(directory, episodes)])
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _growth(directory: Path, counts: tuple[int, ...]) -> list[Claim]:
    recordings = make_recordings(directory / "recordings", counts[-1])
    sizes = []
    print(f"{'recordings':>10} {'seconds':>9} {'CPU s':>8} {'peak MB':>9} {'penstock/ KB':>13} {'KB/episode':>11}")
    for count in counts:
        size = _convert(directory, recordings[:count])
        sizes.append(size)
        shown = f"{size.recordings:>10,} {size.seconds:>9.2f} {size.cpu_s:>8.2f} {size.peak_bytes / MB:>9.1f}"
        print(f"{shown} {size.own_bytes / 1000:>13.1f} {size.own_bytes / 1000 / count:>11.2f}", flush=True)
    first, last = sizes[0], sizes[-1]
    more = last.recordings - first.recordings
    wall_ms, cpu_ms = (1000 * (b - a) / more for a, b in ((first.seconds, last.seconds), (first.cpu_s, last.cpu_s)))
    growth_bytes = last.peak_bytes - first.peak_bytes
    print(
        f"one more recording: {wall_ms:.1f} ms ({cpu_ms:.1f} ms of CPU time), "
        f"{(last.own_bytes - first.own_bytes) / more / 1000:.2f} KB on disk; "
        f"the largest job peaks {growth_bytes / MB:.1f} MB above the smallest"
    )
    many = f"{first.recordings:,} to {last.recordings:,} recordings of one second"
    claims = [
        Claim(f"{many}: time per recording, ms", wall_ms, "<= 30"),
        Claim(f"{many}: CPU time per recording, ms", cpu_ms, "<= 30"),
        Claim(f"{many}: growth of the peak, MB", growth_bytes / MB, "<= 30"),
    ]
    if last.recordings < _MANY:
        return claims
    per_episode, further = last.own_bytes / 1000 / last.recordings, (last.own_bytes - first.own_bytes) / 1000 / more
    return [
        *claims,
        Claim(f"{last.recordings:,} episodes: penstock/ per episode, KB", per_episode, "<= 2"),
        Claim(f"{many}: penstock/ per further episode, KB", further, "<= 2"),
    ]


def _convert(directory: Path, recordings: list[Path]) -> Size:
    here, out = directory / "inputs", directory / "out"
    shutil.rmtree(here, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    here.mkdir()
    for path in recordings:
        os.link(path, here / path.name)
    os.sync()  # what the job before left for the disk must not slow this one
    done = run([sys.executable, "-c", _CONVERT, str(here), str(out)])
    seconds, cpu_s, episodes = json.loads(done.output)
    if episodes != len(recordings):
        raise SystemExit(f"{episodes} episodes of {len(recordings)} recordings")
    own_bytes = sum(path.stat().st_size for path in (out / "penstock").rglob("*"))
    shutil.rmtree(here)
    shutil.rmtree(out)
    return Size(len(recordings), seconds, cpu_s, done.peak_rss_bytes, own_bytes)


def _opening(directory: Path, episodes: int) -> list[Claim]:
    root = make_data_set(directory / f"episodes-{episodes}", episodes)
    done = subprocess.run([sys.executable, "-c", _OPEN, str(root)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    opening, loading, found, rows = json.loads(done.stdout)
    if (found, rows) != (episodes, episodes * ROWS):
        raise SystemExit(f"{found:,} episodes and {rows:,} rows instead of {episodes:,} and {episodes * ROWS:,}")
    print(f"\n{episodes:,} episodes, {rows:,} rows, {sum(1 for _ in root.rglob('*.*')):,} files")
    for name, (seconds, cpu_s, peak_bytes) in (("penstock.open", opening), ("Loader(store)", loading)):
        print(f"{name:<16} {seconds:>6.2f} s ({cpu_s:.2f} s of CPU time), peak {peak_bytes / MB:+.1f} MB")
    what = f"penstock.open of {episodes:,} episodes"
    return [
        Claim(f"{what}: seconds", opening[0], "<= 2"),
        Claim(f"{what}: MB above what was imported", opening[2] / MB, "<= 100"),
        Claim("Loader over it: seconds", loading[0], "<= 2"),
        Claim("Loader over it: further MB", loading[2] / MB, "<= 100"),
    ]


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).resolve().parent.parent / "src"))
    main()
