"""penstock inspect DATASET: metadata, tasks and columns of LeRobot data sets, and how their rows are read."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.cli.display import count, row, say
from penstock.cli.inspect_store import describe_store, load_lines, refuse_configuration, show_each, stored_size
from penstock.system import units

_MOST_TASKS = 10


def inspect_data_sets(paths: Sequence[Path], args: argparse.Namespace) -> int:
    refuse_configuration(paths[0], args)
    return show_each(
        paths,
        lambda path: describe_data_set(path, args.episodes),
        lambda found: say("\n".join(_lines(found))),
        args,
    )


def describe_data_set(path: Path, episodes: Sequence[int] | str | None = None) -> dict[str, Any]:
    """What inspect shows of a LeRobot data set, as plain data; reads its metadata alone."""
    from penstock.lerobot.read.frames import file_codec
    from penstock.lerobot.read.reader import open_data_set

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


def _lines(found: dict[str, Any]) -> list[str]:
    counts = f"{count(found['episodes'], 'episodes')} · {count(found['rows'], 'rows')} · {found['fps']} fps"
    lines = [
        f"{found['path']}: LeRobot {found['version']} · {counts}",
        row("robot", found["robot_type"] or "–"),
        row("on disk", units.format_size(found["bytes"])),
        *load_lines(found["load"]),
    ]
    if not found["load"]["possible"]:  # then at least what its metadata declare
        width = max((len(key) for key in found["features"]), default=0)
        for key, feature in found["features"].items():
            shape = "×".join(str(n) for n in feature["shape"])
            lines.append(f"  {key:<{width}}  {feature['dtype']:<8} {shape:<12} {feature['codec'] or ''}".rstrip())
    lines += [f"  task {index}: {task}" for index, task in enumerate(found["tasks"][:_MOST_TASKS])]
    if len(found["tasks"]) > _MOST_TASKS:
        lines.append(f"  … and {len(found['tasks']) - _MOST_TASKS} more tasks")
    return lines
