"""penstock inspect FILE.hdf5: its layout and why, how each column is read, and what a conversion would take."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.display import count, say
from penstock.cli.inspect_store import describe_store, episode_directory, hdf5_files, load_lines
from penstock.errors import PenstockError
from penstock.system import units

if TYPE_CHECKING:
    from penstock.conversion.inputs.input import Input, Means
    from penstock.stores.hdf5.layout import Layout, Span

_COMPARED_BYTES = 256 << 20  # of every column of next observations, where nothing is converted yet
_MOST_SHOWN = 200  # data sets, and files of a directory
_HEAD = """\
# What `penstock convert` would do with {name}: keep this file, change what you like, and give it as --config.
# docs/hdf5.md explains what is particular to HDF5 files, docs/configuration.md every key.
"""


def inspect_hdf5(files: Sequence[Path], args: argparse.Namespace) -> int:
    from penstock.conversion.inputs.input import Means
    from penstock.conversion.settings import read_settings
    from penstock.system.budget import Budget
    from penstock.system.limits import read_cpu_limit

    means = Means(
        settings=read_settings(args.config, args.words),
        budget_bytes=Budget.parse(args.memory).limit_bytes,
        threads=read_cpu_limit().count,
    )
    if args.suggest_config:
        return _suggest(files[0], means)
    means = replace(means, compared_bytes=_COMPARED_BYTES)
    codes = {0}
    described: list[dict[str, Any]] = []
    words = _words(means, args.episodes)
    inputs = list(_inputs(files, {Path(path) for path in args.paths}, words))
    if len(inputs) > 1 and not args.json and not _is_configured(args) and all(map(os.path.isdir, args.paths)):
        from penstock.cli.inspect_listing import list_stores

        return list_stores((place, load or describe_store(place, **words)) for place, _, load in inputs)
    for place, first, load in inputs:
        try:
            found = describe(first, means, place, load or describe_store(place, **words))
        except PenstockError as error:
            if len(inputs) == 1 or args.traceback:
                raise
            # One broken file of many does not hide the others.
            say(f"penstock: {error}", file=sys.stderr)
            codes.add(error.exit_code)
            found = {"path": str(place), "error": error.message, "hint": error.hint}
        described.append(found)
        if not args.json and "error" not in found:
            _show(found)
    if args.json:
        whole: Any = described[0] if len(described) == 1 else described
        sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    return max(codes)


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
            load = episode_directory(parent, **words)
            told[parent] = load is not None
            if load is not None:
                yield parent, file, load
        if file in named or not told[parent]:
            yield file, file, None


def describe(path: Path, means: Means, place: Path, load: dict[str, Any]) -> dict[str, Any]:
    """Everything that inspect shows of one file, or of the directory `place` whose first file it is, as plain data."""
    from penstock.stores.hdf5.facts import TEXT_NAMES, read_facts
    from penstock.stores.hdf5.file import Hdf5File
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
    found |= {"load": load, "conversion": {"of": str(path), **_predict(path, means)}}
    if place != path:
        sizes = [each.stat().st_size for each in hdf5_files(place)]
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


def _predict(path: Path, means: Means) -> dict[str, Any]:
    """What converting would give, or why it cannot be."""
    from penstock.conversion.inputs.store import open_hdf5_input

    try:
        with open_hdf5_input(path, means, None) as planned:
            return {
                "possible": True,
                "fps": planned.fps,
                "predicted_peak_bytes": planned.memory.peak_bytes,
                "budget_bytes": means.budget_bytes,
                "features": planned.describe(),
                "lines": [list(line) for line in planned.lines()[1:]],
                "notes": list(planned.notes),
            }
    except PenstockError as error:
        return {"possible": False, "reason": error.message, "hint": error.hint}


def _suggest(path: Path, means: Means) -> int:
    from penstock.conversion.inputs.store import open_hdf5_input
    from penstock.conversion.mapping.suggest import comment, draft_head

    try:
        with open_hdf5_input(path, means, None) as planned:
            text = _HEAD.format(name=path.name) + comment(planned.notes) + settings_yaml(planned)
    except PenstockError as error:
        if means.settings.fps is not None:
            raise
        # The rate is what files leave out: all else is shown with one that has to be changed.
        with open_hdf5_input(path, replace(means, settings=replace(means.settings, fps=30)), None) as planned:
            text = draft_head(path.name, error) + settings_yaml(planned).replace("fps: 30\n", "# fps: 30\n", 1)
        say(f"penstock: not convertible as it is: {error}", file=sys.stderr)
    sys.stdout.write(text)
    return 0


def settings_yaml(planned: Input) -> str:
    """A configuration that gives the same data set as the settings that the file was opened with."""
    from penstock.system import config

    rest = config.dump_yaml(replace(planned.settings, features={})).replace("features: {}\n", "")
    features = {"features": dict(planned.settings.features)}
    return rest + config.dump_yaml(features, skip_defaults=True)


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
    plan = found["conversion"]
    if not plan["possible"]:
        say(f"convert        not as it is: {plan['reason']}")
        if plan["hint"]:
            say(f"               → {plan['hint']}")
        return
    if found["files"] > 1:
        say(f"convert        file by file; {Path(plan['of']).name} like this:")
    for label, text in plan["lines"]:
        say(f"{label:<15}{text}")
    peak, budget = units.format_bytes(plan["predicted_peak_bytes"]), units.format_bytes(plan["budget_bytes"])
    say(f"memory         predicted peak {peak} of a budget of {budget}")
    for note in plan["notes"]:
        say(f"note           {note}")


def _show_data_sets(found: Sequence[dict[str, Any]]) -> None:
    """What lies in a file that cannot be loaded."""
    width = max((len(each["name"]) for each in found), default=0)
    for each in found:
        shape = "×".join(f"{size:,}" for size in each["shape"])
        what = each["content"] + (f", channels {each['channels']}" if each["channels"] != "none" else "")
        say(
            f"  {each['name']:<{width}}  {each['dtype']:<8} {shape:<18} {what:<24} {each['read_by']}: {each['because']}"
        )
