"""ROS 2 bags in SQLite files, one file or several as one; times and sizes without reading a payload."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.recordings.db3.file import Db3File, Db3Index
from penstock._src.recordings.db3.salvage import PagedFile
from penstock._src.recordings.fetch import BLOCK_BYTES, BLOCK_MESSAGES, PACKED_NOTE, Block, BufferPool
from penstock._src.recordings.messages.schemas import SchemaStore
from penstock._src.recordings.recording import (
    LargestReads,
    OnCorrupt,
    Recording,
    Topic,
    as_readonly,
    span_of,
)
from penstock._src.recordings.recovery.scan_bytes import FileBytes
from penstock._src.recordings.split import SplitFiles
from penstock._src.recordings.unpack import is_packed, open_content
from penstock._src.system.closing import on_error
from penstock.errors import LimitExceeded, RecordingCorrupt, RecordingError


class Db3Recording(Recording):
    """One or several SQLite files of a ROS 2 bag."""

    kind: ClassVar[str] = "db3"

    def __init__(self, source: SplitFiles, *, on_corrupt: OnCorrupt = "raise") -> None:
        super().__init__(source.path, schemas=SchemaStore(), on_corrupt=on_corrupt)
        self.notes += source.notes
        self._files: list[Db3File | PagedFile] = []
        self._pool: BufferPool | None = None  # serves one request after the other
        with on_error(self.close):
            self._open(source)

    def _open(self, source: SplitFiles) -> None:
        index = Db3Index()
        for path in source.files:
            self.size_bytes += path.stat().st_size
            self._add_file(path, index)
        order = index.topics.in_order()
        rows = index.finish(len(order), len(self._files))
        self._rows = tuple(rows[met] for met, _ in order)
        self._set_topics([(*topic, rows[met].times_ns.size) for met, topic in order])
        used = [topic.times_ns for topic in self._rows if topic.times_ns.size]
        if used:
            self.start_ns = min(int(times.min()) for times in used)
            self.end_ns = max(int(times.max()) for times in used)
        mode = source.metadata.compression_mode
        self._packed_messages = mode == "message" or any(file.packed_messages for file in self._files)
        if self._packed_messages and mode != "message":
            self.notes.append(PACKED_NOTE)
        packed = self._packed_messages or any(file.packed for file in self._files)
        self.compression = span_of({"zstd"} if packed else set())
        self._compare(source)

    def _add_file(self, path: Path, index: Db3Index) -> None:
        """Add a file as SQLite reads it; where it cannot, and losses are counted, page by page."""
        before = index.mark()
        file: Db3File | PagedFile | None = None
        try:
            file = Db3File(path)
            file.add_to(index)
        except (RecordingCorrupt, LimitExceeded) as error:
            if file is not None:
                file.close()
            if self._on_corrupt == "raise":
                raise
            from penstock._src.recordings.db3.salvage import PagedFile
            from penstock._src.recordings.recovery.report import DamageLog

            index.rollback(before)
            source = FileBytes(path, source=open_content(path))
            file = PagedFile(source, DamageLog(file=path.name), packed=is_packed(path))
            file.add_to(index)
            if not file.log.written and not index.topics:
                file.close()
                raise  # nothing of a bag is left
            self.notes.append(f"{path.name}: SQLite cannot read it ({error.message}); it was read page by page")
            file.log.report_to(self._add_loss, self.notes)
        self._files.append(file)

    @property
    def index_bytes(self) -> int:
        return sum(rows.nbytes for rows in self._rows)

    def largest_reads(self, topics: Sequence[Topic]) -> LargestReads:
        sizes = [self._rows[topic.id].size for topic in topics]
        largest = max((int(size.max()) for size in sizes if size.size), default=0)
        # SQLite puts a row together, and Python copies it, before it reaches the buffer.
        return LargestReads(largest, passing_bytes=2 * largest)

    def close(self) -> None:
        self._pool = None  # a caller may keep this recording; its buffers go now
        files, self._files = self._files, []
        for file in files:
            file.close()

    def times_ns(self, topic: Topic) -> NDArray[np.int64]:
        return as_readonly(self._rows[topic.id].times_ns)

    def _blocks(
        self, topic_ids: NDArray[np.int32], numbers: NDArray[np.int64], memory_bytes: int, clip_bytes: int | None
    ) -> Iterator[Block]:
        if self._pool is None or self._pool.limit_bytes != memory_bytes:
            self._pool = BufferPool(memory_bytes)
        pool = self._pool
        block_bytes = max(1, min(BLOCK_BYTES, memory_bytes // 4))
        at, done_bytes = 0, 0
        while at < numbers.size:
            window = slice(at, at + BLOCK_MESSAGES)
            file, row, size = self._locate(topic_ids[window], numbers[window])
            held = size if clip_bytes is None else np.minimum(size, clip_bytes)
            count = max(1, int(np.searchsorted(np.cumsum(held), block_bytes, side="right")))
            part = slice(at, at + count)
            done_bytes += int(held[:count].sum())
            buffer = pool.acquire(int(held[:count].sum()))
            with on_error(partial(pool.give_back, buffer, True)):
                payloads = self._fill(
                    memoryview(buffer), topic_ids[part], numbers[part], file[:count], row[:count], held[:count]
                )
            yield Block(at, payloads, done_bytes, partial(pool.give_back, buffer))
            at += count

    def _locate(
        self, ids: NDArray[np.int32], numbers: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        file, row, size = (np.empty(ids.size, np.int64) for _ in range(3))
        for topic in np.flatnonzero(np.bincount(ids)).tolist():
            is_own = ids == topic
            rows, which = self._rows[topic], numbers[is_own]
            file[is_own] = np.searchsorted(rows.first_of_file, which, side="right") - 1
            row[is_own], size[is_own] = rows.row[which], rows.size[which]
        return file, row, size

    def _fill(
        self,
        view: memoryview,
        ids: NDArray[np.int32],
        numbers: NDArray[np.int64],
        file: NDArray[np.int64],
        row: NDArray[np.int64],
        held: NDArray[np.int64],
    ) -> list[memoryview | None]:
        payloads: list[memoryview | None] = [None] * ids.size
        ends = np.cumsum(held)
        # In the order of the file, whatever the order asked: SQLite then finds each row near the one before.
        for place in np.lexsort((row, file)).tolist():
            n_bytes, end = int(held[place]), int(ends[place])
            target = view[end - n_bytes : end]
            try:
                self._read(int(file[place]), int(row[place]), target)
                payloads[place] = target.toreadonly()
            except (RecordingCorrupt, LimitExceeded) as error:
                if self._on_corrupt == "raise":
                    raise
                topic = self.topics[int(ids[place])]
                self._lose(error.message, topic.name, ids[place : place + 1], numbers[place : place + 1])
        return payloads

    def _read(self, file: int, row: int, target: memoryview) -> None:
        if not self._files:
            raise RecordingError(f"{self.path}: the recording was closed")
        self._files[file].read(row, target)
