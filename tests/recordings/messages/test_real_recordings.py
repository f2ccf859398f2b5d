"""Messages of recordings that we did not make: we agree with the rosbags library on every one that it can read."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rosbags.rosbag1 import Reader
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from penstock._src.recordings.messages.decode import RosDecoder
from penstock._src.recordings.messages.definitions import parse_msg
from penstock.errors import SchemaError
from tests.recordings.messages.oracle import plain

DATA = Path(__file__).parents[4] / "shared" / "data" / "recordings"
BAGS = sorted(DATA.glob("ros1/**/*.bag"))
MCAPS = sorted(DATA.glob("ros2/**/*.mcap"))
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the shared recordings are not here")


def theirs(value: Any, store: Any) -> Any:
    """A rosbags message as our decoder gives it, views as lists."""
    if dataclasses.is_dataclass(value):
        type_name = value.__msgtype__  # type: ignore[attr-defined]
        if type_name in ("builtin_interfaces/msg/Time", "builtin_interfaces/msg/Duration"):
            return value.sec * 10**9 + value.nanosec  # type: ignore[attr-defined]
        names = [name for name, _ in store.fielddefs[type_name][1] if name != "structure_needs_at_least_one_member"]
        return {name: theirs(getattr(value, name), store) for name in names}
    if isinstance(value, np.ndarray):
        return (value.view(np.uint8) if value.dtype == np.int8 else value).tolist()
    return [theirs(item, store) for item in value] if isinstance(value, list) else value


def same(left: Any, right: Any) -> bool:
    """Equality in which NaN equals itself and int8 arrays may be shown as uint8."""
    if isinstance(left, dict) and isinstance(right, dict):
        return [*left] == [*right] and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right or (left != left and right != right) or (isinstance(left, int) and left % 256 == right))


def compare(decoder: RosDecoder, store: Any, name: str, payload: bytes, *, ros1: bool) -> bool:
    """Whether rosbags could read the message at all; what it reads we read too, and equally."""
    try:
        read = store.deserialize_ros1 if ros1 else store.deserialize_cdr
        expected = theirs(read(payload, name), store)
    except Exception:
        return False
    assert same(plain(decoder.decode(payload)), expected)
    return True


@needs_data
@pytest.mark.parametrize("path", BAGS, ids=lambda path: path.name)
def test_ros1_messages_agree(path: Path) -> None:
    reader = Reader(path)
    try:
        reader.open()
    except Exception:
        pytest.skip("rosbags cannot open it")
    try:
        for connection in reader.connections:
            store = get_typestore(Stores.EMPTY)
            try:
                store.register(get_types_from_msg(connection.msgdef.data, connection.msgtype))
                decoder = RosDecoder(parse_msg(connection.msgdef.data, connection.msgtype), connection.msgtype, "ros1")
            except SchemaError:
                raise
            except Exception:
                continue
            store.register(
                {
                    name: fields
                    for name, fields in get_typestore(Stores.ROS1_NOETIC).fielddefs.items()
                    if name.startswith("builtin_interfaces/")
                }
            )
            for number, (_, _, payload) in enumerate(reader.messages([connection])):
                assert compare(decoder, store, connection.msgtype, bytes(payload), ros1=True)
                if number == 10:
                    break
    finally:
        reader.close()


@needs_data
@pytest.mark.parametrize("path", MCAPS, ids=lambda path: path.name)
def test_mcap_messages_agree_or_are_read_where_rosbags_cannot(path: Path) -> None:
    from mcap.reader import make_reader

    decoded: dict[str, int] = {}
    with path.open("rb") as file:
        for schema, _, message in make_reader(file).iter_messages():
            if schema is None or schema.encoding != "ros2msg" or decoded.get(schema.name, 0) >= 5:
                continue
            decoded[schema.name] = decoded.get(schema.name, 0) + 1
            text = schema.data.decode()
            decoder = RosDecoder(parse_msg(text, schema.name), schema.name, "cdr")
            store = get_typestore(Stores.EMPTY)
            try:
                store.register(get_types_from_msg(text, schema.name))
            except Exception:
                assert decoder.decode(message.data)
                continue
            compare(decoder, store, schema.name, message.data, ros1=False)
            decoder.decode(message.data)
    assert decoded


@needs_data
def test_recorded_service_calls_are_decoded() -> None:
    path = DATA / "ros2/rosbag2/sqlite3/service_events/bag_with_topics_and_service_events.db3"
    with sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True) as database:
        (text,) = database.execute(
            "select encoded_message_definition from message_definitions where topic_type like '%srv%'"
        ).fetchone()
        rows = database.execute(
            "select m.data from messages m join topics t on t.id = m.topic_id where t.type like '%_Event'"
        ).fetchall()
    database.close()
    decoder = RosDecoder(parse_msg(text, "test_msgs/srv/BasicTypes_Event"), "test_msgs/srv/BasicTypes_Event", "cdr")
    assert rows
    for (payload,) in rows:
        event = decoder.decode(payload)
        assert set(event) == {"info", "request", "response"}
        assert 0 <= event["info"]["event_type"] <= 3
        assert len(event["request"]) <= 1
