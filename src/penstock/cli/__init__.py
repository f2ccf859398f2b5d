"""The command `penstock`: one file per verb; results on stdout, diagnostics on stderr."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from penstock import __version__
from penstock.errors import PenstockError

VERBS = ("convert", "inspect", "doctor", "demo", "env")

_EPILOG = """\
exit codes: 0 fine · 1 failed · 2 wrong call · 3 finished, with loss (counted in the report) · 130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The whole command line; each verb's module adds its own part."""
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Robot-learning data that is bigger than memory: convert it, check it, feed it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show the Python traceback of an error")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        importlib.import_module(f"penstock.cli.{verb}").add_parser(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except PenstockError as error:
        if args.traceback:
            raise
        print(f"penstock: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("penstock: interrupted; nothing was left under the output's name", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
