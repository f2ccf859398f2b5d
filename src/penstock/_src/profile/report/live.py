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
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from penstock._src.profile.difference import between, sums
from penstock._src.profile.record import session
from penstock._src.profile.report.figures import HIGH_WAIT, peak_bytes, stage_rows
from penstock._src.profile.stats import Snapshot
from penstock._src.system.units import format_bytes, format_duration_ns, plain

_FASTEST_S = 0.25  # four times a second: nobody reads faster
_SLOWEST_S = 5.0
_RECENT_S = 10.0  # what "now" means in the table
_CPU_SHARE = 0.005  # of one core, for looking and drawing: the wait grows where that costs more
_JOIN_S = 5.0
_FORK_WAIT_S = 1.0

_MOST_ROWS = 18
_BAR_COLUMNS = 12
_NAME_COLUMNS = 40
_AROUND = 7  # lines of the table that are no stage

_open_view: LiveView | None = None


def live(**options: Any) -> LiveView:
    """`with profile.live(): train()` shows the stages of the last seconds in the terminal."""
    return LiveView(lambda: session.snapshot(events=False), **options)


class LiveView:
    """A thread that reads the board and shows it; it takes no lock that a span takes, and raises nothing."""

    def __init__(
        self,
        snapshot: Callable[[], Snapshot],
        *,
        line_every_s: float = 10.0,
        stream: IO[str] | None = None,
        terminal: bool | None = None,
    ) -> None:
        self._snapshot = snapshot
        self._stream = stream if stream is not None else sys.stderr
        self._is_terminal = self._stream.isatty() if terminal is None else terminal
        self._every_s = _FASTEST_S if self._is_terminal else line_every_s
        # Lines speak of the time since the last line, the table of the last ten seconds.
        self._seen: deque[Snapshot] = deque(maxlen=int(_RECENT_S) if self._is_terminal else 1)
        self._stop = threading.Event()
        self.drawing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._live: Any = None
        self._streams = sys.stdout, sys.stderr
        self._failed = False
        self._pid = os.getpid()

    def start(self) -> LiveView:
        """Begin to show; again is harmless."""
        global _open_view
        if self._thread is None:
            self._stop.clear()
            self._streams = sys.stdout, sys.stderr
            if self._is_terminal:
                self._open_terminal()
            _open_view = self
            atexit.register(self.stop)  # a script that ends without closing it leaves a cursor behind
            self._thread = threading.Thread(target=self._run, name="penstock-live", daemon=True)
            self._thread.start()
        return self

    def stop(self) -> None:
        """Show the last state once more and leave the terminal as it was; again is harmless."""
        global _open_view
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._pid:
            return
        self._stop.set()
        thread.join(_JOIN_S)
        _open_view = None
        atexit.unregister(self.stop)
        with self.drawing:
            if not self._failed:
                self._show_guarded()
            self._close_terminal()

    def __enter__(self) -> LiveView:
        return self.start()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()

    def _run(self) -> None:
        wait_s = self._every_s
        while not self._stop.wait(wait_s):
            began = time.thread_time()
            with self.drawing:
                if self._stop.is_set() or not self._show_guarded():
                    return
            cost_s = time.thread_time() - began
            wait_s = max(self._every_s, min(cost_s / _CPU_SHARE, _SLOWEST_S))

    def _show_guarded(self) -> bool:
        """Show the state; whatever goes wrong ends the view and not the training."""
        try:
            self._show(self._snapshot())
        except Exception as error:
            self._failed = True
            self._close_terminal()
            self._print(f"penstock: the live view ended: {type(error).__name__}: {error}")
        return not self._failed

    def _show(self, snapshot: Snapshot) -> None:
        recent = between(self._seen[0], snapshot) if self._seen else snapshot
        if not self._seen or not self._is_terminal or snapshot.taken_ns - self._seen[-1].taken_ns >= 1_000_000_000:
            self._seen.append(sums(snapshot))
        if self._live is not None:
            self._live.update(live_table(snapshot, recent, *self._live.console.size), refresh=True)
        else:
            self._print(live_line(snapshot, recent))

    def _print(self, text: str) -> None:
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

    def leave_to_parent(self) -> None:
        """A child of fork prints to the real streams."""
        self._live = self._thread = None
        sys.stdout, sys.stderr = self._streams


_held = threading.local()  # the lock of a view that waits for a fork of this thread


def _before_fork() -> None:
    # A worker that is forked while a table is drawn would hold rich's locks for ever; it is not waited for longer
    # where a terminal that nobody reads holds a drawing up.
    lock = None if _open_view is None else _open_view.drawing
    _held.lock = lock if lock is not None and lock.acquire(timeout=_FORK_WAIT_S) else None


def _parent_after_fork() -> None:
    if _held.lock is not None:
        _held.lock.release()


def _child_after_fork() -> None:
    global _open_view
    if _open_view is not None:
        _open_view.leave_to_parent()
    _open_view = None


os.register_at_fork(before=_before_fork, after_in_parent=_parent_after_fork, after_in_child=_child_after_fork)


# What it says


def live_line(snapshot: Snapshot, recent: Snapshot) -> str:
    """One line: the steps of the last while, their data wait, the stage that took most, memory."""
    parts = [f"step {snapshot.steps.count:,}"]
    steps = recent.steps
    if steps.total_ns:
        parts += [f"{format_duration_ns(round(steps.mean_ns))} per step", f"data wait {100 * steps.wait_share:.1f} %"]
    busiest = max((row for row in stage_rows(recent) if not row.is_wait), key=lambda row: row.self_ns, default=None)
    if busiest is not None:
        mean, p95 = format_duration_ns(round(busiest.mean_ns)), format_duration_ns(busiest.p95_ns)
        parts.append(f"most time in {plain(busiest.label)}: {mean} (p95 {p95})")
    if snapshot.memory:
        parts.append(f"memory {_memory(snapshot)}")
    return "penstock: " + " · ".join(parts)


def live_table(snapshot: Snapshot, recent: Snapshot, width: int = 120, height: int = 40) -> Any:
    """A rich table of the stages of the last seconds below a line about the step; narrow terminals get less of it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    # (title, least width of the terminal, its own least width, style)
    columns: tuple[tuple[str, int, int, str], ...] = (
        ("stage", 0, 12, ""), ("mean", 0, 8, ""), ("p95", 0, 8, ""), ("self/step", 92, 9, ""), ("calls/s", 70, 7, ""),
        ("share of the step", 60, _BAR_COLUMNS + 8, "cyan"), ("where", 115, 19, "dim"),
    )  # fmt: skip
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title, from_width, least, _ in columns:
        if width >= from_width:
            # Only the name gives way where there is little room: half a number is a wrong number.
            table.add_column(
                title, justify="left" if title in ("stage", "share of the step", "where") else "right", min_width=least,
                max_width=_NAME_COLUMNS if title == "stage" else None, no_wrap=True, overflow="ellipsis",
            )  # fmt: skip
    rows = stage_rows(recent)
    places = {row.label: row.where for row in stage_rows(snapshot)}
    fitting = max(3, min(_MOST_ROWS, height - _AROUND))
    for row in rows[:fitting]:
        rate = row.count / recent.duration_ns * 1e9 if recent.duration_ns > 0 else 0.0
        cells = (
            plain(row.label),
            format_duration_ns(round(row.mean_ns)),
            format_duration_ns(row.p95_ns),
            format_duration_ns(row.self_ns // recent.steps.count) if recent.steps.count else "–",
            f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}",
            "" if row.share is None else f"{_bar(row.share)} {100 * row.share:5.1f} %",
            places.get(row.label, ""),
        )
        shown = [pair for pair in zip(cells, columns, strict=True) if width >= pair[1][1]]
        table.add_row(*(Text(cell, style="yellow" if row.is_wait else column[3]) for cell, column in shown))
    parts: list[Any] = [_headline(snapshot, recent), Text(""), table]
    if len(rows) > fitting:
        parts.append(Text(f"… and {len(rows) - fitting} stages more", style="dim"))
    if not rows:
        parts.append(Text("no span ended in the last seconds", style="dim"))
    return Group(*parts)


def _headline(snapshot: Snapshot, recent: Snapshot) -> Any:
    from rich.text import Text

    line = Text()
    line.append("penstock  ", style="bold cyan")
    line.append(f"step {snapshot.steps.count:,}")
    if snapshot.epochs:
        line.append(f" · epoch {snapshot.epochs[-1].epoch} done")
    steps = recent.steps
    if steps.total_ns:
        line.append(f" · {format_duration_ns(round(steps.mean_ns))} per step · {1e9 / steps.mean_ns:.1f} steps/s · ")
        style = "bold yellow" if steps.wait_share > HIGH_WAIT else "green"
        line.append(f"data wait {100 * steps.wait_share:.1f} %", style=style)
    if snapshot.memory:
        line.append(f" · {_memory(snapshot)}")
    return line


def _bar(share: float) -> str:
    whole, part = divmod(round(min(max(share, 0.0), 1.0) * _BAR_COLUMNS * 8), 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[part] if part else "")).ljust(_BAR_COLUMNS)


def _memory(snapshot: Snapshot) -> str:
    last = snapshot.memory[-1]
    now = format_bytes(max(last.rss_bytes, last.tree_pss_bytes))
    return f"{now} (peak {format_bytes(peak_bytes(snapshot))})"
