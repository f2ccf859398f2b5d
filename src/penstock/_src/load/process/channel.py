"""Small messages between the training process and its engine: eight numbers, and rarely some bytes or a descriptor."""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from enum import IntEnum
from typing import NamedTuple

from penstock._src.system.files import memory_file, write_all

_HEADER = struct.Struct("<8q")
_INLINE_BYTES = 32 << 10  # a larger payload travels in a memory file: the system limits what one message takes
_MOST_BYTES = _HEADER.size + _INLINE_BYTES
_FD_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)
_FLAGS = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))  # plain numbers: to combine Python's flags takes 2 µs
_FLAGS_AT_ONCE = _FLAGS | int(socket.MSG_DONTWAIT)
_SEND_FLAGS = int(socket.MSG_NOSIGNAL)
_TIME = struct.Struct("@ll")  # seconds and microseconds, as the system has them


class Kind(IntEnum):
    """What a message is about. The numbers that each carries stand beside it."""

    # From the training process
    HELLO = 1  # payload: what the engine works with
    SLOT = 2  # number, bytes; descriptor: the memory of a slot
    MAKE = 3  # sequence number, epoch, first position, one behind the last, slot
    EPOCH = 4  # the epoch that the training has come to
    CANCEL = 5  # number of the question; 0: nothing is given up, the answer wakes who waits
    # From the engine
    READY = 10  # what the engine holds by itself, in bytes
    FAILED = 11  # payload: the error that kept it from starting
    DONE = 12  # sequence number, images copied from views, images decoded, images decoded on the device;
    #            payload, where there is any of it: texts, and rows that were lost
    ERROR = 13  # sequence number; payload: the error
    CANCELLED = 14  # number of the question
    DEVICE = 15  # number of a slot; payload: its memory on the GPU
    VIEWS = 16  # payload: counts of views, where they have changed


class ChannelClosed(Exception):
    """The process on the other side has ended, or has closed its end."""


class ChannelMessage(NamedTuple):
    """One message: up to six numbers, a payload, a descriptor (-1: none) that now belongs to the receiver."""

    kind: int
    numbers: tuple[int, ...]
    payload: bytes = b""
    fd: int = -1


class Channel:
    """One end of a pair of sockets that keep messages whole. Any thread may send; one at a time receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(True)
        self._timeout_s: float | None = None
        self._memory = bytearray(_MOST_BYTES)  # received into: what would be new memory each time costs page faults

    @classmethod
    def pair(cls) -> tuple[Channel, socket.socket]:
        """This process's end, and a socket for the other process."""
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(own), other

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, kind: int, *numbers: int, payload: bytes = b"", fd: int = -1) -> None:
        """Send a message; a descriptor or a large payload is passed on by the system."""
        is_large = len(payload) > _INLINE_BYTES
        if is_large:
            fd = memory_file("penstock-message")
        try:
            if is_large:
                write_all(fd, payload)
            head = _HEADER.pack(kind, *numbers, *[0] * (6 - len(numbers)), -len(payload) if is_large else len(payload))
            ancillary = [] if fd < 0 else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
            parts = [head] if is_large or not payload else [head, payload]
            self._socket.sendmsg(parts, ancillary, _SEND_FLAGS)
        except OSError as error:
            if isinstance(error, ConnectionError) or error.errno == errno.EBADF:  # the latter: closed on this side
                raise ChannelClosed from error
            raise
        finally:
            if is_large:
                os.close(fd)

    def receive(self, timeout_s: float | None = None) -> ChannelMessage | None:
        """The next message; None where none came in time. `timeout_s` None waits for ever."""
        try:
            if timeout_s != 0:
                self._wait_at_most(timeout_s)
            flags = _FLAGS if timeout_s != 0 else _FLAGS_AT_ONCE
            n_bytes, ancillary, _, _ = self._socket.recvmsg_into([self._memory], _FD_BYTES, flags)
        except BlockingIOError:
            return None
        except OSError as error:
            if isinstance(error, ConnectionError) or error.errno == errno.EBADF:
                raise ChannelClosed from error
            raise
        if not n_bytes:
            raise ChannelClosed
        kind, *numbers, size = _HEADER.unpack_from(self._memory)
        fd = array.array("i", ancillary[0][2][:4])[0] if ancillary else -1
        if size >= 0:
            return ChannelMessage(
                kind, tuple(numbers), bytes(self._memory[_HEADER.size : n_bytes]) if size else b"", fd
            )
        try:
            return ChannelMessage(kind, tuple(numbers), os.pread(fd, -size, 0))
        finally:
            os.close(fd)

    def _wait_at_most(self, timeout_s: float | None) -> None:
        """By an option of the socket: asking first whether a message has come takes twice as long."""
        if timeout_s != self._timeout_s:
            seconds = timeout_s or 0.0  # 0: for ever
            value = _TIME.pack(int(seconds), int(seconds % 1 * 1e6))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
            self._timeout_s = timeout_s

    def end(self) -> None:
        """Close it for the other process too, though a forked child may have a copy of this end."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self.close()

    def close(self) -> None:
        self._socket.close()
