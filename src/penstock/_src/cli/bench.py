"""penstock bench: what a conversion takes, measured in processes of their own; what a loader reaches."""

from __future__ import annotations

import argparse
import glob
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock._src.cli.display import count, print_json, row
from penstock._src.system import units
from penstock._src.system.budget import Budget
from penstock._src.system.files import as_path
from penstock.errors import RecordingError, StoreError, UsageError

if TYPE_CHECKING:
    from penstock._src.conversion.bench import BenchRun
    from penstock._src.load.bench.points import LoadBench, Plan, Point

_EPILOG = """\
examples:
  penstock bench convert run.bag --chunk-sizes 0 500 1000 2000 --output-dir trials
  penstock bench convert run.bag --output-dir trials split_episodes=true --memory 512MiB
Each chunk size is converted in a process of its own, to a data set of its own in the output directory.
"""

_LOAD_EPILOG = """\
examples:
  penstock bench load replay.hdf5
  penstock bench load datasets/run --window chunk:20 --batch-sizes 64 256 --view off,ram --json
Batches are dropped at once: the figures are those of the loader, without a training step. A view on disk is made in a
directory of its own in the cache (PENSTOCK_CACHE), and removed afterwards.
"""
_RATES = (
    "samples_per_s", "ms_per_batch", "mb_per_s", "requests_per_s", "remote_mb_per_s", "remote_bytes_per_sample",
)  # fmt: skip
_HEAD = ("view", "batch", "samples/s", "ms/batch", "p95 ms", "MB/s", "peak memory", "from view")


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "bench",
        help="measure memory and time of a conversion or of a loader over your data",
        description="Measure what penstock does with your data on this machine.",
    )
    kinds = parser.add_subparsers(
        title="what", dest="what", metavar="WHAT", required=True, help="what to measure: convert or load"
    )
    _add_convert(kinds)
    _add_load(kinds)


def _add_convert(kinds: Any) -> None:
    parser = kinds.add_parser(
        "convert",
        usage="penstock bench convert [options] SRC… [a.b=c …]",
        help="peak memory, time and episodes of a conversion with several chunk sizes",
        description="Convert recordings once per chunk size and show peak memory, time and episodes of each.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="+", metavar="SRC… [a.b=c …]", help="recordings; configuration words")
    parser.add_argument(
        "--chunk-sizes",
        nargs="+",
        default=["0", "500", "1000", "2000"],
        metavar="ROWS",
        help="rows between two flushes: numbers, 0 for one flush per episode, or auto (default 0 500 1000 2000)",
    )
    parser.add_argument("--output-dir", required=True, metavar="DIR", help="where the data sets are written, and kept")
    parser.add_argument("--config", metavar="FILE", help="YAML configuration")
    parser.add_argument("--config-path", metavar="DIR", help="where a Kuavo configuration lies")
    parser.add_argument("--config-name", metavar="NAME", help="the Kuavo configuration, e.g. KuavoRosbag2Lerobot")
    parser.add_argument("--memory", metavar="SIZE", help="the budget of each conversion, e.g. 512MiB")
    parser.add_argument("--overwrite", action="store_true", help="replace data sets that penstock wrote there before")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from penstock._src.cli.convert import split_words
    from penstock._src.conversion.bench import bench_conversion

    sources, overrides = split_words(args.words)
    if not sources:
        raise UsageError("bench convert needs a recording", hint="penstock bench convert run.bag --output-dir trials")
    for source in sources:
        if not (Path(source).exists() or glob.glob(source, recursive=True)):
            raise RecordingError(f"{source}: no such file or directory")
    for size in args.chunk_sizes:
        if not (size.isdecimal() or size in ("auto", "null")):
            raise UsageError(f"--chunk-sizes: {size!r} is not a number of rows, 0, null or auto")
    options: list[str] = []
    for name in ("config", "config_path", "config_name", "memory"):
        value = getattr(args, name)
        if value is not None:
            options += [f"--{name.replace('_', '-')}", value]
    options += ["--overwrite"] if args.overwrite else []
    bench = bench_conversion(sources, Path(args.output_dir), args.chunk_sizes, [*options, *overrides], _print)
    sys.stdout.write(bench.dumps() if args.json else "\n".join(bench.lines()) + "\n")
    return bench.exit_code


def _print(trial: BenchRun) -> None:
    """One line per trial while they run: a large recording takes its time."""
    ended = "failed" if trial.error is not None else f"{trial.seconds:.1f} s"
    print(f"chunk_size {trial.chunk_size}: {ended}", file=sys.stderr, flush=True)


def _add_load(kinds: Any) -> None:
    parser = kinds.add_parser(
        "load",
        usage="penstock bench load [options] PATH",
        help="samples/s, ms per batch and memory of a loader for several batch sizes, without and with views",
        description="Measure what a loader reaches over a LeRobot data set, an HDF5 file or a directory of episodes.",
        epilog=_LOAD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="what penstock.open opens")
    parser.add_argument(
        "--batch-sizes", nargs="+", default=["64", "128", "256", "512"], metavar="N",
        help="samples of a batch (default 64 128 256 512)",
    )  # fmt: skip
    parser.add_argument("--image-size", default="224x224", metavar="HxW", help="images in a batch: 224x224, or full")
    parser.add_argument(
        "--window", default="auto", metavar="KIND",
        help="what a sample is: row, transition, chunk:20 (of the action), or auto: transition where the data have "
        "rewards or ends, else row",
    )  # fmt: skip
    parser.add_argument("--memory", default="auto", metavar="SIZE", help="the budget of each loader: 2GiB, or auto")
    parser.add_argument("--threads", default="auto", metavar="N", help="threads: a number, cpu*0.5 or auto")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="seconds to measure each point (3)")
    parser.add_argument(
        "--view", default="off,ram,disk", metavar="LIST", help="views to measure, of off, ram and disk (off,ram,disk)"
    )
    parser.add_argument(
        "--fill-seconds", type=float, default=120.0, metavar="S", help="seconds that filling a view may take (120)"
    )
    parser.add_argument("--cold", action="store_true", help="measure without the page cache, too: it is dropped first")
    parser.add_argument(
        "--episodes", metavar="NUMBERS", help="open only these episodes: 0-9,12; whole: those with all files"
    )
    parser.add_argument("--allow-external", action="store_true", help="let HDF5 files refer to other files")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=_run_load)


def _run_load(args: argparse.Namespace) -> int:
    from penstock._src.cli.inspect.stores import describe_store
    from penstock._src.load.bench.measure import bench_load

    plan = _plan_of(args)
    store = describe_store(as_path(plan.path), episodes=plan.episodes, **(plan.options or {}))
    if not store["possible"]:
        raise StoreError(store["reason"], hint=store["hint"])
    bench = bench_load(plan, lambda text: print(text, file=sys.stderr, flush=True))
    if args.json:
        whole = {"exit_code": bench.exit_code, "path": plan.path, "store": store, **_plain(bench, plan)}
        print_json(whole)
    else:
        print("\n".join(_load_lines(bench, plan, store)))
    return bench.exit_code


def _plan_of(args: argparse.Namespace) -> Plan:
    """The words of a call, checked before anything is opened."""
    from penstock._src.cli.inspect.stores import parse_episodes
    from penstock._src.formats import by_directory
    from penstock._src.load.bench.points import Plan

    sizes = [word for words in args.batch_sizes for word in words.split(",") if word]
    for size in sizes:
        if not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--batch-sizes: {size!r} is not a number of samples", hint="--batch-sizes 64 128")
    return Plan(
        path=args.path,
        batch_sizes=tuple(int(size) for size in sizes),
        views=tuple(view.strip() for view in args.view.split(",")),
        cold=args.cold,
        window=args.window,
        image_size=parse_image_size(args.image_size),
        memory=Budget.parse(args.memory).limit_bytes,
        threads=int(args.threads) if args.threads.isdecimal() else args.threads,
        seconds=args.seconds,
        fill_seconds=args.fill_seconds,
        episodes=None if args.episodes is None else parse_episodes(args.episodes),
        options={"allow_external": True} if args.allow_external and by_directory(as_path(args.path)) is None else None,
    )


def parse_image_size(text: str) -> tuple[int, int] | None:
    if text == "full":
        return None
    parts = text.lower().replace("×", "x").split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(
            f"--image-size: {text!r} is not a size", hint="--image-size 224x224 (height, width), 224 or full"
        )
    return int(parts[0]), int(parts[-1])


def _load_lines(bench: LoadBench, plan: Plan, store: dict[str, Any]) -> list[str]:
    """What was measured, with which settings; the table is Markdown, so that it can be kept."""
    from penstock._src.cli.inspect.stores import load_lines

    size = "full size" if plan.image_size is None else f"{plan.image_size[0]}×{plan.image_size[1]}"
    text = [f"{plan.path}: {store['kind']}", *load_lines(store)]
    text.append(row("sample", f"{bench.sample} · {count(bench.samples, 'samples')} · images {size}"))
    threads = f"{count(bench.threads, 'threads')} · " if bench.threads else ""
    text.append(row("loader", f"{threads}budget {units.format_bytes(bench.memory_bytes)}"))
    for each in bench.fillings:
        rate = each.rows / max(each.seconds, 1e-9)
        filled = f"{each.view}: {units.format_size(each.n_bytes)} in {each.seconds:.1f} s · {rate:,.0f} images/s"
        text.append(row("view filled", filled))
    text += _table(bench.points) if bench.points else []
    text += [row("remote", _remote_line(point)) for point in bench.points if point.remote_requests]
    for gone in bench.left_out:
        which = gone.view if gone.batch_size is None else f"{gone.view}, batch {gone.batch_size}"
        text.append(row("left out", f"{which}: {gone.reason}"))
    if bench.samples < min(plan.batch_sizes):
        most = 1 << max(bench.samples // 2, 1).bit_length() - 1  # two batches at least, where there are two samples
        text.append(row("next", f"penstock bench load {shlex.quote(plan.path)} --batch-sizes {most}"))
    return text + [row("note", note) for note in bench.notes]


def _remote_line(point: Point) -> str:
    """What came over the network, and whether waiting for answers or their bytes took the time."""
    mean_ms = 1e3 * point.remote_wait_s / point.remote_requests
    latency = point.remote_latency_s / max(point.remote_wait_s, 1e-9)
    bound = "latency" if latency > 0.5 else "bandwidth"
    return (
        f"{point.view}, batch {point.batch_size}: {point.requests_per_s:,.0f} requests/s · "
        f"{point.remote_mb_per_s:,.1f} MB/s · {units.format_size(int(point.remote_bytes_per_sample))} per sample · "
        f"{mean_ms:.0f} ms per request, {latency:.0%} of it until the answer begins ({bound})"
    )


def _table(points: tuple[Point, ...]) -> list[str]:
    rows: list[tuple[str, ...]] = [_HEAD]
    for point in points:
        hits = "–" if point.view_hits is None else f"{point.view_hits:.0%}"
        numbers = (f"{point.samples_per_s:,.0f}", f"{point.ms_per_batch:.1f}", f"{point.p95_ms:.1f}")
        held = units.format_bytes(point.peak_bytes)
        rows.append((point.view, str(point.batch_size), *numbers, f"{point.mb_per_s:,.0f}", held, hits))
    return units.markdown_table(rows)


def _plain(bench: LoadBench, plan: Plan) -> dict[str, Any]:
    points = [{**asdict(point), **{name: getattr(point, name) for name in _RATES}} for point in bench.points]
    settings = {"image_size": plan.image_size, "window": plan.window, "seconds": plan.seconds, "cold": plan.cold}
    return {**settings, **asdict(bench), "points": points, "penstock": __version__}
