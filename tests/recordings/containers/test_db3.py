"""db3: what SQLite hides, tables that are not what they seem, files in use."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from penstock import recordings
from penstock.errors import PenstockError, RecordingCorrupt, RecordingError
from tests.recordings.containers.makers import (
    cdr_payload,
    digest,
    everything,
    expected,
    some_messages,
    write_rosbag2,
)

MESSAGES = some_messages(40)


def _file(root: Path) -> Path:
    return write_rosbag2(root / "bag", MESSAGES) / "bag.db3"


def _change(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def test_file_alone_is_read_like_its_directory_and_never_changed(tmp_path: Path) -> None:
    path = _file(tmp_path)
    before = digest(path), sorted(entry.name for entry in path.parent.iterdir())
    with recordings.open(path) as recording:
        assert everything(recording) == expected(MESSAGES, cdr_payload)
    assert before == (digest(path), sorted(entry.name for entry in path.parent.iterdir()))


def test_path_with_odd_characters_opens(tmp_path: Path) -> None:
    odd = _file(tmp_path).rename(tmp_path / "50% größer? #1 & more.db3")
    with recordings.open(odd) as recording:
        assert sum(topic.count for topic in recording.topics) == len(MESSAGES)


def test_definitions_missing_from_the_file_come_from_the_standard_types(tmp_path: Path) -> None:
    path = _file(tmp_path)
    _change(path, "DROP TABLE message_definitions", "UPDATE topics SET type = 'my_msgs/msg/Own' WHERE name = '/beta'")
    with recordings.open(path) as recording:
        assert recording.topic("/alpha").problem is None
        assert "no definition of my_msgs/msg/Own" in (recording.topic("/beta").problem or "")
        text = MESSAGES[0].text
        assert recording.decoder(recording.topic("/alpha")).decode(cdr_payload(text)) == {"data": text}


def test_rows_of_an_unknown_topic_are_counted_as_lost_and_the_rest_is_read(tmp_path: Path) -> None:
    path = _file(tmp_path)
    _change(path, "DELETE FROM topics WHERE name = '/beta'")
    lost = sum(message.topic == "/beta" for message in MESSAGES)
    with recordings.open(path, on_corrupt="count") as recording:
        assert sum(topic.count for topic in recording.topics) == len(MESSAGES) - lost
        assert [loss.count for loss in recording.losses] == [lost]
    with pytest.raises(RecordingCorrupt, match=f"{lost} messages have the topic id 2"):
        recordings.open(path)


def test_view_in_place_of_a_table_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path)
    _change(
        path,
        "DROP TABLE messages",
        "CREATE VIEW messages AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
        "SELECT x AS id, 1 AS topic_id, x AS timestamp, x'00' AS data FROM n",
    )
    with pytest.raises(RecordingCorrupt, match="without the table messages"):
        recordings.open(path)


def test_sqlite_file_that_is_no_bag_is_refused(tmp_path: Path) -> None:
    _change(tmp_path / "a.db3", "CREATE TABLE something (x)")
    with pytest.raises(RecordingCorrupt, match="messages and topics"):
        recordings.open(tmp_path / "a.db3")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE messages SET timestamp = 'noon' WHERE id = 7",
        "UPDATE messages SET topic_id = 1.5 WHERE id = 7",
        "UPDATE messages SET data = 'text' WHERE id = 7",
        "UPDATE messages SET data = 3 WHERE id = 7",
        "UPDATE topics SET name = x'ff' WHERE id = 1",
    ],
)
def test_values_of_wrong_kinds_are_our_errors(tmp_path: Path, damage: str) -> None:
    path = _file(tmp_path)
    _change(path, damage)
    for on_corrupt in ("raise", "count"):
        try:
            with recordings.open(path, on_corrupt=on_corrupt) as recording:
                everything(recording)
                assert recording.losses
        except PenstockError as error:
            assert str(path) in str(error)


def test_what_lies_in_a_write_ahead_log_is_not_overlooked(tmp_path: Path) -> None:
    path = _file(tmp_path)
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (1, 5, x'00010000')")
    try:
        assert (path.parent / "bag.db3-wal").stat().st_size
        with recordings.open(path) as recording:
            assert sum(topic.count for topic in recording.topics) == len(MESSAGES) + 1
    finally:
        writer.close()


def test_messages_gone_from_the_table_but_not_from_its_index_are_noticed(tmp_path: Path) -> None:
    path = _file(tmp_path)
    with sqlite3.connect(path) as connection:
        hidden = connection.execute("SELECT * FROM sqlite_master WHERE name = 'timestamp_idx'").fetchone()
    connection.close()
    _change(path, "PRAGMA writable_schema = ON", "DELETE FROM sqlite_master WHERE name = 'timestamp_idx'")
    _change(path, "DELETE FROM messages WHERE id = 9")
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("INSERT INTO sqlite_master VALUES (?, ?, ?, ?, ?)", hidden)
    connection.close()
    with pytest.raises(RecordingCorrupt, match="holds 39 messages, and its index over time lists 40"):
        recordings.open(path)
    with recordings.open(path, on_corrupt="count") as recording:
        assert [loss.count for loss in recording.losses] == [1]
        assert sum(len(rows) for rows in everything(recording).values()) == len(MESSAGES) - 1


def test_closed_recording_says_so(tmp_path: Path) -> None:
    recording = recordings.open(_file(tmp_path))
    blocks = recording.fetch(np.zeros(3, np.int32), np.arange(3, dtype=np.int64))
    recording.close()
    recording.close()
    with pytest.raises(RecordingError, match="closed"):
        next(blocks)


def test_rows_with_gaps_and_negative_ids_are_read(tmp_path: Path) -> None:
    path = _file(tmp_path)
    _change(path, "DELETE FROM messages WHERE id % 3 = 0", "UPDATE messages SET id = id - 1000 WHERE id < 10")
    with recordings.open(path) as recording:
        kept = [message for number, message in enumerate(MESSAGES, 1) if number % 3]
        assert everything(recording) == expected(kept, cdr_payload)
