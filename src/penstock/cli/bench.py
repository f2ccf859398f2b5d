"""penstock bench: what a conversion takes, measured in processes of their own; what a loader reaches."""

from __future__ import annotations

import argparse
import glob
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.bench_load import add_load
from penstock.errors import RecordingError, UsageError

if TYPE_CHECKING:
    from penstock.conversion.bench import Trial

_EPILOG = """\
examples:
  penstock bench convert run.bag --chunk-sizes 0 500 1000 2000 --output-dir trials
  penstock bench convert run.bag --output-dir trials split_episodes=true --memory 512MiB
Each chunk size is converted in a process of its own, to a data set of its own in the output directory.
"""


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
    add_load(kinds)


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
    from penstock.cli.convert import split_words
    from penstock.conversion.bench import bench_conversion

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
    bench = bench_conversion(sources, Path(args.output_dir), args.chunk_sizes, [*options, *overrides], _say)
    sys.stdout.write(bench.dumps() if args.json else "\n".join(bench.lines()) + "\n")
    return bench.exit_code


def _say(trial: Trial) -> None:
    """One line per trial while they run: a large recording takes its time."""
    ended = "failed" if trial.error is not None else f"{trial.seconds:.1f} s"
    print(f"chunk_size {trial.chunk_size}: {ended}", file=sys.stderr, flush=True)
