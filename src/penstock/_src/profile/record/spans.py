"""`span`, `count`, `gauge`: where the time goes. Nested, per thread, without locks; on the board when the `with` ends.

A span ends in the thread in which it began, and with the span around it at the latest. Across a `yield` other code runs
inside it and its time is counted in it.
"""

from __future__ import annotations

import functools
import inspect
import operator
import os
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from math import inf, isfinite
from time import perf_counter_ns
from typing import Any, TypeVar, cast, overload

from penstock._src.profile.record import layout as at
from penstock._src.profile.record.board import JOIN, VARIABLE, open_board
from penstock._src.profile.record.buffer import SpanNode, ThreadBuffer, pack_event
from penstock.errors import UsageError

SWITCH = "PENSTOCK_PROFILE"
_MAX_KEPT = 4096
_LONGEST_NS = 1 << 56

F = TypeVar("F", bound=Callable[..., Any])


class _LocalBuffer(threading.local):
    """Holds the buffer of the calling thread, once it has one; the buffer ends with the thread."""

    buffer: ThreadBuffer


_local = _LocalBuffer()


def own_buffer() -> ThreadBuffer:
    """The buffer of the calling thread, claimed at its first use."""
    try:
        return _local.buffer
    except AttributeError:  # the first use
        buffer = _local.buffer = ThreadBuffer()
        return buffer


class Span:
    """A name that can be entered, from any thread and again inside itself; also a decorator."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        if not _is_enabled:
            return
        try:
            buffer = _local.buffer
            node = buffer.node.kids[self.name]
        except (KeyError, AttributeError):
            buffer = own_buffer()
            node = buffer.child(self.name)
        # Last: an exception that a signal raises while the clock is read leaves no span open.
        node.start_ns = perf_counter_ns()
        node.child_ns = 0
        buffer.node = node

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        end_ns = perf_counter_ns()
        try:
            buffer = _local.buffer
        except AttributeError:  # entered before a fork, or while profiling was off
            return None
        node = buffer.node
        if node.name is not self.name:
            return buffer.end_through(self.name, end_ns)
        start_ns = node.start_ns
        duration_ns = end_ns - start_ns
        buffer.node = parent = node.parent
        parent.child_ns += duration_ns
        child_ns = node.child_ns
        offset = buffer.offset
        if offset == buffer.limit:
            buffer.turn()
            offset = buffer.offset
        buffer.offset = offset + 32
        tag = buffer.tag = buffer.tag + 4096
        pack_event(buffer.page, offset, start_ns, duration_ns, child_ns, tag + node.number)
        return None

    def __call__(self, function: F) -> F:
        return cast(F, decorate(lambda: self, lambda start, ns: record(self.name, ns, start), function))

    def __repr__(self) -> str:
        return f"span({self.name!r})"


class NoSpan:
    """What `span` gives while profiling is off: nothing happens, and a decorated function stays what it is."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        return None

    def __call__(self, function: F) -> F:
        return function

    def __repr__(self) -> str:
        return "span(off)"


_NO_SPAN = NoSpan()
_spans: dict[Any, Any] = {}
_is_enabled = os.environ.get(SWITCH, "").strip().lower() not in ("0", "off", "false", "no")


@overload
def span(name: str) -> Span | NoSpan: ...
@overload
def span(name: F) -> F: ...
def span(name: Any) -> Any:
    """A context manager and decorator that records how long its body takes, under the spans that are open."""
    try:
        return _spans[name]
    except (KeyError, TypeError):  # new, or without a hash
        return _first(name)


def _first(name: Any) -> Any:
    if not isinstance(name, str):
        return span(getattr(name, "__qualname__", type(name).__name__))(name)
    if not name:
        raise UsageError("span(name): the name is empty", hint='name what is timed: span("decode")')
    made = Span(name) if _is_enabled else _NO_SPAN
    if len(_spans) < _MAX_KEPT:  # names without end must not fill the memory
        _spans[name] = made
    return made


def log_timing(name: str, seconds: float | None = None) -> Any:
    """`with log_timing(name):` is `with span(name):`; with `seconds`, a duration measured elsewhere is recorded.

    Such a duration stands under the spans that are open, but is not taken from their own time. One that is no number
    is not recorded.
    """
    if seconds is None:
        return span(name)
    if _is_enabled and isfinite(value := real_number(seconds, "log_timing(name, seconds)")):
        record(name, round(min(value * 1e9, _LONGEST_NS)))
    return None


def record(name: str, duration_ns: int, start_ns: int | None = None) -> None:
    """Record a call that has ended (now, unless `start_ns` tells) and took `duration_ns`."""
    if _is_enabled:
        duration_ns = min(max(0, duration_ns), _LONGEST_NS)
        begin_ns = perf_counter_ns() - duration_ns if start_ns is None else start_ns
        buffer = own_buffer()
        buffer.write(buffer.child(name).number, begin_ns, duration_ns, 0)


def record_inside(name: str, start_ns: int, duration_ns: int, around: SpanNode | None, known_ns: int) -> None:
    """Record a call that ends now in the open span, `around`, whose children had taken `known_ns` when it began."""
    if _is_enabled:
        buffer = own_buffer()
        node, inner_ns = buffer.node, 0
        if node is around:  # else another thread has asked meanwhile, or a span ended
            inner_ns = min(max(0, node.child_ns - known_ns), duration_ns)
        node.child_ns += duration_ns - inner_ns
        buffer.write(buffer.child(name).number, start_ns, duration_ns, inner_ns)


def record_calls(
    name: str, duration_ns: int, calls: int, *, child_ns: int = 0, under: tuple[str, ...] = (), inside: bool = False
) -> None:
    """Record that many calls that took `duration_ns` together, of which `child_ns` are in their children.

    They stand below the open spans and `under`; a timeline does not show them. `inside`: the open span's own time is
    less by what they took.
    """
    if not _is_enabled or calls < 1:
        return
    buffer = own_buffer()
    here = buffer.node
    for each in under:
        buffer.node = buffer.child(each)
    number = buffer.child(name).number
    buffer.node = here
    if inside:
        here.child_ns += duration_ns
    packed = min(max(child_ns, 0), duration_ns) << at.CALLS_BITS | min(calls, at.CALLS_MASK)
    buffer.write(number, perf_counter_ns() - duration_ns, duration_ns, at.PACKED | packed)


def show(name: str, start_ns: int, duration_ns: int) -> None:
    """Show a stretch of the calling thread in the timeline; it counts nowhere, for `record_calls` does that."""
    if _is_enabled:
        buffer = own_buffer()
        buffer.write(buffer.child(name).number, start_ns, duration_ns, at.PACKED)


# On and off


def is_enabled() -> bool:
    """Whether spans, counters and marks are recorded in this process."""
    return _is_enabled


def enable() -> None:
    """Record from now on, in this process and in those that it starts later."""
    _switch(True)


def disable() -> None:
    """Record nothing that begins from now on, in this process and in those that it starts later; what is recorded
    stays, and a span that is open counts when it ends."""
    _switch(False)


@contextmanager
def paused() -> Iterator[None]:
    """Record nothing that begins inside, in any thread of this process nor in those that it starts meanwhile."""
    was_enabled = _is_enabled
    disable()
    try:
        yield
    finally:
        _switch(was_enabled)


def _switch(on: bool) -> None:
    global _is_enabled
    if on != _is_enabled:
        _is_enabled = on
        _spans.clear()
    os.environ[SWITCH] = "1" if on else "0"
    share_board()


def share_board() -> None:
    """A process that is started from now on finds the board, also if nothing was recorded before it started."""
    if _is_enabled:
        open_board()


def joining() -> dict[str, str]:
    """The environment of a command that is started as a part of this run."""
    share_board()
    return {JOIN: os.environ[VARIABLE]} if _is_enabled and VARIABLE in os.environ else {}


def _in_child() -> None:
    # A child of fork has its parent's buffer in its hands, which goes on without it.
    global _local
    _local = _LocalBuffer()


os.register_at_fork(before=share_board, after_in_child=_in_child)


# Counters and gauges


def count(name: str, n: int = 1) -> None:
    """Add to a counter; the snapshot sums over all threads and processes."""
    if _is_enabled:
        buffer = own_buffer()
        if place := buffer.level(name, at.COUNTER):
            buffer.doubles[place + at.L_SUM] += whole_number(n, "count(name, n)")


def gauge(name: str, value: float) -> None:
    """Tell the present value of something that goes up and down; one that is no finite number tells nothing."""
    if not _is_enabled or not isfinite(value := real_number(value, "gauge(name, value)")):
        return
    buffer = own_buffer()
    if place := buffer.level(name, at.GAUGE):
        doubles = buffer.doubles
        doubles[place + at.L_LAST], doubles[place + at.L_TIME] = value, float(perf_counter_ns())
        doubles[place + at.L_SUM] += value
        doubles[place + at.L_LEAST] = min(doubles[place + at.L_LEAST], value)
        doubles[place + at.L_MOST] = max(doubles[place + at.L_MOST], value)
        doubles[place + at.L_COUNT] += 1


# Numbers that a user's code tells: a tensor that is kept would hold the graph behind it


def real_number(value: Any, call: str) -> float:
    """A float; infinity where none holds it. `call` names who asks: `gauge(name, value)`."""
    try:
        if isinstance(value, str):
            raise TypeError("a text is none")
        # Not float() alone: torch warns of it where there is a graph.
        return float(getattr(value, "item", lambda: value)())
    except OverflowError:
        return inf
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{call}: a number is needed, not a {type(value).__name__}: {error}"
        raise UsageError(message, hint="of a tensor with several elements, tell one number: value.mean()") from error


def whole_number(value: Any, call: str) -> int:
    """An int."""
    try:
        return int(operator.index(value))
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{call}: a whole number is needed, not a {type(value).__name__}"
        raise UsageError(message, hint="int(value) makes one of a float or a text") from error


# Every call of a function is timed, and the function stays of the kind that it was


Enter = Callable[[], AbstractContextManager[Any, None]]
Record = Callable[[int, int], None]


def decorate(enter: Enter, record: Record, function: Any) -> Any:
    """Time every call: of a generator function every stretch between two yields, of a coroutine from call to end.

    `record(start_ns, duration_ns)` is told of a coroutine when it ends: other code runs while it waits, which must not
    stand inside its span.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorate(enter, record, function.__func__))
    if not callable(function) or isinstance(function, type) or inspect.isasyncgenfunction(function):
        name = getattr(function, "__name__", type(function).__name__)
        raise UsageError(f"@span above {name}: it is no function", hint="put @span below it, on a function")
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def waiting(*args: Any, **named: Any) -> Any:
            began_ns = perf_counter_ns()
            try:
                return await function(*args, **named)
            finally:
                record(began_ns, perf_counter_ns() - began_ns)

        return waiting
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generating(*args: Any, **named: Any) -> Generator[Any, Any, Any]:
            return (yield from _Stretches(enter, function(*args, **named)))

        return generating

    @functools.wraps(function)
    def timed(*args: Any, **named: Any) -> Any:
        with enter():
            return function(*args, **named)

    return timed


class _Stretches(Generator[Any, Any, Any]):
    """A generator whose every stretch of work is inside a span."""

    def __init__(self, enter: Enter, inner: Generator[Any, Any, Any]) -> None:
        self._enter, self._inner = enter, inner

    def send(self, value: Any) -> Any:
        with self._enter():
            return self._inner.send(value)

    def throw(self, *error: Any) -> Any:
        with self._enter():
            return self._inner.throw(*error)

    def close(self) -> None:
        self._inner.close()
