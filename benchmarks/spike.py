# ruff: noqa: E402
"""Spike clips: voxels of a crop, clips of 720p images, and on a GPU the data wait of a deblurring training.

    python benchmarks/spike.py [--quick] [--only voxels clips] [--workers 2] [--keep DIR]
    python benchmarks/spike.py --gpu [--quick]

penstock, the usual way and the bare work take turns on the same data, in the page cache; medians are shown. `clips`
needs torch. `--gpu` measures that part alone and needs CUDA. All data are made here.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

# Last, not first: torch asks for the standard library's `profile`, and a script beside this one has that name.
sys.path = [each for each in sys.path if each != str(Path(__file__).resolve().parent)]
sys.path.append(str(Path(__file__).resolve().parent))

from measure import Claim, finish

PARTS = ("voxels", "clips")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under a minute")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS, help="these parts alone")
    parser.add_argument("--workers", type=int, default=2, help="of every DataLoader (default: %(default)s)")
    parser.add_argument("--gpu", action="store_true", help="the data wait of a training step on CUDA, and nothing else")
    parser.add_argument("--keep", metavar="DIR", help="make the data here and keep it")
    args = parser.parse_args()
    directory = Path(args.keep) if args.keep else Path(tempfile.mkdtemp(prefix="penstock-spike-"))
    directory.mkdir(parents=True, exist_ok=True)
    busy = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load average {busy:.1f}" + (": not quiet enough for figures" if busy > 0.7 else ""))
    try:
        finish(_gpu_claims(args, directory) if args.gpu else _claims(args, directory))
    finally:
        if not args.keep:
            shutil.rmtree(directory)


def _claims(args: argparse.Namespace, directory: Path) -> list[Claim]:
    claims: list[Claim] = []
    if "voxels" in args.only:
        from spike_voxels import voxel_claims

        print("\n88×360×640 packed: one file to the voxels of a 256² crop", flush=True)
        claims += voxel_claims(directory, 5 if args.quick else 21)
    if "clips" in args.only and importlib.util.find_spec("torch") is None:
        print("\nclips are left out: torch is not installed")
    elif "clips" in args.only:
        from spike_clips import clip_claims

        print(f"\nClips of 5 blurred and 5 sharp 720p PNG with spikes, crop 256, {args.workers} workers", flush=True)
        claims += clip_claims(directory, *((3, 8) if args.quick else (7, 24)), args.workers)
    return claims


def _gpu_claims(args: argparse.Namespace, directory: Path) -> list[Claim]:
    from spike_gpu import gpu_claims

    return gpu_claims(directory, is_quick=args.quick)


if __name__ == "__main__":
    main()
