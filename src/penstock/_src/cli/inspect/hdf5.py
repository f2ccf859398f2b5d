"""penstock inspect FILE.hdf5: its layout and why, how each column is read, and what a conversion would take."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.cli.display import count, print_text
from penstock._src.cli.inspect.stores import (
    conversion_lines,
    describe_store,
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


def inspect_hdf5(paths: Sequence[Path], args: argparse.Namespace) -> int:
    """Files, and directories whose files are one store."""
    refuse_fields(paths[0], args)
    options = open_options(args)
    if args.suggest_config:
        return suggest(HDF5, _files(paths[0])[0], options)
    return show_each(paths, lambda path: describe(path, options, args.episodes), _show, args)


def _files(path: Path) -> Sequence[Path]:
    return HDF5.files_in(path) if path.is_dir() else [path]


def describe(path: Path, opening: OpenOptions, episodes: Sequence[int] | str | None = None) -> dict[str, Any]:
    """Everything that inspect shows, as plain data; the layout is that of the first file."""
    from penstock._src.stores.hdf5.store import open_hdf5

    files, options = _files(path), opening.settings.hdf5
    words: dict[str, Any] = {"channels": options.channels, "mask": options.mask}
    words["allow_external"] = options.allow_external
    load = describe_store(path, episodes=episodes, **words)
    with open_hdf5(files[0], **words, defers=True) as store:
        description = {
            "path": str(path),
            "bytes": sum(each.stat().st_size for each in files),
            "files": len(files),
            "layout": store.layout,
            "why": store.episodes_from,
            "episodes": store.episodes,
            "rows": store.rows,
            "rate_hz": store.fps,
            "task": store.task(0) if store.episodes else None,
            "robot": store.robot_type,
            "masks": list(store.masks),
        }
    description |= {"load": load, "conversion": {"of": str(files[0]), **predict(HDF5, files[0], opening)}}
    if len(files) > 1:
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
