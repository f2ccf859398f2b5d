"""One pass over batches that an engine process makes: requests in order, and each batch taken when it is complete."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from penstock._src.load.engine.job import BatchJob, Failure
from penstock._src.load.engine.source import SampleSource
from penstock._src.load.epoch import BatchRequest, Pass, PlannedBatch
from penstock._src.load.process.channel import ChannelClosed, ChannelMessage, Kind
from penstock._src.load.process.packing import unpack

if TYPE_CHECKING:
    from penstock._src.load.process.engine import ProcessEngine


class ProcessPass(Pass):
    """Jobs in order, epoch after epoch, as a pass of the thread engine gives them."""

    def __init__(
        self,
        engine: ProcessEngine,
        plan: Iterator[PlannedBatch],
        epoch: int,
        sources: Sequence[SampleSource],
        grow: weakref.WeakMethod[Callable[[], None]],
    ) -> None:
        super().__init__(engine, plan, sources, grow)
        self._process = engine
        self._done: deque[ChannelMessage] = deque()
        self.begin_epoch(epoch)
        self._request()

    def begin_epoch(self, epoch: int) -> None:
        self._epoch = epoch
        self._tell(Kind.EPOCH, epoch)  # where it has died, its profile begins with the next epoch

    def _send(self, request: BatchRequest) -> None:
        planned = request.planned
        self._tell(Kind.MAKE, request.number, planned.epoch, planned.first, planned.stop, request.slot)

    def _tell(self, kind: Kind, *numbers: int) -> None:
        """Send a message; an engine that has died gets its requests when it is started again."""
        if self._process.channel is not None:
            try:
                self._process.channel.send(kind, *numbers)
            except ChannelClosed:
                pass

    # Answers

    def _await(self, request: BatchRequest, wait: bool) -> BatchJob | None:
        while True:
            try:
                message = self._next_message(wait)
            except ChannelClosed:
                if self._over:
                    return None
                self._restart()
                continue
            if message is not None and message.kind == Kind.DEVICE:
                self._process.map_device_slot(message.numbers[0], message.payload)
            elif message is None or self._over:
                return None
            elif message.numbers[0] == request.number:  # others are of a pass that has ended
                return self._job(request, message)

    def _next_message(self, wait: bool) -> ChannelMessage | None:
        """The next message."""
        if self._process.channel is None:
            raise ChannelClosed
        self._read_all()
        if self._done:
            return self._done.popleft()
        return self._process.channel.receive(None) if wait else None

    def _read_all(self) -> None:
        """All messages that have come already."""
        if self._process.channel is None:
            return
        try:
            while (message := self._process.channel.receive(0)) is not None:
                self._done.append(message)
        except ChannelClosed:
            pass  # the next wait notices it

    def _restart(self) -> None:
        self._done.clear()
        try:
            self._process.restart(len(self._requests))
        except BaseException:
            self._over = True
            raise
        self.begin_epoch(self._epoch)
        for request in self._requests:
            self._send(request)

    def _job(self, request: BatchRequest, message: ChannelMessage) -> BatchJob:
        if message.kind == Kind.ERROR:
            self._over = True
            raise unpack(message.payload)
        self._process.count_done()
        job = BatchJob(request.planned.stop - request.planned.first, {}, {})
        _, job.hits, job.made, job.decoded_there, *_ = message.numbers
        if message.payload:
            job.texts, lost, self._process.view_counts = unpack(message.payload)
            job.failures = [Failure(self.sources[number], *rest) for number, *rest in lost]
        return job

    @property
    def n_complete(self) -> int:
        with self._take_lock:
            self._read_all()
            return sum(message.kind in (Kind.DONE, Kind.ERROR) for message in self._done)

    def close(self) -> None:
        was_over, self._over = self._over, True
        if self._pid != os.getpid() or self._process.channel is None:
            return
        if not was_over:
            self._tell(Kind.CANCEL, 0)  # its answer wakes a thread that waits in `take`
        with self._take_lock:
            for message in self._done:
                if message.kind == Kind.DEVICE:
                    with contextlib.suppress(RuntimeError):  # the engine has just ended: its next one says it again
                        self._process.map_device_slot(message.numbers[0], message.payload)
            self._done.clear()
            requests, self._requests = self._requests, deque()
            if not requests:
                return
            try:
                self._process.cancel()
            finally:
                for request in requests:
                    self._slots.give_back(request.slot)
