"""penstock doctor: is this data set, or this recording, whole?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.cli.display import count, print_json, problem_lines
from penstock._src.system import units
from penstock._src.system.files import as_path

if TYPE_CHECKING:
    from penstock._src.formats.findings import CheckReport


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "doctor",
        help="check a LeRobot data set, a spike data set or a recording end to end",
        description="Check a LeRobot data set (rows, frames, index, statistics, metadata; a sample is decoded), "
        "a spike data set (pairs of files, sizes, images, values), "
        "or a recording: index, checksums, message definitions and clocks; every message is read.",
    )
    parser.add_argument("path", help="the data set's directory, or a .bag, .db3 or .mcap recording")
    parser.add_argument(
        "--full", action="store_true", help="decode every frame, not a sample; read all of remote data, not only ends"
    )
    parser.add_argument(
        "--max-skew",
        default="1s",
        metavar="DURATION",
        help="recording: report header stamps further than this from the receive time (1s)",
    )
    parser.add_argument("--memory", default="auto", metavar="SIZE", help="peak memory of the process, e.g. 512MiB")
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from penstock._src.formats.findings import Findings
    from penstock._src.plan.conversion_memory import IMAGE_LIBRARY_BYTES, LIBRARIES_BYTES
    from penstock._src.system.budget import Budget
    from penstock.errors import DataSetError

    path = as_path(args.path)
    if not path.exists():
        raise DataSetError(f"{args.path}: no such file or directory")
    skew_ns = units.parse_duration_ns(args.max_skew)
    budget = Budget.for_process(args.memory)
    libraries_bytes = LIBRARIES_BYTES + IMAGE_LIBRARY_BYTES
    budget.reserve("libraries", max(libraries_bytes - budget.used_bytes, 0))
    findings = Findings()
    _doctor_of(path)(path, findings, full=args.full, skew_ns=skew_ns)
    report = findings.report()
    _show(report, args)
    return report.exit_code


def _doctor_of(path: Path) -> Any:
    """What checks a path; an error where nothing does."""
    from penstock._src import formats
    from penstock._src.conversion.find import identify_input
    from penstock._src.formats.format import RECORDING_DOCTOR, load
    from penstock.errors import DataSetError, RecordingError, UsageError

    store_format = formats.by_directory(path, "store")
    if store_format is None:
        try:
            first = identify_input(path)
        except RecordingError as error:
            if path.is_dir():
                raise DataSetError(f"{path} is not a LeRobot data set and holds no recording") from error
            raise
        if first.is_recording:
            return load(RECORDING_DOCTOR)
        store_format = formats.get(first.kind)
    if store_format.doctor:
        return store_format.load("doctor")
    what = (
        f"is {store_format.noun}" if path.is_file() or store_format.marks(path) else f"holds {store_format.label} files"
    )
    raise UsageError(
        f"{path} {what}: doctor checks data sets and recordings",
        hint=f"penstock inspect {path} shows what it holds; convert looks at every row",
    )


def _show(report: CheckReport, args: argparse.Namespace) -> None:
    if args.json:
        print_json(report.to_json())
        return
    for line in problem_lines(report.problems, args.path):
        print(line)
    numbers = dict(report.counted)
    size = numbers.pop("bytes", None)
    counted = [count(value, name.replace("_", " ")) for name, value in numbers.items()]
    counted += [] if size is None else [units.format_size(size)]
    print(" · ".join([f"{'fine' if report.exit_code == 0 else 'NOT fine'}: {args.path}", *counted]))
