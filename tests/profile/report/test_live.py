"""The live view: a table in a terminal, lines elsewhere, and a training that it cannot hurt."""

from __future__ import annotations

import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock._src.profile.record import session
from penstock._src.profile.report.live import LiveView, live, live_line, live_table
from penstock._src.profile.stats import Snapshot
from tests.profile.made import MS, empty_run, stats, training_run

_SOON_S = 60.0


@pytest.fixture(autouse=True)
def a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of a usual size that can move its cursor, whatever the tests are run in."""
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


class _Board:
    """Gives snapshots and says how often it was asked; may fail."""

    def __init__(self, snapshot: Snapshot, *, fails_at: int | None = None) -> None:
        self.snapshot, self.fails_at, self.count = snapshot, fails_at, 0
        self.thread_names: set[str] = set()
        self.asked = threading.Event()
        self.enough = threading.Event()

    def __call__(self) -> Snapshot:
        self.count += 1
        self.thread_names.add(threading.current_thread().name)
        self.asked.set()
        if self.count >= 2:
            self.enough.set()
        if self.fails_at is not None and self.count >= self.fails_at:
            raise OSError("the board is gone")
        return self.snapshot


def _view(board: _Board, **options: Any) -> LiveView:
    _boards.append(board)
    return live(**options)


_boards: list[_Board] = []


@pytest.fixture(autouse=True)
def a_board(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(session, "snapshot", lambda *, events: _boards[-1]())
    yield
    _boards.clear()


def _ended(name: str = "penstock-live") -> bool:
    views = [thread for thread in threading.enumerate() if thread.name == name]
    for thread in views:
        thread.join(_SOON_S)  # told to end it is; a view waits only so long for a machine that is slow
    return not any(thread.is_alive() for thread in views)


def test_where_there_is_no_terminal_lines_come_and_the_last_one_at_the_end() -> None:
    board, out = _Board(training_run(30)), io.StringIO()
    with _view(board, line_every_s=0.01, stream=out):
        assert board.enough.wait(_SOON_S)
    lines = out.getvalue().splitlines()
    assert len(lines) == board.count >= 2
    assert lines[0].startswith("penstock: step 30 · ") and "data wait" in lines[0] and "\x1b" not in out.getvalue()
    assert _ended()


def test_even_a_short_run_gets_its_line() -> None:
    board, out = _Board(training_run(5)), io.StringIO()
    with _view(board, line_every_s=3600, stream=out):
        pass
    assert len(out.getvalue().splitlines()) == 1


def test_a_terminal_gets_a_table_and_its_cursor_back() -> None:
    board, out = _Board(training_run(30)), io.StringIO()
    before = sys.stdout, sys.stderr
    with _view(board, stream=out, terminal=True):
        assert board.asked.wait(_SOON_S)
        print("the training says something")
    text = out.getvalue()
    assert "share of the step" in text and "the training says something" in text
    assert text.rindex("\x1b[?25h") > text.index("\x1b[?25l")
    assert (sys.stdout, sys.stderr) == before and _ended()


def test_an_exception_of_the_training_passes_and_the_view_ends() -> None:
    out, before = io.StringIO(), (sys.stdout, sys.stderr)
    with pytest.raises(ZeroDivisionError), _view(_Board(training_run(5)), stream=out, terminal=True):
        raise ZeroDivisionError
    assert out.getvalue().rstrip().endswith("\x1b[?25h") and _ended()
    assert (sys.stdout, sys.stderr) == before


@pytest.mark.parametrize("terminal", [True, False])
def test_a_failing_board_ends_the_view_and_not_the_training(terminal: bool) -> None:
    board, out = _Board(training_run(5), fails_at=1), io.StringIO()
    with _view(board, line_every_s=0.01, stream=out, terminal=terminal):
        assert board.asked.wait(_SOON_S)
    assert out.getvalue().count("the live view ended: OSError: the board is gone") == 1
    assert board.count == 1 and _ended()


def test_a_closed_stream_is_no_matter() -> None:
    out = io.StringIO()
    with _view(_Board(training_run(5)), line_every_s=3600, stream=out):
        out.close()
    assert _ended()


def test_only_its_own_thread_looks_while_it_runs() -> None:
    board = _Board(training_run(5))
    with _view(board, line_every_s=0.01, stream=io.StringIO()):
        assert board.enough.wait(_SOON_S)
        assert board.thread_names == {"penstock-live"}


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # it is what a DataLoader does
def test_a_forked_worker_prints_to_the_real_stream() -> None:
    out, read_end, write_end = io.StringIO(), *os.pipe()
    with _view(_Board(training_run(5)), stream=out, terminal=True), os.fdopen(read_end) as heard:
        stdout = sys.stdout
        child = os.fork()
        if child == 0:  # only what a worker would do, and no way back into the test
            ok = sys.stdout is not stdout and threading.active_count() == 1
            os.write(write_end, b"real" if ok else b"redirected")
            os._exit(0)
        os.close(write_end)
        said = heard.read()
        os.waitpid(child, 0)
        assert sys.stdout is stdout
    assert said == "real"


def _drawn(snapshot: Snapshot, height: int = 40, width: int = 140) -> str:
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=width).print(live_table(snapshot, snapshot, height))
    return out.getvalue()


def test_the_table_shows_stages_and_shares() -> None:
    text = _drawn(training_run(40))
    assert "step 40" in text and "data wait" in text
    row = next(line for line in text.splitlines() if line.startswith("03b_image_decode"))
    assert "█" in row


@pytest.mark.parametrize("width", [80, 140])
def test_a_narrow_terminal_shows_less_but_no_half_number(width: int) -> None:
    lines = _drawn(training_run(40), width=width).splitlines()
    rows = [line for line in lines if " ms" in line and line.startswith(("0", "2"))]
    assert len(rows) >= 8 and all(len(line) <= width for line in lines)
    assert all(row.count("…") <= 1 and not re.search(r"[0-9.]…", row) for row in rows)


def test_the_table_fits_the_terminal() -> None:
    many = Snapshot(spans=tuple(stats(f"stage {n}", [MS]) for n in range(60)))
    assert len(_drawn(many, height=15).splitlines()) <= 15
    assert "and 52 stages more" in _drawn(many, height=15)


@pytest.mark.parametrize("show", [_drawn, lambda snapshot: live_line(snapshot, snapshot)])
def test_a_name_is_neither_markup_nor_a_command(show: Callable[[Snapshot], str]) -> None:
    text = show(Snapshot(spans=(stats("[bold]x[/bold]\x1b[2J", [MS]),)))
    assert r"[bold]x[/bold]\x1b[2J" in text and "\x1b[2J" not in text


def test_an_empty_run_can_be_shown() -> None:
    assert "step 0" in _drawn(empty_run())
    assert live_line(empty_run(), empty_run()) == "penstock: step 0"
