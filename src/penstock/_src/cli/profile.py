"""penstock profile: the table of a run, what binds its training step, and what a change would give."""

from __future__ import annotations

import argparse
import math
import sys
from typing import TYPE_CHECKING, Any

from penstock._src.cli.display import print_json
from penstock.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from penstock._src.load.loader import Loader
    from penstock._src.profile.stats import Snapshot
    from penstock._src.profile.verdict.verdict import Verdict

_EPILOG = """\
examples:
  penstock profile RUN.json
  penstock profile RUN.json --try --json
  penstock profile RUN.json --html run.html --trace run.trace.json
RUN.json is what penstock.profile.save(path) wrote. Where the data is at hand, some fifty rows of it are read and
decoded to measure what a change would give; --try also runs the best change for some seconds, against a step of the
same length. Exit codes: 0; 1 where --try could try nothing because the data is not there or cannot be opened; 2 for a
run file or words that are wrong.
"""


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "profile",
        help="what binds the training step of a run, and what a change would give",
        description="Show where the time of a recorded run went, and say whether its step waits for data.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_file", metavar="RUN.json", help="a run that penstock.profile.save wrote")
    parser.add_argument("--try", dest="check", action="store_true", help="run the best change: predicted and measured")
    parser.add_argument("--html", metavar="OUT", help="write a page that shows the run, without remote assets")
    parser.add_argument(
        "--trace", metavar="OUT", help="write a trace for Perfetto (ui.perfetto.dev) or chrome://tracing"
    )
    parser.add_argument(
        "--seconds", type=_seconds, default=1.5, metavar="S", help="seconds of each window of --try (1.5)"
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--lang", choices=["en", "zh"], default="en", help="language of the table and the verdict (en)")
    parser.set_defaults(run=run)


def _seconds(text: str) -> float:
    value = float(text)
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text}: a window has to have some length, more than 0 seconds")
    return value


def run(args: argparse.Namespace) -> int:
    from penstock._src.profile.stats import Snapshot

    snapshot = Snapshot.load(args.run_file)
    verdict, notes, has_data = verdict_of(snapshot, check=args.check, seconds=args.seconds)
    _write(snapshot, verdict, args)
    if args.json:
        _print_json(args.run_file, snapshot, verdict, notes)
    else:
        _print_text(snapshot, verdict, notes, args.lang)
    return 1 if args.check and not has_data else 0


def _write(snapshot: Snapshot, verdict: Verdict | None, args: argparse.Namespace) -> None:
    if args.html:
        from penstock._src.profile.report.page import export_html

        export_html(args.html, snapshot, verdict=verdict)
        print(f"wrote {args.html}", file=sys.stderr)
    if args.trace:
        from penstock._src.profile.report.trace import export_trace

        export_trace(args.trace, snapshot)
        print(f"wrote {args.trace}", file=sys.stderr)


def verdict_of(snapshot: Snapshot, *, check: bool, seconds: float) -> tuple[Verdict | None, list[str], bool]:
    """The verdict, why it is less than it could be, and False where that is because data cannot be opened.

    The verdict is None where nothing marked a step.
    """
    from penstock._src.profile.messages import message
    from penstock._src.profile.verdict.verdict import verdict

    if not snapshot.steps.count:
        return None, [message("no step")], True
    loader, notes, has_data = _loader(snapshot)
    if loader is None:
        return verdict(snapshot, check=check, seconds=seconds), notes, has_data
    with loader:
        return verdict(snapshot, check=check, loader=loader, seconds=seconds), notes, True


def _loader(snapshot: Snapshot) -> tuple[Loader | None, list[str], bool]:
    """The loader of the run made again, where its data lies on this machine; False where data cannot be opened."""
    from penstock._src.load.recreate import from_description
    from penstock._src.profile.messages import message
    from penstock._src.profile.stats import PENSTOCK_LOADER
    from penstock._src.profile.verdict.verdict import leading, missing_data

    described = leading(snapshot.loaders)
    if not snapshot.loaders:
        return None, [message("no loader")], True
    if described.kind != PENSTOCK_LOADER:
        return None, [message("lives elsewhere", kind=described.kind)], True
    try:
        return from_description(described), [], True
    except (PenstockError, OSError, KeyError, TypeError, IndexError) as error:
        if missing_data(described) and described.images:
            return None, [], False  # the verdict says so itself
        is_opening = isinstance(error, PenstockError | OSError) and not isinstance(error, UsageError)
        return None, [message("not made again", error=str(error))], not (is_opening or missing_data(described))


def _print_text(snapshot: Snapshot, verdict: Verdict | None, notes: list[str], lang: Any) -> None:
    from penstock._src.profile.report.table import epoch_lines, table
    from penstock._src.profile.verdict.texts import note_text

    print("\n".join([table(snapshot, lang=lang), *epoch_lines(snapshot, lang=lang)]))
    if verdict is not None:
        print("\n" + "\n".join(verdict.lines(lang)))
    for note in notes:
        print(note_text(note, lang))


def _print_json(path: str, snapshot: Snapshot, verdict: Verdict | None, notes: list[str]) -> None:
    fields = ("name", "total_ns", "self_ns", "p50_ns", "p95_ns", "p99_ns")
    stages = [
        {"calls": each.count, **{name: getattr(each, name) for name in fields}} for each in snapshot.by_name().values()
    ]
    print_json({
        "run": path,
        "verdict": verdict.to_dict() if verdict is not None else None,
        "steps": {"count": snapshot.steps.count, "mean_ns": snapshot.steps.mean_ns,
                  "wait_share": snapshot.steps.wait_share},
        "stages": stages,
        "counters": dict(snapshot.counters),
        "notes": notes,
    })  # fmt: skip
