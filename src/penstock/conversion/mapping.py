"""Topics → features when nobody said which: by type and by name, explained in notes, printable as a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from penstock.conversion.settings import FIXED, FeatureSettings, Settings, Source
from penstock.errors import AlignError, PenstockError
from penstock.recordings.images import COMPRESSED_TYPES, RAW_TYPES
from penstock.recordings.recording import Recording, Topic
from penstock.recordings.values import default_path

IMAGE_PREFIX = "observation.images."
STATE = "observation.state"
ACTION = "action"

_COMMAND_WORDS = frozenset(
    ("action", "actions", "cmd", "command", "commands", "control", "desired", "goal", "setpoint", "target", "traj")
)
_CAMERA_FILLER = frozenset(
    ("camera", "color", "colour", "compressed", "image", "raw", "rgb", "sensor", "sensors")
    # the last parts that image_transport and the drivers give their topics
) | {"image_color", "image_raw", "image_rect", "image_rect_color"}
# The kinds of topic that make the state, best first: the first kind that the recording has is taken.
_STATE_RANKS: tuple[tuple[str, ...], ...] = (
    ("sensor_msgs/msg/JointState",),
    ("std_msgs/msg/Float64MultiArray", "std_msgs/msg/Float32MultiArray"),
    ("nav_msgs/msg/Odometry", "geometry_msgs/msg/PoseStamped", "geometry_msgs/msg/Pose"),
)
_STEADY_SHARE = 0.9  # a secondary topic joins only when it covers this share of the cameras' time without long holes


@dataclass(frozen=True)
class Mapping:
    """The features that were found, and what was left out and why."""

    settings: Settings
    notes: tuple[str, ...]


def map_topics(recording: Recording, settings: Settings) -> Mapping:
    """Fill in `features` and `timeline` where the settings leave them open."""
    notes: list[str] = []
    features = dict(settings.features)
    if not features:
        features, notes = _find_features(recording)
    timeline = settings.timeline or _first_camera(recording, features)
    return Mapping(replace(settings, features=features, timeline=timeline), tuple(notes))


def is_image(topic: Topic) -> bool:
    return topic.type in COMPRESSED_TYPES or topic.type in RAW_TYPES


def _first_camera(recording: Recording, features: dict[str, FeatureSettings]) -> str:
    for feature in features.values():
        name = feature.sources[0].topic
        if is_image(recording.topic(name)):
            return name
    if not features:
        raise AlignError(
            f"{recording.path} has nothing that becomes a feature: no camera and no known numeric topic",
            hint="penstock inspect lists the topics; name the fields in a configuration under features:",
        )
    raise AlignError(
        f"{recording.path}: no feature is a camera, so nothing says when a row begins",
        hint="set timeline: TOPIC, or timeline: fixed with fps: 30",
    )


def _find_features(recording: Recording) -> tuple[dict[str, FeatureSettings], list[str]]:
    notes: list[str] = []
    cameras = _cameras(recording.topics, notes)
    features = {
        IMAGE_PREFIX + name: FeatureSettings((Source(topic.name),)) for name, topic in _camera_names(cameras).items()
    }
    numeric = _numeric_topics(recording, notes)
    span = _span_ns(recording, cameras)
    commands = [topic for topic in numeric if _is_command(topic.name)]
    states = [topic for topic in numeric if topic not in commands]
    state: list[Topic] = []
    for rank in _STATE_RANKS:
        state = [topic for topic in states if topic.type in rank and topic.count >= 1]
        if state:
            break
    state = [topic for topic in state if _is_steady(recording, topic, span)] or state
    # A goal that was sent once is no action for every row.
    steady = [topic for topic in commands if _is_steady(recording, topic, span)]
    action = [topic for topic in steady if topic.type == _STATE_RANKS[0][0]] or steady
    for key, chosen in ((STATE, state), (ACTION, action)):
        if chosen:
            features[key] = FeatureSettings(tuple(_source(recording, topic) for topic in chosen))
    for topic in numeric:
        if topic in state or topic in action:
            continue
        if _is_steady(recording, topic, span):
            features[f"observation.{_feature_name(topic.name)}"] = FeatureSettings((_source(recording, topic),))
        else:
            notes.append(f"{topic.name} left out: too sparse for a row each (add it under features: to keep it)")
    taken = {source.topic for feature in features.values() for source in feature.sources}
    others = sorted({topic.name for topic in recording.topics if topic.name not in taken and topic.count})
    if others:
        notes.append(f"topics without a feature: {', '.join(others)}")
    return features, notes


def _cameras(topics: Sequence[Topic], notes: list[str]) -> list[Topic]:
    found = [topic for topic in topics if is_image(topic) and topic.count and topic.problem is None]
    depth = [topic for topic in found if "depth" in topic.name.lower()]
    if depth:
        notes.append(f"depth left out: {', '.join(topic.name for topic in depth)}")
    colour = [topic for topic in found if topic not in depth]
    compressed = {topic.name.rsplit("/", 1)[0] for topic in colour if topic.name.endswith("/compressed")}
    twins = [topic for topic in colour if topic.name in compressed]
    if twins:
        notes.append(f"raw twins of compressed topics left out: {', '.join(topic.name for topic in twins)}")
    return [topic for topic in colour if topic not in twins]


def _camera_names(cameras: Sequence[Topic]) -> dict[str, Topic]:
    """Short names from topics: /cam_h/color/image_raw/compressed → cam_h; the whole topic where two would clash."""
    short: dict[str, list[Topic]] = {}
    for topic in cameras:
        parts = [part for part in topic.name.split("/") if part]
        telling = [part for part in parts if part.lower() not in _CAMERA_FILLER]
        short.setdefault(_safe("_".join(telling) or parts[0] if parts else "camera"), []).append(topic)
    names: dict[str, Topic] = {}
    for name, sharing in short.items():
        if len(sharing) == 1:
            names[name] = sharing[0]
        else:
            names.update({_safe(topic.name.strip("/").replace("/", "_")): topic for topic in sharing})
    return names


def _numeric_topics(recording: Recording, notes: list[str]) -> list[Topic]:
    """Topics of a type that has one obvious vector; one of a name with two types (the one with most messages)."""
    found: list[Topic] = []
    for topic in sorted(recording.topics, key=lambda each: each.name):
        if is_image(topic) or not topic.count or topic.problem is not None:
            continue
        if recording.topic(topic.name).id != topic.id:
            notes.append(f"{topic.name} has two types; {topic.type} ({topic.count} messages) left out")
            continue
        try:
            path = default_path(topic.type, recording.decoder(topic).definitions)
        except PenstockError as error:
            notes.append(f"{topic.name} left out: {error.message}")
            continue
        if path is not None:
            found.append(topic)
    return found


def _source(recording: Recording, topic: Topic) -> Source:
    return Source(topic.name, field=default_path(topic.type, recording.decoder(topic).definitions))


def _is_command(name: str) -> bool:
    return any(word in _COMMAND_WORDS for word in re.split(r"[/_\-.]+", name.lower()))


def _span_ns(recording: Recording, cameras: Iterable[Topic]) -> tuple[int, int]:
    spans = [recording.times_ns(topic) for topic in cameras if topic.count]
    if not spans:
        return recording.start_ns, recording.end_ns
    return max(int(times.min()) for times in spans), min(int(times.max()) for times in spans)


def _is_steady(recording: Recording, topic: Topic, span_ns: tuple[int, int]) -> bool:
    """Enough messages, without long holes, over the time that the cameras share."""
    start_ns, end_ns = span_ns
    times = np.sort(recording.times_ns(topic))
    if len(times) < 10 or end_ns <= start_ns:
        return False
    inside = times[(times >= start_ns) & (times <= end_ns)]
    if len(inside) < 10 or (int(inside[-1]) - int(inside[0])) < _STEADY_SHARE * (end_ns - start_ns):
        return False
    intervals = np.diff(inside)
    return bool(intervals.max() <= max(3.0 * float(np.median(intervals)), 1e8))


def _feature_name(topic: str) -> str:
    return _safe(topic.strip("/").replace("/", "_"))


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_\-]+", "_", name).strip("_")[:80] or "unnamed"


def timeline_is_fixed(settings: Settings) -> bool:
    return settings.timeline == FIXED
