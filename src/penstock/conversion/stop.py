"""Ctrl-C: once ends the job at the next safe place, twice ends it now; either way it can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType

from penstock.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Listens to SIGINT and SIGTERM while it is entered; elsewhere than in the main thread it never hears anything."""

    def __init__(self, on_first: Callable[[], None] = lambda: None) -> None:
        self.asked = False
        self._on_first = on_first
        self._before: dict[signal.Signals, object] = {}

    def check(self) -> None:
        """Called at places where nothing is half done that could not be dropped."""
        if self.asked:
            raise Interrupted("interrupted")

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                self._before[each] = signal.signal(each, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._on_first()
