"""Converting against `cp` and against LeRobot's own writer, on the same recording in the same run.

    python benchmarks/convert.py [--quick] [--lerobot-python PATH] [--sizes 2 8] [--against SRC] [--keep DIR]

Time: whole commands, start-up included, median of several rounds in which the commands take turns; everything in the
page cache. Memory: peak RSS of the process tree.
"""

from __future__ import annotations

import argparse
import compileall
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from measure import Claim, Run, alternate, finish, median_seconds, run

from penstock._src.demo.recording import Script, write_recording

HERE = Path(__file__).resolve().parent
BYTES_PER_SECOND = 8.2e6  # of the made recording: three cameras at 30 fps, about 92 KB an image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smaller recording, under a minute")
    parser.add_argument("--lerobot-python", metavar="PATH", help="a Python with lerobot 0.6.1 and penstock in it")
    parser.add_argument(
        "--sizes", nargs="*", type=float, default=None, metavar="GB", help="long recordings for the memory claims"
    )
    parser.add_argument("--rounds", type=int, default=None, help="how often the timed commands take turns")
    parser.add_argument("--peer-rows", type=int, default=None, help="rows that LeRobot's writer is given")
    parser.add_argument("--against", metavar="SRC", help="the src folder of another version, timed in turns")
    parser.add_argument("--keep", metavar="DIR", help="make the recordings here and keep them")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        finish(_claims(args, directory))
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _claims(args: argparse.Namespace, directory: Path) -> list[Claim]:
    seconds = 15.0 if args.quick else 60.0
    bag = _recording(directory, seconds)
    rounds = args.rounds or (5 if args.quick else 15)
    claims, ours = _speed(bag, directory, rounds, args.against)
    sizes = ([] if args.quick else [2.0, 8.0]) if args.sizes is None else args.sizes
    if sizes:  # the start of Python weighs less on a longer recording
        claims += _speed(_long(directory, sizes[0]), directory, 5, args.against)[0]
    claims += _memory(bag, directory, sizes)
    if args.lerobot_python:
        claims += _peer(args, bag, directory, ours)
    return claims


def _long(directory: Path, gigabytes: float) -> Path:
    return _recording(directory, gigabytes * 1e9 / BYTES_PER_SECOND + 20)


def _recording(directory: Path, seconds: float) -> Path:
    path = directory / f"run-{seconds:.0f}s.bag"
    if not path.exists():
        distinct = None if seconds <= 60 else 600
        write_recording(path, Script(seconds=seconds, quality=95, distinct_images=distinct))
    size = path.stat().st_size / 1e6
    print(f"recording {path.name}: {size:,.0f} MB, {seconds:.0f} s, three 640×480 JPEG cameras at 30 fps")
    return path


def _penstock(bag: Path, out: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "penstock", "convert", str(bag), str(out), "--json", *words]


def _speed(bag: Path, directory: Path, rounds: int, against: str | None) -> tuple[list[Claim], float]:
    copy, out = directory / "copy.bag", directory / "out"
    actions = {"cp": ["cp", str(bag), str(copy)], "penstock": _penstock(bag, out)}
    if against:
        for source in (against, HERE.parent / "src"):  # a version that compiles its modules each time starts later
            compileall.compile_dir(source, quiet=1)
        actions["other"] = ["env", f"PYTHONPATH={Path(against).resolve()}", *_penstock(bag, out)]
    fresh = {"cp": [copy], "penstock": [out], "other": [out]}
    alternate(actions, rounds=1, before=fresh)  # warms the page cache and the imports
    results = alternate(actions, rounds=rounds, before=fresh)
    cp_s, ours_s = median_seconds(results["cp"]), median_seconds(results["penstock"])
    report = json.loads(results["penstock"][-1].output)
    print(f"cp                      {cp_s:8.3f} s")
    inside = f"inside the process {report['seconds']:.3f} s"
    print(f"penstock convert        {ours_s:8.3f} s  ({inside}), {report['frames']:,} rows")
    print(
        "each round: "
        + ", ".join(f"{o.seconds / c.seconds:.1f}×" for o, c in zip(results["penstock"], results["cp"], strict=True))
    )
    copy.unlink()
    shutil.rmtree(out)
    size = f"{bag.stat().st_size / 1e9:.1f} GB"
    claims = [Claim(f"video: copy of {size}, whole command, against cp (times)", ours_s / cp_s, "<= 4")]
    if against:
        turns = zip(results["penstock"], results["other"], strict=True)
        ratio = statistics.median(ours.seconds / other.seconds for ours, other in turns)
        print(f"the other version       {median_seconds(results['other']):8.3f} s")
        claims.append(Claim(f"video: copy of {size}, against the other version (times)", ratio, "<= 1.05"))
    return claims, ours_s / report["frames"]


def _memory(bag: Path, directory: Path, sizes: list[float]) -> list[Claim]:
    out = directory / "out"
    peaks: dict[str, int] = {}

    def measured(source: Path, label: str, *words: str) -> Run:
        shutil.rmtree(out, ignore_errors=True)
        result = run(_penstock(source, out, *words))
        report = json.loads(result.output)
        print(
            f"{label:<28} {result.seconds:8.2f} s   peak {result.peak_rss_bytes / 1e6:6.1f} MB   "
            f"predicted {report['predicted_peak_bytes'] / 1e6:6.1f} MB   {report['frames']:,} rows"
        )
        return result

    peaks["short"] = measured(bag, f"copy, {bag.stat().st_size / 1e9:.2f} GB").peak_rss_bytes
    for gigabytes in sizes:
        long = _long(directory, gigabytes)
        peaks[f"{gigabytes:g} GB"] = measured(long, f"copy, {long.stat().st_size / 1e9:.2f} GB").peak_rss_bytes
    claims = [Claim("peak RSS of video: copy, the largest (MB)", max(peaks.values()) / 1e6, "<= 200")]
    if sizes:
        claims.append(
            Claim(
                "peak RSS, the largest against the smallest recording (times)",
                max(peaks.values()) / min(peaks.values()),
                "<= 1.1",
            )
        )
    for codec in ("h264", "av1"):
        peak = measured(bag, codec, f"video={codec}").peak_rss_bytes
        claims.append(Claim(f"peak RSS with {codec} (MB)", peak / 1e6, "<= 600"))
    shutil.rmtree(out, ignore_errors=True)
    return claims


def _peer(args: argparse.Namespace, bag: Path, directory: Path, ours_s_per_row: float) -> list[Claim]:
    claims = []
    for mode, bar, rows in (("video", 60, args.peer_rows or 300), ("stream", 25, args.peer_rows or 300)):
        out = directory / f"peer-{mode}"
        shutil.rmtree(out, ignore_errors=True)
        result = run(
            [args.lerobot_python, str(HERE / "peers" / "lerobot_writer.py"), mode, str(bag), str(out), str(rows)]
        )
        found = json.loads(result.output.strip().splitlines()[-1])
        per_row_s = found["seconds"] / found["rows"]
        print(
            f"LeRobot writer, {mode:<10} {found['seconds']:8.2f} s for {found['rows']:,} rows, "
            f"peak {result.peak_rss_bytes / 1e6:,.0f} MB"
        )
        claims.append(
            Claim(f"faster per row than LeRobot's {mode} writer (times)", per_row_s / ours_s_per_row, f">= {bar}")
        )
        shutil.rmtree(out, ignore_errors=True)
    return claims


if __name__ == "__main__":
    main()
