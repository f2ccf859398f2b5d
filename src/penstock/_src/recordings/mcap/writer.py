"""Writing mcap files: chunks with checksums and indexes, attachments, metadata, and a summary."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from penstock._src.recordings.codecs import compress
from penstock._src.recordings.mcap import records as r
from penstock.errors import RecordingError, os_errors

_CHUNK_BYTES = 1 << 20
_MAX_ID = (1 << 16) - 1


def _text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(data)) + data


def record(kind: int, content: bytes) -> bytes:
    """A record as it lies in a file."""
    return struct.pack("<BQ", kind, len(content)) + content


def _map(kind: str, items: Iterable[tuple[int, int]]) -> bytes:
    data = b"".join(struct.pack(kind, key, value) for key, value in items)
    return struct.pack("<I", len(data)) + data


@dataclass
class _Chunk:
    """The chunk being filled: its records, and (time, offset) pairs by channel."""

    data: bytearray = field(default_factory=bytearray)
    entries: dict[int, bytearray] = field(default_factory=dict)
    first_ns: int = 0
    last_ns: int = 0


class McapWriter:
    """A new mcap file; it is complete after `close()`, which a `with` block calls.

    Schemas and channels are given as the content of their records, so that nothing of a file that is copied is lost.
    """

    def __init__(self, path: Path | str, *, profile: str = "", codec: str = "none", library: str = "penstock") -> None:
        self.path = Path(path)
        self._codec = codec
        self._chunk = _Chunk()
        self._crc = 0
        self._at = 0
        self._schemas: dict[bytes, int] = {}
        self._channels: dict[bytes, int] = {}
        self._records: dict[tuple[int, int], bytes] = {}
        self._announced: set[tuple[int, int]] = set()
        self._counts: dict[int, int] = {}
        self._chunk_indexes: list[bytes] = []
        self._other_indexes: dict[int, list[bytes]] = {r.OP_ATTACHMENT: [], r.OP_METADATA: []}
        self._range_ns: tuple[int, int] | None = None
        with os_errors(RecordingError, f"{self.path}: cannot be written"):
            self._file = open(self.path, "xb")  # noqa: SIM115 - lives as long as the writer
        self._write(r.MAGIC + record(r.OP_HEADER, _text(profile) + _text(library)))

    def __enter__(self) -> McapWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)
        self._at += len(data)

    def channel(self, content: bytes, schema: bytes | None) -> int:
        """The number of a channel in this file; `content` and `schema` are those of the records, with any ids."""
        schema_id = 0 if schema is None else self._schema(schema)
        key = content[4:] + struct.pack("<H", schema_id)
        number = self._channels.get(key)
        if number is None:
            number = self._free_id(self._channels, struct.unpack_from("<H", content)[0])
            self._channels[key] = number
            self._records[r.OP_CHANNEL, number] = struct.pack("<HH", number, schema_id) + content[4:]
        return number

    def _schema(self, content: bytes) -> int:
        key = content[2:]
        number = self._schemas.get(key)
        if number is None:
            number = self._free_id(self._schemas, max(1, struct.unpack_from("<H", content)[0]))
            self._schemas[key] = number
            self._records[r.OP_SCHEMA, number] = struct.pack("<H", number) + key
        return number

    def _free_id(self, used: dict[bytes, int], wanted: int) -> int:
        used_ids = set(used.values())
        if wanted not in used_ids:
            return wanted
        return next(number for number in range(1, _MAX_ID + 1) if number not in used_ids)

    def write(self, channel: int, head: bytes, payload: bytes) -> None:
        """Append a message; `head`: sequence, log time and publish time as they lie in a record."""
        time_ns = int(struct.unpack_from("<Q", head, 4)[0])
        chunk = self._chunk
        self._announce(channel)
        if not chunk.entries:
            chunk.first_ns = chunk.last_ns = time_ns
        chunk.first_ns, chunk.last_ns = min(chunk.first_ns, time_ns), max(chunk.last_ns, time_ns)
        chunk.entries.setdefault(channel, bytearray()).extend(struct.pack("<QQ", time_ns, len(chunk.data)))
        chunk.data += struct.pack("<BQH", r.OP_MESSAGE, len(payload) + r.MESSAGE_HEAD_BYTES, channel)
        chunk.data += head
        chunk.data += payload
        self._counts[channel] = self._counts.get(channel, 0) + 1
        low, high = self._range_ns or (time_ns, time_ns)
        self._range_ns = min(low, time_ns), max(high, time_ns)
        if len(chunk.data) >= _CHUNK_BYTES:
            self._end_chunk()

    def _announce(self, channel: int) -> None:
        content = self._records[r.OP_CHANNEL, channel]
        schema_id = struct.unpack_from("<H", content, 2)[0]
        for key in ((r.OP_SCHEMA, schema_id), (r.OP_CHANNEL, channel)):
            if key in self._records and key not in self._announced:
                self._announced.add(key)
                self._chunk.data += record(key[0], self._records[key])

    def _end_chunk(self) -> None:
        chunk, self._chunk = self._chunk, _Chunk()
        if not chunk.data:
            return
        stored = compress(self._codec, chunk.data)
        name = "" if self._codec == "none" else self._codec
        begin = self._at
        head = struct.pack("<QQQI", chunk.first_ns, chunk.last_ns, len(chunk.data), zlib.crc32(chunk.data))
        head += _text(name) + struct.pack("<Q", len(stored))
        self._write(struct.pack("<BQ", r.OP_CHUNK, len(head) + len(stored)) + head)
        self._write(stored)
        chunk_bytes, indexes_at = self._at - begin, self._at
        places = []
        for channel, entries in chunk.entries.items():
            places.append((channel, self._at))
            self._write(record(r.OP_MESSAGE_INDEX, struct.pack("<HI", channel, len(entries)) + bytes(entries)))
        self._chunk_indexes.append(
            struct.pack("<QQQQ", chunk.first_ns, chunk.last_ns, begin, chunk_bytes)
            + _map("<HQ", places)
            + struct.pack("<Q", self._at - indexes_at)
            + _text(name)
            + struct.pack("<QQ", len(stored), len(chunk.data))
        )

    def copy(self, kind: int, n_bytes: int, content: Iterable[bytes], index: bytes) -> None:
        """Copy an attachment or metadata record piece by piece; `index`: what the summary says of it."""
        self._end_chunk()
        begin = self._at
        self._write(struct.pack("<BQ", kind, n_bytes))
        for piece in content:
            self._write(piece)
        self._other_indexes[kind].append(struct.pack("<QQ", begin, self._at - begin) + index)

    def close(self) -> None:
        """Write the summary; the file is complete afterwards."""
        if self._file.closed:
            return
        with self._file:
            for channel in self._channels.values():
                self._announce(channel)
            self._end_chunk()
            self._write(record(r.OP_DATA_END, struct.pack("<I", self._crc)))
            self._write_summary()

    def _write_summary(self) -> None:
        summary_at, self._crc = self._at, 0
        offsets = b""
        groups = [
            (r.OP_SCHEMA, [content for (kind, _), content in self._records.items() if kind == r.OP_SCHEMA]),
            (r.OP_CHANNEL, [content for (kind, _), content in self._records.items() if kind == r.OP_CHANNEL]),
            (r.OP_STATISTICS, [self._statistics()]),
            (r.OP_CHUNK_INDEX, self._chunk_indexes),
            (r.OP_ATTACHMENT_INDEX, self._other_indexes[r.OP_ATTACHMENT]),
            (r.OP_METADATA_INDEX, self._other_indexes[r.OP_METADATA]),
        ]
        for kind, contents in groups:
            begin = self._at
            for content in contents:
                self._write(record(kind, content))
            if contents:
                offsets += record(r.OP_SUMMARY_OFFSET, struct.pack("<BQQ", kind, begin, self._at - begin))
        offsets_at = self._at
        self._write(offsets)
        self._write(struct.pack("<BQQQ", r.OP_FOOTER, 20, summary_at, offsets_at))
        self._write(struct.pack("<I", self._crc) + r.MAGIC)

    def _statistics(self) -> bytes:
        first_ns, last_ns = self._range_ns or (0, 0)
        counts = (
            sum(self._counts.values()),
            len(self._schemas),
            len(self._channels),
            len(self._other_indexes[r.OP_ATTACHMENT]),
            len(self._other_indexes[r.OP_METADATA]),
            len(self._chunk_indexes),
        )
        return (
            struct.pack("<QHIIII", *counts)
            + struct.pack("<QQ", first_ns, last_ns)
            + _map("<HQ", sorted(self._counts.items()))
        )
