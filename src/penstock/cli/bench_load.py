"""penstock bench load: samples per second, time per batch and memory of a loader over your data, on this machine."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import __version__
from penstock.cli.display import count, row
from penstock.errors import StoreError, UsageError
from penstock.system import units

if TYPE_CHECKING:
    from penstock.load.bench_plan import LoadBench, Plan, Point

_EPILOG = """\
examples:
  penstock bench load replay.hdf5
  penstock bench load datasets/run --window chunk:20 --batch-sizes 64 256 --view off,ram --json
Batches are dropped at once: the figures are those of the loader, without a training step. A view on disk is made in a
directory of its own in the cache (PENSTOCK_CACHE), and removed afterwards.
"""
_HEAD = ("view", "batch", "samples/s", "ms/batch", "p95 ms", "MB/s", "peak memory", "from view")


def add_load(kinds: Any) -> None:
    parser = kinds.add_parser(
        "load",
        usage="penstock bench load [options] PATH",
        help="samples/s, ms per batch and memory of a loader for several batch sizes, without and with views",
        description="Measure what a loader reaches over a LeRobot data set, an HDF5 file or a directory of episodes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("path", metavar="PATH", help="what penstock.open opens")
    parser.add_argument(
        "--batch-sizes", nargs="+", default=["64", "128", "256", "512"], metavar="N",
        help="samples of a batch (default 64 128 256 512)",
    )  # fmt: skip
    parser.add_argument("--image-size", default="224x224", metavar="HxW", help="pictures in a batch: 224x224, or full")
    parser.add_argument(
        "--window", default="auto", metavar="KIND",
        help="what a sample is: row, transition, chunk:20 (of the action), or auto: transition where the data have "
        "rewards or ends, else row",
    )  # fmt: skip
    parser.add_argument("--memory", default="2GiB", metavar="SIZE", help="the budget of each loader (2GiB)")
    parser.add_argument("--threads", default="auto", metavar="N", help="a number, cpu*0.5 or auto")
    parser.add_argument("--seconds", type=float, default=3.0, metavar="S", help="of each point (3)")
    parser.add_argument("--view", default="off,ram,disk", metavar="LIST", help="of off, ram and disk (off,ram,disk)")
    parser.add_argument("--fill-seconds", type=float, default=120.0, metavar="S", help="a view may take to fill (120)")
    parser.add_argument("--cold", action="store_true", help="measure without the page cache, too: it is dropped first")
    parser.add_argument(
        "--episodes", metavar="NUMBERS", help="open only these episodes: 0-9,12; whole: those with all files"
    )
    parser.add_argument("--allow-external", action="store_true", help="let HDF5 files refer to other files")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from penstock.cli.inspect_store import describe_store
    from penstock.load.bench import bench_load

    plan = plan_of(args)
    store = describe_store(Path(plan.path), episodes=plan.episodes, **(plan.options or {}))
    if not store["possible"]:
        raise StoreError(store["reason"], hint=store["hint"])
    bench = bench_load(plan, lambda text: print(text, file=sys.stderr, flush=True))
    if args.json:
        whole = {"exit_code": bench.exit_code, "path": plan.path, "store": store, **_plain(bench, plan)}
        sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    else:
        print("\n".join(lines(bench, plan, store)))
    return bench.exit_code


def plan_of(args: argparse.Namespace) -> Plan:
    """The words of a call, checked before anything is opened."""
    from penstock.cli.inspect_store import parse_episodes
    from penstock.formats import by_directory
    from penstock.load.bench_plan import Plan

    sizes = [word for words in args.batch_sizes for word in words.split(",") if word]
    for size in sizes:
        if not size.isdecimal() or int(size) < 1:
            raise UsageError(f"--batch-sizes: {size!r} is no number of samples", hint="--batch-sizes 64 128")
    units.parse_bytes(args.memory)
    return Plan(
        path=args.path,
        batch_sizes=tuple(int(size) for size in sizes),
        views=tuple(view.strip() for view in args.view.split(",")),
        cold=args.cold,
        window=args.window,
        image_size=parse_image_size(args.image_size),
        memory=args.memory,
        threads=int(args.threads) if args.threads.isdecimal() else args.threads,
        seconds=args.seconds,
        fill_seconds=args.fill_seconds,
        episodes=None if args.episodes is None else parse_episodes(args.episodes),
        options={"allow_external": True} if args.allow_external and by_directory(Path(args.path)) is None else None,
    )


def parse_image_size(text: str) -> tuple[int, int] | None:
    if text == "full":
        return None
    parts = text.lower().replace("×", "x").split("x")
    if not 1 <= len(parts) <= 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise UsageError(f"--image-size: {text!r} is no size", hint="--image-size 224x224 (height, width), 224 or full")
    return int(parts[0]), int(parts[-1])


def lines(bench: LoadBench, plan: Plan, store: dict[str, Any]) -> list[str]:
    """What was measured, with which settings; the table is Markdown, so that it can be kept."""
    from penstock.cli.inspect_store import load_lines

    size = "full size" if plan.image_size is None else f"{plan.image_size[0]}×{plan.image_size[1]}"
    text = [f"{plan.path}: {store['kind']}", *load_lines(store)]
    text.append(row("sample", f"{bench.sample} · {count(bench.samples, 'samples')} · pictures {size}"))
    threads = f"{count(bench.threads, 'threads')} · " if bench.threads else ""
    text.append(row("loader", f"{threads}budget {units.format_bytes(bench.memory_bytes)}"))
    for each in bench.fillings:
        rate = each.rows / max(each.seconds, 1e-9)
        filled = f"{each.view}: {units.format_size(each.n_bytes)} in {each.seconds:.1f} s · {rate:,.0f} pictures/s"
        text.append(row("view filled", filled))
    text += _table(bench.points) if bench.points else []
    for gone in bench.left_out:
        which = gone.view if gone.batch_size is None else f"{gone.view}, batch {gone.batch_size}"
        text.append(row("left out", f"{which}: {gone.reason}"))
    if bench.samples < min(plan.batch_sizes):
        most = 1 << max(bench.samples // 2, 1).bit_length() - 1  # two batches at least, where there are two samples
        text.append(row("next", f"penstock bench load {shlex.quote(plan.path)} --batch-sizes {most}"))
    return text + [row("note", note) for note in bench.notes]


def _table(points: tuple[Point, ...]) -> list[str]:
    rows: list[tuple[str, ...]] = [_HEAD]
    for point in points:
        hits = "–" if point.view_hits is None else f"{point.view_hits:.0%}"
        numbers = (f"{point.samples_per_s:,.0f}", f"{point.ms_per_batch:.1f}", f"{point.p95_ms:.1f}")
        held = units.format_bytes(point.peak_bytes)
        rows.append((point.view, str(point.batch_size), *numbers, f"{point.mb_per_s:,.0f}", held, hits))
    widths = [max(len(line[i]) for line in rows) for i in range(len(rows[0]))]
    aligned = [" | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in rows]
    text = [f"| {line} |" for line in aligned]
    return [text[0], "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|", *text[1:]]


def _plain(bench: LoadBench, plan: Plan) -> dict[str, Any]:
    points = [
        {
            **asdict(point),
            "samples_per_s": point.samples_per_s,
            "ms_per_batch": point.ms_per_batch,
            "mb_per_s": point.mb_per_s,
        }
        for point in bench.points
    ]
    settings = {"image_size": plan.image_size, "window": plan.window, "seconds": plan.seconds, "cold": plan.cold}
    return {**settings, **asdict(bench), "points": points, "penstock": __version__}
