"""Slots for batches that one process builds and another one takes: shared memory without a name, used again.

    lease = pool.lease(layout)                 # in a worker: arrays over one of its slots; None: none can be had
    ticket = pool.hand_over(lease)             # small; travels by pickle
    lease = receive(ticket)                    # in the training process: the same memory

Fresh memory costs a page fault for every 4 KiB, in both processes. A slot is mapped once by each of them.

Every slot is written by one worker and freed by one receiver, so that there is nothing to lock: a byte behind the
batch is set by the worker when it hands the slot over, and cleared by the receiver when the last array of the batch is
gone. A batch that is kept is never overwritten: the worker takes another slot, or makes one. What a killed worker had
goes when the receiver lets go of the process.
"""

from __future__ import annotations

import functools
import mmap
import multiprocessing
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock._src.load.engine.slots import Lease, Slot, SlotLayout
from penstock._src.system.files import memory_file
from penstock.errors import StoreError

_FREE, _HELD, _SPENT = range(3)
"""The byte of a slot. Spent: a process forked meanwhile sees the batch, so that the memory is not used again."""

_STATE_BYTES = 64
_MOST_SLOTS = 64  # of one worker: beyond that, batches are kept rather than used, and each slot takes descriptors
_IDLE_LEASES = 64  # a slot that so many batches did without is given back


@dataclass(frozen=True)
class BatchTicket:
    """A batch on its way: the slot that it lies in, how it is laid out, and which slots its worker has given back."""

    pid: int
    fd: int
    inode: int
    n_bytes: int
    layout: SlotLayout
    given_back: tuple[int, ...]


class _SharedSlot(Slot):
    """A slot in a file without a name, whose last bytes hold its state."""

    def __init__(self, number: int, fd: int, n_bytes: int) -> None:
        super().__init__(number, np.frombuffer(mmap.mmap(fd, n_bytes + _STATE_BYTES), np.uint8), n_bytes)

    @property
    def state(self) -> int:
        return int(self.memory[self.n_bytes])

    @state.setter
    def state(self, value: int) -> None:
        self.memory[self.n_bytes] = value


# The worker


class _OwnSlot(_SharedSlot):
    """A slot of this process, which builds batches in it."""

    def __init__(self, n_bytes: int) -> None:
        self.fd = memory_file("penstock-batch")
        try:
            os.ftruncate(self.fd, n_bytes + _STATE_BYTES)
            super().__init__(os.fstat(self.fd).st_ino, self.fd, n_bytes)
        except BaseException:
            os.close(self.fd)
            raise
        self.root: weakref.ref[NDArray[np.uint8]] | None = None
        self.leased_at = 0

    @property
    def is_held_here(self) -> bool:
        return self.root is not None and self.root() is not None


class SlotPool:
    """The slots of a process that builds batches and hands them over; of one thread that builds, any that hand over."""

    def __init__(self) -> None:
        self._slots: list[_OwnSlot] = []
        self._given_back: list[int] = []
        self._leases = 0

    @staticmethod
    @functools.cache
    def is_possible() -> bool:
        """Whether another process of this user can open what this one has in memory."""
        return hasattr(os, "memfd_create") and os.access(f"/proc/{os.getppid()}/fd", os.R_OK)

    def __len__(self) -> int:
        return len(self._slots)

    def lease(self, layout: SlotLayout) -> Lease | None:
        """A slot to build a batch in; None where there are too many already, all of them held."""
        self._leases += 1
        free = list(self._free())
        fitting = [slot for slot in free if slot.n_bytes >= layout.n_bytes]
        if fitting:
            slot = max(fitting, key=lambda each: each.leased_at)  # its bytes are the likeliest to be in the CPU's cache
        else:
            if free:
                self._give_back(free[0])
            if len(self._slots) >= _MOST_SLOTS:
                return None
            slot = _OwnSlot(layout.n_bytes)
            self._slots.append(slot)
        slot.leased_at = self._leases
        lease = Lease(slot, layout)
        assert lease.root is not None
        slot.root = weakref.ref(lease.root)
        return lease

    def _free(self) -> Iterator[_OwnSlot]:
        """Slots without a holder; those that are spent, or idle for long, are released."""
        for slot in list(self._slots):
            state = slot.state
            if slot.is_held_here or state == _HELD:
                continue
            if state == _SPENT or self._leases - slot.leased_at > _IDLE_LEASES:
                self._give_back(slot)
            else:
                yield slot

    def _give_back(self, slot: _OwnSlot) -> None:
        self._slots.remove(slot)
        self._given_back.append(slot.number)
        os.close(slot.fd)

    def hand_over(self, lease: Lease) -> BatchTicket | None:
        """From now on the slot is the receiver's, until the last array there is gone; None: another one has it."""
        slot = lease.slot
        assert isinstance(slot, _OwnSlot)
        if slot.state != _FREE:
            return None
        slot.state = _HELD
        given_back = tuple(self._given_back)
        del self._given_back[: len(given_back)]
        return BatchTicket(os.getpid(), slot.fd, slot.number, slot.n_bytes, lease.layout, given_back)


# The receiver

_mapped: dict[tuple[int, int], _SharedSlot] = {}
"""Slots of this process's children, by process and inode; each goes with its process, or when it is given back."""

_forks = 0


def receive(ticket: BatchTicket) -> Lease:
    """The batch of a ticket: arrays over the memory that it was built in."""
    _count_forks()
    for inode in ticket.given_back:
        _mapped.pop((ticket.pid, inode), None)
    slot = _mapped.get((ticket.pid, ticket.inode)) or _map(ticket)
    return Lease(slot, ticket.layout, functools.partial(_release, os.getpid(), _forks))


def _map(ticket: BatchTicket) -> _SharedSlot:
    fd = -1
    try:
        fd = os.open(f"/proc/{ticket.pid}/fd/{ticket.fd}", os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_ino != ticket.inode:
            raise FileNotFoundError("it was given back")
        slot = _SharedSlot(ticket.inode, fd, ticket.n_bytes)
    except OSError as error:
        raise StoreError(
            f"a batch in the memory of worker {ticket.pid} cannot be opened, as if the worker had ended: {error}",
            hint="if it was killed because memory ran out, fewer workers or a smaller prefetch_factor need less",
        ) from error
    finally:
        if fd >= 0:
            os.close(fd)
    for process in multiprocessing.active_children():
        if process.pid == ticket.pid:
            key = (ticket.pid, ticket.inode)
            _mapped[key] = slot
            weakref.finalize(process, _mapped.pop, key, None).atexit = False
    return slot


def _release(pid: int, forks: int, slot: Slot) -> None:
    """Called from destructors, in any thread."""
    assert isinstance(slot, _SharedSlot)
    if pid == os.getpid():  # a forked child drops what its parent may still hold
        slot.state = _FREE if forks == _forks else _SPENT


@functools.cache
def _count_forks() -> None:
    """A child sees the batches that its parent holds when it forks, however long; so those slots are not used again."""

    def count() -> None:
        global _forks
        _forks += 1

    os.register_at_fork(before=count)
