"""penstock inspect DIR: a line for each data set, HDF5 file, directory of episodes and recording in a directory."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._src import formats
from penstock._src.cli.display import count, print_json, print_text
from penstock._src.cli.inspect.stores import describe_store, episode_directory, refuse_configuration, stored_size
from penstock._src.system import units
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock._src.conversion.inputs.input import InputRef
    from penstock._src.formats import Format


class ListedInput(NamedTuple):
    """What is shown as one: a recording, a store, or a directory whose files are one store together."""

    path: Path
    of: Format | None  # None: a recording, of whatever format
    load: dict[str, Any] | None = None  # how it is loaded, where that is known already


def find_inputs(refs: Sequence[InputRef], args: argparse.Namespace) -> Iterator[ListedInput]:
    """Files of a directory that is one store count once, unless they were named."""
    named = {Path(path) for path in args.paths}
    whole: dict[tuple[str, Path], dict[str, Any] | None] = {}
    for each in refs:
        if each.is_recording:
            yield ListedInput(each.path, None)
            continue
        of, parent = formats.get(each.kind), each.path.parent
        if of.is_directory_of_files and each.path not in named:
            is_new = (each.kind, parent) not in whole
            if is_new:
                whole[each.kind, parent] = episode_directory(parent, of, **_options(of, args))
            if (load := whole[each.kind, parent]) is not None:
                if is_new:
                    yield ListedInput(parent, of, load)
                continue
        yield ListedInput(each.path, of)


def list_inputs(inputs: Sequence[ListedInput], args: argparse.Namespace) -> int:
    """One line each, with what `penstock inspect` of it alone begins with; 1 where one of them cannot be read."""
    refuse_configuration(inputs[0].path, args)
    described = [_described(listed, args) for listed in inputs]
    failed = [each for each in described if "error" in each]
    if args.json:
        print_json(described)
        return 1 if failed else 0
    for each in described:
        if "error" not in each:
            print_text(_line(each))
    for each in failed:
        print_text(f"penstock: {each['error']}" + (f"\n  → {each['hint']}" if each["hint"] else ""), file=sys.stderr)
    print_text(f"{count(len(described) - len(failed), 'inputs')}; `penstock inspect PATH` shows one of them whole")
    return 1 if failed else 0


def _options(of: Format, args: argparse.Namespace) -> dict[str, Any]:
    return {"allow_external": True} if args.allow_external and "allow_external" in of.options else {}


def _described(listed: ListedInput, args: argparse.Namespace) -> dict[str, Any]:
    path, of, load = listed
    if of is None:
        try:
            return _recording(path)
        except PenstockError as error:
            return {"path": str(path), "error": error.message, "hint": error.hint}
    load = load or describe_store(path, **_options(of, args))
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


def _line(entry: dict[str, Any]) -> str:
    words = [units.format_size(entry["bytes"]), entry["kind"]]
    if "topics" in entry:
        words += [count(entry["topics"], "topics"), units.format_duration_ns(entry["seconds"] * 1e9)]
    else:
        words += [count(entry["episodes"], "episodes"), count(entry["rows"], "rows")]
        words += [f"{entry['fps']:g} fps"] if entry["fps"] else []
    return f"{entry['path']}: {' · '.join(words)}"
