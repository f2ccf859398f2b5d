"""The configuration that a recording would be converted with, as YAML to keep and edit."""

from __future__ import annotations

from typing import Any

from penstock import config
from penstock.conversion.columns import Columns
from penstock.conversion.job import RecordingPlan
from penstock.conversion.settings import Source

_HEAD = """\
# What `penstock convert` would do with {name}: keep this file, change what you like, and give it as --config.
# rows: {rows:,} at {fps} fps · docs/configuration.md explains every key.
"""


def suggest_yaml(plan: RecordingPlan) -> str:
    """A configuration that gives the same data set as none."""
    settings = plan.settings
    tree: dict[str, Any] = {
        "timeline": settings.timeline,
        "stride": settings.stride or (1 if settings.fps is None else None),
        "fps": settings.fps,
        "time": settings.time,
        "sample_drop": settings.sample_drop,
        "missing": settings.missing,
        "bad_messages": settings.bad_messages,
        "video": settings.video,
        "task": settings.task,
        "robot_type": settings.robot_type,
        "split_episodes": settings.split_episodes,
        "rosbag": {"chunk_size": settings.rosbag.chunk_size},
        "features": _features(plan.columns),
    }
    head = _HEAD.format(name=plan.recording.path.name, rows=plan.paired.rows, fps=plan.paired.fps)
    return head + config.dump_yaml(tree)


def _features(columns: Columns) -> dict[str, Any]:
    features: dict[str, Any] = {camera.key: {"topic": camera.topic.name} for camera in columns.cameras}
    for vector in columns.vectors:
        sources = [_source(part.source) for part in vector.parts]
        features[vector.key] = sources[0] if len(sources) == 1 else sources
    return features


def _source(source: Source) -> dict[str, Any]:
    written: dict[str, Any] = {"topic": source.topic, "field": source.field, "policy": source.policy or "nearest"}
    if source.names:
        written["names"] = list(source.names)
    return written
