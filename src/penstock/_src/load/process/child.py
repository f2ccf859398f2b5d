"""The engine process: takes requests for batches, builds them in shared slots, and says when each is complete.

It is started as a command of its own and knows nothing of the user's script. It ends when the training process ends,
however that ends: it watches that process itself, for a forked child of it may hold the other end of the channel.
"""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock._src.formats.format import load
from penstock._src.load.engine.job import BatchJob, EpochRecords
from penstock._src.load.engine.remote import allow_ahead
from penstock._src.load.engine.slots import Slot
from penstock._src.load.engine.source import ImageColumn, SampleSource, sources_of
from penstock._src.load.engine.stages import SLOT
from penstock._src.load.engine.thread_pool import Listen, ThreadPool
from penstock._src.load.epoch import job_in, start_job
from penstock._src.load.process.channel import Channel, ChannelClosed, ChannelMessage, Kind
from penstock._src.load.process.packing import pack, pack_error, unpack
from penstock._src.load.process.row_marks import RowMarks, guard_source
from penstock._src.load.process.slots import slot_memory
from penstock._src.load.process.spec import EngineSpec, EngineStart, ViewCounts, outputs_of
from penstock._src.load.sampling.position_map import PositionMap
from penstock._src.profile.record.spans import span
from penstock._src.system.memory import anonymous_bytes

if TYPE_CHECKING:
    from penstock._src.load.process.device_images import DeviceImages

IsOrphaned = Callable[[], bool]
"""Whether the training process has ended."""

_SWITCH_S = 0.0005  # threads that read bytes soon make way for the one that decodes on the device
_PARENT_LOOK_S = 1.0  # how often it checks the training process where the system sends no event


class EngineLoop:
    """What engine processes have in common: slots, threads, and taking one message after the other."""

    def __init__(self, threads: int, start: EngineStart, channel: Channel) -> None:
        self._channel = channel
        self._one_by_one, self._threads = start.one_by_one, threads
        self._slots: dict[int, Slot] = {}

    def serve(self, is_orphaned: IsOrphaned) -> None:
        """Take requests until the training process closes its end, or is gone."""
        self._start_pool()
        while self._hear(waits=True) or not is_orphaned():
            pass

    def _start_pool(self, listen: Listen | None = None) -> None:
        self._pool = ThreadPool(0, listen)
        self._pool.grow(1 if self._one_by_one else self._threads)  # who listens finds the pool

    def _count_batch(self) -> None:
        """A batch is over: behind those that a single thread makes, all threads work."""
        if self._one_by_one:
            self._one_by_one -= 1
            if not self._one_by_one:
                self._pool.grow(self._threads)

    def _hear(self, waits: bool) -> bool:
        """Take the next message; whether there was one."""
        if waits:
            with self._idle():
                message = self._channel.receive(_PARENT_LOOK_S)
        else:
            message = self._channel.receive(0)
        if message is None:
            return False
        if message.kind == Kind.SLOT:
            number, n_bytes = message.numbers[:2]
            self._slots[number] = Slot(number, slot_memory(message.fd, n_bytes), n_bytes)
            os.close(message.fd)
            self._added(number)
        else:
            self._take(message)
        return True

    def _idle(self) -> AbstractContextManager[object]:
        """What the profile shows while nothing is asked for."""
        return nullcontext()

    def _added(self, slot: int) -> None:
        """There is one slot more."""

    def _take(self, message: ChannelMessage) -> None:
        """Do what is asked for."""


class EngineProcessLoop(EngineLoop):
    """Stores, threads and slots of the engine process of a loader. Its threads take the messages themselves: the one
    that hears of a batch plans it, and begins with its tasks."""

    def __init__(self, spec: EngineSpec, start: EngineStart, marks: RowMarks, channel: Channel) -> None:
        super().__init__(spec.threads, start, channel)
        self._spec = spec
        allow_ahead(spec.ahead_bytes)
        bound = [spec.window.bind(store) for store in spec.stores]
        self._sources = sources_of(bound, spec.shaping, spec.tables_bytes, is_mix=spec.is_mix)
        for number, source in enumerate(self._sources):
            source.views = dict(spec.views[number])
            guard_source(source, number, marks, start.refused)
            source.numbers.fill()
        self._position_map = PositionMap(spec.order, self._sources)
        self._device_images = _device_images(spec)
        self._epoch_records = EpochRecords()
        self._under_way: dict[int, BatchJob] = {}
        self._cancels: deque[int] = deque()  # questions that are answered when no batch is under way
        self._counts, self._counting = _counts_of(self._sources), threading.Lock()
        self._here = ThreadPool(0)  # plans in the thread that hears of a batch
        self._is_orphaned: IsOrphaned = lambda: False
        self._ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._on_device: tuple[int, BatchJob, Any] | None = None  # the batch that the device decodes now
        self._for_device: queue.SimpleQueue[tuple[int, BatchJob]] = queue.SimpleQueue()
        if self._device_images is not None:
            sys.setswitchinterval(_SWITCH_S)
            threading.Thread(target=self._use_device, name="penstock-device", daemon=True).start()

    def serve(self, is_orphaned: IsOrphaned) -> None:
        self._is_orphaned = is_orphaned
        self._start_pool(self._listen)
        error = self._ends.get()
        if error is not None:
            raise error

    def _listen(self, waits: bool) -> bool | None:
        """As `_hear`, in a thread of the pool; None at the end, when `serve` goes on."""
        try:
            if self._hear(waits):
                return True
            if not waits or not self._is_orphaned():
                return False
            self._ends.put(None)
        except BaseException as error:
            self._ends.put(error)
        return None

    def _idle(self) -> AbstractContextManager[object]:
        return span(SLOT) if self._epoch_records.has_begun(0) and not self._under_way else nullcontext()

    def _added(self, slot: int) -> None:
        if self._device_images is not None:
            self._channel.send(Kind.DEVICE, slot, payload=self._device_images.add_slot(slot))

    def _take(self, message: ChannelMessage) -> None:
        numbers = message.numbers
        if message.kind == Kind.MAKE:
            self._begin(*numbers[:5])
        elif message.kind == Kind.EPOCH:
            self._epoch_records.begin(numbers[0])
        elif message.kind == Kind.CANCEL:
            self._cancel(numbers[0])

    def _begin(self, number: int, epoch: int, first: int, stop: int, slot: int) -> None:
        job = job_in(self._slots[slot], self._spec.layout, stop - first, epoch, self._epoch_records)
        if self._device_images is not None:
            job.area = self._device_images.area(slot)
        job.answer = partial(self._filled, number)
        self._under_way[number] = job
        pool, positions = self._pool, range(first, stop)
        job.plan_in(self._here, lambda _: start_job(job, self._position_map, positions, pool, self._is_encoded))

    def _is_encoded(self, column: ImageColumn) -> bool:
        return outputs_of(column) in self._spec.encoded

    def _cancel(self, number: int) -> None:
        """Give up all batches; answered when nothing is written to a slot any more. 0: nothing is given up."""
        if not number:
            self._channel.send(Kind.CANCELLED, number)
            return
        for job in self._under_way.copy().values():
            job.cancel()
        self._cancels.append(number)
        self._answer_cancels()

    def _answer_cancels(self) -> None:
        """Once nothing is under way, whichever thread finds that."""
        while self._cancels and not self._under_way:
            with suppress(IndexError):  # another thread was faster
                self._channel.send(Kind.CANCELLED, self._cancels.popleft())

    # In whatever thread a batch ends

    def _filled(self, number: int, job: BatchJob) -> None:
        """The threads are done with a batch."""
        if self._device_images is None or job.error is not None:
            self._report(number, job)
        else:
            self._for_device.put((number, job))

    def _report(self, number: int, job: BatchJob) -> None:
        """Say that a batch is complete, or what went wrong with it."""
        job.arrays, job.encoded = {}, []
        with _ending_the_process():
            if job.error is not None:
                self._channel.send(Kind.ERROR, number, payload=pack_error(job.error))
            else:
                if job.made or job.failures:
                    self._report_counts()
                self._channel.send(Kind.DONE, number, job.hits, job.made, job.decoded_there, payload=self._rest_of(job))
            del self._under_way[number]
            self._count_batch()
            self._answer_cancels()

    def _rest_of(self, job: BatchJob) -> bytes:
        """Texts and lost rows of a batch, where there are any."""
        if not job.texts and not job.failures:
            return b""
        numbers = {id(source): place for place, source in enumerate(self._sources)}
        lost = [(numbers[id(each.source)], each.column, each.row, each.places, each.error) for each in job.failures]
        return pack((job.texts, lost))

    def _report_counts(self) -> None:
        """Tell of views that have refused rows, or found damaged ones, since the last time."""
        with self._counting:  # the newest are told last
            counts = _counts_of(self._sources)
            if counts != self._counts:
                self._channel.send(Kind.VIEWS, payload=pack(counts))
                self._counts = counts

    # The thread that uses the device

    def _use_device(self) -> None:
        """Decode one batch after the other there, and report each when its images are there."""
        with _ending_the_process():
            while True:
                number, job = self._for_device.get()
                if (done := self._begun_there(number, job)) is not None:
                    self._finish_device_batch()  # the one before: the device works on this one meanwhile
                    self._on_device = (number, job, done)
                if self._on_device is not None and self._for_device.empty():
                    self._finish_device_batch()
                del job

    def _begun_there(self, number: int, job: BatchJob) -> Any:
        """The event after which the images of a batch are on the device; None where they cannot be decoded."""
        assert self._device_images is not None
        try:
            return self._device_images.begin(job, job.slot)
        except BaseException as error:
            self._finish_device_batch()
            job.fail(error)
            self._report(number, job)
            return None

    def _finish_device_batch(self) -> None:
        """Wait for the batch that the device decodes, and report it as complete."""
        if self._on_device is None:
            return
        (number, job, done), self._on_device = self._on_device, None
        done.synchronize()
        self._report(number, job)


@contextmanager
def _ending_the_process() -> Iterator[None]:
    """Nobody would ever hear of a batch whose thread fails: the process ends, and the training starts another one."""
    try:
        yield
    except ChannelClosed:
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _device_images(spec: EngineSpec) -> DeviceImages | None:
    """What decodes the encoded images of a batch on the device; None where there are none."""
    if not spec.encoded:
        return None
    from penstock._src.load.process.device_images import DeviceImages

    return DeviceImages(spec.device, spec.shaping, spec.device_layout, spec.encoded_bytes)


def _counts_of(sources: Sequence[SampleSource]) -> ViewCounts:
    return {
        (number, name): (view.n_refused, view.n_damaged, view.notes)
        for number, source in enumerate(sources)
        for name, view in source.views.items()
    }


def _watch(parent: int, channel: int) -> IsOrphaned:
    """End this process when the training process closes its end of the channel or, where the system tells, is gone. All
    threads may be at work then. The answer is a question: has that process ended?"""
    if os.getppid() != parent:
        os._exit(0)
    waiting = select.poll()
    waiting.register(channel, 0)  # a closed end is reported in any case
    if hasattr(os, "pidfd_open"):
        with suppress(OSError):
            waiting.register(os.pidfd_open(parent), select.POLLIN)
    threading.Thread(target=_exit_with, args=(waiting,), name="penstock-parent", daemon=True).start()
    return lambda: os.getppid() != parent


def _exit_with(waiting: select.poll) -> None:
    waiting.poll()
    os._exit(0)


def main(fd: int, marks_fd: int, parent: int) -> None:
    """The whole life of the process; `fd`: its end of the channel."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the training
    is_orphaned = _watch(parent, fd)
    channel = Channel(socket.socket(fileno=fd))
    code = 0
    try:
        hello = channel.receive()
        assert hello is not None
        try:
            start: EngineStart = unpack(hello.payload)
            engine = load(start.spec.engine)(start.spec, start, RowMarks(marks_fd), channel)
        except BaseException as error:
            channel.send(Kind.FAILED, payload=pack_error(error))
            return
        channel.send(Kind.READY, anonymous_bytes(os.getpid()))
        engine.serve(is_orphaned)
    except ChannelClosed:
        pass  # the loader is closed
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    finally:
        sys.stderr.flush()
        os._exit(code)  # at once: threads may still be working on batches that are not needed any more
