"""One pass over batches that an engine process makes: requests in order, and each batch taken when it is complete.

Everything happens in the thread that asks for a batch: no thread of this process takes Python's lock from the training.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock._src.load.engine.job import BatchJob, Failure
from penstock._src.load.engine.source import SampleSource
from penstock._src.load.epoch import PlannedBatch
from penstock._src.load.process.channel import ChannelClosed, ChannelMessage, Kind
from penstock._src.load.process.packing import unpack
from penstock.errors import BudgetExceeded, PenstockError

if TYPE_CHECKING:
    from penstock._src.load.process.engine import ProcessEngine

_POLL_S = 0.0


@dataclass(frozen=True)
class _Request:
    """A batch that the engine was asked for."""

    number: int
    planned: PlannedBatch
    slot: int


class CompleteBatch(NamedTuple):
    """A batch that is complete, and the slot that it lies in."""

    job: BatchJob
    slot: int


class NotReady:
    """No batch is complete yet."""


NOTHING = NotReady()


class ProcessPass:
    """Jobs in order, epoch after epoch, as a pass of the thread engine gives them."""

    def __init__(
        self,
        engine: ProcessEngine,
        plan: Iterator[PlannedBatch | None],
        sources: Sequence[SampleSource],
        grow: weakref.WeakMethod[Callable[[], None]],
    ) -> None:
        self._engine, self._plan, self.sources, self._grow = engine, plan, sources, grow
        self._pid = os.getpid()
        self._requests: deque[_Request | None] = deque()  # None: an epoch ends
        self._ahead: PlannedBatch | None = None  # planned, but there was no slot for it
        self._waits_for_last = False  # the next epoch begins when the last batch of this one is taken
        self._done: deque[ChannelMessage] = deque()
        self._is_held = False
        self._take_lock = threading.Lock()
        self._over = False
        self._epoch = -1
        self._request()

    def next(self) -> BatchJob | None:
        """The next batch, complete; None at the end of an epoch, and where all has ended."""
        complete = self.take(wait=True)
        if complete is None:
            return None
        assert not isinstance(complete, NotReady)
        job, lease = complete.job, self._engine.slots.lease(complete.slot)
        job.arrays = {name: array[: job.size] for name, array in lease.arrays.items()}
        lease.drop()
        return job

    def take(self, wait: bool) -> CompleteBatch | NotReady | None:
        """As `next`, but the caller gives the slot back by `release`. Without `wait`: NOTHING where the next batch is
        not complete."""
        if self._pid != os.getpid():
            raise PenstockError("a pass of a loader cannot be used in a forked child", hint="call iter(loader) there")
        with self._take_lock:
            if self._over:
                return None
            self._request()
            if not self._requests:
                if not wait:
                    return NOTHING
                self._find_slot()
            request = self._requests[0]
            if request is None:
                self._requests.popleft()
                return None
            message = self._receive(request, wait)
            if message is None:
                return None if self._over else NOTHING
            self._requests.popleft()
            self._engine.count_done()
            if request.planned.is_last:
                self._waits_for_last = False
            complete = CompleteBatch(self._job(request, message), request.slot)
            self._request()
            return complete

    def release(self, slot: int) -> None:
        """Nobody reads the slot of a batch any more."""
        self._engine.slots.give_back(slot)

    @property
    def engine(self) -> ProcessEngine:
        return self._engine

    # Requests

    def _request(self) -> None:
        """Ask for as many batches as there are free slots."""
        if self._is_held and self._requests:
            return
        while not self._waits_for_last:
            planned = self._ahead if self._ahead is not None else next(self._plan)
            if planned is None:
                self._requests.append(None)
                continue
            slot = self._engine.slots.take_free()
            if slot is None:
                self._ahead = planned
                return
            self._ahead = None
            request = _Request(self._engine.next_number(), planned, slot)
            self._requests.append(request)
            if planned.is_last:  # what this epoch puts into a view is there before the next one begins
                self._waits_for_last = True
                next(self._plan)
                self._requests.append(None)
            self._send(request)

    def _send(self, request: _Request) -> None:
        planned, channel = request.planned, self._engine.channel
        first, stop = planned.first, planned.stop
        if channel is not None:
            try:
                channel.send(Kind.MAKE, request.number, planned.epoch, first, stop, request.slot)
            except ChannelClosed:
                pass  # it is requested again when the engine is started again

    def _find_slot(self) -> None:
        """Every slot is held by arrays that the user's code still has, or by an uncollected cycle."""
        grow = self._grow()
        try:
            if grow is not None:
                grow()
            self._request()
        except BudgetExceeded:
            gc.collect()
            self._request()
            if not self._requests:
                raise

    # Answers

    def _receive(self, request: _Request, wait: bool) -> ChannelMessage | None:
        while True:
            try:
                message = self._next_message(wait)
            except ChannelClosed:
                if self._over:
                    return None
                self._restart()
                continue
            if message is None or self._over:
                return None
            if message.kind == Kind.DEVICE:
                self._engine.map_device_slot(message.numbers[0], message.payload)
                continue
            if message.numbers[0] != request.number:
                continue  # of a pass that has ended
            if message.kind == Kind.ERROR:
                self._over = True
                raise unpack(message.payload)
            return message

    def _next_message(self, wait: bool) -> ChannelMessage | None:
        """The next message."""
        if self._done:
            return self._done.popleft()
        if self._engine.channel is None:
            raise ChannelClosed
        self._read_all()
        if self._done:
            return self._done.popleft()
        return self._engine.channel.receive(None) if wait else None

    def _read_all(self) -> None:
        """All messages that have come already."""
        if self._engine.channel is None:
            return
        try:
            while (message := self._engine.channel.receive(_POLL_S)) is not None:
                self._done.append(message)
        except ChannelClosed:
            pass  # the next wait notices it

    def _restart(self) -> None:
        self._done.clear()
        left = [request for request in self._requests if request is not None]
        try:
            self._engine.restart(len(left))
        except BaseException:
            self._over = True
            raise
        self.begin_epoch(self._epoch)
        for request in left:
            self._send(request)

    def _job(self, request: _Request, message: ChannelMessage) -> BatchJob:
        planned = request.planned
        job = BatchJob(planned.stop - planned.first, {}, {})
        _, job.hits, job.made, job.decoded_there, *_ = message.numbers
        job.epoch, job.after, job.is_last = planned.epoch, planned.after, planned.is_last
        if message.payload:
            job.texts, lost, self._engine.view_counts = unpack(message.payload)
            job.failures = [Failure(self.sources[number], *rest) for number, *rest in lost]
        return job

    # As a pass

    def begin_epoch(self, epoch: int) -> None:
        """The user begins it: what was made for it ahead counts from now on."""
        self._epoch = epoch
        if self._engine.channel is not None:
            try:
                self._engine.channel.send(Kind.EPOCH, epoch)
            except ChannelClosed:
                pass  # its profile begins with the next epoch

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        return self._over

    @property
    def depth(self) -> int:
        """Batches that are complete."""
        return len(self._done)

    @property
    def n_complete(self) -> int:
        """Batches that lie ready."""
        with self._take_lock:
            self._read_all()
            return len(self._done)

    @property
    def is_resting(self) -> bool:
        """Whether it is held back, and nothing is under way."""
        complete = self.n_complete
        return self._is_held and complete == sum(request is not None for request in self._requests)

    def hold(self, is_held: bool) -> None:
        """Ask for no further batch as long as some are ready, or go on."""
        self._is_held = is_held

    def cancel(self) -> None:
        """Let a thread that waits in `next` go: nothing more will come."""
        self._over = True
        channel = self._engine.channel
        if channel is not None and self._pid == os.getpid():
            try:
                channel.send(Kind.CANCEL, 0)  # its answer wakes the waiting thread
            except ChannelClosed:
                pass

    def is_own(self, thread: threading.Thread) -> bool:
        """Whether it is one of the threads that make the batches: they are in another process."""
        return False

    def close(self) -> None:
        """End it, and wait until the engine has released the slots; more than once is fine."""
        if self._pid != os.getpid() or self._engine.channel is None:
            self._over = True
            return
        if not self._over:
            self.cancel()
        with self._take_lock:
            self._done.clear()
            requests, self._requests = self._requests, deque()
            if not requests:
                return
            try:
                self._engine.cancel()
            finally:
                for request in requests:
                    if request is not None:
                        self._engine.slots.give_back(request.slot)
