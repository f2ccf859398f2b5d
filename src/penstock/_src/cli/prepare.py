"""penstock prepare: what a training needs on disk beforehand: one folder of links, voxels as files."""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.cli.display import count, display, print_json, problem_lines, row
from penstock._src.system import units

if TYPE_CHECKING:
    from penstock._src.formats.findings import CheckReport

DEFAULT_SOURCE = "data/raw"
DEFAULT_OUT = "data/processed/gopro_spike_unified"


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "prepare",
        help="put a spike data set into one folder, make its voxels in advance",
        description="Make on disk what a training reads. A second run keeps what is there and right.",
    )
    kinds = parser.add_subparsers(
        title="what", dest="what", metavar="WHAT", required=True, help="what to prepare: gopro-spike or voxels"
    )
    _add_gopro_spike(kinds)
    _add_voxels(kinds)


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


def _add_voxels(kinds: Any) -> None:
    parser = kinds.add_parser(
        "voxels",
        usage="penstock prepare voxels [options] CONFIG|ROOT [DATA.KEY=VALUE …]",
        help="a .npy of spike counts for every .dat file, for USE_PRECOMPUTED_VOXELS: true",
        description="Write SEQ/spike_vox/NAME.npy, uint8 counts (bins, height, width), for every spike file of a "
        "configuration's splits, or of all sequences in a directory. Files are whole or absent. A second run goes on, "
        "and makes those anew whose spike file, bins or layout changed. The room that it takes is checked first.",
    )
    parser.add_argument(
        "words",
        nargs="+",
        metavar="CONFIG|ROOT [DATA.KEY=VALUE …]",
        help="the YAML of the training, or a spike data set; values that replace those of the YAML",
    )
    parser.add_argument("--num-bins", type=int, metavar="N", help="bins of each voxel (NUM_VOXEL_BINS, or 5)")
    parser.add_argument(
        "--voxel-dir", metavar="NAME", help="the folder beside the spikes (VOXEL_CACHE_DIRNAME, or spike_vox)"
    )
    parser.add_argument(
        "--jobs", default="auto", metavar="N", help="threads: a number, auto (0.8 of the CPUs granted) or cpu*0.5"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.set_defaults(run=run_voxels)


def run_voxels(args: argparse.Namespace) -> int:
    """Make the voxels, and show how many."""
    from penstock._src.load.clips.config import clip_config, load_clip_config
    from penstock._src.prepare.voxels import prepare_voxels
    from penstock._src.stores.spike.store import SpikeStore
    from penstock._src.system.config import apply_overrides
    from penstock._src.system.limits import read_cpu_limit

    source, *overrides = args.words
    overrides += [f"DATA.NUM_VOXEL_BINS={args.num_bins}"] if args.num_bins is not None else []
    overrides += [f"DATA.VOXEL_CACHE_DIRNAME={args.voxel_dir}"] if args.voxel_dir is not None else []
    jobs = units.parse_workers(args.jobs, read_cpu_limit().granted, "--jobs")
    if Path(source).is_dir():
        whole = {"ROOT": source, "TRAIN_SPLIT": None, "VAL_SPLIT": None, "ON_MISSING": "skip"}
        config = clip_config(apply_overrides({"DATA": whole}, overrides))
    else:
        config = load_clip_config(source, overrides)
    data = config.data
    splits = dict.fromkeys([data.train_split, *([data.val_split] if data.val_split else [])])
    stores = [SpikeStore(data.root, **data.store_options(split, counts_voxels=True)) for split in splits]
    shown = display(results=False)
    try:
        report = prepare_voxels(stores, data.voxel_cache_dirname, jobs=jobs, progress=shown.moved)
    finally:
        shown.close()
    if args.json:
        print_json(report.to_json())
        return report.exit_code
    for line in problem_lines(report.problems):
        print(line)
    counted = report.counted
    made = f"{count(counted['made'], 'voxel files')}, {units.format_size(counted['bytes'])}"
    stale = f", {counted['stale']:,} of them stale before" if counted["stale"] else ""
    print(row("made", f"{made}{stale} · {counted['kept']:,} were there · {count(counted['sequences'], 'sequences')}"))
    print("next: USE_PRECOMPUTED_VOXELS: true in the section DATA takes them")
    return report.exit_code


def run_gopro_spike(args: argparse.Namespace) -> int:
    """Make the folder, and show what is in it."""
    from penstock._src.prepare.gopro_spike import prepare_gopro_spike

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
        print_json(report.to_json())
    else:
        _show_gopro_spike(report, args)
    return report.exit_code


def _show_gopro_spike(report: CheckReport, args: argparse.Namespace) -> None:
    from penstock._src.prepare.gopro_spike import SPLITS

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
