"""Kuavo recordings → a LeRobot v3.0 data set, by the command line that users of Kuavo's converter know.

    python kuavo_data/CvtRosbag2Lerobot.py --config-path=../configs/data/ --config-name=KuavoRosbag2Lerobot.yaml \
        rosbag.rosbag_dir=/path/to/rosbag rosbag.lerobot_dir=/path/to/lerobot_data rosbag.chunk_size=1000

It is `penstock convert` with the same options; a relative --config-path counts from this file, as Hydra has it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def command_line(words: list[str]) -> list[str]:
    """The words for `penstock`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-path", "-cp", default="../configs/data/")
    parser.add_argument("--config-name", "-cn", default="KuavoRosbag2Lerobot")
    args, rest = parser.parse_known_args(words)
    beside = HERE / args.config_path
    path = beside if beside.is_dir() else Path(args.config_path)
    return ["convert", "--config-path", str(path), "--config-name", args.config_name, *rest]


if __name__ == "__main__":
    from penstock._src.cli import entry

    sys.argv[1:] = command_line(sys.argv[1:])
    entry()
