"""Topics → features when none are configured: by type and by name, explained in notes; constants become metadata."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from penstock._src.align import measure_rate
from penstock._src.align.rate import NS_PER_S, is_wrong
from penstock._src.align.report import count_of
from penstock._src.conversion.mapping.camera_topics import camera_names, find_cameras, is_image
from penstock._src.conversion.mapping.numeric_topics import choose, find_numbers, row_times, steadiest
from penstock._src.conversion.report import group_left_out, left_out
from penstock._src.conversion.settings import FeatureSettings, Settings, TopicSource, without_left_out
from penstock._src.recordings.recording import Recording, Topic
from penstock._src.stores.roles import IMAGE_PREFIX
from penstock.errors import AlignError, PenstockError

_MOST_MESSAGES = 10  # of a topic that was latched, or sent again for those who came late
# How many messages the busiest topic has for each of a rare one, and beside a single one: else the recording is short.
_MUCH_RARER, _BESIDE_ONE = 30, 5
_ALWAYS = frozenset(("sensor_msgs/msg/CameraInfo",))  # sent with every image, and the same each time
_MOST_BYTES = 64 << 10  # a message that is larger is data
_KEPT_CHARACTERS = 2_000  # of one value in the report; of all of them twice that


def find_constants(recording: Recording, used: Collection[str]) -> dict[str, dict[str, Any]]:
    """The constants of a recording by topic: type, number of messages, and the value where it is small.

    Topics in `used` are columns or mark episodes. Only topics of few and small messages are read.
    """
    busiest = max((topic.count for topic in recording.topics), default=0)
    constants: dict[str, dict[str, Any]] = {}
    room = 2 * _KEPT_CHARACTERS
    for topic in sorted(recording.topics, key=lambda each: each.name):
        if topic.name in used or not _may_be_constant(recording, topic, busiest):
            continue
        try:
            value = _only_value(recording, topic)
        except PenstockError:
            continue  # a topic without a feature, as any other that cannot be read
        if value is None:
            continue
        constants[topic.name] = {"type": topic.type, "messages": topic.count}
        size = len(json.dumps(value))
        if size <= min(room, _KEPT_CHARACTERS):
            constants[topic.name]["value"] = value
            room -= size
    return constants


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
    first_value = None
    for _, payload in recording.payloads(topic, numbers):
        value = None if payload is None else _plain(read(payload)[0])
        if value is None or (first_value is not None and first_value != value):
            return None
        first_value = value
    return first_value


def _plain(value: Any) -> Any:
    """A decoded message as JSON has it, without the stamps and counters of headers."""
    if isinstance(value, Mapping):
        header = value.get("header")
        frame = header.get("frame_id") if isinstance(header, Mapping) else None
        plain = {name: _plain(each) for name, each in value.items() if name != "header"}
        return plain | ({"frame_id": frame} if frame else {})
    if isinstance(value, np.ndarray):
        return _finite(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (bytes, memoryview)):
        return list(value)
    return _finite(value.item() if isinstance(value, np.generic) else value)


def _finite(value: Any) -> Any:
    """NaN is not equal to itself and no JSON."""
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not np.isfinite(value) else value


_LISTED = 3  # topics that were left out, in an error
_STEADY_SHARE = 0.9  # of its rows that a depth camera must have an image for
_CONSTANT = "constant, kept in the report as metadata (policy: hold, missing: hold under features: makes it a column)"
_NO_FIELD = "its type has no default field; name one under features: (penstock inspect --fields lists them)"


class MappedTopics(NamedTuple):
    """The features that were found, and what was left out and why; `constants` by topic."""

    settings: Settings
    notes: tuple[str, ...]
    constants: dict[str, dict[str, Any]]


def map_topics(recording: Recording, settings: Settings) -> MappedTopics:
    """Fill in `features` and `timeline` where the settings leave them open."""
    notes: list[str] = []
    features = without_left_out(settings.features, settings, recording.path, strict=bool(settings.features))
    used = {source.topic for feature in features.values() for source in feature.sources}
    constants = find_constants(recording, used | settings.episodes.topics | {str(settings.timeline)})
    if not features:
        features = find_features(recording, settings, constants, notes)
        features = without_left_out(features, settings, recording.path, strict=True)
        _check_some(recording, features, notes)
    timeline = settings.timeline or _first_camera(recording, features, is_whole=settings == Settings())
    return MappedTopics(replace(settings, features=features, timeline=timeline), tuple(notes), constants)


def _first_camera(recording: Recording, features: dict[str, FeatureSettings], *, is_whole: bool) -> str:
    used = dict.fromkeys(source.topic for each in features.values() for source in each.sources if source.tf is None)
    for name in used:
        if is_image(recording.topic(name)):
            return name
    raise AlignError(
        f"{recording.path}: no feature is a camera, so nothing says when a row begins",
        hint=_timeline_hint(recording, [recording.topic(name) for name in used], is_whole=is_whole),
    )


def _check_some(recording: Recording, features: dict[str, FeatureSettings], notes: Sequence[str]) -> None:
    if features:
        return
    nothing = f"{recording.path} has nothing that becomes a feature"
    if not any(topic.count for topic in recording.topics):
        raise AlignError(f"{nothing}: it holds no messages")
    reasons = group_left_out(note for note in notes if " left out: " in note)
    more = f" and {len(reasons) - _LISTED:,} more reasons" if len(reasons) > _LISTED else ""
    command = f"penstock inspect {shlex.quote(str(recording.path))}"
    readable = any(topic.count and topic.problem is None for topic in recording.topics)
    raise AlignError(
        f"{nothing}: " + ("; ".join(reasons[:_LISTED]) + more or "no camera and no known numeric topic"),
        hint=f"{command} --fields lists all fields, --suggest-config prints a file to name them in" * readable or None,
    )


def _timeline_hint(recording: Recording, topics: Sequence[Topic], *, is_whole: bool) -> str:
    """The steadiest topic as timeline: as a command, or as a word to add to one that has a configuration."""
    steady, fps = steadiest(recording, topics), proposed_fps(recording, topics)
    command = f"penstock convert {shlex.quote(str(recording.path))} OUT" if is_whole else "add"
    per_second = f"{count_of(fps, 'row')} per second"
    if steady is None or is_wrong(np.sort(recording.times_ns(steady)), fps, 2 * NS_PER_S // fps):
        return f"{per_second}: {command} timeline=fixed fps={fps}"
    return (
        f"timeline=fixed fps={fps} makes {per_second}; a row for each message of the steadiest topic: "
        f"{command} timeline={shlex.quote(steady.name)}"
    )


def proposed_fps(recording: Recording, topics: Sequence[Topic]) -> int:
    """The rate of the steadiest camera, else of the steadiest topic."""
    steady = steadiest(recording, [topic for topic in topics if is_image(topic)] or topics)
    rate = None if steady is None else measure_rate(recording.times_ns(steady))
    return 30 if rate is None else max(1, round(rate.hz))


def find_features(
    recording: Recording, settings: Settings, constants: dict[str, dict[str, Any]], notes: list[str]
) -> dict[str, FeatureSettings]:
    """The features that the topics offer; what is left out goes into the notes."""
    cameras, depth = find_cameras(recording, notes, use_depth=settings.depth != "off")
    aside = settings.episodes.topics | constants.keys()
    numeric = find_numbers(recording, aside, notes)
    cameras = _without_single(cameras, [each.topic for each in numeric], settings, notes)
    rows = row_times(recording, settings, cameras or depth, [each.topic for each in numeric])
    for topic in depth if cameras else ():
        density = rows.density(recording, topic)
        if not density.is_enough(_STEADY_SHARE):
            notes.append(left_out(topic.name, f"{density.reason()} (to keep it, name it in a full features: list)"))
            depth = [each for each in depth if each is not topic]
    features = {
        IMAGE_PREFIX + name: FeatureSettings((TopicSource(topic.name),))
        for name, topic in camera_names(cameras, depth).items()
    }
    features |= choose(numeric, lambda topic: rows.density(recording, topic), list(features), notes)
    used = {source.topic for feature in features.values() for source in feature.sources} | aside
    notes += [left_out(name, _CONSTANT) for name in constants]
    notes += _unexplained(recording, used, notes)
    return features


def _unexplained(recording: Recording, used: Collection[str], notes: Sequence[str]) -> list[str]:
    """A note for each topic that becomes no feature and that no note names yet."""
    named = {*used, *re.split(r"[\s,:]+", "\n".join(notes))}
    texts = []
    for topic in sorted(recording.topics, key=lambda each: each.name):
        if topic.name not in named and topic.count:
            other = f"of another type than most messages of {topic.shared_name} (name it under features: to keep it)"
            reason = _NO_FIELD if topic.shared_name is None else other
            texts.append(left_out(topic.name, topic.problem or reason))
    return texts


def _without_single(
    cameras: list[Topic], numeric: Sequence[Topic], settings: Settings, notes: list[str]
) -> list[Topic]:
    """Cameras without those that sent one image while other topics sent many messages: rows have no image of them."""
    if settings.timeline is not None and settings.missing == "hold":
        return cameras
    most = max((topic.count for topic in (*cameras, *numeric)), default=0)
    single = [topic for topic in cameras if topic.count == 1 and is_rare(topic, most)]
    for topic in single:
        reason = f"1 image, while another topic has {most:,} messages"
        notes.append(
            left_out(
                topic.name,
                f"{reason} (to keep it, name it with missing: hold in a full features: list)",
            )
        )
    return [topic for topic in cameras if topic not in single]
