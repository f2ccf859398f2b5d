"""Keeps a codec library from making this process a real-time one.

SVT-AV1, run by root, gives its threads and the thread that opens it the highest real-time priority there is. Such a
thread comes before everything else on the machine, children inherit it, and two of them can stop a two-core machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def ordinary_priority() -> Iterator[None]:
    """Threads of this process that become real-time ones within the block are ordinary again behind it."""
    before = _real_time_threads()
    try:
        yield
    finally:
        for thread in _real_time_threads() - before:
            # A thread may end meanwhile, and who was not allowed to be real-time need not be set back.
            with contextlib.suppress(OSError):
                os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


def _real_time_threads() -> set[int]:
    real_time = set()
    for thread in map(int, os.listdir("/proc/self/task")):
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(thread) in (os.SCHED_FIFO, os.SCHED_RR):
                real_time.add(thread)
    return real_time
