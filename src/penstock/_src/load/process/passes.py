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
        self._answers: dict[int, ChannelMessage] = {}
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
        while request.number not in self._answers:
            try:
                is_there = self._receive(wait)
            except ChannelClosed:
                if self._over:
                    return None
                self._restart()
                continue
            if self._over or not is_there:
                return None
        return self._job(request, self._answers.pop(request.number))

    def _receive(self, wait: bool) -> bool:
        """Take the next message; whether there was one. Batches may be complete in another order than asked for."""
        if self._process.channel is None:
            raise ChannelClosed
        message = self._process.channel.receive(None if wait else 0)
        if message is None:
            return False
        if message.kind in (Kind.DONE, Kind.ERROR):
            self._answers[message.numbers[0]] = message  # those of a pass that has ended are never asked for
        else:
            self._process.heard(message)
        return True

    def _restart(self) -> None:
        self._answers.clear()
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
            job.texts, lost = unpack(message.payload)
            job.failures = [Failure(self.sources[number], *rest) for number, *rest in lost]
        return job

    @property
    def n_complete(self) -> int:
        if self._pid != os.getpid():
            return 0  # a forked child: what it read would be missing in its parent
        with self._take_lock:
            with contextlib.suppress(ChannelClosed):  # the next wait notices it
                while self._receive(wait=False):
                    pass
            return sum(request.number in self._answers for request in self._requests)

    def close(self) -> None:
        was_over, self._over = self._over, True
        if self._pid != os.getpid() or self._process.channel is None:
            return
        if not was_over:
            self._tell(Kind.CANCEL, 0)  # its answer wakes a thread that waits in `take`
        with self._take_lock:
            self._answers.clear()
            requests, self._requests = self._requests, deque()
            if not requests:
                return
            try:
                self._process.cancel()
            finally:
                for request in requests:
                    self._slots.give_back(request.slot)
