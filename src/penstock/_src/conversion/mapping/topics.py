"""Topics → features when none are configured: by type and by name, explained in notes."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from penstock._src.align import measure_rate
from penstock._src.align.rate import NS_PER_S, is_wrong
from penstock._src.align.report import count_of
from penstock._src.conversion.mapping.camera_topics import camera_names, find_cameras, is_image
from penstock._src.conversion.mapping.numeric_topics import can_be_named, choose, find_numbers, row_times, steadiest
from penstock._src.conversion.report import LEFT_OUT, group_left_out, left_out
from penstock._src.conversion.settings import FeatureSettings, Settings, TopicSource, without_left_out
from penstock._src.recordings.recording import Recording, Topic
from penstock._src.stores.roles import IMAGE_PREFIX
from penstock.errors import AlignError

_MANY = 5  # messages of the busiest topic beside a camera with a single image: else the recording is short
_LISTED = 3  # topics that were left out, in an error
_STEADY_SHARE = 0.9  # of its rows that a depth camera must have an image for
_NO_FIELD = "its type has no default field; name one under features: (penstock inspect --fields lists them)"
_NO_NUMBERS = "its messages hold no numbers"


class MappedTopics(NamedTuple):
    """The features that were found, and what was left out and why."""

    settings: Settings
    notes: tuple[str, ...]


def map_topics(recording: Recording, settings: Settings) -> MappedTopics:
    """Fill in `features` and `timeline` where the settings leave them open."""
    notes: list[str] = []
    features = without_left_out(settings.features, settings, recording.path, strict=bool(settings.features))
    if not features:
        features = find_features(recording, settings, notes)
        why, hint = _why_left_out(notes), _name_them(recording)
        features = without_left_out(features, settings, recording.path, strict=True, others=why, hint=hint)
        _check_some(recording, features, why)
    timeline = settings.timeline or _first_camera(recording, features, is_whole=settings == Settings())
    return MappedTopics(replace(settings, features=features, timeline=timeline), tuple(notes))


def _first_camera(recording: Recording, features: dict[str, FeatureSettings], *, is_whole: bool) -> str:
    used = dict.fromkeys(source.topic for each in features.values() for source in each.sources if source.tf is None)
    for name in used:
        if is_image(recording.topic(name)):
            return name
    raise AlignError(
        f"{recording.path}: no feature is a camera, so nothing says when a row begins",
        hint=_timeline_hint(recording, [recording.topic(name) for name in used], is_whole=is_whole),
    )


def _check_some(recording: Recording, features: dict[str, FeatureSettings], why: str) -> None:
    if features:
        return
    nothing = f"{recording.path} has nothing that becomes a feature"
    if not any(topic.count for topic in recording.topics):
        raise AlignError(f"{nothing}: it holds no messages", hint="; ".join(recording.notes) or None)
    readable = any(can_be_named(recording, topic) for topic in recording.topics)
    raise AlignError(
        f"{nothing}: {why or 'no camera and no known numeric topic'}", hint=_name_them(recording) if readable else None
    )


def _why_left_out(notes: Sequence[str]) -> str:
    """Why topics became no feature: the reasons of the most topics."""
    of_topics = [note for note in notes if LEFT_OUT in note]
    counts = Counter(note.split(LEFT_OUT, 1)[1] for note in of_topics)
    reasons = group_left_out(sorted(of_topics, key=lambda note: -counts[note.split(LEFT_OUT, 1)[1]]))
    more = f" and {len(reasons) - _LISTED:,} more reasons" if len(reasons) > _LISTED else ""
    return "; ".join(reasons[:_LISTED]) + more


def _name_them(recording: Recording) -> str:
    command = f"penstock inspect {shlex.quote(str(recording.path))}"
    return (
        f"{command} --suggest-config > robot.yaml writes a file to name topics in, under features: (with policy: hold "
        "where they are sparse); --fields lists all fields"
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


def find_features(recording: Recording, settings: Settings, notes: list[str]) -> dict[str, FeatureSettings]:
    """The features that the topics offer; what is left out goes into the notes."""
    cameras, depth = find_cameras(recording, notes, use_depth=settings.depth != "off")
    aside = settings.episodes.topics
    numeric = find_numbers(recording, aside, notes)
    cameras = _without_single(cameras, [each.topic for each in numeric], settings, notes)
    rows = row_times(recording, settings, cameras or depth, [each.topic for each in numeric])
    for topic in depth if cameras else ():
        coverage = rows.coverage(recording, topic)
        if not coverage.is_enough(_STEADY_SHARE):
            notes.append(left_out(topic.name, f"{coverage.reason()} (to keep it, name it in a full features: list)"))
            depth = [each for each in depth if each is not topic]
    features = {
        IMAGE_PREFIX + name: FeatureSettings((TopicSource(topic.name),))
        for name, topic in camera_names(cameras, depth).items()
    }
    features |= choose(numeric, lambda topic: rows.coverage(recording, topic), list(features), notes)
    used = {source.topic for feature in features.values() for source in feature.sources} | aside
    notes += _unexplained(recording, used, notes)
    return features


def _unexplained(recording: Recording, used: Collection[str], notes: Sequence[str]) -> list[str]:
    """A note for each topic that becomes no feature and that no note names yet."""
    named = {*used, *re.split(r"[\s,:]+", "\n".join(notes))}
    texts = []
    for topic in sorted(recording.topics, key=lambda each: each.name):
        if topic.name not in named and topic.count:
            other = f"of another type than most messages of {topic.shared_name} (name it under features: to keep it)"
            no_field = _NO_FIELD if can_be_named(recording, topic) else _NO_NUMBERS
            reason = no_field if topic.shared_name is None else other
            texts.append(left_out(topic.name, topic.problem or reason))
    return texts


def _without_single(
    cameras: list[Topic], numeric: Sequence[Topic], settings: Settings, notes: list[str]
) -> list[Topic]:
    """Cameras without those that sent one image while other topics sent many messages: rows have no image of them."""
    if settings.timeline is not None and settings.missing == "hold":
        return cameras
    most = max((topic.count for topic in (*cameras, *numeric)), default=0)
    single = [topic for topic in cameras if topic.count == 1 and most >= _MANY]
    for topic in single:
        keep = "to keep it, name it with missing: hold in a full features: list"
        notes.append(left_out(topic.name, f"1 image, while another topic has {most:,} messages ({keep})"))
    return [topic for topic in cameras if topic not in single]
