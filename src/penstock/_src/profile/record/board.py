"""The board: one piece of shared memory per run, in which every thread of every process owns a page of its own.

It is a memory file without a name, made when something is first recorded: nothing is left when the last process ends.
Children of fork hold it already, those that multiprocessing starts find it through PENSTOCK_PROFILE_BOARD. Other
commands that a process starts are runs of their own, a training that a script launches for instance, unless
PENSTOCK_PROFILE_JOIN tells them to join. What a process wrote stays when it is killed. Only claiming a page is locked;
a page whose thread has ended goes to another thread, which counts on where it stopped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
import time
from typing import NamedTuple

from penstock._src.profile.record import layout as at
from penstock._src.system.files import memory_file

VARIABLE = "PENSTOCK_PROFILE_BOARD"
JOIN = "PENSTOCK_PROFILE_JOIN"
# Below this many buffers a process that has ended keeps its own, so that the figures still tell it apart.
_KEPT_BUFFERS = 64
_IMPORTED_NS = time.perf_counter_ns()  # a run begins here: what was measured before its board is made counts


class Entry(NamedTuple):
    """A buffer of the directory: who owns its page, or owned it last."""

    number: int
    has_ended: int
    pid: int
    thread: str
    process: str


class Board:
    """The shared memory of one run; made once per process, never closed."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, at.DIRECTORY_BYTES)
        self.words = memoryview(self._map).cast("q")

    @property
    def reset_ns(self) -> int:
        """What ended before this does not count any more."""
        return self.words[at.B_RESET_NS]

    def reset(self, now_ns: int) -> None:
        self.words[at.B_LOST_THREADS] = 0
        self.words[at.B_RESET_NS] = now_ns

    def claim(self) -> tuple[mmap.mmap, int]:
        """A page for the calling thread, and which word says that the thread has ended; 0 where all are taken."""
        with _lock:
            fcntl.lockf(self.fd, fcntl.LOCK_EX)
            try:
                number = self._choose()
                if number < 0:
                    self.words[at.B_LOST_THREADS] += 1
                    return mmap.mmap(-1, at.PAGE_BYTES), 0
                end = at.BUFFERS_AT + (number + 1) * at.PAGE_BYTES
                if os.fstat(self.fd).st_size < end:
                    os.ftruncate(self.fd, end)
                self._sign(number)
            finally:
                fcntl.lockf(self.fd, fcntl.LOCK_UN)
        return mmap.mmap(self.fd, at.PAGE_BYTES, offset=end - at.PAGE_BYTES), _entry_at(number) // at.WORD

    def entries(self) -> list[Entry]:
        """All buffers that were ever claimed."""
        found = []
        for number in range(self.words[at.B_BUFFERS]):
            has_ended, pid, *sizes, thread, process = at.ENTRY.unpack_from(self._map, _entry_at(number))
            texts = thread[: sizes[0]], process[: sizes[1]]
            found.append(Entry(number, has_ended, pid, *(each.decode("utf-8", "replace") for each in texts)))
        return found

    def _choose(self) -> int:
        """A buffer that ended in this process; a new one; once there are many, one of a process that has ended."""
        entries = self.entries()
        free = [each for each in entries if each.has_ended or not os.path.exists(f"/proc/{each.pid}")]
        mine = [each for each in free if each.pid == os.getpid()]
        if mine or (free and len(entries) >= min(_KEPT_BUFFERS, at.MAX_BUFFERS)):
            return (mine or free)[0].number
        return len(entries) if len(entries) < at.MAX_BUFFERS else -1

    def _sign(self, number: int) -> None:
        process = sys.modules.get("multiprocessing.process")
        names = threading.current_thread().name, process.current_process().name if process else "MainProcess"
        thread, of_process = (at.fit_text(str(name), at.ENTRY_TEXT_BYTES) for name in names)
        entry = 0, os.getpid(), len(thread), len(of_process), thread, of_process
        at.ENTRY.pack_into(self._map, _entry_at(number), *entry)
        self.words[at.B_BUFFERS] = max(self.words[at.B_BUFFERS], number + 1)


def _entry_at(number: int) -> int:
    return at.HEADER_BYTES + number * at.ENTRY_BYTES


# Which board this process has


_board: Board | None = None
_lock = threading.Lock()


def current_board() -> Board | None:
    """The board of this process, if it has one already."""
    return _board


def open_board() -> Board:
    """The board of this run: the one that this process has, that of the process that started it, or a new one."""
    global _board
    with _lock:
        if _board is None:
            _board = _join(_address()) or _create()
            # Through this process, not through the first one: that may end before its children start.
            os.environ[VARIABLE] = f"{os.getpid()}/{_board.fd}/{_board.words[at.B_TOKEN]:x}"
        return _board


def _address() -> str:
    """Of the board of the run that this process is a part of; empty where it is a run of its own."""
    process = sys.modules.get("multiprocessing.process")
    # A child that is just being set up imports the main module before it knows of its parent.
    is_child = process and (process.parent_process() or getattr(process.current_process(), "_inheriting", False))
    return os.environ.get(VARIABLE if is_child else JOIN, "")


def _create() -> Board:
    fd = memory_file("penstock-profile")
    os.ftruncate(fd, at.BUFFERS_AT)
    board = Board(fd)
    board.words[at.B_TOKEN] = int.from_bytes(os.urandom(7), "little")
    board.reset(_IMPORTED_NS)
    return board


def _join(address: str) -> Board | None:
    """The board at `pid/fd/token`; None where that process has ended or holds something else there."""
    try:
        pid, number, token = address.split("/")
        board = Board(os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_RDWR | os.O_CLOEXEC))
        return board if board.words[at.B_TOKEN] == int(token, 16) else None
    except (OSError, ValueError):
        return None


def _fresh_lock() -> None:
    # Another thread of the parent may have held it at the fork.
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_fresh_lock)
