"""penstock inspect FILE.hdf5: its layout and why, how each data set is read, and what a conversion would take."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import units
from penstock.errors import PenstockError, UsageError

if TYPE_CHECKING:
    from penstock.conversion.inputs import Input, Means
    from penstock.stores.hdf5_layout import Layout, Span

_MOST_SHOWN = 200  # data sets, and files of a directory
_HEAD = """\
# What `penstock convert` would do with {name}: keep this file, change what you like, and give it as --config.
# docs/hdf5.md explains what is particular to HDF5 files, docs/configuration.md every key.
"""


def hdf5_files(paths: Sequence[str]) -> list[Path]:
    """The HDF5 files among the words of a call, if they are nothing else."""
    from penstock.conversion.find import find_inputs

    try:
        found = find_inputs(paths)
    except PenstockError:
        return []  # whoever looks for recordings says better what is wrong
    files = [each.path for each in found if each.kind == "hdf5"]
    if files and len(files) != len(found):
        raise UsageError("inspect shows HDF5 files or recordings, not both at once")
    return files


def inspect_hdf5(files: Sequence[Path], args: argparse.Namespace) -> int:
    from penstock.budget import Budget
    from penstock.conversion.inputs import Means
    from penstock.conversion.settings import read_settings
    from penstock.limits import read_cpu_limit

    means = Means(
        settings=read_settings(args.config, args.words),
        budget_bytes=Budget.parse(args.memory).limit_bytes,
        threads=read_cpu_limit().count,
    )
    if args.suggest_config:
        return _suggest(files[0], means)
    codes = {0}
    described: list[dict[str, Any]] = []
    for path in files:
        try:
            found = describe(path, means)
        except PenstockError as error:
            if len(files) == 1 or args.traceback:
                raise
            # One broken file of many does not hide the others.
            print(f"penstock: {error}", file=sys.stderr)
            codes.add(error.exit_code)
            found = {"path": str(path), "error": error.message, "hint": error.hint}
        described.append(found)
        if not args.json and "error" not in found:
            _show(found)
    if args.json:
        whole: Any = described[0] if len(described) == 1 else described
        sys.stdout.write(json.dumps(whole, indent=2, ensure_ascii=False) + "\n")
    return max(codes)


def describe(path: Path, means: Means) -> dict[str, Any]:
    """Everything that inspect shows of one file, as plain data."""
    from penstock.conversion.hdf5_mapping import TEXT_NAMES, read_facts
    from penstock.stores.hdf5_file import Hdf5File
    from penstock.stores.hdf5_layout import episode_spans, recognise

    options = means.settings.hdf5
    with Hdf5File(path, allow_external=options.allow_external, texts=TEXT_NAMES) as file:
        layout = recognise(file, options.channels)
        spans = episode_spans(file, layout, options.mask)
        facts = read_facts(file, layout)
        return {
            "path": str(path),
            "bytes": file.size_bytes,
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
            "conversion": _predict(path, means),
        }


def _data_sets(file: Any, layout: Layout, spans: Sequence[Span]) -> list[dict[str, Any]]:
    from penstock.stores.hdf5_array import Hdf5Array
    from penstock.stores.hdf5_layout import join

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
    from penstock.conversion.hdf5_input import open_hdf5

    try:
        with open_hdf5(path, means, None) as planned:
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
    from penstock.conversion.hdf5_input import open_hdf5

    with open_hdf5(path, means, None) as planned:
        sys.stdout.write(suggest_yaml(planned))
    return 0


def suggest_yaml(planned: Input) -> str:
    """A configuration that gives the same data set as the settings that the file was opened with."""
    from penstock import config

    rest = config.dump_yaml(replace(planned.settings, features={})).replace("features: {}\n", "")
    features = {"features": dict(planned.settings.features)}
    return _HEAD.format(name=planned.path.name) + rest + config.dump_yaml(features, skip_defaults=True)


def _show(found: dict[str, Any]) -> None:
    episodes = f"{found['episodes']:,} episode{'s' if found['episodes'] != 1 else ''}"
    print(f"{found['path']}: {units.format_size(found['bytes'])} · HDF5, {found['layout']} · {episodes}")
    print(f"{'layout':<15}{found['why']}")
    for label, value in (("task", found["task"]), ("robot", found["robot"]), ("masks", ", ".join(found["masks"]))):
        if value:
            print(f"{label:<15}{value}")
    width = max((len(each["name"]) for each in found["datasets"]), default=0)
    for each in found["datasets"]:
        shape = "×".join(f"{size:,}" for size in each["shape"])
        what = each["content"] + (f", channels {each['channels']}" if each["channels"] != "none" else "")
        print(
            f"  {each['name']:<{width}}  {each['dtype']:<8} {shape:<18} {what:<24} {each['read_by']}: {each['because']}"
        )
    for target in found["reads_besides"]:
        print(f"reads besides  {target}")
    plan = found["conversion"]
    if not plan["possible"]:
        print(f"convert        not as it is: {plan['reason']}")
        if plan["hint"]:
            print(f"               → {plan['hint']}")
        return
    for label, text in plan["lines"]:
        print(f"{label:<15}{text}")
    peak, budget = units.format_bytes(plan["predicted_peak_bytes"]), units.format_bytes(plan["budget_bytes"])
    print(f"memory         predicted peak {peak} of a budget of {budget}")
    for note in plan["notes"]:
        print(f"note           {note}")
