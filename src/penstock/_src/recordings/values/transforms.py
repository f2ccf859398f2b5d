"""Transforms between frames (/tf, /tf_static): which messages hold which, and the chain from one frame to another.

One pass over the transform topics finds the tree of frames, a second one the messages that hold the transforms in use:
12 bytes for each message and transform. Values are read later, for the rows that need them.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.messages.decoder import MessageDecoder, Payload
from penstock._src.recordings.recording import Recording, Topic
from penstock.errors import ConfigError, MessageError, RecordingError

TRANSFORM_TYPES = frozenset(("tf2_msgs/msg/TFMessage", "tf/msg/tfMessage"))
NAMES = ("x", "y", "z", "qx", "qy", "qz", "qw")

_STATIC_SUFFIX = "tf_static"
_ARROW = re.compile(r"\s*(\S+?)\s*(?:→|->)\s*(\S+)\s*")

Edge = tuple[str, str]  # parent, child


def parse_chain(text: str) -> tuple[str, str]:
    """(base, tool) of "base→tool" or "base->tool"."""
    match = _ARROW.fullmatch(text)
    if match is None:
        raise ConfigError(f"tf: {text!r} is not of the form base→tool", hint="for example tf: base_link→gripper")
    return _plain(match[1]), _plain(match[2])


def _plain(frame: str) -> str:
    return frame.strip("/")  # ROS 1 wrote frames with a leading slash for some years


class EdgeMessages(NamedTuple):
    """The messages of one topic that hold one transform: their numbers and the times stamped on them."""

    topic: Topic
    edge: Edge
    numbers: NDArray[np.int32]
    stamps_ns: NDArray[np.int64]

    @property
    def is_static(self) -> bool:
        return self.topic.name.endswith(_STATIC_SUFFIX)


class TransformLink(NamedTuple):
    """One step of a chain; `inverse` when it leads from the child to the parent."""

    edge: Edge
    inverse: bool


class TransformTree:
    """All transforms of a recording: which there are, not yet in which messages."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._edges: dict[Edge, Topic] = {}
        topics = [topic for topic in recording.topics if topic.type in TRANSFORM_TYPES and topic.count]
        if not topics:
            raise RecordingError(
                f"{recording.path}: no topic holds transforms (tf2_msgs/TFMessage)",
                hint="penstock inspect lists the topics",
            )
        for topic in sorted(topics, key=lambda each: each.name.endswith(_STATIC_SUFFIX)):
            for _, transforms in _stamped(recording, topic):
                for edge in transforms or ():
                    self._edges.setdefault(edge, topic)

    def edges(self, topic: Topic) -> list[Edge]:
        """The transforms that a topic holds."""
        return [edge for edge, holder in self._edges.items() if holder.name == topic.name]

    @property
    def frames(self) -> list[str]:
        return sorted({frame for edge in self._edges for frame in edge})

    def messages(self, edges: Iterable[Edge]) -> dict[Edge, EdgeMessages]:
        """Which messages hold these transforms; each topic is read once for all of them."""
        wanted: dict[Topic, list[Edge]] = {}
        for edge in dict.fromkeys(edges):
            wanted.setdefault(self._edges[edge], []).append(edge)
        found = [_find(self._recording, topic, own) for topic, own in wanted.items()]
        return {messages.edge: messages for each in found for messages in each}

    def chain(self, base: str, tool: str) -> list[TransformLink]:
        """The steps that lead from `base` to `tool`: up to their common ancestor, and down again."""
        for frame in (base, tool):
            if frame not in self.frames:
                shown = ", ".join(self.frames[:30]) + (" …" if len(self.frames) > 30 else "")
                raise ConfigError(
                    f"{self._recording.path}: no transform has the frame {frame!r}", hint=f"frames: {shown}"
                )
        if base == tool:
            raise ConfigError(f"tf: {base}→{tool} is one frame", hint="name two frames, for example tf: base→tool")
        above_base, above_tool = (list(self._upwards(frame)) for frame in (base, tool))
        common = next((frame for frame in above_base if frame in above_tool), None)
        if common is None:
            raise ConfigError(
                f"{self._recording.path}: no transform connects {base} and {tool}",
                hint=f"{base} belongs to the tree of {above_base[-1]}, {tool} to that of {above_tool[-1]}",
            )
        up = [TransformLink(edge, True) for edge in self._climb(base, common)]
        down = [TransformLink(edge, False) for edge in self._climb(tool, common)]
        return [*up, *reversed(down)]

    def _upwards(self, frame: str) -> Iterator[str]:
        """A frame and its ancestors, the nearest first."""
        seen: set[str] = set()
        while frame not in seen:
            seen.add(frame)
            yield frame
            edge = self._parent(frame)
            if edge is None:
                return
            frame = edge[0]
        raise RecordingError(f"{self._recording.path}: the transforms of {frame} form a circle")

    def _climb(self, frame: str, common: str) -> Iterator[Edge]:
        """Each step from a frame up to its ancestor."""
        while frame != common and (edge := self._parent(frame)) is not None:
            yield edge
            frame = edge[0]

    def _parent(self, frame: str) -> Edge | None:
        incoming = [edge for edge in self._edges if edge[1] == frame]
        if len(incoming) > 1:
            parents = ", ".join(sorted(parent for parent, _ in incoming))
            raise RecordingError(
                f"{self._recording.path}: {frame} has several parents in /tf: {parents}",
                hint="such a recording has no tree of frames; take the values from another topic",
            )
        return incoming[0] if incoming else None


def _find(recording: Recording, topic: Topic, edges: Sequence[Edge]) -> list[EdgeMessages]:
    """The messages that hold each of these transforms; a broken one counts as holding all: reading it reports it."""
    numbers, stamps_ns = [array("i") for _ in edges], [array("q") for _ in edges]
    latest_ns = 0
    for number, transforms in _stamped(recording, topic):
        latest_ns = latest_ns if not transforms else next(iter(transforms.values()))
        for place, edge in enumerate(edges):
            if transforms is None or edge in transforms:
                numbers[place].append(number)
                stamps_ns[place].append(latest_ns if transforms is None else transforms[edge])
    return [
        EdgeMessages(topic, edge, np.frombuffer(held, np.int32), np.frombuffer(stamps, np.int64))
        for edge, held, stamps in zip(edges, numbers, stamps_ns, strict=True)
    ]


def _stamped(recording: Recording, topic: Topic) -> Iterator[tuple[int, dict[Edge, int] | None]]:
    """The transforms that each message holds, with their stamps; None of a broken message."""
    read = recording.decoder(topic).reader(["transforms[:].header", "transforms[:].child_frame_id"])
    for number, payload in recording.payloads(topic):
        try:
            headers, children = ((), ()) if payload is None else read(payload)
        except MessageError:
            payload = None
        if payload is None:
            yield number, None
            continue
        stamped: dict[Edge, int] = {}
        for header, child in zip(headers, children, strict=True):
            stamped.setdefault((_plain(header["frame_id"]), _plain(child)), header["stamp"])
        yield number, stamped


def _edge(transform: Mapping[str, Any]) -> Edge:
    return _plain(transform["header"]["frame_id"]), _plain(transform["child_frame_id"])


class TransformReader:
    """Reads one transform of every message that holds it: translation and rotation, seven numbers."""

    recorded_names = None
    dimension_names = NAMES

    def __init__(self, decoder: MessageDecoder, edge: Edge) -> None:
        self._read = decoder.reader(["transforms"])
        self._edge = edge
        self._name = "→".join(edge)

    def __call__(self, payload: Payload) -> NDArray[np.float64]:
        for transform in self._read(payload)[0]:
            if _edge(transform) == self._edge:
                moved, turned = transform["transform"]["translation"], transform["transform"]["rotation"]
                values = np.array([*(moved[axis] for axis in "xyz"), *(turned[axis] for axis in "xyzw")])
                if not (np.isfinite(values).all() and values[3:].any()):
                    raise MessageError(f"{self._name} is not a transform: {', '.join(f'{each:g}' for each in values)}")
                return values
        raise MessageError(f"the message holds no transform {self._name}")


def compose(steps: Sequence[NDArray[np.float64]], inverse: Sequence[bool]) -> NDArray[np.float64]:
    """The transform of a whole chain, row by row; each step has rows of x, y, z and a quaternion x, y, z, w."""
    total = np.zeros_like(steps[0])
    total[:, 6] = 1.0
    for step, is_inverse in zip(steps, inverse, strict=True):
        moved, turned = step[:, :3], step[:, 3:] / np.linalg.norm(step[:, 3:], axis=1, keepdims=True)
        if is_inverse:
            turned = turned * (-1.0, -1.0, -1.0, 1.0)
            moved = -_rotate(turned, moved)
        total[:, :3] += _rotate(total[:, 3:], moved)
        total[:, 3:] = _multiply(total[:, 3:], turned)
    return total


def _multiply(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rotation `right`, then `left`."""
    vector = left[:, 3:] * right[:, :3] + right[:, 3:] * left[:, :3] + np.cross(left[:, :3], right[:, :3])
    scalar = left[:, 3] * right[:, 3] - np.sum(left[:, :3] * right[:, :3], axis=1)
    return np.concatenate([vector, scalar[:, np.newaxis]], axis=1)


def _rotate(quaternion: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    twice = 2.0 * np.cross(quaternion[:, :3], points)
    return points + quaternion[:, 3:] * twice + np.cross(quaternion[:, :3], twice)
