"""How long a thread stood in line for a CPU, as the kernel counts it: beside that, what it waited for is storage."""

from __future__ import annotations

import os
import threading

from penstock.profile.record.board import after_fork

_SOURCE = "/proc/thread-self/schedstat"


class _Told:
    """The kernel's word on one thread, kept open: opening it takes longer than reading it."""

    def __init__(self) -> None:
        self._file = -1
        self._file = os.open(_SOURCE, os.O_RDONLY | os.O_CLOEXEC)

    def read_ns(self) -> int:
        return int(os.pread(self._file, 128, 0).split()[1])

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


class _Local(threading.local):
    told: _Told | None = None


_local = _Local()


def queued_ns() -> int:
    """Of the calling thread, since it began; 0 where the kernel does not tell."""
    try:
        told = _local.told
        if told is None:
            told = _local.told = _Told()
        return told.read_ns()
    except (OSError, ValueError, IndexError):
        return 0


def _begin_anew() -> None:
    # What is open speaks of the thread that forked.
    global _local
    _local = _Local()


after_fork(_begin_anew)
