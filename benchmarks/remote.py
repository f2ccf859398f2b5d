"""Loading from a bucket: samples/s against the bare client, the second epoch, memory, and a cold open.

A range server with injected latency runs on this machine, in a process of its own, and so on the same cores as what is
measured. Three JPEG cameras of 480×640, read at random. In alternating turns, with the same ranges:

    bare    obstore alone: threads that call get_range, no decoding: the ceiling
    read    penstock's own way to the stored bytes: prefetch, read; no decoding
    decoded obstore and OpenCV alone: the same, and threads that decode and resize what came: the ceiling of batches
    load    penstock.Loader: decoded and resized, exactly shuffled
    local   the same from a local disk

LeRobot's `StreamingLeRobotDataset` reads the same sets from the same server, which speaks as the Hub does: one with
JPEG video, as penstock writes it, and one with AV1, as LeRobot records. Penstock reads them there by `hf://`, too, with
64 and with 192 requests in flight. Both resize to 224². LeRobot goes through the files in turn and shuffles among 100
decoded samples (its default is 1,000, which take ten times as long to fill). Penstock shuffles globally. LeRobot reads
5 MB at a time, so latency hardly counts for it.

    python benchmarks/remote.py [--quick] [--only compare open view peer] [--lerobot-python PATH]

`--quick` takes about a minute.
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

from contend import Contest
from episodes_data import make_data_set
from load_data import data_set
from measure import Claim, finish, run

HERE = Path(__file__).resolve().parent
PARTS = ("compare", "open", "view", "peer")
WAYS = ("bare", "read", "decoded", "load", "local")
IN_FLIGHT = (64, 192)
HUB_SETS = {"JPEG": ("penstock/bench", None), "AV1": ("penstock/bench-av1", "av1")}  # name, video
PEER_LIMIT_S = 120.0
BATCH = 64
MEMORY_MIB = 768
INTERPRETER_MIB = 120  # Python, numpy and what importing penstock brings, which no budget counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="of a turn")
    parser.add_argument("--data", type=Path, help="where data is made and kept")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--lerobot-python", metavar="PATH", help="a Python with lerobot 0.6.1 in it")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds = 2, 3.0
    with tempfile.TemporaryDirectory(prefix="penstock-remote-") as made:
        root = args.data or Path(made)
        root.mkdir(parents=True, exist_ok=True)
        seconds = 20.0 if args.quick else 60.0
        links = {"cameras/set": data_set(root, seconds, None)}
        for name, video in HUB_SETS.values() if "peer" in args.only and args.lerobot_python else ():
            wanted = data_set(root, seconds, video)
            links |= {f"{name.replace('/', '--')}/{part}": wanted / part for part in ("data", "meta", "videos")}
        if "open" in args.only:
            links["many/set"] = make_data_set(root / "episodes-1000", 1000)
        for name, target in links.items():
            link = root / "buckets" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(target.absolute())
        finish(measured(root / "buckets", args))


def measured(buckets: Path, args: argparse.Namespace) -> list[Claim]:
    claims: list[Claim] = []
    if "compare" in args.only:
        claims += compared_at_latencies(buckets, args)
    with served(buckets, 50) as url:
        if "open" in args.only:
            claims += opened(url, args)
        if "view" in args.only:
            claims += second_epoch(url, buckets, args)
        if "peer" in args.only:
            for kind, (name, _) in HUB_SETS.items():
                claims += against_lerobot(url, kind, name, args)
    return claims


def compared_at_latencies(buckets: Path, args: argparse.Namespace) -> list[Claim]:
    claims: list[Claim] = []
    latencies = (50,) if args.quick else (10, 50, 150)
    names = " ".join(f"{way:>8}" for way in WAYS)
    print(f"\n{'latency':>9} {'in flight':>9} | {names} samples/s | read/bare load/decoded load/min(bare, local)")
    for latency_ms in latencies:
        with served(buckets, latency_ms) as url:
            for in_flight in IN_FLIGHT:
                claims += compared(url, buckets, latency_ms, in_flight, args)
    return claims


def compared(url: str, buckets: Path, latency_ms: int, in_flight: int, args: argparse.Namespace) -> list[Claim]:
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(args.rounds):
        for way, rates in found.items():
            is_local = way == "local"
            place = str(buckets / "cameras" / "set") if is_local else url
            told, _ = child("load" if is_local else way, place, in_flight, args)
            rates.append(float(told["samples_per_s"]))
    middle = {way: statistics.median(rates) for way, rates in found.items()}

    def over(way: str, *others: str) -> float:
        """By turns, over the lesser of the others."""
        least = [min(rates) for rates in zip(*(found[each] for each in others), strict=True)]
        return statistics.median(rate / limit for rate, limit in zip(found[way], least, strict=True))

    read, load, local = over("read", "bare"), over("load", "decoded"), over("load", "bare", "local")
    rates = " ".join(f"{rate:>8.1f}" for rate in middle.values())
    print(f"{latency_ms:>6} ms {in_flight:>9} | {rates} {'':9} | {read:>9.2f} {load:>12.2f} {local:>21.2f}", flush=True)
    where = f"{latency_ms} ms, {in_flight} in flight"
    claims = [
        Claim(f"{where}: stored bytes, penstock over the bare client", read, ">= 0.9"),
        Claim(f"{where}: batches, over the bare client with OpenCV", load, ">= 0.9"),
        Claim(f"{where}: batches, over the bare client or a local disk, informational", local, ">= 0"),
    ]
    most = child("load", url, in_flight, args, memory=True)[1] / (1 << 20)
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
    """From the view, against a data set on the disk whose view is filled.

    An epoch takes some 30 ms, nearly all of it copying memory: one long turn each would compare two moments of the
    machine. So both are ready before, and take many short turns.
    """
    words = ("--seconds", 0.25, "--batch", BATCH, "--memory", f"{MEMORY_MIB}MiB")
    os.environ.update(environment_of(url, 64))
    print()
    with Contest() as contest:
        remote = contest.add("second epoch of s3://", "remote_child.py", "view", "s3://cameras/set", *words)
        local = contest.add(
            "second epoch of a local disk", "remote_child.py", "view", buckets / "cameras" / "set", *words
        )
        contest.play(8 * args.rounds)
        ratio = statistics.median(far / near for far, near in zip(remote.rates, local.rates, strict=True))
        cpu, requests = remote.cpu_s / local.cpu_s, remote.last["requests"]
    print(f"second epoch from the view: {ratio:.2f} of local data, {cpu:.2f} of its CPU, {requests} requests")
    return [
        Claim("second epoch from the view over that of local data", ratio, ">= 0.9"),
        Claim("requests of a second epoch", requests, "<= 0"),
    ]


def against_lerobot(url: str, kind: str, hub_name: str, args: argparse.Namespace) -> list[Claim]:
    """The same set from the same server, in turns."""
    if not args.lerobot_python:
        print("StreamingLeRobotDataset: not run: --lerobot-python names no Python with lerobot")
        return []
    words = ["--seconds", str(args.seconds)]
    ours = [sys.executable, str(HERE / "remote_child.py"), "load", f"hf://datasets/{hub_name}", *words,
            "--batch", str(BATCH), "--memory", f"{MEMORY_MIB}MiB"]  # fmt: skip
    theirs = [args.lerobot_python, str(HERE / "peers" / "lerobot_streaming.py"), hub_name, *words]
    commands = {f"penstock, {in_flight} in flight": (ours, in_flight) for in_flight in IN_FLIGHT}
    commands["StreamingLeRobotDataset"] = theirs, 0
    found: dict[str, list[float]] = {name: [] for name in commands}
    peaks = dict.fromkeys(found, 0)
    for turn in range(args.rounds + 1):
        for name, (command, in_flight) in commands.items():
            is_timed = turn < args.rounds  # the last turn is for its memory
            environment = {"HF_ENDPOINT": url, "PENSTOCK_REMOTE_IN_FLIGHT": str(in_flight or 64)}
            try:
                done = run(command, env=environment, memory=not is_timed, timeout_s=PEER_LIMIT_S)
            except subprocess.TimeoutExpired:
                print(f"{name}: not run: it took more than {PEER_LIMIT_S:.0f} s")
                return []
            if is_timed:
                found[name].append(float(json.loads(done.output.splitlines()[-1])["samples_per_s"]))
            else:
                peaks[name] = done.own_rss_bytes
    print(f"\nthree cameras of {kind} video from a Hub at 50 ms:")
    for name, rates in found.items():
        print(f"  {name:<24} {statistics.median(rates):>7.1f} samples/s, peak {peaks[name] / (1 << 20):>6,.0f} MiB")
    *own, theirs_per_s = found.values()
    claims = []
    for in_flight, rates in zip(IN_FLIGHT, own, strict=True):
        ratio = statistics.median(mine / other for mine, other in zip(rates, theirs_per_s, strict=True))
        about = f"{kind}: samples/s from a Hub at 50 ms, {in_flight} in flight, over LeRobot's StreamingLeRobotDataset"
        claims.append(Claim(about, ratio, ">= 10" if in_flight == IN_FLIGHT[-1] else ">= 0"))
    return claims


def child(
    way: str, url: str, in_flight: int, args: argparse.Namespace, *, memory: bool = False
) -> tuple[dict[str, Any], int]:
    """What it says, and its peak memory where that is watched, which takes time."""
    place = url if "://" not in url else f"s3://{'many' if way == 'open' else 'cameras'}/set"
    command = [sys.executable, str(HERE / "remote_child.py"), way, place, "--seconds", str(args.seconds),
               "--batch", str(BATCH), "--memory", f"{MEMORY_MIB}MiB"]  # fmt: skip
    done = run(command, env=environment_of(url, in_flight), memory=memory)
    told: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    return told, done.own_rss_bytes


def environment_of(url: str, in_flight: int) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test-key", "AWS_SECRET_ACCESS_KEY": "test-secret",
        "PENSTOCK_REMOTE_IN_FLIGHT": str(in_flight),
    }  # fmt: skip


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
