"""`@span` and `@gpu_span`: every call of a function is timed, and the function stays of the kind that it was."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from time import perf_counter_ns
from typing import Any

from penstock.errors import UsageError

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
