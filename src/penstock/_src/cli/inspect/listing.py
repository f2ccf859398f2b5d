"""penstock inspect DIR: a line for each data set, HDF5 file, directory of episodes and recording in a directory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src import formats
from penstock._src.cli.display import count, print_json, print_text
from penstock._src.cli.inspect.stores import describe_store, episode_directory, refuse_configuration, stored_size
from penstock._src.formats.registry import LEROBOT
from penstock._src.system import units
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock._src.conversion.inputs.input import InputRef


Description = dict[str, Any] | Callable[[Path], dict[str, Any]]


def list_contents(refs: Sequence[InputRef], args: argparse.Namespace) -> int:
    """One line each, with what `penstock inspect` of it alone begins with; 1 where one of them cannot be read."""
    refuse_configuration(refs[0].path, args)
    return _listed(_places(refs, args.allow_external), args.json)


def list_stores(stores: Iterable[tuple[Path, dict[str, Any]]]) -> int:
    """The same of stores, with how each is loaded."""
    return _listed(((path, load) for path, load in stores), as_json=False)


def _listed(places: Iterable[tuple[Path, Description]], as_json: bool) -> int:
    described = [_described(path, load) for path, load in places]
    failed = [each for each in described if "error" in each]
    if as_json:
        print_json(described)
    else:
        for each in described:
            if "error" not in each:
                print_text(_line(each))
        for each in failed:
            hint = f"\n  → {each['hint']}" if each["hint"] else ""
            print_text(f"penstock: {each['error']}{hint}", file=sys.stderr)
        print_text(f"{count(len(described) - len(failed), 'inputs')}; `penstock inspect PATH` shows one of them whole")
    return 1 if failed else 0


def _places(refs: Sequence[InputRef], allow_external: bool) -> Iterable[tuple[Path, Description]]:
    """(path, how it is loaded, or who says what it is); files of a directory that is one store count once."""
    is_whole: dict[tuple[str, Path], bool] = {}
    for each in refs:
        if each.is_recording or each.kind == LEROBOT.kind:
            yield each.path, _recording if each.is_recording else _data_set
            continue
        of, parent = formats.get(each.kind), each.path.parent
        options = {"allow_external": True} if allow_external and "allow_external" in of.options else {}
        if of.is_directory_of_files and (each.kind, parent) not in is_whole:
            whole = episode_directory(parent, of, **options)
            is_whole[each.kind, parent] = whole is not None
            if whole is not None:
                yield parent, whole
        if not is_whole.get((each.kind, parent)):
            yield each.path, describe_store(each.path, **options)


def _described(path: Path, load: Description) -> dict[str, Any]:
    if callable(load):
        try:
            return load(path)
        except PenstockError as error:
            return {"path": str(path), "error": error.message, "hint": error.hint}
    if not load["possible"]:
        return {"path": str(path), "error": load["reason"], "hint": load["hint"]}
    chosen = {key: load[key] for key in ("kind", "episodes", "rows", "fps")}
    n_bytes = stored_size(path) or load["stored_bytes"]  # folders may be links to others
    return {"path": str(path), **chosen, "bytes": n_bytes}


def _recording(path: Path) -> dict[str, Any]:
    from penstock._src import recordings

    with recordings.open(path, on_corrupt="count") as recording:
        return {
            "path": str(path),
            "kind": formats.get(recording.kind).label,
            "topics": len(recording.topics),
            "messages": sum(topic.count for topic in recording.topics),
            "seconds": max(recording.end_ns - recording.start_ns, 0) / 1e9,
            "bytes": recording.size_bytes,
        }


def _data_set(path: Path) -> dict[str, Any]:
    from penstock._src.lerobot.read.reader import open_data_set

    info = open_data_set(path).info
    return {
        "path": str(path),
        "kind": f"LeRobot {info.version}",
        "episodes": info.total_episodes,
        "rows": info.total_frames,
        "fps": info.fps,
        "bytes": stored_size(path),
    }


def _line(entry: dict[str, Any]) -> str:
    words = [units.format_size(entry["bytes"]), entry["kind"]]
    if "topics" in entry:
        words += [count(entry["topics"], "topics"), units.format_duration_ns(int(entry["seconds"] * 1e9))]
    else:
        words += [count(entry["episodes"], "episodes"), count(entry["rows"], "rows")]
        words += [f"{entry['fps']:g} fps"] if entry["fps"] else []
    return f"{entry['path']}: {' · '.join(words)}"
