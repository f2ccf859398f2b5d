"""The memory that a loader's budget is about: anonymous pages and views in RAM, without the page cache of files."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from types import TracebackType

from penstock.system.memory import descendants, give_back_freed, rss_bytes

_SAMPLE_INTERVAL_S = 0.02
_ANONYMOUS = re.compile(rb"^RssAnon:\s+(\d+) kB", re.MULTILINE)


def held_bytes(pid: int | str = "self") -> int:
    """Anonymous memory of a process; 0 when it has ended, resident memory where the kernel tells no more."""
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0 if pid != "self" else rss_bytes()
    found = _ANONYMOUS.search(status)
    return int(found[1]) * 1024 if found else (rss_bytes() if pid == "self" else 0)


class HeldMeter:
    """The most that this process and its children held between entering and leaving, looked at every 20 ms.

    `shared_bytes`: what views in RAM take besides, whether or not this process has touched their pages.
    """

    def __init__(self, shared_bytes: int = 0) -> None:
        self._shared_bytes = shared_bytes
        self.start_bytes = self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> HeldMeter:
        give_back_freed()
        self.start_bytes = self.peak_bytes = self._look()
        self._thread = threading.Thread(target=self._watch, name="penstock-held", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.peak_bytes = max(self.peak_bytes, self._look())

    def _look(self) -> int:
        return self._shared_bytes + held_bytes() + sum(held_bytes(child) for child in descendants(os.getpid()))

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, self._look())
