"""Writing ROS 1 bags, format 2.0, as rosbag itself lays them out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock._src.recordings.codecs import MAX_CHUNK_BYTES, compress
from penstock._src.recordings.ros1.records import (
    MAGIC,
    OP_BAG_HEADER,
    OP_CHUNK,
    OP_CHUNK_INFO,
    OP_CONNECTION,
    OP_INDEX,
    OP_MESSAGE,
)
from penstock.errors import RecordingError, UsageError, os_errors

_HEADER_RECORD_BYTES = 4096
_LATEST_S = (1 << 32) - 1


@dataclass(frozen=True)
class _ChunkEntry:
    position: int
    start: bytes
    end: bytes
    counts: tuple[tuple[int, int], ...]


def _u32(value: int) -> bytes:
    return struct.pack("<I", value)


def _time(time_ns: int) -> bytes:
    return struct.pack("<II", *divmod(time_ns, 1_000_000_000))


def _fields(**values: bytes) -> bytes:
    return b"".join(_u32(len(name) + 1 + len(value)) + name.encode() + b"=" + value for name, value in values.items())


def _record(header: bytes, data: bytes | bytearray | memoryview = b"") -> bytes:
    return b"".join((_u32(len(header)), header, _u32(len(data)), data))


class BagWriter:
    """A new bag; nothing is valid until `close()`, which a `with` block calls.

    with BagWriter(path) as bag:
        topic = bag.add_topic("/joint_states", "sensor_msgs/JointState", text, md5)
        bag.write(topic, time_ns, payload)
    """

    def __init__(
        self, path: Path | str, *, chunk_bytes: int = 768 * 1024, compression: Literal["none", "lz4", "bz2"] = "none"
    ) -> None:
        if compression not in ("none", "lz4", "bz2"):
            raise UsageError(f"ROS 1 bags know no compression {compression!r}", hint="none, lz4 or bz2")
        if not 0 < chunk_bytes <= MAX_CHUNK_BYTES:
            raise UsageError(f"chunk_bytes must be within 1 … {MAX_CHUNK_BYTES:,}, not {chunk_bytes:,}")
        self.path = Path(path)
        self._chunk_bytes = chunk_bytes
        self._compression = compression
        self._connections: list[bytes] = []
        self._chunk_list: list[_ChunkEntry] = []
        self._chunk = bytearray()
        self._entries: dict[int, bytearray] = {}
        self._first_ns, self._last_ns = 0, 0
        self._announced: set[int] = set()
        with os_errors(RecordingError, f"{self.path}: cannot be written"):
            self._file = open(self.path, "xb")  # noqa: SIM115 - lives as long as the writer
        self._file.write(MAGIC + self._bag_header(0))

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def add_topic(self, name: str, type_name: str, definition_text: str, md5: str) -> int:
        """Announce a topic; the id is what `write` takes. `type_name` may be in two or three parts."""
        parts = type_name.split("/")
        two_part = f"{parts[0]}/{parts[-1]}"
        described = _fields(
            topic=name.encode(),
            type=two_part.encode(),
            md5sum=md5.encode(),
            message_definition=definition_text.encode(),
        )
        return self.add_connection(name.encode(), described)

    def add_connection(self, topic: bytes, described: bytes) -> int:
        """Announce a topic with the connection data of another bag, as they are."""
        number = len(self._connections)
        header = _fields(op=bytes([OP_CONNECTION]), topic=topic, conn=_u32(number))
        self._connections.append(_record(header, described))
        return number

    def write(self, topic: int, time_ns: int, payload: bytes | bytearray | memoryview) -> None:
        """Append a message; `time_ns` is the receive time."""
        if not 0 <= topic < len(self._connections):
            raise UsageError(f"no topic {topic} was added; there are {len(self._connections)}")
        if not 0 <= time_ns <= _LATEST_S * 1_000_000_000:
            raise UsageError(f"time {time_ns} ns does not fit into a ROS 1 bag (0 … {_LATEST_S} s)")
        if not self._entries:
            self._first_ns = self._last_ns = time_ns
        self._first_ns, self._last_ns = min(self._first_ns, time_ns), max(self._last_ns, time_ns)
        if topic not in self._announced:
            self._announced.add(topic)
            self._chunk += self._connections[topic]
        stamp = _time(time_ns)
        self._entries.setdefault(topic, bytearray()).extend(stamp + _u32(len(self._chunk)))
        header = _fields(op=bytes([OP_MESSAGE]), conn=_u32(topic), time=stamp)
        self._chunk += _u32(len(header)) + header + _u32(len(payload))
        self._chunk += payload
        if len(self._chunk) >= self._chunk_bytes:
            self._end_chunk()

    def close(self) -> None:
        """Write the index; the bag is complete afterwards."""
        if self._file.closed:
            return
        with self._file:
            self._end_chunk()
            index_at = self._file.tell()
            for connection in self._connections:
                self._file.write(connection)
            for chunk in self._chunk_list:
                header = _fields(
                    op=bytes([OP_CHUNK_INFO]),
                    ver=_u32(1),
                    chunk_pos=struct.pack("<Q", chunk.position),
                    start_time=chunk.start,
                    end_time=chunk.end,
                    count=_u32(len(chunk.counts)),
                )
                self._file.write(_record(header, b"".join(_u32(topic) + _u32(n) for topic, n in chunk.counts)))
            self._file.seek(len(MAGIC))
            self._file.write(self._bag_header(index_at))

    def _end_chunk(self) -> None:
        if not self._entries:
            return
        position = self._file.tell()
        header = _fields(op=bytes([OP_CHUNK]), compression=self._compression.encode(), size=_u32(len(self._chunk)))
        stored = compress(self._compression, self._chunk)
        self._file.write(_u32(len(header)) + header + _u32(len(stored)))
        self._file.write(stored)
        for topic, entries in self._entries.items():
            count = len(entries) // 12
            header = _fields(op=bytes([OP_INDEX]), ver=_u32(1), conn=_u32(topic), count=_u32(count))
            self._file.write(_record(header, entries))
        counts = tuple((topic, len(entries) // 12) for topic, entries in self._entries.items())
        self._chunk_list.append(_ChunkEntry(position, _time(self._first_ns), _time(self._last_ns), counts))
        self._chunk.clear()
        self._entries.clear()

    def _bag_header(self, index_at: int) -> bytes:
        header = _fields(
            op=bytes([OP_BAG_HEADER]),
            index_pos=struct.pack("<Q", index_at),
            conn_count=_u32(len(self._connections)),
            chunk_count=_u32(len(self._chunk_list)),
        )
        # Padded, so that the final numbers fit into the place of the first ones.
        return _record(header, b" " * (_HEADER_RECORD_BYTES - len(header) - 8))
