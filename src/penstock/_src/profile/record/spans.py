"""`span`: where the time goes. Nested, per thread, without locks; on the board when the `with` ends.

    with span("03b_image_decode"): ...
    @span("read")                        # or @span alone: the function's name
    log_timing("upload", seconds)        # a duration that was measured elsewhere

A span ends in the thread in which it began, inside those that are open there. Across a `yield` or an `await` other
code runs inside it and its time is counted in it; if spans of a thread end in another order than they began, the
counts stay right and the times belong to whoever ended first.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from math import isfinite
from time import perf_counter_ns
from typing import Any, TypeVar, cast, overload

from penstock._src.profile.numbers import real_number
from penstock._src.profile.record.board import JOIN, VARIABLE, open_board
from penstock._src.profile.record.buffer import Node, ThreadBuffer, pack_event
from penstock._src.profile.record.decorator import check_callable, decorate
from penstock._src.profile.record.layout import CALLS_BITS, CALLS_MASK, PACKED
from penstock.errors import UsageError

SWITCH = "PENSTOCK_PROFILE"
_MAX_KEPT = 4096
_LONGEST_NS = 1 << 56

F = TypeVar("F", bound=Callable[..., Any])


class _Local(threading.local):
    """Holds the buffer of the calling thread, once it has one; the buffer ends with the thread."""

    buffer: ThreadBuffer


_local = _Local()


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
        try:
            buffer = _local.buffer
            node = buffer.node.kids[self.name]
        except (KeyError, AttributeError):
            buffer = own_buffer()
            node = buffer.node.kids.get(self.name) or buffer.grow(self.name)
        # Last: an exception that a signal raises while the clock is read leaves no span open.
        node.start_ns = perf_counter_ns()
        node.child_ns = 0
        buffer.node = node

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        end_ns = perf_counter_ns()
        try:
            buffer = _local.buffer
        except AttributeError:  # entered before a fork, or before profiling was off for a while
            return None
        node = buffer.node
        if node.name is not self.name:
            return buffer.end_out_of_order(self.name, end_ns)
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
        return cast(F, decorate(self, functools.partial(awaited, self.name), function))

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


def _enter_unrecorded(self: Span) -> None:
    """Begin a span in a pause. The buffer knows it, so that no end is taken for that of a span that is recorded."""
    try:
        buffer = _local.buffer
    except AttributeError:  # nothing is open in this thread
        return
    buffer.node = Node(self.name, buffer.node, buffer.node.number, is_recorded=False)


_NO_SPAN = NoSpan()
_ENTER, _EXIT = Span.__enter__, Span.__exit__
_spans: dict[Any, Any] = {}
_is_on = os.environ.get(SWITCH, "").strip().lower() not in ("0", "off", "false", "no")
_pauses = 0
_is_enabled = _is_on  # on, and not paused
_switching = threading.Lock()


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
    if isinstance(name, str):
        if not name:
            raise UsageError("span(name): the name is empty", hint='name what is timed: span("decode")')
        made = Span(name) if _is_on else _NO_SPAN
        if len(_spans) < _MAX_KEPT:  # names without end must not fill the memory
            _spans[name] = made
        return made
    if callable(name) or hasattr(name, "__get__"):
        check_callable(getattr(name, "__func__", name))
        return span(getattr(name, "__qualname__", type(name).__name__))(name)
    raise TypeError(f"span(name): a text or a function is needed, not {type(name).__name__}")


def log_timing(name: str, seconds: float | None = None) -> Any:
    """`with log_timing(name):` is `with span(name):`; with `seconds`, a duration measured elsewhere is recorded.

    Such a duration stands under the spans that are open, but is not taken from their own time. One that is no number
    is not recorded, and one beyond 2^56 ns (more than two years) counts as that long: a run must not end for it.
    """
    if seconds is None:
        return span(name)
    if _is_enabled and isfinite(value := real_number(seconds, "log_timing(name, seconds)")):
        record(name, round(min(value * 1e9, _LONGEST_NS)))
    return None


def record(name: str, duration_ns: int, start_ns: int | None = None) -> None:
    """Record a call that has ended (now, unless `start_ns` tells) and took `duration_ns`: from 0 to 2^56."""
    if _is_enabled:
        _write(name, duration_ns, start_ns)


def _write(name: str, duration_ns: int, start_ns: int | None = None) -> None:
    duration_ns = min(max(0, duration_ns), _LONGEST_NS)
    if start_ns is None:
        start_ns = perf_counter_ns() - duration_ns
    buffer = own_buffer()
    node = buffer.node.kids.get(name) or buffer.grow(name)
    buffer.write(node.number, start_ns, duration_ns, 0)


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
        buffer.node = buffer.node.kids.get(each) or buffer.grow(each)
    node = buffer.node.kids.get(name) or buffer.grow(name)
    buffer.node = here
    if inside:
        here.child_ns += duration_ns
    packed = min(max(child_ns, 0), duration_ns) << CALLS_BITS | min(calls, CALLS_MASK)
    buffer.write(node.number, perf_counter_ns() - duration_ns, duration_ns, PACKED | packed)


def show(name: str, start_ns: int, duration_ns: int) -> None:
    """Show a stretch of the calling thread in the timeline; it counts nowhere, for `record_calls` does that."""
    if not _is_enabled:
        return
    buffer = own_buffer()
    node = buffer.node.kids.get(name) or buffer.grow(name)
    buffer.write(node.number, start_ns, duration_ns, PACKED)


async def awaited(name: str, waited_for: Awaitable[Any]) -> Any:
    """Record how long it is waited for, unless that begins in a pause."""
    was_enabled, start_ns = _is_enabled, perf_counter_ns()
    try:
        return await waited_for
    finally:
        if was_enabled and _is_on:
            _write(name, perf_counter_ns() - start_ns)


# On and off


def is_enabled() -> bool:
    """Whether spans, counters and marks are recorded in this process."""
    return _is_enabled


def enable() -> None:
    """Record from now on, in this process and in those that it starts later."""
    _switch(True)


def disable() -> None:
    """Record nothing from now on, in this process and in those that it starts later; what is recorded stays."""
    _switch(False)


@contextmanager
def paused() -> Iterator[None]:
    """Record nothing that begins inside, in any thread of this process nor in those that it starts meanwhile.

    Spans that are open when it begins go on and count whole when they end, inside or later. One that begins inside is
    not recorded, also if it ends later. Switching inside shows when it is over; a child of a fork inside is off.
    """
    _pause(1)
    process = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == process:
            _pause(-1)


def _pause(change: int) -> None:
    global _pauses
    with _switching:
        _pauses += change
        _obey()


def _switch(on: bool) -> None:
    global _is_on, _local
    with _switching:
        if on != _is_on:
            _is_on = on
            _spans.clear()
            if on:
                _local = _Local()  # spans that were open when it went off are forgotten
        _obey()
    share_board()


def _obey() -> None:
    global _is_enabled
    _is_enabled = _is_on and not _pauses
    os.environ[SWITCH] = "1" if _is_enabled else "0"
    _set_methods()


def _set_methods() -> None:
    # Spans that somebody holds obey as well, without a question on the hot path.
    enter = _ENTER if _is_enabled else _enter_unrecorded if _is_on else NoSpan.__enter__
    if Span.__enter__ is not enter:
        Span.__enter__ = enter  # type: ignore[method-assign, assignment]
        Span.__exit__ = _EXIT if _is_on else NoSpan.__exit__  # type: ignore[method-assign, assignment]


def share_board() -> None:
    """A process that is started from now on finds the board, also if nothing was recorded before it started."""
    if _is_on:
        open_board()


def joining() -> dict[str, str]:
    """The environment of a command that is started as a part of this run."""
    share_board()
    return {JOIN: os.environ[VARIABLE]} if _is_on and VARIABLE in os.environ else {}


def _in_child() -> None:
    # A child of fork has its parent's buffer in its hands, which goes on without it; of a pause it sees no end.
    global _local, _pauses, _switching
    _local, _switching = _Local(), threading.Lock()
    if _pauses:
        _pauses = 0
        _switch(False)


os.register_at_fork(before=share_board, after_in_child=_in_child)
_set_methods()
