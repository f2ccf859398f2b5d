"""penstock inspect DIR: a line for each data set, HDF5 file, directory of episodes and recording in a directory."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.display import count, say
from penstock.cli.inspect_store import describe_store, episode_directory, hdf5_files
from penstock.errors import PenstockError
from penstock.system import units

if TYPE_CHECKING:
    from penstock.conversion.inputs.input import Found

_KINDS = {"ros1": "ROS 1 bag", "db3": "ROS 2 db3", "mcap": "mcap"}


def list_contents(found: Sequence[Found], args: argparse.Namespace) -> int:
    """One line each, with what `penstock inspect` of it alone begins with; 1 where one of them cannot be read."""
    return _listed(_places(found, args.allow_external), args.json)


def list_stores(stores: Iterable[tuple[Path, dict[str, Any]]]) -> int:
    """The same of HDF5 files, and directories of them, with how each is loaded."""
    return _listed((("hdf5", path, load) for path, load in stores), as_json=False)


def _listed(places: Iterable[tuple[str, Path, dict[str, Any]]], as_json: bool) -> int:
    described = [_described(kind, path, load) for kind, path, load in places]
    failed = [each for each in described if "error" in each]
    if as_json:
        sys.stdout.write(json.dumps(described, indent=2, ensure_ascii=False) + "\n")
    else:
        for each in described:
            if "error" not in each:
                say(_line(each))
        for each in failed:
            hint = f"\n  → {each['hint']}" if each["hint"] else ""
            say(f"penstock: {each['error']}{hint}", file=sys.stderr)
        say(f"{count(len(described) - len(failed), 'inputs')}; `penstock inspect PATH` shows one of them whole")
    return 1 if failed else 0


def _places(found: Sequence[Found], allow_external: bool) -> Iterable[tuple[str, Path, dict[str, Any]]]:
    """(kind, path, how it is loaded, of HDF5); files of a directory that is one store count once."""
    told: dict[Path, bool] = {}
    for each in found:
        parent = each.path.parent
        if each.kind != "hdf5":
            yield each.kind, each.path, {}
            continue
        if parent not in told:
            whole = episode_directory(parent, allow_external=allow_external)
            told[parent] = whole is not None
            if whole is not None:
                yield "hdf5", parent, whole
        if not told[parent]:
            yield "hdf5", each.path, describe_store(each.path, allow_external=allow_external)


def _described(kind: str, path: Path, load: dict[str, Any]) -> dict[str, Any]:
    try:
        if kind == "recording":
            return _recording(path)
        if kind == "lerobot":
            return _data_set(path)
    except PenstockError as error:
        return {"path": str(path), "error": error.message, "hint": error.hint}
    if not load["possible"]:
        return {"path": str(path), "error": load["reason"], "hint": load["hint"]}
    n_bytes = sum(file.stat().st_size for file in (hdf5_files(path) if path.is_dir() else [path]))
    chosen = {key: load[key] for key in ("kind", "episodes", "rows", "fps")}
    return {"path": str(path), **chosen, "bytes": n_bytes}


def _recording(path: Path) -> dict[str, Any]:
    from penstock import recordings

    with recordings.open(path, on_corrupt="count") as recording:
        return {
            "path": str(path),
            "kind": _KINDS[recording.kind],
            "topics": len(recording.topics),
            "messages": sum(topic.count for topic in recording.topics),
            "seconds": max(recording.end_ns - recording.start_ns, 0) / 1e9,
            "bytes": recording.size_bytes,
        }


def _data_set(path: Path) -> dict[str, Any]:
    from penstock.lerobot.read.reader import open_data_set

    info = open_data_set(path).info
    return {
        "path": str(path),
        "kind": f"LeRobot {info.version}",
        "episodes": info.total_episodes,
        "rows": info.total_frames,
        "fps": info.fps,
        "bytes": sum(file.stat().st_size for file in path.rglob("*") if file.is_file()),
    }


def _line(found: dict[str, Any]) -> str:
    words = [units.format_size(found["bytes"]), found["kind"]]
    if "topics" in found:
        words += [count(found["topics"], "topics"), units.format_duration_ns(int(found["seconds"] * 1e9))]
    else:
        words += [count(found["episodes"], "episodes"), count(found["rows"], "rows")]
        words += [f"{found['fps']:g} fps"] if found["fps"] else []
    return f"{found['path']}: {' · '.join(words)}"
