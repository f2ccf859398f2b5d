"""Topics → features when nobody said which: by type and by name, explained in notes, printable as a configuration."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from penstock.conversion.camera_topics import camera_names, find_cameras, is_image
from penstock.conversion.left_out import left_out
from penstock.conversion.numeric_topics import choose, find_numbers
from penstock.conversion.settings import FIXED, FeatureSettings, Settings, Source, kept
from penstock.errors import AlignError
from penstock.lazy import dataclass
from penstock.recordings.recording import Recording, Topic

IMAGE_PREFIX = "observation.images."
_STEADY_SHARE = 0.9  # a secondary topic joins only when it covers this share of the cameras' time without long holes
_NO_FIELD = "no numbers that its type is known for; name a field under features: (penstock inspect --fields lists them)"


@dataclass(frozen=True)
class Mapping:
    """The features that were found, and what was left out and why."""

    settings: Settings
    notes: tuple[str, ...]


def map_topics(recording: Recording, settings: Settings) -> Mapping:
    """Fill in `features` and `timeline` where the settings leave them open."""
    notes: list[str] = []
    features = kept(settings.features, settings, recording.path, strict=False)
    if not features:
        found, notes = find_features(recording, settings)
        features = kept(found, settings, recording.path, strict=True)
    timeline = settings.timeline or _first_camera(recording, features)
    return Mapping(replace(settings, features=features, timeline=timeline), tuple(notes))


def _first_camera(recording: Recording, features: dict[str, FeatureSettings]) -> str:
    for feature in features.values():
        name = feature.sources[0].topic
        if is_image(recording.topic(name)):
            return name
    if not features:
        if not any(topic.count for topic in recording.topics):
            raise AlignError(f"{recording.path} has nothing that becomes a feature: it holds no messages")
        if problem := next((topic.problem for topic in recording.topics if topic.count and topic.problem), None):
            raise AlignError(f"{recording.path} has nothing that becomes a feature: {problem}")
        raise AlignError(
            f"{recording.path} has nothing that becomes a feature: no camera and no known numeric topic",
            hint="penstock inspect lists the topics; name the fields in a configuration under features:",
        )
    raise AlignError(
        f"{recording.path}: no feature is a camera, so nothing says when a row begins",
        hint="set timeline: TOPIC, or timeline: fixed with fps: 30",
    )


def find_features(recording: Recording, settings: Settings) -> tuple[dict[str, FeatureSettings], list[str]]:
    """The features that the topics offer, and notes about what is left out."""
    notes: list[str] = []
    cameras, depth = find_cameras(recording, notes, use_depth=settings.depth != "off")
    shared = _shared_time(recording, cameras or depth)
    for topic in depth if cameras else ():
        if not _is_steady(recording, topic, shared):
            notes.append(f"{topic.name} left out: too sparse for a row each (add it under features: to keep it)")
            depth = [each for each in depth if each is not topic]
    features = {
        IMAGE_PREFIX + name: FeatureSettings((Source(topic.name),))
        for name, topic in camera_names(cameras, depth).items()
    }
    marking = settings.episodes.topics
    numeric = [each for each in find_numbers(recording, notes) if each.name not in marking]
    features |= choose(numeric, lambda topic: _is_steady(recording, topic, shared), list(features), notes)
    taken = {source.topic for feature in features.values() for source in feature.sources} | marking
    notes += _unexplained(recording, taken, notes)
    return features, notes


def _unexplained(recording: Recording, taken: Collection[str], notes: Sequence[str]) -> list[str]:
    """A note for each topic that becomes no feature and that no note names yet."""
    named = {*taken, *re.split(r"[\s,:]+", "\n".join(notes))}
    others = {topic.name: topic for topic in recording.topics if topic.name not in named and topic.count}
    return [left_out(name, topic.problem or _NO_FIELD) for name, topic in sorted(others.items())]


@dataclass(frozen=True, eq=False)
class _SharedTime:
    """From when to when all cameras have pictures, and when the first of them has."""

    start_ns: int
    end_ns: int
    pictures_ns: NDArray[np.int64]

    def pictures_between(self, times_ns: NDArray[np.int64], places: NDArray[np.intp]) -> int:
        """The most pictures between a message and the next one."""
        before, after = (np.searchsorted(self.pictures_ns, times_ns[places + step]) for step in (0, 1))
        return int((after - before).max(initial=0))


def _shared_time(recording: Recording, cameras: Iterable[Topic]) -> _SharedTime:
    times = [np.sort(recording.times_ns(topic)) for topic in cameras if topic.count]
    if not times:
        return _SharedTime(recording.start_ns, recording.end_ns, np.zeros(0, np.int64))
    return _SharedTime(max(int(each[0]) for each in times), min(int(each[-1]) for each in times), times[0])


def _is_steady(recording: Recording, topic: Topic, shared: _SharedTime) -> bool:
    """Enough messages over the time that the cameras share, without long holes that are not the cameras', too."""
    start_ns, end_ns = shared.start_ns, shared.end_ns
    times = np.sort(recording.times_ns(topic))
    if len(times) < 10 or end_ns <= start_ns:
        return False
    inside = times[(times >= start_ns) & (times <= end_ns)]
    if len(inside) < 10 or (int(inside[-1]) - int(inside[0])) < _STEADY_SHARE * (end_ns - start_ns):
        return False
    intervals = np.diff(inside)
    longest_ns = max(3.0 * float(np.median(intervals)), 1e8)
    holes = np.flatnonzero(intervals > longest_ns)
    if not holes.size:
        return True
    # A recorder that pauses between episodes pauses for all topics.
    periods = np.diff(shared.pictures_ns)
    period_ns = float(np.median(periods)) if periods.size else longest_ns
    return shared.pictures_between(inside, holes) <= max(2.0, longest_ns / max(period_ns, 1.0))


def timeline_is_fixed(settings: Settings) -> bool:
    return settings.timeline == FIXED
