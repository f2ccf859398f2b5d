"""Recordings with the traits that real ones have: padding, two types on a topic, packed messages, and every damage."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from mcap.writer import CompressionType, Writer

from penstock._src.recordings.ros1.writer import BagWriter
from tests.recordings.containers.makers import BASE_NS

ROWS = 60
PERIOD_NS = 100_000_000
POINT = "float64 x\nfloat64 y\nfloat64 z\n"
WORDS = ("timeline=/state", "stride=1", "fps=10", "features={observation.state: /state, action: /command}")
Rows = Sequence[tuple[str, int, tuple[float, float, float]]]
Change = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Made:
    """How a recording is made, how many of its messages are lost, and how many have a second type.

    `refused`: convert does not read it, and names recover. `unknown`: so many losses have no number (each counts as 1).
    """

    name: str
    make: Callable[[Path], object]
    lost: int = 0
    unknown: int = 0
    others: int = 0
    refused: bool = False


def rows(count: int = ROWS) -> Rows:
    """Two topics whose messages have the same times, so that a conversion needs every one of them."""
    found = []
    for number in range(count):
        time_ns = BASE_NS + number * PERIOD_NS
        found += [("/state", time_ns, (number, 1.0, 2.0)), ("/command", time_ns, (number, 3.0, 4.0))]
    return found


def point(values: tuple[float, float, float], *, cdr: bool) -> bytes:
    return (b"\0\1\0\0" if cdr else b"") + struct.pack("<3d", *values)


# ROS 1


def bag(path: Path, *, compression: str = "none", texts: Sequence[str] = (POINT,), chunk_bytes: int = 900) -> bytes:
    """`texts`: the definitions that publishers of /state give, in turn."""
    with BagWriter(path, compression=compression, chunk_bytes=chunk_bytes) as writer:  # type: ignore[arg-type]
        states = [writer.add_topic("/state", "geometry_msgs/Point", text, "1" * 32) for text in texts]
        command = writer.add_topic("/command", "geometry_msgs/Point", POINT, "1" * 32)
        for place, (topic, time_ns, values) in enumerate(rows()):
            number = states[place // 2 % len(states)] if topic == "/state" else command
            writer.write(number, time_ns, point(values, cdr=False))
    return path.read_bytes()


def two_types(path: Path) -> None:
    with BagWriter(path) as writer:
        state = writer.add_topic("/state", "geometry_msgs/Point", POINT, "1" * 32)
        text = writer.add_topic("/state", "std_msgs/String", "string data\n", "2" * 32)
        command = writer.add_topic("/command", "geometry_msgs/Point", POINT, "1" * 32)
        for number, (topic, time_ns, values) in enumerate(rows()):
            writer.write(state if topic == "/state" else command, time_ns, point(values, cdr=False))
            if number % 10 == 0:
                writer.write(text, time_ns + 1, struct.pack("<I", 2) + b"ok")


def bag_records(data: bytes, at: int = 13) -> list[tuple[int, int, int, int]]:
    """(kind, begin, where the data begin, end) of the records outside chunks."""
    found = []
    while at < len(data):
        (head,) = struct.unpack_from("<I", data, at)
        (size,) = struct.unpack_from("<I", data, at + 4 + head)
        op = data[data.index(b"op=", at + 4) + 3]
        end = at + 8 + head + size
        found.append((op, at, at + 8 + head, end))
        at = end
    return found


def padded(data: bytes, place: int, filler: bytes) -> bytes:
    """A bag with bytes between its records, whose positions all take account of them."""
    grown = bytearray(data[:place] + filler + data[place:])

    def shift(value_at: int) -> None:
        (value,) = struct.unpack_from("<Q", grown, value_at)
        if value >= place:
            struct.pack_into("<Q", grown, value_at, value + len(filler))

    header_at = grown.index(b"index_pos=") + len(b"index_pos=")
    shift(header_at)
    (index_at,) = struct.unpack_from("<Q", grown, header_at)
    at = grown.find(b"chunk_pos=", index_at)
    while at >= 0:
        shift(at + len(b"chunk_pos="))
        at = grown.find(b"chunk_pos=", at + 1)
    return bytes(grown)


def behind_index(chunk: int, filler: bytes) -> Change:
    """Filler behind the index records of a chunk."""
    return lambda data: padded(data, _after_chunk(data, chunk, 4), filler)


def behind_chunk(chunk: int, filler: bytes) -> Change:
    """Filler between a chunk and its index records."""
    return lambda data: padded(data, _after_chunk(data, chunk, 5), filler)


def _after_chunk(data: bytes, chunk: int, last_kind: int) -> int:
    records = bag_records(data)
    first = [number for number, record in enumerate(records) if record[0] == 5][chunk]
    end = records[first][3]
    for kind, _, _, stop in records[first + 1 :]:
        if kind != 4 or last_kind == 5:
            break
        end = stop
    return end


def behind_every_index(data: bytes) -> bytes:
    places = [_after_chunk(data, n, 4) for n in range(sum(kind == 5 for kind, *_ in bag_records(data)))]
    for place in reversed(places):
        data = padded(data, place, bytes(range(1, 38)))
    return data


def patched(kind: int, number: int, offset: int, *, of_data: bool = False, flip: int = 0xFF) -> Change:
    """One byte of the n-th record of a kind changed."""

    def change(data: bytes) -> bytes:
        record = [record for record in bag_records(data) if record[0] == kind][number]
        made = bytearray(data)
        made[record[2 if of_data else 1] + offset] ^= flip
        return bytes(made)

    return change


def with_value(marker: bytes, number: int, value: bytes) -> Change:
    """The value behind the n-th occurrence of a marker replaced."""

    def change(data: bytes) -> bytes:
        at = -1
        for _ in range(number + 1):
            at = data.index(marker, at + 1)
        at += len(marker)
        return data[:at] + value + data[at + len(value) :]

    return change


def without_index(data: bytes) -> bytes:
    """As a recorder that was killed leaves it: the chunks are whole, and what follows them was never written."""
    at = data.index(b"index_pos=") + len(b"index_pos=")
    (index_at,) = struct.unpack_from("<Q", data, at)
    return (data[:at] + bytes(8) + data[at + 8 :])[:index_at]


def zeros_in_chunk(data: bytes) -> bytes:
    """Zeros between two messages of a plain chunk, of which all lengths and positions take account."""
    _, begin, data_at, end = [record for record in bag_records(data) if record[0] == 5][1]
    place = data.index(struct.pack("<3d", 9.0, 1.0, 2.0), data_at) + 24
    grown = bytearray(padded(data, place, bytes(50)))
    size = end - data_at + 50
    struct.pack_into("<I", grown, data_at - 4, size)
    struct.pack_into("<I", grown, data.index(b"size=", begin) + 5, size)
    for op, _, entries_at, stop in bag_records(bytes(grown)):
        if op == 4 and end + 50 <= entries_at < end + 50 + 400:
            for entry in range(entries_at, stop, 12):
                (offset,) = struct.unpack_from("<I", grown, entry + 8)
                if data_at + offset >= place:
                    struct.pack_into("<I", grown, entry + 8, offset + 50)
    return bytes(grown)


def message_length(data: bytes) -> bytes:
    """The length of one message, in the middle of a plain chunk, made smaller."""
    at = data.index(struct.pack("<3d", 20.0, 1.0, 2.0))
    return data[: at - 4] + struct.pack("<I", 7) + data[at:]


# mcap


def mcap(path: Path, *, finish: bool = True, packed: bool = False, **options: object) -> bytes:
    options.setdefault("chunk_size", 900)
    options.setdefault("compression", CompressionType.NONE)
    with path.open("wb") as file:
        writer = Writer(file, **options)  # type: ignore[arg-type]
        writer.start(profile="ros2", library="test")
        schema = writer.register_schema("geometry_msgs/msg/Point", "ros2msg", POINT.encode())
        ids = {name: writer.register_channel(name, "cdr", schema) for name in ("/state", "/command")}
        for topic, time_ns, values in rows():
            data = point(values, cdr=True)
            writer.add_message(ids[topic], time_ns, zstd(data) if packed else data, time_ns)
        if finish:
            writer.finish()
    return path.read_bytes()


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


def mcap_two_types(path: Path) -> None:
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start(profile="ros2", library="test")
        schema = writer.register_schema("geometry_msgs/msg/Point", "ros2msg", POINT.encode())
        other = writer.register_schema("std_msgs/msg/Empty", "ros2msg", b"")
        ids = {name: writer.register_channel(name, "cdr", schema) for name in ("/state", "/command")}
        second = writer.register_channel("/state", "cdr", other)
        for number, (topic, time_ns, values) in enumerate(rows()):
            writer.add_message(ids[topic], time_ns, point(values, cdr=True), time_ns)
            if number % 12 == 0:
                writer.add_message(second, time_ns + 1, b"\0\1\0\0\0", time_ns + 1)
        writer.finish()


def mcap_records(data: bytes) -> list[tuple[int, int, int]]:
    found, at = [], 8
    while at < len(data) - 8:
        (size,) = struct.unpack_from("<Q", data, at + 1)
        found.append((data[at], at, at + 9 + size))
        at += 9 + size
    return found


def mcap_padded(chunk: int, filler: bytes, *, before_index: bool = False) -> Change:
    """Filler behind the message indexes of a chunk, or before them; the footer still finds the summary."""

    def change(data: bytes) -> bytes:
        records = mcap_records(data)
        first = [number for number, record in enumerate(records) if record[0] == 6][chunk]
        following = records[first + 1 :]
        place = following[0][1] if before_index else next(begin for kind, begin, _ in following if kind != 7)
        made = bytearray(data[:place] + filler + data[place:])
        footer = len(made) - 8 - 20
        summary, offsets, _ = struct.unpack_from("<QQI", made, footer)
        struct.pack_into("<QQI", made, footer, summary + len(filler), offsets and offsets + len(filler), 0)
        return bytes(made)

    return change


def mcap_patched(kind: int, number: int, offset: int, flip: int = 0xFF) -> Change:
    def change(data: bytes) -> bytes:
        begin = [begin for found, begin, _ in mcap_records(data) if found == kind][number]
        made = bytearray(data)
        made[begin + offset] ^= flip
        return bytes(made)

    return change


# db3


def db3(path: Path, *, packed: bool = False, page_bytes: int = 512) -> bytes:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {page_bytes}")
    connection.executescript(
        "CREATE TABLE topics(id INTEGER PRIMARY KEY, name TEXT NOT NULL, type TEXT NOT NULL, "
        "serialization_format TEXT NOT NULL, offered_qos_profiles TEXT NOT NULL);"
        "CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER NOT NULL, timestamp INTEGER NOT NULL, "
        "data BLOB NOT NULL);"
        "CREATE INDEX timestamp_idx ON messages (timestamp ASC);"
    )
    names = ("/state", "/command")
    kind = "geometry_msgs/msg/Point"
    topics = [(number, name, kind) for number, name in enumerate(names, 1)]
    connection.executemany("INSERT INTO topics VALUES(?, ?, ?, 'cdr', '')", topics)
    connection.execute("BEGIN")
    for topic, time_ns, values in rows():
        data = point(values, cdr=True)
        entry = (names.index(topic) + 1, time_ns, zstd(data) if packed else data)
        connection.execute("INSERT INTO messages(topic_id, timestamp, data) VALUES(?, ?, ?)", entry)
    connection.execute("COMMIT")
    connection.close()
    return path.read_bytes()


def db3_changed(path: Path, sql: str) -> None:
    db3(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(sql)
    connection.close()


def leaf_of_messages(data: bytes, page_bytes: int = 512) -> int:
    """Where a leaf of the table of messages begins: the page with the row of one value."""
    at = data.index(struct.pack("<3d", 30.0, 1.0, 2.0))
    return at - at % page_bytes


def rows_in_page(data: bytes, at: int) -> int:
    return int.from_bytes(data[at + 3 : at + 5], "big")
