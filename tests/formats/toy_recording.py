"""A toy recording: topics in a JSON line, then messages in JSON, each behind its time, topic and size.

b"TOYLOG1\\n"  topics as one line of JSON  (time_ns, topic, size, message) …
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import RecordingCorrupt, RecordingError
from penstock.formats import Format
from penstock.recordings import (
    DEFAULT_FETCH_BYTES,
    Block,
    LargestReads,
    OnCorrupt,
    Recording,
    Schema,
    SchemaStore,
    SplitFiles,
    Topic,
)

MAGIC = b"TOYLOG1\n"
FORMAT = Format(
    "toylog",
    "toy log",
    "recording",
    open="tests.formats.toy_recording:ToyRecording",
    suffixes=(".toylog",),
    magics=(MAGIC,),
)
_RECORD = struct.Struct("<qHI")


def write(path: Path, topics: dict[str, str], messages: Sequence[tuple[int, str, Any]]) -> Path:
    """`topics`: name → type; messages: (time, topic, what JSON can hold)."""
    names = list(topics)
    with path.open("wb") as file:
        file.write(MAGIC + json.dumps(topics).encode() + b"\n")
        for time_ns, topic, message in messages:
            payload = json.dumps(message).encode()
            file.write(_RECORD.pack(time_ns, names.index(topic), len(payload)) + payload)
    return path


class ToyRecording(Recording):
    """The index is made by one pass over the heads of the messages."""

    kind: ClassVar[str] = FORMAT.kind

    def __init__(self, source: SplitFiles, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, schemas=SchemaStore(), on_corrupt=on_corrupt)
        self.size_bytes = self.path.stat().st_size
        self._file = self.path.open("rb")
        try:
            self._file.seek(len(MAGIC))
            topics = json.loads(self._file.readline())
            self._index = [np.array(each, np.int64).reshape(-1, 3) for each in self._scan(len(topics))]
        except BaseException:
            self.close()
            raise
        counts = [len(index) for index in self._index]
        self._set_topics(
            [
                (name, "json", Schema(type_, "none", ""), n)
                for (name, type_), n in zip(topics.items(), counts, strict=True)
            ]
        )
        times = np.concatenate([index[:, 0] for index in self._index])
        self.start_ns, self.end_ns = (int(times.min()), int(times.max())) if len(times) else (0, 0)

    def _scan(self, topics: int) -> list[list[tuple[int, int, int]]]:
        """(time, offset, size) of every message, by topic."""
        found: list[list[tuple[int, int, int]]] = [[] for _ in range(topics)]
        while head := self._file.read(_RECORD.size):
            at = self._file.tell()
            if len(head) < _RECORD.size or at + _RECORD.unpack(head)[2] > self.size_bytes:
                raise RecordingCorrupt("the last message is cut", path=str(self.path), offset=at)
            time_ns, topic, size = _RECORD.unpack(head)
            found[topic].append((time_ns, at, size))
            self._file.seek(size, 1)
        return found

    @property
    def index_bytes(self) -> int:
        return sum(each.nbytes for each in self._index)

    def largest_reads(self, topics: Sequence[Topic]) -> LargestReads:
        return LargestReads(max((int(self._index[each.id][:, 2].max(initial=0)) for each in topics), default=0))

    def close(self) -> None:
        self._file.close()

    def times_ns(self, topic: Topic) -> NDArray[np.int64]:
        return self._index[topic.id][:, 0].copy()

    def fetch(
        self,
        topic_ids: NDArray[np.int32],
        numbers: NDArray[np.int64],
        *,
        memory_bytes: int = DEFAULT_FETCH_BYTES,
        clip_bytes: int | None = None,
    ) -> Iterator[Block]:
        self._check_request(topic_ids, numbers)
        done_bytes = 0
        for place, (topic, number) in enumerate(zip(topic_ids.tolist(), numbers.tolist(), strict=True)):
            if self._file.closed:
                raise RecordingError(f"{self.path}: the recording was closed")
            _, at, size = self._index[topic][number].tolist()
            self._file.seek(at)
            payload = self._file.read(size if clip_bytes is None else min(size, clip_bytes))
            done_bytes += len(payload)
            yield Block(place, [memoryview(payload)], done_bytes)
