"""The live view: stages of the last seconds in a terminal (rich), one line now and then where there is none."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import IO, Any

from penstock._src.profile.record import session
from penstock._src.profile.report.figures import HIGH_WAIT, peak_bytes, stage_rows
from penstock._src.profile.stats import Snapshot, between, sums
from penstock._src.system.units import format_bytes, format_duration_ns, plain

_RECENT = 10  # looks, one a second, that "now" means in the table
_MOST_ROWS = 18
_BAR_COLUMNS = 12
_NAME_COLUMNS = 40
_AROUND = 7  # lines of the table that are no stage


class LiveView:
    """`with profile.live(): train()` shows the stages of the last seconds in the terminal.

    A thread reads the board and shows it. Whatever goes wrong ends the view and not the training.
    """

    def __init__(
        self, *, line_every_s: float = 10.0, stream: IO[str] | None = None, terminal: bool | None = None
    ) -> None:
        self._stream = stream or sys.stderr
        self._is_terminal = self._stream.isatty() if terminal is None else terminal
        self._every_s = 1.0 if self._is_terminal else line_every_s
        # Lines speak of the time since the last line, the table of the last ten seconds.
        self._seen: deque[Snapshot] = deque(maxlen=_RECENT if self._is_terminal else 1)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-live", daemon=True)
        self._table: Any = None

    def __enter__(self) -> LiveView:
        global _streams
        if self._is_terminal:
            from rich.console import Console
            from rich.live import Live

            _streams = sys.stdout, sys.stderr
            # What the training prints goes above the table; auto_refresh would draw from a thread of rich's own.
            self._table = Live(console=Console(file=self._stream, force_terminal=True), auto_refresh=False)
            self._table.start()
        self._thread.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Show the last state once more and leave the terminal as it was."""
        global _streams
        self._stop.set()
        self._thread.join()
        if self._table is not None:
            self._table.stop()
        _streams = None

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.wait(self._every_s)
            try:
                with _drawing:
                    self._show(session.snapshot(events=False))
            except Exception as error:
                if not self._stream.closed:
                    print(f"penstock: the live view ended: {type(error).__name__}: {error}", file=self._stream)
                return

    def _show(self, snapshot: Snapshot) -> None:
        recent = between(self._seen[0], snapshot) if self._seen else snapshot
        self._seen.append(sums(snapshot))
        if self._table is not None:
            self._table.update(live_table(snapshot, recent, self._table.console.size.height), refresh=True)
        else:
            print(live_line(snapshot, recent), file=self._stream, flush=True)


live = LiveView


# A worker that is forked while a table is drawn would hold rich's locks for ever, and prints to the real streams.

_drawing = threading.Lock()
_streams: tuple[Any, Any] | None = None


def _in_child() -> None:
    global _drawing
    _drawing = threading.Lock()
    if _streams is not None:
        sys.stdout, sys.stderr = _streams


os.register_at_fork(
    before=lambda: _drawing.acquire(), after_in_parent=lambda: _drawing.release(), after_in_child=_in_child
)


# What it says


def live_line(snapshot: Snapshot, recent: Snapshot) -> str:
    """One line: the steps of the last while, their data wait, the stage that took most, memory."""
    busiest = max((row for row in stage_rows(recent) if not row.is_wait), key=lambda row: row.self_ns, default=None)
    parts = [text for text, _ in _headline(snapshot, recent)]
    if busiest is not None:
        mean, p95 = format_duration_ns(busiest.mean_ns), format_duration_ns(busiest.p95_ns)
        parts.append(f"most time in {plain(busiest.label)}: {mean} (p95 {p95})")
    return "penstock: " + " · ".join(parts)


def live_table(snapshot: Snapshot, recent: Snapshot, height: int = 40) -> Any:
    """A rich table of the stages of the last seconds below a line about the step."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    # Only the name gives way where there is little room: half a number is a wrong number.
    table.add_column("stage", max_width=_NAME_COLUMNS, no_wrap=True, overflow="ellipsis")
    for title, least in (("mean", 8), ("p95", 8), ("calls/s", 7)):
        table.add_column(title, justify="right", min_width=least, no_wrap=True)
    table.add_column("share of the step", min_width=_BAR_COLUMNS + 8, no_wrap=True)
    rows = stage_rows(recent)
    fitting = max(3, min(_MOST_ROWS, height - _AROUND))
    for row in rows[:fitting]:
        rate = row.count / recent.duration_ns * 1e9 if recent.duration_ns > 0 else 0.0
        cells = (
            plain(row.label),
            format_duration_ns(row.mean_ns),
            format_duration_ns(row.p95_ns),
            f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}",
            "" if row.share is None else f"{_bar(row.share)} {100 * row.share:5.1f} %",
        )
        table.add_row(*map(Text, cells), style="yellow" if row.is_wait else "")
    headline = Text("penstock  ", style="bold cyan")
    for text, style in _headline(snapshot, recent):
        headline.append(text, style=style or "default not bold").append(" · ", style="dim")
    left = f"… and {len(rows) - fitting} stages more" if len(rows) > fitting else ""
    return Group(headline, Text(""), table, Text(left if rows else "no span ended in the last seconds", style="dim"))


def _headline(snapshot: Snapshot, recent: Snapshot) -> list[tuple[str, str]]:
    """What is said of the steps and of memory, with its style."""
    steps, parts = recent.steps, [(f"step {snapshot.steps.count:,}", "")]
    if snapshot.epochs:
        parts.append((f"epoch {snapshot.epochs[-1].epoch} done", ""))
    if steps.total_ns:
        parts.append((f"{format_duration_ns(steps.mean_ns)} per step", ""))
        style = "bold yellow" if steps.wait_share > HIGH_WAIT else "green"
        parts.append((f"data wait {100 * steps.wait_share:.1f} %", style))
    if snapshot.memory:
        last = snapshot.memory[-1]
        now = format_bytes(max(last.rss_bytes, last.tree_pss_bytes))
        parts.append((f"memory {now} (peak {format_bytes(peak_bytes(snapshot))})", ""))
    return parts


def _bar(share: float) -> str:
    whole, part = divmod(round(min(max(share, 0.0), 1.0) * _BAR_COLUMNS * 8), 8)
    return ("█" * whole + (" ▏▎▍▌▋▊▉"[part] if part else "")).ljust(_BAR_COLUMNS)
