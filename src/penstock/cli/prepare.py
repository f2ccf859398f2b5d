"""penstock prepare: what a training needs on disk beforehand: one folder of links, voxels as files."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.formats.findings import Report

DEFAULT_SOURCE = "data/raw"
DEFAULT_OUT = "data/processed/gopro_spike_unified"


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "prepare",
        help="put a spike data set into one folder",
        description="Make on disk what a training reads. A second run keeps what is there and right.",
    )
    kinds = parser.add_subparsers(
        title="what", dest="what", metavar="WHAT", required=True, help="what to prepare: gopro-spike"
    )
    _add_gopro_spike(kinds)


def _add_gopro_spike(kinds: Any) -> None:
    parser = kinds.add_parser(
        "gopro-spike",
        help="one folder OUT/{train,test}/SEQ/{blur,sharp,spike} from the public layouts",
        description="Make OUT/{train,test}/SEQ/{blur,sharp,spike} from GOPRO_Large with GOPRO_Large_spike_seq, "
        "from S-SDM's GOPRO, or from a directory that holds them. What is missing is listed; the exit code is then 3.",
    )
    parser.add_argument(
        "sources", nargs="*", metavar="SOURCE", help=f"where images and spikes lie, searched ({DEFAULT_SOURCE})"
    )
    parser.add_argument("--out", default=DEFAULT_OUT, metavar="DIR", help=f"the folder to make ({DEFAULT_OUT})")
    parser.add_argument(
        "--use_symlinks", "--use-symlinks", action="store_true", help="relative links instead of copies: takes no room"
    )
    parser.add_argument(
        "--blur",
        default="auto",
        metavar="NAME[,NAME]",
        help="folders of blurred images, the preferred one first (auto: blur_gamma,blur where spikes lie apart from "
        "images, else blur,blur_gamma)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.set_defaults(run=run_gopro_spike)


def run_gopro_spike(args: argparse.Namespace) -> int:
    """Make the folder, and show what is in it."""
    from penstock.cli.display import display
    from penstock.prepare.gopro_spike import prepare_gopro_spike

    shown = display(results=False)
    try:
        report = prepare_gopro_spike(
            [Path(source) for source in args.sources or [DEFAULT_SOURCE]],
            Path(args.out),
            use_symlinks=args.use_symlinks,
            blur_names=None if args.blur == "auto" else args.blur.split(","),
            progress=shown.moved,
        )
    finally:
        shown.close()
    if args.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=2, ensure_ascii=False) + "\n")
    else:
        _show_gopro_spike(report, args)
    return report.exit_code


def _show_gopro_spike(report: Report, args: argparse.Namespace) -> None:
    from penstock.cli.display import count, problem_lines, row
    from penstock.prepare.spike_folders import SPLITS
    from penstock.system import units

    for line in problem_lines(report.problems):
        print(line)
    counted = Counter(report.counted)
    for split in SPLITS:
        sequences, images = counted[f"{split}_sequences"], counted[f"{split}_blurred_images"]
        print(row(split, f"{count(sequences, 'sequences')} · {count(images, 'blurred images')}"))
    if args.use_symlinks:
        made, kept = count(counted["links_made"], "links"), counted["links_kept"]
    else:
        made, kept = count(counted["files_copied"], "files"), counted["files_kept"]
        made = f"{made}, {units.format_size(counted['bytes'])}"
    print(row("made", f"{args.out} · {made} · {kept:,} were there"))
    print(f"next: penstock inspect {args.out} · penstock doctor {args.out}")
