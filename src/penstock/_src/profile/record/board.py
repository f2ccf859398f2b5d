"""The board: one piece of shared memory per run, in which every thread of every process owns a page of its own.

It is a memory file without a name, made when something is first recorded: nothing is left when the last process ends.
Children of fork hold it already, those that multiprocessing starts find it through PENSTOCK_PROFILE_BOARD. Other
commands that a process starts are runs of their own, a training that a script launches for instance, unless
PENSTOCK_PROFILE_JOIN tells them to join. What a process wrote stays when it is killed. Only claiming a page is locked;
a page whose thread has ended goes to the next thread, which counts on where it stopped.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from penstock._src.profile.record import layout as at
from penstock._src.system.files import memory_file

VARIABLE = "PENSTOCK_PROFILE_BOARD"
JOIN = "PENSTOCK_PROFILE_JOIN"
# Below this many buffers a process that has ended keeps its own, so that the figures still tell it apart.
_KEPT_BUFFERS = 64
_LOCK_WAIT_S = 5.0
_IMPORTED_NS = time.perf_counter_ns()  # a run begins here: what was measured before its board is made counts


class Entry(NamedTuple):
    """A buffer of the directory: who owns its page, or owned it last."""

    number: int
    state: int
    pid: int
    pid_ticks: int
    thread: str
    process: str


class Board:
    """The shared memory of one run; made once per process, never closed."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.map = mmap.mmap(fd, at.DIRECTORY_BYTES)
        self.words = memoryview(self.map).cast("q")

    @property
    def reset_ns(self) -> int:
        """What ended before this does not count any more."""
        return self.words[at.B_RESET_NS]

    @reset_ns.setter
    def reset_ns(self, value: int) -> None:
        self.words[at.B_RESET_NS] = value

    def claim(self) -> tuple[int, mmap.mmap]:
        """A page for the calling thread: (buffer, its memory); buffer -1 where all are taken or the system refuses."""
        try:
            with self._locked():
                number = self._choose()
                if number >= 0:
                    end = at.BUFFERS_AT + (number + 1) * at.PAGE_BYTES
                    if os.fstat(self.fd).st_size < end:
                        os.ftruncate(self.fd, end)
                    page = mmap.mmap(self.fd, at.PAGE_BYTES, offset=end - at.PAGE_BYTES)
                    self._sign(number)
                    return number, page
        except (OSError, ValueError, TimeoutError):
            pass  # the program that is measured must not fail for it: counted as lost, below
        self.words[at.B_LOST_THREADS] += 1
        return -1, mmap.mmap(-1, at.PAGE_BYTES)

    def release(self, number: int, *, is_full: bool) -> None:
        """The thread that owned a buffer has ended: its page may go to another."""
        self.words[self._entry(number) // at.WORD] = at.FULL if is_full else at.ENDED

    def entries(self) -> list[Entry]:
        """All buffers that were ever claimed."""
        return [self._read(number) for number in range(min(self.words[at.B_BUFFERS], at.MAX_BUFFERS))]

    def _choose(self) -> int:
        """The buffer for the calling thread: one that ended in this process, best of the same name; a new one; once
        there are many, one of a process that has ended. -1 where all are taken."""
        count, own, name = self.words[at.B_BUFFERS], (os.getpid(), pid_ticks(os.getpid())), _thread_name()
        living = {own: True}
        free = []
        for entry in self.entries():
            key = entry.pid, entry.pid_ticks
            if key not in living:
                living[key] = is_alive(*key)
            if entry.state == at.ENDED or not living[key]:
                free.append(entry)
        mine = [each for each in free if (each.pid, each.pid_ticks) == own]
        if mine:
            return min(mine, key=lambda each: (each.thread != name, each.number)).number
        if free and count >= min(_KEPT_BUFFERS, at.MAX_BUFFERS):
            return free[0].number
        return count if count < at.MAX_BUFFERS else -1

    def _sign(self, number: int) -> None:
        thread, process = (at.fit_text(text, at.ENTRY_TEXT_BYTES) for text in (_thread_name(), _process_name()))
        owner = os.getpid(), pid_ticks(os.getpid())
        sizes = len(thread), len(process)
        at.ENTRY.pack_into(self.map, self._entry(number), at.ALIVE, *owner, *sizes, thread, process)
        self.words[at.B_BUFFERS] = max(self.words[at.B_BUFFERS], number + 1)

    def _read(self, number: int) -> Entry:
        *numbers, thread_bytes, process_bytes, thread, process = at.ENTRY.unpack_from(self.map, self._entry(number))
        texts = thread[:thread_bytes], process[:process_bytes]
        return Entry(number, *numbers, *(text.decode("utf-8", "replace") for text in texts))

    @staticmethod
    def _entry(number: int) -> int:
        """Where the entry of a buffer begins."""
        return at.HEADER_BYTES + number * at.ENTRY_BYTES

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among threads and processes. A lock on a file description of its own ends with its holder, also when
        Ctrl-C comes at any moment, after which a lock of Python's might stay taken."""
        fd = os.open(f"/proc/self/fd/{self.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            until = time.monotonic() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > until:
                        raise TimeoutError from None
                    time.sleep(0.0005)
            yield
        finally:
            try:
                # Not only closed: a process that was forked meanwhile holds the same description.
                fcntl.flock(fd, fcntl.LOCK_UN)
            finally:
                os.close(fd)


# Which board this process has


_board: Board | None = None
_making = threading.Lock()


def current_board() -> Board | None:
    """The board of this process, if it has one already."""
    return _board


def open_board() -> Board:
    """The board of this run: the one that this process has, that of the process that started it, or a new one."""
    global _board
    with _making:
        if _board is None:
            _board = _join(_address()) or _create()
            _tell_children(_board)
        return _board


def _address() -> str:
    """Of the board of the run that this process is a part of; empty where it is a run of its own."""
    process = sys.modules.get("multiprocessing.process")
    if process is not None:
        # A child that is just being set up imports the main module before it knows of its parent.
        is_set_up = not getattr(process.current_process(), "_inheriting", False)
        if process.parent_process() is not None or not is_set_up:
            return os.environ.get(VARIABLE, "")
    return os.environ.get(JOIN, "")


def _tell_children(board: Board) -> None:
    # Through this process, not through the first one: that may end before they start.
    os.environ[VARIABLE] = f"{os.getpid()}/{board.fd}/{board.words[at.B_TOKEN]:x}"


def _create() -> Board:
    try:
        fd = memory_file("penstock-profile")
        os.ftruncate(fd, at.BUFFERS_AT)
    except OSError:  # no shared memory to be had: the program that is measured must not fail for it
        fd = -1
    board = Board(fd)
    board.words[at.B_TOKEN] = int.from_bytes(os.urandom(7), "little")
    board.reset_ns = _IMPORTED_NS
    return board


def _join(address: str) -> Board | None:
    """The board at `pid/fd/token`; None where that process has ended or holds something else there."""
    fd = -1
    try:
        pid, number, token = address.split("/")
        fd = os.open(f"/proc/{int(pid)}/fd/{int(number)}", os.O_RDWR | os.O_CLOEXEC)
        if os.fstat(fd).st_size >= at.BUFFERS_AT:
            board = Board(fd)
            if board.words[at.B_TOKEN] == int(token, 16):
                return board
    except (OSError, ValueError):
        pass  # no such process any more: a board of our own is made
    if fd >= 0:
        os.close(fd)
    return None


def _fresh_locks() -> None:
    # Another thread of the parent may have held them at the fork.
    global _making
    _making = threading.Lock()
    if _board is not None:
        _tell_children(_board)


os.register_at_fork(after_in_child=_fresh_locks)


# Processes


def pid_ticks(pid: int) -> int:
    """When a process started, in ticks since boot: tells a reused process number from the first; 0: it has ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, ticks: int) -> bool:
    """Whether the process that started at `ticks` still runs."""
    return ticks != 0 and pid_ticks(pid) == ticks


def _thread_name() -> str:
    """The name of the calling thread, as an entry holds it."""
    return at.fit_text(threading.current_thread().name, at.ENTRY_TEXT_BYTES).decode("utf-8", "replace")


def _process_name() -> str:
    process = sys.modules.get("multiprocessing.process")
    return str(process.current_process().name) if process is not None else "MainProcess"
