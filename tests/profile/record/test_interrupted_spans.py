"""Signals while a span ends: whatever their handler records or raises, at most the call that it interrupts is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from penstock._src.profile.record import buffer as buffers
from penstock._src.profile.record import layout, spans
from penstock.profile import snapshot, span

N = layout.FOLD_EVERY
ROUNDS = 6  # quarters of the ring: more than the whole of it


class Interrupted(Exception):
    """What the handler of a signal raises."""


class Signal:
    """Stands in for a C call, which serves a signal as it returns: the handler runs at every `every`-th call."""

    def __init__(self, call: Any, handler: Any, every: int) -> None:
        self.call, self.handler, self.every = call, handler, every
        self.calls = 0

    def __call__(self, *args: Any) -> Any:
        found = self.call(*args)
        self.calls += 1
        if self.calls % self.every == 0:
            self.handler()
        return found


def interrupt() -> None:
    raise Interrupted


def counted(name: str) -> int:
    found = snapshot().by_name()
    assert all(sum(calls for _, calls in each.histogram) == each.count for each in found.values())
    return found[name].count if name in found else 0


@pytest.mark.parametrize("every", [1, 7, N // 2, N - 1, N, N + 1])
def test_an_exception_while_an_event_is_written_loses_no_call(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "pack_event", Signal(buffers.pack_event, interrupt, every))
    raised = 0
    for _ in range(ROUNDS * N):
        try:
            with span("a"):
                pass
        except Interrupted:
            raised += 1
    assert raised == ROUNDS * N // every
    assert counted("a") == ROUNDS * N


@pytest.mark.parametrize("every", [3, N - 1, N, N + 1])
def test_a_span_of_a_handler_takes_a_place_of_its_own(every: int, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = [0]

    def handler() -> None:
        if depth[0]:
            return
        depth[0] = 1
        for _ in range(5):
            with span("tick"):
                pass
        depth[0] = 0

    monkeypatch.setattr(spans, "pack_event", Signal(buffers.pack_event, handler, every))
    for _ in range(ROUNDS * N):
        with span("a"):
            pass
    assert counted("a") == ROUNDS * N
    assert counted("tick") >= 5 * (ROUNDS * N // every)


def test_a_span_of_a_handler_that_turns_to_the_next_quarter_first_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    turn, is_handling, ticks = buffers.ThreadBuffer.turn, [False], [0]

    def interrupted(buffer: buffers.ThreadBuffer) -> None:
        if not is_handling[0]:
            is_handling[0] = True
            with span("tick"):
                ticks[0] += 1
            is_handling[0] = False
        turn(buffer)

    monkeypatch.setattr(buffers.ThreadBuffer, "turn", interrupted)
    for _ in range(ROUNDS * N):
        with span("a"):
            pass
    assert (counted("a"), counted("tick")) == (ROUNDS * N, ticks[0]) and ticks[0] >= ROUNDS


def test_an_exception_while_a_quarter_is_folded_loses_the_call_that_it_meets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "add_events", Signal(buffers.add_events, interrupt, 2))
    lost = 0
    for _ in range(2 * ROUNDS * N):
        try:
            with span("a"):
                pass
        except Interrupted:
            lost += 1
    assert ROUNDS <= lost <= 2 * ROUNDS
    monkeypatch.undo()
    assert counted("a") == 2 * ROUNDS * N - lost


def test_an_event_that_was_never_written_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [0]

    def failing(*args: Any) -> None:
        calls[0] += 1
        if calls[0] % 100 == 0:
            raise Interrupted
        buffers.pack_event(*args)

    monkeypatch.setattr(spans, "pack_event", failing)
    lost = 0
    for _ in range(ROUNDS * N):
        try:
            with span("a"):
                pass
        except Interrupted:
            lost += 1
    assert lost == ROUNDS * N // 100
    assert counted("a") == ROUNDS * N - lost


def test_an_exception_while_a_span_begins_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    with span("a"):
        pass
    with monkeypatch.context() as patched:
        patched.setattr(spans, "perf_counter_ns", Signal(spans.perf_counter_ns, interrupt, 1))
        with pytest.raises(Interrupted), span("a"):
            pass
    with span("b"):
        pass
    assert {(each.name, each.path) for each in snapshot().spans} == {("a", ()), ("b", ())}


_RAISING = """
import json, signal
from penstock import profile
from penstock.profile import span
class T(Exception): pass
def handler(*_):
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise T
signal.signal(signal.SIGALRM, handler)
for _ in range(1500):
    with span("a"): pass
profile.reset()
entered = interrupted = 0
for round in range(150):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 + round * 3e-6)
        while True:
            with span("a"): entered += 1
    except T:
        interrupted += 1
print(json.dumps([entered, profile.snapshot().by_name()["a"].count, interrupted]))
"""

_RECORDING = """
import json, signal, time
from penstock import profile
from penstock.profile import span
ticks = 0
def handler(*_):
    global ticks
    ticks += 1
    with span("tick"): pass
signal.signal(signal.SIGALRM, handler)
for _ in range(1500):
    with span("a"): pass
profile.reset()
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
calls = 0
while calls < 50_000 or ticks < 20:  # on a fast machine more calls
    with span("a"): pass
    calls += 1
signal.setitimer(signal.ITIMER_REAL, 0)
found = profile.snapshot().by_name()
print(json.dumps([found["a"].count, calls, found["tick"].count, ticks]))
"""


def message(code: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    return list(json.loads(done.stdout))


def test_a_timer_whose_handler_enters_a_span_is_counted_exactly() -> None:
    counted_calls, calls, recorded, ticks = message(_RECORDING)
    assert (counted_calls, recorded) == (calls, ticks) and ticks >= 20
