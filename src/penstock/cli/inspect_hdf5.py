"""penstock inspect FILE.hdf5: its layout and why, how each column is read, and what a conversion would take."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.display import count, say
from penstock.cli.inspect_store import (
    conversion_lines,
    describe_store,
    episode_directory,
    load_lines,
    means_of,
    predict,
    refuse_fields,
    show_each,
    suggest,
)
from penstock.formats.builtin import HDF5
from penstock.system import units

if TYPE_CHECKING:
    from penstock.conversion.inputs.input import Means
    from penstock.stores.hdf5.layout import Layout, Span

_MOST_SHOWN = 200  # data sets, and files of a directory


def inspect_hdf5(files: Sequence[Path], args: argparse.Namespace) -> int:
    refuse_fields(files[0], args)
    means = means_of(args)
    if args.suggest_config:
        return suggest(HDF5, files[0], means)
    words = _words(means, args.episodes)
    inputs = list(_inputs(files, {Path(path) for path in args.paths}, words))
    if len(inputs) > 1 and not args.json and not _is_configured(args) and all(map(os.path.isdir, args.paths)):
        from penstock.cli.inspect_listing import list_stores

        return list_stores((place, load or describe_store(place, **words)) for place, _, load in inputs)
    first_file = {place: first for place, first, _ in inputs}
    loads = {place: load for place, _, load in inputs}

    def described(place: Path) -> dict[str, Any]:
        return describe(first_file[place], means, place, loads[place] or describe_store(place, **words))

    return show_each([place for place, _, _ in inputs], described, _show, args)


def _is_configured(args: argparse.Namespace) -> bool:
    """Whether the predicted conversion is what was asked for."""
    return bool(args.config or [word for word in args.words if not word.startswith("hdf5.")])


def _words(means: Means, episodes: Sequence[int] | str | None) -> dict[str, Any]:
    """What `penstock.open` is told."""
    options = means.settings.hdf5
    words = {"channels": options.channels, "mask": options.mask, "allow_external": options.allow_external}
    return {"episodes": episodes, **words}


def _inputs(
    files: Sequence[Path], named: set[Path], words: dict[str, Any]
) -> Iterable[tuple[Path, Path, dict[str, Any] | None]]:
    """(what to open, its first file, how it is loaded where that is known): a file, or a directory whose files are one
    store, unless they were named."""
    told: dict[Path, bool] = {}
    for file in files:
        parent = file.parent
        if file not in named and parent not in told:
            load = episode_directory(parent, HDF5, **words)
            told[parent] = load is not None
            if load is not None:
                yield parent, file, load
        if file in named or not told[parent]:
            yield file, file, None


def describe(path: Path, means: Means, place: Path, load: dict[str, Any]) -> dict[str, Any]:
    """Everything that inspect shows of one file, or of the directory `place` whose first file it is, as plain data."""
    from penstock.stores.hdf5.file import Hdf5File
    from penstock.stores.hdf5.file_store import TEXT_NAMES, read_facts
    from penstock.stores.hdf5.layout import episode_spans, recognise

    options = means.settings.hdf5
    with Hdf5File(path, allow_external=options.allow_external, texts=TEXT_NAMES) as file:
        layout = recognise(file, options.channels)
        spans = episode_spans(file, layout, options.mask)
        facts = read_facts(file, layout)
        found = {
            "path": str(path),
            "bytes": file.size_bytes,
            "files": 1,
            "layout": layout.kind,
            "why": layout.why,
            "episodes": len(spans),
            "rows": sum(span.stop - span.start for span in spans),
            "rate_hz": facts.rate_hz,
            "task": facts.task,
            "robot": facts.robot,
            "masks": list(layout.masks),
            "datasets": _data_sets(file, layout, spans),
            "reads_besides": list(file.followed),
        }
    found |= {"load": load, "conversion": {"of": str(path), **predict(HDF5, path, means)}}
    if place != path:
        sizes = [each.stat().st_size for each in HDF5.files_in(place)]
        found |= {"path": str(place), "bytes": sum(sizes), "files": len(sizes)}
        found |= {key: load[key] for key in ("episodes", "rows") if load["possible"]}
    return found


def _data_sets(file: Any, layout: Layout, spans: Sequence[Span]) -> list[dict[str, Any]]:
    from penstock.stores.hdf5.array import Hdf5Array
    from penstock.stores.hdf5.layout import join

    group = next((span.group for span in spans if span.stop > span.start), spans[0].group if spans else "")
    found = []
    for member in layout.members[:_MOST_SHOWN]:
        array = Hdf5Array(file, join(group, member.name))
        found.append(
            {
                "name": array.name,
                "dtype": member.dtype,
                "shape": list(array.shape),
                "content": member.content,
                "channels": member.channels,
                "why": member.why,
                "read_by": array.path_taken.way,
                "because": array.path_taken.why,
            }
        )
    return found


def _show(found: dict[str, Any]) -> None:
    files = "" if found["files"] == 1 else f"{found['files']:,} files, "
    counts = f"{count(found['episodes'], 'episodes')} · {count(found['rows'], 'rows')}"
    say(f"{found['path']}: {files}{units.format_size(found['bytes'])} · HDF5, {found['layout']} · {counts}")
    say(f"{'layout':<15}{found['why']}")
    for label, value in (("task", found["task"]), ("robot", found["robot"]), ("masks", ", ".join(found["masks"]))):
        if value:
            say(f"{label:<15}{value}")
    say("\n".join(load_lines(found["load"])))
    if not found["load"]["possible"]:
        _show_data_sets(found["datasets"])
    for target in found["reads_besides"]:
        say(f"reads besides  {target}")
    if found["conversion"]["possible"] and found["files"] > 1:
        say(f"convert        file by file; {Path(found['conversion']['of']).name} like this:")
    say("\n".join(conversion_lines(found["conversion"])))


def _show_data_sets(found: Sequence[dict[str, Any]]) -> None:
    """What lies in a file that cannot be loaded."""
    width = max((len(each["name"]) for each in found), default=0)
    for each in found:
        shape = "×".join(f"{size:,}" for size in each["shape"])
        what = each["content"] + (f", channels {each['channels']}" if each["channels"] != "none" else "")
        say(
            f"  {each['name']:<{width}}  {each['dtype']:<8} {shape:<18} {what:<24} {each['read_by']}: {each['because']}"
        )
