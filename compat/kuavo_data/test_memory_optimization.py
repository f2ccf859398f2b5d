"""How much memory the conversion of a Kuavo recording takes with several chunk sizes, each in a process of its own.

    python kuavo_data/test_memory_optimization.py --rosbag_path /path/to/large_rosbag.bag \
        --chunk_sizes 0 500 1000 2000 --output_dir ./test_output

It is `penstock bench convert` with configs/data/KuavoRosbag2Lerobot.yaml; `dataset.…=…` words change that.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

CONFIGURATIONS = Path(__file__).resolve().parent.parent / "configs" / "data"


def command_line(words: list[str]) -> list[str]:
    """The words for `penstock`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rosbag_path", required=True, help="the recording, or a directory with recordings")
    parser.add_argument("--chunk_sizes", nargs="+", default=["0", "500", "1000", "2000"], help="rows between flushes")
    parser.add_argument("--output_dir", default="./test_output", help="one data set per chunk size is written here")
    args, rest = parser.parse_known_args(words)
    kuavo = ["--config-path", str(CONFIGURATIONS), "--config-name", "KuavoRosbag2Lerobot"]
    bench = ["bench", "convert", args.rosbag_path, *rest]
    return [*bench, *kuavo, "--output-dir", args.output_dir, "--chunk-sizes", *args.chunk_sizes]


if __name__ == "__main__":
    from penstock._src.cli import entry

    sys.argv[1:] = command_line(sys.argv[1:])
    entry()
