"""A topic whose messages have two types: each is a topic of its own, and none of them is left out silently."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from penstock import recordings
from penstock._src.cli import main
from penstock._src.recordings.ros1.writer import BagWriter
from tests.conversion import datasets
from tests.recordings.made import POINT, WORDS, mcap_two_types, point, rows, two_types

STATE = "geometry_msgs/msg/Point"
OTHER = {"a.bag": ("std_msgs/msg/String", 12), "a.mcap": ("std_msgs/msg/Empty", 10)}
MAKE = {"a.bag": two_types, "a.mcap": mcap_two_types}


def _convert(path: Path, out: Path, *words: str) -> list[str]:
    return ["convert", str(path), str(out), "--json", *words]


@pytest.mark.parametrize("name", MAKE)
def test_messages_of_the_second_type_are_named_and_counted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, count = OTHER[name]
    MAKE[name](tmp_path / name)
    assert main(_convert(tmp_path / name, tmp_path / "set", *WORDS)) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["lost"] == {f"messages of another type on /state: {kind}": count} and report["frames"] == 60
    note = f"/state carries messages of several types: 60 {STATE}, {count} {kind}"
    assert any(note in each for each in report["notes"])
    for words in (["inspect", str(tmp_path / name)], ["doctor", str(tmp_path / name)],
                  ["recover", str(tmp_path / name), str(tmp_path / f"new-{name}")]):  # fmt: skip
        assert main(words) == 0
        assert note in capsys.readouterr().out


@pytest.mark.parametrize("name", MAKE)
def test_a_type_that_is_named_is_meant_alone(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    MAKE[name](tmp_path / name)
    features = f"features={{observation.state: '/state:{STATE}', action: /command}}"
    words = (f"timeline=/state:{STATE}", "fps=10", features)
    assert main(_convert(tmp_path / name, tmp_path / "set", *words)) == 0
    assert json.loads(capsys.readouterr().out)["lost"] == {}
    assert main(["convert", str(tmp_path / name), str(tmp_path / "other"), "--strict", *WORDS]) == 1
    assert "NAME:TYPE" in capsys.readouterr().err


def test_the_second_type_is_a_topic_of_its_own(tmp_path: Path) -> None:
    pair = "float64 left\nfloat64 right\n"
    with BagWriter(tmp_path / "a.bag") as bag:
        state = bag.add_topic("/state", "geometry_msgs/Point", POINT, "1" * 32)
        second = bag.add_topic("/state", "my_msgs/Pair", pair, "2" * 32)
        for number, (topic, time_ns, values) in enumerate(rows()):
            if topic == "/state":
                bag.write(state, time_ns, point(values, cdr=False))
                if number >= 20:
                    bag.write(second, time_ns, struct.pack("<2d", number, 7.0))
    features = "features={observation.state: /state, action: '/state:my_msgs/Pair'}"
    assert main(["convert", str(tmp_path / "a.bag"), str(tmp_path / "set"), "timeline=/state", "fps=10", features]) == 0
    found = datasets.table(tmp_path / "set")
    assert found["action"].to_pylist()[-1] == [118.0, 7.0]
    with recordings.open(tmp_path / "a.bag") as recording:
        assert [(topic.name, topic.shared_name) for topic in recording.topics] == [
            ("/state", None), ("/state:my_msgs/msg/Pair", "/state")
        ]  # fmt: skip


def test_two_publishers_that_describe_one_type_in_other_words_are_one_topic(tmp_path: Path) -> None:
    with BagWriter(tmp_path / "a.bag") as bag:
        one = bag.add_topic("/x", "my_msgs/Pair", "float64 left\nfloat64 right\n", "1" * 32)
        two = bag.add_topic("/x", "my_msgs/Pair", "# a pair\nfloat64   left # first\nfloat64 right\n\n", "1" * 32)
        other = bag.add_topic("/x", "my_msgs/Pair", "float64 left\nfloat64 right\nfloat64 more\n", "3" * 32)
        for number, connection in enumerate((one, two, two, other)):
            bag.write(connection, number + 1, struct.pack("<3d", 1, 2, 3)[: 24 if connection == other else 16])
    with recordings.open(tmp_path / "a.bag") as recording:
        assert [(topic.name, topic.count) for topic in recording.topics] == [("/x", 3), ("/x:my_msgs/msg/Pair#1", 1)]
