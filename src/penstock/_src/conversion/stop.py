"""Ctrl-C: once ends the job at the next safe place, twice ends it now; either way it can be resumed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType

from penstock.errors import Interrupted

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Handles SIGINT and SIGTERM while it is entered; outside of the main thread it does nothing."""

    def __init__(self) -> None:
        self.is_requested = False
        self.also_check: Callable[[], None] | None = None  # raises what went wrong beside the conversion
        self._before: dict[signal.Signals, object] = {}

    def check(self) -> None:
        """Called at places where nothing is half done that could not be dropped."""
        if self.is_requested:
            raise Interrupted("interrupted")
        if self.also_check is not None:
            self.also_check()

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for each in _SIGNALS:
                self._before[each] = signal.signal(each, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.is_requested:
            raise KeyboardInterrupt
        self.is_requested = True
