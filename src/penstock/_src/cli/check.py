"""penstock check: is a training on spike clips ready to start, and does its loading keep up?"""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_parser(verbs: Any) -> None:
    from penstock._src.prepare import CHECK_PARTS

    parser = verbs.add_parser(
        "check",
        usage="penstock check [options] CONFIG [KEY=VALUE …]",
        help="is a training on spike clips ready to start, and does its loading keep up?",
        description="Check the YAML of a training on spike clips: the configuration, the files, the shapes and values "
        "of a sample, a few steps with their data_time, CPU use and memory. Ends with a verdict and the key to change.",
    )
    parser.add_argument(
        "words", nargs="+", metavar="CONFIG [KEY=VALUE …]", help="the YAML; values that replace its own"
    )
    parser.add_argument(
        "--only", metavar="PART[,PART]", help=f"parts of the check: {', '.join(CHECK_PARTS)} (all of them)"
    )
    parser.add_argument("--steps", type=int, default=20, metavar="N", help="steps to measure (20)")
    parser.add_argument(
        "--step-ms",
        type=float,
        metavar="MS",
        help="how long your training step takes; without it the loader runs as fast as it can",
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="processes of the training on this machine (1)")
    parser.add_argument("--json", action="store_true", help="print all values as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from penstock._src.cli.display import print_json, print_text, problem_lines
    from penstock._src.formats.findings import Findings
    from penstock._src.load.clips.config import load_clip_config
    from penstock._src.prepare import CHECK_PARTS
    from penstock._src.prepare.check import check_training
    from penstock.errors import PenstockError, UsageError

    if args.steps < 1 or (args.step_ms is not None and args.step_ms < 0):
        raise UsageError("--steps is 1 or more, --step-ms is 0 or more")
    parts = CHECK_PARTS if args.only is None else tuple(args.only.split(","))
    if wrong := [part for part in parts if part not in CHECK_PARTS]:
        raise UsageError(f"--only {args.only}: there is no part {wrong[0]!r}", hint=f"parts: {', '.join(CHECK_PARTS)}")
    path, *overrides = args.words
    config = load_clip_config(path, overrides)
    findings = Findings()
    values: dict[str, Any] = {}
    checked = check_training(config, findings, parts, gpus=args.gpus, steps=args.steps, step_ms=args.step_ms)
    try:
        for part in checked:
            values[part.name] = part.values
            if not args.json:
                print_text("\n".join([part.name, *(f"  {line}" for line in part.lines)]))
                sys.stdout.flush()
    except PenstockError:
        if not args.json:
            print("\n".join(problem_lines(findings.report().problems)))  # what was found before it
        raise
    report = findings.report()
    if args.json:
        print_json({**report.to_json(), "parts": values})
        return report.exit_code
    for line in problem_lines(report.problems):
        print(line)
    print(f"{'fine' if report.exit_code == 0 else 'NOT fine'}: {path}")
    return report.exit_code
