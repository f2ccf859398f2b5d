"""penstock convert: recordings → one LeRobot data set."""

from __future__ import annotations

import argparse
import gc
import re
import sys
from pathlib import Path
from typing import Any

from penstock.errors import UsageError

_OVERRIDE = re.compile(r"^[A-Za-z_](?:[\w.\-/]|\[[^\]=]+\])*=")

_EPILOG = """\
examples:
  penstock convert run.bag datasets/run
  penstock convert day1/ 'day2/*.mcap' datasets/days --memory 512MiB task="stack the cups"
  penstock convert run.bag datasets/run --config robot.yaml video=h264 rosbag.chunk_size=500
The last path is the output. Words with '=' change the configuration (`penstock inspect BAG --suggest-config`).
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "convert",
        usage="penstock convert [options] SRC… OUT [a.b=c …]",
        help="convert ROS recordings to a LeRobot v3.0 data set, in constant memory",
        description="Convert ROS 1 bags, ROS 2 db3 and mcap recordings to one LeRobot v3.0 data set.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "words", nargs="+", metavar="SRC… OUT [a.b=c …]", help="files, directories or globs; the output"
    )
    parser.add_argument("--config", metavar="FILE", help="YAML configuration")
    parser.add_argument("--memory", default="auto", metavar="SIZE", help="peak memory of the process, e.g. 512MiB")
    parser.add_argument("--overwrite", action="store_true", help="replace an output that penstock wrote before")
    parser.add_argument("--strict", action="store_true", help="stop at the first loss instead of counting it")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.set_defaults(run=run)


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Paths, and `a.b=c` words; a path that exists is a path even with '=' in it."""
    overrides = [word for word in words if _OVERRIDE.match(word) and not Path(word).exists()]
    return [word for word in words if word not in overrides], overrides


def run(args: argparse.Namespace) -> int:
    # Loading the libraries makes a hundred thousand objects and no garbage; the display looks for some again.
    gc.disable()
    try:
        return _run(args)
    finally:
        gc.enable()


def _run(args: argparse.Namespace) -> int:
    from penstock.cli.display import display, report_lines
    from penstock.conversion.job import convert

    paths, overrides = split_words(args.words)
    if len(paths) < 2:
        raise UsageError(
            "convert needs at least one source and an output", hint="penstock convert run.bag datasets/run"
        )
    shown = display(results=not args.json)
    try:
        report = convert(
            paths[:-1],
            paths[-1],
            config=args.config,
            memory=args.memory,
            overwrite=args.overwrite,
            strict=args.strict,
            overrides=overrides,
            progress=shown,
        )
    finally:
        shown.close()
    sys.stdout.write(report.dumps() if args.json else "\n".join(report_lines(report)) + "\n")
    return report.exit_code
