"""Ctrl-C: once ends the job at the next safe place, twice ends it now; either way it can be resumed."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

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


def resend_signal(number: int, hook: Callable[..., object]) -> None:
    """Send a signal to the main thread once `hook`, the `sys.unraisablehook` that calls this, has returned.

    What a signal handler raises while Python clears something away (a weak reference, a `__del__`) reaches only that
    hook. Inside the hook it would be lost again, however long the hook takes on a busy machine.
    """
    main_thread = threading.main_thread().ident

    def resend() -> None:
        time.sleep(0.01)
        while _is_running(main_thread, hook.__code__):
            time.sleep(0.01)
        signal.pthread_kill(main_thread or 0, number)

    threading.Thread(target=resend, name="penstock-resend", daemon=True).start()


def _is_running(thread: int | None, code: CodeType) -> bool:
    frame = sys._current_frames().get(thread or 0)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame is not None
