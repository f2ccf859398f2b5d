"""How a run ends: SIGTERM is heard as Ctrl-C is, and the profile is kept whatever ends the training."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, FunctionType, TracebackType
from typing import TYPE_CHECKING

from penstock import profile

if TYPE_CHECKING:
    from .train import Trainer

_DEAF_S = 5.0  # `timeout` sends two signals at once: the second must not end what the first one began


class Terminated(KeyboardInterrupt):
    """A batch system or `timeout` asked to stop."""


@contextmanager
def hearing_sigterm() -> Iterator[None]:
    """SIGTERM raises `Terminated` meanwhile; elsewhere than in the main thread nothing changes.

    A signal that comes just as Python clears something away (a weak reference, a `__del__`) is told and forgotten by
    it: such a one, and such a Ctrl-C, comes once more.
    """
    main_thread = threading.main_thread()
    if threading.current_thread() is not main_thread:
        yield
        return
    heard_s = -_DEAF_S
    tell = sys.unraisablehook

    def hear(_number: int, _frame: FrameType | None) -> None:
        nonlocal heard_s
        if time.monotonic() - heard_s >= _DEAF_S:
            heard_s = time.monotonic()
            raise Terminated

    def hear_again(lost: sys.UnraisableHookArgs) -> None:
        nonlocal heard_s
        if lost.exc_type is None or not issubclass(lost.exc_type, KeyboardInterrupt):
            tell(lost)
            return
        heard_s = -_DEAF_S
        number = signal.SIGTERM if issubclass(lost.exc_type, Terminated) else signal.SIGINT
        threading.Thread(target=_resend, args=(number, hear_again), daemon=True).start()

    before = signal.signal(signal.SIGTERM, hear)
    sys.unraisablehook = hear_again
    try:
        yield
    finally:
        sys.unraisablehook = tell
        signal.signal(signal.SIGTERM, before)


def _resend(number: int, hook: FunctionType) -> None:
    """Send a signal to the main thread once the hook has returned: inside it, it would be lost again."""
    main = threading.main_thread().ident or 0
    time.sleep(0.01)
    while _is_running(sys._current_frames().get(main), hook):
        time.sleep(0.01)
    signal.pthread_kill(main, number)


def _is_running(frame: FrameType | None, function: FunctionType) -> bool:
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


class ProfileOut:
    """A context manager that writes the profile of the steps that were trained inside; of none, nothing."""

    def __init__(self, path: Path | None, trainer: Trainer) -> None:
        self._path, self._trainer = path, trainer
        self._begun = trainer.step

    def __enter__(self) -> None:
        if self._path is not None and self._begun and not self._trainer.is_done:
            print(f"note: {self._path} will cover the steps from {self._begun + 1:,} on, not those before", flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._path is None:
            return
        if self._trainer.step == self._begun:
            print(f"note: no step was trained: no profile is written to {self._path}", flush=True)
        elif error is None:
            profile.save(self._path)
        else:
            self._save_beside(self._path)

    def _save_beside(self, path: Path) -> None:
        """After an error, which is the one to be told."""
        try:
            profile.save(path)
        except Exception as failed:
            print(f"note: the profile was not saved either: {failed}", file=sys.stderr)
