"""penstock inspect DATASET: the metadata, tasks and columns of a LeRobot data set."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock._src.cli.display import count, print_text, row, table
from penstock._src.cli.inspect.stores import describe_store, load_lines, refuse_configuration, show_each, stored_size
from penstock._src.system import units

_MOST_TASKS = 10


def inspect_data_sets(paths: Sequence[Path], args: argparse.Namespace) -> int:
    refuse_configuration(paths[0], args)
    return show_each(
        paths,
        lambda path: describe_data_set(path, args.episodes),
        lambda description: print_text("\n".join(_lines(description))),
        args,
    )


def describe_data_set(path: Path, episodes: Sequence[int] | str | None = None) -> dict[str, Any]:
    """What inspect shows of a LeRobot data set, as plain data; reads its metadata alone."""
    from penstock._src.lerobot.read.frames import file_codec
    from penstock._src.lerobot.read.reader import open_data_set

    data = open_data_set(path)
    load = describe_store(path, episodes=episodes)
    codecs = {column["name"]: column["encoding"] for column in load.get("columns", ())}
    features = {
        key: {
            "dtype": feature.dtype,
            "shape": list(feature.shape),
            "codec": (codecs.get(key) or file_codec(data, key)) if feature.dtype == "video" else None,
            "names": feature.names,
        }
        for key, feature in data.info.features.items()
    }
    return {
        "path": str(path),
        "version": data.info.version,
        "robot_type": data.info.robot_type,
        "fps": data.info.fps,
        "episodes": data.info.total_episodes,
        "rows": data.info.total_frames,
        "bytes": stored_size(path),
        "tasks": data.tasks,
        "features": features,
        "load": load,
    }


def _lines(info: dict[str, Any]) -> list[str]:
    counts = f"{count(info['episodes'], 'episodes')} · {count(info['rows'], 'rows')} · {info['fps']} fps"
    lines = [
        f"{info['path']}: LeRobot {info['version']} · {counts}",
        row("robot", info["robot_type"] or "–"),
        row("on disk", units.format_size(info["bytes"])),
        *load_lines(info["load"]),
    ]
    if not info["load"]["possible"]:  # then at least what its metadata declare
        lines += table(
            [
                (key, feature["dtype"], "×".join(map(str, feature["shape"])), feature["codec"] or "")
                for key, feature in info["features"].items()
            ]
        )
    lines += [f"  task {index}: {task}" for index, task in enumerate(info["tasks"][:_MOST_TASKS])]
    if len(info["tasks"]) > _MOST_TASKS:
        lines.append(f"  … and {len(info['tasks']) - _MOST_TASKS} more tasks")
    return lines
