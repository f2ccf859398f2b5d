"""Loading from a bucket: samples/s against the bare client, the second epoch, memory, and a cold open.

A range server with injected latency runs on this machine, in a process of its own, and so on the same cores as what is
measured. Three JPEG cameras of 480×640, read at random. In alternating turns, with the same ranges:

    bare    obstore alone: threads that call get_range, no decoding: the ceiling
    read    penstock's own way to the stored bytes: prefetch, read; no decoding
    load    penstock.Loader: decoded and resized, exactly shuffled
    local   the same from a local disk: where decoding on these cores is the limit, this is its ceiling

`python benchmarks/remote.py --quick` takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from episodes_data import make_data_set
from load_data import data_set
from measure import Claim, finish, run

HERE = Path(__file__).resolve().parent
BATCH = 64
MEMORY_MIB = 768
INTERPRETER_MIB = 120  # Python, numpy and what importing penstock brings, which no budget counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn")
    parser.add_argument("--data", type=Path, help="where data is made and kept")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds = 2, 3.0
    with tempfile.TemporaryDirectory(prefix="penstock-remote-") as made:
        root = args.data or Path(made)
        root.mkdir(parents=True, exist_ok=True)
        wanted = data_set(root, 20.0 if args.quick else 60.0, None)
        many = make_data_set(root / "episodes-1000", 1000)
        buckets = root / "buckets"
        for name, target in (("cameras", wanted), ("many", many)):
            (buckets / name).mkdir(parents=True, exist_ok=True)
            link = buckets / name / "set"
            link.unlink(missing_ok=True)
            link.symlink_to(target)
        finish(measured(buckets, args))


def measured(buckets: Path, args: argparse.Namespace) -> list[Claim]:
    claims: list[Claim] = []
    latencies = (50,) if args.quick else (10, 50, 150)
    print(f"\n{'latency':>8} {'in flight':>9} | {'bare':>8} {'read':>8} {'load':>8} {'local':>8} samples/s | "
          "read/bare  load/min(bare, local)")  # fmt: skip
    for latency_ms in latencies:
        with served(buckets, latency_ms) as url:
            for in_flight in (64, 192):
                claims += compared(url, buckets, latency_ms, in_flight, args)
    with served(buckets, 50) as url:
        claims += [*opened(url, args), *second_epoch(url, buckets, args)]
    return claims


def compared(url: str, buckets: Path, latency_ms: int, in_flight: int, args: argparse.Namespace) -> list[Claim]:
    found: dict[str, list[float]] = {"bare": [], "read": [], "load": [], "local": []}
    peaks = []
    for _ in range(args.rounds):
        for way, rates in found.items():
            is_local = way == "local"
            place = str(buckets / "cameras" / "set") if is_local else url
            told, peak = child("load" if is_local else way, place, in_flight, args)
            rates.append(float(told["samples_per_s"]))
            if way == "load":
                peaks.append(peak)
    middle = {way: statistics.median(rates) for way, rates in found.items()}
    turns = list(zip(*(found[way] for way in ("bare", "read", "load", "local")), strict=True))
    read = statistics.median(read / bare for bare, read, _, _ in turns)
    load = statistics.median(load / min(bare, local) for bare, _, load, local in turns)
    print(f"{latency_ms:>6} ms {in_flight:>9} | {middle['bare']:>8.1f} {middle['read']:>8.1f} {middle['load']:>8.1f} "
          f"{middle['local']:>8.1f}           | {read:>8.2f}  {load:>9.2f}", flush=True)  # fmt: skip
    where = f"{latency_ms} ms, {in_flight} in flight"
    claims = [
        Claim(f"{where}: stored bytes, penstock over the bare client", read, ">= 0.9"),
        Claim(f"{where}: batches, over the bare client or a local disk, whichever is less", load, ">= 0.9"),
    ]
    most = max(peaks) / (1 << 20)
    claims.append(Claim(f"{where}: MiB that the loader takes, of {MEMORY_MIB} and the interpreter", most,
                        f"<= {MEMORY_MIB + INTERPRETER_MIB}"))  # fmt: skip
    return claims


def opened(url: str, args: argparse.Namespace) -> list[Claim]:
    told = [child("open", url, 64, args)[0] for _ in range(args.rounds)]
    seconds = statistics.median(each["seconds"] for each in told)
    requests, episodes = told[0]["requests"], told[0]["episodes"]
    print(f"\ncold open of {episodes:,} episodes at 50 ms: {seconds:.2f} s, {requests} requests")
    return [Claim(f"cold open of {episodes:,} episodes at 50 ms, seconds", seconds, "<= 1.0")]


def second_epoch(url: str, buckets: Path, args: argparse.Namespace) -> list[Claim]:
    """From the view, against a data set on the disk whose view is filled."""
    ratios, requests = [], 0
    for _ in range(args.rounds):
        remote, _ = child("view", url, 64, args)
        local, _ = child("view", str(buckets / "cameras" / "set"), 64, args)
        ratios.append(remote["samples_per_s"] / local["samples_per_s"])
        requests = max(requests, remote["requests"])
    print(f"second epoch from the view: {statistics.median(ratios):.2f} of local data, {requests} requests")
    return [
        Claim("second epoch from the view over that of local data", statistics.median(ratios), ">= 0.9"),
        Claim("requests of a second epoch", requests, "<= 0"),
    ]


def child(way: str, url: str, in_flight: int, args: argparse.Namespace) -> tuple[dict[str, Any], int]:
    place = url if "://" not in url else f"s3://{'many' if way == 'open' else 'cameras'}/set"
    command = [sys.executable, str(HERE / "remote_child.py"), way, place, "--seconds", str(args.seconds),
               "--batch", str(BATCH), "--memory", f"{MEMORY_MIB}MiB"]  # fmt: skip
    environment = {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret",
        "PENSTOCK_REMOTE_IN_FLIGHT": str(in_flight),
    }  # fmt: skip
    done = run(command, env=environment, memory=way == "load")
    told: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    return told, done.own_rss_bytes


@contextmanager
def served(buckets: Path, latency_ms: float) -> Iterator[str]:
    """The server, in a process of its own."""
    command = [sys.executable, "-m", "tests.remote.server", str(buckets), "--latency-ms", str(latency_ms)]
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parent}:{os.environ.get('PYTHONPATH', '')}"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=HERE.parent, env=environment)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[0]
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
