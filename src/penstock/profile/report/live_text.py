"""What the live view says: the table of a terminal, and the line of a log."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from penstock.profile.report.figures import StageRow, peak_bytes, stage_rows, wait_figures
from penstock.system.units import format_bytes, format_duration_ns, plain

if TYPE_CHECKING:
    from penstock.profile.snapshot import Snapshot

_MOST_ROWS = 18
_BAR_COLUMNS = 12
_NAME_COLUMNS = 40
_AROUND = 7  # lines of the table that are no stage
_HIGH_WAIT = 0.1


def live_line(snapshot: Snapshot, recent: Snapshot) -> str:
    """One line: the steps of the last while, their data wait, the stage that took most, memory."""
    parts = [f"step {snapshot.steps.count:,}"]
    wait = wait_figures(recent)
    if wait is not None:
        parts += [f"{format_duration_ns(round(wait.step_ns))} per step", f"data wait {100 * wait.share:.1f} %"]
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

    chosen = [column for column in _COLUMNS if width >= column.from_width]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column in chosen:
        # Only the name gives way where there is little room: half a number is a wrong number.
        table.add_column(
            column.title,
            justify=column.justify,
            min_width=column.width,
            max_width=_NAME_COLUMNS if column is _COLUMNS[0] else None,
            no_wrap=True,
            overflow="ellipsis",
        )
    rows = stage_rows(recent)
    fitting = max(3, min(_MOST_ROWS, height - _AROUND))
    for row in rows[:fitting]:
        style = "yellow" if row.is_wait else ""
        table.add_row(*(Text(column.text(row, recent), style=style or column.style) for column in chosen))
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
    wait = wait_figures(recent)
    if wait is not None:
        line.append(f" · {format_duration_ns(round(wait.step_ns))} per step · {1e9 / wait.step_ns:.1f} steps/s · ")
        line.append(f"data wait {100 * wait.share:.1f} %", style="bold yellow" if wait.share > _HIGH_WAIT else "green")
    if snapshot.memory:
        line.append(f" · {_memory(snapshot)}")
    return line


def _rate(row: StageRow, recent: Snapshot) -> str:
    rate = row.calls / recent.duration_ns * 1e9 if recent.duration_ns > 0 else 0.0
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"


def _per_step(row: StageRow, recent: Snapshot) -> str:
    return format_duration_ns(row.self_ns // recent.steps.count) if recent.steps.count else "–"


def _share(row: StageRow, recent: Snapshot) -> str:
    return "" if row.share is None else f"{_bar(row.share)} {100 * row.share:5.1f} %"


def _bar(share: float) -> str:
    eighths = round(min(max(share, 0.0), 1.0) * _BAR_COLUMNS * 8)
    whole, part = divmod(eighths, 8)
    bar = "█" * whole + (" ▏▎▍▌▋▊▉"[part] if part else "")
    return bar.ljust(_BAR_COLUMNS)


def _memory(snapshot: Snapshot) -> str:
    last = snapshot.memory[-1]
    now = format_bytes(max(last.rss_bytes, last.tree_pss_bytes))
    return f"{now} (peak {format_bytes(peak_bytes(snapshot))})"


class _Column(NamedTuple):
    title: str
    text: Callable[[StageRow, Snapshot], str]
    width: int
    from_width: int = 0
    justify: Literal["left", "right"] = "right"
    style: str = ""


_COLUMNS = (
    _Column("stage", lambda row, recent: plain(row.label), 12, justify="left"),
    _Column("mean", lambda row, recent: format_duration_ns(round(row.mean_ns)), 8),
    _Column("p95", lambda row, recent: format_duration_ns(row.p95_ns), 8),
    _Column("self/step", _per_step, 9, from_width=92),
    _Column("calls/s", _rate, 7, from_width=70),
    _Column("share of the step", _share, _BAR_COLUMNS + 8, from_width=60, justify="left", style="cyan"),
    _Column("where", lambda row, recent: row.where, 19, from_width=115, justify="left", style="dim"),
)
