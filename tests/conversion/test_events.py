"""What topics say: texts and words in order of time, and recorded service calls, each counted once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import recordings
from penstock._src.conversion.episodes import events
from penstock._src.conversion.episodes.events import TopicTexts, read_texts, read_windows
from penstock._src.conversion.settings import read_settings
from penstock.errors import ConfigError, LimitExceeded
from tests.conversion import bags, topics
from tests.conversion.topics import Note, at, spoken

REQUEST_SENT, REQUEST_RECEIVED, RESPONSE_SENT = 0, 1, 2
SERVICE = "/record/_service_event"
_EVENT = """service_msgs/msg/ServiceEventInfo info
std_srvs/{0}_Request[<=1] request
std_srvs/{0}_Response[<=1] response
"""
_INFO = "uint8 event_type\nbuiltin_interfaces/Time stamp\nuint8[16] client_gid\nint64 sequence_number\n"
_ANSWER = "bool success\nstring message\n"


def read_topic_texts(path: Path, *groups: list[Note], field: str | None = None, topic: str = "/said") -> TopicTexts:
    topics.write(path / "run.bag", [], *groups)
    with recordings.open(path / "run.bag") as recording:
        return read_texts(recording, topic, field, "log")


def test_texts_come_in_order_of_time_and_equal_ones_are_kept_once(tmp_path: Path) -> None:
    texts = read_topic_texts(tmp_path, spoken("/said", {2.0: "b", 1.0: "a", 3.0: "a"}))
    assert texts.times_ns.tolist() == [at(1.0), at(2.0), at(3.0)]
    assert [texts.texts[which] for which in texts.which] == ["a", "b", "a"]
    assert len(texts.texts) == 2
    assert "3 messages, 2 texts" in repr(texts)


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


# ── service calls ────────────────────────────────────────────────────────────────────────────────────────────────────


def write_calls(path: Path, service: str, request: str, calls: list[dict[str, Any]]) -> Path:
    """An mcap as `ros2 bag record` makes it with service introspection switched on."""
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    made_of = {
        "service_msgs/msg/ServiceEventInfo": _INFO,
        f"std_srvs/msg/{service}_Request": request or "uint8 structure_needs_at_least_one_member\n",
        f"std_srvs/msg/{service}_Response": _ANSWER,
        f"std_srvs/msg/{service}_Event": _EVENT.format(service),
    }
    store.register({k: v for name, text in made_of.items() for k, v in get_types_from_msg(text, name).items()})
    event = f"std_srvs/msg/{service}_Event"
    recorded = f"std_srvs/srv/{service}_Event"  # with the text of the service, as rosbag2 keeps it
    with Writer(path, version=9, storage_plugin=StoragePlugin.MCAP) as bag:
        of_camera = bag.add_connection(bags.CAM_H, "sensor_msgs/msg/CompressedImage", typestore=store)
        of_calls = bag.add_connection(SERVICE, recorded, msgdef=f"{request}---\n{_ANSWER}", rihs01="RIHS01_0")
        camera = bags.camera(bags.CAM_H, bags.times(20, 4.0))
        messages = [(message.time_ns, of_camera, bags.payload(message, 2)) for message in camera]
        for call in calls:
            made = topics.make(store, event, {key: call[key] for key in call if key != "seconds"})
            messages.append((at(call["seconds"]), of_calls, bytes(store.serialize_cdr(made, event))))
        for time_ns, connection, data in sorted(messages, key=lambda each: each[0]):
            bag.write(connection, time_ns, data)
    return path


def call(
    seconds: float, number: int, event: int, *, client: int = 1, data: Any = None, ok: bool = True
) -> dict[str, Any]:
    info = {"event_type": event, "client_gid": [client] * 16, "sequence_number": number}
    request = [] if event == RESPONSE_SENT else [{} if data is None else {"data": data}]
    response = [{"success": ok}] if event == RESPONSE_SENT else []
    return {"seconds": seconds, "info": info, "request": request, "response": response}


def windows(path: Path, *asked: str) -> list[tuple[float, float]]:
    chosen = read_settings(None, [f"episodes.topic={SERVICE}", *asked])
    with recordings.open(path) as recording:
        found = read_windows(recording, chosen.episodes, "log")[0]
    last = at(4.0)
    return [((each.begin_ns - at(0)) / 1e9, (min(each.end_ns, last) - at(0)) / 1e9) for each in found]


def test_a_set_bool_service_switches_recording_on_and_off(tmp_path: Path) -> None:
    calls = [
        call(0.50, 1, REQUEST_SENT, data=True),
        call(0.51, 1, REQUEST_RECEIVED, data=True),
        call(0.52, 1, RESPONSE_SENT),
        call(1.00, 2, REQUEST_RECEIVED, data=False),
        call(1.01, 2, RESPONSE_SENT),
        call(2.00, 3, REQUEST_RECEIVED, data=True),
        call(2.01, 3, RESPONSE_SENT, ok=False),  # refused: nothing was switched on
        call(3.00, 3, REQUEST_RECEIVED, client=2, data=True),
    ]
    path = write_calls(tmp_path / "run.mcapdir", "SetBool", "bool data\n", calls)
    assert windows(path) == [(0.5, 1.0), (3.0, 4.0)]
    assert windows(path, "episodes.start=true", "episodes.field=data") == [(0.5, 3.0), (3.0, 4.0)]
    with pytest.raises(ConfigError, match="has no field 'dat'"):
        windows(path, "episodes.field=dat", "episodes.start=true")


def test_every_call_of_a_trigger_begins_an_episode(tmp_path: Path) -> None:
    sent = [(0.5, 1), (2.0, 2)]
    calls = [call(seconds + event / 100, number, event) for seconds, number in sent for event in (0, 1, 2)]
    path = write_calls(tmp_path / "run.mcapdir", "Trigger", "", calls)
    assert windows(path) == [(0.5, 2.0), (2.0, 4.0)]
