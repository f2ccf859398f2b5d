"""Which topics are numbers: the obvious field of each, which are commands, which have a message for every row."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.align import measure_rate, usual_tolerance_ns
from penstock._src.align.rate import LARGEST_DIFFERENCE, NS_PER_S, clock_of
from penstock._src.conversion.cameras.camera import first_payloads
from penstock._src.conversion.mapping.camera_topics import distinct_name, is_image, safe_name
from penstock._src.conversion.report import left_out
from penstock._src.conversion.settings import FIXED, FeatureSettings, Settings, TopicSource
from penstock._src.recordings.messages.decoder import MessageDecoder
from penstock._src.recordings.recording import Recording, Topic
from penstock._src.recordings.values.default_fields import (
    NO_VECTOR,
    PER_JOINT,
    default_path,
    default_paths,
    holds_numbers,
    is_joint_vector,
)
from penstock._src.recordings.values.vectors import VectorReader
from penstock._src.stores.roles import LEROBOT
from penstock.errors import ConfigError, MessageError, PenstockError

_FEWEST = 10  # messages of a topic with values for the rows; in short recordings one for every third row
_SHARE = 0.5  # of the rows that must be left where a topic starts late or ends early
_MOST_ROWS = 100_000  # of a fixed timeline that are looked at


class TopicCoverage(NamedTuple):
    """What the rows find of one topic; rows outside of its own range are trimmed, those inside are lost."""

    messages: int  # in the time of the rows
    needed: int
    rows: int
    inside: range  # the rows in its own range
    served: int  # of these

    def is_enough(self, share: float) -> bool:
        """Whether it is recorded for half of the rows, and has a message for a share of those."""
        return self.messages >= self.needed and self.covers(self.inside) and self.served >= share * len(self.inside)

    def covers(self, inside: range) -> bool:
        return len(inside) > 0 and len(inside) >= _SHARE * self.rows

    def reason(self, inside: range | None = None) -> str:
        """Why it is not enough, or not with the rows that other topics leave."""
        if self.messages < self.needed:
            if self.messages < 2:
                return "only 1 message" if self.messages else "no message between the first and the last row"
            return f"too sparse for a row each: {self.messages:,} messages, and {self.needed:,} are needed"
        left = self.inside if inside is None else inside
        if not self.covers(left):
            return f"it would leave only {len(left):,} of {self.rows:,} rows, as it starts late or ends early"
        return f"too sparse for a row each: {len(self.inside) - self.served:,} of {len(self.inside):,} rows find none"


class RowTimes(NamedTuple):
    """When the rows of a recording will be, before it is known what they take."""

    times_ns: NDArray[np.int64]
    timeline: str | None  # the topic that makes them
    tolerance_ns: int | None
    arrival_ns: int  # the usual time between two of them
    holds: bool = False  # whether a row that finds no message takes the last one

    def coverage(self, recording: Recording, topic: Topic) -> TopicCoverage:
        """What these rows find of a topic, by its receive times."""
        rows = int(self.times_ns.size)
        needed = max(2, min(_FEWEST, -(-rows // 3)))
        if topic.name == self.timeline:
            return TopicCoverage(topic.count, min(needed, topic.count), rows, range(rows), rows)
        times_ns = np.sort(recording.times_ns(topic))
        tolerance_ns = self._tolerance_ns(times_ns)
        if tolerance_ns is None or not rows:
            return TopicCoverage(min(topic.count, 1), needed, rows, range(0), 0)
        inside = _within(self.times_ns, times_ns, tolerance_ns)
        row_ns = self.times_ns[inside.start : inside.stop]
        after = np.minimum(np.searchsorted(times_ns, row_ns), times_ns.size - 1)
        before = np.maximum(after - 1, 0)
        away_ns = np.minimum(np.abs(times_ns[after] - row_ns), np.abs(row_ns - times_ns[before]))
        served = len(inside) if self.holds else int(np.count_nonzero(away_ns <= tolerance_ns))
        return TopicCoverage(len(_within(times_ns, self.times_ns, tolerance_ns)), needed, rows, inside, served)

    def _tolerance_ns(self, times_ns: NDArray[np.int64]) -> int | None:
        """As the alignment will have it; None for a topic without a rate."""
        rate = measure_rate(times_ns)
        if rate is None or self.tolerance_ns is not None:
            return None if rate is None else self.tolerance_ns
        return usual_tolerance_ns(self.arrival_ns, rate)


def _within(times_ns: NDArray[np.int64], others_ns: NDArray[np.int64], tolerance_ns: int) -> range:
    """Which times lie between the first and the last of others, or close to these."""
    first = np.searchsorted(times_ns, int(others_ns[0]) - tolerance_ns)
    stop = np.searchsorted(times_ns, int(others_ns[-1]) + tolerance_ns, side="right")
    return range(int(first), int(stop))


def row_times(recording: Recording, settings: Settings, cameras: Iterable[Topic], numbers: Iterable[Topic]) -> RowTimes:
    """The rows by the timeline that is set, by the first camera while all have images, or by the steadiest topic."""
    timeline = None
    if settings.timeline == FIXED:
        times_ns = _fixed(recording, settings.fps)
    elif settings.timeline is not None:
        timeline = recording.topic(settings.timeline)
    elif of_cameras := [np.sort(recording.times_ns(topic)) for topic in cameras]:
        begin_ns, end_ns = max(int(each[0]) for each in of_cameras), min(int(each[-1]) for each in of_cameras)
        first = of_cameras[0]
        shared = first[(first >= begin_ns) & (first <= end_ns)]
        times_ns = shared if shared.size else first
    elif (timeline := steadiest(recording, numbers)) is None:
        times_ns = _fixed(recording, settings.fps)
    if timeline is not None:
        times_ns = np.sort(recording.times_ns(timeline))
    rate = measure_rate(times_ns)
    name = None if timeline is None else timeline.name
    arrival_ns = 0 if rate is None else rate.arrival_ns
    return RowTimes(times_ns, name, settings.tolerance, arrival_ns, settings.missing == "hold")


def _fixed(recording: Recording, fps: int | None) -> NDArray[np.int64]:
    span_ns = max(recording.end_ns - recording.start_ns, 0)
    count = min(_MOST_ROWS, span_ns * (fps or 10) // NS_PER_S + 1)
    return np.linspace(recording.start_ns, recording.end_ns, count).astype(np.int64)


def steadiest(recording: Recording, topics: Iterable[Topic]) -> Topic | None:
    """The topic that makes the best rows: recorded the longest, without holes, at a whole rate, the most even."""
    best: tuple[tuple[float, ...], Topic] | None = None
    for topic in topics:
        times_ns = np.sort(recording.times_ns(topic))
        rate = measure_rate(times_ns)
        if rate is None:
            continue
        clock = clock_of(times_ns, max(1, round(rate.hz)))
        right = not clock.exceeds(LARGEST_DIFFERENCE, 0)
        covered = clock.recorded_ns / max(recording.end_ns - recording.start_ns, 1)
        uneven = float(np.abs(np.diff(times_ns) - rate.period_ns).mean()) / rate.period_ns
        score = (float(right), round(covered, 1), -round(uneven, 2), rate.hz)
        if best is None or score > best[0]:
            best = score, topic
    return None if best is None else best[1]


STATE, ACTION = (LEROBOT[role][0] for role in ("state", "action"))

_MOST_DIMENSIONS = 512  # more is a map, a scan or a point cloud, and not what a policy calls a state
_COMMAND_WORDS = frozenset(
    ("action", "actions", "cmd", "cmds", "command", "commands", "control", "desired", "goal", "jog", "setpoint")
    # words of topic names, and of type names such as jointCmd or GripperCommand
) | {"target", "targets", "traj", "trajectory"}
_NOT_COMMANDS = frozenset(("state", "states", "status", "feedback", "measured", "actual"))
_ARRAYS = frozenset(("std_msgs/msg/Float64MultiArray", "std_msgs/msg/Float32MultiArray"))
_MOST_BEAMS = 10_000
_SCANS = ("sensor_msgs/msg/LaserScan", "foxglove.LaserScan")  # one value for each direction, always as many
# Of the rows in a topic's own range, how many must find a message: rows that do not are lost.
_STEADY_SHARE, _OTHER_SHARE = 0.9, 0.99
_FRAMES = "foxglove.FrameTransform"
_POSES = ("Pose", "FrameTransform", "Transform", "Odometry")


class NumericTopic(NamedTuple):
    """A topic whose messages hold one obvious vector."""

    topic: Topic
    field: str
    size: int

    @property
    def name(self) -> str:
        return self.topic.name

    @property
    def is_joints(self) -> bool:
        return is_joint_vector(self.topic.type, self.field) or self.topic.type in PER_JOINT

    @property
    def is_pose(self) -> bool:
        return _last_name(self.topic.type).startswith(_POSES)

    @property
    def is_command(self) -> bool:
        """By a word in the name of the topic or of its type, unless one says that it was measured."""
        words = _words(self.topic.name)
        if words & _COMMAND_WORDS:
            return not words & _NOT_COMMANDS
        kind = _words(_last_name(self.topic.type))
        return bool(kind & _COMMAND_WORDS) and not (kind | words) & _NOT_COMMANDS

    @property
    def most_dimensions(self) -> int:
        return _MOST_BEAMS if self.topic.type in _SCANS else _MOST_DIMENSIONS

    def feature(self) -> FeatureSettings:
        return FeatureSettings((TopicSource(self.topic.name, field=self.field),))


def _last_name(type_name: str) -> str:
    """Of sensor_msgs/msg/JointState and foxglove.JointStates what comes last."""
    return re.split(r"[/.]", type_name)[-1]


def _words(name: str) -> set[str]:
    """Lower-case words of a name: /left_arm/jointCmd has left, arm, joint and cmd."""
    spread = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(re.split(r"[^a-z0-9]+", spread.lower()))


def find_numbers(recording: Recording, aside: Collection[str], notes: list[str]) -> list[NumericTopic]:
    """All topics with an obvious vector but those `aside`, by name; what is left out stands in the notes."""
    topics: list[NumericTopic] = []
    for topic in sorted(recording.topics, key=lambda each: each.name):
        if is_image(topic) or not topic.count or topic.problem is not None or topic.name in aside:
            continue
        if topic.shared_name is not None:  # of another type than the topic's own: used only where it is named
            continue
        try:
            numbers = _numeric_topic(recording, topic)
        except PenstockError as error:
            notes.append(left_out(topic.name, error.message))
            continue
        if topic.type in NO_VECTOR:
            notes.append(left_out(topic.name, NO_VECTOR[topic.type]))
        elif numbers is not None and numbers.size > numbers.most_dimensions:
            notes.append(left_out(topic.name, f"{numbers.size:,} numbers in a message (name it under features:)"))
        elif numbers is not None:
            topics.append(numbers)
    return topics


def can_be_named(recording: Recording, topic: Topic) -> bool:
    """Whether `features:` may take numbers of a topic."""
    if is_image(topic) or not topic.count or topic.problem is not None:
        return False
    return holds_numbers(topic.type, recording.decoder(topic).definitions)


def _numeric_topic(recording: Recording, topic: Topic) -> NumericTopic | None:
    """Read a first message: fields that it leaves empty are not what is meant."""
    decoder = recording.decoder(topic)
    paths: Sequence[str] = default_paths(topic.type, decoder.definitions)
    if not paths and topic.type not in PER_JOINT:
        return None
    if topic.type == _FRAMES:
        _check_frames(recording, topic)
    last: PenstockError | None = None
    for payload in first_payloads(recording, topic):
        try:
            for path in paths or (_per_joint(decoder, payload),):
                try:
                    size = int(VectorReader(decoder, path)(payload).size)
                except (MessageError, ConfigError) as error:
                    last = error
                    continue
                if size:
                    return NumericTopic(topic, path, size)
        except MessageError as error:
            last = error
    if last is not None:
        raise last
    return None


def _per_joint(decoder: MessageDecoder, payload: memoryview) -> str:
    """The path to one value of each joint, as many as the message holds."""
    path = PER_JOINT[decoder.type_name]
    return path.format(len(decoder.reader([path.split("[")[0]])(payload)[0]))


def default_field(recording: Recording, topic: Topic) -> str | None:
    """The field that a person means by a topic; where messages hold one message per joint, the first one is read."""
    decoder = recording.decoder(topic)
    path = default_path(topic.type, decoder.definitions)
    if path is None and topic.type in PER_JOINT:
        path = next((_per_joint(decoder, payload) for payload in first_payloads(recording, topic)), None)
    return path


def _check_frames(recording: Recording, topic: Topic) -> None:
    """Refuse a topic of many transforms: one row would be that of a camera, the next that of a wheel."""
    read = recording.decoder(topic).reader(["parent_frame_id", "child_frame_id"])
    frames = {" → ".join(read(payload)) for payload in first_payloads(recording, topic)}
    if len(frames) > 1:
        raise ConfigError(f"its messages are transforms of several frames: {', '.join(sorted(frames)[:3])}")


def choose(
    numeric: Sequence[NumericTopic],
    coverage: Callable[[Topic], TopicCoverage],
    used: Sequence[str],
    notes: list[str],
) -> dict[str, FeatureSettings]:
    """The state, the action, and a feature of its own for whatever else has a value for every row."""
    coverages = {each.name: coverage(each.topic) for each in numeric}
    state = _state([each for each in numeric if not each.is_command], coverages)
    action = _action([each for each in numeric if each.is_command and coverages[each.name].is_enough(_STEADY_SHARE)])
    features: dict[str, FeatureSettings] = {}
    inside = _shared(coverages[each.name].inside for each in (*state, *action))
    for key, chosen in ((STATE, state), (ACTION, action)):
        if chosen:
            features[key] = FeatureSettings(tuple(TopicSource(each.name, field=each.field) for each in chosen))
    for each in numeric:
        if each in state or each in action:
            continue
        topic_coverage = coverages[each.name]
        left = _shared((inside, topic_coverage.inside)) if inside is not None else topic_coverage.inside
        if not topic_coverage.is_enough(_OTHER_SHARE) or left is None or not topic_coverage.covers(left):
            held = " with policy: hold and missing: hold" if each.is_command else ""
            notes.append(
                left_out(
                    each.name,
                    f"{topic_coverage.reason(left)} (to keep it, name it{held} in a full features: list)",
                )
            )
            continue
        inside = left
        key = f"observation.{safe_name(each.name.strip('/').replace('/', '_'))}"
        features[distinct_name(key, each.name, (*used, *features))] = each.feature()
    if numeric and not action:
        words = "cmd, command, goal, target"
        notes.append(f"no action: no topic with a value for each row has a word like {words} in its name")
    return features


def _shared(ranges: Iterable[range]) -> range | None:
    """The rows that lie in all ranges; None of none."""
    listed = list(ranges)
    return range(max(each.start for each in listed), min(each.stop for each in listed)) if listed else None


def _state(candidates: Sequence[NumericTopic], coverages: Mapping[str, TopicCoverage]) -> list[NumericTopic]:
    """Joints before arrays before poses: the first kind that has values for the rows is the state."""
    kinds: tuple[Callable[[NumericTopic], bool], ...] = (
        lambda each: each.topic.type == "sensor_msgs/msg/JointState",
        lambda each: each.is_joints,
        lambda each: each.topic.type in _ARRAYS,
        lambda each: each.is_pose,
    )
    for is_kind in kinds:
        matching = [each for each in candidates if is_kind(each)]
        if steady := [each for each in matching if coverages[each.name].is_enough(_STEADY_SHARE)]:
            return steady
        # Joints with holes or on another clock are not left out without a word: rows are lost, or none is found.
        if joints := [each for each in matching if each.is_joints and each.topic.count >= coverages[each.name].needed]:
            return joints
    return []


def _action(commands: Sequence[NumericTopic]) -> list[NumericTopic]:
    """Every command is part of the action; where joints are commanded, a pose is what they were computed from."""
    if not any(each.is_joints for each in commands):
        return list(commands)
    joints = [each for each in commands if each.is_joints]
    return joints + [each for each in commands if each not in joints and not each.is_pose]
