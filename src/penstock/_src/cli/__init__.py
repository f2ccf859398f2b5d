"""The command `penstock`: one file per verb; results on stdout, diagnostics on stderr."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence

from penstock import __version__
from penstock.errors import PenstockError

VERBS = (
    "convert", "commit", "inspect", "doctor", "recover", "plan", "bench", "profile", "prepare", "check", "demo", "env",
)  # fmt: skip

_EPILOG = """\
exit codes: 0 fine · 1 failed · 2 wrong call · 3 finished, with loss (counted in the report) · 130 interrupted
"""


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole command line, or that of one verb; each verb's module adds its own part."""
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Robot-learning data that is bigger than memory: convert it, check it, feed it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    parser.add_argument("--traceback", action="store_true", help="show the Python traceback of an error")
    verbs = parser.add_subparsers(title="verbs", dest="verb", metavar="VERB", required=True)
    for verb in VERBS if only is None else (only,):
        importlib.import_module(f"penstock._src.cli.{verb}").add_parser(verbs)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    args = _parse(argv)
    try:
        return int(args.run(args))
    except PenstockError as error:
        if args.traceback:
            raise
        from penstock._src.cli.display import print_text

        print_text(f"penstock: {error}", sys.stderr)
        return _refused(args, error.message, error.hint, error.exit_code)
    except KeyboardInterrupt:
        flags = "--append --resume" if getattr(args, "append", False) else "--resume"
        kept = f"; committed episodes are kept, {flags} continues" if args.verb == "convert" else ""
        if args.verb in ("prepare", "commit") or getattr(args, "shard", None) is not None:
            kept = "; finished files are kept, the same command continues"
        print(f"penstock: interrupted{kept}", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except OSError as error:  # a full disk, a directory that may not be written, …
        if args.traceback:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(f"penstock: {where}{error.strerror or error}", file=sys.stderr)
        return _refused(args, f"{where}{error.strerror or error}", None, 1)


def _refused(args: argparse.Namespace, message: str, hint: str | None, exit_code: int) -> int:
    """With --json a program reads why, where it expects the result."""
    if getattr(args, "json", False):
        print(json.dumps({"error": message, "hint": hint, "exit_code": exit_code}, indent=2, ensure_ascii=False))
    return exit_code


def entry() -> None:
    """The installed command: `main`, then out at once, since the libraries' own farewell takes a tenth of a second."""
    # numpy's BLAS would start a thread per core that spins for a while; nothing here multiplies matrices.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A batch system that ends the job is a user who does: what is half done is cleared away.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        code = main()
    except KeyboardInterrupt:  # one more, while the first is being reported
        code = 130
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)  # it ends anyway
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):  # the reader has gone
        code = code or 1
    os._exit(code)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Words may follow options (`convert run.bag out --json video=h264`), which argparse alone refuses."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(arguments[0] if arguments and arguments[0] in VERBS else None)
    args, rest = parser.parse_known_args(arguments)
    rest = [word for word in rest if word != "--"]
    words = getattr(args, "words", None)
    unknown = [word for word in rest if word.startswith("-")]
    if rest and (words is None or unknown):
        settings = [] if words is None else [word for each in unknown if (word := _as_setting(each, arguments))]
        hint = f"; a setting is a word without dashes: {' '.join(settings)}" if settings else ""
        parser.error(f"unrecognized arguments: {' '.join(unknown or rest)}{hint}")
    if words is not None:
        words += rest
    return args


def _as_setting(option: str, arguments: Sequence[str]) -> str | None:
    """`--output v2.1` as `output=v2.1`, where that is a setting of conversions."""
    from penstock._src.conversion.settings import Settings

    key, equals, value = option.lstrip("-").partition("=")
    key = key.replace("-", "_")
    if key.split(".")[0] not in {each.name for each in dataclasses.fields(Settings)}:
        return None
    after = arguments[arguments.index(option) + 1 :]
    value = value if equals else next(iter(after), "…")
    return shlex.join([f"{key}={'…' if value.startswith('-') else value}"])
