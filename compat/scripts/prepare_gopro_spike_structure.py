"""One folder of blurred and sharp images with their spikes; it is `penstock prepare gopro-spike` (docs/train/spike.md).

$ python scripts/prepare_gopro_spike_structure.py --use_symlinks
"""

from __future__ import annotations

import argparse
import sys

RAW = "data/raw/gopro_spike"


def command_line(words: list[str]) -> list[str]:
    """The words for `penstock`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blur_root", default=f"{RAW}/GOPRO_Large", help="blurred and sharp images (%(default)s)")
    parser.add_argument("--spike_root", default=f"{RAW}/GOPRO_Large_spike_seq", help="spike streams (%(default)s)")
    parser.add_argument("--output", default="data/processed/gopro_spike_unified", help="what is made (%(default)s)")
    args, rest = parser.parse_known_args(words)
    places = [args.blur_root, args.spike_root, "--out", args.output]
    return ["prepare", "gopro-spike", *places, "--blur", "blur,blur_gamma", *rest]


if __name__ == "__main__":
    from penstock._src.cli import entry

    sys.argv[1:] = command_line(sys.argv[1:])
    entry()
