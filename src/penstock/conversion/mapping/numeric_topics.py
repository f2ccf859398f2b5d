"""Which topics are numbers: the obvious field of each, which of them are commands, and what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from penstock.conversion.mapping.camera_topics import distinct_name, is_image, safe_name
from penstock.conversion.mapping.density import Density
from penstock.conversion.mapping.first_messages import first_payloads
from penstock.conversion.mapping.left_out import left_out
from penstock.conversion.settings import FeatureSettings, Source
from penstock.errors import ConfigError, MessageError, PenstockError
from penstock.recordings.messages.decoder import MessageDecoder
from penstock.recordings.recording import Recording, Topic
from penstock.recordings.values.obvious import (
    NO_VECTOR,
    PER_JOINT,
    default_path,
    is_joint_vector,
    obvious_paths,
)
from penstock.recordings.values.vectors import VectorReader
from penstock.stores.roles import LEROBOT

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


@dataclass(frozen=True)
class NumericTopic:
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
        return FeatureSettings((Source(self.topic.name, field=self.field),))


def _last_name(type_name: str) -> str:
    """Of sensor_msgs/msg/JointState and foxglove.JointStates what comes last."""
    return re.split(r"[/.]", type_name)[-1]


def _words(name: str) -> set[str]:
    """Lower-case words of a name: /left_arm/jointCmd has left, arm, joint and cmd."""
    spread = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(re.split(r"[^a-z0-9]+", spread.lower()))


def find_numbers(recording: Recording, aside: Collection[str], notes: list[str]) -> list[NumericTopic]:
    """All topics with an obvious vector but those `aside`, by name; what is left out stands in the notes."""
    found: list[NumericTopic] = []
    for topic in sorted(recording.topics, key=lambda each: each.name):
        if is_image(topic) or not topic.count or topic.problem is not None or topic.name in aside:
            continue
        if topic.shared_name is not None:  # of another type than the topic's own: named by whoever wants it
            continue
        try:
            numbers = _look_at(recording, topic)
        except PenstockError as error:
            notes.append(left_out(topic.name, error.message))
            continue
        if topic.type in NO_VECTOR:
            notes.append(left_out(topic.name, NO_VECTOR[topic.type]))
        elif numbers is not None and numbers.size > numbers.most_dimensions:
            notes.append(left_out(topic.name, f"{numbers.size:,} numbers in a message (name it under features:)"))
        elif numbers is not None:
            found.append(numbers)
    return found


def _look_at(recording: Recording, topic: Topic) -> NumericTopic | None:
    """Read a first message: fields that it leaves empty are not what is meant."""
    decoder = recording.decoder(topic)
    paths: Sequence[str] = obvious_paths(topic.type, decoder.definitions)
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
    density: Callable[[Topic], Density],
    taken: Sequence[str],
    notes: list[str],
) -> dict[str, FeatureSettings]:
    """The state, the action, and a feature of its own for whatever else has a value for every row."""
    dense = {each.name: density(each.topic) for each in numeric}
    state = _state([each for each in numeric if not each.is_command], dense)
    action = _action([each for each in numeric if each.is_command and dense[each.name].is_enough(_STEADY_SHARE)])
    features: dict[str, FeatureSettings] = {}
    inside = _shared(dense[each.name].inside for each in (*state, *action))
    for key, chosen in ((STATE, state), (ACTION, action)):
        if chosen:
            features[key] = FeatureSettings(tuple(Source(each.name, field=each.field) for each in chosen))
    for each in numeric:
        if each in state or each in action:
            continue
        found = dense[each.name]
        left = _shared((inside, found.inside)) if inside is not None else found.inside
        if not found.is_enough(_OTHER_SHARE) or left is None or not found.covers(left):
            held = " with policy: hold and missing: hold" if each.is_command else ""
            notes.append(left_out(each.name, f"{found.reason(left)} (add it under features:{held} to keep it)"))
            continue
        inside = left
        if each.is_command:
            notes.append(f"{each.name} is a pose beside commands of joints: an observation, and no part of the action")
        key = f"observation.{safe_name(each.name.strip('/').replace('/', '_'))}"
        features[distinct_name(key, each.name, (*taken, *features))] = each.feature()
    if numeric and not action:
        words = "cmd, command, goal, target"
        notes.append(f"no action: no topic with a value for each row has a word like {words} in its name")
    return features


def _shared(ranges: Iterable[range]) -> range | None:
    """The rows that lie in all ranges; None of none."""
    listed = list(ranges)
    return range(max(each.start for each in listed), min(each.stop for each in listed)) if listed else None


def _state(candidates: Sequence[NumericTopic], dense: Mapping[str, Density]) -> list[NumericTopic]:
    """Joints before arrays before poses: the first kind that has values for the rows is the state."""
    kinds: tuple[Callable[[NumericTopic], bool], ...] = (
        lambda each: each.topic.type == "sensor_msgs/msg/JointState",
        lambda each: each.is_joints,
        lambda each: each.topic.type in _ARRAYS,
        lambda each: each.is_pose,
    )
    for is_kind in kinds:
        found = [each for each in candidates if is_kind(each)]
        if steady := [each for each in found if dense[each.name].is_enough(_STEADY_SHARE)]:
            return steady
        # Joints with holes or on another clock are not left out without a word: rows are lost, or none is found.
        if joints := [each for each in found if each.is_joints and each.topic.count >= dense[each.name].needed]:
            return joints
    return []


def _action(commands: Sequence[NumericTopic]) -> list[NumericTopic]:
    """Every command is part of the action; where joints are commanded, a pose is what they were computed from."""
    if not any(each.is_joints for each in commands):
        return list(commands)
    joints = [each for each in commands if each.is_joints]
    return joints + [each for each in commands if each not in joints and not each.is_pose]
