"""penstock inspect RECORDING: topics and rates, fields of messages, and what a conversion would give."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock._src.cli.display import print_text, row, table
from penstock._src.cli.inspect.stores import conversion_lines, show_each
from penstock._src.conversion.report import group_left_out
from penstock._src.system import units
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock._src.recordings.recording import Recording


def inspect_recordings(args: argparse.Namespace) -> int:
    """Recordings, one after the other."""
    from penstock._src import recordings
    from penstock._src.conversion.settings import read_settings
    from penstock._src.system.budget import Budget

    Budget.parse(args.memory)  # a wrong call is refused before anything is read
    read_settings(args.config, args.words)
    paths = recordings.find(args.paths)
    if args.suggest_config:
        with recordings.open(paths[0], on_corrupt="count") as recording:
            return _suggest(recording, args)

    def described(path: Path) -> dict[str, Any]:
        with recordings.open(path, on_corrupt="count") as recording:
            return describe(recording, args) if args.fields is None else describe_fields(recording, args.fields)

    def show(description: dict[str, Any]) -> None:
        _show(description, verbose=args.verbose) if args.fields is None else _show_fields(description)

    return show_each(paths, described, show, args)


def _suggest(recording: Recording, args: argparse.Namespace) -> int:
    from penstock._src.conversion.inputs.recording import plan_recording
    from penstock._src.conversion.mapping.suggest import draft_yaml, suggest_yaml
    from penstock._src.conversion.settings import read_settings
    from penstock._src.system.budget import Budget

    settings = read_settings(args.config, args.words)
    try:
        plan, notes = plan_recording(recording, settings, Budget.parse(args.memory).limit_bytes)
    except PenstockError as error:
        sys.stdout.write(draft_yaml(recording, settings, error))
        print_text(f"penstock: not convertible as it is: {error}", file=sys.stderr)
        return 0
    sys.stdout.write(suggest_yaml(plan, notes))
    return 0


def describe(recording: Recording, args: argparse.Namespace) -> dict[str, Any]:
    """Everything that inspect shows, as plain data."""
    from penstock._src.align import rate_throughout

    topics = []
    for topic in recording.topics:
        times = recording.times_ns(topic)
        rate = rate_throughout(times)
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
    from penstock._src.conversion.cameras.camera import first_payloads
    from penstock._src.recordings.values.fields import list_fields
    from penstock._src.recordings.values.transforms import TRANSFORM_TYPES, TransformTree

    topics: list[dict[str, Any]] = []
    for each in [recording.topic(topic)] if topic else recording.topics:
        description: dict[str, Any] = {"name": each.name, "type": each.type, "messages": each.count, "fields": []}
        try:
            payload = next(first_payloads(recording, each), None) if each.count else None
            if payload is not None:
                description["fields"] = [asdict(field) for field in list_fields(recording.decoder(each), payload)]
            if topic and each.type in TRANSFORM_TYPES and each.count:  # every message is read: only where asked for
                description["transforms"] = ["→".join(edge) for edge in TransformTree(recording).edges(each)]
        except PenstockError as error:
            description["problem"] = error.message
        topics.append(description)
    return {"path": str(recording.path), "topics": topics, "losses": [asdict(loss) for loss in recording.losses]}


def _show_fields(description: dict[str, Any]) -> None:
    from penstock._src.align.report import count_of

    for topic in description["topics"]:
        print_text(f"{topic['name']}  {topic['type']}  {count_of(topic['messages'], 'message')}")
        if "problem" in topic:
            print_text(f"  ! {topic['problem']}")
        if topic.get("transforms"):
            print_text(f"  transforms: {', '.join(topic['transforms'])}")
        cells = [
            (each["path"], each["type"] + "".join(f"[{n}]" for n in each["shape"]).replace("[][", "["), each["value"])
            for each in topic["fields"]
        ]
        for line in table(cells):
            print_text(line)


def _predict(recording: Recording, args: argparse.Namespace) -> dict[str, Any]:
    """What converting would give, or why it cannot be."""
    from penstock._src.conversion.inputs.columns import describe_features
    from penstock._src.conversion.inputs.recording import plan_recording
    from penstock._src.conversion.settings import read_settings
    from penstock._src.system.budget import Budget

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
        "budget_bytes": Budget.parse(args.memory).limit_bytes,
        "features": describe_features(plan.columns),
        "alignment": plan.paired.alignment.report.to_json(),
        "notes": [*notes, *plan.cuts.notes, *plan.aligned_notes],
    }


def _rate(hz: float | None, messages: int) -> str:
    if hz is None:
        return "in bursts" if messages > 1 else ""
    return f"{hz:,.1f} Hz" if hz >= 0.1 else f"{hz:.3f} Hz"


def _show(description: dict[str, Any], *, verbose: bool) -> None:
    from penstock._src import formats

    label = formats.get(description["kind"]).label
    span = units.format_duration_ns(max(description["end_ns"] - description["start_ns"], 0))
    compression = "" if description["compression"] == "none" else f", {description['compression']}"
    print_text(f"{description['path']}: {units.format_size(description['bytes'])} · {span} · {label}{compression}")
    cells = [
        (
            topic["name"],
            topic["type"],
            f"{topic['messages']:,}",
            _rate(topic["rate_hz"], topic["messages"]),
            f"! {topic['problem']}" if topic["problem"] else "",
        )
        for topic in description["topics"]
    ]
    for line in table(cells, right=(2, 3)):
        print_text(line)
    for loss in description["losses"]:
        print_text(row("lost", f"{loss['count']:,} · {loss['cause']} ({loss['where']})"))
    for note in description["notes"]:
        print_text(row("note", note))
    plan = description["conversion"]
    if not plan["possible"]:
        print_text("\n".join(conversion_lines(plan)))
        return
    print_text(f"convert        {plan['rows']:,} rows at {plan['fps']} fps · timeline {plan['timeline']}")
    for key, feature in plan["features"].items():
        size = "×".join(str(n) for n in feature["size_px"]) if "size_px" in feature else str(feature["size"])
        stored = f" ({feature['recorded_as']}, {feature['stored_as']})" if "stored_as" in feature else ""
        print_text(f"  {key} {size} ← {' + '.join(feature['topics'])}{stored}")
    peak, budget = units.format_bytes(plan["predicted_peak_bytes"]), units.format_bytes(plan["budget_bytes"])
    print_text(f"memory         predicted peak {peak} of a budget of {budget}")
    for note in plan["notes"] if verbose else group_left_out(plan["notes"]):
        print_text(f"note           {note}")
