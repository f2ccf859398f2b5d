"""Topics that say one thing for the whole recording (calibration, static transforms): metadata, and never a column."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from penstock.conversion.mapping.camera_topics import is_image
from penstock.errors import PenstockError
from penstock.recordings.recording import Recording, Topic

_MOST_MESSAGES = 10  # of a topic that was latched, or sent again for those who came late
# How many messages the busiest topic has for each of a rare one, and beside a single one: else the recording is short.
_MUCH_RARER, _BESIDE_ONE = 30, 5
_ALWAYS = frozenset(("sensor_msgs/msg/CameraInfo",))  # sent with every image, and the same each time
_MOST_BYTES = 64 << 10  # a message that is larger is data
_KEPT_CHARACTERS = 2_000  # of one value in the report; of all of them twice that


def find_constants(recording: Recording, taken: Collection[str]) -> dict[str, dict[str, Any]]:
    """The constants of a recording by topic: type, number of messages, and the value where it is small.

    `taken` topics are columns or mark episodes. Only topics of few and small messages are read.
    """
    busiest = max((topic.count for topic in recording.topics), default=0)
    found: dict[str, dict[str, Any]] = {}
    room = 2 * _KEPT_CHARACTERS
    for topic in sorted(recording.topics, key=lambda each: each.name):
        if topic.name in taken or not _may_be_constant(recording, topic, busiest):
            continue
        try:
            value = _only_value(recording, topic)
        except PenstockError:
            continue  # a topic without a feature, as any other that cannot be read
        if value is None:
            continue
        found[topic.name] = {"type": topic.type, "messages": topic.count}
        size = len(json.dumps(value))
        if size <= min(room, _KEPT_CHARACTERS):
            found[topic.name]["value"] = value
            room -= size
    return found


def is_rare(topic: Topic, busiest: int) -> bool:
    """Whether a topic has next to no messages beside the busiest one."""
    if topic.count == 1:
        return busiest >= _BESIDE_ONE
    return topic.count <= _MOST_MESSAGES and topic.count * _MUCH_RARER <= busiest


def _may_be_constant(recording: Recording, topic: Topic, busiest: int) -> bool:
    if not topic.count or is_image(topic) or topic.problem is not None:
        return False
    if not is_rare(topic, busiest) and topic.type not in _ALWAYS:
        return False
    return recording.largest_reads([topic]).message_bytes <= _MOST_BYTES


def _only_value(recording: Recording, topic: Topic) -> Any:
    """What all messages of a topic say, their headers aside; None where they differ."""
    numbers = range(topic.count) if topic.count <= _MOST_MESSAGES else (0, topic.count // 2, topic.count - 1)
    read = recording.decoder(topic).reader(["."])
    found = None
    for _, payload in recording.payloads(topic, numbers):
        value = None if payload is None else _plain(read(payload)[0])
        if value is None or (found is not None and found != value):
            return None
        found = value
    return found


def _plain(value: Any) -> Any:
    """A decoded message as JSON has it, without the stamps and counters of headers."""
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items() if name != "header"} | dict(_frame(value))
    if isinstance(value, np.ndarray):
        return _finite(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (bytes, memoryview)):
        return list(value)
    return _finite(value.item() if isinstance(value, np.generic) else value)


def _frame(message: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    header = message.get("header")
    if isinstance(header, Mapping) and header.get("frame_id"):
        yield "frame_id", header["frame_id"]


def _finite(value: Any) -> Any:
    """NaN is not equal to itself and no JSON."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value
