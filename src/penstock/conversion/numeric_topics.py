"""Which topics are numbers: the obvious field of each, which of them are commands, and what becomes of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from penstock.conversion.camera_topics import distinct_name, is_image, safe_name
from penstock.conversion.first_messages import first_payloads
from penstock.conversion.settings import FeatureSettings, Source
from penstock.errors import ConfigError, MessageError, PenstockError
from penstock.lazy import dataclass
from penstock.recordings.obvious import PER_JOINT, is_joint_vector, obvious_paths
from penstock.recordings.recording import Recording, Topic
from penstock.recordings.values import VectorReader

STATE = "observation.state"
ACTION = "action"

_MOST_DIMENSIONS = 512  # more is a map, a scan or a point cloud, and not what a policy calls a state
_COMMAND_WORDS = frozenset(
    ("action", "actions", "cmd", "cmds", "command", "commands", "control", "desired", "goal", "jog", "setpoint")
    # words of topic names, and of type names such as jointCmd or GripperCommand
) | {"target", "targets", "traj", "trajectory"}
_NOT_COMMANDS = frozenset(("state", "states", "status", "feedback", "measured", "actual"))
_ARRAYS = frozenset(("std_msgs/msg/Float64MultiArray", "std_msgs/msg/Float32MultiArray"))
_POSES = ("Pose", "Transform", "Odometry")


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
        return self.topic.type.rsplit("/", 1)[-1].startswith(_POSES)

    @property
    def is_command(self) -> bool:
        """By a word in the name of the topic or of its type, unless one says that it was measured."""
        words = _words(self.topic.name)
        if words & _COMMAND_WORDS:
            return not words & _NOT_COMMANDS
        kind = _words(self.topic.type.rsplit("/", 1)[-1])
        return bool(kind & _COMMAND_WORDS) and not (kind | words) & _NOT_COMMANDS

    def feature(self) -> FeatureSettings:
        return FeatureSettings((Source(self.topic.name, field=self.field),))


def _words(name: str) -> set[str]:
    """Lower-case words of a name: /left_arm/jointCmd has left, arm, joint and cmd."""
    spread = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)
    return set(re.split(r"[^a-z0-9]+", spread.lower()))


def find_numbers(recording: Recording, notes: list[str]) -> list[NumericTopic]:
    """All topics with an obvious vector, by name; what is left out stands in the notes."""
    found: list[NumericTopic] = []
    for topic in sorted(recording.topics, key=lambda each: each.name):
        if is_image(topic) or not topic.count or topic.problem is not None or topic.shared_name is not None:
            continue
        try:
            numbers = _look_at(recording, topic)
        except PenstockError as error:
            notes.append(f"{topic.name} left out: {error.message}")
            continue
        if numbers is not None and numbers.size > _MOST_DIMENSIONS:
            notes.append(f"{topic.name} left out: {numbers.size:,} numbers in a message (name it under features:)")
        elif numbers is not None:
            found.append(numbers)
    return found


def _look_at(recording: Recording, topic: Topic) -> NumericTopic | None:
    """Read a first message: fields that it leaves empty are not what is meant."""
    decoder = recording.decoder(topic)
    paths: Sequence[str] = obvious_paths(topic.type, decoder.definitions)
    per_joint = PER_JOINT.get(topic.type)
    if not paths and per_joint is None:
        return None
    last: PenstockError | None = None
    for payload in first_payloads(recording, topic):
        try:
            if per_joint is not None:
                paths = (f"{per_joint}[0:{len(decoder.reader([per_joint])(payload)[0])}]",)
            for path in paths:
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


def choose(
    numeric: Sequence[NumericTopic],
    is_steady: Callable[[Topic], bool],
    taken: Sequence[str],
    notes: list[str],
) -> dict[str, FeatureSettings]:
    """The state, the action, and a feature of its own for whatever else has a value for every row."""
    commands = [each for each in numeric if each.is_command]
    steady = {each.name for each in numeric if is_steady(each.topic)}
    state = _state([each for each in numeric if each not in commands], steady)
    action = _action([each for each in commands if each.name in steady])
    features: dict[str, FeatureSettings] = {}
    for key, chosen in ((STATE, state), (ACTION, action)):
        if chosen:
            features[key] = FeatureSettings(tuple(Source(each.name, field=each.field) for each in chosen))
    for each in numeric:
        if each in state or each in action:
            continue
        if each.name not in steady:
            held = " with policy: hold and missing: hold" if each.is_command else ""
            notes.append(f"{each.name} left out: too sparse for a row each (add it under features:{held} to keep it)")
            continue
        if each.is_command:
            notes.append(f"{each.name} is a pose beside commands of joints: an observation, and no part of the action")
        key = f"observation.{safe_name(each.name.strip('/').replace('/', '_'))}"
        features[distinct_name(key, each.name, (*taken, *features))] = each.feature()
    if numeric and not action:
        words = "cmd, command, goal, target"
        notes.append(f"no action: no topic with a value for each row has a word like {words} in its name")
    return features


def _state(candidates: Sequence[NumericTopic], steady: set[str]) -> list[NumericTopic]:
    """Joints before arrays before poses: the first kind that the recording has is the state."""
    kinds: tuple[Callable[[NumericTopic], bool], ...] = (
        lambda each: each.topic.type == "sensor_msgs/msg/JointState",
        lambda each: each.is_joints,
        lambda each: each.topic.type in _ARRAYS,
        lambda each: each.is_pose,
    )
    for is_kind in kinds:
        found = [each for each in candidates if is_kind(each)]
        if found:
            return [each for each in found if each.name in steady] or found
    return []


def _action(commands: Sequence[NumericTopic]) -> list[NumericTopic]:
    """Every command is part of the action; where joints are commanded, a pose is what they were computed from."""
    if not any(each.is_joints for each in commands):
        return list(commands)
    joints = [each for each in commands if each.is_joints]
    return joints + [each for each in commands if each not in joints and not each.is_pose]
