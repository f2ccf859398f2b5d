"""Loading against hand-written buffers, LeRobot and the bare work, on the same data in the same run.

    python benchmarks/load.py [--quick] [--lerobot-python PATH] [--peers-python PATH] [--cold]
                              [--only replay lerobot memory open] [--keep DIR]

Speed: every contender is a process of its own with two threads or two workers; they take turns in rounds, and what is
shown is the median. A round is a run of batches in the steady state, after some that are not counted. Everything is in
the page cache, except with --cold. Memory: see benchmarks/load_memory.py.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import load_data as data
from contend import Contender, ContenderFailed, Contest
from load_memory import memory_claims
from load_open import open_claims
from measure import Claim, finish

OURS = "load_contender.py"
PARTS = ("replay", "lerobot", "memory", "open")
CAMERAS = 3


@dataclass(frozen=True)
class Amounts:
    """How much is made and measured."""

    replay_rows: int
    set_seconds: float
    av1_seconds: float
    sparse_rows: int
    memory_batches: int
    rounds: int
    scale: float
    """Of the batches in a round."""

    def batches(self, count: int) -> int:
        return max(4, int(count * self.scale) // 2 * 2)  # even: two workers deliver in pairs


FULL = Amounts(1500, 60.0, 12.0, 8000, 2000, 5, 1.0)
QUICK = Amounts(1000, 15.0, 6.0, 2400, 400, 3, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="less data and fewer batches, under two minutes")
    parser.add_argument("--lerobot-python", metavar="PATH", help="a Python with lerobot 0.6.1 in it")
    parser.add_argument("--peers-python", metavar="PATH", help="a Python with some of torchrl, robomimic, spdl in it")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument("--rounds", type=int, default=None, help="how often the contenders take turns")
    parser.add_argument("--cold", action="store_true", help="also: speed when the page cache has been dropped before")
    parser.add_argument("--keep", metavar="DIR", help="make the data here and keep it")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    busy = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load average {busy:.1f}" + (": not quiet enough for figures" if busy > 0.7 else ""))
    try:
        finish(_claims(args, directory, QUICK if args.quick else FULL))
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _claims(args: argparse.Namespace, directory: Path, amounts: Amounts) -> list[Claim]:
    claims: list[Claim] = []
    rounds = args.rounds or amounts.rounds
    if "replay" in args.only:
        claims += _replay(args, directory, amounts, rounds)
    if "lerobot" in args.only:
        claims += _data_set(args, directory, amounts, rounds)
        claims += _av1(args, directory, amounts, rounds)
    if "memory" in args.only:
        _head("Memory: 512 MiB over a file that is larger than it")
        data.need_free(directory, 1e9 + amounts.sparse_rows * CAMERAS * 160e3, 3e9)
        path = data.sparse_file(directory, amounts.sparse_rows)
        claims += memory_claims(path, directory, batches=amounts.memory_batches)
    if "open" in args.only:
        _head("Opening HDF5 files, with the child that looks first and without")
        claims += open_claims(directory)
    return claims


def _head(text: str) -> None:
    print(f"\n{text}", flush=True)


def _replay(args: argparse.Namespace, directory: Path, amounts: Amounts, rounds: int) -> list[Claim]:
    _head("Replay HDF5: transitions, batch 256, uint8 224², two threads")
    raw_bytes = amounts.replay_rows * CAMERAS * data.HEIGHT * data.WIDTH * 3
    data.need_free(directory, 1.5 * raw_bytes, raw_bytes + 5e9)
    path = data.replay_file(directory, amounts.replay_rows)
    data.read_through([path])
    load = ("load", path, "--window", "transition", "--batch", 256, "--memory", "4GiB")
    with Contest() as contest:
        naive = contest.add(
            "naive buffer (h5py, resize, stack)", "naive_replay.py", path, "--batches", amounts.batches(6)
        )
        bare = contest.add("resizes alone, from memory", "bare_opencv.py", "resize", path)
        off = contest.add("penstock, view off", OURS, *load, "--batches", amounts.batches(20))
        view = contest.add("penstock, view in RAM", OURS, *load, "--view", "ram", "--batches", amounts.batches(80))
        contest.play(rounds, units=("samples", "images", "samples", "samples"))
    distinct = _distinct_per_sample(off)
    images_per_s = off.per_s * distinct
    print(f"view off: {images_per_s:,.0f} images/s resized ({distinct:.2f} of 6 in a sample, as rows recur)")
    if args.cold:
        _cold("naive buffer", [path], "naive_replay.py", path, "--batches", 1, "--warmup", 0)
        _cold("penstock, view off", [path], OURS, *load, "--batches", 4, "--warmup", 0)
    _other_replay(args, directory, path, rounds)
    return [
        Claim("replay HDF5, view off, against the naive buffer (times)", off.per_s / naive.per_s, ">= 2"),
        Claim("replay HDF5, view off, share of what resizes alone reach", images_per_s / bare.per_s, ">= 0.65"),
        Claim("replay HDF5, view in RAM, against the naive buffer (times)", view.per_s / naive.per_s, ">= 15"),
    ]


def _distinct_per_sample(contender: Contender) -> float:
    """Images that were really made per sample: a row that a batch needs twice is read once."""
    stats = contender.last["stats"]
    return float(stats["images_made"] + stats["view_hits"]) / float(stats["samples"])


def _cold(name: str, paths: list[Path], script: str, *words: object) -> None:
    with Contest() as contest:
        contender = contest.add(f"cold: {name}", script, *words)
        for _ in range(3):
            data.forget(paths)
            contender.play()
        print(contender.line(), flush=True)
    data.read_through(paths)


def _other_replay(args: argparse.Namespace, directory: Path, path: Path, rounds: int) -> None:
    """Peers that keep or read images in another way: for information, where they are installed."""
    if not args.peers_python:
        return
    scratch = directory / "torchrl"
    scratch.mkdir(exist_ok=True)
    _informed("TorchRL, memmap of 224² images", rounds, args.peers_python, "torchrl_replay.py", path, scratch)
    shutil.rmtree(scratch)
    demos = data.demonstrations(directory, path, data.EPISODE_ROWS)
    name = "robomimic SequenceDataset, full size, batch 32"
    _informed(name, rounds, args.peers_python, "robomimic_sequence.py", demos)
    demos.unlink()


def _informed(name: str, rounds: int, python: str, script: str, *words: object, unit: str = "samples") -> None:
    try:
        with Contest() as contest:
            contest.add(name, script, *words, python=python)
            contest.play(min(rounds, 3), units=(unit,))
    except ContenderFailed as error:
        print(f"{name}: absent ({str(error).strip().splitlines()[-1]})")


def _data_set(args: argparse.Namespace, directory: Path, amounts: Amounts, rounds: int) -> list[Claim]:
    _head("LeRobot set, MJPEG as penstock writes it: single rows, batch 32, two threads or two workers")
    root = data.data_set(directory, amounts.set_seconds, None)
    frames = data.jpeg_frames(root)
    data.read_through([root])
    peer = ("lerobot_loader.py", root, "--batches", amounts.batches(16))
    full_size = ("--size", data.HEIGHT, data.WIDTH, "--dtype", "float32")
    with Contest() as contest:
        bare = contest.add(
            "OpenCV: decode at ½, resize, alone",
            "bare_opencv.py",
            "decode",
            frames,
            "--images",
            96,
            "--batches",
            amounts.batches(40),
        )
        full = contest.add(
            "penstock, float32, full size", OURS, "load", root, *full_size, "--batches", amounts.batches(24)
        )
        train = contest.add("penstock, uint8 224²", OURS, "load", root, "--batches", amounts.batches(48))
        from_view = ("load", root, "--view", "ram", "--batches", amounts.batches(800))
        view = contest.add("penstock, uint8 224², view in RAM", OURS, *from_view)
        theirs = []
        if args.lerobot_python:
            theirs.append(contest.add("LeRobotDataset, float32, full size", *peer, python=args.lerobot_python))
            if not args.quick:
                theirs.append(
                    contest.add("LeRobotDataset, resized to 224²", *peer, "--size", 224, python=args.lerobot_python)
                )
        contest.play(rounds, units=("images",))
    if args.cold:
        _cold("penstock, uint8 224²", [root], OURS, "load", root, "--batches", 8, "--warmup", 0)
    if args.peers_python:
        _informed("SPDL: decode and resize, alone", rounds, args.peers_python, "spdl_decode.py", frames, unit="images")
    made = train.per_s * _distinct_per_sample(train)
    claims = [
        Claim("LeRobot MJPEG, share of what bare OpenCV decode + resize reaches", made / bare.per_s, ">= 0.85"),
        _engines(root, amounts),
    ]
    if theirs:
        best = max(each.per_s for each in theirs)
        claims += [
            Claim(
                "LeRobot MJPEG, float32 at full size, against LeRobotDataset (times)",
                full.per_s / theirs[0].per_s,
                ">= 2.5",
            ),
            Claim("LeRobot MJPEG, uint8 224², against LeRobotDataset's best (times)", train.per_s / best, ">= 4.5"),
            Claim("LeRobot MJPEG, view in RAM, against LeRobotDataset's best (times)", view.per_s / best, ">= 40"),
        ]
    return claims


def _engines(root: Path, amounts: Amounts) -> Claim:
    """What the hand-over from an engine process takes: a few per cent, less than two rounds differ by."""
    with Contest() as contest:
        words = ("--batches", amounts.batches(300), "--turns", amounts.batches(48))
        found = contest.add("both engines", OURS, "engines", root, *words).play()
    quarters = statistics.quantiles(found["ratios"], n=4)
    print(
        f"view in RAM, {len(found['ratios'])} turns: engine process {found['process_per_s']:,.0f} samples/s, threads "
        f"{found['threads_per_s']:,.0f}; ratio {found['ratio']:.3f}, middle half {quarters[0]:.3f}–{quarters[2]:.3f}"
    )
    return Claim("view in RAM, engine process over threads (samples/s)", found["ratio"], ">= 0.97")


def _av1(args: argparse.Namespace, directory: Path, amounts: Amounts, rounds: int) -> list[Claim]:
    if not args.lerobot_python:
        return []
    _head("LeRobot set, AV1: the view is built in one pass, then read")
    root = data.data_set(directory, amounts.av1_seconds, "av1")
    data.read_through([root])
    with Contest() as contest:
        theirs = contest.add(
            "LeRobotDataset, random rows",
            "lerobot_loader.py",
            root,
            "--batches",
            amounts.batches(8),
            python=args.lerobot_python,
        )
        build = contest.add("penstock: build_view 224²", OURS, "build", root)
        contest.play(min(rounds, 4), units=("samples", "images"))
    with Contest() as contest:  # apart: as long as a process has a view in RAM, `build_view` finds it filled
        view = contest.add(
            "penstock, uint8 224², view in RAM", OURS, "load", root, "--view", "ram", "--batches", amounts.batches(800)
        )
        contest.play(min(rounds, 4))
    return [
        Claim(
            "AV1: build_view per frame, against LeRobotDataset's random reads (times)",
            build.per_s / (theirs.per_s * CAMERAS),
            ">= 5",
        ),
        Claim("AV1, view in RAM, against LeRobotDataset (times)", view.per_s / theirs.per_s, ">= 40"),
    ]


if __name__ == "__main__":
    main()
