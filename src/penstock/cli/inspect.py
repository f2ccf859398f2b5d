"""penstock inspect: what is in a recording, a data set or an HDF5 file; what loading or converting it would take."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.convert import split_words
from penstock.cli.display import say
from penstock.cli.inspect_spike import inspect_spike_files, is_spike_file
from penstock.cli.inspect_store import parse_episodes, show_each
from penstock.conversion.inputs.input import RECORDING, Found
from penstock.conversion.mapping.left_out import group_left_out
from penstock.errors import PenstockError, UsageError
from penstock.system import units
from penstock.system.files import as_path

if TYPE_CHECKING:
    from penstock.recordings.recording import Recording


def add_parser(verbs: Any) -> None:
    parser = verbs.add_parser(
        "inspect",
        usage="penstock inspect [options] PATH… [a.b=c …]",
        help="show what a recording, a data set or an HDF5 file holds, and what loading or converting it would take",
        description="Show topics, types, counts and rates of a recording; rows, episodes and columns of a LeRobot data "
        "set, an HDF5 file, a directory of HDF5 episodes or a spike data set, how their rows are read and why; the "
        "layout of spike files (.dat). Of a directory with several of them, a line each.",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="PATH… [a.b=c …]",
        help=".bag, .db3, .mcap or .hdf5 files, LeRobot data sets, directories with them, or globs; "
        "configuration for the predicted conversion",
    )
    parser.add_argument("--config", metavar="FILE", help="YAML configuration for the predicted conversion")
    parser.add_argument(
        "--suggest-config",
        action="store_true",
        help="print the YAML that convert would use, or one to edit, with the reasons as comments",
    )
    parser.add_argument(
        "--fields",
        nargs="?",
        const="",
        metavar="TOPIC",
        help="list every field of the messages of a topic, or of all topics: path, type, shape and one value",
    )
    parser.add_argument("--memory", default="auto", metavar="SIZE", help="the budget of the predicted conversion")
    parser.add_argument(
        "--episodes", metavar="NUMBERS", help="open only these episodes of a data set: 0-9,12; whole: with all files"
    )
    parser.add_argument("--allow-external", action="store_true", help="let HDF5 files refer to other files")
    parser.add_argument("--verbose", action="store_true", help="list every topic that is left out, with its reason")
    parser.add_argument("--json", action="store_true", help="print one JSON object, of several inputs a list")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from penstock import formats

    if args.fields and Path(args.fields).exists():  # `--fields run.bag`: all topics of it
        args.words, args.fields = [args.fields, *args.words], ""
    args.paths, args.words = split_words(args.words)
    args.words += ["hdf5.allow_external=true"] if args.allow_external else []
    args.episodes = None if args.episodes is None else parse_episodes(args.episodes)
    if not args.paths:
        raise UsageError("inspect needs a recording or a data set", hint="penstock inspect run.bag")
    if args.suggest_config and args.json:
        raise UsageError("--suggest-config prints YAML, --json prints JSON: give one of them")
    if args.suggest_config and args.fields is not None:
        raise UsageError("--suggest-config prints YAML, --fields a table: give one of them")
    if all(is_spike_file(as_path(path)) for path in args.paths):
        return inspect_spike_files([as_path(path) for path in args.paths], args)
    directories = _named_directories(args.paths)
    found = directories or _contents(args.paths)
    kinds = {each.kind for each in found}
    if not found or kinds == {RECORDING}:
        return _inspect_recordings(args)
    of_one = formats.get(found[0].kind) if len(kinds) == 1 else None
    if of_one is None or (of_one.markers and len(found) > 1 and not directories):
        from penstock.cli.inspect_listing import list_contents

        return list_contents(found, args)
    return int(of_one.load("inspect")([each.path for each in found], args))


def _named_directories(paths: Sequence[str]) -> list[Found]:
    """The directories that are stores, where the words name nothing else; none where they name none."""
    from penstock import formats

    found = [(path, formats.by_directory(path, "store")) for path in map(as_path, paths)]
    stores = [Found(store.kind, path) for path, store in found if store is not None]
    if stores and len(paths) > len(stores):
        raise UsageError(f"{stores[0].path} is a data set: inspect shows data sets, or recordings, not both at once")
    return stores


def _contents(paths: Sequence[str]) -> list[Found]:
    from penstock.conversion.find import find_inputs

    try:
        return find_inputs(paths)
    except PenstockError:
        return []  # whoever looks for recordings says better what is wrong


def _inspect_recordings(args: argparse.Namespace) -> int:
    from penstock import recordings
    from penstock.conversion.settings import read_settings
    from penstock.system.budget import Budget

    Budget.parse(args.memory)  # a wrong call is told before anything is read
    read_settings(args.config, args.words)
    paths = recordings.find(args.paths)
    if args.suggest_config:
        with recordings.open(paths[0], on_corrupt="count") as recording:
            return _suggest(recording, args)

    def described(path: Path) -> dict[str, Any]:
        with recordings.open(path, on_corrupt="count") as recording:
            return describe(recording, args) if args.fields is None else describe_fields(recording, args.fields)

    def show(found: dict[str, Any]) -> None:
        _show(found, verbose=args.verbose) if args.fields is None else _show_fields(found)

    return show_each(paths, described, show, args)


def _suggest(recording: Recording, args: argparse.Namespace) -> int:
    from penstock.conversion.inputs.recording import plan_recording
    from penstock.conversion.mapping.suggest import draft_yaml, suggest_yaml
    from penstock.conversion.settings import read_settings
    from penstock.system.budget import Budget

    settings = read_settings(args.config, args.words)
    try:
        plan, notes = plan_recording(recording, settings, Budget.parse(args.memory).limit_bytes)
    except PenstockError as error:
        sys.stdout.write(draft_yaml(recording, settings, error))
        say(f"penstock: not convertible as it is: {error}", file=sys.stderr)
        return 0
    sys.stdout.write(suggest_yaml(plan, notes))
    return 0


def describe(recording: Recording, args: argparse.Namespace) -> dict[str, Any]:
    """Everything that inspect shows, as plain data."""
    from penstock.align import measure_rate

    topics = []
    for topic in recording.topics:
        times = recording.times_ns(topic)
        rate = measure_rate(times)
        topics.append(
            {
                "name": topic.name,
                "type": topic.type,
                "messages": topic.count,
                "rate_hz": None if rate is None else round(rate.hz, 3),
                "start_ns": int(times.min()) if topic.count else None,
                "end_ns": int(times.max()) if topic.count else None,
                "problem": topic.problem,
            }
        )
    return {
        "path": str(recording.path),
        "kind": recording.kind,
        "compression": recording.compression,
        "bytes": recording.size_bytes,
        "start_ns": recording.start_ns,
        "end_ns": recording.end_ns,
        "seconds": (recording.end_ns - recording.start_ns) / 1e9,
        "topics": topics,
        "losses": [asdict(loss) for loss in recording.losses],
        "notes": list(recording.notes),
        "conversion": _predict(recording, args),
    }


def describe_fields(recording: Recording, topic: str) -> dict[str, Any]:
    """The fields of the first message of a topic, or of every topic; of a topic of transforms which ones it holds."""
    from penstock.conversion.mapping.first_messages import first_payloads
    from penstock.recordings.values.fields import list_fields
    from penstock.recordings.values.transforms import TRANSFORM_TYPES, TransformTree

    topics: list[dict[str, Any]] = []
    for each in [recording.topic(topic)] if topic else recording.topics:
        found: dict[str, Any] = {"name": each.name, "type": each.type, "messages": each.count, "fields": []}
        try:
            payload = next(first_payloads(recording, each), None) if each.count else None
            if payload is not None:
                found["fields"] = [asdict(field) for field in list_fields(recording.decoder(each), payload)]
            if topic and each.type in TRANSFORM_TYPES and each.count:  # every message is read: only where asked for
                found["transforms"] = ["→".join(edge) for edge in TransformTree(recording).edges(each)]
        except PenstockError as error:
            found["problem"] = error.message
        topics.append(found)
    return {"path": str(recording.path), "topics": topics, "losses": [asdict(loss) for loss in recording.losses]}


def _show_fields(found: dict[str, Any]) -> None:
    from penstock.align.report import count_of

    for topic in found["topics"]:
        say(f"{topic['name']}  {topic['type']}  {count_of(topic['messages'], 'message')}")
        if "problem" in topic:
            say(f"  ! {topic['problem']}")
        cells = [
            (each["path"], each["type"] + "".join(f"[{n}]" for n in each["shape"]).replace("[][", "["), each["value"])
            for each in topic["fields"]
        ]
        widths = [max((len(cell[column]) for cell in cells), default=0) for column in (0, 1)]
        if topic.get("transforms"):
            say(f"  transforms: {', '.join(topic['transforms'])}")
        for path, kind, value in cells:
            say(f"  {path:<{widths[0]}}  {kind:<{widths[1]}}  {value}".rstrip())


def _predict(recording: Recording, args: argparse.Namespace) -> dict[str, Any]:
    """What converting would give, or why it cannot be."""
    from penstock.conversion.inputs.columns import describe_features
    from penstock.conversion.inputs.recording import plan_recording
    from penstock.conversion.settings import read_settings
    from penstock.system.budget import Budget

    settings = read_settings(args.config, args.words)
    try:
        plan, notes = plan_recording(recording, settings, Budget.parse(args.memory).limit_bytes)
    except PenstockError as error:
        return {"possible": False, "reason": error.message, "hint": error.hint}
    return {
        "possible": True,
        "rows": plan.paired.rows,
        "fps": plan.paired.fps,
        "timeline": plan.settings.timeline,
        "episodes": len(plan.cuts.spans),
        "predicted_peak_bytes": plan.memory.peak_bytes,
        "budget_bytes": plan.budget_bytes,
        "features": describe_features(plan.columns),
        "alignment": plan.paired.alignment.report.to_json(),
        "notes": [*notes, *plan.cuts.notes, *plan.aligned_notes],
    }


def _rate(hz: float) -> str:
    return f"{hz:,.1f} Hz" if hz >= 0.1 else f"{hz:.3f} Hz"


def _show(found: dict[str, Any], *, verbose: bool) -> None:
    from penstock import formats

    label = formats.get(found["kind"]).label
    span = units.format_duration_ns(max(found["end_ns"] - found["start_ns"], 0))
    compression = "" if found["compression"] == "none" else f", {found['compression']}"
    say(f"{found['path']}: {units.format_size(found['bytes'])} · {span} · {label}{compression}")
    width = max((len(topic["name"]) for topic in found["topics"]), default=0)
    types = max((len(topic["type"]) for topic in found["topics"]), default=0)
    for topic in found["topics"]:
        rate = "" if topic["rate_hz"] is None else _rate(topic["rate_hz"])
        line = f"  {topic['name']:<{width}}  {topic['type']:<{types}}  {topic['messages']:>9,}  {rate:>12}"
        say(line.rstrip() + (f"  ! {topic['problem']}" if topic["problem"] else ""))
    for loss in found["losses"]:
        say(f"lost           {loss['count']:,} · {loss['cause']} ({loss['where']})")
    for note in found["notes"]:
        say(f"note           {note}")
    plan = found["conversion"]
    if not plan["possible"]:
        say(f"convert        not as it is: {plan['reason']}")
        if plan["hint"]:
            say(f"               → {plan['hint']}")
        return
    say(f"convert        {plan['rows']:,} rows at {plan['fps']} fps · timeline {plan['timeline']}")
    for key, feature in plan["features"].items():
        size = "×".join(str(n) for n in feature["size_px"]) if "size_px" in feature else str(feature["size"])
        stored = f" ({feature['recorded_as']}, {feature['stored_as']})" if "stored_as" in feature else ""
        say(f"  {key} {size} ← {' + '.join(feature['topics'])}{stored}")
    peak, budget = units.format_bytes(plan["predicted_peak_bytes"]), units.format_bytes(plan["budget_bytes"])
    say(f"memory         predicted peak {peak} of a budget of {budget}")
    for note in plan["notes"] if verbose else group_left_out(plan["notes"]):
        say(f"note           {note}")
