"""Tiny recordings, where each message of them ends in the file, and what a recovery gave back."""

from __future__ import annotations

import sqlite3
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from mcap.writer import CompressionType

from penstock import recordings
from penstock._src.recordings.recovery.report import RecoveryReport
from penstock._src.recordings.ros1 import writer as ros1_writer
from tests.recordings.containers.makers import (
    BASE_NS,
    STRING,
    TOPICS,
    Message,
    cdr_payload,
    everything,
    write_bag,
    write_mcap,
)

Rows = Counter[tuple[str, int, bytes]]
PAGE_BYTES = 512
Payload = Callable[[str], bytes]


class Files(dict[str, bytes]):
    """Contents by name, which a failing test does not print."""

    def __repr__(self) -> str:
        return f"<{', '.join(self)}>"


def distinct_messages(count: int, *fillers: int) -> list[Message]:
    """Messages whose texts occur once in a file; `fillers` are their lengths in words, in turn."""
    words = [f"{(n * 2654435761 + 12345) % 2**32:08x}" for n in range(count)]
    return [
        Message(TOPICS[n % 3], BASE_NS + 1000 * n, f"<{n:04d}:{word * fillers[n % len(fillers)]}>")
        for n, word in enumerate(words)
    ]


def lettered_messages(count: int, *fillers: int) -> list[Message]:
    """At most 26 messages, each of one letter's pairs: any two neighbouring bytes tell whose they are."""
    return [
        Message(
            TOPICS[n % 3], BASE_NS + 1000 * n, f"<{n:04d}:{(letter + letter.upper()) * 4 * fillers[n % len(fillers)]}>"
        )
        for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz"[:count])
    ]


def rows_of(messages: list[Message], payload: Payload) -> Rows:
    return Counter((m.topic, m.time_ns, payload(m.text)) for m in messages)


def tiny_bag(path: Path, messages: list[Message], **options: object) -> bytes:
    """A bag without the 4 kB of padding that its header usually has."""
    usual = ros1_writer._HEADER_RECORD_BYTES
    ros1_writer._HEADER_RECORD_BYTES = 100
    try:
        return write_bag(path, messages, **options).read_bytes()
    finally:
        ros1_writer._HEADER_RECORD_BYTES = usual


def tiny_mcap(path: Path, messages: list[Message], **options: object) -> bytes:
    options.setdefault("compression", CompressionType.NONE)
    return write_mcap(path, messages, **options).read_bytes()


def tiny_db3(path: Path, messages: list[Message], *, page_bytes: int = PAGE_BYTES) -> bytes:
    """A file as rosbag2 writes it (schema 3), in small pages so that rows overflow and trees grow."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {page_bytes}")
    connection.execute(
        "CREATE TABLE topics(id INTEGER PRIMARY KEY,name TEXT NOT NULL,type TEXT NOT NULL,"
        "serialization_format TEXT NOT NULL,offered_qos_profiles TEXT NOT NULL)"
    )
    connection.execute(
        "CREATE TABLE messages(id INTEGER PRIMARY KEY,topic_id INTEGER NOT NULL,timestamp INTEGER NOT NULL, "
        "data BLOB NOT NULL)"
    )
    connection.execute("CREATE INDEX timestamp_idx ON messages (timestamp ASC)")
    connection.execute("BEGIN")
    for number, name in enumerate(TOPICS, 1):
        connection.execute("INSERT INTO topics VALUES (?, ?, ?, 'cdr', '')", (number, name, STRING))
    for message in messages:
        values = (TOPICS.index(message.topic) + 1, message.time_ns, cdr_payload(message.text))
        connection.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (?, ?, ?)", values)
    connection.execute("COMMIT")
    connection.close()
    return path.read_bytes()


def end_of(data: bytes, message: Message, payload: Payload) -> int:
    """Where the last byte of a message ends, wherever the container put the pieces of its payload."""
    found = payload(message.text)
    if found in data:
        return data.index(found) + len(found)
    # Spread over pages: a pair of letters as in `lettered_messages` occurs in no other message.
    one, two = message.text[6], message.text[7]
    tokens = [f"{one}{two}".encode(), f"{two}{one}".encode(), f"{two}>\0".encode()]
    end = max(data.rfind(token) + len(token) for token in tokens if token in data)
    # In a leaf, the number of the page where the row goes on stands behind its first bytes.
    return end + 4 if data[(end - 1) // PAGE_BYTES * PAGE_BYTES] == 0x0D else end


def read_back(path: Path) -> Rows:
    """Everything that penstock reads from a recording."""
    with recordings.open(path) as recording:
        found = everything(recording)
        assert recording.losses == []
    return Counter(
        (topic, time_ns, payload)
        for (topic, _), rows in found.items()
        for time_ns, payload in rows
        if payload is not None
    )


def recover(data: bytes, source: Path, target: Path, **options: bool) -> tuple[RecoveryReport, Rows]:
    """Write damaged bytes, recover them, and read the new recording with penstock."""
    source.write_bytes(data)
    report = recordings.recover(source, target, overwrite=True, **options)
    assert source.read_bytes() == data
    rows = read_back(target)
    assert report.messages == sum(rows.values())
    return report, rows


def mcap_record_at(data: bytes, kind: int, number: int = 0) -> int:
    """Where a record of a kind begins, -1 when there are not so many."""
    at = 8
    while at + 9 <= len(data) - 8:
        if data[at] == kind:
            if not number:
                return at
            number -= 1
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    return -1
