"""Fault 7: the same type name with different definitions in two bags.

Expected: every recording has its own types.
"""

from __future__ import annotations

import struct
from pathlib import Path

from penstock import recordings
from penstock._src.recordings.ros1.writer import BagWriter

LAYOUTS = {
    "old.bag": ("float64 position\nint32 gripper\n", struct.pack("<di", 1.5, 7)),
    "new.bag": ("int32 gripper\nfloat64 position\nfloat32[] extra\n", struct.pack("<idI", 7, 1.5, 0)),
}


def _bag(path: Path) -> Path:
    text, payload = LAYOUTS[path.name]
    with BagWriter(path) as bag:
        topic = bag.add_topic("/arm", "my_msgs/Arm", text, "0" * 32)
        for number in range(3):
            bag.write(topic, number + 1, payload)
    return path


def test_fault_07_each_bag_is_read_with_its_own_definition(tmp_path: Path) -> None:
    paths = [_bag(tmp_path / name) for name in LAYOUTS]
    for order in (paths, paths[::-1]):
        with recordings.open(order[0]) as one, recordings.open(order[1]) as other:
            for recording in (one, other, one):
                topic = recording.topic("/arm")
                value = recording.decoder(topic).decode(LAYOUTS[recording.path.name][1])
                assert (value["position"], value["gripper"]) == (1.5, 7)
                assert topic.problem is None


def test_fault_07_two_definitions_in_one_bag_are_two_topics(tmp_path: Path) -> None:
    path = tmp_path / "both.bag"
    with BagWriter(path) as bag:
        for text, payload in LAYOUTS.values():
            bag.write(bag.add_topic("/arm", "my_msgs/Arm", text, "0" * 32), 1, payload)
    with recordings.open(path) as recording:
        names = [(topic.name, topic.count) for topic in recording.topics]
        assert names == [("/arm", 1), ("/arm:my_msgs/msg/Arm#1", 1)]
        pairs = [(recording.decoder(topic), _payload_of(recording, topic)) for topic in recording.topics]
        read = {tuple(decoder.decode(payload)) for decoder, payload in pairs}
    assert read == {("position", "gripper"), ("gripper", "position", "extra")}
    report = recordings.recover(path, tmp_path / "new.bag")
    assert report.exit_code == 0
    with recordings.open(path) as one, recordings.open(tmp_path / "new.bag") as other:
        assert [one.schema(topic) for topic in one.topics] == [other.schema(topic) for topic in other.topics]


def _payload_of(recording: recordings.Recording, topic: recordings.Topic) -> bytes:
    return next(payload for text, payload in LAYOUTS.values() if recording.schema(topic).text == text)
