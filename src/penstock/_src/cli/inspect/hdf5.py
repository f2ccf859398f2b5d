"""penstock inspect FILE.hdf5: its layout and why, how each column is read, and what a conversion would take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.cli.display import count, print_text
from penstock._src.cli.inspect.stores import (
    conversion_lines,
    describe_store,
    episode_directory,
    load_lines,
    open_options,
    predict,
    refuse_fields,
    show_each,
    suggest,
)
from penstock._src.formats.registry import HDF5
from penstock._src.system import units

if TYPE_CHECKING:
    from penstock._src.conversion.inputs.input import OpenOptions


def inspect_hdf5(files: Sequence[Path], args: argparse.Namespace) -> int:
    refuse_fields(files[0], args)
    options = open_options(args)
    if args.suggest_config:
        return suggest(HDF5, files[0], options)
    words = _words(options, args.episodes)
    inputs = list(_inputs(files, {Path(path) for path in args.paths}, words))
    if len(inputs) > 1 and not args.json and not _is_configured(args) and all(map(os.path.isdir, args.paths)):
        from penstock._src.cli.inspect.listing import list_stores

        return list_stores((place, load or describe_store(place, **words)) for place, _, load in inputs)
    first_file = {place: first for place, first, _ in inputs}
    loads = {place: load for place, _, load in inputs}

    def described(place: Path) -> dict[str, Any]:
        return describe(first_file[place], options, place, loads[place] or describe_store(place, **words))

    return show_each([place for place, _, _ in inputs], described, _show, args)


def _is_configured(args: argparse.Namespace) -> bool:
    """Whether the predicted conversion is what was asked for."""
    return bool(args.config or [word for word in args.words if not word.startswith("hdf5.")])


def _words(opening: OpenOptions, episodes: Sequence[int] | str | None) -> dict[str, Any]:
    """The options of `penstock.open`."""
    options = opening.settings.hdf5
    words = {"channels": options.channels, "mask": options.mask, "allow_external": options.allow_external}
    return {"episodes": episodes, **words}


def _inputs(
    files: Sequence[Path], named: set[Path], words: dict[str, Any]
) -> Iterable[tuple[Path, Path, dict[str, Any] | None]]:
    """(what to open, its first file, how it is loaded where that is known): a file, or a directory whose files are one
    store, unless they were named."""
    is_whole: dict[Path, bool] = {}
    for file in files:
        parent = file.parent
        if file not in named and parent not in is_whole:
            load = episode_directory(parent, HDF5, **words)
            is_whole[parent] = load is not None
            if load is not None:
                yield parent, file, load
        if file in named or not is_whole[parent]:
            yield file, file, None


def describe(path: Path, opening: OpenOptions, place: Path, load: dict[str, Any]) -> dict[str, Any]:
    """Everything that inspect shows of one file, or of the directory `place` whose first file it is, as plain data."""
    from penstock._src.stores.hdf5.store import open_hdf5

    options = opening.settings.hdf5
    with open_hdf5(path, channels=options.channels, mask=options.mask, allow_external=options.allow_external) as store:
        description = {
            "path": str(path),
            "bytes": path.stat().st_size,
            "files": 1,
            "layout": store.layout,
            "why": store.episodes_from,
            "episodes": store.episodes,
            "rows": store.rows,
            "rate_hz": store.fps,
            "task": store.task(0) if store.episodes else None,
            "robot": store.robot_type,
            "masks": list(store.masks),
        }
    description |= {"load": load, "conversion": {"of": str(path), **predict(HDF5, path, opening)}}
    if place != path:
        sizes = [each.stat().st_size for each in HDF5.files_in(place)]
        description |= {"path": str(place), "bytes": sum(sizes), "files": len(sizes)}
        description |= {key: load[key] for key in ("episodes", "rows") if load["possible"]}
    return description


def _show(info: dict[str, Any]) -> None:
    files = "" if info["files"] == 1 else f"{info['files']:,} files, "
    counts = f"{count(info['episodes'], 'episodes')} · {count(info['rows'], 'rows')}"
    print_text(f"{info['path']}: {files}{units.format_size(info['bytes'])} · HDF5, {info['layout']} · {counts}")
    print_text(f"{'layout':<15}{info['why']}")
    for label, value in (
        ("task", info["task"]),
        ("robot", info["robot"]),
        ("masks", ", ".join(info["masks"])),
    ):
        if value:
            print_text(f"{label:<15}{value}")
    print_text("\n".join(load_lines(info["load"])))
    if info["conversion"]["possible"] and info["files"] > 1:
        print_text(f"convert        file by file; {Path(info['conversion']['of']).name} like this:")
    print_text("\n".join(conversion_lines(info["conversion"])))
