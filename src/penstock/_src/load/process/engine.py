"""`ProcessEngine`: starts an engine process, starts it again when it dies, and ends it."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import penstock
from penstock._src.load.epoch import BatchRecipe, PlannedBatch
from penstock._src.load.process.channel import Channel, ChannelClosed, ChannelMessage, Kind
from penstock._src.load.process.packing import pack, unpack
from penstock._src.load.process.passes import ProcessPass
from penstock._src.load.process.row_marks import RowMarks, RowRef
from penstock._src.load.process.slots import SharedSlots
from penstock._src.load.process.spec import EngineSpec, EngineStart, Spec, ViewCounts
from penstock._src.profile.record.spans import joining
from penstock._src.system.memory import anonymous_bytes
from penstock.errors import PenstockError

_COMMAND = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from penstock._src.load.process.child import main; main(*map(int, sys.argv[2:]))"
)
_END_S = 5.0  # that an engine has to end by itself once its channel is closed
_IDLE_DEATHS = 3  # in a row, without a batch in between: the same work is not tried again
_MOST_DEATHS = 100
_OTHERS = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
"""Signals from outside: the system when memory runs out, or a user. Others come from a crash."""


class EngineFailed(PenstockError):
    """The engine process cannot be started, or dies again and again."""


class EngineDied(EngineFailed):
    """The engine process has ended before it was ready."""


class ProcessEngine:
    """One engine process at a time, and the memory that it shares with this process."""

    def __init__(self, spec: Spec, slots: SharedSlots) -> None:
        """Start it, and wait until it has opened the stores; raises what keeps it from that."""
        self.slots: SharedSlots = slots
        self.unread_notes: list[str] = []
        """Notes for the user that `take_notes` has not returned yet."""
        self._spec = spec
        self._pid = os.getpid()
        self._marks = RowMarks()
        self._refused: frozenset[RowRef] = frozenset()
        self._suspects: set[RowRef] = set()  # rows that were read when an engine died
        self._idle_deaths = 0
        self._was_one_by_one = False
        self._last_done = self._done = 0
        self.numbers = itertools.count(1)  # of requests: answers to an ended pass are recognised by them
        self.n_deaths = 0
        """How often an engine of this loader has died and another one was started."""
        self.view_counts: ViewCounts = {}
        self.device_slots: dict[int, Any] = {}
        """The memory of slots on the GPU, where the engine decodes images there."""
        self._process: subprocess.Popen[bytes] | None = None
        self.channel: Channel | None = None
        try:
            self._start(one_by_one=0)
        except BaseException:
            self.close()
            raise

    # Starting and ending

    def _start(self, one_by_one: int) -> None:
        channel, other = Channel.pair()
        try:
            data = pack(EngineStart(self._spec, self._refused, one_by_one))
            with other:
                fds = (other.fileno(), self._marks.fd)
                process = subprocess.Popen(
                    [sys.executable, "-c", _COMMAND, _module_paths(), *map(str, fds), str(self._pid)],
                    pass_fds=fds,
                    stdin=subprocess.DEVNULL,
                    env=_environment(),
                    start_new_session=True,  # Ctrl-C at the terminal reaches the training alone
                )
        except BaseException:
            channel.close()
            raise
        self._process, self.channel = process, channel
        self._end = weakref.finalize(self, _end, process, channel, self._pid)
        try:
            channel.send(Kind.HELLO, payload=data)
            message = channel.receive()
            assert message is not None
            if message.kind == Kind.FAILED:
                raise unpack(message.payload)
            for number in range(len(self.slots)):  # not before: with messages unread at its end, its error may be lost
                self._send_slot(number)
        except ChannelClosed:
            raise EngineDied(f"the engine process could not be started: it was {cause_of(self._exit_code())}") from None
        except BaseException:
            self._kill()
            raise
        self._last_done = self._done
        self.device_slots.clear()

    def heard(self, message: ChannelMessage) -> None:
        """What the engine says once, whoever reads it: counts of views, and the memory of a slot on the GPU."""
        if message.kind == Kind.VIEWS:
            self.view_counts = unpack(message.payload)
        elif message.kind == Kind.DEVICE:
            self.map_device_slot(message.numbers[0], message.payload)

    def map_device_slot(self, number: int, payload: bytes) -> None:
        from penstock._src.load.process.device_images import mapped

        try:
            self.device_slots[number] = mapped(payload)
        except RuntimeError:  # an engine that has just ended: the next one says it again
            if self._process is None or self._process.poll() is None:
                raise

    def device_images(self, slot: int, size: int) -> dict[str, Any]:
        """The images of a batch that the engine has decoded on the GPU, copied there."""
        assert isinstance(self._spec, EngineSpec)
        if not self._spec.encoded:
            return {}
        from penstock._src.load.process.device_images import images_of

        return images_of(self.device_slots[slot], self._spec.device_layout, size)

    def _send_slot(self, number: int) -> None:
        assert self.channel is not None
        self.channel.send(Kind.SLOT, number, self.slots.layout.n_bytes, fd=self.slots.fds[number])

    def add_slot(self) -> None:
        """One slot more, for batches that the user's code keeps."""
        number = self.slots.add()
        try:
            self._send_slot(number)
        except ChannelClosed:
            pass  # the next engine gets all of them

    @property
    def pid(self) -> int | None:
        """The process id of the engine that is at work now."""
        return None if self._process is None else self._process.pid

    @property
    def private_bytes(self) -> int:
        """What the engine holds for itself, slots and views not counted."""
        return 0 if self._process is None else anonymous_bytes(self._process.pid)

    def close(self) -> None:
        """End the process; more than once is fine."""
        if self._process is not None:
            self._end()
            self._process = self.channel = None
            self.device_slots.clear()
        self._marks.close()
        self.slots.close()

    # Working

    def count_done(self) -> None:
        """A batch has come: the engine makes progress."""
        self._done += 1

    def cancel(self) -> None:
        """Let the engine drop all that it was asked for; returns when it writes to no slot any more."""
        if self.channel is None:
            return
        number = next(self.numbers)
        try:
            self.channel.send(Kind.CANCEL, number)
            while True:
                message = self.channel.receive()
                assert message is not None
                if message.kind == Kind.CANCELLED and message.numbers[0] == number:
                    return
                self.heard(message)
        except ChannelClosed:
            return  # it has died: it writes no more
        except BaseException:  # Ctrl-C: its answer is not waited for
            self._kill()
            raise

    def _kill(self) -> None:
        """End it at once; the next pass starts another one."""
        assert self._process is not None
        self._process.kill()
        self._end()
        self._process = self.channel = None

    def begin(
        self,
        plan: Iterator[PlannedBatch],
        epoch: int,
        recipe: BatchRecipe,
        grow: weakref.WeakMethod[Callable[[], None]],
    ) -> ProcessPass:
        """A pass over the batches of a plan."""
        if self.channel is None:
            self._start(one_by_one=0)
        return ProcessPass(self, plan, epoch, recipe.sources, grow)

    def restart(self, batches: int) -> None:
        """The engine has died with so many batches under way: start another one, unless it dies of the same again."""
        while True:
            code = self._exit_code()
            self._count_death(code)
            self._note(cause_of(code))
            try:
                self._start(one_by_one=batches if self._was_one_by_one else 0)
                return
            except EngineDied:
                continue  # while it started

    def _count_death(self, code: int) -> None:
        """Count a death, and find out whether one row is to blame; raises where no further try is worth it."""
        self.n_deaths += 1
        is_crash = code >= 0 or signal.Signals(-code) not in _OTHERS
        marked = self._marks.read()
        self._marks.clear()
        is_idle = self._done == self._last_done
        self._idle_deaths = self._idle_deaths + 1 if is_idle else 1
        is_certain = self._was_one_by_one and len(marked) == 1 and marked <= self._suspects
        self._suspects |= marked
        if is_certain and (is_crash or self._idle_deaths > 2):
            self._refused |= marked
            self._idle_deaths = 0
        elif self._idle_deaths >= _IDLE_DEATHS or self.n_deaths > _MOST_DEATHS:
            raise EngineFailed(
                f"the engine process has ended {self.n_deaths} times, the last time: {cause_of(code)}",
                hint='engine="thread" shows where it happens; the system log shows whether memory ran out',
            )
        self._was_one_by_one = is_crash or self._idle_deaths > 1

    def _note(self, cause: str) -> None:
        times = "once" if self.n_deaths == 1 else f"{self.n_deaths} times"
        self.unread_notes.append(
            f"engine: its process was {cause}, and was started again ({times} so far); no sample is lost"
        )

    def take_notes(self) -> list[str]:
        """What has happened since the last call."""
        unread_notes, self.unread_notes = self.unread_notes, []
        return unread_notes

    def describe(self) -> dict[str, Any]:
        """For `stats()`."""
        return {"kind": "process", "pid": self.pid, "private_bytes": self.private_bytes, "restarts": self.n_deaths}

    def _exit_code(self) -> int:
        """Of the process that has closed its end of the channel, once it is gone."""
        assert self._process is not None
        self._end()
        return int(self._process.returncode or 0)


def cause_of(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    if -code == signal.SIGKILL:
        return "killed by SIGKILL, as the system does when memory runs out"
    return f"killed by {signal.Signals(-code).name}"


def _module_paths() -> str:
    """Where this process finds modules, in its order: the engine unpacks classes of the same ones."""
    package = str(Path(penstock.__file__).parent.parent)
    paths = [each or os.getcwd() for each in sys.path]
    return json.dumps(paths if package in paths else [package, *paths])


def _environment() -> dict[str, str]:
    """A part of the same profile; how torch shall allocate memory is a matter of the training. OpenBLAS comes with
    numpy and with cv2, and each starts threads that wait in a busy loop: the engine multiplies no matrices."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTORCH_CUDA_ALLOC_CONF"}
    return {"OPENBLAS_NUM_THREADS": "1", **kept, **joining()}


def _end(process: subprocess.Popen[bytes], channel: Channel, pid: int) -> None:
    if os.getpid() != pid:
        channel.close()
        return  # a forked child: the engine is its parent's
    channel.end()  # which ends the engine
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
