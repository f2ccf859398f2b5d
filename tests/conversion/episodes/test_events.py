"""What topics say: texts and words in order of time; recorded service calls mark nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import recordings
from penstock._src.conversion.episodes import events
from penstock._src.conversion.episodes.events import TopicTexts, read_texts, read_windows
from penstock._src.conversion.settings import EpisodeSettings
from penstock.errors import ConfigError, LimitExceeded
from tests.conversion import topics
from tests.conversion.topics import Note, at, spoken

SERVICE = "/record/_service_event"
_EVENT = "std_srvs/msg/SetBool_Event"
_CALLS = {
    "service_msgs/msg/ServiceEventInfo": "uint8 event_type\nint64 sequence_number\n",
    "std_srvs/msg/SetBool_Request": "bool data\n",
    _EVENT: "service_msgs/ServiceEventInfo info\nstd_srvs/SetBool_Request[] request\n",
}


def read_topic_texts(path: Path, *groups: list[Note], field: str | None = None, topic: str = "/said") -> TopicTexts:
    topics.write(path / "run.bag", [], *groups)
    with recordings.open(path / "run.bag") as recording:
        return read_texts(recording, topic, field, "log")


def test_texts_come_in_order_of_time_and_equal_ones_are_kept_once(tmp_path: Path) -> None:
    texts = read_topic_texts(tmp_path, spoken("/said", {2.0: "b", 1.0: "a", 3.0: "a"}))
    assert texts.times_ns.tolist() == [at(1.0), at(2.0), at(3.0)]
    assert [texts.texts[which] for which in texts.which] == ["a", "b", "a"]
    assert len(texts.texts) == 2


@pytest.mark.parametrize(
    ("seconds", "until", "text"), [(0.5, 0.9, None), (0.5, 1.0, "a"), (1.0, 9, "a"), (2.5, 9, "b"), (3.5, 9, "c")]
)
def test_the_text_of_a_moment_is_the_last_one_or_else_the_next(
    tmp_path: Path, seconds: float, until: float, text: str | None
) -> None:
    texts = read_topic_texts(tmp_path, spoken("/said", {1.0: " a ", 2.0: "b", 3.0: "", 4.0: "c"}))
    assert texts.at(at(seconds), at(until)) == text


def test_one_is_true_and_zero_is_false() -> None:
    texts = TopicTexts("/said", np.arange(4), np.array([0, 1, 2, 3], np.int32), ("1", "False", "TRUE", "go "))
    assert texts.matching(["true"]).tolist() == [True, False, True, False]
    assert texts.matching(["0", "GO"]).tolist() == [False, True, False, True]


@pytest.mark.parametrize(
    ("type_name", "fields", "text"),
    [
        ("std_msgs/msg/Int64", {"data": -3}, "-3"),
        ("std_msgs/msg/Float64", {"data": 2.5}, "2.5"),
        ("std_msgs/msg/Bool", {"data": True}, "true"),
        ("diagnostic_msgs/msg/KeyValue", {"key": "task", "value": "fold"}, "fold"),
        ("actionlib_msgs/msg/GoalID", {"id": "pick"}, "pick"),
    ],
)
def test_the_field_that_holds_the_word_is_found(tmp_path: Path, type_name: str, fields: Any, text: str) -> None:
    assert read_topic_texts(tmp_path, [Note("/said", type_name, at(0), fields)]).texts == (text,)


def test_a_field_may_lie_deep_inside(tmp_path: Path) -> None:
    status = [{"values": [{"key": "task", "value": "fold"}]}]
    note = Note("/said", "diagnostic_msgs/msg/DiagnosticArray", at(0), {"status": status})
    assert read_topic_texts(tmp_path, [note], field="status[0].values[0].value").texts == ("fold",)


def test_a_type_without_a_clear_word_asks_for_the_field(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no obvious field"):
        read_topic_texts(tmp_path, [Note("/said", "geometry_msgs/msg/Point", at(0), {"x": 1.0})])
    (tmp_path / "run.bag").unlink()
    with pytest.raises(ConfigError, match="neither a text, a number nor a bool"):
        read_topic_texts(tmp_path, [Note("/said", "sensor_msgs/msg/JointState", at(0))], field="position")


def test_what_cannot_be_a_word_is_counted_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_TEXT_CHARACTERS", 5)
    monkeypatch.setattr(events, "MAX_TEXTS_BYTES", 8)
    texts = read_topic_texts(tmp_path, spoken("/said", {0.0: "abc", 1.0: "abcdef", 2.0: "abc"}))
    assert (len(texts), texts.unreadable) == (2, 1)
    assert "6 characters" in texts.reason
    (tmp_path / "run.bag").unlink()
    with pytest.raises(LimitExceeded, match="longer than 8 characters"):
        read_topic_texts(tmp_path, spoken("/said", {0.0: "abcd", 1.0: "efgh", 2.0: "i"}))


@pytest.mark.parametrize("more", [{}, {"start": ("true",), "field": "request[0].data"}, {"stop_topic": SERVICE}])
def test_service_calls_mark_no_episodes(tmp_path: Path, more: dict[str, Any]) -> None:
    """Each call is up to four messages: every one of them began an episode."""
    called = topics.notes(SERVICE, _EVENT, [at(1.0), at(1.01)], lambda n: {"info": {"event_type": n}})
    topics.write(tmp_path / "run.bag", [], called, spoken("/mark", {0.5: "go"}), custom=_CALLS)
    settings = EpisodeSettings(**{"topic": "/mark" if "stop_topic" in more else SERVICE, **more})
    with (
        recordings.open(tmp_path / "run.bag") as recording,
        pytest.raises(ConfigError, match=r"_service_event .* holds service calls(.|\n)*run\.yaml"),
    ):
        read_windows(recording, settings, "log")
