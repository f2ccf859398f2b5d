"""The memory that a loader's budget is about: anonymous pages and views in RAM, without the page cache of files."""

from __future__ import annotations

import os
import threading
from types import TracebackType

from penstock._src.system.memory import anonymous_bytes, descendants, give_back_freed

_SAMPLE_INTERVAL_S = 0.1  # more often, it would take a fifth of the samples/s that it is to measure


class HeldMeter:
    """The most that this process and its children held between entering and leaving, looked at every 100 ms.

    `shared_bytes`: what views in RAM take besides, whether or not this process has touched their pages.
    """

    def __init__(self, shared_bytes: int = 0) -> None:
        self._shared_bytes = shared_bytes
        self.start_bytes = self.peak_bytes = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> HeldMeter:
        give_back_freed()
        self.start_bytes = self.peak_bytes = self._held_bytes()
        self._thread = threading.Thread(target=self._watch, name="penstock-held", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self.peak_bytes = max(self.peak_bytes, self._held_bytes())

    def _held_bytes(self) -> int:
        children = sum(anonymous_bytes(child) for child in descendants(os.getpid()))
        return self._shared_bytes + anonymous_bytes() + children

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, self._held_bytes())
