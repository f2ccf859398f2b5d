"""penstock doctor: is this data set whole?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from penstock import units


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="check a LeRobot data set end to end",
        description="Check a LeRobot v3.0 data set: rows, frames, index, statistics and metadata; decode a sample.",
    )
    parser.add_argument("path", help="the data set's directory")
    parser.add_argument("--full", action="store_true", help="decode every frame, not a sample")
    parser.add_argument("--memory", default="auto", metavar="SIZE", help="peak memory of the process, e.g. 512MiB")
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from penstock.budget import Budget
    from penstock.cli.display import count
    from penstock.errors import DataSetError
    from penstock.lerobot.check import check
    from penstock.plan.conversion_memory import LIBRARIES_BYTES

    if not Path(args.path).exists():
        raise DataSetError(f"{args.path}: no such directory")
    budget = Budget.for_process(args.memory)
    budget.reserve("libraries", max(LIBRARIES_BYTES - budget.used_bytes, 0), lasting=True)
    report = check(Path(args.path), full=args.full)
    if args.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        for problem in report.problems:
            place = "" if problem.message.startswith(args.path) else f"{problem.where}: "
            print(f"{problem.severity:<6} {place}{problem.message}")
            if problem.hint:
                print(f"       → {problem.hint}")
        numbers = dict(report.counted)
        size = numbers.pop("bytes", None)
        counted = [count(value, name.replace("_", " ")) for name, value in numbers.items()]
        counted += [] if size is None else [units.format_size(size)]
        print(" · ".join([f"{'fine' if report.exit_code == 0 else 'NOT fine'}: {args.path}", *counted]))
    return report.exit_code
