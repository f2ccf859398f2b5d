"""penstock commit: what the shards of a conversion wrote → one LeRobot data set."""

from __future__ import annotations

import argparse
import sys
from typing import Any

_EPILOG = """\
examples:
  penstock convert day1/ datasets/days --shard 0/2             (on one machine)
  penstock convert day1/ datasets/days --shard 1/2             (on another)
  penstock commit datasets/days                                (on any of them, when both are through)
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "commit",
        usage="penstock commit [options] OUT",
        help="make one data set of what the shards of a conversion wrote",
        description="Check that every shard of `penstock convert … --shard I/N` is through, and make one data set of "
        "them: rows are numbered and metadata is written, videos stay as they are.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out", metavar="OUT", help="the output that the shards were given")
    parser.add_argument("--memory", default="auto", metavar="SIZE", help="peak memory, e.g. 512MiB")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from penstock._src.cli.display import display, report_lines
    from penstock._src.conversion.shards.commit import commit

    shown = display(results=not args.json)
    try:
        report = commit(args.out, memory=args.memory, progress=shown)
    finally:
        shown.close()
    sys.stdout.write(report.dumps() if args.json else "\n".join(report_lines(report)) + "\n")
    return report.exit_code
