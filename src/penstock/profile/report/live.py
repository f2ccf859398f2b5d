"""The live view: stages of the last seconds in a terminal (rich), one line now and then where there is none.

with penstock.profile.live():
    train()
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.profile.record.difference import between, sums
from penstock.profile.report.live_text import live_line, live_table

if TYPE_CHECKING:
    from penstock.profile.snapshot import Snapshot

_FASTEST_S = 0.25  # four times a second: nobody reads faster
_SLOWEST_S = 5.0
_RECENT_S = 10.0  # what "now" means in the table
_CPU_SHARE = 0.005  # of one core, for looking and drawing: the wait grows where that costs more
_JOIN_S = 5.0

_FORK_WAIT_S = 1.0

_open_views: weakref.WeakSet[LiveView] = weakref.WeakSet()
_held = threading.local()  # the views whose drawing waits for a fork of this thread


class LiveView:
    """A thread that reads the board and shows it; it takes no lock that a span takes, and raises nothing."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        *,
        every_s: float = _FASTEST_S,
        line_every_s: float = 10.0,
        stream: IO[str] | None = None,
        terminal: bool | None = None,
    ) -> None:
        for name, value in (("every_s", every_s), ("line_every_s", line_every_s)):
            if not value > 0:
                raise UsageError(f"{name} must be above 0, not {value!r}")
        self._snapshot = snapshot
        self._stream = stream if stream is not None else sys.stderr
        self._is_terminal = self._stream.isatty() if terminal is None else terminal
        self._every_s = max(every_s, _FASTEST_S) if self._is_terminal else line_every_s
        # Lines speak of the time since the last line, the table of the last ten seconds.
        self._seen: deque[Snapshot] = deque(maxlen=int(_RECENT_S) if self._is_terminal else 1)
        self._stop = threading.Event()
        self._drawing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._live: Any = None
        self._streams: tuple[Any, Any] | None = None
        self._failed = False
        self._pid = os.getpid()

    def start(self) -> LiveView:
        """Begin to show; again is harmless."""
        if self._thread is None:
            self._stop.clear()
            self._streams = (sys.stdout, sys.stderr)
            if self._is_terminal:
                self._open_terminal()
            _open_views.add(self)
            atexit.register(self.stop)  # a script that ends without closing it leaves a cursor behind
            self._thread = threading.Thread(target=self._run, name="penstock-live", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Show the last state once more and leave the terminal as it was; again is harmless."""
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._pid:
            return
        self._stop.set()
        thread.join(_JOIN_S)
        _open_views.discard(self)
        atexit.unregister(self.stop)
        with self._drawing:
            if not self._failed:
                self._guarded_show()
            self._close_terminal()

    def __enter__(self) -> LiveView:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        wait_s = self._every_s
        while not self._stop.wait(wait_s):
            began = time.thread_time()
            with self._drawing:
                if self._stop.is_set() or not self._guarded_show():
                    return
            cost_s = time.thread_time() - began
            wait_s = max(self._every_s, min(cost_s / _CPU_SHARE, _SLOWEST_S))

    def _guarded_show(self) -> bool:
        """Show the state; whatever goes wrong ends the view and not the training."""
        try:
            self._show(self._snapshot())
        except Exception as error:
            self._failed = True
            self._close_terminal()
            self._say(f"penstock: the live view ended: {type(error).__name__}: {error}")
            return False
        return True

    def _show(self, snapshot: Snapshot) -> None:
        recent = between(self._seen[0], snapshot) if self._seen else snapshot
        if not self._seen or not self._is_terminal or snapshot.taken_ns - self._seen[-1].taken_ns >= 1_000_000_000:
            self._seen.append(sums(snapshot))
        if self._live is not None:
            self._live.update(live_table(snapshot, recent, *self._live.console.size), refresh=True)
        else:
            self._say(live_line(snapshot, recent))

    def _say(self, text: str) -> None:
        try:
            print(text, file=self._stream, flush=True)
        except (OSError, ValueError):
            self._failed = True  # the stream is closed or its reader gone: there is nobody to tell

    def _open_terminal(self) -> None:
        # All that a drawing needs is loaded here, before the training: our thread must not import while it runs.
        from rich.console import Console
        from rich.live import Live
        from rich.table import Table  # noqa: F401

        console = Console(file=self._stream, force_terminal=True)
        # What the training prints goes above the table; auto_refresh would draw from a thread of rich's own.
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=True, redirect_stderr=True)
        self._live.start()

    def _close_terminal(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            except (OSError, ValueError):
                pass  # the terminal went away: there is nothing to put back

    def _after_fork(self) -> None:
        """In a child: it prints to the real streams, and the view is its parent's."""
        self._drawing = threading.Lock()
        self._live = self._thread = None
        if self._streams is not None:
            sys.stdout, sys.stderr = self._streams


def _before_fork() -> None:
    # A worker that is forked while a table is drawn would hold rich's locks for ever. A terminal that nobody reads may
    # hold a drawing up: then the fork goes on, as it would have without us.
    _held.views = [view for view in list(_open_views) if view._drawing.acquire(timeout=_FORK_WAIT_S)]


def _parent_after_fork() -> None:
    for view in _held.__dict__.pop("views", ()):
        view._drawing.release()


def _child_after_fork() -> None:
    for view in list(_open_views):
        view._after_fork()
    _open_views.clear()
    _held.__dict__.pop("views", None)


os.register_at_fork(before=_before_fork, after_in_parent=_parent_after_fork, after_in_child=_child_after_fork)
