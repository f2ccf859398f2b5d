"""The engine process of a replay buffer: transitions are requested by number, batches come back in shared slots."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.recycle import batches_held
from penstock._src.load.engine.slots import Lease, Slot, SlotLayout
from penstock._src.load.engine.source import Shaping
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.process.channel import Channel, ChannelClosed, ChannelMessage, Kind
from penstock._src.load.process.engine import ProcessEngine
from penstock._src.load.process.packing import pack_error, unpack
from penstock._src.load.process.row_marks import RowMarks, guard_source
from penstock._src.load.process.slots import SharedSlots
from penstock._src.load.process.spec import EngineStart
from penstock._src.load.replay.columns import ReplayColumns
from penstock._src.load.replay.file import ReplayFile, file_of, fill_batch
from penstock._src.load.views.view import View
from penstock._src.stores.store import Store
from penstock._src.system.budget import Budget
from penstock.errors import BudgetExceeded

_PARENT_POLL_S = 1.0  # how often the engine checks that its parent lives


@dataclass(frozen=True)
class FileSpec:
    """One file of the buffer, as another process opens it."""

    store: Store
    columns: ReplayColumns
    count: int
    tables_bytes: int
    views: Mapping[str, View]


@dataclass(frozen=True)
class ReplaySpec:
    """What makes the batches of a replay buffer."""

    engine: ClassVar[str] = "penstock._src.load.replay.process:ReplayEngine"
    files: tuple[FileSpec, ...]
    shaping: Shaping
    layout: SlotLayout
    """Of the largest batch: a smaller one takes the first rows of each array."""
    threads: int
    encoded: frozenset[tuple[str, ...]] = frozenset()


def spec_for(files: Sequence[ReplayFile], shaping: Shaping, layout: SlotLayout, threads: int) -> ReplaySpec:
    """The spec of these files."""
    specs = [
        FileSpec(file.store, file.columns, file.count, file.source.numbers.in_memory_bytes, dict(file.source.views))
        for file in files
    ]
    return ReplaySpec(tuple(specs), shaping, layout, threads)


class ReplayEngine:
    """The side of the engine process: one request after the other, each by all threads."""

    def __init__(self, spec: ReplaySpec, start: EngineStart, marks: RowMarks, channel: Channel) -> None:
        self._layout, self._channel = spec.layout, channel
        self._files = [
            file_of(each.store, each.columns, spec.shaping, each.tables_bytes, each.count) for each in spec.files
        ]
        for number, (file, each) in enumerate(zip(self._files, spec.files, strict=True)):
            file.source.views = dict(each.views)
            guard_source(file.source, number, marks, start.refused)
            file.fill()
        self._careful, self._threads = start.careful, spec.threads
        self._pool = ThreadPool(1 if start.careful else spec.threads)
        self._slots: dict[int, Slot] = {}

    def serve(self, is_orphaned: Any) -> None:
        """Take requests until the training process closes its end, or is gone."""
        while True:
            message = self._channel.receive(_PARENT_POLL_S)
            if message is not None:
                self._take(message)
            elif is_orphaned():
                return

    def _take(self, message: ChannelMessage) -> None:
        if message.kind == Kind.SLOT:
            number, n_bytes = message.numbers[:2]
            self._slots[number] = Slot(number, mmap.mmap(message.fd, n_bytes), n_bytes)
            os.close(message.fd)
        elif message.kind == Kind.CANCEL:
            self._channel.send(Kind.CANCELLED, message.numbers[0])
        elif message.kind == Kind.MAKE:
            number, slot = message.numbers[:2]
            try:
                self._fill(slot, np.frombuffer(message.payload, np.int64))
            except BaseException as error:
                self._channel.send(Kind.ERROR, number, payload=pack_error(error))
            else:
                self._channel.send(Kind.DONE, number)

    def _fill(self, slot: int, samples: NDArray[np.int64]) -> None:
        if self._careful:
            self._careful -= 1
        elif self._pool.count < self._threads:
            self._pool = ThreadPool(self._threads)
        lease = Lease(self._slots[slot], self._layout)
        arrays = {name: array[: len(samples)] for name, array in lease.arrays.items()}
        fill_batch(arrays, self._files, samples, self._pool)


class ReplayProcess:
    """The side of the training process; any thread may sample, one at a time."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._batches = budget.reserve("batches", 0)
        self._lock = threading.Lock()
        self._engine: ProcessEngine | None = None
        self._key: tuple[int, int] = (0, 0)  # files and samples that the engine was started for

    def sample(
        self, files: Sequence[ReplayFile], draw: Callable[[], NDArray[np.int64]], size: int, shaping: Shaping,
        layout: SlotLayout, threads: int,
    ) -> dict[str, NDArray[Any]]:  # fmt: skip
        """The arrays of a batch of `size` samples, which are drawn once there is memory for them."""
        with self._lock:
            n_files, largest = self._key
            is_alive = self._engine is not None and self._engine.channel is not None
            if not is_alive or n_files != len(files) or largest < size:
                self._start(spec_for(files, shaping, layout, threads))
                self._key = (len(files), size)
            assert self._engine is not None
            engine = self._engine
            slot = self._free_slot(engine)
            try:
                self._request(engine, slot, draw())
            except BaseException:
                engine.cancel()  # it writes to the slot no more
                engine.slots.give_back(slot)
                raise
            return engine.slots.arrays(slot, size)

    def _start(self, spec: ReplaySpec) -> None:
        """Another engine: for more files, or larger batches. Batches of the one before stay whole."""
        self._end()
        self._engine = ProcessEngine(spec, SharedSlots(spec.layout, 0))

    def _free_slot(self, engine: ProcessEngine) -> int:
        slot = engine.slots.take_free()
        while slot is None:
            n_bytes = engine.slots.layout.n_bytes
            try:
                self._batches.resize(self._batches.n_bytes + n_bytes)
                engine.add_slot()
            except BudgetExceeded as error:
                gc.collect()  # a batch may be held by a cycle
                if engine.slots.is_empty:
                    raise batches_held(self._budget, n_bytes, error) from error
            slot = engine.slots.take_free()
        return slot

    def _request(self, engine: ProcessEngine, slot: int, samples: NDArray[np.int64]) -> None:
        """Let the engine fill a slot; one that died is started again."""
        number = next(engine.numbers)
        while True:
            try:
                assert engine.channel is not None
                engine.channel.send(Kind.MAKE, number, slot, payload=samples.tobytes())
                message = engine.channel.receive()
                while message is not None and message.numbers[0] != number:
                    message = engine.channel.receive()
            except ChannelClosed:
                engine.restart(1)
                continue
            assert message is not None
            if message.kind == Kind.ERROR:
                raise unpack(message.payload)
            engine.count_done()
            return

    def take_notes(self) -> list[str]:
        """What happened to the engine since the last call."""
        return [] if self._engine is None else self._engine.take_notes()

    def describe(self) -> dict[str, Any]:
        """Process id, memory and restarts of the engine."""
        return {"kind": "process"} if self._engine is None else self._engine.describe()

    def _end(self) -> None:
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
        self._batches.resize(0)

    def close(self) -> None:
        """End the process; batches that are in use stay whole."""
        with self._lock:
            self._end()
