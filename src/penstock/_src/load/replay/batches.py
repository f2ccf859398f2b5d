"""Batches of a replay buffer: transitions by number, filled into slots by threads or by an engine process."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.slots import SlotLayout, Slots
from penstock._src.load.engine.source import Shaping
from penstock._src.load.engine.thread_pool import ThreadPool
from penstock._src.load.process.channel import Channel, ChannelClosed, ChannelMessage, Kind
from penstock._src.load.process.child import EngineLoop
from penstock._src.load.process.engine import ProcessEngine
from penstock._src.load.process.packing import pack_error, unpack
from penstock._src.load.process.row_marks import RowMarks, guard_source
from penstock._src.load.process.slots import SharedSlots
from penstock._src.load.process.spec import EngineStart
from penstock._src.load.replay.columns import ReplayColumns
from penstock._src.load.replay.file import ReplayFile, file_of, fill_batch
from penstock._src.load.views.view import View
from penstock._src.stores.store import Store
from penstock._src.system.budget import Budget, Reservation
from penstock._src.system.units import format_bytes
from penstock.errors import BudgetExceeded


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

    engine: ClassVar[str] = "penstock._src.load.replay.batches:ReplayEngine"
    files: tuple[FileSpec, ...]
    shaping: Shaping
    layout: SlotLayout
    """Of the largest batch: a smaller one takes the first rows of each array."""
    threads: int


def spec_for(files: Sequence[ReplayFile], shaping: Shaping, layout: SlotLayout, threads: int) -> ReplaySpec:
    """The spec of these files."""
    specs = [
        FileSpec(file.store, file.columns, file.count, file.source.numbers.in_memory_bytes, dict(file.source.views))
        for file in files
    ]
    return ReplaySpec(tuple(specs), shaping, layout, threads)


class ReplayEngine(EngineLoop):
    """The side of the engine process: one request after the other, each by all threads."""

    def __init__(self, spec: ReplaySpec, start: EngineStart, marks: RowMarks, channel: Channel) -> None:
        super().__init__(spec.threads, start, channel)
        self._layout = spec.layout
        self._files = [
            file_of(each.store, each.columns, spec.shaping, each.tables_bytes, each.count) for each in spec.files
        ]
        for number, (file, each) in enumerate(zip(self._files, spec.files, strict=True)):
            file.source.views = dict(each.views)
            guard_source(file.source, number, marks, start.refused)
            file.fill()

    def _take(self, message: ChannelMessage) -> None:
        if message.kind == Kind.CANCEL:
            self._channel.send(Kind.CANCELLED, message.numbers[0])
        elif message.kind == Kind.MAKE:
            number, slot = message.numbers[:2]
            samples = np.frombuffer(message.payload, np.int64)
            try:
                fill_batch(self._slots[slot].arrays(self._layout, len(samples)), self._files, samples, self._pool)
            except BaseException as error:
                self._channel.send(Kind.ERROR, number, payload=pack_error(error))
            else:
                self._channel.send(Kind.DONE, number)
            self._count_batch()


class ReplayBatches:
    """The memory of a buffer's batches, which an engine process fills or threads of this process do; one at a time."""

    def __init__(self, budget: Budget, threads: int, is_process: bool) -> None:
        self._budget, self._threads, self._is_process = budget, threads, is_process
        self._slots: Slots | None = None
        self._engine: ProcessEngine | None = None
        self._pool: ThreadPool | None = None
        self._pid = os.getpid()
        self._key: tuple[int, int] = (0, 0)  # files and samples that the slots and the engine were made for

    def sample(
        self, files: Sequence[ReplayFile], draw: Callable[[], NDArray[np.int64]], size: int, shaping: Shaping,
        layout: SlotLayout,
    ) -> dict[str, NDArray[Any]]:  # fmt: skip
        """The arrays of a batch of `size` samples, which are drawn once there is memory for them."""
        if not self._is_made_for(len(files), size):
            self._start(files, shaping, layout)
            self._key = (len(files), size)
        assert self._slots is not None
        try:
            slot = self._free_slot(self._slots)
        except BudgetExceeded:
            if not len(self._slots):
                self._end()  # made for a batch that memory does not hold; a smaller one may fit
            raise
        try:
            if self._engine is not None:
                self._request(self._engine, slot, draw())
            else:
                if self._pool is None:
                    self._pool = ThreadPool(self._threads)
                fill_batch(self._slots[slot].arrays(self._slots.layout, size), files, draw(), self._pool)
        except BaseException:
            if self._engine is not None:
                self._engine.cancel()  # it writes to the slot no more
            self._slots.give_back(slot)
            raise
        return self._slots.arrays(slot, size)

    def _is_made_for(self, n_files: int, size: int) -> bool:
        """Whether slots and engine are there; an engine is not started again for a smaller batch."""
        if self._engine is not None:
            return self._engine.channel is not None and n_files == self._key[0] and size <= self._key[1]
        return self._slots is not None and size == self._key[1]

    def _start(self, files: Sequence[ReplayFile], shaping: Shaping, layout: SlotLayout) -> None:
        """Other slots: for more files, or larger batches. Batches of those before stay whole."""
        self._end()
        if self._is_process:
            slots = SharedSlots(layout, 0)
            self._slots, self._engine = slots, ProcessEngine(spec_for(files, shaping, layout, self._threads), slots)
        else:
            self._slots = Slots(layout, 0)

    def _free_slot(self, slots: Slots) -> int:
        slot = slots.take_free()
        while slot is None:
            n_bytes = slots.layout.n_bytes
            try:
                self._add_slot(slots, self._budget.reserve("batches", n_bytes))
            except BudgetExceeded as error:
                gc.collect()  # a batch may be held by a cycle
                if slots.is_empty and n_bytes > self._budget.free_bytes:
                    raise _batches_held(self._budget, n_bytes, error) from error
            slot = slots.take_free()
        return slot

    def _add_slot(self, slots: Slots, held: Reservation) -> None:
        """One slot more. It counts as long as its memory is there: a batch may be kept while other slots follow."""
        slots.add() if self._engine is None else self._engine.add_slot()
        weakref.finalize(slots[len(slots) - 1].memory, held.release).atexit = False

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
        engine, self._engine, self._slots = self._engine, None, None
        if engine is not None:
            engine.close()

    def close(self) -> None:
        """End the process and the threads; batches that are in use stay whole."""
        self._end()
        if self._pool is not None and self._pid == os.getpid():
            self._pool.close()
        self._pool = None


def _batches_held(budget: Budget, n_bytes: int, error: BudgetExceeded) -> BudgetExceeded:
    """The error where batches that the user's code keeps leave no memory for another one."""
    held = format_bytes(budget.by_name().get("batches", 0))
    return BudgetExceeded(
        f"a batch takes {format_bytes(n_bytes)}, and batches that your code still holds take {held} of "
        f"{format_bytes(budget.limit_bytes)}; {format_bytes(budget.free_bytes)} are free",
        size=error.size,
        limit=error.limit,
        hint="drop or copy batches that you keep, take a smaller batch_size, or give a larger memory=…",
    )
